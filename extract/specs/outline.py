"""What a closed file defines, and the facts of its classes.

The same definition stands in hundreds of closed files, so a file is cut where a line begins at the margin, and what is
known of each piece is kept.
"""

import ast
import contextlib
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from extract.specs.notation import name_of, type_of, type_of_default, value_of
from manifests.records import SpecArgument

METHODS = ("__init__", "forward")

#: Lines at the margin that go on with a statement.
_GOES_ON = re.compile(r"[)\]}#]|(?:else|elif|except|finally)\b|$")
#: Of the one class of PyTorch whose forward is often inherited.
_SEQUENTIAL = {
    "__init__": (SpecArgument(name="args", kind="more positional"),),
    "forward": (SpecArgument(name="input", kind="positional"),),
}
_NOT_BUILT = re.compile(r"(Error|Exception|Warning)$|(Parameter|Tensor|Size|OrderedDict|Variable|Path|Counter)$")
_CAMEL = re.compile(r"_?[A-Z]\w*[a-z]\w*|GELU|GLU|RNN|LSTM|GRU|ELU")


@dataclass(frozen=True, slots=True)
class ClassFacts:
    """One class statement."""

    name: str
    bases: tuple[str, ...]
    methods: Mapping[str, tuple[SpecArgument, ...]]  # those of METHODS that it defines, without self
    builds: Mapping[str, int]  # names of classes that its methods call


@dataclass(frozen=True, slots=True)
class Outline:
    """The classes and functions at the top of a file, by name; of several of one name the last."""

    classes: Mapping[str, ClassFacts] = field(default_factory=dict)
    functions: frozenset[str] = frozenset()

    def lineage(self, name: str) -> Iterator[ClassFacts]:
        """A class and those of its bases that the file defines, each once, the nearest first."""
        waiting, seen = [name], set()
        while waiting:
            current = waiting.pop(0)
            facts = self.classes.get(current)
            if facts is not None and current not in seen:
                seen.add(current)
                yield facts
                waiting = [*facts.bases, *waiting]

    def method(self, name: str, method: str) -> tuple[SpecArgument, ...]:
        """The arguments of a class's method: its own, inherited within the file, or of `nn.Sequential`; else none."""
        lineage = list(self.lineage(name))
        found = next((facts.methods[method] for facts in lineage if method in facts.methods), None)
        if found is not None:
            return found
        return _SEQUENTIAL[method] if any("Sequential" in facts.bases for facts in lineage) else ()


def outline_of(code: str) -> Outline:
    """The outline of a closed file; an empty one if it is not Python."""
    found = [item for piece in pieces_of(code) for item in _facts(piece)]
    classes = {item.name: item for item in found if isinstance(item, ClassFacts)}
    return Outline(classes, frozenset(item for item in found if isinstance(item, str)))


def pieces_of(code: str) -> list[str]:
    """The text of each statement at the margin that defines something; of none, if the code is not Python."""
    for cut in (_cut, _unparsed):  # the latter where a line of a multi-line text stands at the margin
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            return [piece for piece in cut(code) if _facts(piece)]
    return []


def parsed(code: str) -> ast.Module:
    """The syntax tree of foreign code. Raises: as `ast.parse` does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an invalid escape in foreign code is not our warning
        return ast.parse(code)


def _unparsed(code: str) -> Iterator[str]:
    return map(ast.unparse, parsed(code).body)


def _cut(code: str) -> Iterator[str]:
    """The text of each statement at the margin."""
    piece: list[str] = []
    open_decorator = False
    for line in code.split("\n"):
        if line[:1] not in (" ", "\t") and not _GOES_ON.match(line) and not open_decorator:
            yield "\n".join(piece).rstrip()
            piece = []
        open_decorator = line.startswith("@") or (open_decorator and not line.startswith(("class ", "def ", "async ")))
        piece.append(line)
    yield "\n".join(piece).rstrip()


@lru_cache(maxsize=20_000)
def _facts(piece: str) -> tuple[ClassFacts | str, ...]:
    return tuple(_definitions(parsed(piece).body))


def _definitions(body: list[ast.stmt]) -> Iterator[ClassFacts | str]:
    """Facts of classes, names of functions; also those inside a top-level `if`, `try`, `with` or loop."""
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


def _class(node: ast.ClassDef) -> ClassFacts:
    methods: dict[str, tuple[SpecArgument, ...]] = {}
    for item in node.body:
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
            methods[item.name] = _arguments(item)
        elif isinstance(item, ast.Assign) and isinstance(item.value, ast.Name) and item.value.id in methods:
            for target in item.targets:
                if name := name_of(target):
                    methods[name] = methods[item.value.id]
    bases = tuple(name for base in node.bases if (name := name_of(base.func if isinstance(base, ast.Call) else base)))
    kept = {name: methods[name] for name in METHODS if name in methods}
    return ClassFacts(node.name, bases, MappingProxyType(kept), MappingProxyType(_builds(node)))


def _builds(node: ast.ClassDef) -> dict[str, int]:
    calls = (name_of(item.func) for item in ast.walk(node) if isinstance(item, ast.Call))
    names = Counter(name for name in calls if _CAMEL.fullmatch(name) and not _NOT_BUILT.search(name))
    return dict(sorted(names.items()))


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[SpecArgument, ...]:
    """A method's arguments without the first, which is the object (or its class)."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    if not any(name_of(decorator) == "staticmethod" for decorator in node.decorator_list):
        positional, defaults = positional[1:], defaults[1:]
    found = [*zip(positional, ["positional"] * len(positional), defaults, strict=True)]
    found += [(given.vararg, "more positional", None)] if given.vararg else []
    found += [*zip(given.kwonlyargs, ["keyword"] * len(given.kwonlyargs), given.kw_defaults, strict=True)]
    found += [(given.kwarg, "more keyword", None)] if given.kwarg else []
    return tuple(
        SpecArgument.model_validate(
            {
                "name": arg.arg,
                "kind": kind,
                "type": type_of(arg.annotation) or type_of_default(default),
                "default": None if default is None else value_of(default),
            }
        )
        for arg, kind, default in found
    )
