"""Choices that look free and are none: each follows from the seed, the record and what is chosen."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Draw:
    """Draws for one record and kind."""

    seed: int
    record: str
    kind: str

    def pick(self, items: Sequence[T], purpose: str) -> T:
        """One of the items."""
        return items[self._number(purpose) % len(items)]

    def shuffled(self, items: Sequence[T], purpose: str) -> list[T]:
        """The items in a drawn order."""
        numbers = [self._number(f"{purpose}:{place}") for place in range(len(items))]
        return [items[place] for place in sorted(range(len(items)), key=numbers.__getitem__)]

    def _number(self, purpose: str) -> int:
        text = f"{self.seed}:{self.record}:{self.kind}:{purpose}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
