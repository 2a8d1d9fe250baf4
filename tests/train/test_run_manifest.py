"""Manifests of training runs and studies: what they state, that they hold, what breaks them, and what is not published."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lemur.folders import show, verify_folder
from lemur_core.files.errors import UserError
from manifests.folders.manifest import Stopwatch, describe_parent, list_outputs, read_manifest, write_manifest
from manifests.publishing.staged import stage_files
from manifests.records import Block, Ingredient, TrainingRecord
from tests.builders import extractions, training
from tests.builders.suites import table
from train.ablation import FULL, Records, close_study, open_study, read_study
from train.compose.assemble import header, provenance
from train.compose.candidates import open_library
from train.data import Cifar10
from train.model.recipe import Recipe
from train.model.slots import Filler

DATA = Cifar10("synthetic", "1" * 64, Path(), *(torch.zeros(4, 3, 32, 32, dtype=torch.uint8), torch.zeros(4)) * 2)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An extraction folder: alpha is MIT, and a block of it holds code of beta, which is GPL."""
    base = tmp_path_factory.mktemp("library")
    sources = [extractions.source(base, name) for name in ("alpha@1.0", "beta@2.0")]
    outcomes = extractions.results(sources)
    scale = next(n for n, one in enumerate(outcomes) if one.row.block == "alpha@1.0::alpha.blocks.Scale")
    mixed = ("beta@2.0", "beta/parts.py")
    outcomes[scale] = extractions.Result(outcomes[scale].row, (*outcomes[scale].closure_files, mixed))
    extractions.write(base / "blocks", outcomes, sources)
    return base / "blocks"


def block_of(library: Path, name: str) -> Block:
    return open_library(library).find(name)


def filler_of(block: Block) -> Filler:
    return Filler(block.block, block.name, (), block=block)


def network_of(blocks: list[tuple[str, Block]]) -> str:
    parts = []
    for slot, block in blocks:
        comment = "\n".join(f"# {line}".rstrip() for line in provenance(slot, filler_of(block)))
        parts.append(f"{comment}\n\n{block.code}")
    return "\n\n".join(["# Slot residual: preact_basic, built in.\nimport torch\n", *parts])


def make_run(
    folder: Path, library: Path | None, *blocks: tuple[str, Block], head: str = "", **changes: Any
) -> TrainingRecord:
    names = [name for name in Ingredient.model_fields if name != "slot"]
    parts = tuple(Ingredient(slot=slot, **{name: getattr(block, name) for name in names}) for slot, block in blocks)
    code = head + network_of(list(blocks))
    made: TrainingRecord = training.write_finished(
        folder, DATA, library, code=code, **{"ingredients": parts, **changes}
    )
    return made


@pytest.fixture
def run(library: Path, tmp_path: Path) -> Path:
    out = tmp_path / "run"
    make_run(out, library, ("attention", block_of(library, "alpha.blocks.Attention")))
    return out


def faults(folder: Path) -> dict[str, str]:
    return {check.name: check.detail for check in verify_folder(folder) if not check.ok}


def refresh(folder: Path, **changes: Any) -> None:
    """Make the manifest fit the files again, so that only what they say can be wrong."""
    write_manifest(folder, read_manifest(folder).model_copy(update={"outputs": list_outputs(folder), **changes}))


def test_what_the_manifest_of_a_run_states(run: Path, library: Path) -> None:
    manifest = read_manifest(run)
    record = TrainingRecord.model_validate_json((run / "record.json").read_text())
    assert manifest.kind == "run"
    assert [(item.name, item.sha256) for item in manifest.inputs] == [
        ("net.py", record.code_sha256), ("recipe", record.recipe_sha256), ("synthetic", DATA.sha256),
    ]  # fmt: skip
    assert manifest.inputs[2].bytes == 2 * (4 * 3 * 32 * 32 + 4 * 4)
    assert manifest.parents == [describe_parent(library)]
    assert manifest.parameters["recipe"] == json.loads(record.recipe)
    assert (manifest.parameters["seed"], manifest.parameters["held_out"]) == (7, 5000)
    assert manifest.versions["torch"] == "2.15.0"
    assert "lemur-curator" in manifest.versions
    assert faults(run) == {}
    with stage_files(run) as ready:  # of permissive blocks: it leaves whole
        assert set(ready.files) == {item.path for item in manifest.outputs} | {"manifest.json"}
    mixed = block_of(library, "alpha.blocks.Scale")
    head = header(Recipe(), {"stem": filler_of(mixed)}, {})  # type: ignore[arg-type]
    assert "# SPDX-License-Identifier: GPL-3.0-only AND MIT\n" in head


def test_what_is_no_parent(library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An extraction without manifest, or without the block, and that of a run without blocks."""
    block = block_of(library, "alpha.blocks.Attention")
    copy = Path(shutil.copytree(library, tmp_path / "copy"))
    (copy / "manifest.json").unlink()
    other = block.model_copy(update={"code_sha256": "0" * 64})
    untraced = "no manifest.json; results built from it cannot be traced further back"
    for name, blocks, folder, said in (
        ("plain", [], library, ""),
        ("copied", [block], copy, untraced),
        ("other", [other], library, f"has no {other.block} with that code"),
    ):
        make_run(tmp_path / name, folder, *(("attention", one) for one in blocks))
        assert read_manifest(tmp_path / name).parents == []
        assert said in capsys.readouterr().err
        assert faults(tmp_path / name) == {}


def change_json(name: str, **changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        record = json.loads((folder / name).read_text()) | changes
        (folder / name).write_text(f"{json.dumps(record, indent=1)}\n")  # as it is written

    return change


def change_text(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return change


@table(__file__, "run_manifest.md", "What does not go together is found", globals())
def test_what_does_not_go_together_is_found(run: Path, change: Callable[[Path], None], check: str, detail: str) -> None:
    change(run)
    assert "digests" in faults(run)
    refresh(run)
    found = faults(run)
    assert detail in found[check]
    assert "digests" not in found


def test_a_chain_through_the_network_to_the_lines(run: Path, library: Path) -> None:
    links = show("net", [run, library]).links
    assert [link.what for link in links] == [
        "run", "network", "block", "manifest", "parent", "block", "release", "source", "with", "manifest",
    ]  # fmt: skip
    block = block_of(library, "alpha.blocks.Attention")
    assert links[2].name == links[5].name == block.block
    assert links[2].facts["lines"] == links[7].facts["lines"] == f"{block.start_line}-{block.end_line}"
    assert links[6].facts["sha256"] == hashlib.sha256(b"alpha@1.0").hexdigest()
    for wanted in ("tiny", "attention", "Attention", block.block):
        assert show(wanted, [run, library]).links == links
    with pytest.raises(UserError, match=r"^Atention: nothing in .*run has that name; near names: Att"):
        show("Atention", [run])


@table(__file__, "run_manifest.md", "A network with a block that may not leave stays", globals())
@pytest.mark.parametrize("recorded", [True, False])
def test_a_network_with_a_block_that_may_not_leave_stays(
    library: Path, tmp_path: Path, blocks: list[tuple[str, str]], reason: str, recorded: bool
) -> None:
    """By the licenses of all sources of a block: by the record, or by the comments where that names no blocks."""
    out = tmp_path / "run"
    changes = {} if recorded else {"ingredients": ()}
    make_run(out, library, *((slot, block_of(library, name)) for slot, name in blocks), **changes)
    with pytest.raises(UserError, match=reason) as caught, stage_files(out):
        pass
    assert "\n" not in str(caught.value)


@table(__file__, "run_manifest.md", "A network without blocks says what its licence is", globals())
@pytest.mark.parametrize("assembled", [False, True])
def test_a_network_without_blocks_says_what_its_licence_is(
    tmp_path: Path, line: str, wrong: str | None, assembled: bool
) -> None:
    """One that was assembled, of parts of torch alone, need not."""
    out = tmp_path / "run"
    recipe = json.loads(training.RECIPE.to_json()) | {"model": {} if assembled else None}
    make_run(out, None, head=line, recipe=json.dumps(recipe))
    if wrong is None or (assembled and not line):
        with stage_files(out) as ready:
            assert "net.py" in ready.files
    else:
        with pytest.raises(UserError, match=rf"net.py: its license \({wrong}\) is not known"), stage_files(out):
            pass


PLAN = {"study": "ablation", "data": DATA.label, "data_sha256": DATA.sha256, "test_images": 4}
PLAN |= {"seeds": [0, 1], "variants": {FULL: {}}}


def make_study(out: Path, library: Path) -> Records:
    open_study(out, PLAN)
    for seed in (0, 1):
        folder = out / "runs" / f"full-seed{seed}"
        make_run(folder, library, ("attention", block_of(library, "alpha.blocks.Attention")), seed=seed, page=False)
    records: Records = read_study(out, PLAN)
    close(out, records, library)
    return records


def close(out: Path, records: Records, library: Path) -> None:
    close_study(out, PLAN, records, DATA, library, Stopwatch())


def test_a_study_states_its_runs_and_a_second_time_the_same(library: Path, tmp_path: Path) -> None:
    out = tmp_path / "study"
    records = make_study(out, library)
    manifest = read_manifest(out)
    assert (manifest.kind, manifest.parameters, manifest.parents) == ("ablation", PLAN, [describe_parent(library)])
    assert manifest.counts == {"runs": 2, "status": {"ok": 2}}
    assert "runs/full-seed1/manifest.json" in {item.path for item in manifest.outputs}
    assert read_manifest(out / "runs" / "full-seed1").parents == [describe_parent(library)]
    assert faults(out) == {}
    before = (out / "manifest.json").read_bytes()
    open_study(out, {**PLAN, "seeds": (0, 1)})
    close(out, records, library)
    assert (out / "manifest.json").read_bytes() == before
    open_study(out, {**PLAN, "seeds": [0, 1, 2]})
    assert not (out / "manifest.json").exists(), "while another plan runs, the folder is finished for neither"
    close(out, records, library)
    for error, shown in (
        ("stopped after 9 s; 1 whole epoch of 2 is kept", "paused"),
        ("nothing was finished within 9 s", "failed"),  # it cannot go on
    ):
        records[FULL][1] = records[FULL][1].model_copy(update={"status": "timeout", "error": error})
        close(out, records, library)
        assert f"| full | 2 (1 {shown}) |" in (out / "ablation.md").read_text()
        assert (out / "manifest.json").exists() == (shown == "failed")


def test_a_chain_from_a_study_and_what_breaks_one(library: Path, tmp_path: Path) -> None:
    out = tmp_path / "study"
    make_study(out, library)
    links = show("full-seed1", [out, library]).links
    assert [link.what for link in links[:5]] == ["in", "run", "network", "block", "manifest"]
    assert (links[1].facts["seed"], links[5].what, links[6].what) == (1, "manifest", "parent")
    assert show("full-seed1/attention", [out, library]).links == links
    with pytest.raises(UserError, match=r"full-seed9: nothing in .*study has that name; near names: full-seed"):
        show("full-seed9", [out])
    change_json("runs/full-seed1/record.json", test_accuracy=0.99)(out)
    refresh(out)
    found = faults(out)
    assert "full-seed1: derived: manifest: details.test_accuracy is 0.5512, not 0.99" in found["runs"]
    assert "records.jsonl, line 2: " in found["derived"]
