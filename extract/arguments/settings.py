"""Values that are read by name: dicts, and objects with the attributes and methods that code reads of them.

{'width': 32}      type('Stub', (nn.Identity,), {'width': 32, 'count': lambda *_, **__: 32})()
"""

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from extract.arguments.trials import AttemptError, BlockNamespace, attempt
from extract.arguments.values.compared import read_compared
from extract.arguments.values.inputs import list_required
from extract.arguments.values.names import candidates, format_call, format_dict, read_parameters, shrunk_arguments

#: A function that returns the first of what it is called with.
FIRST = "lambda x, *_, **__: x"
_METHOD = "lambda *_, **__: "
_INDEXED = re.compile(
    r"'([\w.]+)' object is not subscript|argument of type '(\w+)' is not|^(\w+) ind\w+ must be integers"
)
_OF_DICTS = frozenset({"items", "keys", "values"})
#: Values of other kinds, for a number that has no such attribute.
_OTHERS = (("nn.Identity()", nn.Module), ("{'0': 32}", dict), ("torch.rand((32, 32))", torch.Tensor), ("'mean'", str))


class Lack(NamedTuple):
    """What was read of a value that has no such item or attribute. Args: name: None if unknown. holder: its type."""

    name: str | int | None
    holder: str
    is_item: bool
    is_method: bool


def find_lack(cause: BaseException, line: str) -> Lack | None:
    """Return what an error says that a value lacks. Args: line: that failed."""
    if isinstance(cause, KeyError) and cause.args and isinstance(cause.args[0], str | int) and "(" not in str(cause):
        return Lack(cause.args[0], "dict", True, False)
    if isinstance(cause, AttributeError) and cause.name and cause.name.isidentifier():
        return Lack(cause.name, type(cause.obj).__name__, False, f".{cause.name}(" in line)
    match = _INDEXED.search(str(cause)) if isinstance(cause, TypeError) else None
    if match is not None:
        return Lack(None, (match[1] or match[2] or match[3]).replace("string", "str"), True, False)
    text = str(cause)  # a tensor takes a text for indices, and says so in several ways
    is_text = re.search(r"too many indices|only integers, slices|invalid data type 'str'", text)
    return Lack(None, "Tensor", True, False) if is_text and re.search(r"\[f?[\"']", line) else None


def complete(names: BlockNamespace, module: str, text: str, lack: Lack, line: str) -> Iterator[str]:
    """Yield expressions for a value with what it lacks, if it is of that kind. Args: module: of the class."""
    try:
        value = attempt(functools.partial(names.value, text))
    except AttemptError:  # the expression of a class that fails itself
        return
    if type(value).__name__ != lack.holder:
        return
    if lack.is_item:
        keys = [lack.name] if lack.name is not None else re.findall(r"\[['\"](\w+)['\"]\]", line)
        yield from [_add(text, {key: _find_plain(module, key) for key in keys})] if keys else [f"[{text}, {text}]"]
    elif lack.name in _OF_DICTS:
        yield f"{{'x': {text}, 'y': {text}}}"
    elif isinstance(value, int) and (kinds := [text for text, kind in _OTHERS if hasattr(kind, str(lack.name))]):
        yield from kinds
    else:
        method = _METHOD if lack.is_method else ""
        yield _add(text, {lack.name: f"{method}{_find_plain(module, lack.name)}"}, is_object=True)


def _find_plain(module: str, key: Any) -> str:
    """Return a plain value for an item: one that its name is compared with, else the likeliest."""
    texts = (text for text in candidates(str(key)) if not text.startswith(("nn.", "F.", "@")))
    return [*read_compared(module).get(str(key), ()), *texts, "None"][0]


def _add(text: str, items: Mapping[Any, str], *, is_object: bool = False) -> str:
    """Return the expression of a dict, or of an object with attributes, with more of them."""
    node = ast.parse(text, mode="eval").body
    base, call, held = "nn.Identity", "()", None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Call) and len(node.func.args) == 3:
        call = text[len(ast.get_source_segment(text, node.func) or "") :]
        base, held = ast.unparse(node.func.args[1]).strip("(),"), node.func.args[2]
        is_object = True
    elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("nn."):
        base, call = ast.unparse(node.func), text[len(ast.unparse(node.func)) :]
    elif isinstance(node, ast.Dict):
        held = node
    pairs = zip(held.keys, held.values, strict=True) if isinstance(held, ast.Dict) else ()
    known = {key.value: ast.unparse(value) for key, value in pairs if isinstance(key, ast.Constant)}
    inside = format_dict({**known, **items})
    return f"type('Stub', ({base},), {inside}){call}" if is_object else inside


def configuration_expressions(name: str, cls: type) -> list[str]:
    """Return constructor calls of a configuration class: first with small values, then with its defaults."""
    parameters = read_parameters(cls)
    needed: dict[str, str] = {}
    try:
        # An instance has the fields that the constructor derives; the signature has not.
        default = attempt(cls)
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        known = {
            field: value
            for field, value in vars(default).items()
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
