"""Values to try for a constructor's parameter, from its name, its annotation and its default.

The names are the usual ones of the field: `in_channels`, `embed_dim`, `num_heads`, `norm_layer`. Widths are 32, a
multiple of each number of heads.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from extract.arguments.inputs import list_required
from extract.arguments.trials import AttemptError, BlockNamespace, attempt

SETTINGS = "@settings"  # placeholder for an object whose attributes follow these rules
BLOCK = "@block"  # placeholder for a class of the block's file
_MAX_VALUES = 3  # tried for one field of a configuration


class NameRule(NamedTuple):
    """Values for parameters whose lower-case name or annotation fully matches a pattern."""

    pattern: str
    values: str  # separated by |


NAMES: tuple[NameRule, ...] = (
    NameRule(r"config|cfg|conf|opts?|args|hparams|options|settings|.*_config", "@settings|{}|None"),
    NameRule(r".*_(cfg|args|kwargs)", "None|{}|@settings"),
    NameRule(
        r".*heads?|head_num|(output|out|roi|pool(ed|ing)?|patch|tubelet|grid|cell|win(dow)?)_?(size|shape)|ps|ws"
        r"|(.*_)?(ratio|factor|reduction)",
        "4|(4, 4)|2|1|7|(2, 4, 4)|0.25",
    ),
    NameRule(r"kernel(_sizes?|s)?|ksize|ks|(num_)?anchors?|na", "3|(3, 3)|[3, 5]|[3, 3]"),
    NameRule(r"strides?|s|padding|pad|p|dilations?|d", "1|2|0|(1, 1)|[1, 2, 2, 2]|[4, 8, 16]"),
    NameRule(
        r"((num|n)_)?(hidden_)?(layers?|blocks|stages|levels|convs|stacks|depth)|depths|repeats?"
        r"|((up|down)_?)?(scales?|sample|rate)(_factor)?",
        "2|1|3|4|[2, 2, 2, 2]|[1, 2]|(2, 2)",
    ),
    NameRule(r"(num|n)?_?class(es)?|nc|(num|n)_(labels|outputs?)", "10|4"),
    NameRule(r"(num_)?(embeddings|tokens|types|vocab)|vocab(_size)?", "64|32"),
    NameRule(r"(input|feat(ure)?|token|spatial)_?(res(olution)?|size|shape|map_size)", "(8, 8)|8|(16, 16)|16|32"),
    NameRule(
        r"(max_|num_)?(seq|sequence|context|pos|patches|src|tgt)_?(len(gth)?|positions?|size)?|length|num_patches"
        r"|num_(quer(y|ies)|slots|latents|codes|clusters|masks?|bins)|.*head_?(dim|size|width)",
        "16|8|64|32",
    ),
    NameRule(r".*drop(out)?(_?(prob|rate|path|p|ratio|out))?|prob|dpr|(.*_)?eps", "0.1|[0.1, 0.1]|0.0|1e-05"),
    NameRule(
        r"temperature|tau|alpha|beta|gamma|sigma|theta|momentum|std|mean|margin|(.*_)?(weight|scale|threshold)|init_values?",
        "1.0|0.5|2|[1.0]",
    ),
    NameRule(r"norm_?(layer|cls|func|fn|type)?", "nn.LayerNorm|nn.BatchNorm2d|nn.Identity|'BN'|nn.LayerNorm(32)|None"),
    NameRule(r"(is|use|add|with|has|return|output|enable|tie)_.*|_?apply_.*", "False|True"),
    NameRule(r"(.*_)?impl(ementation)?|backend", "None|'eager'"),
    NameRule(r"(.*_)?(loss|criterion)(_(fn|func|fcn|function))?", "nn.MSELoss()|nn.BCEWithLogitsLoss()|1.0"),
    NameRule(r"(act|gate)_?(layer|fn|func)?|activ.*|.*_act", "nn.ReLU|nn.ReLU()|'relu'|'gelu'|F.relu|None|True"),
    NameRule(
        r"(.*_)?(backbone|encoder)|body|trunk|(base_)?model|net(work)?|stem",
        "nn.Conv2d(3, 32, 3, padding=1)|nn.Identity()|nn.Linear(32, 32)|nn.Sequential(nn.Conv2d(3, 32, 3, padding=1))",
    ),
)
ANNOTATIONS: tuple[NameRule, ...] = (
    NameRule(r"bool", "False|True"),
    NameRule(
        r".*(list|sequence|iterable)\[.*(callable|module).*",
        "[nn.Identity(), nn.Identity()]|nn.ModuleList([nn.Identity()])",
    ),
    NameRule(r"(type|callable).*", "nn.Identity|nn.ReLU|@block|F.relu"),
    NameRule(r".*(module|nn\.).*", "nn.Identity()|nn.Linear(32, 32)|nn.Identity"),
    NameRule(r".*(list|sequence|tuple|iterable|size).*", "[32, 32]|[32, 32, 32]|(4, 4)|[2, 2, 2, 2]|(32, 32)"),
    NameRule(r".*float.*", "0.5|1.0"),
    NameRule(r".*int.*", "32|4|2|1"),
    NameRule(r".*str.*", "'mean'|'relu'|''"),
)
ANYTHING = "32|[32, 32, 32]|2|None|nn.Identity()|[32, 32]|(32, 32)|[32, 32, 32, 32]|@block|@settings|'mean'|0.5"


#: Patterns of annotations, and of the start of expressions with a matching type.
_KINDS: tuple[tuple[str, str], ...] = (
    (r"(typing\.)?(list|tuple|sequence|iterable)\b.*", r"[\[(]"),
    (r"str|literal\[['\"].*", r"['\"]"),
    (r"(typing\.)?(dict|mapping)\b.*", r"[{]|dict\("),
)


def candidates(name: str, annotation: object = inspect.Parameter.empty) -> tuple[str, ...]:
    """Return expressions to try for a required parameter, most likely first, with `BLOCK` and `SETTINGS` unexpanded."""
    spelling = annotation_text(annotation).lower().removeprefix("typing.")
    texts = [*_match_rules(NAMES, name.lower().strip("_")), *_match_rules(ANNOTATIONS, spelling)]
    kind = next((start for pattern, start in _KINDS if re.fullmatch(pattern, spelling)), "")
    texts.sort(key=lambda text: bool(kind) and re.match(kind, text) is None)
    return tuple(dict.fromkeys(texts if len(texts) > 3 else [*texts, *ANYTHING.split("|")]))


def suggest_value(name: str) -> str:
    """Return an expression for an attribute of settings, which hold plain values rather than layers."""
    return next((text for text in candidates(name) if not text.startswith(("nn.", "F.", "@"))), "None")


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
    (r".*head_dim|head_size", 8, 8),
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
    fresh = [min(item, size) for item in default]
    return str(tuple(fresh) if isinstance(default, tuple) else fresh)


def shrunk_arguments(defaults: Mapping[str, object]) -> dict[str, str]:
    """Return small values for all parameters whose defaults make the model large."""
    texts = {name: shrunk(name, default) for name, default in defaults.items()}
    return {name: text for name, text in texts.items() if text is not None}


# -- configuration objects -------------------------------------------------------------------------------------------


class NameSettings:
    """An object that returns a value guessed from the name for any attribute, and records the names."""

    _MAX_ATTRIBUTES = 200

    def __init__(self, evaluate: Callable[[str], Any]) -> None:
        object.__setattr__(self, "_evaluate", evaluate)
        object.__setattr__(self, "_recorded", {})
        object.__setattr__(self, "_by_key", [])

    def __getattr__(self, name: str) -> Any:
        # Python looks dunder names up by itself, as for `copy`; the bound ends loops over attributes.
        if name.startswith("__") or len(self._recorded) > self._MAX_ATTRIBUTES:
            raise AttributeError(name)
        text = suggest_value(name)
        self._recorded[name] = text
        value = self._evaluate(text)
        object.__setattr__(self, name, value)
        return value

    def __getitem__(self, name: str) -> Any:
        self._by_key.append(name)
        return getattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value like `dict.get`."""
        self._by_key.append(name)
        return default if default is not None else getattr(self, name)

    def expression(self) -> str:
        """Return an expression for an object with the attributes that were read, or for a dict if keys were read."""
        if self._by_key:
            return "{" + ", ".join(f"{name!r}: {text}" for name, text in self._recorded.items()) + "}"
        return f"types.SimpleNamespace({', '.join(f'{name}={text}' for name, text in self._recorded.items())})"


def configuration_expressions(name: str, cls: type) -> list[str]:
    """Return constructor calls of a configuration class: first with small values, then with its defaults."""
    parameters = read_parameters(cls)
    needed: dict[str, str] = {}
    try:
        # An instance has the fields that the constructor derives; the signature has not.
        default = attempt(cls)
        fields: dict[str, object] = dict(vars(default))
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        known = {
            field: value
            for field, value in fields.items()
            if not field.startswith("_") and (takes_any or field in parameters)
        }
    except (AttemptError, TypeError):  # fall back to the signature
        known = {field: parameter.default for field, parameter in parameters.items()}
        texts = {field: candidates(field, parameters[field].annotation)[0] for field in list_required(parameters)}
        needed = {field: text for field, text in texts.items() if not text.startswith("@")}
    small = needed | shrunk_arguments(known)
    for field, value in known.items():
        if field.endswith("_config") or (hasattr(value, "__dict__") and type(value).__name__.endswith("Config")):
            inner = dict(value) if isinstance(value, dict) else dict(getattr(value, "__dict__", {}))
            shrunk_inner = shrunk_arguments({key: item for key, item in inner.items() if not key.startswith("_")})
            if shrunk_inner:
                pairs = ", ".join(f"{key!r}: {text}" for key, text in sorted(shrunk_inner.items()))
                small[field] = "{" + pairs + "}"
    return list(dict.fromkeys([format_call(name, small), format_call(name, needed)]))


def format_call(name: str, arguments: Mapping[str, str]) -> str:
    """Return a call with these keyword arguments, as an expression."""
    return f"{name}({', '.join(f'{key}={text}' for key, text in sorted(arguments.items()))})"


def read_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function or class, empty if its signature is unavailable."""
    try:
        return dict(inspect.signature(function).parameters)
    except (ValueError, TypeError):
        return {}


def add_config_field(
    failure: AttemptError, texts: Mapping[str, str], names: BlockNamespace, words: list[str]
) -> Iterator[tuple[str, str]]:
    """Yield a parameter and its configuration with one more field, set on the object or on one nested in it.

    Args:
        failure: the failure of a construction with these expressions.
        texts: expressions by parameter; only those that call a class named `...Config` are considered.
        names: evaluates the expressions.
        words: the words of the failing lines.
    """
    for parameter, text in texts.items():
        if text.startswith("@"):  # a placeholder
            continue
        call = ast.parse(text, mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id.endswith("Config")):
            continue
        try:
            config = attempt(partial(names.value, text))
        except AttemptError:
            continue
        inner = {field: value for field, value in vars(config).items() if type(value).__name__.endswith("Config")}
        for keyword, owner in {"": config, **inner}.items():
            for field in _missing_fields(failure.cause, owner, words):
                # Settings hold plain values, not layers.
                plain = [value for value in candidates(field) if not value.startswith(("nn.", "F.", "@"))]
                for value in plain[:_MAX_VALUES]:
                    yield parameter, _with_field(text, keyword, field, value)


def _missing_fields(cause: BaseException, owner: Any, words: list[str]) -> list[str]:
    """Return the fields of a configuration that caused a failure."""
    if isinstance(cause, AttributeError) and type(cause.obj) is type(owner):
        return [cause.name or ""]
    unset = [word for word in dict.fromkeys(words) if vars(owner).get(word, 0) is None]
    return unset if "NoneType" in str(cause) else []


def _with_field(text: str, keyword: str, field: str, value: str) -> str:
    """Return the call with one more keyword, or with one more key in the dict passed as `keyword`."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    value_node = ast.parse(value, mode="eval").body
    keywords = {item.arg: item for item in call.keywords}
    if not keyword:
        call.keywords = [item for item in call.keywords if item.arg != field] + [ast.keyword(field, value_node)]
    else:
        entry = keywords.get(keyword)
        if entry is None or not isinstance(entry.value, ast.Dict):
            entry = ast.keyword(keyword, ast.Dict([], []))
            call.keywords = [item for item in call.keywords if item.arg != keyword] + [entry]
        assert isinstance(entry.value, ast.Dict)
        entry.value.keys.append(ast.Constant(field))
        entry.value.values.append(value_node)
    return ast.unparse(call)
