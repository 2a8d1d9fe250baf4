"""The finished folder: the same bytes again, the card, what `datasets` reads; and that damage is seen."""

import random
import re
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.kinds import verify
from curate.model.options import CurateOptions
from curate.run.pipeline import curate
from lemur_core.files.atomic import sha256_file
from lemur_core.sandbox import cached
from manifests.conversations import read_fenced_code
from manifests.folders.cards import restate_croissant
from manifests.folders.manifest import list_outputs, read_manifest, write_manifest
from manifests.records import CHAT_KINDS
from tests.builders.suites import table
from tests.curate.chat.conftest import NETWORKS, chat_rows, make_chat, read_chat
from tests.curate.conftest import MemorySource

Row = dict[str, Any]
Chat = dict[tuple[str, str], Row]
Damage = Callable[[list[Row]], object]


def failed(folder: Path) -> dict[str, str]:
    return {check.name: check.detail for check in verify(folder, jobs=1) if not check.ok}


def test_the_folder_is_sound(snapshot: Path) -> None:
    checks = {check.name: check for check in verify(snapshot, jobs=1)}
    assert [name for name, check in checks.items() if not check.ok] == []
    assert {"chat", "derived", "schema ChatRow"} <= set(checks)


@pytest.mark.slow
def test_shuffled_rows_give_the_same_bytes_and_run_nothing_again(
    snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached, "Sandbox", None)  # any experiment that is not known would start one
    again = make_chat(tmp_path / "again", random.Random(3).sample(chat_rows(), 3 * len(NETWORKS)))
    names = [path.relative_to(snapshot) for path in snapshot.glob("data/**/*.parquet")]
    names = [name for name in names if name.parts[1] != "stats"]  # these keep the order of the input
    for name in (*names, "chat_drops.parquet", "README.md"):
        assert sha256_file(snapshot / name) == sha256_file(again / name), name


@pytest.mark.slow
def test_another_seed_draws_other_splits_and_faults(chat: Chat, tmp_path: Path) -> None:
    folder = make_chat(tmp_path / "other", chat_rows(), seed=7)
    other = read_chat(folder)
    both = [key for key in chat.keys() & other.keys() if key[1] == "repair"]
    assert any(chat[key]["variant"] != other[key]["variant"] for key in both)
    assert {key: row["split"] for key, row in chat.items()} != {key: row["split"] for key, row in other.items()}
    assert other["plain", "design"]["id"] == chat["plain", "design"]["id"], "ids do not depend on the seed"
    assert failed(folder) == {}


def test_the_counts_of_manifest_and_card(snapshot: Path, chat: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    from curate.interface import summary_text

    manifest = read_manifest(snapshot)
    found = manifest.counts["chat"]
    kinds = Counter(kind for _, kind in chat)
    assert found["rows"] == len(chat)
    assert found["kinds"] == {kind: kinds[kind] for kind in CHAT_KINDS}
    assert found["drops"]["design"] == {"does_not_run": 2, "too_long": 1}
    assert found["dropped"] == sum(sum(reasons.values()) for reasons in found["drops"].values())
    assert found["rows"] + found["dropped"] == len(NETWORKS) * len(CHAT_KINDS)
    assert manifest.details["chat"]["license"] == "NOASSERTION"
    text = (snapshot / "README.md").read_text()
    assert "| `does_not_run` | 2 |" in text
    assert "- config_name: chat\n" in text
    assert f"| `NOASSERTION` | {len(chat)} |" in text
    lengths = sorted(row["n_tokens"] for (_, kind), row in chat.items() if kind == "repair")
    assert f"| {len(lengths)} | {lengths[(len(lengths) - 1) // 2]:,} | {lengths[-1]:,} |" in text
    print(summary_text(snapshot, manifest, as_json=False))
    line = rf"chat +{len(chat)}  conversations: {kinds['design']} design, .*; {2 * len(NETWORKS) - len(chat)} not made"
    assert re.search(line, capsys.readouterr().out)


def test_datasets_reads_and_streams_the_rows(snapshot: Path, tmp_path: Path) -> None:
    import datasets

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries below datasets
        loaded = datasets.load_dataset(str(snapshot), "chat", cache_dir=str(tmp_path))
        streamed = datasets.load_dataset(str(snapshot), "chat", streaming=True)
        assert len(loaded) > 1
        for name in loaded:
            (table,) = snapshot.glob(f"data/chat/{name}-*.parquet")
            assert list(loaded[name]) == list(streamed[name]) == pq.read_table(table).to_pylist()
        drops = datasets.load_dataset(str(snapshot), "chat_drops", cache_dir=str(tmp_path))["full"]
    assert drops.num_rows == read_manifest(snapshot).counts["chat"]["dropped"]


def test_the_documentation_knows_every_reason() -> None:
    from curate.folder import chat

    code = Path(chat.__file__).read_text()
    given = set(re.findall(r'\bSkipped\(\s*"(\w+)"', code))
    assert {"no_fault", "no_clear_failure"} <= given
    documented = (Path(chat.__file__).parents[2] / "docs" / "chat.md").read_text()
    assert all(f"`{reason}`" in documented for reason in {*given, "near_split"})


def test_without_the_option_there_is_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curate.run.pipeline.build_chat", None)
    curate(MemorySource(chat_rows()), tmp_path / "plain", CurateOptions(graph="off"), jobs=1)
    assert not (tmp_path / "plain" / "data" / "chat").exists()
    assert "chat" not in (tmp_path / "plain" / "README.md").read_text()
    assert "chat" not in read_manifest(tmp_path / "plain").counts


@pytest.fixture
def copy(snapshot: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(snapshot, tmp_path / "damaged"))


def rewrite(folder: Path, pattern: str, damage: Damage) -> None:
    """Change the rows of a table, and let the metadata and the manifest state the digests that are found."""
    path = min(folder.glob(pattern))
    table = pq.read_table(path)
    rows = table.to_pylist()
    damage(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    metadata = folder / "croissant.json"
    restate_croissant(metadata, metadata, list_outputs(folder))
    relist(folder)


def relist(folder: Path) -> None:
    write_manifest(folder, read_manifest(folder).model_copy(update={"outputs": list_outputs(folder)}))


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


def echo(rows: list[Row]) -> None:
    """The code of a question becomes that of its answer."""
    messages = next(row for row in rows if row["task"] == "repair")["messages"]
    (asked,), (answered,) = (read_fenced_code(message["content"]) for message in messages[1:])
    messages[2]["content"] = messages[2]["content"].replace(answered, asked)


TRAIN, DROPS = "data/chat/train-*.parquet", "chat_drops.parquet"
ROW, DROP = ("schema ChatRow", "snapshot"), ("schema ChatDrop", "snapshot")
DERIVED, BOTH = ("derived",), ("derived", "chat")
NOT_ITS_FILE = "the file in it is not that of its record"


@table(__file__, "snapshot.md", "Damage is seen", globals())
def test_damage_is_seen(copy: Path, table: str, damage: Damage, checks: tuple[str, ...], detail: str) -> None:
    rewrite(copy, table, damage)
    found = failed(copy)
    assert set(found) == set(checks)
    assert detail in "; ".join(found.values())


def test_a_conversation_in_another_split_is_seen(copy: Path) -> None:
    moved: list[Row] = []
    rewrite(copy, TRAIN, lambda rows: moved.append(rows.pop()))
    rewrite(copy, "data/chat/test-*.parquet", lambda rows: rows.extend(moved))
    found = failed(copy)
    assert set(found) == {"derived", "chat"}
    assert "in test, which is not the split of its record" in found["chat"]
