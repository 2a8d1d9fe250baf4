"""Outline of a closed file: its definitions, and facts about its classes.

The same definition occurs in hundreds of closed files, so a file is split at its unindented lines, and the facts about
each piece are cached.
"""

import ast
import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from extract.specs.notation import format_type, format_value, infer_type
from lemur_core.source.scopes import last_name
from lemur_core.source.text import parse_code
from manifests.records import SpecArgument

METHODS = ("__init__", "forward")

#: Unindented lines that continue a statement.
_CONTINUATION = re.compile(r"[)\]}#]|(?:else|elif|except|finally)\b|$")
#: Signatures of the one PyTorch class whose forward is often inherited.
_SEQUENTIAL = {
    "__init__": (SpecArgument(name="args", kind="more positional"),),
    "forward": (SpecArgument(name="input", kind="positional"),),
}
#: Stated where a base outside of the file defines the method.
_INHERITED = (SpecArgument(name="args", kind="more positional"), SpecArgument(name="kwargs", kind="more keyword"))
_WITHOUT_ARGUMENTS = frozenset({"Module", "object", "ABC", "Generic", "Protocol"})


@dataclass(frozen=True, slots=True)
class ClassStatement:
    """One class statement."""

    name: str
    bases: tuple[str, ...]
    methods: Mapping[str, tuple[SpecArgument, ...]]  # METHODS that it defines -> arguments without self


@dataclass(frozen=True, slots=True)
class SpecOutline:
    """The top-level classes and functions of a file by name; the last definition of a name counts."""

    classes: Mapping[str, ClassStatement] = field(default_factory=dict)
    functions: frozenset[str] = frozenset()

    def lineage(self, name: str) -> Iterator[ClassStatement]:
        """Yield a class and those of its bases that the file defines, nearest first, without repetition."""
        waiting, seen = [name], set()
        while waiting:
            current = waiting.pop(0)
            facts = self.classes.get(current)
            if facts is not None and current not in seen:
                seen.add(current)
                yield facts
                # Bases before the siblings of the class: nearly the order in which Python looks methods up.
                waiting = [*facts.bases, *waiting]

    def method(self, name: str, method: str) -> tuple[SpecArgument, ...]:
        """Return the arguments of a method: its own, inherited in the file, or any if a base outside of it has them."""
        lineage = list(self.lineage(name))
        arguments = next((facts.methods[method] for facts in lineage if method in facts.methods), None)
        if arguments is not None:
            return arguments
        outside = {base for facts in lineage for base in facts.bases if base not in self.classes} - _WITHOUT_ARGUMENTS
        if "Sequential" in outside:
            return _SEQUENTIAL[method]
        return _INHERITED if outside else ()


def read_outline(code: str) -> SpecOutline:
    """Return the outline of a closed file; empty if it is not valid Python."""
    definitions = [item for piece in split_definitions(code) for item in _facts(piece)]
    classes = {item.name: item for item in definitions if isinstance(item, ClassStatement)}
    return SpecOutline(classes, frozenset(item for item in definitions if isinstance(item, str)))


def split_definitions(code: str) -> list[str]:
    """Return the text of each top-level statement that defines something; empty if the code is not valid Python."""
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        return [piece for piece in _cut(code) if _facts(piece)]
    # A multi-line string may have unindented lines.
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        return [piece for piece in map(ast.unparse, parse_code(code).body) if _facts(piece)]
    return []


def _cut(code: str) -> Iterator[str]:
    """Yield the text of each unindented statement."""
    # By lines, not by a parser: a cached piece costs nothing, and most pieces were seen in other files.
    piece: list[str] = []
    open_decorator = False
    for line in code.split("\n"):
        if line[:1] not in (" ", "\t") and not _CONTINUATION.match(line) and not open_decorator:
            yield "\n".join(piece).rstrip()
            piece = []
        open_decorator = line.startswith("@") or (open_decorator and not line.startswith(("class ", "def ", "async ")))
        piece.append(line)
    yield "\n".join(piece).rstrip()


@lru_cache(maxsize=20_000)
def _facts(piece: str) -> tuple[ClassStatement | str, ...]:
    return tuple(_definitions(parse_code(piece).body))


def _definitions(body: list[ast.stmt]) -> Iterator[ClassStatement | str]:
    """Yield facts about classes and names of functions, including those in a top-level `if`, `try`, `with` or loop."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield _class(node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
            for part in ("body", "orelse", "finalbody"):
                yield from _definitions(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _definitions(handler.body)


def _class(node: ast.ClassDef) -> ClassStatement:
    methods: dict[str, tuple[SpecArgument, ...]] = {}
    for item in node.body:
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
            methods[item.name] = _arguments(item)
        elif isinstance(item, ast.Assign) and isinstance(item.value, ast.Name) and item.value.id in methods:
            for target in item.targets:
                if name := last_name(target):
                    methods[name] = methods[item.value.id]
    bases = tuple(name for base in node.bases if (name := last_name(base.func if isinstance(base, ast.Call) else base)))
    kept = {name: methods[name] for name in METHODS if name in methods}
    return ClassStatement(node.name, bases, MappingProxyType(kept))


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[SpecArgument, ...]:
    """Return a method's arguments without `self` or `cls`."""
    signature = node.args
    positional = [*signature.posonlyargs, *signature.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(signature.defaults)) + list(signature.defaults)
    if not any(last_name(decorator) == "staticmethod" for decorator in node.decorator_list):
        positional, defaults = positional[1:], defaults[1:]
    items = {
        "positional": zip(positional, defaults, strict=True),
        "more positional": [(signature.vararg, None)],
        "keyword": zip(signature.kwonlyargs, signature.kw_defaults, strict=True),
        "more keyword": [(signature.kwarg, None)],
    }
    return tuple(_argument(kind, arg, default) for kind, pairs in items.items() for arg, default in pairs if arg)


def _argument(kind: str, arg: ast.arg, default: ast.expr | None) -> SpecArgument:
    value = None if default is None else format_value(default)
    type_ = format_type(arg.annotation) or infer_type(default)
    return SpecArgument.model_validate({"name": arg.arg, "kind": kind, "type": type_, "default": value})
