"""The selection in rounds in one process, as the tasks of a run compute it together."""

from collections.abc import Sequence

from lemur_core.similarity.selection import KeptSet, Verdict, find_kept, find_removed, find_verdicts


def select_in_rounds(order: Sequence[int], stand: KeptSet, rounds: list[int] | None = None) -> dict[int, Verdict]:
    """Decide every record, as `select` does.

    Args:
        order: code numbers, each once, best first.
        rounds: the number of codes that each round decided is appended to it.
    """
    kept: set[int] = set()
    still_open = list(order)
    while still_open:
        fresh = set(find_kept(still_open, set(still_open), stand))
        gone = set(find_removed(still_open, fresh, stand))
        kept |= fresh
        still_open = [code for code in still_open if code not in fresh and code not in gone]
        if rounds is not None:
            rounds.append(len(fresh) + len(gone))
    return find_verdicts(order, kept, stand)
