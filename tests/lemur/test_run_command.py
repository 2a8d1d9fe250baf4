"""`lemur demo`: what is made again and what is kept, kills at every point, damage, refusals, and the whole way in small."""

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lemur.folders import verify_folder as verify_run
from lemur.runner import STATE, Stage, StageOutcome, run_stages
from lemur.stages import (
    EPOCHS,
    NETWORK,
    NETWORK_FACTS,
    WIDTHS,
    Plan,
    make_run,
    plan_stages,
    quick_plan,
    run_pipeline,
)
from lemur_core.files.errors import RetryableError, UserError
from tests.builders.stages import Hook, nothing, small_way
from tests.builders.suites import read_table, table
from train import register
from train.data import load_cifar10

pytestmark = [pytest.mark.skipif(os.name != "posix", reason="locks and signals of POSIX")]

NAMES = ("numbers", "powers", "total")
MOMENTS = ("start", "middle", "end")


def made(done: Sequence[StageOutcome]) -> list[str]:
    return [one.stage.name for one in done if one.why is not None]


def contents(out: Path) -> dict[str, str]:
    """What came out, without what tells seconds, and without the lock."""
    files = {path.relative_to(out).as_posix(): path for path in sorted(out.rglob("*")) if path.is_file()}
    left_out = (STATE, ".lock", "powers/report.md")
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items() if name not in left_out}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a walk that nothing disturbs leaves behind."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert made(run_stages(small_way(), out)) == list(NAMES)
    return contents(out)


# --- what is made, and what is kept -------------------------------------------------------------------------------------


def test_all_is_made_once_and_then_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    first = run_stages(small_way(), out)
    assert [one.why for one in first] == ["not built yet"] * 3
    assert capsys.readouterr().err.splitlines() == [
        f"stage {place} of 3, {name}: not built yet" for place, name in enumerate(NAMES, 1)
    ]
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.name != ".lock"}
    del before[out / STATE]
    again = run_stages(small_way(), out)
    assert [one.why for one in again] == [None] * 3
    assert [one.seconds for one in again] == [0.0] * 3
    assert [dict(one.summary.counts) for one in again] == [dict(one.summary.counts) for one in first]
    assert capsys.readouterr().err.count("nothing changed") == 3
    assert {path: path.stat().st_mtime_ns for path in before} == before


@table(__file__, "run_command.md", "A change makes only what depends on it", globals())
def test_a_change_makes_only_what_depends_on_it(tmp_path: Path, change: dict[str, Any], expected: list[str]) -> None:
    out = tmp_path / "out"
    run_stages(small_way(), out)
    done = run_stages(small_way(**change), out)
    assert made(done) == expected
    assert "parameters changed" in str(done[NAMES.index(expected[0])].why)
    fresh = tmp_path / "fresh"
    run_stages(small_way(**change), fresh)
    assert contents(out) == contents(fresh)


def test_the_same_bytes_again_leave_what_follows(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_stages(small_way(), out)
    (out / "numbers.json").write_text("[0]")
    done = run_stages(small_way(), out)
    assert [one.why for one in done] == ["rebuilt: its output was changed", None, None]


def _file_for_folder(out: Path) -> None:
    shutil.rmtree(out / "powers")
    (out / "powers").write_text("")


HARMS: dict[str, Callable[[Path], object]] = read_table(__file__, "run_command.md", "Harms", globals())


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_output_is_made_again(tmp_path: Path, undisturbed: dict[str, str], harm: str) -> None:
    """A folder that is made again is another parent: the manifests of what was made from it name it by its digest."""
    out = tmp_path / "out"
    run_stages(small_way(), out)
    HARMS[harm](out)
    done = run_stages(small_way(), out)
    why = "its output is missing" if harm == "nothing" else "its output was changed"
    assert [one.why for one in done] == [None, f"rebuilt: {why}", "rebuilt: powers changed"]
    assert contents(out) == undisturbed
    HARMS[harm](out)
    assert [one.why for one in run_stages(small_way(), out, force=True)] == ["rebuilt because of --force"] * 3
    assert contents(out) == undisturbed


@pytest.mark.parametrize("force", [False, True])
def test_files_of_others_in_an_output_are_not_removed(tmp_path: Path, force: bool) -> None:
    out = tmp_path / "out"
    run_stages(small_way(), out)
    for name, reason in (
        ("9.txt", "holds 9.txt, which lemur did not write"),
        ("manifest.json", "has no manifest.json"),
    ):
        path = out / "powers" / name
        path.unlink(missing_ok=True) if name == "manifest.json" else path.write_text("mine")
        with pytest.raises(UserError, match=f"^stage powers: .*powers: {reason}"):
            run_stages(small_way(), out, force=force)
        assert {file.name for file in (out / "powers").iterdir()} >= {"0.txt", "1.txt", "2.txt"}
        (out / "powers" / "9.txt").unlink(missing_ok=True)


def test_force_takes_away_what_a_stage_would_take_for_its_own(tmp_path: Path) -> None:
    seen: list[bool] = []

    def way(resumes: bool) -> list[Stage]:
        *first, last = small_way()

        def make(out: Path) -> None:
            seen.append((out / "total.txt").exists())
            last.make(out)

        return [*first, dataclasses.replace(last, make=make, resumes=resumes)]

    run_stages(way(False), tmp_path / "out")
    run_stages(way(False), tmp_path / "out", force=True)
    run_stages(way(True), tmp_path / "out", force=True)
    assert seen == [False, True, False]


def test_our_own_code_and_versions_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def way() -> list[Stage]:
        return [dataclasses.replace(stage, packages=("curate",)) for stage in small_way()]

    out = tmp_path / "out"
    run_stages(way(), out)
    assert made(run_stages(way(), out)) == []
    monkeypatch.setattr("lemur.runner._digest_package", lambda name: "other")
    assert all(str(one.why).startswith("rebuilt: code") for one in run_stages(way(), out))
    monkeypatch.setattr("lemur.runner._versions", lambda: {"torch": "other"})
    assert all(str(one.why).startswith("rebuilt: versions") for one in run_stages(way(), out))


# --- kills --------------------------------------------------------------------------------------------------------------


@table(__file__, "run_command.md", "Killed it goes on", globals())
def test_killed_it_goes_on(tmp_path: Path, undisturbed: dict[str, str], stage: str, moment: str) -> None:
    out = tmp_path / "out"
    body = f"from tests.builders.stages import walk_and_die; walk_and_die({str(out)!r}, {stage!r}, {moment!r})"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}  # for `tests`
    dead = subprocess.run([sys.executable, "-P", "-c", body], capture_output=True, text=True, env=environment)
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    if moment == "middle":
        assert list(out.glob(".*.part")), "not in the middle of the work"
    done = run_stages(small_way(), out)
    assert made(done) == list(NAMES[NAMES.index(stage) :])
    assert contents(out) == undisturbed
    assert made(run_stages(small_way(), out)) == []


class Stop(BaseException):
    """What Ctrl-C raises."""


def test_killed_right_after_its_work_a_stage_keeps_it(tmp_path: Path) -> None:
    """Its output is not taken for a damaged one of what it replaced: a training run would start anew."""
    found: list[str] = []

    def way(title: str, hook: Hook = nothing) -> list[Stage]:
        *first, last = small_way(title=title, hook=hook)

        def make(out: Path) -> None:
            found.append((out / "total.txt").read_text() if (out / "total.txt").exists() else "")
            last.make(out)

        return [*first, dataclasses.replace(last, make=make, resumes=True)]

    def stop(stage: str, moment: str) -> None:
        if (stage, moment) == ("total", "end"):
            raise Stop

    run_stages(way("one"), tmp_path / "out")
    with pytest.raises(Stop):
        run_stages(way("two", stop), tmp_path / "out")
    run_stages(way("two"), tmp_path / "out")
    assert found == ["", "one 5", "two 5"]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("stop"), st.sampled_from(NAMES), st.sampled_from(MOMENTS)),
        st.tuples(
            st.just("harm"),
            st.sampled_from([HARMS[name] for name in ("changed", "taken", "nothing")]),
            st.none(),
        ),
        st.tuples(st.just("change"), st.integers(1, 4), st.integers(1, 3)),
        st.tuples(st.just("walk"), st.none(), st.none()),
    ),
    max_size=6,
)


@settings(max_examples=25)
@given(steps=STEPS)
def test_whatever_happened_the_end_is_that_of_a_fresh_walk(
    undisturbed: dict[str, str], steps: list[tuple[str, Any, Any]]
) -> None:
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "out"
        for kind, one, two in steps:
            if kind == "harm":
                if len(list((out / "powers").glob("*.txt"))) > 1:
                    one(out)
            elif kind == "change":
                run_stages(small_way(count=one, power=two), out)
            else:

                def hook(stage: str, moment: str, kind: str = kind, at: Any = (one, two)) -> None:
                    if kind == "stop" and (stage, moment) == at:
                        raise Stop

                try:
                    run_stages(small_way(hook=hook), out)
                except Stop:
                    assert kind == "stop"
        run_stages(small_way(), out)
        assert contents(out) == undisturbed
        assert made(run_stages(small_way(), out)) == []


# --- errors -------------------------------------------------------------------------------------------------------------


def failing(error: BaseException) -> list[Stage]:
    def hook(stage: str, moment: str) -> None:
        if (stage, moment) == ("powers", "middle"):
            raise error

    return small_way(hook=hook)


NO_SPACE = OSError(errno.ENOSPC, "No space left on device", "there")


@table(__file__, "run_command.md", "Errors name the stage", globals() | {"RetryableError": RetryableError})
def test_errors_name_the_stage(tmp_path: Path, error: Exception, kind: type[UserError], told: str) -> None:
    with pytest.raises(UserError) as caught:
        run_stages(failing(error), tmp_path / "out")
    assert type(caught.value) is kind
    assert str(caught.value).startswith(f"stage powers: {told}")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".lock", "numbers.json", STATE]


@pytest.mark.parametrize("error", [KeyError("ours"), OSError(errno.EIO, "of the disk"), Stop()])
def test_our_own_bugs_and_ctrl_c_come_through(
    tmp_path: Path, error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(type(error)):
        run_stages(failing(error), tmp_path / "out")
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "stage powers: not finished; run the same command again to resume"


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("")
    for force in (False, True):
        with pytest.raises(UserError, match=r"has no stages\.json, so `lemur demo` did not create it; choose"):
            run_stages(small_way(), tmp_path, force=force)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
    with pytest.raises(UserError, match=r"precious: is a file, not a folder; choose another --out"):
        run_stages(small_way(), tmp_path / "precious")


def test_a_damaged_state_asks_for_force(tmp_path: Path, undisturbed: dict[str, str]) -> None:
    out = tmp_path / "out"
    run_stages(small_way(), out)
    (out / STATE).write_text("{")
    with pytest.raises(UserError, match=r"stages\.json: is damaged; add --force to rebuild every stage"):
        run_stages(small_way(), out)
    assert made(run_stages(small_way(), out, force=True)) == list(NAMES)
    assert contents(out) == undisturbed
    (out / STATE).write_text('{"stages": ["build", "test"]}')
    for force in (False, True):
        with pytest.raises(UserError, match=r"stages\.json: is not of `lemur demo`; choose another --out"):
            run_stages(small_way(), out, force=force)


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    seen: list[str] = []

    def hook(stage: str, moment: str) -> None:
        if (stage, moment) == ("powers", "middle") and not seen:
            with pytest.raises(
                UserError,
                match=rf"another run works there \(host \S+, process {os.getpid()}, since \S+\); wait for it, or choose another --out",
            ):
                run_stages(small_way(), out)
            seen.append(stage)

    assert made(run_stages(small_way(hook=hook), out)) == list(NAMES)
    assert seen == ["powers"]


# --- the plan of the command --------------------------------------------------------------------------------------------


def test_the_plan_has_in_scope_what_the_recipe_needs() -> None:
    plan = quick_plan()
    assert plan.corpus == "quick"
    assert plan.sources[0].startswith("timm@")
    assert {"timm/layers", "timm/models/resnetv2.py", "segment_anything"} <= set(plan.paths)
    assert plan.changes == {"training__epochs": EPOCHS, "model__widths": WIDTHS}


def test_options_reach_only_the_stages_that_they_decide() -> None:
    def inputs(**options: Any) -> dict[str, Any]:
        return {stage.name: dict(stage.parameters) for stage in plan_stages(quick_plan(data="synthetic:40", **options))}

    plain = inputs()

    def differs(**options: Any) -> list[str]:
        return [name for name, parameters in inputs(**options).items() if parameters != plain[name]]

    assert differs(jobs=1, unsafe=True) == []
    assert differs(seed=1) == ["snapshot", "run"]
    assert differs(epochs=1) == ["network", "run"]
    assert differs(images=30) == ["run"]
    other = {stage.name: dict(stage.parameters) for stage in plan_stages(quick_plan(data="synthetic:80"))}
    assert [name for name in other if other[name] != plain[name]] == ["run"]


def test_images_that_are_not_there_are_told_first(tmp_path: Path) -> None:
    plan = quick_plan(data=str(tmp_path / "none"))
    with pytest.raises(UserError, match=r"^stage run: .*none: No such file .*; --data synthetic uses gen"):
        plan_stages(plan)
    with pytest.raises(UserError, match=r"^stage run: synthetic:1: write synthetic, .* to 100,000$"):
        plan_stages(quick_plan(data="synthetic:1"))


# --- the whole way, small -----------------------------------------------------------------------------------------------

FIXTURES = Path(__file__).parents[1] / "fixtures"


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


@pytest.mark.slow
def test_a_run_on_real_images_leaves_its_files_for_lemur(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generated images stand for the real ones, which are too many to decode here."""
    data = dataclasses.replace(load_cifar10("synthetic:80"), label="cifar-10")
    monkeypatch.setattr("lemur.stages.load_cifar10", lambda _: data)
    shutil.copy(FIXTURES / "train" / "tiny_net.py", tmp_path / NETWORK)
    facts = {"name": "tiny", "prm": {"lr": 0.05, "momentum": 0.9, "dropout": 0.1}, "ingredients": []}
    (tmp_path / NETWORK_FACTS).write_text(json.dumps(facts))
    make_run(small_plan(tmp_path), tmp_path)
    assert len(list(tmp_path.glob("run/lemur/ab/nn/stat/train/*/1.json"))) == 1
    assert [check for check in verify_run(tmp_path / "run") if not check.ok] == []
    found = register(tmp_path / "run", db=tmp_path / "lemur.db")
    assert (found.added, found.present, found.failed) == (1, 0, ())


@pytest.mark.slow
def test_the_whole_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    stages = plan_stages(small_plan(tmp_path))
    assert [stage.name for stage in stages] == ["blocks", "snapshot", "network", "run", "verify"]

    def stop(out: Path) -> None:
        raise Stop

    with pytest.raises(Stop):
        run_stages([*stages[:2], dataclasses.replace(stages[2], make=stop), *stages[3:]], out)
    capsys.readouterr()
    run_pipeline(small_plan(tmp_path), out, as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert [(stage["stage"], stage["made"]) for stage in said["stages"]] == [
        ("blocks", False), ("snapshot", False), ("network", True), ("run", True), ("verify", True)
    ]  # fmt: skip
    counts = {stage["stage"]: stage["counts"] for stage in said["stages"]}
    assert counts["blocks"] == {"classes": 1, "executed": 1, "backward": 1}
    assert counts["snapshot"]["rows"] == 5
    assert counts["network"]["blocks"] == ["tinyvision::tinyvision.layers.squeeze.SqueezeExcite"]
    assert (counts["run"]["data"], counts["run"]["epochs"], counts["run"]["train_images"]) == (
        "synthetic (smoke test only)", 1, 60
    )  # fmt: skip
    assert counts["verify"]["folders"] == ["blocks", "snapshot", "run"]
    run_pipeline(small_plan(tmp_path, images=40), out)
    told = capsys.readouterr()
    assert [line.split()[1] for line in told.out.splitlines()[2:5]] == ["kept"] * 3
    assert "short run: 1 epoch of 40 images" in told.out
    assert "next:" in told.out.splitlines()[-6:]
    (out / "run" / "weights.pt").write_bytes(b"")
    run_pipeline(small_plan(tmp_path, images=40), out, as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert [stage["stage"] for stage in said["stages"] if stage["made"]] == ["run", "verify"]
    assert (out / "run" / "weights.pt").stat().st_size > 0
