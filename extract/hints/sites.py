"""The places of one file that make objects of a class, with what is known of the arguments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from extract.hints.values import LONGEST, Expr, render

_MOST_KNOWN = 24  # of one class in one file
_MOST_PARTLY = 10


class Site(NamedTuple):
    """One call; None stands for an argument that is not known."""

    kind: str  # dotted name in its file; the string of a registry's dict
    name: str  # the class's own name, also where the file imports it under another one
    args: tuple[str | None, ...]
    kwargs: tuple[tuple[str, str | None], ...]
    opened: bool  # there are further arguments, not known
    way: str  # "call"; "config": a dict with a type's name; "typed": a dict with a class as its type


@dataclass
class SiteList:
    """Collects them, distinct and not too many."""

    bound: dict[str, str] = field(default_factory=dict)  # class -> what the file calls it
    found: dict[Site, None] = field(default_factory=dict)
    _known: dict[tuple[str, str], int] = field(default_factory=dict)
    _partly: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(
        self, kind: str, args: Sequence[object], kwargs: Mapping[str, object], opened: bool, way: str = "call"
    ) -> None:
        """One call, unless nothing is known of it."""
        texts = tuple(_short(render(value)) for value in args)
        named = tuple((name, _short(render(value))) for name, value in kwargs.items())
        every = (*texts, *(text for _, text in named))
        complete = not opened and None not in every
        if not complete and all(text is None for text in every):
            return
        first, dot, rest = kind.partition(".")
        chain = kind if way == "config" else f"{self.bound.get(first, first)}{dot}{rest}"
        site = Site(chain, kind.rpartition(".")[2], texts, named, opened, way)
        if site in self.found:
            return
        counts, most = (self._known, _MOST_KNOWN) if complete else (self._partly, _MOST_PARTLY)
        number = counts.get((site.kind, way), 0)
        if number < most:
            counts[site.kind, way] = number + 1
            self.found[site] = None

    def add_config(self, kind: str | Expr, items: Mapping[str, object]) -> None:
        """A dict with a type."""
        if isinstance(kind, Expr):
            self.add(kind.text, (), items, False, "typed")
        else:
            self.add(kind, (), items, False, "config")


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= LONGEST else None
