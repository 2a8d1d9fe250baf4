"""The shapes of forward's inputs, as its code, comments and docstrings say."""

import ast
from collections.abc import Mapping
from typing import NamedTuple

from extract.hints.doc_shapes import comment_shapes, doc_shapes
from extract.hints.forward_code import ForwardCode
from extract.hints.made import first_of_sequence, made_by
from extract.hints.ranks import rank_for
from extract.hints.signature import Definition, method_of

_ORDER = {"code": 0, "doc": 1, "comment": 2, "guess": 3}


class Shape(NamedTuple):
    """One statement about an argument of forward."""

    argument: str  # "" where no argument is named
    rank: int
    dims: tuple[str, ...]
    way: str  # "code", "doc", "comment", "guess"


class Flow(NamedTuple):
    """An argument of forward that is passed on, of the same rank, to a module of another class."""

    argument: str
    kind: str  # dotted name of the class, in its file
    position: int


def shapes_of(
    node: ast.ClassDef, classes: Mapping[str, ast.ClassDef], functions: Mapping[str, str], lines: list[str]
) -> tuple[tuple[Shape, ...], tuple[Flow, ...]]:
    """What is said of the inputs of a class's forward, the surest first, and where they go."""
    forward = method_of(node, "forward")
    if forward is None:
        return _of_sequence(node, functions)
    lineage = _lineage(node, classes)
    methods: dict[str, Definition] = {}
    for owner in reversed(lineage):
        methods |= {item.name: item for item in owner.body if isinstance(item, Definition)}
    made = {name: kind for owner in reversed(lineage) for name, kind in made_by(owner, functions).items()}
    reader = ForwardCode(methods, made)
    reader.read(forward)
    parameters = tuple(reader.arguments)
    found = [Shape(argument, len(dims), dims, way) for argument, dims, way in reader.found]
    for text in (ast.get_docstring(forward), ast.get_docstring(node)):
        found += [Shape(argument, len(dims), dims, "doc") for argument, dims in doc_shapes(text or "", parameters)]
    said = comment_shapes(lines[forward.lineno : forward.end_lineno], parameters)
    found += [Shape(argument, len(dims), dims, "comment") for argument, dims in said]
    by_name = rank_for(node.name)
    if by_name is not None and by_name > 2 and parameters:
        found.append(Shape(parameters[0], by_name, ("?",) * by_name, "guess"))
    found.sort(key=lambda shape: _ORDER[shape.way])
    return tuple(dict.fromkeys(found))[:12], tuple(dict.fromkeys(Flow(*flow) for flow in reader.flows))[:12]


def _of_sequence(node: ast.ClassDef, functions: Mapping[str, str]) -> tuple[tuple[Shape, ...], tuple[Flow, ...]]:
    """A subclass of nn.Sequential takes what its first module takes."""
    kind = first_of_sequence(node, functions)
    rank = rank_for(kind) if kind else None
    if rank is not None:
        return (Shape("input", rank, ("?",) * rank, "code"),), ()
    return (), (Flow("input", kind, 0),) if kind else ()


def _lineage(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> list[ast.ClassDef]:
    result: list[ast.ClassDef] = []
    waiting = [node]
    while waiting:
        owner = waiting.pop(0)
        if owner not in result:
            result.append(owner)
            names = [base.id for base in owner.bases if isinstance(base, ast.Name)]
            waiting = [*(classes[name] for name in names if name in classes), *waiting]
    return result
