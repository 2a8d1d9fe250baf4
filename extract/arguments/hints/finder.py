"""Hints for one class, from every file of the library."""

import builtins
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from extract.arguments.hints.companions import Companions
from extract.arguments.hints.docstrings import Example
from extract.arguments.hints.interpreter import CallSite
from extract.arguments.hints.model import Call, Hints, Signature
from extract.arguments.hints.usage import Ancestor, Usage
from extract.emit.emit import Emitter
from extract.resolve.discover import Found, follow
from extract.resolve.index import Index
from extract.resolve.modules import FOUNDATION, Definition, Library, Module
from extract.resolve.values import ROOTS

_MOST_CALLS = 8
_MOST_FORWARD = 6
_MOST_NAMING = 4  # calls whose names are looked up
_ENOUGH = 60  # call sites looked at, of those that make the class
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?!\w|=(?!=))")
_STRING = re.compile(r"'[^']*'|\"[^\"]*\"")
_KNOWN = ROOTS | {"partial", "for", "in", "if", "else", "lambda", "not", "or", "and"} | frozenset(dir(builtins))

Definer = tuple[Ancestor, Signature] | None


class RatedCall(NamedTuple):
    """A call with what its place in the order depends on."""

    call: Call
    lost: int = 0  # arguments left out
    far: int = 0  # 0: in the class's own file, 1: in its source, 2: elsewhere
    place: Module | None = None  # the file that its names are from

    @property
    def texts(self) -> tuple[str, ...]:
        """Its expressions."""
        return (*self.call.args, *(text for _, text in self.call.kwargs))

    @property
    def free_names(self) -> tuple[str, ...]:
        """The names in its expressions that are not the same in every file."""
        words = dict.fromkeys(word for text in self.texts for word in _WORD.findall(_STRING.sub("", text)))
        return tuple(word for word in words if word not in _KNOWN)


class HintFinder:
    """Finds hints; reads each file of the library once."""

    def __init__(self, library: Library, index: Index, emitter: Emitter) -> None:
        self._library = library
        self._usage = Usage(library, index)
        self._companions = Companions(self._usage, emitter)

    def hints_for(self, found: Found) -> Hints:
        """How the corpus builds and runs a class."""
        lineage = self._usage.lineage(found.module, found.name)
        init = self._usage.definer(found.module, found.name, "__init__")
        forward = self._usage.definer(found.module, found.name, "forward")
        examples = [call for item in _until(lineage, init) for call in _examples(item.usage.init_examples, init)]
        rated = best([*map(RatedCall, examples), *self._rated_sites(found, init)])
        runs = [call for item in _until(lineage, forward) for call in _examples(item.usage.forward_examples, forward)]
        named = [(item.place, item.free_names) for item in rated if item.place is not None][:_MOST_NAMING]
        return Hints(
            tuple(item.call for item in rated),
            tuple(dict.fromkeys(runs))[:_MOST_FORWARD],
            (*self._companions.of(found.module, found.name), *self._companions.named(named, found)),
            tuple(_shapes(forward)),
        )

    # -- calls of the class --------------------------------------------------------------------------------------

    def _rated_sites(self, found: Found, init: Definer) -> Iterator[RatedCall]:
        """The calls of the class, those in its own file and source first."""
        module, count = found.module, 0
        nearest = sorted(self._usage.sites(found.name), key=lambda pair: _distance(pair[0], module))
        for place, site in nearest:
            if count < _ENOUGH and self._makes(place, site, module, found.name):
                count += 1
                call = bound_call(site, init[1] if init is not None else None)
                if call is not None:
                    yield call._replace(far=_distance(place, module), place=place)

    def _makes(self, place: Module, site: CallSite, module: Module, name: str) -> bool:
        """Whether a call makes this very class."""
        chain = tuple(site.target.split("."))
        if place is module and chain == (name,):
            return True
        if chain[0] in {"nn", FOUNDATION}:
            return site.name == name and module.name.startswith("torch.nn.modules.")
        target = follow(self._library, place, chain)
        return isinstance(target, Definition) and target.module is module and target.name == name


def _shapes(definer: Definer) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The documented shape of each argument of forward, in their order; with names, where one of that rank has them."""
    for parameter in definer[1] if definer is not None else ():
        assert definer is not None
        own = [dims for name, dims in definer[0].usage.shapes if name == parameter.name]
        if own:
            same = [dims for dims in own if len(dims) == len(own[0])]
            yield parameter.name, min(same, key=lambda dims: dims.count("?"))


def _until(lineage: tuple[Ancestor, ...], definer: Definer) -> tuple[Ancestor, ...]:
    """The classes of a lineage up to the one that defines a method."""
    return lineage[: lineage.index(definer[0]) + 1] if definer is not None else lineage


def _distance(place: Module, module: Module) -> int:
    """0: in the same file, 1: in the same source, 2: elsewhere."""
    return 0 if place is module else 1 if place.source is module.source else 2


# -- arguments put to their parameters -------------------------------------------------------------------------------


def bound_call(site: CallSite, signature: Signature | None) -> RatedCall | None:
    """The call at a site; None where it does not fit the signature, or a required argument is not known.

    Required arguments are passed by position as far as there is no gap; the others by name, without the defaults.
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
        if parameter.name not in values or (parameter.default is not None and not rest):
            break
        args.append(values.pop(parameter.name))
    if len(args) == len(plain):
        args += [text for text in rest[: rest.index(None) if None in rest else None] if text is not None]
    kwargs = [(n, t) for n, t in values.items() if n not in known or _spaceless(known[n].default) != _spaceless(t)]
    return RatedCall(Call(tuple(args), tuple(kwargs), "call"), lost)


def _spaceless(text: str | None) -> str:
    return (text or "").replace(" ", "").replace('"', "'")


def _examples(examples: Iterable[Example], definer: Definer) -> Iterator[Call]:
    """The calls of docstrings' examples, as they stand, where the signature has a place for them."""
    for args, kwargs in examples:
        kinds = [parameter.kind for parameter in definer[1]] if definer is not None else ["args", "kwargs"]
        names = {parameter.name for parameter in definer[1]} if definer is not None else set()
        fits = len(args) <= kinds.count("plain") or "args" in kinds
        if fits and ("kwargs" in kinds or all(name in names for name, _ in kwargs)):
            yield Call(args, kwargs, "example")


def best(rated: Iterable[RatedCall]) -> list[RatedCall]:
    """The calls most likely to work and cheap to make, distinct."""
    chosen: dict[object, RatedCall] = {}
    for item in sorted(rated, key=_order):
        chosen.setdefault((item.call.args, tuple(sorted(item.call.kwargs))), item)
    return list(chosen.values())[:_MOST_CALLS]


def _order(item: RatedCall) -> tuple[object, ...]:
    call = item.call
    texts = (*call.args, *(f"{name}={text}" for name, text in call.kwargs))
    weight = sum(min(int(number), 10**6) for text in texts for number in _NUMBER.findall(text))
    return (item.lost > 0, len(item.free_names), call.way != "example", item.far, weight, len(texts), texts)
