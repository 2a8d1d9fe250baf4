"""The card of a data set holds any name without being changed by it."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.files.markdown import make_visible, plain
from lemur_core.files.progress import note, progress
from manifests.folders.cards import SNAPSHOT_DISCLOSURE, Card, card_text
from manifests.folders.tables import Table
from manifests.records import LemurRecord

ODD = (
    'a: b "q" #1.jsonl',
    "x\nlicense: mit\ntags: [evil]\n.jsonl",
    "---\nlicense: mit",
    "yes",
    "*alias",
    "!!python/object:os.system x",
    "\x1b[31mred\x1b[0m",
    "{a: [b",
    "% @ ` | > - ?",
    "\u2028\x85\u202e",
    "a" * 5_000 + " b",
)
TABLES = [
    Table("records", LemurRecord, {"train": "data/records/train-*.parquet", "test": "data/records/test-*.parquet"})
]


def read_card(name: str, size: int = 5) -> dict[str, object]:
    about = {"size": size, "tags": ["code"], "source_datasets": ["original"], "tool": "0.1.0"}
    text = card_text(Card(name, "", [], "", SNAPSHOT_DISCLOSURE), TABLES, **about)  # type: ignore[arg-type]
    start, front, rest = text.split("---\n", 2)
    assert (start, rest.split("\n")[:2]) == ("", ["", f"# {plain(name)}"]), "nothing ends the block"
    value: dict[str, object] = yaml.safe_load(front)
    return value


def test_what_datasets_reads() -> None:
    sizes = {0: "n<1K", 999: "n<1K", 1000: "1K<n<10K", 99_999: "10K<n<100K", 10**6: "1M<n<10M"}
    for size, label in sizes.items():
        (*stated,) = read_card("Name", size).items()
        assert stated == [
            ("pretty_name", "Name"),
            ("language", ["en", "code"]),
            ("annotations_creators", ["machine-generated"]),
            ("source_datasets", ["original"]),
            ("task_categories", ["text-generation"]),
            ("tags", ["code"]),
            ("size_categories", [label]),
            ("configs", [{"config_name": "records", "default": True, "data_files": [
                {"split": split, "path": f"data/records/{split}-*.parquet"} for split in ("train", "test")]}]),
        ]  # fmt: skip


@given(st.one_of(st.sampled_from(ODD), st.text()))
def test_a_name_is_only_a_name(name: str) -> None:
    assert read_card(name) == {**read_card("plain"), "pretty_name": make_visible(name)}
    assert len(plain(name).splitlines()) <= 1


@pytest.mark.parametrize("name", ODD)
def test_names_do_not_reach_the_terminal_as_they_are(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEMUR_QUIET", raising=False)
    note(name)
    with progress(name, 3, "rows") as advance:
        advance(3)
    lines = capsys.readouterr().err.split("\n")
    assert (lines[0], len(lines)) == (make_visible(name), 3)
    assert lines[1].startswith(f"{make_visible(name)}: 3 rows in ")
