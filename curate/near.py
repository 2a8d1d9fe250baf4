"""What every near-duplicate stage looks like to the place that decides: an index of kept items, asked for the nearest.

A stage compares items (shingle sets, fingerprints, one day traced graphs) by number. It only finds verified pairs;
`curate.select` alone decides what is kept.
"""

from typing import NamedTuple, Protocol


class Near(NamedTuple):
    """The nearest kept item: its place in the order in which items were kept, and the exact similarity, 0 to 1."""

    place: int
    similarity: float


class NearIndex(Protocol):
    """An index of kept items of one kind."""

    stage: str
    threshold: float

    def nearest(self, item: int) -> Near | None:
        """The kept item most similar to this one, if any is at or above the threshold; the first kept of equals."""
        ...

    def clear(self) -> None:
        """Forget what was kept."""
        ...

    def keep(self, item: int, place: int) -> None:
        """Add an item under its place; places grow."""
        ...


class NearestMemory:
    """The nearest found so far for each item, so that asking again only looks at what was kept since."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, Near | None]] = {}

    def recall(self, item: int) -> tuple[int, Near | None]:
        """(places below this one were looked at, the best among them)."""
        return self._seen.get(item, (0, None))

    def remember(self, item: int, looked: int, best: Near | None) -> Near | None:
        """Store and return what was found after looking at all places below `looked`."""
        self._seen[item] = (looked, best)
        return best


def nearer(best: Near | None, place: int, similarity: float) -> Near:
    """The better of two: higher similarity, then the earlier place."""
    if best is None or similarity > best.similarity or (similarity == best.similarity and place < best.place):
        return Near(place, similarity)
    return best
