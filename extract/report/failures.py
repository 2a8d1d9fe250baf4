"""Failures by category, each with the message that says it best: the one that is met most often."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from manifests.provenance import without_source
from manifests.records import Block

_PLACE = re.compile(r"^\S+ \S+:\d+: ")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Failure:
    """One category: its blocks, and the commonest message with the first block that has it."""

    kind: str
    blocks: int
    message: str
    times: int  # that a message of this form is met
    block: str


def failures_of(rows: Iterable[Block]) -> list[Failure]:
    """The categories of failure, most blocks first."""
    kinds: dict[str, list[Block]] = {}
    for row in rows:
        if row.error_kind is not None:
            kinds.setdefault(row.error_kind, []).append(row)
    found = [_failure(kind, members) for kind, members in kinds.items()]
    return sorted(found, key=lambda failure: (-failure.blocks, failure.kind))


def form_of(message: str) -> str:
    """A message without what differs from block to block: place, quoted names and numbers."""
    return _NUMBER.sub("N", _QUOTED.sub("'…'", _PLACE.sub("", message)))


def _failure(kind: str, members: list[Block]) -> Failure:
    """The commonest form speaks; in the words of its commonest message, if that is at least half of it."""
    said = {
        row.block: without_source(row.error or "") for row in members
    }  # a report is passed on, whatever the licence
    forms = Counter(map(form_of, said.values()))
    form, times = min(forms.items(), key=lambda item: (-item[1], item[0]))
    alike = [block for block, error in said.items() if form_of(error) == form]
    messages = Counter(_PLACE.sub("", said[block]) for block in alike)
    message, most = min(messages.items(), key=lambda item: (-item[1], item[0]))
    if 2 * most < times:
        return Failure(kind, len(members), form, times, alike[0])
    first = next(block for block in alike if _PLACE.sub("", said[block]) == message)
    return Failure(kind, len(members), message, most, first)
