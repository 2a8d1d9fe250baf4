"""SOURCE in all its forms: files, folders, the Hub, blocks, several; what is said when one cannot be."""

import gzip
import hashlib
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate.sources
from curate.model.options import CurateOptions
from curate.sources import open_source, open_sources
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import RetryableError, UsageError, UserError
from tests.builders import extractions
from tests.builders.fake_hub import FakeHub, Fault
from tests.builders.source_rows import error_of, read, rows_of


@pytest.mark.parametrize(("spec", "arguments"), [("lemur", ("2.1.0",)), ("lemur@2.0.5", ("2.0.5",)), ("lemur@", ("",))])
def test_lemur_release(monkeypatch: pytest.MonkeyPatch, spec: str, arguments: tuple[str, ...]) -> None:
    monkeypatch.setattr(curate.sources, "LemurRelease", lambda *given: ("release", *given))
    assert open_source(spec) == ("release", *arguments)


FILES = {
    **dict.fromkeys(("notes.txt", "rows.yaml", "rows", "model.py", "rows.parquet.gz"), b"x = 1"),
    "none/.git/a.py": b"x",
    "nets/a.py": b"a = 1",
    "nets/networks.csv": b"name,task\na,t\n",
    **{f"columns.{end}": b"nn,code\na,x\n" for end in ("csv", "parquet")},
    "columns.jsonl": b'{"nn": "a", "code": "x"}\n',
    "columns.json": b'[{"nn": "a", "code": "x"}]',
    "twice.csv": b"nn,nn_code,nn_code\na,x,y\n",
    "header.csv": b"nn,nn_code\n",
    "blank.jsonl": b"\n \n",
    "empty.json": b"[]",
    "cut.json": b'[{"nn": "a"',
    "deep.json": b"[" * 200_000,
    "digits.json": b"[" + b"9" * 5000 + b"]",
    "half.jsonl.gz": gzip.compress(b'{"nn": "a"}')[:-9],
    "plain.csv.gz": b"plain",
    "noise.parquet": b"nn,nn_code",
}
NO_COLUMN = ": no column 'nn_code'; it has nn, code; rename the column that holds it to 'nn_code'"
FORMS = (
    "SOURCE is lemur[@VERSION], lemur-db[@VERSION], a .parquet/.json/.jsonl/.csv/.db/.zst file, a folder of .py files,"
    " or hf://datasets/OWNER/NAME"
)
REFUSED = {
    **dict.fromkeys(
        ("missing", "missing.parquet", "", "a\0b", "x/y.csv", "notes.txt/inside.csv"),
        f": no such file or folder; {FORMS}",
    ),
    "x" * 5000: ": cannot be read: File name too long; SOURCE is ",
    **dict.fromkeys(
        ("notes.txt", "rows.yaml", "rows", "model.py", "rows.parquet.gz"), ": unknown kind of file; SOURCE"
    ),
    "none": "none: holds no .py files (hidden folders and __pycache__ are not searched)",
    "nets": "networks.csv: no column 'nn'; it has name, task;",
    **{f"columns.{end}": f"columns.{end}{NO_COLUMN}" for end in ("csv", "parquet", "jsonl", "json")},
    **{f"twice.{end}": "column 'nn_code' is there 2 times; keep one of them" for end in ("csv", "parquet")},
    **dict.fromkeys(("header.csv", "header.parquet", "blank.jsonl", "empty.json"), ": holds no rows; name a SOURCE"),
    **dict.fromkeys(("cut.json", "deep.json", "digits.json"), ".json: not a JSON array: "),
    **dict.fromkeys(("half.jsonl.gz", "plain.csv.gz"), ".gz: cannot be read: "),
    "noise.parquet": "noise.parquet: cannot be read: ",
    **{
        f"pipe{end}": f"pipe{end}: is a pipe, a socket or a device"
        for end in ("", ".jsonl", ".csv.gz", ".parquet", ".db")
    },
    **dict.fromkeys(
        ("hf://owner/name", "hf://datasets/name", "hf://datasets/owner/name/file.parquet", "hf://datasets/o/n@"),
        ": not a dataset on the Hub; write hf://datasets/OWNER/NAME",
    ),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = fill(tmp_path_factory.mktemp("place"), FILES)
    for name, columns in (("columns", ["nn", "code"]), ("twice", ["nn", "nn_code", "nn_code"])):
        pq.write_table(pa.Table.from_arrays([pa.array(["x"])] * len(columns), columns), folder / f"{name}.parquet")
    pq.write_table(pa.table({"nn": pa.array([], pa.string()), "nn_code": []}), folder / "header.parquet")
    for end in ("", ".jsonl", ".csv.gz", ".parquet", ".db"):
        os.mkfifo(folder / f"pipe{end}")
    return folder


@pytest.mark.parametrize(("spec", "said"), REFUSED.items())
def test_what_is_refused_is_one_line(place: Path, monkeypatch: pytest.MonkeyPatch, spec: str, said: str) -> None:
    monkeypatch.chdir(place)
    assert said in error_of(spec)


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return folder


def test_folder_rows(tmp_path: Path) -> None:
    fill(
        tmp_path,
        {
            "b.py": b"b = 1\n",
            "a/z.py": b"z = 1\n",
            "a.py": b"a = 1\n",
            "a-b.py": b"",
            "a/y/x.py": b" \n\t",
            "bom.py": b"\xef\xbb\xbfx = 1\r\ny = 2\rz = 3\n",
            "latin.py": b"# caf\xe9\n",
            "caf\udce9.py": b"c = 1\n",
            ".hidden/c.py": b"c = 1\n",
            "__pycache__/d.py": b"d = 1\n",
            "README.md": b"text",
        },
    )
    found = [(row["nn"], row["nn_code"], row["problem"]) for row in read(tmp_path)]
    assert found == [
        ("a-b", None, "nn_code is empty"),
        ("a", "a = 1\n", None),
        ("a/y/x", None, "nn_code is empty"),
        ("a/z", "z = 1\n", None),
        ("b", "b = 1\n", None),
        ("bom", "x = 1\ny = 2\nz = 3\n", None),
        ("caf\\xe9", "c = 1\n", None),
        ("latin", None, "invalid UTF-8 at byte 5"),
    ]


def test_folder_links(tmp_path: Path) -> None:
    outside = fill(tmp_path / "outside", {"secret.py": b"s = 1"})
    inside = fill(tmp_path / "inside", {"real.py": b"r = 1"})
    (inside / "copy.py").symlink_to("real.py")
    (inside / "leaves.py").symlink_to(outside / "secret.py")
    (inside / "loop.py").symlink_to("loop.py")
    (inside / "gone.py").symlink_to("nowhere.py")
    (inside / "up").symlink_to("..")
    (inside / "elsewhere").symlink_to(outside)
    found = [(row["nn"], row["nn_code"], row["problem"]) for row in read(inside)]
    assert found == [
        ("copy", "r = 1", None),
        ("gone", None, "cannot be read: No such file or directory"),
        ("leaves", None, "cannot be read: a link that leaves the folder is not followed"),
        ("loop", None, "cannot be read: Too many levels of symbolic links"),
        ("real", "r = 1", None),
    ]


def test_a_folder_of_tables_is_not_left_by_links(tmp_path: Path) -> None:
    inside = fill(tmp_path / "inside", {})
    inside.mkdir()
    (inside / "b.parquet").symlink_to(fill(tmp_path / "outside", {"b.parquet": b""}) / "b.parquet")
    with pytest.raises(UserError, match=r"b\.parquet: cannot be read: a link that leaves the folder is not followed"):
        rows_of(open_source(str(inside)))


def test_folder_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill(tmp_path / "codes", {"b.py": b"b = 1", "a/c.py": b"\xff"})
    expected = hashlib.sha256()
    for name, content in (("a/c.py", b"\xff"), ("b.py", b"b = 1")):
        expected.update(name.encode() + b"\0" + hashlib.sha256(content).hexdigest().encode() + b"\n")
    monkeypatch.chdir(folder)
    for source in (open_source(str(folder)), open_source(".")):
        assert source.name == "codes"
        [given] = source.inputs()
        assert (given.name, given.sha256, given.bytes) == ("codes", expected.hexdigest(), 6)
        assert rows_of(source) == rows_of(source)
        assert source.inputs() == [given]


def test_files_are_what_the_table_of_the_folder_and_the_options_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fill(tmp_path / "nets", {"a.py": b"a = 1", "b/c.py": b"c = 1", "d.py": b"d = 1"})
    lines = [
        {"nn": "a", "task": "img-segmentation", "dataset": "coco", "metric": "iou", "epoch": 1, "accuracy": 0.5},
        {"nn": "b/c.py", "prm": {"lr": 0.5, "metric_acc": 1}},
        {"nn": "b/c", "epoch": 2},
        {"nn": "gone"},
    ]
    (folder / "networks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = open_sources([str(folder)], CurateOptions(task=("t",), dataset=("x", "y"), prm='{"lr": 0.1}').of_files)
    columns = ("nn", "nn_code", "task", "dataset", "metric", "epoch", "accuracy", "prm", "problem")
    assert [tuple(row[name] for name in columns) for row in rows_of(source)] == [
        ("a", "a = 1", "img-segmentation", "coco", "iou", 1, 0.5, '{"lr": 0.1}', None),
        ("b/c", "c = 1", "t", None, None, None, None, '{"lr": 0.5}', None),
        ("b/c", "c = 1", "t", None, None, 2, None, '{"lr": 0.1}', None),
        ("d", "d = 1", "t", None, None, None, None, '{"lr": 0.1}', None),
    ]
    assert "1 name of its table networks.jsonl without a file, for example gone" in capsys.readouterr().err
    table = (folder / "networks.jsonl").read_bytes()
    named = {item.name: item.sha256 for item in source.inputs()}
    assert named["nets/networks.jsonl"] == hashlib.sha256(table).hexdigest()
    (folder / "networks.csv").write_text("nn\n")
    with pytest.raises(UserError, match=r"has two tables, networks\.csv and networks\.jsonl; keep one of them"):
        rows_of(source)


def test_hyperparameters_of_files_need_files(tmp_path: Path) -> None:
    table = tmp_path / "a.jsonl"
    table.write_text("{}")
    with pytest.raises(UsageError, match="--prm: is for the files of a folder, and no SOURCE is one; leave it out"):
        open_sources([str(table)], {"prm": "{}"})


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    hub = FakeHub(tmp_path / "hub-cache")
    hub.install(monkeypatch)
    return hub


def parquet(*rows: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), sink)
    return sink.getvalue()


def line(**row: Any) -> bytes:
    return json.dumps(row).encode() + b"\n"


def test_hub_rows(hub: FakeHub) -> None:
    train = parquet(*({"nn": f"n{i}", "nn_code": f"x = {i}", "prm": {"lr": i}, "other": b"\xff"} for i in range(3)))
    test = parquet({"nn": "t", "nn_code": None, "accuracy": 0.5, "epoch": "7"})
    repo = hub.make("owner/name")
    repo.edit(**{"data/train.parquet": train, "data/test.parquet": test, "rows.jsonl": line(nn="j", nn_code="j = 1")})
    source = open_source("hf://datasets/owner/name")
    found = rows_of(source)
    assert [(row["nn"], row["problem"], row["prm"], row["epoch"]) for row in found] == [
        ("t", "nn_code is missing", None, 7),
        ("n0", None, '{"lr": 0}', None),
        ("n1", None, '{"lr": 1}', None),
        ("n2", None, '{"lr": 2}', None),
    ]
    assert [(given.name, given.sha256, given.bytes) for given in source.inputs()] == [
        (f"hf://datasets/owner/name/data/{name}", hashlib.sha256(content).hexdigest(), len(content))
        for name, content in (("test.parquet", test), ("train.parquet", train))
    ]
    assert hub.requests["hf_hub_download"] == 2


def test_hub_revision_and_finished_folder(hub: FakeHub) -> None:
    first = hub.make("o/old").edit(**{"a.jsonl.gz": gzip.compress(line(nn="old", nn_code="x = 1"))})
    hub.repos["o/old"].edit(**{"a.jsonl.gz": gzip.compress(line(nn="new", nn_code="x = 1"))})
    for spec, name in (("o/old", "new"), (f"o/old@{first}", "old")):
        assert [row["nn"] for row in rows_of(open_source(f"hf://datasets/{spec}"))] == [name]
    rows = parquet({"nn": "a", "nn_code": "a = 1"})
    files = {"manifest.json": b"{}", "decisions.parquet": parquet({"x": 1}), "data/records/train-0.parquet": rows}
    hub.make("o/n").edit(**files)
    assert [row["nn"] for row in rows_of(open_source("hf://datasets/o/n"))] == ["a"]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, ": holds no Parquet, JSONL, CSV or JSON file; "),
        ({"x.csv": b"nn,code\na,x\n"}, "/x.csv: no column 'nn_code'; it has nn, code;"),
    ],
)
def test_hub_without_networks(hub: FakeHub, files: dict[str, bytes], said: str) -> None:
    hub.make("o/n").edit(**files)
    with pytest.raises(UserError, match=f"^hf://datasets/o/n{said}"):
        rows_of(open_source("hf://datasets/o/n"))


@pytest.mark.parametrize(
    ("fault", "spec", "kind", "said"),
    [
        (("dataset_info", 503), "o/n", RetryableError, "ordered by the test; run the same command again"),
        (("dataset_info", 403), "o/n", UserError, ": no permission"),
        (("hf_hub_download", "drop"), "o/n", RetryableError, "/a.csv: "),
        (None, "o/n@none", UserError, ": no such revision"),
        (None, "o/none", UserError, ": no such repository, or it is private"),
    ],
)
def test_hub_fails(hub: FakeHub, fault: tuple[str, Fault] | None, spec: str, kind: type[UserError], said: str) -> None:
    hub.make("o/n").edit(**{"a.csv": b"nn,nn_code\na,x = 1\n"})
    hub.faults |= [fault] if fault else {}
    with pytest.raises(UserError) as caught:
        rows_of(open_source(f"hf://datasets/{spec}"))
    assert type(caught.value) is kind
    assert str(caught.value).startswith(f"hf://datasets/{spec}")
    assert said in str(caught.value)


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Blocks under MIT, GPL and an unknown license; one of the MIT source has a part from the GPL source."""
    root = tmp_path_factory.mktemp("made")
    sources = [extractions.source(root, name) for name in ("alpha@1.0", "beta@1.0", "gamma@1.0")]
    results = extractions.results(sources)
    first = results[1]
    results[1] = type(first)(first.row, (*first.closure_files, ("beta@1.0", "beta/parts.py")))
    extractions.write(root / "blocks", results, sources)
    return root / "blocks"


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    rows = [{"nn": "ga-1", "nn_code": "a = 1\n"}, {"nn": "ga-2", "nn_code": "b = 2\n"}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_blocks_are_records_or_say_why_not(blocks: Path) -> None:
    source = open_source(str(blocks))
    assert source.name == "blocks"
    assert [(item.name, item.sha256) for item in source.inputs()] == [
        (f"blocks/{name}", sha256_file(blocks / name)) for name in ("blocks.parquet", "required_repos.json")
    ]
    rows = rows_of(source)
    codes = {f"block-{row['block']}": row["code"] for row in pq.read_table(blocks / "blocks.parquet").to_pylist()}
    assert [row["nn"] for row in rows] == list(codes)
    handed = {row["nn"]: row["nn_code"] for row in rows if row["nn_code"] is not None}
    assert handed == {
        name: codes[name] for name in codes if name.endswith(("alpha.blocks.Attention", "alpha.blocks.Einops"))
    }
    blocked = "the license of the block does not permit redistribution: "
    expected = {
        "alpha.blocks.Attention": None,
        "alpha.blocks.Scale": f"{blocked}GPL-3.0-only",
        "alpha.blocks.Einops": None,
    }
    for made, license_ in (("beta", "GPL-3.0-only"), ("gamma", "NOASSERTION")):  # of Scale, one part is of beta
        expected |= {f"{made}.blocks.{name}": f"{blocked}{license_}" for name in ("Attention", "Scale", "Einops")}
    for made in ("alpha", "beta", "gamma"):
        expected[f"{made}.blocks.Native"] = "the block came to discovered only: native_op"
        expected[f"{made}.blocks.Broken"] = "the block came to compiled only: runtime_error"
    assert {row["nn"].rpartition("::")[2]: row["problem"] for row in rows} == expected


def test_a_block_hands_over_its_lean_form_under_the_licence_of_that(tmp_path: Path) -> None:
    """Of the closed file a part is under the GPL; what is cut to needs none of it."""
    sources = [extractions.source(tmp_path, name) for name in ("alpha@1.0", "beta@1.0")]
    results = extractions.results(sources)[:2]
    lean = {"lean_lines": 6, "lean_sha256": "0" * 64, "lean_requires": (), "lean_error": None}
    for place, licence in enumerate(("MIT", "MIT AND GPL-3.0-only")):
        row, files = results[place].row, (*results[place].closure_files, ("beta@1.0", "beta/parts.py"))
        code = extractions.code_of(row.block, licence, f"import torch\n\n\nclass Lean{place}(torch.nn.Module): ...\n")
        row = row.model_copy(update={"lean_code": code, "lean_license": licence, **lean})
        results[place] = type(results[place])(row, files)
    extractions.write(tmp_path / "blocks", results, sources)
    source = open_source(str(tmp_path / "blocks"))
    first, second = rows_of(source)
    assert "class Lean0" in first["nn_code"]
    assert second["nn_code"] is None
    assert second["problem"].endswith("permit redistribution: MIT AND GPL-3.0-only")
    assert source.license(None) == "MIT"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("required_repos.json", "{", r"required_repos\.json: cannot be read: .*; extract it again"),
        ("required_repos.json", '{"sources": {}, "blocks": []}', r"cannot be read as blocks: .*; extract it again"),
        ("blocks.parquet", "PAR1", r"blocks\.parquet: cannot be read as blocks: .*; extract it again"),
    ],
)
def test_a_damaged_extraction_is_one_line(blocks: Path, tmp_path: Path, name: str, text: str, said: str) -> None:
    harmed = Path(shutil.copytree(blocks, tmp_path / "harmed"))
    (harmed / name).write_text(text)
    with pytest.raises(UserError, match=said) as caught:
        rows_of(open_source(str(harmed)))
    assert "\n" not in str(caught.value)


def test_rows_of_several_stand_in_the_order_of_the_sources(blocks: Path, lines: Path) -> None:
    one, two = open_source(str(lines)), open_source(str(blocks))
    both = open_sources([str(lines), str(blocks)])
    assert both.name == "rows.jsonl + blocks"
    assert type(open_sources([str(lines)])) is type(one), "one source stays itself"
    assert rows_of(both) == rows_of(both) == [*rows_of(one), *rows_of(two)]
    assert both.inputs() == [*one.inputs(), *two.inputs()]


def test_sources_of_one_name_are_refused(lines: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(lines, other / lines.name)
    with pytest.raises(UserError, match=r"^rows\.jsonl: two sources have this name; leave one out"):
        open_sources([str(lines), str(other / lines.name)])
    with pytest.raises(UserError, match="no SOURCE; name at least one"):
        open_sources([])


def test_the_licence_is_that_of_all_the_code_that_is_handed_over(blocks: Path, lines: Path) -> None:
    found = open_source(str(blocks))
    assert found.license(None) == "MIT"
    with_unknown = open_sources([str(blocks), str(lines)])
    assert with_unknown.license(None) == "NOASSERTION"
    assert with_unknown.license("ISC") == "ISC AND MIT", "what a user states is of those that state nothing"
    assert found.license("GPL-3.0-only") == "MIT"
