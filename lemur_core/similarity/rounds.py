"""The same selection in rounds, each of which decides all its codes at once: for many machines.

A round keeps every open code that is not near a better open one, and removes the open codes near a code just kept; so
the kept set equals that of the sequential selection, and few rounds are needed unless near-duplicates form long chains.
The only query is "is this near a better one": no list of all near pairs is built. A code that is not kept stores the
first better code near it as its blocker, and searches again only when the blocker was removed.

Each step decides some codes from the state before it, so that the codes can be divided among processes; a process needs
the others' verdicts of the previous step, and only of codes that may be near its own.

Source: Blelloch, Fineman, Shun 2012, "Greedy sequential maximal independent set and matching are parallel on average",
arXiv:1202.3205.
"""

from collections.abc import Collection, Sequence

from lemur_core.similarity.selection import KeptSet, Verdict


def find_kept(order: Sequence[int], own: Collection[int], blockers: dict[int, int], stand: KeptSet) -> list[int]:
    """Return those of `own` that are not near a better open code: they are kept.

    Args:
        order: open codes, best first: those of `own`, and all that may be near one of them.
        own: the codes to decide.
        blockers: for some of `own`, a better code near it, possibly no longer open; updated in place.
        stand: is cleared first.
    Returns: the kept codes, best first; the others of `own` now have a blocker.
    """
    stand.clear()
    still_open = set(order)
    kept = []
    for code in order:
        # While its blocker is open the code stays open as well, without a search.
        if code in own and blockers.get(code) not in still_open:
            near = stand.near(code)
            if near is None:
                kept.append(code)
            else:
                blockers[code] = near
        stand.add(code)
    return kept


def find_removed(order: Sequence[int], fresh: Collection[int], stand: KeptSet) -> list[int]:
    """Return the open codes that are near a better one just kept: they are removed.

    Args:
        order: best first: the codes just kept (all that may be near one of the others), and the open ones to decide.
        fresh: the codes just kept.
        stand: is cleared first.
    Returns: the removed codes, best first.
    """
    stand.clear()
    removed = []
    for code in order:
        if code in fresh:
            stand.add(code)
        elif stand.near(code) is not None:
            removed.append(code)
    return removed


def find_verdicts(order: Sequence[int], kept: Collection[int], stand: KeptSet) -> dict[int, Verdict]:
    """Return the verdicts of all codes of `order`, once the kept ones are known.

    Args:
        order: best first: the kept codes (all that may be near one of the others), and any of the removed ones.
        stand: is cleared first.
    Returns: the verdicts by code; of a kept code, itself as its canonical one, with similarity 1.
    """
    stand.clear()
    verdicts: dict[int, Verdict] = {}
    for code in order:
        if code in kept:
            verdict = Verdict(None, code, 1.0)
            stand.add(code)
        else:
            removed = stand.witness(code)
            assert removed is not None
            verdict = removed
        verdicts[code] = verdict
    return verdicts


def select_in_rounds(order: Sequence[int], stand: KeptSet, rounds: list[int] | None = None) -> dict[int, Verdict]:
    """Decide every record, as `select` does.

    Args:
        order: code numbers, each once, best first.
        rounds: the number of codes that each round decided is appended to it.
    """
    kept: set[int] = set()
    blockers: dict[int, int] = {}
    still_open = list(order)
    while still_open:
        fresh = set(find_kept(still_open, set(still_open), blockers, stand))
        gone = set(find_removed(still_open, fresh, stand))
        kept |= fresh
        still_open = [code for code in still_open if code not in fresh and code not in gone]
        if rounds is not None:
            rounds.append(len(fresh) + len(gone))
    return find_verdicts(order, kept, stand)
