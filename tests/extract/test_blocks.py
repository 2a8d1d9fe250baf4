"""A block of a finished folder: name lookup, the output of `lemur show`, and its class by `load_block`."""

import inspect
import io
import json
import pickle
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import extract
from extract.model.blocks import draw_block, find, find_block, load_block, match
from extract.model.results import code_columns
from lemur_core.files.errors import UserError
from manifests.records import Block
from tests.builders import extractions, sample_blocks
from tests.builders.graphs import trace
from tests.builders.shown import show_block
from tests.builders.suites import table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("show")
    sources = alpha, beta = [extractions.source(base, name) for name in ("alpha@1.0", "beta@2.0")]
    squeeze = sample_blocks.TEXTS["SQUEEZE"]
    hostile = extractions.code_of("beta@2.0::beta.blocks.Hostile", "GPL-3.0-only", 'A = "\x1b[31mred"\n')
    more = [
        extractions.block(beta, "Hostile", **code_columns(hostile)),
        extractions.block(beta, "Squeeze", **{**sample_blocks.observed(train_differs=True), **code_columns(squeeze)}),
        extractions.block(beta, "Odd", arguments="{", observed="{"),
        extractions.block(beta, "Guess", dynamic="\n".join(f"lacks {n}" for n in range(10))),
        extractions.block(alpha, "Gated", **code_columns(squeeze.replace("Squeeze", "Gated"))),
        extractions.block(alpha, "Needs", **code_columns("import not_there_at_all\n")),
        extractions.block(alpha, "Raises", **code_columns("raise KeyError('mine')\n")),
    ]
    both = (("alpha@1.0", "alpha/blocks.py"), ("beta@2.0", "beta/blocks.py"))
    mixed = extractions.Result(extractions.block(alpha, "Mixed"), both)
    extractions.write(base / "out", [*extractions.results(sources), *map(extractions.Result, more), mixed], sources)
    return base / "out"


IDS = "timm@1.0::timm.layers.Attention timm@1.0::timm.models.vit.Attention mm@2::mm.Attention mm@2::mm.layers.Drop here::Drop"
ROWS = [
    Block.model_construct(block=block, name=qualname.rpartition(".")[2], qualname=qualname, source=source)
    for block in IDS.split()
    for source, _, qualname in [block.partition("::")]
]


@table(__file__, "blocks.md", "What a name stands for", globals())
def test_what_a_name_stands_for(wanted: str, places: list[int]) -> None:
    assert match(ROWS, wanted) == places


def test_the_first_of_several_is_shown_and_the_others_are_listed(folder: Path) -> None:
    assert find_block(folder, "Attention").block == "alpha@1.0::alpha.blocks.Attention"
    found = find(folder, "Attention")
    assert found.facts["others"] == ["beta@2.0::beta.blocks.Attention (executed)"]
    assert found.lines[-1] == "also      beta@2.0::beta.blocks.Attention (executed)"
    assert find(folder, "beta::Attention").facts["others"] == []


def test_the_lines_of_a_block(folder: Path) -> None:
    lines = dict(line.split(maxsplit=1) for line in find(folder, "alpha::Einops").lines)
    assert lines["block"] == "alpha@1.0::alpha.blocks.Einops"
    assert lines["from"] == "alpha/blocks.py, lines 3-9"
    assert lines["origin"] == "pkg:pypi/alpha@1.0"
    assert lines["swhid"].endswith(";path=/alpha/blocks.py;lines=3-9")
    assert lines["level"] == "executed"
    assert lines["license"] == "MIT"
    assert lines["requires"] == "torch, einops>=0.6"
    assert lines["with"] == "alpha@1.0 alpha/parts.py"
    assert lines["file"] == f"{folder}/blocks/alpha@1.0/alpha.blocks.Einops.py (7 lines)"
    assert "stopped" not in lines
    assert any(line.startswith("license   GPL-3.0-only AND MIT (not all known") for line in find(folder, "Mixed").lines)


def test_how_a_block_runs_and_what_was_seen(folder: Path) -> None:
    lines = list(find(folder, "Squeeze").lines)
    place = lines.index("runs as   block = Squeeze(16, ratio=0.5)")
    assert lines[place + 1 : place + 6] == [
        "          block(torch.randn((2, 16, 8, 8)))",
        "shapes    *0 float32 2x16x8x8 -> float32 2x16x8x8",
        "          *0 float32 2x16x16x16 -> float32 2x16x16x16",
        "observed  280 parameters; gradients reach 4 of 4 tensors; train and eval differ",
        "layers    Conv2d 2, Gate 1, ReLU 1",
    ]
    assert "observed  not readable; run `lemur verify`" in find(folder, "Odd").lines


def test_the_first_of_many_items_are_told(folder: Path) -> None:
    lines = list(find(folder, "Guess").lines)
    place = lines.index("dynamic   lacks 0")
    assert lines[place + 1] == "          lacks 1"
    assert lines[place + 8] == "          and 2 more"


def test_a_block_that_stopped_says_why_else_its_code_follows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_block(folder, "beta::Native")
    told = capsys.readouterr().out
    assert "level     discovered\nstopped   native_op: beta@2.0 beta/blocks.py:7: 'Native_op' is compiled\n" in told
    assert "license   GPL-3.0-only (not all known to be permissive: for local use)\n" in told
    assert "requires" not in told
    assert "local use)\n\nrelease" in told
    show_block(folder, "alpha::Attention")
    head, chain, code = capsys.readouterr().out.split("\n\n", 2)
    assert chain.startswith("release    alpha@1.0\n")
    assert code == find_block(folder, "alpha::Attention").code
    assert len(head.split("\n")) == 10


def test_json_has_the_row(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_block(folder, "Attention", as_json=True)
    facts = json.loads(capsys.readouterr().out)
    row = find_block(folder, "Attention")
    assert {name: facts[name] for name in type(row).model_fields} == row.model_dump(mode="json")
    assert facts["needs"]["block"] == row.block
    assert facts["others"] == ["beta@2.0::beta.blocks.Attention (executed)"]
    show_block(folder, "beta::Native", as_json=True)
    assert json.loads(capsys.readouterr().out)["needs"] is None


@table(__file__, "blocks.md", "An unknown name is answered with near ones", globals())
def test_an_unknown_name_is_answered_with_near_ones(folder: Path, wanted: str, told: str) -> None:
    with pytest.raises(UserError, match=f"{wanted}: no block of this folder has this name; {told}"):
        find_block(folder, wanted)


def test_colours_only_on_a_terminal_and_nothing_that_it_would_obey(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show_block(folder, "Hostile")
    assert capsys.readouterr().out.endswith('A = "\x1b[31mred"\n')
    terminal = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "")
    monkeypatch.delenv("NO_COLOR", raising=False)
    show_block(folder, "Hostile")
    written = terminal.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert "\x1b[" in written
    assert "\x1b[31mred" not in written
    assert "\\x1b[31mred" in re.sub(r"\x1b\[[0-9;]*m", "", written)


def test_a_damaged_file_of_requirements_is_named(folder: Path, tmp_path: Path) -> None:
    for name in ("manifest.json", "blocks.parquet"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(UserError, match="damaged extraction"):
        find(tmp_path, "Attention")
    (tmp_path / "required_repos.json").write_text("{}")
    (tmp_path / "specs.jsonl").write_text("")
    assert any(line.startswith("swhid     swh:1:cnt:") for line in find(tmp_path, "Attention").lines)


def test_a_class_that_works(folder: Path) -> None:
    assert extract.load_block is load_block
    before = sorted(folder.rglob("*"))
    squeeze = load_block(str(folder), "alpha@1.0::alpha.blocks.Gated")
    assert squeeze(16)(torch.ones(2, 16, 4, 4)).shape == (2, 16, 4, 4)
    assert load_block(folder, "alpha::Gated") is squeeze
    assert inspect.getsource(squeeze).startswith("class Gated")
    assert pickle.loads(pickle.dumps(squeeze)) is squeeze
    assert sorted(folder.rglob("*")) == before, "no bytecode is left in the folder"


@table(__file__, "blocks.md", "What cannot be loaded", globals())
def test_what_cannot_be_loaded(folder: Path, block: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        load_block(folder, block)


def test_what_a_file_raises_is_seen_and_nothing_stays(folder: Path) -> None:
    before = set(sys.modules)
    with pytest.raises(KeyError, match="mine"):
        load_block(folder, "Raises")
    assert not [name for name in set(sys.modules) - before if name.startswith("lemur_block")]


def test_a_file_that_was_changed_is_not_executed(folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folder, tmp_path / "a folder"))
    path = folder / "blocks" / "alpha@1.0" / "alpha.blocks.Gated.py"
    path.write_text("raise SystemExit('executed')\n")
    with pytest.raises(UserError, match="is not the code of alpha@1"):
        load_block(folder, "Gated")
    path.unlink()
    with pytest.raises(UserError, match="run `lemur verify"):
        load_block(folder, "Gated")


def test_what_a_block_computes_is_drawn(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "out")
    path = tmp_path / "out" / "specs.jsonl"
    specs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    graph = trace(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), lambda: [torch.rand(2, 3, 8, 8)])
    other = graph.to_json() | {"torch": "1.0"}
    names = [spec["name"] for spec in specs]
    for name, stored in (("Squeeze", graph.to_json()), ("Gated", other)):
        facts: dict[str, Any] = dict.fromkeys(("returns", "train_error", "fixed", "rebuilds", "train"))
        facts |= {"operations": [], "motifs": [], "unused_parameters": [], "route": "cpu", "reads_values": False}
        specs[names.index(name)]["algorithm"] = {"eval": stored, "sizes": {}, **facts}
    path.write_text("".join(json.dumps(spec) + "\n" for spec in specs), encoding="utf-8")
    picture = tmp_path / "block.svg"
    said = draw_block(tmp_path / "out", "Squeeze", picture)
    assert said == f"{picture}: 4 boxes, what it computes in eval mode"
    assert "weight 8×3×3×3" in picture.read_text(encoding="utf-8")
    for name, why in (
        ("Gated", "Gated: its graph cannot be read: form 2 of torch '1.0' cannot be compared with form "),
        ("Needs", "Needs: what it computes is not known here, or was not published; choose another block"),
        ("None", "None: no block of this folder has this name; "),
    ):
        with pytest.raises(UserError, match=why):
            draw_block(tmp_path / "out", name, tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()
