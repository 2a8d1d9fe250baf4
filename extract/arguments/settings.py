"""Values that are read by name: dicts, and objects with the attributes and methods that code reads of them."""

import ast
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from extract.arguments.messages import NAME
from extract.arguments.trials import AttemptError, attempt
from extract.arguments.values.compared import Compared, parse_module, read_compared
from extract.arguments.values.inputs import list_required
from extract.arguments.values.names import candidates, format_call, format_dict, read_parameters, shrunk_arguments

_NAMES_TEXT = re.compile(r"(?i).+_(field|key|column|name|prefix|suffix)")
_METHOD = "lambda *_, **__: "
_INDEXED = re.compile(r"'(\w+)' object is not subscript|argument of type '(\w+)' is not|^(\w+) ind\w+ must be integers")
_ASSIGNED = re.compile(r"^\s*(?:self\.)?(\w+)(?:: [^=\n]+)? = (.+)", re.MULTILINE)
_OF_DICTS = frozenset({"items", "keys", "values"})
#: A function that returns the first of what it is called with.
FIRST = "lambda x, *_, **__: x"
_TENSOR = ("nn.Identity()", "torch.rand((32, 32))")
_TAKES_MORE = re.compile(r"(?:Identity|PReLU)\.forward\(\) (takes|got an unexpected|missing)")
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
        inside = format_dict(self.items)
        return f"type('Stub', ({self.base},), {inside}){self.call}" if self.base else inside

    def add(self, items: Mapping[Any, str]) -> str:
        """Return the expression with these items, the new ones first."""
        fresh = {name: text for name, text in items.items() if name not in self.items}
        return self._replace(items={**fresh, **self.items, **items}).expression()


def is_unlike_module(failure: AttemptError) -> bool:
    """Return whether an identity is called with more than one argument, or its first parameter is read: it has none."""
    is_read = isinstance(failure.cause, StopIteration) and ".parameters(" in "".join(failure.lines[-1:])
    return is_read or _TAKES_MORE.search(str(failure)) is not None


def _take_more(text: str) -> str:
    """Return an expression whose modules take any arguments, and read the first: a state or a mask may follow."""
    for base in ("nn.Identity", "nn.PReLU"):
        stub = f"type('Stub', ({base},), {{"
        forward = f"'forward': lambda self, *x, **y: {base}.forward(self, [*x, *y.values()][0])"
        text = text.replace(stub, f"{stub}{forward}, ").replace(f"{base}()", f"{stub}{forward}}})()")
    return text


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
        if is_unlike_module(failure):
            for name, text in texts.items():
                if isinstance(cause, StopIteration):
                    yield name, text.replace("nn.Identity", "nn.PReLU")
                else:
                    yield from [(name, FIRST)] if text == "nn.Identity()" else []
                    yield name, _take_more(text)
        elif "Identity" in str(failure):  # a tensor was wanted
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
        if wanted in _OF_DICTS and isinstance(value, int | list):
            yield from (f"{{'x': {item}, 'y': {item}}}" for item in dict.fromkeys([text, "[32, 32]"]))
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
    if isinstance(cause, KeyError) and cause.args and isinstance(cause.args[0], str | int) and "(" not in str(cause):
        return cause.args[0], "dict", True
    if isinstance(cause, AttributeError) and cause.name and cause.name.isidentifier():
        return cause.name, type(cause.obj).__name__, False
    match = _INDEXED.search(str(cause)) if isinstance(cause, TypeError) else None
    return (None, (match[1] or match[2] or match[3]).replace("string", "str"), True) if match else None


@functools.cache
def read_items(cls: Any) -> ReadItems:
    """Return what the code of a class and of its bases in the same file reads."""
    source, tree = parse_module(cls.__module__)
    names = {owner.__name__ for owner in cls.__mro__ if owner.__module__ == cls.__module__}
    nodes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in names]
    lines = source.splitlines()
    text = "\n".join(line for node in nodes for line in lines[node.lineno - 1 : node.end_lineno])
    return ReadItems(
        cls.__module__, text, {name: frozenset(NAME.findall(value)) for name, value in _ASSIGNED.findall(text)}
    )


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
                small[field] = format_dict(dict(sorted(shrunk_inner.items())))
    return list(dict.fromkeys([format_call(name, small), format_call(name, needed)]))
