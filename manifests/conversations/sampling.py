"""Choices that look random and are none: each follows from the seed, the subject, the kind and what is chosen."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sampler:
    """Chooses for one subject (the id of a record, a block) and kind."""

    seed: int
    subject: str
    kind: str

    def choice(self, items: Sequence[T], purpose: str) -> T:
        """One of the items."""
        return items[self.number(purpose) % len(items)]

    def sample(self, items: Sequence[T], count: int, purpose: str) -> list[T]:
        """At most `count` of the items, in the order in which they stand."""
        return [items[place] for place in sorted(self._order(items, purpose)[:count])]

    def shuffled(self, items: Sequence[T], purpose: str) -> list[T]:
        """The items in a random order."""
        return [items[place] for place in self._order(items, purpose)]

    def number(self, purpose: str) -> int:
        """A 64-bit number, uniform over purposes."""
        text = f"{self.seed}:{self.subject}:{self.kind}:{purpose}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

    def _order(self, items: Sequence[T], purpose: str) -> list[int]:
        numbers = [self.number(f"{purpose}:{place}") for place in range(len(items))]
        return sorted(range(len(items)), key=numbers.__getitem__)
