"""`lemur open`: a folder's own page, or one that is made in the cache and leads back; nothing in the folder changes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from curate.model.options import CurateOptions
from curate.run.pipeline import curate
from curate.sources import open_sources
from lemur.cli import app
from lemur.folders import verify_folder
from lemur.pages import find_page
from lemur_core.files.atomic import PAGE
from lemur_core.files.errors import UserError
from manifests.folders.frame import pack
from tests.builders import extractions
from tests.manifests.page.test_frame import read_page, read_shards

NET = (
    "import torch\nfrom torch import nn\n\nclass Net(nn.Module):\n    def forward(self, x):\n        return x * {}\n"
    * 6
)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    codes = {"a-one": NET.format(*range(1, 7)), "a-two": "# a comment\n" + NET.format(*range(1, 7))}
    codes["b-<script>"] = "from torch import nn\n\nclass Net(nn.Module):\n    text = '</script>\u202e'\n" + "".join(
        f"    y{n} = {n} + {n}\n" for n in range(40)
    )
    rows = [{"nn": name, "nn_code": code, "accuracy": 0.5, "task": "t", "dataset": "d", "metric": "acc", "epoch": 1}
            for name, code in codes.items()]  # fmt: skip
    rows += [
        {**row, "epoch": epoch, "accuracy": accuracy} for row in rows[:1] for epoch, accuracy in ((5, 0.75), (7, 0.5))
    ]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEMUR_CURATOR_CACHE", str(folder / "cache"))
        curate(open_sources([str(folder / "in.jsonl")]), folder / "out", CurateOptions(graph="off"), jobs=1)
    return folder / "out"


CASES = [{"inputs": {"x": "2x4", "y": "2"}, "outputs": ["2x4", "2"]}, {"inputs": {"x": "3x4"}, "outputs": []}]


@pytest.fixture(scope="module")
def extraction(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("blocks")
    sources = [extractions.source(base, name) for name in ("alpha@1.0", "beta@2.0")]
    made = extractions.results(sources)
    seen = {"parameters": 0, "trainable": 0, "buffers": 0, "layers": {}, "cases": CASES}
    made[0] = replace(made[0], row=made[0].row.model_copy(update={"observed": json.dumps(seen)}))
    extractions.write(base / "out", made, sources)
    return base / "out"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path / "cache"))


def without_page(folder: Path, out: Path) -> Path:
    """The folder as older releases wrote it."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and not PAGE.fullmatch(name.as_posix()):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(path.read_bytes())
    return out


def test_a_snapshot_shows_every_record(snapshot: Path) -> None:
    data, entries = read_page(snapshot)
    library = data["library"]
    kept = dict(zip(library["names"], library["further"], strict=True))
    (name,) = kept.keys() - {"b-<script>"}
    views = {view["view"]: view for view in entries[library["names"].index(name)]}
    assert {name, *kept[name]} == {"a-one", "a-two"}, "one of them stands for the other"
    assert views["versions"]["rows"][0][0].startswith("exact 1.000")
    record = dict(views["facts"]["rows"])
    if name == "a-one":
        assert (record["best accuracy"], record["best epoch"], record["dataset"]) == ("0.75", "5", "d")
        assert views["results"]["rows"] == [["t", "d", "acc", [[1, 0.5], [5, 0.75], [7, 0.5]]]]
    assert views["versions"]["text"] == views["code"]["text"] != views["versions"]["rows"][0][1]
    funnel = next(view for view in data["views"] if view["title"] == "From rows to records")
    assert [row[2] for row in funnel["rows"]] == [3, None, 1, 2]
    assert all(check.ok for check in verify_folder(snapshot, jobs=1))


def test_an_extraction_shows_what_may_be_passed_on(extraction: Path) -> None:
    data, entries = read_page(extraction)
    library = data["library"]
    assert len(library["names"]) == len(entries) == 10
    licence = library["facets"][3]
    for at, views in enumerate(entries):
        stated = licence[1][licence[2][at]]
        if any(view["title"] == "Lean code" for view in views):
            assert stated == "MIT"
    shapes = [view["rows"] for views in entries for view in views if view["title"] == "Shapes"]
    assert shapes == [[["x 2x4; y 2", "2x4; 2"], ["x 3x4", "no tensor"]]]
    texts = json.dumps(entries) + json.dumps(data)
    gpl = [path.read_text() for path in (extraction / "blocks" / "beta@2.0").glob("*.py")]
    assert gpl
    texts += json.dumps(read_shards(extraction))
    assert not any(json.dumps(line)[1:-1] in texts for code in gpl for line in code.splitlines() if "class " in line)


@pytest.mark.parametrize("which", ["snapshot", "extraction"])
def test_older_folders_get_theirs_in_the_cache(which: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    whole = request.getfixturevalue(which)
    assert find_page(whole) == whole / "index.html"
    older = without_page(whole, tmp_path / "older")
    before = sorted(older.rglob("*"))
    index = find_page(older)
    assert index.is_relative_to(tmp_path / "cache")
    assert sorted(older.rglob("*")) == before
    data, entries = read_page(index.parent)
    assert data["base"] == older.as_uri() + "/"
    assert (data | {"base": ""}, entries) == read_page(whole)
    assert verify_folder(older, jobs=1)[0].ok


def test_the_command(snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    run = CliRunner()
    done = run.invoke(app, ["open", str(snapshot), "--no-browser"])
    assert (done.exit_code, done.output, opened) == (0, f"{snapshot / 'index.html'}\n", [])
    run.invoke(app, ["open", str(snapshot)])
    assert opened == [(snapshot / "index.html").as_uri()]
    found: Any = run.invoke(app, ["open", str(tmp_path)])
    assert isinstance(found.exception, UserError)
    assert "no manifest.json" in str(found.exception)


def test_a_page_that_was_changed_is_found(snapshot: Path, tmp_path: Path) -> None:
    copy = without_page(snapshot, tmp_path / "copy")
    (copy / "page").mkdir()
    for name in ("index.html", "page/000.js"):
        (copy / name).write_bytes((snapshot / name).read_bytes())
    assert all(check.ok for check in verify_folder(copy, jobs=1))
    (copy / "page" / "files.json").write_text("{}")
    assert all(check.ok for check in verify_folder(copy, jobs=1)), "the list of older releases"
    packed = (copy / "page" / "000.js").read_text()
    for text, check, fault in (
        ("alert(1)", 0, "page/000.js is not as this release writes it"),
        (
            packed.replace(packed[10:-4], pack('{"lines":[],"entries":[]}')),
            -1,
            "index.html or page/ shows something else",
        ),
        (None, -1, "index.html or page/ shows something else"),
    ):
        (copy / "page" / "000.js").write_text(text) if text else (copy / "page" / "000.js").unlink()
        assert fault in verify_folder(copy, jobs=1)[check].detail
    (copy / "page" / "more.js").write_text(packed)
    assert "page/more.js is not in the manifest" in verify_folder(copy, jobs=1)[0].detail
