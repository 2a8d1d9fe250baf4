"""`lemur verify` sees each damage to conversations, also where all digests are made to fit."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.verify import verify
from manifests.conversations.conversation import fenced_codes
from manifests.croissant import restate_croissant
from manifests.manifest import list_outputs, read_manifest, write_manifest

Row = dict[str, Any]
Damage = Callable[[list[Row]], None]


def rewrite(folder: Path, path: Path, damage: Damage) -> None:
    """Change the rows of a table, and let the metadata and the manifest state the digests that are found."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    damage(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    metadata = folder / "croissant.json"
    restate_croissant(metadata, metadata, list_outputs(folder, {}))
    relist(folder)


def relist(folder: Path) -> None:
    """Let the manifest state the files that are found."""
    manifest = read_manifest(folder)
    known = {item.path: item.rows for item in manifest.outputs if item.rows is not None}
    (folder / "manifest.json").unlink()
    write_manifest(folder, manifest.model_copy(update={"outputs": list_outputs(folder, known)}))


def failed(folder: Path) -> dict[str, str]:
    return {check.name: check.detail for check in verify(folder, jobs=1) if not check.ok}


def say(role: int, old: str, new: str, task: str) -> Damage:
    """Replace a text in what one role says in the first conversation of a kind."""

    def damage(rows: list[Row]) -> None:
        message = next(row for row in rows if row["task"] == task)["messages"][role]
        assert old in message["content"]
        message["content"] = message["content"].replace(old, new, 1)

    return damage


def put(**values: Any) -> Damage:
    return lambda rows: rows[0].update(values)


def twice(rows: list[Row]) -> None:
    rows.append(rows[0])


def fewer(rows: list[Row]) -> None:
    rows.pop()


def swap(rows: list[Row]) -> None:
    rows[0]["messages"].reverse()


def echo(rows: list[Row]) -> None:
    """The code of a question becomes that of its answer."""
    messages = next(row for row in rows if row["task"] == "change")["messages"]
    (asked,), (answered,) = (fenced_codes(message["content"]) for message in messages[1:])
    messages[2]["content"] = messages[2]["content"].replace(answered, asked)


def alone(rows: list[Row]) -> None:
    rows[0]["messages"].pop()


@pytest.mark.parametrize(
    ("damage", "checks", "detail"),
    [
        (twice, {"chat ids", "chat explained", "chat counts"}, "occurs 2 times"),
        (fewer, {"chat explained", "chat counts"}, "0 conversations and 0 drops"),
        (
            put(record="0" * 64),
            {"chat splits", "chat code", "chat explained", "chat counts"},
            "its record is in no split",
        ),
        (put(id="0" * 64), {"chat code"}, "its id is not the digest of record, task and variant"),
        (put(n_tokens=5), {"chat code", "chat counts"}, "n_tokens is 5"),
        (put(task="poem"), {"schema ChatRow", "guarantees"}, "task"),
        (put(n_tokens=-1), {"schema ChatRow", "guarantees"}, "n_tokens"),
        (alone, {"schema ChatRow", "guarantees"}, "messages"),
        (echo, {"chat code"}, "the code of its answer is that of its question"),
        (swap, {"chat code"}, "roles are not system, user, assistant"),
        (say(2, "import torch", "import torch)", "design"), {"chat code", "chat counts"}, "does not parse"),
        (
            say(2, "import torch", "import torch as t", "design"),
            {"chat code"},
            "the file in it is not that of its record",
        ),
        (say(2, "```python\n", "```\n", "change"), {"chat code"}, "0 code blocks in the answer"),
        (say(2, "(", "( ", "complete"), {"chat code"}, "the file in it is not that of its record"),
        (say(1, "nn.", "nn .", "explain"), {"chat code"}, "the file in it is not that of its record"),
        (
            say(1, "# <missing part>\n", "# gone\n", "complete"),
            {"chat code"},
            "the file in it is not that of its record",
        ),
        (say(2, "import torch", "import torch, math", "repair"), {"chat code"}, "not that of its record"),
    ],
)
def test_damage_is_seen(snapshot: Path, tmp_path: Path, damage: Damage, checks: set[str], detail: str) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(snapshot, folder)
    rewrite(folder, next(iter(sorted(folder.glob("data/chat/train-*.parquet")))), damage)
    found = failed(folder)
    assert checks - {"chat counts"} <= set(found) <= checks | {"chat counts", "chat code"}
    assert detail in "; ".join(found.values())


def test_a_conversation_in_another_split_is_seen(snapshot: Path, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(snapshot, folder)
    moved: list[Row] = []
    rewrite(folder, next(iter(folder.glob("data/chat/train-*.parquet"))), lambda rows: moved.append(rows.pop()))
    rewrite(folder, next(iter(folder.glob("data/chat/test-*.parquet"))), lambda rows: rows.extend(moved))
    assert set(failed(folder)) == {"chat splits", "chat counts"}
    assert "in test, its record is in train" in failed(folder)["chat splits"]


@pytest.mark.parametrize(
    ("damage", "checks"),
    [
        (fewer, {"chat explained", "chat counts"}),
        (twice, {"chat explained", "chat counts"}),
        (put(record="0" * 64), {"chat explained"}),
        (put(reason="laziness"), {"chat counts"}),
        (put(reason=""), {"schema ChatDrop", "guarantees"}),
    ],
)
def test_damage_to_the_drops_is_seen(snapshot: Path, tmp_path: Path, damage: Damage, checks: set[str]) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(snapshot, folder)
    rewrite(folder, folder / "chat_drops.parquet", damage)
    assert set(failed(folder)) == checks


def test_metadata_of_other_tables_is_seen(snapshot: Path, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(snapshot, folder)
    metadata = folder / "croissant.json"
    table = next(item for item in list_outputs(folder, {}) if item.path == "decisions.parquet")
    restate_croissant(metadata, metadata, [table.model_copy(update={"sha256": "0" * 64})])
    relist(folder)
    assert failed(folder) == {"croissant.json": "decisions.parquet has another digest"}
    metadata.unlink()
    relist(folder)
    assert failed(folder) == {}, "a folder that was made without metadata needs none"
