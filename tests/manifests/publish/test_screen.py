"""Secrets and paths are found in every kind of file and column, and what only looks like one is not."""

import json
import re
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.files.errors import UserError
from manifests.publish.patterns import Shape, own_folders
from manifests.publish.screen import Finding, check_digests, check_findings, screen, table_texts
from tests.builders.suites import read_table, table

ALNUM = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0fGhIjKlMnOpQrStUvWx"
SECRETS = read_table(__file__, "screen.md", "Secrets", globals())


def found(folder: Path) -> list[Finding]:
    return screen({path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()})


def only(folder: Path) -> Finding:
    (item,) = found(folder)
    return item


def column_kinds(text: str) -> dict[str, pa.Array]:
    """The text in the third of four rows, in every type that a column may have."""
    values = ["", None, text, "other"]
    return {
        "string": pa.array(values, pa.string()),
        "large_string": pa.array(values, pa.large_string()),
        "string_view": pa.array(values, pa.string_view()),
        "binary": pa.array([None if v is None else v.encode() for v in values], pa.binary()),
        "dictionary": pa.array(values).dictionary_encode(),
        "list": pa.array([[], None, ["a", text], ["b"]], pa.list_(pa.string())),
        "struct": pa.array([None, {"x": None}, {"x": text}, {"x": "b"}]),
        "list of structs": pa.array(
            [[], None, [{"x": "a"}, {"x": text}], []], pa.list_(pa.struct([("x", pa.string())]))
        ),
        "map": pa.array([[], None, [("k", text)], []], pa.map_(pa.string(), pa.string())),
        "map key": pa.array([[], None, [(text, "v")], []], pa.map_(pa.string(), pa.string())),
    }


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_in_every_kind_of_file(tmp_path: Path, kind: str) -> None:
    secret, name = SECRETS[kind], kind.partition(" (")[0]
    (tmp_path / "report.md").write_text(f"first\nsecond `{secret}`\n")
    (tmp_path / "manifest.json").write_text(json.dumps({"parameters": {"x": secret}}, indent=1))
    (tmp_path / "blocks").mkdir()
    (tmp_path / "blocks" / "a.py").write_text(f"key = '{secret}'\r\n")
    (tmp_path / "one.png").write_bytes(b"\x89PNG\0\xff" + secret.encode() + b"\0\xfe")
    pq.write_table(pa.table({"n": [1, 2], "error": [None, f"x {secret}"]}), tmp_path / "t.parquet")
    items = found(tmp_path)
    places = {(item.file, item.where) for item in items}
    at = 6 if not secret.startswith("https") else 11  # of a URL, what stands before :// is no part of it
    assert places == {
        ("report.md", "line 2"),
        ("manifest.json", "line 3"),
        ("blocks/a.py", "line 1"),
        ("one.png", f"byte {at}"),
        ("t.parquet", "row 1, column error"),
    }
    assert {item.kind for item in items} == {name}
    assert all(item.secret and item.refused for item in items)
    with pytest.raises(UserError) as caught:
        check_findings(tmp_path, items)
    told = str(caught.value)
    assert secret not in told
    assert secret[4:14] not in told
    assert f"blocks/a.py, line 1: {name}" in told
    assert "(and 2 more)" in told


@pytest.mark.parametrize("escape", ["\n", "\t", "\r", '"', "\b", "\f", "é"])
def test_a_secret_behind_an_escaped_sign(tmp_path: Path, escape: str) -> None:
    """JSON, and JSON inside JSON, write a line feed as two letters."""
    text = f"bad:{escape}{SECRETS['Hugging Face token']}"
    (tmp_path / "a.jsonl").write_text(json.dumps({"error": text}))
    (tmp_path / "b.jsonl").write_text(json.dumps({"prm": json.dumps({"error": text})}))
    (tmp_path / "c.py").write_text(f"x = '\\x0a{SECRETS['Hugging Face token']}'")
    assert [item.file for item in found(tmp_path)] == ["a.jsonl", "b.jsonl", "c.py"]


@pytest.mark.parametrize("kind", SECRETS)
def test_what_only_looks_like_a_secret_may_leave_by_its_digest(tmp_path: Path, kind: str) -> None:
    code = f'EXAMPLE = """{SECRETS[kind]}\nMIIEow"""'
    (tmp_path / "a.py").write_text(code)
    pq.write_table(pa.table({"code": [code]}), tmp_path / "t.parquet")
    with pytest.raises(UserError, match="--not-secret") as caught:
        check_findings(tmp_path, found(tmp_path))
    digest = str(caught.value).rpartition(" ")[2]
    (note,) = check_findings(tmp_path, found(tmp_path), [digest])
    assert note.startswith("left as written: 2 texts like a secret, by --not-secret, in 2 files: a.py, line 1: ")
    other = f"{SECRETS[kind]}\nMIIEpQ" if "private" in kind else SECRETS[kind].replace("2", "3")
    (tmp_path / "b.py").write_text(f'KEY = """{other}"""')
    with pytest.raises(UserError, match=r"b\.py"):
        check_findings(tmp_path, found(tmp_path), [digest])


@pytest.mark.parametrize("digest", ["", "xyz", "ghp_aB3dE6gH", "0123456789AB", "0123456789abc"])
def test_a_digest_that_is_none(digest: str) -> None:
    with pytest.raises(UserError, match="use the 12 digits in brackets"):
        check_digests([digest])


@pytest.mark.parametrize("kind", column_kinds(""))
def test_a_secret_in_every_kind_of_column(tmp_path: Path, kind: str) -> None:
    pq.write_table(
        pa.table({"n": [1.0] * 4, "nn_code": column_kinds(SECRETS["GitHub token"])[kind]}), tmp_path / "t.parquet"
    )
    assert re.fullmatch(r"t.parquet, row 2, column nn_code: GitHub token ghp_… \[[0-9a-f]{12}\]", str(only(tmp_path)))


def test_a_secret_in_what_a_table_says_of_itself(tmp_path: Path) -> None:
    table = pa.table({"n": [1]}).replace_schema_metadata({"made by": SECRETS["AWS key"]})
    pq.write_table(table, tmp_path / "t.parquet")
    assert only(tmp_path).where == "row 0, column names"
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"t.parquet: not readable: .*; create the folder again"):
        found(tmp_path)


def test_rows_are_counted_over_batches_and_groups(tmp_path: Path) -> None:
    texts = ["x" * (n % 50) for n in range(5_000)]
    for row in (0, 1_999, 2_000, 4_321, 4_999):
        texts[row] = f"{SECRETS['Slack token']} {row}"
    pq.write_table(pa.table({"reason": texts}), tmp_path / "t.parquet", row_group_size=777)
    assert [item.where for item in found(tmp_path)] == [
        f"row {row}, column reason" for row in (0, 1_999, 2_000, 4_321, 4_999)
    ]


def test_neighbours_make_no_secret_and_hide_none(tmp_path: Path) -> None:
    """Values lie end to end while they are searched."""
    secret = SECRETS["Hugging Face token"]
    texts = [secret[:10], secret[10:], "hf_", secret, secret[3:], "AKI", "A" + "B" * 16, "word", "_" + secret]
    pq.write_table(pa.table({"x": texts}), tmp_path / "t.parquet")
    assert [item.where for item in found(tmp_path)] == ["row 3, column x"]


@table(__file__, "screen.md", "What is none", globals())
def test_what_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.md").write_text(f"{text}\n'{text}'")
    pq.write_table(pa.table({"reason": [text]}), tmp_path / "t.parquet")
    assert found(tmp_path) == []


@table(__file__, "screen.md", "People s paths stay in their own code alone", globals())
def test_people_s_paths_stay_in_their_own_code_alone(tmp_path: Path, path: str) -> None:
    (tmp_path / "blocks").mkdir()
    (tmp_path / "blocks" / "a.py").write_text(f"x = '{path}'")
    pq.write_table(pa.table({"code": [path], "nn_code": [path], "prm": [path]}), tmp_path / "t.parquet")
    items = found(tmp_path)
    assert len(items) == 4
    assert not any(item.refused for item in items)
    (note,) = check_findings(tmp_path, items)
    assert note.startswith("left as written: 4 absolute paths in the code of others, in 2 files: ")
    (tmp_path / "specs.jsonl").write_text(f'{{}}\n{{"a": "{path}"}}')
    with pytest.raises(UserError, match=r"specs.jsonl, line 2: absolute path .*; create it again without"):
        check_findings(tmp_path, found(tmp_path))


@pytest.mark.parametrize("name", ["manifest.json", "report.md", "README.md", "blocks/a.py", "one.png"])
@pytest.mark.parametrize("own", ["cwd", "home", "temporary", "folder"])
def test_paths_of_this_machine_never_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, own: str
) -> None:
    places = {place: tmp_path / "m" / place for place in ("cwd", "home", "temporary", "folder")}
    for path in places.values():
        path.mkdir(parents=True)
    monkeypatch.chdir(places["cwd"])
    monkeypatch.setenv("HOME", str(places["home"]))
    monkeypatch.setattr(tempfile, "tempdir", str(places["temporary"]))
    file = tmp_path / "f"
    nul = "\0" if name.endswith("png") else ""
    file.write_text(f"{nul}see {places[own]}/x.py:3 and {places[own]}land/x")
    (item,) = screen({name: file}, places["folder"])
    assert item.refused
    assert item.shown == f"{places[own]}/x.py"


def test_a_working_folder_with_a_name_that_many_machines_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for named, ours in (("/content", True), ("/", False), ("/usr", False)):
        monkeypatch.setattr(Path, "cwd", classmethod(lambda cls, named=named: cls(named)))
        assert (named in own_folders()) == ours
    monkeypatch.setattr(Path, "cwd", classmethod(lambda cls: cls("/proc1")))
    monkeypatch.setattr(Path, "exists", lambda self: str(self) == "/proc1/mine")
    (tmp_path / "blocks").mkdir()
    (tmp_path / "blocks" / "a.py").write_text("a = '/proc1/mine/x'\nb = '/proc1/data/x'\n")
    assert [(item.where, item.refused) for item in found(tmp_path)] == [("line 1", True), ("line 2", False)]


def test_a_folder_of_this_machine_as_json_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jürgen").mkdir()
    monkeypatch.chdir(tmp_path / "jürgen")
    (tmp_path / "a.json").write_text(json.dumps({"x": f"{tmp_path}/jürgen/x"}))
    (item,) = screen({"blocks/a.json": tmp_path / "a.json"})
    assert item.refused


@pytest.mark.parametrize("common", ["/tmp", "/root"])
def test_common_folders_are_ours_where_the_path_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, common: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    monkeypatch.setenv("HOME", "/root")
    there = Path(tempfile.mkdtemp(dir=common)) if common == "/tmp" else None
    (tmp_path / "blocks").mkdir()
    (tmp_path / "blocks" / "a.py").write_text(f"x = '{common}/no-such-thing/x.pt'\ny = '{there or ''}/y'\n")
    items = found(tmp_path)
    assert [item.refused for item in items] == ([False, True] if there else [False])
    if there:
        there.rmdir()
    (tmp_path / "report.md").write_text(f"{common}/no-such-thing/x.pt")
    assert [item.refused for item in found(tmp_path) if item.file == "report.md"] == [True]


@given(
    st.lists(st.one_of(st.none(), st.text(alphabet="ab\n/", max_size=9)), max_size=30),
    st.text("ab/", min_size=1, max_size=2),
)
def test_places_are_those_of_a_plain_search(values: list[str | None], head: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.parquet"
        pq.write_table(pa.table({"x": pa.array(values, pa.string())}), path)
        texts = [item for item in table_texts(path) if item.column == "x"]
    held = [text.decode() for item in texts for text in item.values]
    assert held == [value or "" for value in values]
    shape = Shape("x", head.encode(), re.compile(re.escape(head.encode())), lambda *_: True, secret=False)
    places = {place for item in texts for place, _ in item.find(shape.find)}
    assert places == {place for place, value in enumerate(held) if head in value}
