"""Closure of a class, pass 2 of 3: what is looked up by string or configuration, and what fills its containers.

Example: `Net` chooses its activation by name.

    ACTS = {}                                          class Net(nn.Module):
    def register(f): ACTS[f.__name__] = f; return f        def __init__(self, act="relu6"):
    @register                                                  self.act = ACTS[act]
    def relu6(x): ...                                          self.pool = globals()["Pool" + "2d"]()

In: the statements of `Net` and `ACTS`, from pass 1. Out: `relu6` with its decorator, since the copy of `ACTS` would be
empty without it, and `Pool2d`, the only value of the computed string. A name that cannot be added (another entry of
`ACTS` needs a compiled operator) does not make the block fail, because no run may ever ask for it: it is left out, and
`dynamic` says so.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from extract.emit.closure import Closure, try_to_collect
from extract.emit.render import shorten
from extract.resolve.dependencies import DependencyGraph
from extract.resolve.modules import Definition, Module
from extract.resolve.standins import AUTO_CLASS, SOURCE_NAME
from extract.resolve.symbols import SUFFIX, StatementNode, Symbol
from lemur_core.files.markdown import plural
from lemur_core.source.changes import DynamicLookup, build_pattern, search_at
from lemur_core.source.facts import CLASS, Statement
from lemur_core.source.parse import parse_known
from lemur_core.source.text import Lines, parse_expression

_MOST_LISTED = 12  # entries that a container lacks
_SURE_LETTERS = 3  # minimum of known letters and digits in a computed string for all names that match it to be included
_SEARCHES = {
    "globals": "looks a name of its file up by a computed string",
    "eval": "evaluates a computed string",
    "import": "imports a module by a computed name",
    "subclasses": "asks for all classes that derive from one",
}


def resolve_lookups(closure: Closure, graph: DependencyGraph) -> None:
    """Add the definitions that the statements of a closure without problems look up as they run."""
    _add_configurations(closure, graph)
    _add_by_strings(closure, graph)
    _fill_containers(closure, graph)
    _add_by_strings(closure, graph)  # the fillings may look names up, too, and bring further strings


# -- configurations ----------------------------------------------------------------------------------------------------


def _add_configurations(closure: Closure, graph: DependencyGraph) -> None:
    """Add the configurations referred to by model type."""
    # Each configuration may name further ones, so this repeats until nothing is new.
    seen = 0
    while len(closure.nodes) > seen:
        fresh, seen = list(closure.nodes.values())[seen:], len(closure.nodes)
        for config in [config for node in fresh for config in _list_configurations(graph, node)]:
            try_to_collect(closure, graph, [config])


def _list_configurations(graph: DependencyGraph, node: StatementNode) -> Iterator[Definition]:
    """Yield the configurations that a class names, directly or by model type where it looks them up by type."""
    if node.statement.kind != CLASS:
        return
    symbols = [link.symbol for links in graph.iter_links(node) for link in links.links]
    yield from (symbol for symbol in symbols if isinstance(symbol, Definition) and symbol.name.endswith(SUFFIX))
    if graph.ours(AUTO_CLASS) in symbols:
        known = graph.config_resolver.by_type(node.module.source)
        yield from (known[word] for word in dict.fromkeys(graph.words(node)) if word in known)


# -- strings -----------------------------------------------------------------------------------------------------------


def _add_by_strings(closure: Closure, graph: DependencyGraph) -> None:
    """Add the names that strings refer to: those that match their constant parts, else the words of the closure."""
    searching = [
        node for node in closure.nodes.values() if node.statement.searches and node.module.source.name != SOURCE_NAME
    ]
    if not searching:
        return
    words = sorted({word for node in closure.nodes.values() for word in graph.words(node)})
    for node in searching:
        lookups = graph.parse_once(node.module, _list_lookups)
        for at in sorted(lookups):
            if node.statement.start <= at < node.statement.end:
                lookup = lookups[at]
                if lookup.kind in {"globals", "eval"}:
                    _add_names(closure, graph, node, lookup, words)
                elif not _is_of_runtime(graph, node, lookup):
                    _note_search(closure, node, lookup, [], [], whole=False)


def _list_lookups(module: Module) -> dict[int, DynamicLookup]:
    """Return the lookups of code by strings in a file, by their offsets."""
    tree, text, _ = parse_known(module.text)
    lines = Lines(text)
    lookups = (search_at(node) for node in ast.walk(tree))
    return {lines.span(lookup.node)[0]: lookup for lookup in lookups if lookup is not None}


def _is_of_runtime(graph: DependencyGraph, node: StatementNode, lookup: DynamicLookup) -> bool:
    """Return whether a lookup imports a module that the corpus does not have, by its name."""
    name = lookup.argument.value if isinstance(lookup.argument, ast.Constant) else None
    return isinstance(name, str) and not name.startswith(".") and not graph.library.knows(node.module, name)


def _add_names(
    closure: Closure, graph: DependencyGraph, node: StatementNode, lookup: DynamicLookup, words: Sequence[str]
) -> None:
    """Resolve `globals()[name]` and `eval(name)`: names of the file."""
    argument = lookup.argument
    stated = argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else None
    pattern = build_pattern(argument)
    sure = len(re.sub(r"\W|_", "", pattern)) >= _SURE_LETTERS
    if stated is not None:
        wanted = [stated] if lookup.kind == "globals" else _names_in(stated)
    else:
        # A pattern of few letters matches almost every name: then only words of the closure count.
        candidates = sorted(node.module.list_bound()) if sure else words
        wanted = [name for name in candidates if re.fullmatch(pattern, name)]
    present, lacking = [], []
    for name in dict.fromkeys(wanted):
        target = graph.library.lookup(node.module, name)
        if not isinstance(target, Definition) or (lookup.kind == "eval" and name in node.statement.shadows):
            continue
        symbol = graph.symbol(target)
        why = "" if symbol in closure.symbols else try_to_collect(closure, graph, [symbol])
        if why:
            lacking.append(f"{name}: {why}")
        else:
            closure.named[symbol] = name
            present.append(name)
    whole = stated is not None
    _note_search(closure, node, lookup, present, lacking if whole else [], whole=whole or sure)


def _note_search(
    closure: Closure,
    node: StatementNode,
    lookup: DynamicLookup,
    present: Sequence[str],
    lacking: Sequence[str],
    *,
    whole: bool,
) -> None:
    """Note the names that a lookup may need but the closure lacks; replaces the earlier note about this lookup."""
    note = f"{node.module.source.name} {node.module.file.path}:{lookup.node.lineno} {_SEARCHES[lookup.kind]}"
    closure.dynamic.pop(next((text for text in closure.dynamic if text.startswith(note)), ""), None)
    note += f"; it has {', '.join(present)}" if present else ""
    note += f"; it lacks {'; '.join(lacking)}" if lacking else ""
    if not whole or lacking:
        closure.dynamic[note] = None


def _names_in(text: str) -> list[str]:
    """Return the names that an evaluated string reads."""
    try:
        return [item.id for item in ast.walk(parse_expression(text)) if isinstance(item, ast.Name)]
    except SyntaxError:
        return []


# -- containers --------------------------------------------------------------------------------------------------------


def _fill_containers(closure: Closure, graph: DependencyGraph) -> None:
    """Add the statements that fill the containers of the closure, and of what those need.

    In files that the block's own does not import (a folder that is imported by computed names), they are those that
    register what the closure names. An entry that cannot be added is left out and noted in `dynamic` of the closure.
    """
    done: set[Symbol] = set()
    while symbols := [symbol for symbol in closure.symbols if symbol not in done]:
        done.update(symbols)
        for container in symbols:
            if not isinstance(container, Definition) or container.module.source.name == SOURCE_NAME:
                continue
            missing: Counter[str] = Counter()
            for filling in graph.registrations.list_fillings(container, closure.root.module):
                before = closure.nodes.get(filling.key, filling)
                node = filling._replace(decorators=filling.decorators | before.decorators)
                if why := try_to_collect(closure, graph, [], [node]):
                    missing[why] += 1
                else:
                    closure.fillings.setdefault(container, []).append(closure.nodes[filling.key])
            outside: dict[str, None] = {}
            unimported = graph.registrations.list_unimported(container, closure.root.module)
            words = {word for node in closure.nodes.values() for word in graph.words(node)} if unimported else set()
            for filling in unimported:
                keys = {key for index in filling.decorators for key in filling.statement.decorators[index].keys}
                before = closure.nodes.get(filling.key, filling)
                node = filling._replace(decorators=filling.decorators | before.decorators)
                if keys & words and not try_to_collect(closure, graph, [], [node]):
                    closure.fillings.setdefault(container, []).append(closure.nodes[filling.key])
                else:
                    outside[", ".join(sorted(keys)) or filling.statement.binds[0]] = None
            if outside:
                note = (
                    f"{container.name} lacks {plural(len(outside), 'entry', 'entries')} of files that its own file does"
                )
                closure.dynamic[f"{note} not import: {shorten(outside, _MOST_LISTED)}"] = None
            for why, number in missing.items():
                closure.dynamic[f"{container.name} lacks {plural(number, 'entry', 'entries')}: {why}"] = None


# --- environment variables --------------------------------------------------------------------------------------------

# A file that reads `os.environ["ACME_SIZE"]` gets `os.environ.setdefault("ACME_SIZE", "64")` where another file of its
# source assigns "64" to it, so that it can be imported alone; a variable that is set keeps its value. A file that
# imports other packages first sets what the packages of its classes set when they are imported: those may read it.


_READ = re.compile(rb"environ\[\s*(?P<quote>['\"])(\w+)(?P=quote)\s*\](?!\s*=[^=])")
_AT_TOP = re.compile(rb"^(?:os\.)?(?=environ)", re.MULTILINE)
_SET = re.compile(
    rb"environ(?:\[\s*(?P<quote>['\"])(?P<name>\w+)(?P=quote)\s*\]\s*=|\.setdefault\(\s*(?P<other>['\"])(?P<key>\w+)(?P=other)\s*,)"
    rb"\s*(?P<value>'[^'\\\n]*'|\"[^\"\\\n]*\")\s*[)#;\r\n]"
)


def list_settings(statements: Sequence[tuple[Module, Statement]]) -> Mapping[str, tuple[str, str]]:
    """Return the variables that these statements need, with the value and the file that assigns it, where one does."""
    wanted: dict[str, Module] = {}
    for module, statement in statements:
        for match in _READ.finditer(module.text, statement.start, statement.end):
            wanted.setdefault(match[2].decode(), module)
    settings: dict[str, tuple[str, str]] = {}
    for name, module in sorted(wanted.items()):
        for file in module.source.files:
            value = _find_value(module.source.read_text(file), name.encode())
            if value is not None:
                settings[name] = value, file.path
                break
    return settings


def list_package_settings(modules: Iterable[Module]) -> Mapping[str, tuple[str, str]]:
    """Return the variables that the packages around these modules set on import, with the value and the file."""
    around: dict[str, Module] = {}
    for module in modules:
        parts = module.name.split(".")
        names = [".".join(parts[:n]) for n in range(1, len(parts))]
        packages = (module.library.modules.get((module.source.name, name)) for name in names)
        around |= {f"{item.source.name} {item.file.path}": item for item in packages if item is not None}
    settings: dict[str, tuple[str, str]] = {}
    for _, module in sorted(around.items()):
        for match in filter(None, (_SET.match(module.text, line.end()) for line in _AT_TOP.finditer(module.text))):
            value = str(ast.literal_eval(match["value"].decode("utf-8", "replace")))
            settings.setdefault((match["name"] or match["key"]).decode(), (value, module.file.path))
    return dict(sorted(settings.items()))


def _find_value(text: bytes, name: bytes) -> str | None:
    for match in _SET.finditer(text) if name in text else ():
        if name in (match["name"], match["key"]):
            return str(ast.literal_eval(match["value"].decode("utf-8", "replace")))
    return None
