"""Everything that one file tells: the sites in it, and of each class its signatures, examples and shapes."""

import ast
import json
from typing import NamedTuple

from extract.hints.examples import Written, examples_in
from extract.hints.interpret import Interpreter
from extract.hints.made import functions_make
from extract.hints.shapes import Flow, Shape, shapes_of
from extract.hints.signature import Parameter, Signature, method_of, signature_of
from extract.hints.sites import Site
from extract.index import Index
from extract.sources import Source, SourceFile
from lemur_core.source.text import normalise

RECORD_VERSION = 6


class ClassRecord(NamedTuple):
    """One class."""

    name: str
    init: Signature | None  # None: inherited
    forward: Signature | None
    examples: tuple[Written, ...]
    runs: tuple[Written, ...]
    shapes: tuple[Shape, ...]
    flows: tuple[Flow, ...]
    config: tuple[str, ...]  # what `config_class = …` and `config: …` in its body name
    dataclass: bool


class FileRecord(NamedTuple):
    """One file."""

    sites: tuple[Site, ...]
    classes: dict[str, ClassRecord]


_NOTHING = FileRecord((), {})


def record_of(index: Index, source: Source, file: SourceFile) -> FileRecord:
    """The record of a file; kept in the index by the file's content."""
    key = f"hints:{RECORD_VERSION}:{file.blob}"
    stored = index.remembered(key)
    if stored is not None:
        return _loads(stored)
    record = read_file(source.read(file))
    index.remember(key, json.dumps([record.sites, list(record.classes.values())]).encode())
    return record


def read_file(raw: bytes) -> FileRecord:
    """The record of a file's text; an empty one where it does not parse."""
    try:
        text = normalise(raw)
        tree = ast.parse(text)
        sites = tuple(Interpreter(tree).run(tree).found)
        lines = text.decode().split("\n")
        nodes = {node.name: node for node in _classes(tree)}
        functions = functions_make(tree)
        classes = {name: _class(node, shapes_of(node, nodes, functions, lines)) for name, node in nodes.items()}
    except (SyntaxError, ValueError, RecursionError):
        return _NOTHING
    return FileRecord(sites, classes)


def _classes(tree: ast.Module) -> list[ast.ClassDef]:
    found = []
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.ClassDef):
            found.append(node)
        elif isinstance(node, ast.If | ast.Try):
            waiting[:0] = [*node.body, *node.orelse]
    return found


def _class(node: ast.ClassDef, said: tuple[tuple[Shape, ...], tuple[Flow, ...]]) -> ClassRecord:
    init, forward = method_of(node, "__init__"), method_of(node, "forward")
    holders = [node, *(item for item in (init, forward) if item is not None)]
    docstrings = [text for item in holders if (text := ast.get_docstring(item, clean=True))]
    examples = examples_in(docstrings, node.name)
    return ClassRecord(
        node.name,
        signature_of(init) if init is not None else None,
        signature_of(forward) if forward is not None else None,
        tuple(examples.init),
        tuple(examples.forward),
        *said,
        tuple(dict.fromkeys(_configs(node))),
        any("dataclass" in ast.unparse(d) for d in node.decorator_list),
    )


def _configs(node: ast.ClassDef) -> list[str]:
    """`config_class = BertConfig`, `config: BertConfig`."""
    found: list[str] = []
    for item in node.body:
        match item:
            case ast.Assign(targets=[ast.Name("config_class")], value=ast.Name(name)):
                found.append(name)
            case ast.AnnAssign(target=ast.Name("config" | "config_class"), annotation=ast.Name(name)):
                found.append(name)
            case ast.AnnAssign(target=ast.Name("config" | "config_class"), annotation=ast.Constant(str(name))):
                found.append(name)
    return found


def _loads(data: bytes) -> FileRecord:
    sites, classes = json.loads(data)
    records = [
        ClassRecord(
            item[0],
            _signature(item[1]),
            _signature(item[2]),
            _written(item[3]),
            _written(item[4]),
            tuple(Shape(s[0], s[1], tuple(s[2]), s[3]) for s in item[5]),
            tuple(Flow(*flow) for flow in item[6]),
            tuple(item[7]),
            item[8],
        )
        for item in classes
    ]
    made = [Site(s[0], s[1], tuple(s[2]), tuple((n, t) for n, t in s[3]), s[4], s[5]) for s in sites]
    return FileRecord(tuple(made), {record.name: record for record in records})


def _signature(data: list[list[str | None]] | None) -> Signature | None:
    return None if data is None else tuple(Parameter(*item) for item in data)  # type: ignore[arg-type]


def _written(data: list[tuple[list[str], list[tuple[str, str]]]]) -> tuple[Written, ...]:
    return tuple((tuple(args), tuple((name, text) for name, text in kwargs)) for args, kwargs in data)
