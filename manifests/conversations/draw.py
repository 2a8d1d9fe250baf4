"""Choices that look free and are none: each follows from the seed, the subject, the kind and what is chosen."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Draw:
    """Draws for one subject (the id of a record, a block) and kind."""

    seed: int
    subject: str
    kind: str

    def pick(self, items: Sequence[T], purpose: str) -> T:
        """One of the items."""
        return items[self.number(purpose) % len(items)]

    def sample(self, items: Sequence[T], count: int, purpose: str) -> list[T]:
        """So many of the items at most, in the order in which they stand."""
        numbers = [self.number(f"{purpose}:{place}") for place in range(len(items))]
        chosen = sorted(range(len(items)), key=numbers.__getitem__)[:count]
        return [items[place] for place in sorted(chosen)]

    def shuffled(self, items: Sequence[T], purpose: str) -> list[T]:
        """The items in a drawn order."""
        numbers = [self.number(f"{purpose}:{place}") for place in range(len(items))]
        return [items[place] for place in sorted(range(len(items)), key=numbers.__getitem__)]

    def number(self, purpose: str) -> int:
        """A number that looks drawn."""
        text = f"{self.seed}:{self.subject}:{self.kind}:{purpose}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
