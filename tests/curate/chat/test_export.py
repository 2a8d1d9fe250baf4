"""Conversations of a snapshot as prompts with completions, in the form that trainers read."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lemur.export.command import export_folder
from lemur_core.files.errors import UserError
from manifests.conversations import chat_rows
from tests.curate.chat import conftest

Row = dict[str, Any]


def read(folder: Path, name: str) -> dict[str, list[Row]]:
    paths = sorted((folder / "data" / name).glob("*.parquet"))
    return {path.name.partition("-")[0]: pq.read_table(path).to_pylist() for path in paths}


def test_completions_are_the_conversations(tmp_path: Path) -> None:
    licensed = conftest.make_chat(tmp_path / "snapshot", conftest.chat_rows(), license="MIT")
    report = export_folder(licensed, "prompt-completion", tmp_path / "out")
    tables, rows = read(tmp_path / "out", "prompt_completion"), list(chat_rows(licensed))
    exported = [(split, row) for split, part in tables.items() for row in part]
    assert report["rows"] == {"prompt_completion": len(rows)}
    assert {(split, row["id"], json.dumps([*row["prompt"], *row["completion"]])) for split, row in exported} == {
        (split, row["id"], json.dumps(row["messages"])) for split, row in rows
    }
    assert all([item["role"] for item in row["completion"]] == ["assistant"] for _, row in exported)


def test_code_without_a_license_stays(snapshot: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not known to permit redistribution; nothing was exported"):
        export_folder(snapshot, "prompt-completion", tmp_path / "out")
