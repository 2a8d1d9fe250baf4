"""The same decision in rounds, in which all codes of a round are decided at once: for many machines.

A round keeps every open code that is near no better open one, and removes the open codes that are near one just kept;
so the kept set is that of the sequential choice, and few rounds are needed unless near-duplicates form long chains.
Only "near a better one or not" is asked: no list of all near pairs is made. A code that is not kept remembers the first
better one that was found, and looks again only when that one has fallen.

Each step decides some codes from what stood before it, so that the codes can be divided among processes; a process
needs the others' verdicts of the step before, and only of codes that may be near its own.

Source: Blelloch, Fineman, Shun 2012, "Greedy sequential maximal independent set and matching are parallel on average",
arXiv:1202.3205.
"""

from collections.abc import Collection, Sequence

from lemur_core.similarity.selection import Standing, Verdict


def keepers(order: Sequence[int], own: Collection[int], blockers: dict[int, int], stand: Standing) -> list[int]:
    """Those of `own` that are near no better open code: they are kept.

    Args:
        order: open codes, best first: all that may be near one of `own`, and those themselves.
        own: the codes to decide.
        blockers: for some of `own` a better code near it, perhaps no longer open; brought up to date.
        stand: cleared first.
    """
    stand.clear()
    still_open = set(order)
    found = []
    for code in order:
        if code in own and blockers.get(code) not in still_open:
            near = stand.near(code)
            if near is None:
                found.append(code)
            else:
                blockers[code] = near
        stand.add(code)
    return found


def fallen(order: Sequence[int], fresh: Collection[int], stand: Standing) -> list[int]:
    """The open codes that are near a better one which was just kept: they are removed.

    Args:
        order: best first, the codes just kept (all that may be near one of the others) and the open ones to decide.
        fresh: those just kept.
        stand: cleared first.
    """
    stand.clear()
    found = []
    for code in order:
        if code in fresh:
            stand.add(code)
        elif stand.near(code) is not None:
            found.append(code)
    return found


def witnesses(order: Sequence[int], kept: Collection[int], stand: Standing) -> dict[int, Verdict]:
    """The verdicts of all codes of `order`, once it is known which are kept.

    Args:
        order: best first, the kept codes (all that may be near one of the others) and any of the removed ones.
        stand: cleared first.
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


def select_in_rounds(order: Sequence[int], stand: Standing, rounds: list[int] | None = None) -> dict[int, Verdict]:
    """Decide every record, as `select` does.

    Args:
        order: code numbers, each once, best first.
        rounds: how many codes each round decided is appended to it.
    """
    kept: set[int] = set()
    blockers: dict[int, int] = {}
    still_open = list(order)
    while still_open:
        fresh = set(keepers(still_open, set(still_open), blockers, stand))
        gone = set(fallen(still_open, fresh, stand))
        kept |= fresh
        still_open = [code for code in still_open if code not in fresh and code not in gone]
        if rounds is not None:
            rounds.append(len(fresh) + len(gone))
    return witnesses(order, kept, stand)
