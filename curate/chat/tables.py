"""Writes conversations and drops as tables of a snapshot."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from curate.chat.result import Chat, Conversation
from curate.options import SPLIT_RATIOS
from manifests.records import CHAT_ROLES, ChatDrop, ChatRow, arrow_schema
from manifests.tables import write_table, write_tables


def write_chat_tables(folder: Path, chat: Chat) -> dict[str, int]:
    """Write `data/chat` and `chat_drops.parquet`. Returns: rows by path below `folder`."""
    rows: dict[str, int] = {}
    for split in SPLIT_RATIOS:
        chosen = [item for item in chat.conversations if item.split == split]
        written = write_tables(folder / "data" / "chat", split, ChatRow, _rows(chosen, chat.license), len(chosen))
        rows |= {f"data/chat/{name}": count for name, count in written.items()}
    drops: Iterator[dict[str, object]] = (
        {"record": drop.record, "nn": drop.nn, "task": drop.kind, "reason": drop.reason, "detail": drop.detail}
        for drop in chat.drops
    )
    write_table(folder / "chat_drops.parquet", arrow_schema(ChatDrop), drops)
    return rows | {"chat_drops.parquet": len(chat.drops)}


def _rows(conversations: Sequence[Conversation], license_: str) -> Iterator[dict[str, object]]:
    for item in conversations:
        said = zip(CHAT_ROLES, (item.system, item.user, item.assistant), strict=True)
        yield {
            "messages": [{"role": role, "content": content} for role, content in said],
            "id": item.id,
            "task": item.kind,
            "variant": item.variant,
            "nn": item.nn,
            "record": item.record,
            "license": license_,
            "n_tokens": item.tokens,
        }
