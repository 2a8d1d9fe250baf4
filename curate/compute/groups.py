"""Keep several computations of each group of near texts, far apart: between one of them and all.

A group is a kept record, its leader, with the codes that were removed for it by text. Of their computations that differ
in more than widths the leader's is first, then always the one farthest from those chosen, as a top-up is chosen, but by
graphs: the distance is 1 minus the Jaccard similarity of Weisfeiler-Lehman labels. The chosen codes are then exempt
from the comparison by text, and everything is decided again: all other codes are near to a leader, as before.

Worked example: 1,649 near texts compute 900 different things. With `per_group=1` the best text is kept, with 4 also
three others whose graphs have least in common with it and with each other.
"""

from collections.abc import Mapping, Sequence

from curate.compute.graphs import GraphTrace, get_computations
from curate.model.select import Rescue, Select, farthest_first
from lemur_core.graphs.identity import similarity, subtrees

#: The stages at which a code is removed because of its text.
BY_TEXT = ("lexical", "structural")


def keep_groups(
    selection: Rescue, order: Sequence[int], per_group: int, select: Select, known: Mapping[int, GraphTrace]
) -> Rescue:
    """Keep up to `per_group` different computations of each group.

    Args:
        selection: the kept set without near-duplicates.
        order: codes, best first.
        select: as for `curate.model.select.rescue`.
        known: what codes compute. If members of groups are missing, these are in `untraced`, and nothing else changes.
    Returns: the kept set with `leaders`: the leader of each further record.
    """
    members: dict[int, list[int]] = {}
    for code in order:
        verdict = selection.verdicts[code]
        if verdict.stage in BY_TEXT and verdict.canonical is not None:
            members.setdefault(verdict.canonical, []).append(code)
    selection.untraced = [code for group in members.values() for code in group if code not in known]
    if selection.untraced:
        return selection
    computations = get_computations(known)
    taken = {computations[code] for code in selection.kept if code in computations}
    leader_of: dict[int, int] = {}
    for leader in (code for code in order if code in members):
        for code in _choose(leader, members[leader], per_group, known, computations, taken):
            leader_of[code] = leader
            taken.add(computations[code])
    first, rescued = selection.kept, selection.rescued
    while leader_of:
        further = [code for code in order if code in leader_of]
        head = {*first, *further}
        verdicts = select([*first, *further, *(code for code in order if code not in head)], leader_of)
        refused = [code for code in further if not verdicts[code].kept]
        if not refused:  # in a delta a record may tie published splits together
            rescued = {**rescued, **dict.fromkeys(leader_of, "group")}
            return Rescue(verdicts, rescued, selection.shortfalls, leaders=leader_of)
        leader_of = {code: leader for code, leader in leader_of.items() if code not in refused}
    return selection


def _choose(
    leader: int,
    members: Sequence[int],
    per_group: int,
    known: Mapping[int, GraphTrace],
    computations: Mapping[int, str],
    taken: set[str],
) -> list[int]:
    """Return the further members to keep, the best one of each computation up to widths, farthest first."""
    if known[leader].graph is None:
        return []
    candidates: dict[str, int] = {}
    for code in members:
        traced = known[code]
        if (
            traced.widths is not None
            and traced.agrees(known[leader]) == "different"
            and computations[code] not in taken
        ):
            candidates.setdefault(traced.widths, code)
    labels: dict[int, Mapping[str, int]] = {}

    def compare(one: int, other: int) -> float:
        for code in (one, other):
            if code not in labels:
                labels[code] = subtrees(known[code].read_graph())
        return similarity(labels[one], labels[other])

    chosen: list[int] = []
    for code in farthest_first([leader], list(candidates.values()), compare, per_group)[1:]:
        differs = all(known[code].agrees(known[other]) == "different" for other in chosen)
        if len(chosen) < per_group - 1 and differs:
            chosen.append(code)
    return chosen
