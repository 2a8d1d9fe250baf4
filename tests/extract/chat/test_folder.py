"""An extraction folder is a data set: it opens, streams, verifies, and says of each block and kind what became of it."""

import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from extract.folder.page import summary_text
from extract.folder.verify import verify
from lemur.export.command import export_folder
from lemur_core.files.errors import UserError
from manifests.folders.manifest import list_outputs, read_manifest, write_manifest
from manifests.publishing.staged import stage_files
from manifests.records import Spec, SpecRow
from tests.builders.suites import table

Row = dict[str, Any]
Edit = Callable[[list[Row]], object]
Write = Callable[..., Path]
KINDS = ["describe", "write"]


def rows_of(folder: Path, table: str) -> Iterator[tuple[str, Row]]:
    """The rows of `chat` or `specs`, each with its split."""
    for path in sorted(folder.glob(f"data/{table}/*")):
        for row in pq.read_table(path).to_pylist():
            yield path.name.split("-")[0], row


def failed(folder: Path) -> dict[str, str]:
    return {check.name: check.detail for check in verify(folder) if not check.ok}


@pytest.mark.parametrize("streaming", [False, True])
def test_every_config_opens(extraction: Path, tmp_path: Path, streaming: bool) -> None:
    from datasets import load_dataset

    expected = {
        "blocks": pq.read_metadata(extraction / "blocks.parquet").num_rows,
        "specs": len((extraction / "specs.jsonl").read_text().splitlines()),
        "chat": len(list(rows_of(extraction, "chat"))),
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
    rows = {row["block"]: SpecRow.model_validate(row) for _, row in rows_of(extraction, "specs")}
    assert len(rows) == len(lines)
    for spec in lines:
        row = rows[spec.block]
        assert all(getattr(row, name) == getattr(spec, name) for name in ("name", "parameters", "layout", "license"))
        assert {item.name: item.count for item in row.layers or ()} == (spec.layers or {})
        inputs = [[(item.name, item.value) for item in case.inputs] for case in row.cases]
        assert inputs == [sorted(case.inputs.items()) for case in spec.cases]
        init = {item.name: item.value for item in row.init or ()}
        assert row.init is None if spec.arguments is None else init == spec.arguments.init


def test_each_block_and_kind_has_a_row_or_a_reason(extraction: Path) -> None:
    specs = [row["block"] for _, row in rows_of(extraction, "specs")]
    drops = pq.read_table(extraction / "chat_drops.parquet").to_pylist()
    seen = Counter((row["block"], row["task"]) for row in (*drops, *(row for _, row in rows_of(extraction, "chat"))))
    assert seen == Counter((block, kind) for block in specs for kind in KINDS)
    reasons = {(drop["block"].rpartition(".")[2], drop["source"][:4], drop["task"]): drop["reason"] for drop in drops}
    assert reasons["Plain", "alph", "describe"] == "not_run"
    for kind in KINDS:
        assert reasons["Squeeze", "beta", kind] == "license"
        assert reasons["WidenToo", "alph", kind] == "license", "a part of it is under the GPL"


def test_code_leaves_only_under_permissive_licences(extraction: Path) -> None:
    rows = [row for _, row in rows_of(extraction, "chat")]
    assert {row["source"] for row in rows} == {"alpha@1.0"}
    assert {row["block"].rpartition(".")[2] for row in rows} == {"Squeeze", "WidenA", "BlendA", "GatedA", "MixerA"}
    for row in rows:
        lean, code = row["block"].endswith("GatedA"), row["messages"][2 if row["task"] == "write" else 1]["content"]
        assert ("# Lean." in code) == lean, "the lean form where there is one without stubs"
        assert row["license"] == "MIT"
        own = "; Copyright 2021 Jane Doe" * row["block"].endswith("WidenA")
        assert row["notice"].endswith(f"MIT{own}; changed: imports resolved and definitions brought together")
        for part in (row["path"], f"lines {row['start_line']}-{row['end_line']}", row["swhid"]):
            assert part in row["notice"]


def test_an_answer_is_the_facts_of_the_code(extraction: Path) -> None:
    """Both kinds hold the same two texts; the facts are those of the spec, the operations those of its graph."""
    specs = {s.block: s for s in map(Spec.model_validate_json, (extraction / "specs.jsonl").read_text().splitlines())}
    asked: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for _, row in rows_of(extraction, "chat"):
        asked[row["block"]][row["task"]] = [message["content"] for message in row["messages"]]
    assert len(asked) == 5
    for block, kinds in asked.items():
        spec, facts = specs[block], json.loads(kinds["describe"][2].removeprefix("```json\n").removesuffix("```"))
        assert spec.algorithm is not None
        assert facts["operations"] == list(spec.algorithm.operations)
        assert (facts["name"], facts["parameters"], facts["layers"]) == (spec.name, spec.parameters, spec.layers)
        assert "category" not in facts
        assert kinds["write"][1].endswith(kinds["describe"][2])
        assert kinds["describe"][1].endswith(kinds["write"][2])
        assert f"Construct `{spec.name}` with channels = {spec.arguments.init['channels']}" in kinds["describe"][1]  # type: ignore[union-attr]


def test_without_the_option(write: Write, tmp_path: Path) -> None:
    folder = write(tmp_path / "out")
    assert not (folder / "data" / "chat").exists()
    assert "config_name: chat" not in (folder / "README.md").read_text().partition("## Columns")[0]
    assert failed(folder) == {}


def test_copies_and_all_that_is_said_of_a_block_stay_in_one_split(extraction: Path) -> None:
    rows = list(rows_of(extraction, "specs"))
    split_of = {row["block"]: split for split, row in rows}
    copies = [row["cluster"] for _, row in rows if row["name"] == "Squeeze"]
    assert len(copies) == 3
    assert len(set(copies)) == 1
    clusters: dict[str, set[str]] = defaultdict(set)
    for split, row in rows:
        clusters[row["cluster"]].add(split)
    assert all(len(splits) == 1 for splits in clusters.values())
    assert set(split_of.values()) == {"train", "validation", "test"}
    for split, row in rows_of(extraction, "chat"):
        assert split_of[row["block"]] == split


def test_the_card(extraction: Path, tmp_path: Path) -> None:
    card = (extraction / "README.md").read_text()
    counts = read_manifest(extraction).counts["chat"]
    assert f"{counts['rows']:,} conversations about {counts['blocks']:,} blocks" in card
    for kind, number in counts["kinds"].items():
        assert re.search(rf"^\| `{kind}` \|[^|]+\| +{number} +\|", card, re.MULTILINE)
    assert "\n| `MIT` | 10 |\n" in card
    assert "| `license` | 11 | 11 |" in card
    told = summary_text(read_manifest(extraction), extraction)
    assert " 10  conversations: 5 describe, 5 write; not made: license (22)" in told
    none = shutil.copytree(extraction, tmp_path / "none", ignore=lambda *_: {"chat"})
    with pytest.raises(UserError, match=r"has no conversations, none could be made: license \(22\)"):
        export_folder(none, "prompt-completion", tmp_path / "out")


def test_publishing_takes_no_withheld_code_along(extraction: Path, tmp_path: Path) -> None:
    """Of beta and gamma nothing leaves but specs and what was made of them; what left verifies."""
    blocks = pq.read_table(extraction / "blocks.parquet").to_pylist()
    code = "\n".join(row["code"] for row in blocks if not row["source"].startswith("a"))
    # a copy that is under a permissive license too may leave with that one
    lines = {line for line in code.splitlines() if re.search("_mark_|_part_", line) and "queeze" not in line}
    assert len(lines) > 50
    with stage_files(extraction) as ready:
        for name, path in ready.files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, tmp_path / name)
    texts = [message["content"] for _, row in rows_of(tmp_path, "chat") for message in row["messages"]]
    texts.append((tmp_path / "README.md").read_text())
    texts += [code for code in pq.read_table(tmp_path / "blocks.parquet")["code"].to_pylist() if code]
    assert not [line for line in lines for text in texts if line in text]
    assert failed(tmp_path) == {}


def answer(kind: str, text: str) -> Edit:
    def edit(rows: list[Row]) -> None:
        next(row for row in rows if row["task"] == kind)["messages"][2]["content"] = text

    return edit


def first(**changes: Any) -> Edit:
    return lambda rows: rows[0].update(changes)


CHAT = "data/chat/train-00000-of-00001.parquet"
SPECS = "data/specs/train-00000-of-00001.parquet"


@table(__file__, "folder.md", "What is wrong is found", globals())
def test_what_is_wrong_is_found(
    extraction: Path, tmp_path: Path, name: str, edit: Edit | None, check: str, detail: str
) -> None:
    folder = Path(shutil.copytree(extraction, tmp_path / "copy"))
    if edit is None:  # the license of a source turns out to be another one: its code is no answer any more
        needs = json.loads((folder / name).read_text())
        needs["sources"]["alpha@1.0"]["license"] = "AGPL-3.0-only"
        (folder / name).write_text(json.dumps(needs))
    else:
        table = pq.read_table(folder / name)
        rows = table.to_pylist()
        edit(rows)
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), folder / name)
    manifest = read_manifest(folder)  # its digests are made right again
    write_manifest(folder, manifest.model_copy(update={"outputs": list_outputs(folder)}))
    assert detail in failed(folder)[check]
