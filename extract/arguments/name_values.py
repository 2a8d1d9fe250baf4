"""Values to try for a constructor's parameter, from its name, its annotation and its default.

The names are the usual ones of the field: `in_channels`, `embed_dim`, `num_heads`, `norm_layer`. Widths are 32, a
multiple of each number of heads.
"""

import ast
import enum
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from extract.arguments.inputs import list_required
from extract.arguments.messages import NAME
from extract.arguments.trials import AttemptError, attempt

BLOCK = "@block"  # placeholder for a class of the block's file


class NameRule(NamedTuple):
    """Values for parameters whose lower-case name or annotation fully matches a pattern."""

    pattern: str
    values: str  # separated by |


NAMES: tuple[NameRule, ...] = (
    NameRule(r".*(token_id|token_index|pad_idx|padding_idx)", "1|0|None|32"),
    NameRule(r"(.*_)?name", "'x'|32"),
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
    NameRule(r".*drop(out)?(_?(prob|rate|path|p|ratio|out))?s?|prob|dpr|(.*_)?eps", "0.1|[0.1, 0.1]|0.0|1e-05"),
    NameRule(r"(act(ivation)?|norm|conv|attn|block|layer)_?(class|cls)", "nn.ReLU|nn.Identity|@block|nn.BatchNorm2d"),
    NameRule(r"(.*_)?(loss|criterion)(_?(fn|fcn|func|function))?", "nn.MSELoss()|nn.BCEWithLogitsLoss()"),
    NameRule(r"(is|use|add|with|has|return|output|enable|tie)_.*|_?apply_.*", "False|True"),
    NameRule(r"(.*_)?act(ivation)?(_?(fn|func|function))?", "'relu'|nn.ReLU()|nn.ReLU"),
    NameRule(r"(.*_)?device", "'cpu'|torch.device('cpu')"),
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


# -- configuration objects -------------------------------------------------------------------------------------------


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


# -- values that are read by name ------------------------------------------------------------------------------------

_NAMES_TEXT = re.compile(r"(?i).+_(field|key|column|name|prefix|suffix)")
_METHOD = "lambda *_, **__: "
_INDEXED = re.compile(r"'(\w+)' object is not subscript|argument of type '(\w+)' is not|^(\w+) ind\w+ must be integers")
_ASSIGNED = re.compile(r"^\s*(?:self\.)?(\w+)(?:: [^=\n]+)? = (.+)", re.MULTILINE)
_TENSOR = ("nn.Identity()", "torch.rand((32, 32))")
#: Values whose methods and attributes plain numbers are asked for where their kind was guessed wrong.
_OTHER_KINDS: tuple[tuple[str, object], ...] = (
    ("nn.Identity()", nn.Identity()),
    ("{'0': 32}", {}),
    ("torch.rand((32, 32))", torch.rand(0)),
    ("'mean'", ""),
    ("'32'", ""),
)


class Settings(NamedTuple):
    """A value that is read by name, as an expression: a dict, or an object with more attributes than its class has.

        {'width': 32}      type('Stub', (nn.Identity,), {'width': 32, 'count': lambda *_, **__: 32})()

    Args: items: expressions by name. base: the class of the object, or "". call: the arguments of its constructor.
    """

    items: Mapping[Any, str]
    base: str = ""
    call: str = "()"

    def expression(self) -> str:
        """Return Python code that creates it."""
        inside = f"{{{', '.join(f'{name!r}: {text}' for name, text in self.items.items())}}}"
        return f"type('Stub', ({self.base},), {inside}){self.call}" if self.base else inside

    def add(self, items: Mapping[Any, str]) -> str:
        """Return the expression with these items, the new ones first."""
        fresh = {name: text for name, text in items.items() if name not in self.items}
        return self._replace(items={**fresh, **self.items, **items}).expression()


def parse_settings(text: str) -> Settings | None:
    """Return the parts of such an expression; None if it is another one."""
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        return None
    base, call = "", "()"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Call) and len(node.func.args) == 3:
        call = text[len(ast.get_source_segment(text, node.func) or "") :]
        base, node = ast.unparse(node.func.args[1]).strip("(),"), node.func.args[2]
    if not isinstance(node, ast.Dict) or not all(isinstance(key, ast.Constant) for key in node.keys):
        return None
    pairs = zip(node.keys, node.values, strict=True)
    return Settings(
        {key.value: ast.unparse(value) for key, value in pairs if isinstance(key, ast.Constant)}, base, call
    )


class ReadItems(NamedTuple):
    """The names that the code of a class reads of values. Args: assigned: by name, the words of what it is assigned."""

    module: str
    text: str
    assigned: Mapping[str, frozenset[str]]

    def improve(
        self, failure: AttemptError, texts: Mapping[str, str], evaluate: Callable[[str], Any]
    ) -> Iterator[tuple[str, str]]:
        """Yield the arguments that lack what was read of them, with a value that has it.

        Then those whose items the failing lines read, with other items. Args: texts: the arguments as expressions.
        """
        line, cause = "".join(failure.lines[-1:]), failure.cause
        lack = _find_lack(cause)
        after = r"\[" if lack is None or lack[2] else rf"\.{lack[0]}\b"
        held = [name for name in texts if re.search(rf"\b{name}{after}|\bin {name}\b", line)] or list(texts)
        if lack is not None:
            for name in held:
                yield from ((name, text) for text in self._complete(texts[name], lack, line, name, evaluate))
        if "before Module.__init__" in str(failure):  # no module can be assigned yet
            yield from ((n, t.replace("(nn.Identity,)", "(types.SimpleNamespace,)")) for n, t in texts.items())
        if "Identity" in str(failure):  # a tensor was wanted
            yield from ((name, text.replace(*_TENSOR)) for name, text in texts.items() if _TENSOR[0] in text)
        words = {word for text in (*failure.lines, str(failure)) for word in NAME.findall(text)}
        words |= {word for name in words for word in self.assigned.get(name, ())}
        for name, text in texts.items():
            settings = parse_settings(text) or Settings({})
            mentioned = [key for key in settings.items if str(key) in words]
            for key in mentioned or settings.items:
                method = _METHOD if settings.items[key].startswith(_METHOD) else ""
                plain = settings.items[key].removeprefix(method)
                better = list(self._complete(plain, lack, line, str(key), evaluate)) if lack is not None else []
                better += self._list_plain(key) if mentioned and not better else []
                yield from ((name, settings.add({key: method + other})) for other in better if other != plain)

    def _complete(
        self, text: str, lack: tuple[Any, str, bool], line: str, name: str, evaluate: Callable[[str], Any]
    ) -> Iterator[str]:
        """Yield expressions for a value with what it lacks, if it is of the kind that lacks it."""
        wanted, holder, is_item = lack
        try:
            value = attempt(functools.partial(evaluate, text))
        except AttemptError:  # the expression of a class that fails itself
            return
        node = ast.parse(text, mode="eval").body
        if isinstance(node, ast.List) and value and type(value[0]).__name__ == holder:
            for better in self._complete(ast.unparse(node.elts[0]), lack, line, name, evaluate):
                yield f"[{', '.join([better] * len(value))}]"
        if type(value).__name__ != holder:
            return
        settings = parse_settings(text)
        if is_item:
            keys = [wanted] if wanted is not None else self._list_keys(name)
            known = read_compared(self.module).get(name, Compared()).constants  # of what the items are compared with
            fresh = {key: [*known, *self._list_plain(key if isinstance(key, str) else name)][0] for key in keys}
            if settings is None or wanted not in settings.items:
                yield (settings or Settings({})).add(fresh)
            yield from [f"[{text}, {text}]"] if text.isdecimal() and not keys else ()
            return
        method = _METHOD if re.search(rf"\.{wanted}\(", line) else ""
        item = {wanted: method + self._list_plain(wanted)[0]}
        call = re.fullmatch(r"(nn\.\w+)(\(.*\))", text)
        if settings is not None:
            yield from [settings.add(item)] if settings.base and wanted not in settings.items else []
        elif call is not None:
            yield Settings(item, call[1], call[2]).expression()
        elif text.isdecimal():
            kinds = [other for other, example in _OTHER_KINDS if hasattr(example, wanted)]
            yield from kinds or [Settings(item, "nn.Identity").expression()]

    def complete(self, name: str) -> Callable[[str], str]:
        """Return what adds the items that are read of a value to a dict, or to a list of dicts."""
        indexed = set(re.findall(rf"\b{name}\[['\"](\w+)['\"]\]\[", self.text))
        items = {key: "[32, 32]" if key in indexed else self._list_plain(key)[0] for key in self._list_keys(name)}

        def add(text: str) -> str:
            inside = text.removeprefix("[").removesuffix("] * 3")
            settings = parse_settings(inside)
            return text if settings is None else text.replace(inside, settings.add(items))

        return add

    def _list_keys(self, name: str) -> list[str]:
        """Return the keys of the items that are read of a value: `config["width"]`."""
        return list(dict.fromkeys(re.findall(rf"\b{name}\[['\"](\w+)['\"]\](?! *=[^=])", self.text)))

    def _list_plain(self, key: Any) -> list[str]:
        """Return expressions of plain values to try for an item, the likeliest first."""
        name = str(key)
        texts = [*read_compared(self.module).get(name, Compared()).constants]
        texts += [repr(name.lower())] if _NAMES_TEXT.fullmatch(name) else []
        return [*texts, *(text for text in candidates(name) if not text.startswith(("nn.", "F.", "@")))] or ["None"]


def _find_lack(cause: BaseException) -> tuple[Any, str, bool] | None:
    """Return what was read of a value that lacks it (None if unknown), the value's type, and whether it is an item."""
    if isinstance(cause, KeyError) and cause.args and isinstance(cause.args[0], str | int):
        return cause.args[0], "dict", True
    if isinstance(cause, AttributeError) and cause.name and cause.name.isidentifier():
        return cause.name, type(cause.obj).__name__, False
    match = _INDEXED.search(str(cause)) if isinstance(cause, TypeError) else None
    return (None, (match[1] or match[2] or match[3]).replace("string", "str"), True) if match else None


@functools.cache
def read_items(cls: Any) -> ReadItems:
    """Return what the code of a class and of its bases in the same file reads."""
    source, tree = _parse_module(cls.__module__)
    names = {owner.__name__ for owner in cls.__mro__ if owner.__module__ == cls.__module__}
    nodes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in names]
    lines = source.splitlines()
    text = "\n".join(line for node in nodes for line in lines[node.lineno - 1 : node.end_lineno])
    return ReadItems(
        cls.__module__, text, {name: frozenset(NAME.findall(value)) for name, value in _ASSIGNED.findall(text)}
    )


# -- values that code compares with -----------------------------------------------------------------------------------

_MAX_VALUES = 6
_PLAIN = frozenset({"Tensor", "Module", "Parameter"})


class Compared(NamedTuple):
    """Expressions for one name: constants and classes that it is compared with, dicts as which it is unpacked.

    Args: items: the classes that its items are compared with, where a loop goes over it.
    """

    constants: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    items: tuple[str, ...] = ()

    def list_fitting(self, annotation: str) -> tuple[str, ...]:
        """Return the constants, unless an annotation asks for something else than a string."""
        return self.constants if not annotation or re.search(r"(?i)str|literal|any\b|enum", annotation) else ()


def _parse_module(module: str) -> tuple[str, ast.Module]:
    """Return the text of an imported module with its tree; both empty if the text is unavailable."""
    try:
        source = inspect.getsource(sys.modules[module])
        return source, _parse_text(source)
    except (KeyError, OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return "", ast.Module([], [])


_parse_text = functools.cache(ast.parse)  # a large file takes a tenth of a second


@functools.cache
def read_compared(module: str) -> Mapping[str, Compared]:
    """Return what the names in an imported module are compared with; empty if its text is unavailable.

        class Pool(nn.Module):
            def __init__(self, mode, space):
                assert mode.lower() in ("mean", "max")              # mode: 'mean', 'max'
                if not isinstance(space, spaces.Discrete): ...      # space: spaces.Discrete
                self.scale = SCALES[mode]                           # mode: the keys of SCALES
                self.mlp = MLP(32, **layers)                        # layers: what else MLP requires: {'depth': 2}
                [c for c in columns if isinstance(c, Column)]       # columns: items of Column

    A name means the same wherever a file uses it, so its functions and other classes count, too.
    """
    space, (_, tree) = vars(sys.modules.get(module, object)), _parse_module(module)
    constants: dict[str, dict[str, None]] = {}
    classes: dict[str, dict[str, None]] = {}
    settings: dict[str, dict[str, None]] = {}
    loops: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        for item, looped in _list_loops(node):
            loops.setdefault(looped, set()).add(item)
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.In | ast.NotIn):
            constants.setdefault(_find_name(node.left), {}).update(
                dict.fromkeys(_list_constants(node.comparators[0], space))
            )
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Name):
            keys = _list_constants(node.value, space, tables=True)
            constants.setdefault(node.slice.id, {}).update(dict.fromkeys(keys))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance" and len(node.args) == 2:
            named = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
            texts = [ast.unparse(item) for item in named]
            classes.setdefault(_find_name(node.args[0]), {}).update(
                dict.fromkeys(t for t in texts if _is_class(t, space))
            )
        elif isinstance(node, ast.Call):
            for keyword in (keyword for keyword in node.keywords if keyword.arg is None):
                text = _list_required_by(node, space)
                listed = isinstance(keyword.value, ast.Subscript)
                name = _find_name(keyword.value.value if isinstance(keyword.value, ast.Subscript) else keyword.value)
                settings.setdefault(name, {})[f"[{text}] * 3" if listed else text] = None
    items = {name: {text: None for each in sorted(loops[name]) for text in classes.get(each, ())} for name in loops}
    seen = (constants, classes, settings, items)
    names = {name for table in seen for name in table} - {""}
    return {name: Compared(*(tuple(table.get(name, ()))[:_MAX_VALUES] for table in seen)) for name in names}


def _list_loops(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the item and what a loop, a comprehension, or `filter` with a lambda goes over, by name."""
    looped: ast.expr | None = None
    if isinstance(node, ast.For | ast.comprehension):
        item, looped = _find_name(node.target), node.iter
    elif isinstance(node, ast.Call) and len(node.args) == 2 and isinstance(node.args[0], ast.Lambda):
        item, looped = "".join(each.arg for each in node.args[0].args.args), node.args[1]
    for part in ast.walk(looped) if looped is not None else ():
        if isinstance(part, ast.Name | ast.Attribute) and _find_name(part) and item:
            yield item, _find_name(part)


def _list_required_by(call: ast.Call, space: Mapping[str, Any]) -> str:
    """Return a dict of the arguments that a call requires beyond those that it states, as an expression."""
    parameters = read_parameters(_find_value(ast.unparse(call.func), space))
    stated = {keyword.arg for keyword in call.keywords} | {*list(parameters)[: len(call.args)]}
    missing = [name for name in list_required(parameters) if name not in stated]
    texts = {name: candidates(name, parameters[name].annotation) for name in missing}
    return Settings({name: next(t for t in tried if t != BLOCK) for name, tried in texts.items()}).expression()


def _find_name(node: ast.expr) -> str:
    """Return the name that an expression is about: that of `mode`, `self.mode`, `mode.lower()`, or ""."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        node = node.func.value
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):  # an item of a table
        return node.value.attr
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _list_constants(node: ast.expr, space: Mapping[str, Any], *, tables: bool = False) -> Iterator[str]:
    """Yield the strings that an expression is or holds: literals, and tables at module level."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        for item in node.elts:
            yield from _list_constants(item, space)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not tables:
        yield repr(node.value)
    elif isinstance(node, ast.Dict):
        yield from (
            repr(key.value) for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
        )
    else:
        value = _find_value(ast.unparse(node), space)
        if isinstance(value, enum.Enum) and isinstance(node, ast.Attribute) and not tables:
            yield ast.unparse(node)
        if isinstance(value, dict | list | tuple | set | frozenset):
            yield from sorted(repr(key) for key in value if isinstance(key, str))


def _find_value(text: str, space: Mapping[str, Any]) -> Any:
    """Return what a dotted name means at module level; None if it means nothing there."""
    first, *rest = text.split(".")
    value = space.get(first)
    if first in ("cls", "self") and rest:  # a table of any class of the file
        kinds = [kind for kind in space.values() if isinstance(kind, type)]
        return next((vars(k)[rest[0]] for k in kinds if isinstance(vars(k).get(rest[0]), dict | list | tuple)), None)
    for name in rest:
        value = inspect.getattr_static(value, name, None)
    return value


def _is_class(text: str, space: Mapping[str, Any]) -> bool:
    value = _find_value(text, space)
    is_known = isinstance(value, type) and value.__module__ != "builtins" and value.__name__ not in _PLAIN
    return is_known and not inspect.isabstract(value)  # such as `numbers.Real`
