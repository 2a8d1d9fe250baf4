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
import importlib.util
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from extract.emit.closure import Closure, try_to_collect
from extract.resolve.dependencies import DependencyGraph
from extract.resolve.modules import Definition, Module
from extract.resolve.standins import AUTO_CLASS, MODULES, SOURCE_NAME, auto_models
from extract.resolve.strings import PossibleValues, StringAnalysis, StringScope
from extract.resolve.symbols import SUFFIX, Finder, ModuleValue, StatementNode, Symbol
from lemur_core.files.markdown import plural
from lemur_core.source.changes import DynamicLookup, build_pattern
from lemur_core.source.facts import CLASS, Statement
from lemur_core.source.imports import Import
from lemur_core.source.text import parse_expression

_SURE_LETTERS = 3  # minimum of known letters and digits in a computed string for all names that match it to be included
_SEARCHES = {
    "globals": "looks a name of its file up by a computed string",
    "eval": "evaluates a computed string",
    "import": "imports a module by a computed name",
    "subclasses": "asks for all classes that derive from one",
}


def resolve_lookups(closure: Closure, graph: DependencyGraph) -> None:
    """Add the definitions that the statements of a closure without problems look up as they run."""
    strings = StringAnalysis(graph, closure.root, closure.nodes)
    _add_configurations(closure, graph)
    _add_by_strings(closure, graph, strings)
    _fill_containers(closure, graph)
    _add_by_strings(closure, graph, strings)  # the fillings may look names up, too, and bring further strings


# -- configurations ----------------------------------------------------------------------------------------------------


def _add_configurations(closure: Closure, graph: DependencyGraph) -> None:
    """Add the configurations referred to by model type, and the models that are looked up by configuration."""
    # Each configuration may name further ones, so this repeats until nothing is new.
    nodes, seen = list(closure.nodes.values()), 0
    while len(closure.nodes) > seen:
        fresh, seen = list(closure.nodes.values())[seen:], len(closure.nodes)
        for config in [config for node in fresh for config in _list_configurations(graph, node)]:
            try_to_collect(closure, graph, [config])
    looking = [endings for kind, endings in auto_models().items() if graph.ours(kind) in closure.symbols]
    if not looking:
        return
    noted = [target for node in nodes for links in graph.iter_links(node) for _, target in links.notes]
    waiting = [target for target in noted if isinstance(target, Definition)]
    known: set[Definition] = set()
    while waiting:
        config = waiting.pop(0)
        if config in known or not config.name.endswith(SUFFIX):
            continue
        known.add(config)
        waiting += [inner for node in graph.members(config) for inner in _list_configurations(graph, node)]
        for endings in looking:
            model = graph.config_resolver.find_model(config, endings, closure.root.module)
            if model is not None and not try_to_collect(closure, graph, [graph.symbol(model)]):
                closure.named[graph.symbol(model)] = model.name


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


def _add_by_strings(closure: Closure, graph: DependencyGraph, strings: StringAnalysis) -> None:
    """Add the symbols that strings refer to: by the strings' possible values, else by the closure's words."""
    searching = [
        node for node in closure.nodes.values() if node.statement.searches and node.module.source.name != SOURCE_NAME
    ]
    if not searching:
        return
    words = sorted({word for node in closure.nodes.values() for word in graph.words(node)})
    for node in searching:
        for sought, scope in strings.searches(node):
            known = strings.values(sought.argument, scope)
            if sought.kind == "import":
                _add_modules(closure, graph, strings, node, sought, scope, known)
            elif sought.kind == "subclasses":
                _note_search(closure, node, sought, [], [], whole=False)
            else:
                _add_names(closure, graph, node, sought, known, words)


def _add_names(
    closure: Closure,
    graph: DependencyGraph,
    node: StatementNode,
    sought: DynamicLookup,
    known: PossibleValues,
    words: Sequence[str],
) -> None:
    """Resolve `globals()[name]` and `eval(name)`: names of the file."""
    pattern = build_pattern(sought.argument)
    sure = len(re.sub(r"\W|_", "", pattern)) >= _SURE_LETTERS
    wanted = [name for text in known.texts for name in ([text] if sought.kind == "globals" else _names_in(text))]
    if not known.whole:
        # A pattern of few letters matches almost every name: then only words of the closure count.
        candidates = sorted(node.module.list_bound()) if sure else words
        wanted += [name for name in candidates if re.fullmatch(pattern, name)]
    present, lacking = [], []
    for name in dict.fromkeys(wanted):
        target = graph.library.lookup(node.module, name)
        if not isinstance(target, Definition) or (sought.kind == "eval" and name in node.statement.shadows):
            continue
        symbol = graph.symbol(target)
        why = "" if symbol in closure.symbols else try_to_collect(closure, graph, [symbol])
        if why:
            lacking.append(f"{name}: {why}")
        else:
            closure.named[symbol] = name
            present.append(name)
    _note_search(closure, node, sought, present, lacking if known.whole else [], whole=known.whole or sure)


def _add_modules(
    closure: Closure,
    graph: DependencyGraph,
    strings: StringAnalysis,
    node: StatementNode,
    sought: DynamicLookup,
    scope: StringScope,
    known: PossibleValues,
) -> None:
    """Resolve `import_module(name)`: modules of the corpus with the attributes in use; other imports are kept."""
    library, module = graph.library, node.module
    assert isinstance(sought.node, ast.Call)
    # The package that a relative name starts from.
    packages = [word.value for word in sought.node.keywords if word.arg == "package"]
    packages += [] if _is_statement(sought.node) else sought.node.args[1:2]
    package = strings.values(packages[0], scope) if packages else PossibleValues((None,), True)
    present, lacking = [], []
    for name in known.texts:
        dotted = _resolve_module_name(name, package)
        inner = library.find_module(module, dotted) if dotted else None
        if inner is None:
            # A module that the corpus does not know is left to the runtime.
            if not dotted or library.knows(module, dotted):
                lacking.append(f"{name}: {'its package is not known' if not dotted else f'no module {dotted}'}")
            continue
        finder = Finder(module)
        offered = ModuleValue(inner, strings.attributes(sought.node, scope))
        needed: list[Symbol] = [offered, finder, graph.ours(MODULES), Import("types", "", False, "types")]
        why = _unusual(sought.node, scope, offered) or try_to_collect(closure, graph, needed)
        if why:
            lacking.append(f"{dotted}: {why}")
            continue
        present.append(dotted)
        closure.modules_by_name.setdefault(finder, {})[dotted] = offered
        closure.finders.setdefault(node.key, {})[strings.span(module, sought.node.func)] = finder
    _note_search(closure, node, sought, present, lacking, whole=known.whole)


def _note_search(
    closure: Closure,
    node: StatementNode,
    sought: DynamicLookup,
    present: Sequence[str],
    lacking: Sequence[str],
    *,
    whole: bool,
) -> None:
    """Note the names that a lookup may need but the closure lacks; replaces the earlier note about this lookup."""
    note = f"{node.module.source.name} {node.module.file.path}:{sought.node.lineno} {_SEARCHES[sought.kind]}"
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


def _is_statement(call: ast.Call) -> bool:
    """Return whether it calls the function behind the import statement, which returns only the top package."""
    return isinstance(call.func, ast.Name) and call.func.id == "__import__"


def _unusual(call: ast.Call, scope: StringScope, offered: ModuleValue) -> str:
    """Return why our replacement for `import_module` does not fit this call; empty if it does."""
    if not scope.functions:
        return "the file runs it as it is imported"
    if not offered.only:
        return "the whole module is requested"
    listed = len(call.args) > 3 or any(word.arg == "fromlist" for word in call.keywords)
    return "" if not _is_statement(call) or listed else "__import__ gives its first package"


def _resolve_module_name(name: str, package: PossibleValues) -> str:
    """Return the dotted name of a module; empty if it is relative to an unknown package."""
    base = package.texts[0] if package.whole and len(package.values) == len(package.texts) == 1 else None
    try:
        return importlib.util.resolve_name(name, base)
    except ImportError:  # beyond the top, or without a package
        return ""


# -- containers --------------------------------------------------------------------------------------------------------


def _fill_containers(closure: Closure, graph: DependencyGraph) -> None:
    """Add the statements that fill the containers of the closure, and of what those need.

    An entry that cannot be added is left out and noted in `dynamic` of the closure.
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
            for why, number in missing.items():
                closure.dynamic[f"{container.name} lacks {plural(number, 'entry', 'entries')}: {why}"] = None


# --- environment variables --------------------------------------------------------------------------------------------

# A file that reads `os.environ["ACME_SIZE"]` gets `os.environ.setdefault("ACME_SIZE", "64")` where another file of its
# source assigns "64" to it, so that it can be imported alone; a variable that is set keeps its value.


_READ = re.compile(rb"environ\[\s*(?P<quote>['\"])(\w+)(?P=quote)\s*\](?!\s*=[^=])")
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
            value = _find_value(module.source.read(file), name.encode())
            if value is not None:
                settings[name] = value, file.path
                break
    return settings


def _find_value(text: bytes, name: bytes) -> str | None:
    for match in _SET.finditer(text) if name in text else ():
        if name in (match["name"], match["key"]):
            return str(ast.literal_eval(match["value"].decode("utf-8", "replace")))
    return None
