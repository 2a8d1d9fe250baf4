"""Classes that are visited in the sandbox: what they compute, and what every known call of them executes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from extract.arguments.messages import BlockRun, BlockUses, make_uses
from extract.proofs.visit import BlockGraphs, Uses, Visit, visit_all
from extract.resolve.index import FactsIndex


def uses(name: str, code: str, arguments: Any, observed: Any = None, hints: Any = None) -> BlockUses:
    return make_uses(BlockRun(code, name, (), [], arguments, ()), observed or {}, hints or {})


def visit(folder: Path, requests: Mapping[str, BlockUses]) -> dict[str, Visit]:
    with FactsIndex(folder / "facts.sqlite") as index:
        return dict(visit_all(requests, index, jobs=1))


def graphs_of(found: Visit) -> dict[str, Any]:
    """The traced graphs, as the spec of a block is made from them."""
    assert isinstance(found.graphs, BlockGraphs), found.graphs
    return found.graphs.to_json()


def uses_of(found: Visit) -> Uses:
    assert isinstance(found.uses, Uses), found.uses
    return found.uses


def trace(folder: Path, codes: Mapping[str, tuple[str, str, Any]]) -> dict[str, dict[str, Any]]:
    """The traced graphs of classes, by a name of one's own. Args: codes: the name of the class, code and arguments."""
    found = visit(folder, {key: uses(*about) for key, about in codes.items()})
    return {key: graphs_of(one) for key, one in found.items()}
