"""Conversations of a folder as prompts with completions."""

from collections import Counter
from pathlib import Path

from lemur.export.records import ExportContents, PromptCompletion
from lemur_core.files import Json
from lemur_core.files.errors import UserError
from manifests.conversations.conversation import chat_rows
from manifests.folders.kinds import EXTRACTION
from manifests.records import SPLITS, Block, ChatMessage


def _list_conversations(folder: Path, kind: str) -> list[tuple[str, Json]]:
    """Return split and row of each conversation of a folder, with `code_sha256`, the code that it is about.

    Raises: UserError if it has none.
    """
    rows = list(chat_rows(folder))
    codes = {}
    if kind == EXTRACTION.name:
        codes = {row.block: row.code_sha256 for row in EXTRACTION.rows(folder, Block, ("block", "code_sha256"))}
    for _, row in rows:
        row["code_sha256"] = codes[row["block"]] if codes else row["record"]
    if not rows:
        again = {"snapshot": "curate", "extraction": "extract"}[kind]
        raise UserError(f"{folder}: has no conversations; create it again with `lemur {again} ... --chat`")
    return rows


def export_completions(folder: Path, kind: str) -> ExportContents:
    """Return every conversation of a snapshot or an extraction as a prompt and a completion."""
    tables: dict[str, list[PromptCompletion]] = {split: [] for split in SPLITS}
    for split, row in _list_conversations(folder, kind):
        *prompt, answer = map(ChatMessage.model_validate, row["messages"])
        facts: Json = {name: row.get(name) for name in ("id", "task", "license", "notice", "code_sha256")}
        tables[split].append(PromptCompletion(prompt=tuple(prompt), completion=(answer,), **facts))
    return ExportContents({"prompt_completion": tables}, Counter())
