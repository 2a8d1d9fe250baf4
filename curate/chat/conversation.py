"""A conversation from its parts: its id, its length, its messages."""

import hashlib
from dataclasses import dataclass

from curate.chat.result import Conversation
from curate.chat.subject import Subject
from lemur_core.similarity.text import tokens_of
from manifests.records import ChatKind


@dataclass(frozen=True, slots=True)
class Talk:
    """What is said."""

    variant: str
    system: str
    user: str
    assistant: str


@dataclass(frozen=True, slots=True)
class No:
    """Why there is nothing to say: one short word, and what decided it."""

    reason: str
    detail: str


def no_file(subject: Subject) -> No | None:
    """Why no answer may be the whole file of a record, or the file with a change; None where one may be."""
    if subject.facts is None:
        return No("does_not_run", subject.fault)
    if subject.reading.residue is not None:
        return No("residue", f"its file holds the line: {subject.reading.residue}")
    return None


def count_tokens(text: str) -> int:
    """How long a text is, in tokens; see `tokens_of`."""
    return len(tokens_of(text))


def conversation_id(record: str, kind: str, variant: str) -> str:
    """SHA-256 of the three, joined by colons: the same whatever else the snapshot holds."""
    return hashlib.sha256(f"{record}:{kind}:{variant}".encode()).hexdigest()


def finish(subject: Subject, kind: ChatKind, talk: Talk) -> Conversation:
    """The conversation about a record."""
    return Conversation(
        id=conversation_id(subject.id, kind, talk.variant),
        kind=kind,
        variant=talk.variant,
        nn=subject.nn,
        record=subject.id,
        split=subject.split,
        system=talk.system,
        user=talk.user,
        assistant=talk.assistant,
        tokens=sum(count_tokens(text) for text in (talk.system, talk.user, talk.assistant)),
    )
