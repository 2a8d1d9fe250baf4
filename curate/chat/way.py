"""One change of one ingredient of a file, with the test that measurements of the changed network must pass."""

from collections.abc import Callable
from dataclasses import dataclass

from curate.chat.facts import Facts
from curate.chat.lab import Method
from curate.chat.text import Edit

#: Whether the network before and the network after are as the request says.
Test = Callable[[Facts, Facts], bool]


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a file."""

    kind: str
    old: str
    new: str
    edits: tuple[Edit, ...]
    test: Test
    method: Method = "measure"
    notes: tuple[str, ...] = ()  # what comes with it, as sentences
