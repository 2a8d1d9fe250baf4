"""The section of a curation report about conversations: what was made, and what was not, and why."""

from collections import Counter

from curate.chat.result import Chat
from curate.options import SPLIT_RATIOS
from lemur_core.files.markdown import count, plain, plural, table
from manifests.records import CHAT_KINDS

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


def chat(made: Chat | None) -> list[str]:
    """Conversations by kind and split, and drops by kind and reason; nothing when none were asked for."""
    if made is None:
        return []
    counted = Counter((item.kind, item.split) for item in made.conversations)
    counts = made.counts()
    rows = []
    for kind in CHAT_KINDS:
        cells = [counted[kind, split] for split in SPLIT_RATIOS]
        dropped = sum(counts["drops"][kind].values())
        rows.append([f"`{kind}`", count(sum(cells)), *map(count, cells), count(dropped)])
    lines = [
        "## Conversations",
        "",
        f"{plural(counts['rows'], 'conversation')} about {plural(counts['records'], 'record')},"
        f" {count(counts['tokens'])} tokens. Each kept record gives one of each kind or a reason why not"
        " (`chat_drops.parquet`).",
        "",
        *table(["task", "made", *SPLIT_RATIOS, "not made"], rows),
    ]
    reasons = [
        [f"`{kind}`", f"`{reason}`", plain(REASONS[reason]), count(number)]
        for kind in CHAT_KINDS
        for reason, number in counts["drops"][kind].items()
    ]
    if reasons:
        lines += ["Not made:", "", *table(["task", "reason", "meaning", "records"], reasons, 3)]
    return lines
