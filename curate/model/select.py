"""Support for prefixes: choose records to decide first, so that enough of each prefix are kept.

Every removed record is near a kept one, so raising the support of a prefix means choosing another maximal independent
set, not adding to the present one. The records chosen here move to the front of the order, and all records are decided
again, so that all guarantees hold as before.

Source of the farthest-first order: Gonzalez 1985, "Clustering to minimize the maximum intercluster distance".
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from curate.model.features import FeatureTable
from lemur_core.similarity.index import Verdict
from lemur_core.similarity.minhash import jaccard

#: Decides codes in order.
Select = Callable[[Sequence[int]], dict[int, Verdict]]

_FARTHEST = 50  # members to order farthest first; the rest follow, best first


@dataclass(slots=True)
class Rescue:
    """The kept set after each minimum support was met as far as possible."""

    verdicts: dict[int, Verdict]
    rescued: dict[int, str] = field(default_factory=dict)  # code -> "prefix" or "topup"
    shortfalls: list[str] = field(default_factory=list)  # supports that could not be met, one line each

    @property
    def kept(self) -> list[int]:
        """The kept codes, in the order of the verdicts."""
        return [code_index for code_index, verdict in self.verdicts.items() if verdict.kept]


@dataclass(frozen=True, slots=True)
class Support:
    """Records of a prefix of which at least `minimum` should be kept."""

    label: str  # for the report, for example "prefix ast"
    members: tuple[int, ...]  # codes, best first
    minimum: int
    kind: str  # "prefix": best first; "topup": farthest first


def rescue(order: Sequence[int], supports: Sequence[Support], features: FeatureTable, select: Select) -> Rescue:
    """Select, then raise each support to its minimum as far as its members allow.

    Args: order: codes, best first. select: decides codes in order; used on the whole order and on trial subsets.
    """
    first = select(order)
    result = Rescue(first)
    heads: dict[str, list[int]] = {}
    while True:
        kept = set(result.kept)
        short = [item for item in supports if _count(item, kept) < item.minimum and item.label not in heads]
        # Each support is raised once: a second attempt could not keep more of its members.
        if not short:
            break
        for support in short:
            taken = [code_index for head in heads.values() for code_index in head]
            own = [code_index for code_index in support.members if code_index in kept]
            more = [code_index for code_index in support.members if code_index not in kept]
            candidates = [*own, *(_order_farthest_first(own, more, features) if support.kind == "topup" else more)]
            heads[support.label] = _take_independent(taken, candidates, support.minimum, select)
        seeds = list(dict.fromkeys(code_index for head in heads.values() for code_index in head))
        chosen = set(seeds)
        result.verdicts = select([*seeds, *(code_index for code_index in order if code_index not in chosen)])
    kept = set(result.kept)
    kinds = {item.label: item.kind for item in supports}
    for label, head in heads.items():
        for code_index in head:
            if code_index in kept and first[code_index].stage is not None:
                result.rescued.setdefault(code_index, kinds[label])
    for item in supports:
        count = _count(item, kept)
        if count < item.minimum:
            near = f"its {len(item.members):,} records are near-duplicates of each other or of other records"
            why = near if item.members else "it has no records"
            result.shortfalls.append(f"{item.label}: {count} kept, {item.minimum} required; {why}")
    return result


def _count(support: Support, kept: set[int]) -> int:
    return sum(code_index in kept for code_index in support.members)


def _order_farthest_first(own: Sequence[int], more: Sequence[int], features: FeatureTable) -> list[int]:
    """Order `more` by decreasing distance from `own` and from those before; equal distances stay in order."""

    def compare(one: int, other: int) -> float:
        """Return the larger of the lexical and the structural Jaccard similarity."""
        shingles = (features.shingles(int(features.shingle_set[code_index])) for code_index in (one, other))
        elements = (features.elements[int(features.fingerprint[code_index])] for code_index in (one, other))
        return max(jaccard(*shingles), jaccard(*elements))

    nearest = {code_index: max((compare(code_index, other) for other in own), default=0.0) for code_index in more}
    order: list[int] = []
    while nearest and len(order) < _FARTHEST:
        order.append(min(nearest, key=nearest.__getitem__))
        del nearest[order[-1]]
        for code_index in nearest:
            nearest[code_index] = max(nearest[code_index], compare(code_index, order[-1]))
    return [*order, *nearest]


def _take_independent(taken: Sequence[int], candidates: Iterable[int], wanted: int, select: Select) -> list[int]:
    """Choose members to put first, none near each other or near those of other groups."""
    others = set(taken)
    ordered = [code_index for code_index in dict.fromkeys(candidates) if code_index not in others]
    verdicts = select([*taken, *ordered])
    return [code_index for code_index in ordered if verdicts[code_index].stage is None][:wanted]
