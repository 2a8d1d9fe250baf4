"""Hints from source text: how the corpus constructs a class, and values that it gives to names of parameters.

    def build(dim=48, ratio=4.0):
        hidden = int(dim * ratio)
        return Mlp(dim, hidden, act=self.act)        # Mlp(48, int(48 * 4.0), act=act): `act` stays free

A name that is bound once stands for what it is bound to, and a parameter for its default.
"""

import ast
import builtins
import itertools
import re
from collections import ChainMap, Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter

from extract.arguments.messages import CompanionCode
from extract.emit.emit import Emitted, Emitter
from extract.resolve.discover import Hierarchy, TargetClass, find_class_facts, follow
from extract.resolve.index import UNREADABLE, FactsIndex
from extract.resolve.modules import FOUNDATION, CorpusIndex, Definition, Module
from extract.sources import PackageSource, SourceFile
from lemur_core.source.facts import CLASS, FUNCTION
from lemur_core.source.text import parse_code, parse_expression

_VERSION = 23  # of what is read of a file
#: Roots of dotted names that mean the same in every file.
ROOTS: Final = frozenset({"torch", "nn", "F", "math", "np", "numpy", "functools"})
_SHORT = {"torch.nn.functional": "F", "torch.nn": "nn", "numpy": "np"}
_KNOWN = ROOTS | {"partial", *dir(builtins)}
_CALLABLE = _KNOWN - {"open", "input", "exec", "eval", "print", "super"}
_DEEPEST = 6  # names in the values of names
_LONGEST = 400  # characters of an argument
_LARGEST = 10**6  # larger integers are seeds and lengths of lists
_MOST_SITES = 24  # of one class in one file
_MAX_SITES = 60  # of one class
_MAX_CALLS = 8
_MAX_NAMING = 4  # calls whose names are resolved
_NAMING_STEPS = 2  # from a class to its model, and to what constructs that
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_CLASS, _WORD = re.compile(rb"\bclass\s+(\w+)"), re.compile(rb"[^\W\d]\w+")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ChainMap[str, ast.expr | None]  # None: bound in several ways, or by no plain assignment


class Parameter(NamedTuple):
    """One parameter of a method."""

    name: str
    annotation: str | None
    default: str | None
    kind: str  # "plain", "keyword" (only by keyword), "args", "kwargs"


Signature = tuple[Parameter, ...]


class CallSite(NamedTuple):
    """One call of a class; arguments that cannot be read are None."""

    target: str  # dotted name in the calling file
    name: str  # the name of the class itself, even if the file imports it under another name
    args: tuple[str | None, ...]
    kwargs: tuple[tuple[str, str | None], ...]
    opened: bool  # there are further, unknown arguments


class FileUsage(NamedTuple):
    """The calls in one file that construct objects, its options of a command line, and its classes.

    Args:
        options: with their defaults.
        classes: by name, then the signatures of their own `__init__` and `forward`.
    """

    sites: tuple[CallSite, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    classes: dict[str, dict[str, Signature]] = {}  # noqa: RUF012 - never changed

    def list_stated(self) -> Iterator[tuple[str, str | None]]:
        """Yield names with what signatures and calls give to them."""
        signatures = [signature for methods in self.classes.values() for signature in methods.values()]
        yield from ((item.name, item.default) for signature in signatures for item in signature)
        yield from (pair for site in self.sites for pair in site.kwargs)


class RatedCall(NamedTuple):
    """A call of a class and the facts that rank it. Args: lost: omitted arguments. place: the file of its names."""

    args: tuple[str, ...]
    kwargs: tuple[tuple[str, str], ...]
    lost: int
    far: int = 0  # 0: in the class's own file, 1: in its source, 2: elsewhere
    place: Module | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The expressions of its arguments."""
        return (*self.args, *(text for _, text in self.kwargs))

    @property
    def free_names(self) -> list[str]:
        """The names in its expressions whose meaning depends on the file."""
        nodes = (node for text in self.texts for node in ast.walk(_parse(text)))
        return list(dict.fromkeys(node.id for node in nodes if isinstance(node, ast.Name) and node.id not in _KNOWN))

    def rank(self) -> tuple[object, ...]:
        """Return a key that is smaller the more likely the call works, cheap ones first."""
        weight = sum(min(int(number), 10**6) for text in self.texts for number in _NUMBER.findall(text))
        return (self.lost > 0, len(self.free_names), self.far, weight, len(self.texts), self.args, self.kwargs)


_STORED = TypeAdapter(FileUsage)


class HintFinder:
    """Find hints; reads each file of the library once, on first use, and emits each companion once."""

    def __init__(self, library: CorpusIndex, index: FactsIndex, emitter: Emitter) -> None:
        self._library = library
        self._index = index
        self._emitter = emitter
        self._hierarchy = Hierarchy(library)
        self._files: dict[int, FileUsage] = {}
        self._emitted: dict[tuple[int, str], Emitted | None] = {}
        self._definitions: dict[tuple[str, str], Definition] = {}  # of companions, by name and qualified name

    def hints_for(self, block: TargetClass) -> dict[str, Any]:
        """Return how the corpus constructs a class, as JSON values.

        Returns: `init`, its calls, best first; `forward`, empty: recorded calls are added; `accepted`, parameters with
            the class of an instance that they take; `companions`, these classes and those that calls name; and
            `values`, what its source gives to names.
        """
        definer = self._find_definer(block.module, block.name, "__init__")
        signature = definer[1] if definer is not None else None
        rated = self._list_calls(block, signature)
        required = [item.name for item in signature or () if item.default is None]
        free = [name for call in rated for name in call.free_names]
        accepted = list(self._list_accepted(*definer)) if definer is not None else []
        named = [*self._list_named(rated[:_MAX_NAMING], block), *(item for _, item in accepted)]
        return {
            "init": [{"args": call.args, "kwargs": call.kwargs, "way": "call"} for call in rated],
            "forward": [],
            "companions": list({item["name"]: item for item in named}.values()),
            "accepted": [(parameter, item["name"]) for parameter, item in accepted],
            "values": list(self._find_values(block, required, free).items()),
        }

    def list_naming(self, blocks: Sequence[TargetClass]) -> list[Module]:
        """Return the files that name some classes of one source, then those that name the classes in these files.

        Files that name more come first.
        """
        source, names = blocks[0].module.source, [block.name for block in blocks]
        listed: dict[int, Module] = {}
        for _ in range(_NAMING_STEPS):
            naming = [module for name in names for module in self._find_naming(name) if module.source is source]
            counts = Counter(map(id, naming))
            for module in sorted(naming, key=lambda module: (-counts[id(module)], module.file.path)):
                listed.setdefault(id(module), module)
            names = sorted({user.name for module in naming for user in self._hierarchy.list_modules(module)})
        return list(listed.values())

    # -- the files -------------------------------------------------------------------------------------------------

    def _read(self, module: Module) -> FileUsage:
        if id(module) not in self._files:
            self._files[id(module)] = read_usage(self._index, module.source, module.file)
        return self._files[id(module)]

    def _find_naming(self, name: str) -> list[Module]:
        """Return the files whose text has the name of a class, in order of sources and paths."""
        return self._modules_by_name.get(name.encode(), [])

    @cached_property
    def _modules_by_name(self) -> dict[bytes, list[Module]]:
        """The files whose text has the name of a class. A call may be anywhere, but only these are parsed for it."""
        by_path = self._library.by_path
        modules = [by_path[s.name, f.path] for s in self._library.sources for f in s.files if s.in_scope(f.path)]
        classes = {name for module in modules for name in _CLASS.findall(module.text)}
        by_name: dict[bytes, list[Module]] = {}
        for module in modules:
            for name in classes.intersection(_WORD.findall(module.text)):
                by_name.setdefault(name, []).append(module)
        return by_name

    def _find_definer(
        self, module: Module, name: str, method: str, below: frozenset[tuple[int, str]] = frozenset()
    ) -> tuple[Module, Signature] | None:
        """Return the file of the class that defines a method, and its signature; bases are searched depth first."""
        methods, facts = self._read(module).classes.get(name), find_class_facts(Definition(module, name))
        if methods is None or facts is None or (id(module), name) in below:
            return None
        if method in methods:
            return module, methods[method]
        targets = (follow(self._library, module, base) for base in facts.bases if base)
        found = (
            self._find_definer(target.module, target.name, method, below | {(id(module), name)})
            for target in targets
            if isinstance(target, Definition)
        )
        return next((item for item in found if item is not None), None)

    # -- calls and values ------------------------------------------------------------------------------------------

    def _list_calls(self, block: TargetClass, signature: Signature | None) -> list[RatedCall]:
        """Return the distinct calls of a class that are most likely to work."""
        module = block.module

        def distance(caller: Module) -> int:
            return 0 if caller is module else 1 if caller.source is module.source else 2

        callers = sorted(self._find_naming(block.name), key=distance)  # near ones first: their number is bounded
        sites = ((caller, site) for caller in callers for site in self._read(caller).sites if site.name == block.name)
        own = ((caller, site) for caller, site in sites if self._constructs(caller, site, module, block.name))
        bound = ((caller, bind_call(site, signature)) for caller, site in itertools.islice(own, _MAX_SITES))
        rated = [call._replace(far=distance(caller), place=caller) for caller, call in bound if call is not None]
        chosen: dict[object, RatedCall] = {}
        for call in sorted(rated, key=RatedCall.rank):
            chosen.setdefault((call.args, tuple(sorted(call.kwargs))), call)
        return list(chosen.values())[:_MAX_CALLS]

    def _constructs(self, caller: Module, site: CallSite, module: Module, name: str) -> bool:
        """Return whether a call constructs exactly this class."""
        chain = tuple(site.target.split("."))
        if caller is module and chain == (name,):
            return True
        if chain[0] in {"nn", FOUNDATION}:
            return module.name.startswith("torch.nn.modules.")
        target = follow(self._library, caller, chain)
        return isinstance(target, Definition) and target.module is module and target.name == name

    def _find_values(self, block: TargetClass, required: Sequence[str], free: Sequence[str]) -> dict[str, str]:
        """Return the first value of each required parameter in the class's file, and of each name as an option.

        Options of a command line count in files of the source that name the class, too.
        """
        own = self._read(block.module)
        naming = [item for item in self._find_naming(block.name) if item.source is block.module.source]
        options = [pair for usage in (own, *map(self._read, naming)) for pair in usage.options]
        values: dict[str, str] = {}
        for names, stated in ((required, [*own.list_stated(), *options]), (free, options)):
            known = {name: text for name, text in reversed(stated) if text not in (None, "None") and _is_literal(text)}
            values = {name: known[name] for name in names if name in known} | values
        return values

    # -- companions ------------------------------------------------------------------------------------------------

    def _list_named(self, calls: Sequence[RatedCall], block: TargetClass) -> Iterator[CompanionCode]:
        """Yield the classes that the expressions of calls name."""
        named = [(call.place, name) for call in calls if call.place is not None for name in call.free_names]
        words = {name for _, name in named}
        resolved = (self._resolve_class(module, (name,)) for module, name in named)
        distinct = {(id(wanted.module), wanted.name): wanted for wanted in resolved if wanted is not None}
        distinct.pop((id(block.module), block.name), None)
        for wanted in distinct.values():
            if wanted.name in words:
                yield from self._emit_companion(wanted)

    def _list_accepted(self, module: Module, signature: Signature) -> Iterator[tuple[str, CompanionCode]]:
        """Yield the parameters that are annotated with a class of the corpus, with that class."""
        for parameter in signature:
            text = (parameter.annotation or "").strip("'\"")
            with suppress(SyntaxError):
                chains = (
                    read_dotted_name(node) for node in ast.walk(parse_expression(text)) if isinstance(node, ast.expr)
                )
                resolved = [self._resolve_class(module, tuple(chain.split("."))) for chain in chains if chain]
                for wanted in [item for item in resolved if item is not None]:
                    yield from ((parameter.name, item) for item in self._emit_companion(wanted))

    def list_defined(self, places: Iterable[tuple[Module, str]], block: TargetClass) -> Iterator[CompanionCode]:
        """Yield the classes and functions that these files define under these names, without the block itself."""
        for module, name in places:
            own = module is block.module and name == block.name
            if not own and any(item.kind in (CLASS, FUNCTION) for item in module.find_binders(name)):
                yield from self._emit_companion(Definition(module, name))

    def emit_with(self, block: TargetClass, companions: Iterable[CompanionCode]) -> Emitted | None:
        """Return the closed file of a class that also defines these companions of it; None if it cannot."""
        also = [self._definitions[item["name"], item["qualname"]] for item in companions]
        outcome = self._emitter.emit(block, also)
        return outcome if isinstance(outcome, Emitted) and not outcome.fault and not outcome.undefined else None

    def _emit_companion(self, wanted: Definition) -> Iterator[CompanionCode]:
        key, block = (id(wanted.module), wanted.name), TargetClass(wanted.module, wanted.name)
        if key not in self._emitted:
            # A companion that is not closed would fail where the block itself is right.
            self._emitted[key] = self.emit_with(block, ())
        emitted = self._emitted[key]
        if emitted is not None:
            self._definitions[wanted.name, block.qualname] = wanted
            yield CompanionCode(name=wanted.name, code=emitted.code, qualname=block.qualname)

    def _resolve_class(self, module: Module, chain: tuple[str, ...]) -> Definition | None:
        """Return the class behind a name, or the stub that replaces it in emitted files."""
        target = follow(self._library, module, chain)
        if not isinstance(target, Definition) or find_class_facts(target) is None:
            return None
        symbol = self._emitter.graph.symbol(target)
        return symbol if isinstance(symbol, Definition) else None


def bind_call(site: CallSite, signature: Signature | None) -> RatedCall | None:
    """Return the call at a site, or None if it does not fit the signature or a required argument is unknown.

    Required arguments are passed by position up to the first gap, the others by name; defaults are omitted.
    """
    parameters = signature or ()
    plain = [parameter for parameter in parameters if parameter.kind == "plain"]
    known = {parameter.name: parameter for parameter in parameters if parameter.kind in ("plain", "keyword")}
    kinds = {parameter.kind for parameter in parameters} if signature is not None else {"args", "kwargs"}
    if len(site.args) > len(plain) and "args" not in kinds:
        return None
    named = dict(zip((parameter.name for parameter in plain), site.args, strict=False))
    named |= {name: text for name, text in site.kwargs if name in known or "kwargs" in kinds}
    rest = site.args[len(plain) :]
    values = {name: text for name, text in named.items() if text is not None}
    lost = len(named) - len(values) + site.opened + rest.count(None)
    missing = any(parameter.default is None and name not in values for name, parameter in known.items())
    if missing or (signature is None and lost):
        return None
    args: list[str] = []
    for parameter in plain:
        if parameter.name not in values or (parameter.default is not None and not rest):
            break  # behind a gap, arguments are passed by name
        args.append(values.pop(parameter.name))
    if len(args) == len(plain):
        args += [text for text in itertools.takewhile(lambda text: text is not None, rest) if text is not None]
    kwargs = [(n, t) for n, t in values.items() if n not in known or _normalize(known[n].default) != _normalize(t)]
    return RatedCall(tuple(args), tuple(kwargs), lost)


def _normalize(text: str | None) -> str:
    return (text or "").replace(" ", "").replace('"', "'")


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


# -- one file ----------------------------------------------------------------------------------------------------------


def read_usage(index: FactsIndex, source: PackageSource, file: SourceFile) -> FileUsage:
    """Return the calls and classes in a file, cached in the index by the file's content; none of a syntax error."""
    key = f"hints:{_VERSION}:{file.blob}"
    stored = index.recall(key)
    if stored is not None:
        return _STORED.validate_json(stored)
    usage = FileUsage()
    # A file that a worker could not parse is not parsed here, where it could end the run.
    if index.facts(source, file) is not UNREADABLE:
        with suppress(SyntaxError):
            usage = _Reader(parse_code(source.read(file))).read()
    index.remember(key, _STORED.dump_json(usage))
    return usage


def read_signature(node: Function) -> Signature:
    """Return the parameters of a method, without `self`."""
    args, defaults = node.args, _read_defaults(node)
    listed = [(arg, "plain") for arg in [*args.posonlyargs, *args.args][1:]]
    listed += [(args.vararg, "args")] if args.vararg else []
    listed += [(arg, "keyword") for arg in args.kwonlyargs]
    listed += [(args.kwarg, "kwargs")] if args.kwarg else []
    spelled = {name: ast.unparse(node) for name, node in defaults.items() if node is not None}
    annotations = {arg.arg: ast.unparse(arg.annotation) for arg, _ in listed if arg.annotation is not None}
    return tuple(Parameter(arg.arg, annotations.get(arg.arg), spelled.get(arg.arg), kind) for arg, kind in listed)


def _read_defaults(node: Function) -> dict[str, ast.expr | None]:
    """Return the parameters of a function with their defaults; None for those without one."""
    args = node.args
    plain = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    defaults = [None] * (len(plain) - len(args.defaults)) + list(args.defaults)
    keywords = zip((arg.arg for arg in args.kwonlyargs), args.kw_defaults, strict=True)
    return {**dict(zip(plain, defaults, strict=True)), **dict(keywords)}


def read_dotted_name(node: ast.expr) -> str:
    """Return `a.b.c` as text, or "" for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    before = read_dotted_name(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{before}.{node.attr}" if before and isinstance(node, ast.Attribute) else ""


class _UnreadableError(Exception):
    """An argument holds what the text does not decide."""


class _Reader:
    """Reads the calls of one file, with the values that its text gives to names."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._imported: dict[str, str] = {}  # names of PyTorch and the like, as they are written everywhere
        self._renamed: dict[str, str] = {}  # from the name of a class to that in this file
        self._classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        for node in ast.walk(tree):
            for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                module = f"{node.module}." if isinstance(node, ast.ImportFrom) and not node.level else ""
                dotted, bound = f"{module}{alias.name}", alias.asname or alias.name
                if dotted.partition(".")[0] in ROOTS and (alias.asname or module):
                    self._imported[bound] = _shorten(dotted)
                elif alias.asname and isinstance(node, ast.ImportFrom):
                    self._renamed[alias.asname] = alias.name
                else:
                    self._classes.add(bound.partition(".")[0])

    def read(self) -> FileUsage:
        """Return the facts of the file."""
        counts = Counter[str]()
        sites: dict[CallSite, None] = {}
        options: dict[str, str] = {}
        for call, scope in self._list_calls(self._tree.body, ChainMap()):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
                options |= self._read_option(call, scope)
            site = self._read_site(call, scope)
            if site is not None and counts[site.target] < _MOST_SITES and site not in sites:
                counts[site.target] += 1
                sites[site] = None
        return FileUsage(tuple(sites), tuple(options.items()), dict(self._list_classes(self._tree.body)))

    def _list_classes(self, body: Sequence[ast.stmt]) -> Iterator[tuple[str, dict[str, Signature]]]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                methods = [item for item in node.body if isinstance(item, Function)]
                known = {item.name: item for item in methods if item.name in ("__init__", "forward")}
                yield node.name, {name: read_signature(item) for name, item in known.items()}
            elif isinstance(node, ast.If | ast.Try):
                yield from self._list_classes([*node.body, *node.orelse])

    def _list_calls(self, body: Sequence[ast.stmt], scope: Scope) -> Iterator[tuple[ast.Call, Scope]]:
        """Yield the calls in a suite, and in the functions and classes in it, each with its scope."""
        inner: list[Function | ast.ClassDef] = []
        calls: list[ast.Call] = []
        waiting = deque[ast.AST](body)
        while waiting:  # all names of a scope before its first call
            node = waiting.popleft()
            if isinstance(node, Function | ast.ClassDef):
                inner.append(node)
                continue
            if isinstance(node, ast.Call):
                calls.append(node)
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For):
                targets = [node.target]
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            for target in targets:
                for name in [item.id for item in ast.walk(target) if isinstance(item, ast.Name)]:
                    known = name in scope.maps[0] or not isinstance(target, ast.Name)
                    scope[name] = None if known else value
            waiting += ast.iter_child_nodes(node)
        yield from ((call, scope) for call in calls)
        for item in inner:
            own = {} if isinstance(item, ast.ClassDef) else _read_defaults(item)
            yield from self._list_calls(item.body, scope.new_child(own))

    def _read_option(self, call: ast.Call, scope: Scope) -> dict[str, str]:
        """Return the name of an option of a command line with its default, if both are known."""
        names = [item.value for item in call.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        default = next((self._write(item.value, scope) for item in call.keywords if item.arg == "default"), None)
        # The long form gives the name.
        return {max(names, key=len).lstrip("-").replace("-", "_"): default} if names and default else {}

    def _read_site(self, call: ast.Call, scope: Scope) -> CallSite | None:
        """Return a call as a call site, if it constructs an object and any argument is known."""
        found = scope.get(call.func.id) if isinstance(call.func, ast.Name) else None
        chain = read_dotted_name(found if found is not None else call.func)
        name = self._renamed.get(chain, chain.rpartition(".")[2])
        if not chain or not (name.lstrip("_")[:1].isupper() or chain in self._classes):
            return None
        first, dot, rest = chain.partition(".")
        args = tuple(self._write(item, scope) for item in call.args if not isinstance(item, ast.Starred))
        kwargs = tuple((item.arg, self._write(item.value, scope)) for item in call.keywords if item.arg)
        opened = len(args) + len(kwargs) < len(call.args) + len(call.keywords)
        known = any(text is not None for text in (*args, *(text for _, text in kwargs)))
        target = f"{self._imported.get(first, first)}{dot}{rest}"
        return CallSite(target, name, args, kwargs, opened) if known else None

    def _write(self, node: ast.expr, scope: Scope) -> str | None:
        try:
            text = ast.unparse(self._expand(node, scope, 0))
        except _UnreadableError:
            return None
        return text if len(text) <= _LONGEST else None

    def _expand(self, node: ast.expr, scope: Scope, depth: int) -> ast.expr:
        """Return an expression with the values of its names. Raises: _UnreadableError."""
        unread = ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr | ast.Starred
        is_power = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
        is_large = isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value > _LARGEST
        if depth > _DEEPEST or isinstance(node, unread) or is_power or is_large:
            raise _UnreadableError
        if isinstance(node, ast.Name):
            found = scope.get(node.id)
            return self._expand(found, scope, depth + 1) if found else _parse(self._imported.get(node.id, node.id))
        if isinstance(node, ast.Attribute):
            return self._expand_attribute(node, scope, depth)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and not scope.get(node.value.id):
            return ast.Name(node.value.id.removesuffix("s"))  # an item of `dims` is a `dim`
        if isinstance(node, ast.Call):
            chain = read_dotted_name(node.func)
            first, last = self._imported.get(chain, chain).partition(".")[0], chain.rpartition(".")[2]
            if not (first in _CALLABLE or last.lstrip("_")[:1].isupper()):
                raise _UnreadableError

        def expand(part: object) -> object:
            if isinstance(part, list):
                return [expand(item) for item in part]
            if isinstance(part, ast.keyword):
                return ast.keyword(part.arg, self._expand(part.value, scope, depth))
            return self._expand(part, scope, depth) if isinstance(part, ast.expr) else part

        fields: dict[str, Any] = {name: expand(value) for name, value in ast.iter_fields(node)}
        return type(node)(**fields)

    def _expand_attribute(self, node: ast.Attribute, scope: Scope, depth: int) -> ast.expr:
        """Return `nn.ReLU` and `Mode.MEAN` as they are, `width` for `config.width`, and its value for `self.width`."""
        first, _, rest = read_dotted_name(node).partition(".")
        imported = self._imported.get(first, first)
        if imported.partition(".")[0] in ROOTS or first in self._classes or first.lstrip("_")[:1].isupper():
            return _parse(f"{imported}.{rest}")
        name = ast.Name(node.attr)
        return self._expand(name, scope, depth + 1) if first == "self" else name


def _parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _shorten(dotted: str) -> str:
    """Return `torch.nn.ReLU` as `nn.ReLU`."""
    long = next((long for long in _SHORT if f"{dotted}.".startswith(f"{long}.")), None)
    return _SHORT[long] + dotted[len(long) :] if long is not None else dotted
