"""Find the hints for one class in every file of the library."""

import ast
import builtins
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from extract.arguments.hints.companions import Companions
from extract.arguments.hints.model import Hints, ObservedCall, Signature
from extract.arguments.hints.sites import ROOTS, CallSite
from extract.arguments.hints.usage import Ancestor, Usage
from extract.emit.emit import Emitter
from extract.resolve.discover import Hierarchy, TargetClass, follow
from extract.resolve.index import FactsIndex
from extract.resolve.modules import FOUNDATION, CorpusIndex, Definition, Module

_MAX_CALLS = 8
_MAX_NAMING = 4  # calls whose names are resolved
_MAX_SITES = 60  # call sites of one class
_NAMING_STEPS = 2  # from a class to its model, and to what constructs that
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?!\w|=(?!=))")
_STRING = re.compile(r"'[^']*'|\"[^\"]*\"")
_KNOWN = ROOTS | {"partial", "for", "in", "if", "else", "lambda", "not", "or", "and"} | frozenset(dir(builtins))

Definer = tuple[Ancestor, Signature] | None


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
        signatures = [signature for item in usage.classes.values() for signature in (item.init, item.forward)]
        defaults = [(item.name, item.default) for signature in signatures for item in signature or ()]
        stated = [*defaults, *(pair for site in usage.sites for pair in site.kwargs)]
        for parameter in init[1] if init is not None else ():
            texts = (text for name, text in stated if name == parameter.name and text not in (None, "None"))
            for text in (text for text in texts if parameter.default is None and _is_literal(text or "")):
                yield parameter.name, text or ""
                break

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
