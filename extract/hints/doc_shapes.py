"""Shapes in docstrings and comments: `x: (B, N, C)`, "Tensor of shape (batch_size, seq_len, dim)"."""

import re
from collections.abc import Iterator, Sequence

_DIM = r"[A-Za-z_][\w{}\\ /*+'-]*|\d+|\\?text\{[^}]*\}"
_SHAPE = re.compile(rf"[(\[]\s*((?:{_DIM})(?:\s*[,x]\s*(?:{_DIM}))+)\s*,?\s*[)\]]")
_NAMED = re.compile(r"^\s*(?:[-*#]\s*)?[`*]*(\w+)[`*]*\s*(?:\([^:]*\))?\s*[:=]")
_INPUT = re.compile(r"^\s*(?:[-*]\s*)?(?:\*\*)?[Ii]nputs?(?:\*\*)?\s*(?:\d+)?\s*:")
_SHORT = re.compile(r"^(?:[A-Z][A-Za-z]?\d*|[bchwntldkqsv]|[A-Z]_?\w{0,4}|\d+|H_?\w*|W_?\w*)$")
_WORDS = re.compile(r"\b(?:shape|size|shaped|dimensions?|tensor)\b", re.IGNORECASE)
_NOT_DIMS = {"optional", "Optional", "Tensor", "torch", "default", "None", "True", "False", "and", "or", "Union"}
_NOT_DIMS |= {"int", "float", "bool", "str", "list", "tuple", "dict", "List", "Tuple"}
_START = re.compile(r"^\s*(?:Args?|Arguments?|Parameters?|Inputs?|Shapes?)\b")
_END = re.compile(r"^\s*(?:Returns?|Outputs?|Yields?|Raises?)\b\s*:?|^\s*-?\s*(?:\*\*)?Outputs?(?:\*\*)?\s*:")

Said = tuple[str, tuple[str, ...]]


def doc_shapes(text: str, arguments: Sequence[str]) -> Iterator[Said]:
    """The shapes of arguments in a docstring."""
    argument = ""
    ended = False
    for line in text.splitlines():
        ended = bool(_END.match(line)) or (ended and not _START.match(line) and not _INPUT.match(line))
        if ended or ">>>" in line:
            argument = ""
            continue
        named = _NAMED.match(line)
        if named is not None:
            argument = named[1] if named[1] in arguments else argument if line.startswith("        ") else ""
        if named is None or not argument:
            argument = arguments[0] if _INPUT.match(line) and arguments else argument
        dims = next(_dims(line), None)
        if dims is not None and argument:
            yield argument, dims


def comment_shapes(lines: Sequence[str], arguments: Sequence[str]) -> Iterator[Said]:
    """The shapes of arguments in comments: `# x: (B, C, H, W)`, `# x is [B, N, C]`."""
    for line in lines:
        _, mark, comment = line.partition("#")
        dims = next(_dims(comment, sure=True), None) if mark else None
        if dims is None:
            continue
        named = next((name for name in arguments if re.match(rf"\s*`?{re.escape(name)}`?\b", comment)), None)
        if named is not None:
            yield named, dims


def _dims(line: str, *, sure: bool = False) -> Iterator[tuple[str, ...]]:
    for match in _SHAPE.finditer(line):
        texts = [part.strip() for part in re.split(r",|(?<=[\w}])\s+x\s+(?=[\w\\])", match[1])]
        names = [re.sub(r"\\text|\\_|[{}\\ ]", "", text) for text in texts]
        if len(names) < 2 or len(names) > 7 or any(name in _NOT_DIMS or not name for name in names):
            continue
        if any("*" in name and len(name) == 1 for name in names):
            continue
        short = all(_SHORT.match(name) for name in names)
        if short or sure or _WORDS.search(line[: match.start()]):
            yield tuple(name if name.isidentifier() else "?" for name in names)
