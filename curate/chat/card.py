"""Conversations on the card of a snapshot and in the report of its curation: what was made, what was not, and why."""

from collections import Counter

from lemur_core.files.markdown import count, plain, plural, table
from manifests.conversations.card import chat_card
from manifests.conversations.conversation import Chat
from manifests.records import SPLITS

#: What each reason of a drop means.
REASONS = {
    "not_python": "the code does not parse",
    "does_not_run": "the network does not run here, or what LEMUR hands it cannot be told",
    "residue": "the file holds a line that is no part of the network",
    "too_long": "longer than the limit of tokens",
    "near_split": "the request is nearly that of a conversation in an earlier split",
    "no_part": "no part can be cut out and put back exactly, and be told from the rest or from measurements",
    "in_another_split": "the answer is asked for in an earlier split",
    "no_fault": "no place for a fault",
    "no_clear_failure": "none of the faults that were tried fails with an error of the network",
    "no_ingredient": "no ingredient that can be changed everywhere",
    "change_fails": "the changed network fails",
    "change_not_seen": "the measurements of the changed network are not those of the change",
}

_MEANINGS = {
    "design": "requirements to a file that has these measures",
    "complete": "a file with a gap to the missing part",
    "repair": "a file that fails, with its error, to the file that runs",
    "explain": "a file to what was measured on it",
    "change": "a file and one change to the changed file, which was run",
}
_PROMISE = (
    "Numbers in them were measured by running the network in a sandbox; every fault was seen to fail, every changed"
    " file to run."
)


def snapshot_chat_card(chat: Chat) -> list[str]:
    """The part of the card of a snapshot that describes its conversations."""
    return chat_card(chat, ("record", "records"), _MEANINGS, _PROMISE, "rows whose requests")


def chat_section(chat: Chat | None) -> list[str]:
    """Conversations by kind and split, and drops by kind and reason; nothing when none were asked for."""
    if chat is None:
        return []
    counts = chat.counts("records")
    made = Counter((item.kind, item.subject.split) for item in chat.conversations)
    rows = []
    for kind in chat.kinds:
        cells = [counts["kinds"][kind], *(made[kind, split] for split in SPLITS), sum(counts["drops"][kind].values())]
        rows.append([f"`{kind}`", *map(count, cells)])
    lines = [
        "## Conversations",
        "",
        f"{plural(counts['rows'], 'conversation')} about {plural(counts['records'], 'record')},"
        f" {count(counts['tokens'])} tokens. Each kept record gives one of each kind or a reason why not"
        " (`chat_drops.parquet`).",
        "",
        *table(["task", "made", *SPLITS, "not made"], rows),
    ]
    reasons = [
        [f"`{kind}`", f"`{reason}`", plain(REASONS[reason]), count(number)]
        for kind in chat.kinds
        for reason, number in counts["drops"][kind].items()
    ]
    if reasons:
        lines += ["Not made:", "", *table(["task", "reason", "meaning", "records"], reasons, 3)]
    return lines
