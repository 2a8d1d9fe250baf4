"""Writes conversations and drops as tables of an extraction folder."""

from collections.abc import Iterator
from pathlib import Path

from extract.chat.result import Chat, Pair
from manifests.records import CHAT_ROLES, SPLITS, SpecChatDrop, SpecChatRow, arrow_schema
from manifests.tables import write_table, write_tables

#: Where they lie below the folder.
TABLES, DROPS = "data/chat", "chat_drops.parquet"


def write_chat_tables(folder: Path, chat: Chat) -> dict[str, int]:
    """Write `data/chat` and `chat_drops.parquet`. Returns: rows by path below `folder`."""
    rows: dict[str, int] = {}
    for split in SPLITS:
        chosen = [pair for pair in chat.pairs if pair.subject.place.split == split]
        written = write_tables(folder / TABLES, split, SpecChatRow, map(_row, chosen), len(chosen))
        rows |= {f"{TABLES}/{name}": count for name, count in written.items()}
    drops: Iterator[dict[str, object]] = (
        {
            "block": drop.spec.block,
            "source": drop.spec.source,
            "task": drop.kind,
            "reason": drop.reason,
            "detail": drop.detail,
        }
        for drop in chat.drops
    )
    write_table(folder / DROPS, arrow_schema(SpecChatDrop), drops)
    return rows | {DROPS: len(chat.drops)}


def _row(pair: Pair) -> dict[str, object]:
    spec = pair.subject.spec
    said = zip(CHAT_ROLES, (pair.system, pair.talk.user, pair.talk.assistant), strict=True)
    return {
        "messages": [{"role": role, "content": content} for role, content in said],
        "id": pair.id,
        "task": pair.kind,
        "block": spec.block,
        "others": [other.spec.block for other in pair.talk.others],
        "source": spec.source,
        "path": spec.path,
        "start_line": spec.start_line,
        "end_line": spec.end_line,
        "swhid": spec.swhid,
        "license": spec.license,
        "notice": pair.talk.notice,
        "n_tokens": pair.tokens,
    }
