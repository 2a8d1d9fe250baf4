"""Read docstrings: the shapes of arguments."""

import re
from collections.abc import Iterator, Sequence

_DIM = r"[A-Za-z_][\w{}\\ /*+'-]*|\d+|\\?text\{[^}]*\}"
#: `(B, N, C)`, `[N, C]`, `(h x w)`; of one dimension `(N,)`.
_SHAPE = re.compile(rf"[(\[]\s*((?:{_DIM})(?:\s*[,x]\s*(?:{_DIM}))+|(?:{_DIM})(?=\s*,\s*\)))\s*,?\s*[)\]]")
_RANK = re.compile(r"\b([1-6])-?[dD](?:imensional)? (?:\w+ )?[tT]ensor\b")
_NAMED = re.compile(r"^\s*(?:[-*#]\s*)?[`*]*(\w+)[`*]*\s*(?:\([^:]*\))?\s*[:=]")
_INPUT = re.compile(r"^\s*(?:[-*]\s*)?(?:\*\*)?[Ii]nputs?(?:\*\*)?\s*(?:\d+)?\s*:")
_SHORT = re.compile(r"[A-Z]\w{0,5}|[bchwntldkqsv]|\d+|[HW]_?\w*")
_SHAPE_WORD = re.compile(r"\b(?:shape|size|shaped|dimensions?|tensor)\b", re.IGNORECASE)
_NO_DIMENSIONS = frozenset({"optional", "tensor", "torch", "default", "none", "true", "false", "and", "or", "union"})
_NO_DIMENSIONS |= {"int", "float", "bool", "str", "list", "tuple", "dict"}
_START = re.compile(r"^\s*(?:Args?|Arguments?|Parameters?|Inputs?|Shapes?)\b")
_END = re.compile(r"^\s*(?:Returns?|Outputs?|Yields?|Raises?)\b\s*:?|^\s*-?\s*(?:\*\*)?Outputs?(?:\*\*)?\s*:")


def list_documented_shapes(text: str, arguments: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield arguments and their documented shapes: `x: (B, N, C)`, "Tensor of shape (batch_size, seq_len, dim)"."""
    argument = ""
    ended = False
    for line in text.splitlines():
        # Shapes of outputs look the same: they are skipped until a section of inputs begins.
        ended = bool(_END.match(line)) or (ended and not _START.match(line) and not _INPUT.match(line))
        if ended or ">>>" in line:
            argument = ""
            continue
        named = _NAMED.match(line)
        if named is not None:
            argument = named[1] if named[1] in arguments else argument if line.startswith("        ") else ""
        if (named is None or not argument) and _INPUT.match(line) and arguments:
            argument = arguments[0]
        dims = next(_dimensions(line), None)
        if dims is not None and argument:
            yield argument, dims


def _dimensions(line: str) -> Iterator[tuple[str, ...]]:
    for match in _SHAPE.finditer(line):
        texts = [part.strip() for part in re.split(r",|(?<=[\w}])\s+x\s+(?=[\w\\])", match[1])]
        names = [re.sub(r"\\text|\\_|[{}\\ ]", "", text) for text in texts]
        if len(names) > 7 or any(name.lower() in _NO_DIMENSIONS or name in {"", "*"} for name in names):
            continue
        if all(_SHORT.fullmatch(name) for name in names) or _SHAPE_WORD.search(line[: match.start()]):
            yield tuple(name if name.isidentifier() else "?" for name in names)
    if rank := _RANK.search(line):
        yield ("?",) * int(rank[1])
