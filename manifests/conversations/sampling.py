"""Deterministic sampling: each choice depends only on the seed, the subject, the kind and its purpose."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sampler:
    """Samples for one subject (the id of a record, a block) and kind."""

    seed: int
    subject: str
    kind: str

    def choice(self, items: Sequence[T], purpose: str) -> T:
        """Choose one of the items."""
        return items[self.number(purpose) % len(items)]

    def sample(self, items: Sequence[T], count: int, purpose: str) -> list[T]:
        """Choose at most `count` of the items, in their original order."""
        return [items[place] for place in sorted(self._order(items, purpose)[:count])]

    def shuffled(self, items: Sequence[T], purpose: str) -> list[T]:
        """Return the items in a random order."""
        return [items[place] for place in self._order(items, purpose)]

    def number(self, purpose: str) -> int:
        """Return a 64-bit number, uniformly distributed over purposes."""
        text = f"{self.seed}:{self.subject}:{self.kind}:{purpose}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

    def _order(self, items: Sequence[T], purpose: str) -> list[int]:
        numbers = [self.number(f"{purpose}:{place}") for place in range(len(items))]
        return sorted(range(len(items)), key=numbers.__getitem__)
