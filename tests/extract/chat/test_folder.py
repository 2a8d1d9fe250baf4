"""An extraction folder is a data set: it opens, streams, verifies, and says of each block and kind what became of it."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from extract.chat.build import ChatOptions
from extract.verify import verify
from manifests.manifest import list_outputs, read_manifest, write_manifest
from manifests.publish.staged import staged
from manifests.records import Spec, SpecRow

SPLITS = ("train", "validation", "test")


def chat_rows(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    return [
        (p.name.split("-")[0], row) for p in sorted(folder.glob("data/chat/*")) for row in pq.read_table(p).to_pylist()
    ]


def spec_rows(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    return [
        (p.name.split("-")[0], row) for p in sorted(folder.glob("data/specs/*")) for row in pq.read_table(p).to_pylist()
    ]


@pytest.mark.parametrize("streaming", [False, True])
def test_every_config_opens(extraction: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streaming: bool) -> None:
    from datasets import load_dataset

    expected = {
        "blocks": pq.read_metadata(extraction / "blocks.parquet").num_rows,
        "specs": len((extraction / "specs.jsonl").read_text().splitlines()),
        "chat": len(chat_rows(extraction)),
        "chat_drops": pq.read_metadata(extraction / "chat_drops.parquet").num_rows,
    }
    for config, number in expected.items():
        loaded = load_dataset(str(extraction), config, cache_dir=str(tmp_path), streaming=streaming)
        rows = [row for split in loaded.values() for row in split]
        assert len(rows) == number, config
        if config == "chat":
            assert [message["role"] for message in rows[0]["messages"]] == ["system", "user", "assistant"]
        if config == "specs":
            ran = next(row for row in rows if row["name"] == "Squeeze")
            assert ran["init"] == [{"name": "channels", "value": "16"}]
            assert ran["cases"][0]["inputs"] == [{"name": "x", "value": "float32 2×16×16×16"}]


def test_the_table_of_specs_is_the_lines(extraction: Path) -> None:
    lines = [Spec.model_validate_json(line) for line in (extraction / "specs.jsonl").read_text().splitlines()]
    rows = {row["block"]: SpecRow.model_validate(row) for _, row in spec_rows(extraction)}
    assert len(rows) == len(lines)
    for spec in lines:
        row = rows[spec.block]
        assert (row.name, row.parameters, row.layout, row.license) == (
            spec.name,
            spec.parameters,
            spec.layout,
            spec.license,
        )
        assert {item.name: item.count for item in row.layers or ()} == (spec.layers or {})
        assert [[(i.name, i.value) for i in case.inputs] for case in row.cases] == [
            sorted(case.inputs.items()) for case in spec.cases
        ]
        assert (
            row.init is None
            if spec.arguments is None
            else {i.name: i.value for i in row.init or ()} == spec.arguments.init
        )


def test_each_block_and_kind_has_a_row_or_a_reason(extraction: Path) -> None:
    specs = [row["block"] for _, row in spec_rows(extraction)]
    drops = pq.read_table(extraction / "chat_drops.parquet").to_pylist()
    seen = Counter(
        [(row["block"], row["task"]) for _, row in chat_rows(extraction)] + [(d["block"], d["task"]) for d in drops]
    )
    kinds = ("describe", "specify", "choose", "shapes", "write")
    assert seen == Counter((block, kind) for block in specs for kind in kinds)
    reasons = {(drop["block"].rpartition(".")[2], drop["source"][:4], drop["task"]): drop["reason"] for drop in drops}
    assert reasons["Plain", "alph", "describe"] == "not_constructed"
    assert reasons["Plain", "alph", "shapes"] == "not_run"
    assert reasons["Squeeze", "beta", "describe"] == "same_spec"
    assert reasons["Squeeze", "beta", "write"] == "license"
    assert reasons["WidenToo", "alph", "write"] == "license", "a part of it is under the GPL"
    for drop in drops:
        if drop["reason"] == "same_spec":
            assert drop["detail"] == "as alpha@1.0::alpha.blocks.Squeeze"


def test_code_leaves_only_under_permissive_licences(extraction: Path) -> None:
    with_code = [row for _, row in chat_rows(extraction) if row["task"] == "write"]
    assert {row["source"] for row in with_code} == {"alpha@1.0"}
    assert {row["block"].rpartition(".")[2] for row in with_code} == {"Squeeze", "WidenA", "BlendA", "GatedA", "MixerA"}
    for row in with_code:
        assert row["license"] == "MIT"
        assert row["notice"].endswith("MIT; changed: imports resolved and definitions brought together")
        for part in (row["path"], f"lines {row['start_line']}-{row['end_line']}", row["swhid"]):
            assert part in row["notice"]
    others = [row for _, row in chat_rows(extraction) if row["task"] != "write"]
    assert {row["notice"] for row in others} == {None}
    assert {row["source"] for row in others} >= {"alpha@1.0", "beta@2.0", "gamma@3.0"}


def test_without_the_option_there_is_no_code(write: Callable[..., Path], tmp_path: Path) -> None:
    folder = write(tmp_path / "out", ChatOptions())
    assert {row["task"] for _, row in chat_rows(folder)} == {"describe", "specify", "choose", "shapes"}
    assert not [check for check in verify(folder) if not check.ok]
    assert "with code" not in (folder / "README.md").read_text()


def test_without_conversations(write: Callable[..., Path], tmp_path: Path) -> None:
    folder = write(tmp_path / "out")
    assert not (folder / "data" / "chat").exists()
    assert "config_name: chat" not in (folder / "README.md").read_text()
    assert not [check for check in verify(folder) if not check.ok]


def test_copies_and_all_that_is_said_of_a_block_stay_in_one_split(extraction: Path) -> None:
    rows = spec_rows(extraction)
    split_of = {row["block"]: split for split, row in rows}
    copies = [row for _, row in rows if row["name"] == "Squeeze"]
    assert len(copies) == 3
    assert len({row["cluster"] for row in copies}) == 1
    clusters: dict[str, set[str]] = {}
    for split, row in rows:
        clusters.setdefault(row["cluster"], set()).add(split)
    assert all(len(splits) == 1 for splits in clusters.values())
    assert set(split_of.values()) == set(SPLITS)
    for split, row in chat_rows(extraction):
        assert {split_of[block] for block in (row["block"], *row["others"])} == {split}


def test_the_same_in_every_run(extraction: Path, write: Callable[..., Path], tmp_path: Path) -> None:
    again = write(tmp_path / "again", ChatOptions(include_code=True))
    for path in ["README.md", "chat_drops.parquet", *(f.relative_to(again).as_posix() for f in again.glob("data/*/*"))]:
        assert (again / path).read_bytes() == (extraction / path).read_bytes(), path
    other = write(tmp_path / "other", ChatOptions(seed=7, include_code=True), seed=7)
    ids = [{(row["id"], row["messages"][1]["content"]) for _, row in chat_rows(folder)} for folder in (again, other)]
    assert ids[0] != ids[1], "another seed words and holds out otherwise"


def test_the_card(extraction: Path) -> None:
    card = (extraction / "README.md").read_text()
    counts = read_manifest(extraction).counts["chat"]
    assert f"{counts['rows']:,} conversations about {counts['blocks']:,} blocks" in card
    for kind, number in counts["kinds"].items():
        line = next(line for line in card.splitlines() if line.startswith(f"| `{kind}` |"))
        assert line.split("|")[3].strip() == str(number)
    assert re.findall(r"^`(\w+)`, `[0-9a-f]{12}`", card, re.MULTILINE) == [
        "describe",
        "specify",
        "choose",
        "shapes",
        "write",
    ]
    assert "| `GPL-3.0-only` | no | 5 |" in card


def test_publishing_takes_no_withheld_code_along(extraction: Path, tmp_path: Path) -> None:
    """Of beta and gamma nothing leaves but specs and what was made of them; what left verifies."""
    code = [
        row["code"]
        for row in pq.read_table(extraction / "blocks.parquet").to_pylist()
        if not row["source"].startswith("a")
    ]
    lines = {line for text in code for line in text.splitlines() if "_mark_" in line or "_part_" in line}
    # a copy that is under a permissive licence too may leave with that one
    lines -= {line for line in lines if "queeze" in line}
    assert len(lines) > 50
    with staged(extraction) as ready:
        for name, path in ready.files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, tmp_path / name)
    told = [message["content"] for _, row in chat_rows(tmp_path) for message in row["messages"]]
    told.append((tmp_path / "README.md").read_text())
    told += [code for code in pq.read_table(tmp_path / "blocks.parquet")["code"].to_pylist() if code]
    assert not [line for line in lines for text in told if line in text]
    assert not [(check.name, check.detail) for check in verify(tmp_path) if not check.ok]


# --- what verify finds ----------------------------------------------------------------------------------------------


def change(folder: Path, name: str, edit: Callable[[list[dict[str, Any]]], Any]) -> None:
    """Edit the rows of one table and make the digests right again."""
    table = pq.read_table(folder / name)
    rows = table.to_pylist()
    edit(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), folder / name)
    refresh(folder)


def refresh(folder: Path) -> None:
    manifest = read_manifest(folder)
    write_manifest(folder, manifest.model_copy(update={"outputs": list_outputs(folder, {})}))


def answer(kind: str, text: str) -> Callable[[list[dict[str, Any]]], Any]:
    def edit(rows: list[dict[str, Any]]) -> None:
        row = next(row for row in rows if row["task"] == kind)
        row["messages"][2]["content"] = text

    return edit


def first(**changes: Any) -> Callable[[list[dict[str, Any]]], Any]:
    return lambda rows: rows[0].update(changes)


TRAIN = "data/chat/train-00000-of-00001.parquet"
SPECS = "data/specs/train-00000-of-00001.parquet"
PASSAGE = "def __init__ ( self , channels , width = 16 )"


@pytest.mark.parametrize(
    ("name", "edit", "check", "told"),
    [
        (TRAIN, first(n_tokens=1), "chat facts", "n_tokens is 1"),
        (TRAIN, first(license="MIT-0"), "chat facts", "its license is not"),
        (TRAIN, first(notice="a"), "chat facts", "holds code or a notice"),
        (TRAIN, answer("shapes", "It has 123457 parameters."), "chat facts", "states 123457"),
        (TRAIN, answer("specify", '```json\n{"name": "Other"}\n```'), "chat facts", "the spec that it answers"),
        (TRAIN, answer("describe", PASSAGE), "chat code", "repeats a passage"),
        (TRAIN, answer("write", "```python\nimport os\n```"), "chat code", "is not its file"),
        (TRAIN, lambda rows: rows.pop(), "chat explained", "0 conversations and 0 drops"),
        ("chat_drops.parquet", first(reason="other"), "chat counts", "drops: "),
        (TRAIN, lambda rows: [row.update(others=["none"]) for row in rows], "chat facts", "has no spec"),
        (SPECS, first(parameters=5), "spec splits", "does not state what its line states"),
        (SPECS, first(cluster="0" * 16), "spec splits", "belongs to"),
        (SPECS, lambda rows: rows.pop(), "spec splits", "rows of"),
    ],
)
def test_what_is_wrong_is_found(extraction: Path, tmp_path: Path, name: str, edit: Any, check: str, told: str) -> None:
    folder = Path(shutil.copytree(extraction, tmp_path / "copy"))
    change(folder, name, edit)
    found = {item.name: item for item in verify(folder)}
    assert not found[check].ok
    assert told in found[check].detail


def test_code_that_may_not_leave_is_found(extraction: Path, tmp_path: Path) -> None:
    """Where the licence of a source turns out to be another one, its code is no answer any more."""
    folder = Path(shutil.copytree(extraction, tmp_path / "copy"))
    needs = json.loads((folder / "required_repos.json").read_text())
    needs["sources"]["alpha@1.0"]["license"] = "AGPL-3.0-only"
    (folder / "required_repos.json").write_text(json.dumps(needs))
    refresh(folder)
    found = {item.name: item for item in verify(folder)}
    assert "its answer is code under AGPL-3.0-only" in found["chat facts"].detail
