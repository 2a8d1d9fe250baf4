"""Search: the right blocks come first, any query is plain words, and every error is one clear line."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extract.search import SpecLine, open_index, search_folder
from extract.specs.make import make_spec, to_line
from lemur_core.files.errors import UserError
from manifests.folders.manifest import Manifest, Output, Stopwatch, sha256_file, write_manifest
from manifests.records import Block
from tests.builders import sample_blocks
from tests.builders.suites import table

HALF = [{"inputs": {"*0": "float32 2x8x16x16"}, "outputs": ["float32 2x16x8x8"]}]


def layer(name: str, builds: str = "", **changes: Any) -> Block:
    body = f"        self.layer = nn.{builds}()\n" if builds else "        pass\n"
    code = f"from torch import nn\n\n\nclass {name}(nn.Module):\n    def __init__(self):\n{body}"
    row: Block = sample_blocks.block(f"{code}\n    def forward(self, x):\n        return x\n", name, **changes)
    return row


def blocks() -> list[Block]:
    return [
        sample_blocks.block(name="SqueezeExcite", source="timm@1.0.30", license="Apache-2.0"),
        sample_blocks.block(name="SEModule", source="timm@1.0.30", license="Apache-2.0", **sample_blocks.observed()),
        layer("ConvNormAct", "Conv2d", source="timm@1.0.30", module="timm.layers.conv_bn_act", category="Convolution"),
        layer("WindowMSA", source="mmcv@2.2.0", module="mmcv.ops.window", license="GPL-3.0"),
        layer("MultiHeadAttention", "Softmax", source="mmcv@2.2.0", module="mmcv.ops.attention"),
        layer("DropPath", source="timm@1.0.30", module="timm.layers.drop", category="Regularization"),
        layer("ConvDown", "Conv2d", module="alpha.down", category="Resampling", **sample_blocks.observed(cases=HALF)),
        layer("GhostNet", "Linear", module="alpha.models.ghostnet", category="Network", level="compiled"),
    ]


def write(folder: Path, lines: Sequence[str], kind: str = "extraction") -> Path:
    """A folder with specs and a manifest, the only files that search needs."""
    folder.mkdir(exist_ok=True)
    specs = folder / "specs.jsonl"
    specs.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    output = Output(path="specs.jsonl", sha256=sha256_file(specs), bytes=specs.stat().st_size, rows=len(lines))
    facts: dict[str, Any] = {name: {} for name in ("versions", "parameters", "counts", "details")}
    write_manifest(folder, Manifest(kind=kind, inputs=[], outputs=[output], measured=Stopwatch().measure(), **facts))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = write(tmp_path_factory.mktemp("search") / "out", [to_line(make_spec(row)) for row in blocks()])
    for row in blocks():
        path = out / (row.file or "-")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(row.code or "", encoding="utf-8")
    return out


def found(folder: Path, query: str, limit: int = 10) -> tuple[list[SpecLine], int]:
    return open_index(folder).search(query, limit)


def answer(folder: Path, query: str) -> str:
    try:
        return str(found(folder, query)[0])
    except UserError as error:
        return str(error)


def names(folder: Path, query: str) -> list[str]:
    return [hit["name"] for hit in found(folder, query)[0]]


@table(__file__, "search.md", "What comes first", globals())
def test_what_comes_first(folder: Path, query: str, first: list[str]) -> None:
    assert names(folder, query)[: len(first)] == first


def test_words_that_nothing_has_together(folder: Path) -> None:
    assert set(names(folder, "softmax linear")) == {"MultiHeadAttention", "GhostNet"}


@table(__file__, "search.md", "Nothing is found", globals())
def test_nothing_is_found(folder: Path, query: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        found(folder, query)


SYNTAX = (
    '"',
    "*",
    "AND",
    "OR NOT",
    "NEAR(a b)",
    "names:se",
    "(",
    "a' OR 1",
    "^se",
    "-se +x",
    "\x00",
    "{se}",
    "é ß 注意",
)


@pytest.mark.parametrize("query", SYNTAX)
def test_the_syntax_of_the_index_means_nothing(folder: Path, query: str) -> None:
    assert answer(folder, query)
    assert names(folder, f"{query} SEModule")[:1] == ["SEModule"]


@given(st.text(max_size=30))
def test_any_query_is_answered_or_refused_in_one_line(folder: Path, query: str) -> None:
    assert answer(folder, query)


def test_an_index_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path / "cache"))
    where = write(tmp_path / "out", [to_line(make_spec(row)) for row in blocks()])
    first = names(where, "window attention")
    (kept,) = (tmp_path / "cache" / "search").iterdir()
    made_first = kept.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("extract.search.read_words", lambda spec, code: pytest.fail("read again"))
        assert names(where, "window attention") == first
    kept.write_bytes(made_first[: len(made_first) // 2])
    assert names(where, "window attention") == first, "a file that is not whole is made anew"


def test_code_is_read_where_the_folder_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path / "cache"))
    code = 'class DropPath:\n    """Survivors."""\n    def forward(self, x):\n        self.kept = x  # by a lottery\n'
    specs = [json.loads(to_line(make_spec(row))) for row in blocks()]
    lines = [json.dumps(spec | {"file": f"blocks/s/{spec['name']}.py"}) for spec in specs]
    where = write(tmp_path / "out", lines)
    for query in ("survivor", "lottery", "kept"):
        assert "nothing matches" in answer(where, query)
    (where / "blocks" / "s").mkdir(parents=True)
    other = '"""\nclass DropPath:\n    lottery = 1\n"""\n'  # of the file, not of the class
    (where / "blocks" / "s" / "DropPath.py").write_text(f"# jackpot\n{code}\n\nwinner = 1\n", encoding="utf-8")
    (where / "blocks" / "s" / "SEModule.py").write_text(f"{other}class SEModule:\n    pass\n", encoding="utf-8")
    for query in ("survivor", "lottery", "kept"):
        assert names(where, query) == ["DropPath"]
    for query in ("jackpot", "winner"):
        assert "nothing matches" in answer(where, query)


def test_lines_and_json(folder: Path) -> None:
    block = "timm@1.0.30::alpha.layers.squeeze_excite.SEModule"
    told = search_folder(folder, "se module", count=1).split("\n")
    assert told[0] == f"  1  {block}"
    assert told[1].startswith("     Attention, backward, Apache-2.0: float32 2×16×8×8 -> ")
    assert told[2] == f"     {folder}/blocks/timm@1.0.30/alpha.layers.squeeze_excite.SEModule.py"
    assert told[3] == "1 of 7; -k shows more"
    assert told[5] == f"read it    lemur show {block} --in {folder}"
    load = f"from extract import load_block; SEModule = load_block('{folder}', '{block}')"
    assert told[6:] == [f"import it  {load}"]
    compile(load, "told", "exec")
    facts = json.loads(search_folder(folder, "se module", as_json=True))
    assert (facts["matched"], [hit["rank"] for hit in facts["hits"]]) == (7, [*range(1, 8)])
    assert facts["hits"][0].keys() >= {"block", "category", "level", "license", "source", "summary", "file", "load"}


def test_nothing_that_a_terminal_would_obey(tmp_path: Path) -> None:
    facts = json.loads(to_line(make_spec(layer("Gate"))))
    hostile = {**facts, "category": "\x1b]0;x\x07", "summary": "Gate: a\rb\nc"}
    folder = write(tmp_path / "out", [json.dumps(hostile)])
    told = search_folder(folder, "gate")
    assert not set(told) & set("\x1b\x07\r")
    assert "\\x1b]0;x\\x07" in told
    with pytest.raises(UserError, match="not a spec: name: must be one line"):
        open_index(write(tmp_path / "named", [json.dumps({**facts, "name": "Gate\x1b[31m"})]))
    with pytest.raises(UserError) as caught:
        search_folder(folder, "\x1b[31mzzz")
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("line", ["{", "3", "null", "{}", '{"block": 3}', "\udcff"])
def test_a_broken_line_is_named(tmp_path: Path, folder: Path, line: str) -> None:
    lines = (folder / "specs.jsonl").read_text(encoding="utf-8").splitlines()
    specs = [*lines[:2], line.encode("utf-8", "backslashreplace").decode(), *lines[2:]]
    broken = write(tmp_path / "out", specs)
    with pytest.raises(UserError, match=r"specs\.jsonl:3: not a spec: .*; run `lemur verify`"):
        open_index(broken)


def test_other_folders(tmp_path: Path, folder: Path) -> None:
    lines = (folder / "specs.jsonl").read_text(encoding="utf-8").splitlines()
    older, changed, gone, odd = (write(tmp_path / name, lines) for name in ("older", "changed", "gone", "odd"))
    manifest = json.loads((older / "manifest.json").read_text())
    (older / "manifest.json").write_text(json.dumps(manifest | {"outputs": []}))
    (changed / "specs.jsonl").write_text("")
    (gone / "specs.jsonl").unlink()
    (odd / "manifest.json").write_text("[]")
    for where, says in (
        (tmp_path, r"no manifest\.json"),
        (folder / "specs.jsonl", "is a file"),
        (write(tmp_path / "snapshot", lines, kind="snapshot"), "holds a snapshot, not an extraction"),
        (older, r"has no specs\.jsonl: an earlier version wrote it; run `lemur extract` again"),
        (changed, "is not the file that the manifest states"),
        (gone, "is not the file that the manifest states"),
        (odd, "not a valid manifest"),
    ):
        with pytest.raises(UserError, match=says):
            open_index(where)
    assert answer(write(tmp_path / "empty", []), "gate") == "gate: nothing matches; try a category or a layer"


def test_the_command(folder: Path, lemur_here: Any) -> None:
    done = lemur_here("search", "se", "module", "--in", folder, "-k", "1", cwd=folder)
    assert (done.returncode, done.stdout[:5]) == (0, "  1  ")
    done = lemur_here("search", "zzzz", "--in", folder, cwd=folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"lemur: {folder}: zzzz: nothing matches; try a category or a layer\n"
