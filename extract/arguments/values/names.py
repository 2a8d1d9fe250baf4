"""Values to try for a constructor's parameter, from its name, its annotation and its default.

The names are the usual ones of the field: `in_channels`, `embed_dim`, `num_heads`, `norm_layer`. Widths are 32, a
multiple of each number of heads.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from extract.arguments.values.inputs import is_variadic

BLOCK = "@block"  # placeholder for a class of the block's file


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
    """Return expressions to try for a required parameter, most likely first, with `BLOCK` unexpanded."""
    spelling = annotation_text(annotation).lower().removeprefix("typing.")
    texts = [*_match_rules(NAMES, name.lower().strip("_")), *_match_rules(ANNOTATIONS, spelling)]
    kind = next((start for pattern, start in _KINDS if re.fullmatch(pattern, spelling)), "")
    texts.sort(key=lambda text: bool(kind) and re.match(kind, text) is None)
    return tuple(dict.fromkeys(texts if len(texts) > 3 else [*texts, *ANYTHING.split("|")]))


def _match_rules(rules: Iterable[NameRule], text: str) -> list[str]:
    return next((rule.values.split("|") for rule in rules if re.fullmatch(rule.pattern, text)), [])


def annotation_text(annotation: object) -> str:
    """Return an annotation as text, or "" if there is none."""
    if annotation is inspect.Parameter.empty:
        return ""
    if isinstance(annotation, str):
        return annotation
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


# -- small values for large defaults ---------------------------------------------------------------------------------

#: Patterns of names, the small size to use, and the largest default that is kept.
SMALL: tuple[tuple[str, int, int], ...] = (
    (r".*(token_id|token_index|pad_idx|padding_idx)", 1, 100),
    (r".*(vocab_size|num_embeddings|n_vocab|vocab)", 128, 128),
    (r".*(layers?|num_blocks|depth)", 2, 2),
    (r".*(heads?|n_head)", 4, 4),
    (r"d_[kqv]|.*head_dim|head_size", 8, 8),
    (r".*(image_size|img_size)", 32, 64),
    (r".*(patch_size|patch)", 4, 4),
    (r".*(positions?|_positions_?.*|position_embeddings|n_ctx|max_.*_?len.*|sliding_window)", 64, 64),
    (r".*(intermediate|ffn|feed_?forward|d_ff|mlp_dim|inner).*", 64, 64),
    (r".*num_labels|num_classes", 10, 10),
    (r".*(embed|hidden|model|width|channels|_dim|^dim|_size|features|n_embd|filters|planes).*", 32, 64),
)


def shrunk(name: str, default: object) -> str | None:
    """Return a small value for a parameter with a large default, or None to keep the default."""
    if isinstance(default, bool) or not isinstance(default, (int, list, tuple)):
        return None
    lower = name.lower().strip("_")
    small, limit = next(((size, most) for pattern, size, most in SMALL if re.fullmatch(pattern, lower)), (0, 0))
    if isinstance(default, int):
        return str(small) if small and default > limit else None
    if not default or not all(isinstance(item, int) and not isinstance(item, bool) for item in default):
        return None
    if not small and "dim" not in lower and "channel" not in lower and "depth" not in lower:
        return None
    # Depths count repetitions, all others are widths.
    size = 2 if re.search(r"depth|layers|blocks|repeats", lower) else small if 0 < small < 32 else 32
    if max(default) <= size * 2:
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


def format_dict(items: Mapping[Any, str]) -> str:
    """Return a dict with these items, as an expression."""
    return f"{{{', '.join(f'{name!r}: {text}' for name, text in items.items())}}}"
