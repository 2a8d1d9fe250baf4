"""Hints for a class: how the corpus constructs it, and the classes that its parameters expect."""

import ast
import builtins
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from extract.arguments.hints.sites import ROOTS, CallSite, Signature, read_dotted_name
from extract.arguments.hints.usage import Ancestor, Usage
from extract.arguments.messages import CompanionCode
from extract.emit.emit import Emitted, Emitter
from extract.resolve.discover import Hierarchy, TargetClass, find_class_facts, follow
from extract.resolve.index import FactsIndex
from extract.resolve.modules import FOUNDATION, CorpusIndex, Definition, Module
from lemur_core.source.facts import CLASS, FUNCTION
from lemur_core.source.text import parse_expression

_MAX_CALLS = 8
_MAX_NAMING = 4  # calls whose names are resolved
_MAX_SITES = 60  # call sites of one class
_NAMING_STEPS = 2  # from a class to its model, and to what constructs that
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?!\w|=(?!=))")
_STRING = re.compile(r"'[^']*'|\"[^\"]*\"")
_KNOWN = ROOTS | {"partial", "for", "in", "if", "else", "lambda", "not", "or", "and"} | frozenset(dir(builtins))
_TRANSPARENT = frozenset({"Optional", "Union", "Annotated", "Final"})
_CLASS_OF = frozenset({"type", "Type"})
_CONTAINERS = frozenset({"list", "List", "dict", "Dict", "tuple", "Tuple", "Callable", "Literal"})

Definer = tuple[Ancestor, Signature] | None


@dataclass(frozen=True, slots=True)
class ObservedCall:
    """One call of the class or its forward in the corpus; every value is a Python expression."""

    args: tuple[str, ...]
    kwargs: tuple[tuple[str, str], ...]
    way: str  # "call"; recorded calls are added


@dataclass(frozen=True, slots=True)
class Companion:
    """A class of the corpus that a parameter expects, as an instance or as the class itself.

    If `parameter` is empty, expressions in `Hints.init` name the class, which may be missing in the block's own file.
    """

    parameter: str
    name: str  # the class's name in `code`
    qualname: str  # the dotted name under which its own source imports it
    code: str  # its self-contained file
    wants_class: bool  # annotated type[X]: the class itself


@dataclass(frozen=True, slots=True)
class Hints:
    """How the corpus constructs and calls a class."""

    init: tuple[ObservedCall, ...] = ()  # best first, distinct
    forward: tuple[ObservedCall, ...] = ()  # none; recorded calls are added
    companions: tuple[Companion, ...] = ()
    values: tuple[tuple[str, str], ...] = ()  # of required parameters, that the class's own file gives to that name

    def to_json(self) -> dict[str, Any]:
        """Return the hints as JSON values."""
        return asdict(self)


class RatedCall(NamedTuple):
    """A call and the facts that rank it."""

    call: ObservedCall
    lost: int = 0  # omitted arguments
    far: int = 0  # 0: in the class's own file, 1: in its source, 2: elsewhere
    place: Module | None = None  # the file in which its names are defined

    @property
    def texts(self) -> tuple[str, ...]:
        """The expressions of its arguments."""
        return (*self.call.args, *(text for _, text in self.call.kwargs))

    @property
    def free_names(self) -> tuple[str, ...]:
        """The names in its expressions whose meaning depends on the file."""
        words = dict.fromkeys(word for text in self.texts for word in _WORD.findall(_STRING.sub("", text)))
        return tuple(word for word in words if word not in _KNOWN)


class HintFinder:
    """Find hints; reads each file of the library once."""

    def __init__(self, library: CorpusIndex, index: FactsIndex, emitter: Emitter) -> None:
        self._library = library
        self._usage = Usage(library, index)
        self.emitter = emitter
        self._hierarchy = Hierarchy(library)
        self.companions = Companions(self._usage, emitter)

    def hints_for(self, block: TargetClass) -> Hints:
        """Return how the corpus constructs and calls a class."""
        init = self._usage.find_definer(block.module, block.name, "__init__")
        rated = best(self._rate_sites(block, init))
        named = [(item.place, item.free_names) for item in rated if item.place is not None][:_MAX_NAMING]
        return Hints(
            tuple(item.call for item in rated),
            (),
            (*self.companions.list_for(block.module, block.name), *self.companions.list_named(named, block)),
            tuple(self._list_values(block.module, init)),
        )

    def list_naming(self, blocks: Sequence[TargetClass]) -> list[Module]:
        """Return the files that name some classes of one source, then those that name the classes in these files.

        Files that name more come first.
        """
        source, names = blocks[0].module.source, [block.name for block in blocks]
        listed: dict[int, Module] = {}
        for _ in range(_NAMING_STEPS):
            naming = [module for name in names for module in self._usage.list_naming(name) if module.source is source]
            counts = Counter(map(id, naming))
            for module in sorted(naming, key=lambda module: (-counts[id(module)], module.file.path)):
                listed.setdefault(id(module), module)
            names = sorted({user.name for module in naming for user in self._hierarchy.list_modules(module)})
        return list(listed.values())

    def _list_values(self, module: Module, init: Definer) -> Iterator[tuple[str, str]]:
        """Yield the required parameters with the values that other classes and calls of the file give to that name."""
        usage = self._usage.read(module)
        signatures = [signature or () for item in usage.classes.values() for signature in (item.init, item.forward)]
        stated = [(item.name, item.default) for signature in signatures for item in signature]
        stated += [pair for site in usage.sites for pair in site.kwargs]
        # The first one counts.
        known = {name: text for name, text in reversed(stated) if text not in (None, "None") and _is_literal(text)}
        for parameter in init[1] if init is not None else ():
            if parameter.default is None and parameter.name in known:
                yield parameter.name, known[parameter.name]

    # -- calls of the class --------------------------------------------------------------------------------------

    def _rate_sites(self, block: TargetClass, init: Definer) -> Iterator[RatedCall]:
        """Yield the calls of the class, those in its own file and source first."""
        module, count = block.module, 0
        # Near calls first, since the number of calls is bounded.
        nearest = sorted(self._usage.sites(block.name), key=lambda pair: _distance(pair[0], module))
        for caller, site in nearest:
            if count < _MAX_SITES and self._constructs(caller, site, module, block.name):
                count += 1
                call = bind_call(site, init[1] if init is not None else None)
                if call is not None:
                    yield call._replace(far=_distance(caller, module), place=caller)

    def _constructs(self, caller: Module, site: CallSite, module: Module, name: str) -> bool:
        """Return whether a call constructs exactly this class."""
        chain = tuple(site.target.split("."))
        if caller is module and chain == (name,):
            return True
        if chain[0] in {"nn", FOUNDATION}:
            return site.name == name and module.name.startswith("torch.nn.modules.")
        target = follow(self._library, caller, chain)
        return isinstance(target, Definition) and target.module is module and target.name == name


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def _distance(caller: Module, module: Module) -> int:
    """Return 0 for the same file, 1 for the same source, 2 otherwise."""
    return 0 if caller is module else 1 if caller.source is module.source else 2


# -- matching arguments to parameters --------------------------------------------------------------------------------


def bind_call(site: CallSite, signature: Signature | None) -> RatedCall | None:
    """Return the call at a site, or None if it does not fit the signature or a required argument is unknown.

    Required arguments are passed by position up to the first gap, the others by name; defaults are omitted.
    """
    parameters = signature or ()
    plain = [parameter for parameter in parameters if parameter.kind == "plain"]
    known = {parameter.name: parameter for parameter in parameters if parameter.kind in {"plain", "keyword"}}
    kinds = {parameter.kind for parameter in parameters} | ({"args", "kwargs"} if signature is None else set())
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
        # Up to the first gap: behind it, arguments are passed by name.
        if parameter.name not in values or (parameter.default is not None and not rest):
            break
        args.append(values.pop(parameter.name))
    if len(args) == len(plain):
        args += [text for text in rest[: rest.index(None) if None in rest else None] if text is not None]
    kwargs = [(n, t) for n, t in values.items() if n not in known or _normalize(known[n].default) != _normalize(t)]
    return RatedCall(ObservedCall(tuple(args), tuple(kwargs), "call"), lost)


def _normalize(text: str | None) -> str:
    return (text or "").replace(" ", "").replace('"', "'")


def best(rated: Iterable[RatedCall]) -> list[RatedCall]:
    """Return the distinct calls that are most likely to work, cheap ones first."""
    chosen: dict[object, RatedCall] = {}
    for item in sorted(rated, key=_sort_key):
        chosen.setdefault((item.call.args, tuple(sorted(item.call.kwargs))), item)
    return list(chosen.values())[:_MAX_CALLS]


def _sort_key(item: RatedCall) -> tuple[object, ...]:
    call = item.call
    texts = (*call.args, *(f"{name}={text}" for name, text in call.kwargs))
    weight = sum(min(int(number), 10**6) for text in texts for number in _NUMBER.findall(text))
    return (item.lost > 0, len(item.free_names), item.far, weight, len(texts), texts)


# -- companions


class Companions:
    """Find companions and emit each class once."""

    def __init__(self, usage: Usage, emitter: Emitter) -> None:
        self._usage = usage
        self._emitter = emitter
        self._emitted: dict[tuple[int, str], Emitted | None] = {}
        self._definitions: dict[tuple[str, str], Definition] = {}  # by name and qualified name

    def list_for(self, module: Module, name: str) -> Iterator[Companion]:
        """Yield the companions of a class, in the order of its parameters; then those of its forward."""
        for method in ("__init__", "forward"):
            definer = self._usage.find_definer(module, name, method)
            for parameter in definer[1] if definer is not None else ():
                assert definer is not None
                for chain, wants_class in class_names(parameter.annotation):
                    wanted = self._resolve_class(definer[0].module, chain)
                    if wanted is not None and not (wanted.module is module and wanted.name == name):
                        yield from self._emit_companion(wanted, parameter.name, wants_class)

    def emit_for(self, block: TargetClass) -> Iterator[Emitted]:
        """Yield the files of the companions of a class, which need packages of their own."""
        for companion in self.list_for(block.module, block.name):
            definition = self._definitions[companion.name, companion.qualname]
            emitted = self._emitted[id(definition.module), definition.name]
            assert emitted is not None
            yield emitted

    def list_named(self, places: Sequence[tuple[Module, Sequence[str]]], block: TargetClass) -> Iterator[Companion]:
        """Yield the classes that expressions name, as companions without a parameter.

        Args:
            places: modules, each with the names that expressions from it use.
            block: the class itself, which is not its own companion.
        """
        resolved = (self._resolve_class(module, (name,)) for module, names in places for name in names)
        named = {word for _, names in places for word in names}
        distinct = {(id(wanted.module), wanted.name): wanted for wanted in resolved if wanted is not None}
        distinct.pop((id(block.module), block.name), None)
        for wanted in distinct.values():
            if wanted.name in named:
                yield from self._emit_companion(wanted)

    def list_defined(self, places: Iterable[tuple[Module, str]], block: TargetClass) -> Iterator[Companion]:
        """Yield the classes and functions that these files define under these names, without the block itself."""
        for module, name in places:
            own = module is block.module and name == block.name
            if not own and any(item.kind in (CLASS, FUNCTION) for item in module.find_binders(name)):
                yield from self._emit_companion(Definition(module, name))

    def emit_with(self, block: TargetClass, companions: Iterable[CompanionCode]) -> Emitted | None:
        """Return the closed file of a class that also defines these companions of it; None if it cannot."""
        also = [self._definitions[item["name"], item["qualname"]] for item in companions]
        return self._emit_closed(block, also)

    def _emit_closed(self, block: TargetClass, also: Sequence[Definition] = ()) -> Emitted | None:
        outcome = self._emitter.emit(block, also)
        return outcome if isinstance(outcome, Emitted) and not outcome.fault and not outcome.undefined else None

    def _emit_companion(self, wanted: Definition, parameter: str = "", wants_class: bool = True) -> Iterator[Companion]:
        key, block = (id(wanted.module), wanted.name), TargetClass(wanted.module, wanted.name, False)
        if key not in self._emitted:
            # A companion that is not closed would fail where the block itself is right.
            self._emitted[key] = self._emit_closed(block)
        emitted = self._emitted[key]
        if emitted is not None:
            self._definitions[wanted.name, block.qualname] = wanted
            yield Companion(parameter, wanted.name, block.qualname, emitted.code, wants_class)

    def _resolve_class(self, module: Module, chain: tuple[str, ...]) -> Definition | None:
        """Return the class behind a name, or the stub that replaces it in emitted files."""
        target = follow(self._usage.library, module, chain)
        if not isinstance(target, Definition) or find_class_facts(target) is None:
            return None
        symbol = self._emitter.graph.symbol(target)
        return symbol if isinstance(symbol, Definition) else None


def class_names(annotation: str | None) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the dotted class names in an annotation, and whether each means the class itself (`type[X]`)."""
    try:
        waiting: list[tuple[ast.expr, bool]] = [(parse_expression(annotation or ""), False)]
    except SyntaxError:
        return
    while waiting:
        node, wants_class = waiting.pop(0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for chain, inner in class_names(node.value):
                yield chain, inner or wants_class
        elif isinstance(node, ast.BinOp):
            waiting[:0] = [(node.left, wants_class), (node.right, wants_class)]
        elif isinstance(node, ast.Subscript):
            outer = read_dotted_name(node.value).rpartition(".")[2]
            items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if outer in _TRANSPARENT | _CLASS_OF:
                waiting[:0] = [(item, wants_class or outer in _CLASS_OF) for item in items]
            elif outer not in _CONTAINERS:
                waiting[:0] = [(node.value, wants_class)]  # a generic class of the corpus
        elif name := read_dotted_name(node):
            yield tuple(name.split(".")), wants_class
