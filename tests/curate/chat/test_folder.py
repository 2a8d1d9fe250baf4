"""The finished folder: splits, the same bytes again, the report and the card, and what `datasets` reads."""

import random
import re
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate.chat import lab
from curate.chat.card import REASONS
from curate.options import CurateOptions
from curate.sources.provenance import source_license
from curate.verify import verify
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError
from lemur_core.sandbox import cached
from manifests.manifest import read_manifest
from manifests.records import CHAT_KINDS

Row = dict[str, Any]


def digests(folder: Path) -> dict[str, str]:
    files = [*folder.glob("data/**/*.parquet"), folder / "chat_drops.parquet", folder / "README.md"]
    return {str(path.relative_to(folder)): sha256_file(path) for path in files}


def test_the_folder_is_sound(snapshot: Path) -> None:
    checks = {check.name: check for check in verify(snapshot, jobs=1)}
    assert [name for name, check in checks.items() if not check.ok] == []
    assert {"chat splits", "chat code", "chat ids", "chat explained", "chat counts", "schema ChatRow"} <= set(checks)


@pytest.mark.slow
def test_conversations_stay_in_the_split_of_their_record(
    snapshot: Path, other_seed: Path, read_chat: Callable[[Path], list[Row]]
) -> None:
    homes = []
    for folder in (snapshot, other_seed):
        home = {
            id_: path.name.partition("-")[0]
            for path in folder.glob("data/records/*.parquet")
            for id_ in pq.read_table(path).column("id").to_pylist()
        }
        made = read_chat(folder)
        assert len({row["split"] for row in made}) > 1
        assert all(row["split"] == home[row["record"]] for row in made)
        homes.append(home)
    assert homes[0] != homes[1], "another seed draws other splits, and conversations follow"


@pytest.mark.slow
def test_shuffled_rows_give_the_same_bytes_and_run_nothing_again(
    snapshot: Path, make_chat: Callable[..., Path], rows: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached, "Sandbox", None)  # any experiment that is not known would start one
    shuffled = list(rows)
    random.Random(3).shuffle(shuffled)
    again = make_chat(tmp_path / "again", shuffled)
    same, other = digests(snapshot), digests(again)
    stats = {name for name in same if name.startswith("data/stats")}  # these keep the order of the input
    assert {name: text for name, text in same.items() if name not in stats} == {
        name: text for name, text in other.items() if name not in stats
    }


@pytest.mark.slow
def test_another_seed_asks_otherwise(
    other_seed: Path, read_chat: Callable[[Path], list[Row]], chat: dict[tuple[str, str], Row]
) -> None:
    other = {(row["nn"].removeprefix("net-"), row["task"]): row for row in read_chat(other_seed)}
    same = [key for key in chat.keys() & other.keys() if chat[key]["messages"] == other[key]["messages"]]
    assert len(same) < len(chat) / 2
    assert other["plain", "design"]["id"] == chat["plain", "design"]["id"], "ids do not depend on the wording"


def test_the_counts_of_manifest_report_and_card(snapshot: Path, chat: dict[tuple[str, str], Row]) -> None:
    manifest = read_manifest(snapshot)
    found = manifest.counts["chat"]
    kinds = Counter(kind for _, kind in chat)
    assert found["rows"] == len(chat)
    assert found["kinds"] == {kind: kinds[kind] for kind in CHAT_KINDS}
    assert found["drops"]["design"] == {"does_not_run": 3, "too_long": 1}
    assert found["dropped"] == sum(sum(reasons.values()) for reasons in found["drops"].values())
    assert found["rows"] + found["dropped"] == 10 * len(CHAT_KINDS)
    assert manifest.details["chat"]["license"] == "NOASSERTION"
    assert manifest.details["chat"]["near_prompts"]["design"]["prompts"] == kinds["design"]
    report, card = (snapshot / "report.md").read_text(), (snapshot / "README.md").read_text()
    assert f"| `design` | {kinds['design']} |" in report
    assert "| `design` | `does_not_run` |" in report
    assert "- config_name: chat\n" in card
    assert f"| `NOASSERTION` | {len(chat)} |" in card
    lengths = sorted(row["n_tokens"] for (_, kind), row in chat.items() if kind == "explain")
    quantiles = (lengths[-(-share * len(lengths) // 100) - 1] for share in (10, 50, 90, 100))
    assert f"| {len(lengths)} | {' | '.join(f'{length:,}' for length in quantiles)} |" in card
    assert all(f"\n`{kind}`, `" in card for kind in CHAT_KINDS), "one example a kind"


def test_datasets_reads_and_streams_the_rows(
    snapshot: Path, read_chat: Callable[[Path], list[Row]], tmp_path: Path
) -> None:
    import datasets

    expected = read_chat(snapshot)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries below datasets
        loaded = datasets.load_dataset(str(snapshot), "chat", cache_dir=str(tmp_path))
        streamed = datasets.load_dataset(str(snapshot), "chat", streaming=True)
        assert set(loaded) == {row["split"] for row in expected}
        for name in loaded:
            rows = [
                {key: value for key, value in row.items() if key != "split"} for row in expected if row["split"] == name
            ]
            assert list(loaded[name]) == rows
            assert list(streamed[name]) == rows
        drops = datasets.load_dataset(str(snapshot), "chat_drops", cache_dir=str(tmp_path))["train"]
    assert drops.num_rows == read_manifest(snapshot).counts["chat"]["dropped"]


def test_code_that_is_no_python_is_told(make_chat: Callable[..., Path], tmp_path: Path) -> None:
    """Profile nn-dup keeps it."""
    row = {"nn": "net-broken", "nn_code": "class Net(:\n", "task": "img-classification", "dataset": "cifar-10"}
    folder = make_chat(tmp_path / "broken", [row], profile="nn-dup")
    drops = pq.read_table(folder / "chat_drops.parquet").to_pylist()
    assert [(drop["task"], drop["reason"]) for drop in drops] == [(kind, "not_python") for kind in CHAT_KINDS]
    assert drops[0]["detail"].startswith("not Python: line 1")
    assert [check.name for check in verify(folder, jobs=1) if not check.ok] == []


def test_the_report_knows_every_reason() -> None:
    folder = Path(lab.__file__).parent
    given = {name for path in folder.glob("*.py") for name in re.findall(r'\bSkipped\(\s*"(\w+)"', path.read_text())}
    assert {"no_part", "in_another_split", "change_not_seen"} <= given
    assert {*given, "near_split", "not_python"} <= set(REASONS)


def test_the_licence_is_what_the_source_states(real_rows: Any, memory_source: Any) -> None:
    assert source_license(real_rows) == "MIT"
    assert source_license(memory_source([])) == "NOASSERTION"


def test_the_command_says_what_was_made(
    snapshot: Path, chat: dict[tuple[str, str], Row], capsys: pytest.CaptureFixture[str]
) -> None:
    from curate.cli import _print_summary

    _print_summary(snapshot, read_manifest(snapshot), as_json=False)
    made = sum(kind == "design" for _, kind in chat)
    assert re.search(
        rf"chat +{len(chat)}  conversations: {made} design, .*; {50 - len(chat)} not made", capsys.readouterr().out
    )


def test_without_the_option_there_is_nothing_of_it(
    memory_source: Any, rows: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from curate.pipeline import curate

    monkeypatch.setattr("curate.chat.build.build_chat", None)
    curate(memory_source(rows), tmp_path / "plain", CurateOptions(), jobs=1)
    assert not (tmp_path / "plain" / "data" / "chat").exists()
    assert "chat" not in (tmp_path / "plain" / "README.md").read_text()
    assert "chat" not in read_manifest(tmp_path / "plain").counts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chat_max_tokens": 100}, "--chat-max-tokens: no conversations are made without --chat"),
        ({"chat": True, "chat_max_tokens": 0}, "--chat-max-tokens 0: must be at least 1"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        CurateOptions(**options)


def test_chat_alone_allows_to_do_without_walls() -> None:
    assert CurateOptions(chat=True, unsafe_no_sandbox=True).unsafe_no_sandbox
