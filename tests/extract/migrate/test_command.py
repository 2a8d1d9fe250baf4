"""The command `lemur migrate` into a network: what it prints, writes, and refuses."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extract.model.results import Result
from manifests.records import Case, Observed
from tests.builders import extractions
from tests.builders.suites import read_files, table

ROOT = Path(__file__).parents[2]
TEXTS = read_files(__file__, "command.md")
GATE = TEXTS["GATE"]
CALLS = {"init": {"args": ["8"], "kwargs": {}}, "forward": {"args": [], "kwargs": {"x": "torch.randn((2, 8, 6, 6))"}}}
TWO = {**CALLS, "forward": {"args": ["torch.randn((2, 8, 6, 6))", "torch.randn(3)"], "kwargs": {}}}

Lemur = Callable[..., subprocess.CompletedProcess[str]]


def observed(**changes: Any) -> str:
    case = Case(inputs={"x": "float32 2x8x6x6"}, outputs=("float32 2x8x6x6",))
    told = {"parameters": 72, "trainable": 72, "buffers": 0, "layers": {"Conv2d": 1}, "cases": (case,)}
    return Observed(**{**told, **changes}).model_dump_json()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An extraction with a block that can be moved and some that cannot."""
    base = tmp_path_factory.mktemp("blocks")
    of = extractions.source(base)
    own = ((of.name, "alpha/blocks.py"),)
    columns = extractions.code_columns(GATE)
    told = {"arguments": json.dumps(CALLS), "observed": observed(), **columns}
    rows = [
        extractions.block(of, "Gate", "backward", error_kind=None, error=None, **told),
        extractions.block(
            of, "Pair", "backward", error_kind=None, error=None, **{**told, "arguments": json.dumps(TWO)}
        ),
        extractions.block(
            of, "Idle", "forward", error_kind=None, error=None, **{**told, "observed": observed(identity_in_eval=True)}
        ),
        extractions.block(of, "Needy", "backward", error_kind=None, error=None, requires=("einops",), **told),
        extractions.block(of, "Never", "executed"),
        extractions.block(of, "Absent", "discovered"),
    ]
    extractions.write(base / "blocks", [Result(row, own if row.code else ()) for row in rows], [of])
    return base / "blocks"


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_bytes((ROOT / "fixtures" / "train" / "tiny_net.py").read_bytes())
    return path


ARGUMENTS = ("--in-shape", "2x3x32x32", "--site", "after:features.4")


def test_a_block_is_put_into_a_file_of_its_own_which_can_be_traced(lemur_here: Lemur, folder: Path, net: Path) -> None:
    before = net.read_bytes()
    done = lemur_here("migrate", "Gate", "--into", net, "--in", folder, *ARGUMENTS, cwd=net.parent)
    assert (done.returncode, done.stderr) == (0, "")
    point, block, proved, wrote = done.stdout.splitlines()
    assert point == "site    after:features.4 (BatchNorm2d, 2x32x8x8 -> 2x32x8x8): (32)"
    assert block == "block   alpha@1.0::alpha.blocks.Gate, full form, 13 lines, MIT"
    assert "runs at 2x3x32x32 and 3x3x64x64 with the network's outputs, 2x10 and 3x10" in proved
    assert wrote == f"wrote   {net.parent / 'net-Gate.py'}"
    assert net.read_bytes() == before
    new = net.parent / "net-Gate.py"
    again = lemur_here("migrate", "Gate", "--into", net, "--in", folder, *ARGUMENTS, cwd=net.parent)
    assert (again.returncode, again.stderr) == (
        1,
        f"lemur: {new}: exists already; choose another --out, or add --force\n",
    )
    traced = lemur_here("trace", new, "--in", folder, "--json", cwd=net.parent)
    links = {link["link"]: link for link in json.loads(traced.stdout)}
    assert links["block"]["name"] == "alpha@1.0::alpha.blocks.Gate"
    assert links["source"]["name"] == "alpha@1.0 alpha/blocks.py"
    alone = lemur_here("trace", new, cwd=net.parent)
    assert "site          features.4 (from line" in alone.stdout


def test_a_dry_run_writes_nothing(lemur_here: Lemur, folder: Path, net: Path) -> None:
    done = lemur_here("migrate", "Gate", "--into", net, "--in", folder, "--dry-run", *ARGUMENTS, cwd=net.parent)
    assert done.returncode == 0
    assert "+        self.features[4] = nn.Sequential(self.features[4], Gate(32))\n" in done.stdout
    assert not [line for line in done.stdout.splitlines()[2:] if line.startswith("-")]
    assert [path.name for path in net.parent.iterdir()] == ["net.py"]


def test_all_sites_are_listed(lemur_here: Lemur, folder: Path, net: Path) -> None:
    arguments = ("migrate", "Gate", "--into", net, "--in", folder, "--list", "--in-shape", "2x3x32x32")
    lines = lemur_here(*arguments, cwd=net.parent).stdout.splitlines()
    assert lines[-1] == "Gate fits 16 sites of 30 in net.py"
    assert "fits  after:features.4 (BatchNorm2d, 2x32x8x8 -> 2x32x8x8): (32)" in lines
    told = json.loads(lemur_here(*arguments, "--json", cwd=net.parent).stdout)
    assert sum(point["fits"] for point in told) == 16
    assert all(point["fits"] or point["reason"] for point in told)


@table(__file__, "command.md", "A block that cannot be moved is refused in one line", globals())
def test_a_block_that_cannot_be_moved_is_refused_in_one_line(
    lemur_here: Lemur, folder: Path, net: Path, block: str, said: str
) -> None:
    done = lemur_here("migrate", block, "--into", net, "--in", folder, cwd=net.parent)
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in net.parent.iterdir()] == ["net.py"]


@table(__file__, "command.md", "Wrong arguments are told in one line", globals())
def test_wrong_arguments_are_told_in_one_line(
    lemur_here: Lemur, folder: Path, net: Path, arguments: tuple[str, ...], status: int, said: str
) -> None:
    done = lemur_here("migrate", "Gate", "--into", net, "--in", folder, *arguments, cwd=net.parent)
    assert done.returncode == status
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
