"""Hints for one class, from every file of the library."""

from collections.abc import Iterator, Sequence

from extract.discover import Found, Hierarchy, follow
from extract.emit import Emitter
from extract.hints.calls import Rated, best, from_example, from_site
from extract.hints.companions import Companions
from extract.hints.inputs import Inputs
from extract.hints.model import Call, Hints
from extract.hints.records import Inherited, Records
from extract.hints.shapes import Shape
from extract.hints.signature import Signature
from extract.hints.sites import Site
from extract.index import Index
from extract.modules import FOUNDATION, Definition, Library, Module

_MOST_RUNS = 6
_ENOUGH = 60  # sites looked at, of those that make the class


class HintFinder:
    """Finds hints; reads each file of the library once."""

    def __init__(self, library: Library, index: Index, emitter: Emitter) -> None:
        self._library = library
        self._records = Records(library, index)
        self._inputs = Inputs(self._records)
        self._companions = Companions(self._records, Hierarchy(library), emitter)

    def hints_for(self, found: Found) -> Hints:
        """How the corpus builds and runs a class."""
        lineage = self._records.lineage(found.module, found.name)
        init = self._records.definer(found.module, found.name, "__init__")
        forward = self._records.definer(found.module, found.name, "forward")
        signature = init[1] if init is not None else None
        rated = best([*self._examples(lineage, init, signature), *self._sites(found, init, signature)])
        shapes = self._inputs.of(found.module, found.name)
        return Hints(
            tuple(item.call for item in rated),
            tuple(self._runs(lineage, forward)),
            (*self._companions.of(found.module, found.name), *self._companions.named_by(rated, found)),
            tuple(dict.fromkeys(shape.rank for shape in shapes)),
            _by_argument(shapes, forward[1] if forward is not None else ()),
        )

    # -- init ----------------------------------------------------------------------------------------------------

    def _examples(
        self, lineage: tuple[Inherited, ...], init: tuple[Inherited, Signature] | None, signature: Signature | None
    ) -> Iterator[Rated]:
        for item in lineage[: _until(lineage, init)]:
            for written in item.record.examples:
                call = from_example(written, signature)
                if call is not None:
                    yield Rated(call, 0, 0, 0, item.module)

    def _sites(
        self, found: Found, init: tuple[Inherited, Signature] | None, signature: Signature | None
    ) -> Iterator[Rated]:
        """The sites of the class, then those of the base that it has its constructor from."""
        owners = [(found.module, found.name)]
        if init is not None and (init[0].module, init[0].record.name) != owners[0]:
            owners.append((init[0].module, init[0].record.name))
        for step, (module, name) in enumerate(owners):
            for place, site in self._sites_of(module, name, _keys(found) if not step else (name,)):
                far = 0 if place is module else 1 if place.source is module.source else 2
                rated = from_site(site, signature, far + 3 * step, place)
                if rated is not None:
                    yield rated

    def _sites_of(self, module: Module, name: str, keys: tuple[str, ...]) -> Iterator[tuple[Module, Site]]:
        candidates = [pair for key in keys for pair in self._records.sites(key)]
        candidates.sort(key=lambda pair: (pair[0] is not module, pair[0].source is not module.source))
        count = 0
        for place, site in candidates:
            if count < _ENOUGH and self._makes(place, site, module, name):
                count += 1
                yield place, site

    def _makes(self, place: Module, site: Site, module: Module, name: str) -> bool:
        """Whether a site makes this very class."""
        if site.way == "config":
            scope = site.kind.rpartition(".")[0]
            return _is_registered(module, name) and scope in {"", module.name.partition(".")[0]}
        chain = tuple(site.kind.split("."))
        if place is module and chain == (name,):
            return True
        if chain[0] in {"nn", FOUNDATION}:
            return site.name == name and module.name.startswith("torch.nn.modules.")
        target = follow(self._library, place, chain)
        return isinstance(target, Definition) and target.module is module and target.name == name

    # -- forward -------------------------------------------------------------------------------------------------

    def _runs(self, lineage: tuple[Inherited, ...], forward: tuple[Inherited, Signature] | None) -> list[Call]:
        calls: dict[Call, None] = {}
        for item in lineage[: _until(lineage, forward)]:
            for written in item.record.runs:
                call = from_example(written, forward[1] if forward is not None else None)
                if call is not None:
                    calls[call] = None
        return list(calls)[:_MOST_RUNS]


def _by_argument(shapes: Sequence[Shape], signature: Signature) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The surest shape of each argument, in their order; with names, where one of that rank has them."""
    result = []
    for name in [parameter.name for parameter in signature] or ["input"]:
        own = [shape for shape in shapes if shape.argument == name]
        if own:
            same = [shape for shape in own if shape.rank == own[0].rank]
            best_named = min(same, key=lambda shape: shape.dims.count("?"))
            result.append((name, best_named.dims))
    return tuple(result)


def _until(lineage: tuple[Inherited, ...], definer: tuple[Inherited, Signature] | None) -> int:
    """How many classes of a lineage there are up to the one that defines a method."""
    return lineage.index(definer[0]) + 1 if definer is not None else len(lineage)


def _is_registered(module: Module, name: str) -> bool:
    """Whether a class's decorator puts it into a registry."""
    decorators = [d for statement in module.binders(name) for d in statement.decorators if d.column == statement.column]
    return any(d.chain[-1:] in {("register_module",), ("register",)} for d in decorators)


def _keys(found: Found) -> tuple[str, ...]:
    """The names by which a class is made: its own, and those that it is registered under."""
    statement = found.module.facts.statements[found.facts.statement]
    registered = [k for d in statement.decorators if d.column == statement.column for k in d.keys]
    return tuple(dict.fromkeys((found.name, *registered)))
