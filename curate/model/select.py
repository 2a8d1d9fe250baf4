"""Support for prefixes: choose records to decide first, so that enough of each prefix are kept.

Every removed record is near a kept one, so raising the support of a prefix means choosing another maximal independent
set, not adding to the present one. The records chosen here move to the front of the order, and all records are decided
again, so that all guarantees hold as before.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from lemur_core.similarity.index import Verdict

#: Decides codes in order.
Select = Callable[[Sequence[int]], dict[int, Verdict]]


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
    kind: str  # "prefix" or "topup"


def rescue(order: Sequence[int], supports: Sequence[Support], select: Select) -> Rescue:
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
            candidates = sorted(support.members, key=lambda code_index: code_index not in kept)  # kept ones, then best
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


def _take_independent(taken: Sequence[int], candidates: Iterable[int], wanted: int, select: Select) -> list[int]:
    """Choose members to put first, none near each other or near those of other groups."""
    others = set(taken)
    ordered = [code_index for code_index in dict.fromkeys(candidates) if code_index not in others]
    verdicts = select([*taken, *ordered])
    return [code_index for code_index in ordered if verdicts[code_index].stage is None][:wanted]
