"""Values to try for a parameter, by what a file does with its name, by its name, its annotation and its default.

The names are the usual ones of the field: `in_channels`, `embed_dim`, `num_heads`, `norm_layer`. Widths are 32, a
multiple of each number of heads.
"""

import ast
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from extract.arguments.values.inputs import annotation_text, is_variadic

BLOCK = "@block"  # placeholder for a class of the block's file
_MAX_COMPARED = 6


class NameRule(NamedTuple):
    """Values for parameters whose lower-case name or annotation fully matches a pattern."""

    pattern: str
    values: str  # separated by |


NAMES: tuple[NameRule, ...] = (
    NameRule(
        r".*heads?|head_num|(output|out|roi|pool(ed|ing)?|patch|tubelet|grid|cell|win(dow)?)_?(size|shape)|ps|ws"
        r"|(.*_)?(ratio|factor|reduction)",
        "4|(4, 4)|2|1|7|(2, 4, 4)|0.25",
    ),
    NameRule(r"kernel(_sizes?|s)?|ksize|ks|(num_)?anchors?|na", "3|(3, 3)|[3, 5]|[3, 3]"),
    NameRule(
        r"strides?|s|padding|pad|p|dilations?|d|.*(token_id|pad(ding)?_idx)", "1|2|(1, 1)|[1, 2, 2, 2]|[4, 8, 16]"
    ),
    NameRule(
        r"((num|n)_)?(hidden_)?(layers?|blocks|stages|levels|convs|stacks|depth)|depths|repeats?"
        r"|((up|down)_?)?(scales?|sample|rate)(_factor)?",
        "2|1|3|4|[2, 2, 2, 2]|[1, 2]|(2, 2)",
    ),
    NameRule(r"(num|n)?_?class(es)?|nc|(num|n)_(labels|outputs?)", "10|4"),
    NameRule(r".*drop(out)?(_?(prob|rate|path|p|ratio|out))?s?|prob|dpr|(.*_)?eps", "0.1|[0.1, 0.1]|0.0|1e-05"),
    NameRule(r"(act(ivation)?|norm|conv|attn|block|layer)_?(class|cls)", "nn.ReLU|nn.Identity|@block|nn.BatchNorm2d"),
    NameRule(r"(is|use|add|with|has|return|output|enable|tie)_.*|_?apply_.*", "False|True"),
    NameRule(r"(.*_)?act(ivation)?(_?(fn|func|function))?", "'relu'|nn.ReLU()|nn.ReLU"),
)
ANNOTATIONS: tuple[NameRule, ...] = (
    NameRule(r"bool", "False|True"),
    NameRule(
        r"(torch\.)?(float|long)?tensor\b.*",
        "torch.rand((32, 32))|torch.rand((32,))|torch.rand((2, 32, 16, 16))|torch.tensor(1.0)",
    ),
    NameRule(r".*ndarray.*", "np.ones((32, 32), dtype='float32')|np.ones((32,), dtype='float32')"),
    NameRule(
        r".*(list|sequence|iterable)\[.*(callable|module).*",
        "[nn.Identity(), nn.Identity()]|nn.ModuleList([nn.Identity()])",
    ),
    NameRule(r"(type|callable).*", "nn.Identity|nn.ReLU|@block|F.relu"),
    NameRule(r".*(module|nn\.).*", "nn.Identity()|nn.Linear(32, 32)|nn.Identity"),
    NameRule(r".*(list|sequence|iterable)\[str.*", "['0', '1']"),
    NameRule(r".*(list|sequence|tuple|iterable|size).*", "[32, 32]|[32, 32, 32]|(4, 4)|[2, 2, 2, 2]|(32, 32)"),
    NameRule(r".*(dict|mapping).*", "{}|{'0': 32}"),
    NameRule(r".*float.*", "0.5|1.0"),
    NameRule(r".*int.*", "32|4|2|1"),
    NameRule(r".*str.*", "'mean'|'relu'|''"),
)
ANYTHING = "32|[32, 32, 32]|2|None|nn.Identity()|[32, 32]|(32, 32)|[32, 32, 32, 32]|@block|'mean'|0.5|3"

#: Patterns of annotations, and of the start of expressions with a matching type.
_KINDS: tuple[tuple[str, str], ...] = (
    (r"(typing\.)?(list|tuple|sequence|iterable)\b.*", r"[\[(]"),
    (r"str|literal\[['\"].*", r"['\"]"),
    (r"(typing\.)?(dict|mapping)\b.*", r"[{]|dict\("),
)


def candidates(name: str, annotation: object = inspect.Parameter.empty) -> tuple[str, ...]:
    """Return the usual values of a parameter, most likely first, with `BLOCK` unexpanded."""
    spelling = annotation_text(annotation).lower().removeprefix("typing.")
    texts = [*_match_rules(NAMES, name.lower().strip("_")), *_match_rules(ANNOTATIONS, spelling)]
    kind = next((start for pattern, start in _KINDS if re.fullmatch(pattern, spelling)), "")
    texts.sort(key=lambda text: bool(kind) and re.match(kind, text) is None)
    return tuple(dict.fromkeys(texts if len(texts) > 3 else [*texts, *ANYTHING.split("|")]))


def _match_rules(rules: Iterable[NameRule], text: str) -> list[str]:
    return next((rule.values.split("|") for rule in rules if re.fullmatch(rule.pattern, text)), [])


# -- what a file compares a name with, or looks up by it -------------------------------------------------------------


def list_compared(module: str, name: str, annotation: object = inspect.Parameter.empty) -> tuple[str, ...]:
    """Return the texts that a file compares a name with, unless an annotation asks for something else than a text."""
    spelling = annotation_text(annotation)
    takes_text = not spelling or re.search(r"(?i)str|literal|any\b|enum", spelling)
    return read_compared(module).get(name, ()) if takes_text else ()


@functools.cache
def read_compared(module: str) -> Mapping[str, tuple[str, ...]]:
    """Return the texts that the names in an imported module are compared with; empty if its text is unavailable.

        assert mode.lower() in ("mean", "max")              # mode: 'mean', 'max'
        self.scale = SCALES[mode]                           # mode: the keys of SCALES

    A name means the same wherever a file uses it, so its functions and other classes count, too.
    """
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[str, dict[str, None]] = {}
    for node in ast.walk(tree):
        texts: Iterable[object] = ()
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.In | ast.NotIn):
            texts = [part.value for part in ast.walk(node.comparators[0]) if isinstance(part, ast.Constant)]
            named = re.fullmatch(r"(?:.*\.)?(\w+?)(?:\.\w+\(\))?", ast.unparse(node.left))
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            table = vars(sys.modules[module]).get(node.value.id)
            texts = sorted(map(str, table)) if isinstance(table, dict) else ()
            named = re.fullmatch(r"(\w+)", ast.unparse(node.slice)) if texts else None
        for text in texts:
            if isinstance(text, str) and named is not None:
                found.setdefault(named[1], {})[repr(text)] = None
    return {name: tuple(texts)[:_MAX_COMPARED] for name, texts in found.items()}


# -- small values for large defaults ---------------------------------------------------------------------------------

#: Patterns of names, the small size to use, and the largest default that is kept.
SMALL: tuple[tuple[str, int, int], ...] = (
    (r".*(token_id|token_index|pad_idx|padding_idx)", 1, 100),
    (r".*(vocab_size|num_embeddings|n_vocab|vocab)", 128, 128),
    (r".*(layers?|num_blocks|depths?|repeats)", 2, 2),
    (r".*(heads?|n_head)", 4, 4),
    (r"d_[kqv]|.*head_dim|head_size", 8, 8),
    (r".*(image_size|img_size)", 32, 64),
    (r".*(patch_size|patch)", 4, 4),
    (r".*(positions?|_positions_?.*|position_embeddings|n_ctx|max_.*_?len.*|sliding_window)", 64, 64),
    (r".*(intermediate|ffn|feed_?forward|d_ff|mlp_dim|inner).*", 64, 64),
    (r".*num_labels|num_classes", 10, 10),
    (r".*(embed|hidden|model|width|channel|dim|_size|features|n_embd|filters|planes).*", 32, 64),
)


def shrunk(name: str, default: object) -> str | None:
    """Return a small value for a parameter with a large default, or None to keep the default."""
    lower = name.lower().strip("_")
    small, limit = next(((size, most) for pattern, size, most in SMALL if re.fullmatch(pattern, lower)), (0, 0))
    if not small or isinstance(default, bool) or not isinstance(default, int | list | tuple):
        return None
    if isinstance(default, int):
        return str(small) if default > limit else None
    size = min(small, 32)  # of widths; numbers of heads and depths are smaller
    if not all(type(item) is int for item in default) or max(default, default=0) <= 2 * size:
        return None
    # Numbers of heads divide widths.
    fresh = [size if size < 32 and size % max(min(item, size), 1) else min(item, size) for item in default]
    return str(tuple(fresh) if isinstance(default, tuple) else fresh)


def shrunk_arguments(defaults: Mapping[str, object]) -> dict[str, str]:
    """Return small values for all parameters whose defaults make the model large."""
    texts = {name: shrunk(name, default) for name, default in defaults.items()}
    return {name: text for name, text in texts.items() if text is not None}


# -- expressions -------------------------------------------------------------------------------------------------------


def format_call(name: str, arguments: Mapping[str, str]) -> str:
    """Return a call with these keyword arguments, as an expression."""
    return f"{name}({', '.join(f'{key}={text}' for key, text in sorted(arguments.items()))})"


def format_dict(items: Mapping[Any, str]) -> str:
    """Return a dict with these items, as an expression."""
    return f"{{{', '.join(f'{name!r}: {text}' for name, text in items.items())}}}"


def read_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function or class, empty if its signature is unavailable.

    Of a class whose constructor takes anything (`*args, **kwargs`), they are those of the next one that states its own.
    """
    try:
        parameters = dict(inspect.signature(function).parameters)
        for owner in function.__mro__[1:] if isinstance(function, type) else ():
            if len(parameters) != 2 or not all(map(is_variadic, parameters.values())):
                break
            if "__init__" in vars(owner):
                _, *names = (inherited := inspect.signature(vars(owner)["__init__"]).parameters)
                parameters = {name: inherited[name] for name in names}
    except Exception:  # noqa: BLE001 - what is foreign may refuse to be looked at in any way
        return {}
    return parameters
