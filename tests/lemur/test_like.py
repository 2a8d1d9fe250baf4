"""`lemur search --like`: a block by name, or a network's file that is traced in the sandbox."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extract.model.results import Result, code_columns
from lemur.like import search_like
from lemur_core.files.errors import UserError
from tests.builders import extractions, synthesis, visits
from tests.builders.suites import read_files

TEXTS = read_files(__file__, "like.md")

Command = Callable[..., subprocess.CompletedProcess[str]]


def arguments(width: str, given: str) -> dict[str, Any]:
    return {"init": {"args": [width], "kwargs": {}}, "forward": {"args": [given], "kwargs": {}}}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stem of two widths in two sources, and something else."""
    base = tmp_path_factory.mktemp("like")
    image, numbers = "torch.randn(2, 3, 8, 8)", "torch.zeros(2, 3, dtype=torch.long)"
    wanted = [
        (extractions.source(base, "alpha@1.0"), "Stem", TEXTS["STEM"], arguments("16", image)),
        (extractions.source(base, "beta@2.0"), "Stem", TEXTS["STEM"], arguments("32", image)),
        (extractions.source(base, "gamma@3.0"), "Other", TEXTS["OTHER"], arguments("5", numbers)),
    ]
    answers = visits.trace(base, {of.name: about for of, *about in wanted})
    results = []
    for of, name, code, given in wanted:
        answer = answers[of.name]
        facts = {"arguments": json.dumps(given), "graph": answer["graph"], "graph_widths": answer["graph_widths"]}
        observed = {"parameters": 1, "trainable": 1, "buffers": 0, "layers": {}, "cases": []}
        block = f"{of.name}::{of.name.partition('@')[0]}.blocks.{name}"
        closed = code_columns(extractions.code_of(block, of.license, code))
        nothing: dict[str, Any] = {"error_kind": None, "error": None, "observed": json.dumps(observed)}
        row = extractions.block(of, name, "backward", **nothing, **facts, **closed)
        results.append(Result(row, ((of.name, row.path),), answer))
    extractions.write(base / "out", results, [of for of, *_ in wanted], level="backward")
    return base / "out"


def test_a_block_by_name_also_by_the_command(library: Path, tmp_path: Path, lemur_here: Command) -> None:
    told = json.loads(search_like(library, "alpha::Stem", count=5, as_json=True))
    assert told["like"] == "alpha@1.0::alpha.blocks.Stem"
    (hit,) = told["hits"]
    assert (hit["block"], hit["agreement"]) == ("beta@2.0::beta.blocks.Stem", "widths")
    assert (hit["similarity"], hit["graph"], hit["code"]) == (1.0, 1.0, 1.0)  # the same class
    done = lemur_here("search", "--like", "beta::Stem", "--in", library, cwd=tmp_path)
    assert done.stdout.splitlines()[2] == (
        "1.000  1.000  1.000  same up to widths  alpha@1.0::alpha.blocks.Stem  (Other)"
    )
    done = lemur_here("search", "stem", "--like", "Stem", "--in", library, cwd=tmp_path)
    assert (done.returncode, "either words to search for or --like" in done.stderr) == (2, True)
    done = lemur_here("search", "--like", "Nothing", "--in", library, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")


def test_a_network_in_a_file(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    make = "self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())"
    path.write_text(synthesis.network(make=make, use="x = self.body(x)", width=8))
    told = search_like(library, str(path), count=5).splitlines()
    assert told[0] == f"like {path}"
    assert [line.split()[3].partition("@")[0] for line in told[2:]] == ["alpha", "beta", "gamma"]
    stems, other = [float(line.split()[1]) for line in told[2:4]], float(told[4].split()[1])
    assert 0.9 > stems[0] == stems[1] > 3 * other
    path.write_text("x = 1\n")
    with pytest.raises(
        UserError, match=r"net\.py: has no graph: .*; pass a network that meets LEMUR's contract and runs"
    ):
        search_like(library, str(path), count=5)
    with pytest.raises(UserError, match=r"gone\.py: cannot be read: No such file"):
        search_like(library, str(tmp_path / "gone.py"), count=5)


def test_a_block_without_a_graph_by_its_code(tmp_path: Path) -> None:
    """A renamed copy comes before a class that shares only some names, and that before one that shares nothing."""
    stem, names = TEXTS["STEM"], ("Stem", "Renamed", "Near", "Other")
    near = stem.replace("Stem", "Near").replace("return self.norm(self.conv(x)).relu()", "return self.conv(x)")
    codes = dict(zip(names, (stem, stem.replace("Stem", "Renamed"), near, TEXTS["OTHER"]), strict=True))
    of = extractions.source(tmp_path, "alpha@1.0")
    results = []
    for name, code in codes.items():
        closed = code_columns(extractions.code_of(f"{of.name}::alpha.blocks.{name}", of.license, code))
        row = extractions.block(of, name, "compiled", **closed)
        results.append(Result(row, ((of.name, row.path),), None))
    extractions.write(tmp_path / "out", results, [of], level="compiled")
    told = json.loads(search_like(tmp_path / "out", "Stem", count=5, as_json=True))
    hits = {hit["block"].rpartition(".")[2]: hit["code"] for hit in told["hits"]}
    assert list(hits)[:2] == ["Renamed", "Near"]
    assert 1 >= hits["Renamed"] > hits["Near"] > hits.get("Other", 0)
    assert all(hit["graph"] is None and hit["similarity"] == hit["code"] for hit in told["hits"])
