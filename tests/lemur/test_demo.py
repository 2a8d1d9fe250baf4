"""`lemur demo`: what is made and what is kept, a stop at each stage, refusals, and the whole way in small."""

import dataclasses
import errno
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import lemur.demo
from lemur.demo import (
    CHECKS,
    EPOCHS,
    NETWORK,
    NETWORK_FACTS,
    STAGES,
    WIDTHS,
    Plan,
    StageOutcome,
    make_run,
    network_facts,
    print_demo,
    quick_plan,
    run_demo,
)
from lemur.folders import DEMO, verify_folder
from lemur_core.files.errors import RetryableError, UserError
from train import register
from train.data.sources import load_cifar10

FIXTURES = Path(__file__).parents[1] / "fixtures"


class Stop(BaseException):
    """What Ctrl-C raises."""


def small_plan(folder: Path, **changes: Any) -> Plan:
    """Real stages on code and data of the fixtures: four classes, a few records, generated images."""
    rows = [{"nn": f"ga-{n}", "nn_code": f"import torch\n\n\nclass Net{n}:\n    width = {n}\n"} for n in range(4)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    widths = {"model__widths": (8, 8), "model__depths": (0, 1), "training__epochs": 1, "training__batch_size": 32}
    given: dict[str, Any] = {
        "corpus": None,
        "sources": (str(FIXTURES / "extract" / "tinyvision"),),
        "paths": ("layers/squeeze.py",),
        "records": (str(folder / "rows.jsonl"),),
        "include": (),
        "chat": False,
        "recipe": "plain",
        "changes": {**widths, "slots__attention": "tinyvision::tinyvision.layers.squeeze.SqueezeExcite"},
        "data": "synthetic:80",
        "jobs": 1,
    }
    return Plan(**{**given, **changes})


def made(done: Sequence[StageOutcome]) -> list[str]:
    return [outcome.stage for outcome in done if outcome.made]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> dict[str, BaseException | None]:
    """Replace each stage by one that writes a file with the content of those before it; `fails` by stage."""
    fails: dict[str, BaseException | None] = {}

    def stage(name: str, before: list[str]) -> Any:
        def make(plan: Plan, out: Path) -> None:
            (out / f".{name}.part").write_text("")  # unfinished
            if error := fails.get(name):
                raise error
            (out / f".{name}.part").unlink()
            (out / name).write_text(f"{plan.seed} " + "".join((out / other).read_text() for other in before))

        return name, make, lambda out: f"{(out / name).stat().st_size} bytes"

    names = list(STAGES)
    monkeypatch.setattr(lemur.demo, "STAGES", {name: stage(name, names[:at]) for at, name in enumerate(names)})
    return fails


@pytest.mark.usefixtures("toy")
def test_all_is_made_once_and_then_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, out = small_plan(tmp_path), tmp_path / "out"
    assert made(run_demo(plan, out)) == list(STAGES)
    before = {name: (out / name).stat().st_mtime_ns for name in STAGES}
    capsys.readouterr()
    again = run_demo(dataclasses.replace(plan, jobs=2), out)
    assert made(again) == []
    assert {outcome.seconds for outcome in again} == {0.0}
    assert capsys.readouterr().err.count("is there") == 5
    assert {name: (out / name).stat().st_mtime_ns for name in STAGES} == before
    assert made(run_demo(plan, out, force=True)) == list(STAGES)
    (out / "network").unlink()
    assert made(run_demo(plan, out)) == ["network", "run", "verify"]


@pytest.mark.parametrize("stopped", list(STAGES))
def test_stopped_it_goes_on(tmp_path: Path, toy: dict[str, BaseException | None], stopped: str) -> None:
    out, plan = tmp_path / "out", small_plan(tmp_path)
    toy[stopped] = Stop()
    with pytest.raises(Stop):
        run_demo(plan, out)
    assert (out / f".{stopped}.part").exists()
    toy.clear()
    names = list(STAGES)
    assert made(run_demo(plan, out)) == names[names.index(stopped) :]
    whole = {name: (out / name).read_text() for name in names}
    run_demo(plan, tmp_path / "fresh")
    assert {name: (tmp_path / "fresh" / name).read_text() for name in names} == whole


@pytest.mark.usefixtures("toy")
def test_other_settings_are_named(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_demo(small_plan(tmp_path), out)
    for changes, named in (
        ({"seed": 1}, "seed"),
        ({"data": "synthetic:60", "images": 30}, "data, images"),
        ({"changes": {}}, "recipe"),
    ):
        with pytest.raises(UserError, match=rf"made with other settings \({named}\); choose another --out, or add --f"):
            run_demo(small_plan(tmp_path, **changes), out)
    assert made(run_demo(small_plan(tmp_path, seed=1), out, force=True)) == list(STAGES)
    assert (out / "verify").read_text().startswith("1 ")
    (out / DEMO).write_text("{")
    with pytest.raises(UserError, match="made with other settings"):
        run_demo(small_plan(tmp_path), out)


@pytest.mark.usefixtures("toy")
def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    plan = small_plan(tmp_path)
    for force in (False, True):
        with pytest.raises(UserError, match=r"has no demo\.json, so `lemur demo` did not create it; choose"):
            run_demo(plan, tmp_path, force=force)
    with pytest.raises(UserError, match=r"rows\.jsonl: is a file, not a folder; choose another --out"):
        run_demo(plan, tmp_path / "rows.jsonl")
    out = tmp_path / "out"
    run_demo(plan, out)
    (out / "blocks").unlink()
    (out / "blocks").mkdir()
    (out / "blocks" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"blocks: has no manifest\.json"):
        run_demo(plan, out, force=True)
    assert (out / "blocks" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UserError("x: no such block; name another"), "stage run: x: no such block; name another"),
        (RetryableError("x: does not answer"), "stage run: x: does not answer"),
        (KeyError("ours"), None),
        (OSError(errno.ENOSPC, "No space left on device", "there"), None),
        (Stop(), None),
    ],
)
def test_errors_name_the_stage_and_our_own_bugs_and_ctrl_c_come_through(
    tmp_path: Path,
    toy: dict[str, BaseException | None],
    error: BaseException,
    told: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    toy["run"] = error
    with pytest.raises(type(error)) as caught:
        run_demo(small_plan(tmp_path), tmp_path / "out")
    assert type(caught.value) is type(error)
    assert told is None or str(caught.value).startswith(told)
    said = capsys.readouterr().err.splitlines()[-1]
    assert told or said == "stage run: not finished; run the same command again to resume"


@pytest.mark.usefixtures("toy")
def test_two_at_once_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, plan = tmp_path / "out", small_plan(tmp_path)
    name, make, summarize = lemur.demo.STAGES["run"]
    seen = []

    def twice(plan: Plan, folder: Path) -> None:
        with pytest.raises(UserError, match=r"another run works there .*; wait for it, or choose another --out"):
            run_demo(plan, out)
        seen.append(name)
        make(plan, folder)

    monkeypatch.setattr(lemur.demo, "STAGES", {**lemur.demo.STAGES, "run": (name, twice, summarize)})
    assert made(run_demo(plan, out)) == list(STAGES)
    assert seen == ["run"]


def test_the_plan_is_whole_and_images_that_are_not_there_are_told_first(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^stage run: .*none: No such file .*; --data synthetic uses gen"):
        run_demo(quick_plan(data=str(tmp_path / "none")), tmp_path / "out")
    with pytest.raises(UserError, match=r"^stage run: synthetic:1: write synthetic, .* to 100,000$"):
        run_demo(quick_plan(data="synthetic:1"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    plan = quick_plan()
    assert plan.corpus == "quick"
    assert plan.sources[0].startswith("timm@")
    assert {"timm/layers", "timm/models/resnetv2.py", "segment_anything"} <= set(plan.paths)
    assert plan.changes == {"training__epochs": EPOCHS, "model__widths": WIDTHS}


@pytest.mark.slow
def test_a_run_on_real_images_leaves_its_files_for_lemur(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generated images stand for the real ones, which are too many to decode here."""
    data = dataclasses.replace(load_cifar10("synthetic:80"), label="cifar-10")
    monkeypatch.setattr("lemur.demo.load_cifar10", lambda _: data)
    shutil.copy(FIXTURES / "train" / "tiny_net.py", tmp_path / NETWORK)
    facts = {"name": "tiny", "prm": {"lr": 0.05, "momentum": 0.9, "dropout": 0.1}, "ingredients": []}
    (tmp_path / NETWORK_FACTS).write_text(json.dumps(facts))
    make_run(small_plan(tmp_path), tmp_path)
    assert len(list(tmp_path.glob("run/lemur/ab/nn/stat/train/*/1.json"))) == 1
    assert [check for check in verify_folder(tmp_path / "run") if not check.ok] == []
    found = register(tmp_path / "run", db=tmp_path / "lemur.db")
    assert (found.added, found.present, found.failed) == (1, 0, ())


@pytest.mark.slow
def test_the_whole_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    print_demo(small_plan(tmp_path), out, as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert [(stage["stage"], stage["made"]) for stage in said["stages"]] == [(name, True) for name in STAGES]
    assert {stage["stage"]: stage["text"].partition("% of ")[2] or stage["text"] for stage in said["stages"]} == {
        "blocks": "1 class: 1 execute, 1 learn",
        "snapshot": "1 of 1 codes kept",
        "network": f"{network_facts(out)['name']}, 1 found block",
        "run": "the generated test images, short run: 1 epoch of 60 images",
        "verify": f"{len(json.loads((out / CHECKS).read_text()))} checks hold: blocks, snapshot, run",
    }
    (part,) = network_facts(out)["ingredients"]
    assert part["block"] == "tinyvision::tinyvision.layers.squeeze.SqueezeExcite"
    shutil.rmtree(out / "run")
    print_demo(small_plan(tmp_path), out)
    told = capsys.readouterr()
    assert [line.split()[1] for line in told.out.splitlines()[2:5]] == ["kept"] * 3
    assert "short run: 1 epoch of 60 images" in told.out
    assert "next:" in told.out.splitlines()[-6:]
    assert [check for check in verify_folder(out) if not check.ok] == []
