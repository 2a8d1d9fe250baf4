"""A page: what is in it comes out as it went in, whatever it holds; the same bytes in every run."""

import base64
import json
import random
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.folders import frame
from manifests.folders.frame import Entry, EntryLibrary, Page, View, code, facts, versions, write_entries, write_page

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</textarea><svg/onload=alert(1)>",
    "--><!--<!DOCTYPE html>",
    '"); lemur(0,"',
    "javascript:alert(1)",
    "admin\u202e txt.exe \u2066\u2028\u2029\x00\x1b[31m",
    "‮ مرحبا 😀",
)


def page_of(entries: Sequence[tuple[str, Sequence[View]]], views: Sequence[View] = (), title: str = "T") -> Page:
    made = [
        Entry(name, f"note {name}", ("a",), (float(at),), (f"other {name}",)) for at, (name, _) in enumerate(entries)
    ]
    opened = [found for _, found in entries]
    return Page(
        title,
        "test",
        "lead",
        views,
        EntryLibrary("Things", "things", ("kind",), ("size",), made, opened, len(made), "table"),
    )


def unpacked(packed: str) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(packed)))


def read_page(folder: Path) -> tuple[dict[str, Any], list[list[Any]]]:
    """The data of an index, and the views of all entries with their texts put together again."""
    text = (folder / "index.html").read_text(encoding="utf-8")
    (packed,) = re.findall(r'<script id="data" type="application/json">"([A-Za-z0-9+/=]*)"</script>', text)
    data = unpacked(packed)
    files = read_shards(folder)
    entries = [[restored(view, shard["lines"]) for view in views] for shard in files for views in shard["entries"]]
    return data, entries


def read_shards(folder: Path) -> list[Any]:
    files = []
    for number, path in enumerate(sorted((folder / "page").glob("*.js"))):
        found = re.fullmatch(rf'lemur\({number},"([A-Za-z0-9+/=]*)"\);\n', path.read_text(encoding="ascii"))
        assert found is not None, path.name
        files.append(unpacked(found[1]))
    return files


def restored(view: Any, lines: Sequence[str]) -> Any:
    def text(runs: Sequence[int]) -> str:
        return "\n".join(lines[at] for a, n in zip(runs[::2], runs[1::2], strict=True) for at in range(a, a + n))

    if "text" in view:  # of code, versions and operations
        view["text"] = text(view["text"])
    if view["view"] == "versions":
        view["rows"] = [[told, text(other)] for told, other in view["rows"]]
    return view


def test_hostile_text_stays_data(tmp_path: Path) -> None:
    entries = [(name, [code(name, f"{name}\n{name}")]) for name in HOSTILE]
    write_page(tmp_path, page_of(entries, [facts(name, [(name, name)]) for name in HOSTILE], title=HOSTILE[0]))
    plain = page_of([("x", [])], title="T")
    (tmp_path / "plain").mkdir()
    write_page(tmp_path / "plain", plain)
    with_it, without = ((folder / "index.html").read_text() for folder in (tmp_path, tmp_path / "plain"))
    bare = re.compile(r"<title>.*</title>|type=\"application/json\">.*</script>")
    assert bare.sub("", with_it) == bare.sub("", without), "nothing but the title and base64 differs"
    assert with_it.count("<script") == 2
    assert "<title>&lt;/script&gt;" in with_it
    data, found = read_page(tmp_path)
    assert data["library"]["names"] == list(HOSTILE)
    assert [views[0]["text"] for views in found] == [f"{name}\n{name}" for name in HOSTILE]


@given(st.lists(st.lists(st.text(max_size=30), max_size=6).map("\n".join), max_size=12))
def test_every_text_comes_back(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    folder = tmp_path_factory.mktemp("texts")
    write_page(
        folder, page_of([(str(at), [versions("V", text, [("t", text[::-1])])]) for at, text in enumerate(texts)])
    )
    if texts:
        _, found = read_page(folder)
        assert [view["text"] for (view,) in found] == texts
        assert [view["rows"][0][1] for (view,) in found] == [text[::-1] for text in texts]


def many(number: int, seed: int = 0) -> list[tuple[str, list[View]]]:
    draw = random.Random(seed)
    lines = [f"line {draw.random()}" for _ in range(3_000)]
    return [(f"n{at}", [code("C", "\n".join(draw.choices(lines, k=200)))]) for at in range(number)]


def test_the_same_folder_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "_SHARD_CHARACTERS", 100_000)
    both = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "table").write_bytes(bytes(9_000_000))
        write_page(tmp_path / name, page_of(many(200)))
        both.append({p.name: p.read_bytes() for p in sorted((tmp_path / name).rglob("*.[jh]*")) if p.is_file()})
    assert both[0] == both[1]
    assert len(both[0]) > 3, "more than one shard"
    write_page(tmp_path / "one", page_of(many(3)))
    assert sorted(path.name for path in (tmp_path / "one" / "page").glob("*.js")) == ["000.js"], "older shards go"


def test_the_index_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "ENTRIES", 3)
    monkeypatch.setattr(frame, "FURTHER_NAMES", 2)
    write_page(tmp_path, page_of(many(5)))
    data, entries = read_page(tmp_path)
    assert (len(entries), data["library"]["names"], data["library"]["total"]) == (3, ["n0", "n1", "n2"], 5)
    assert data["library"]["further"] == [["other n0"], ["other n1"], []]


def test_a_page_elsewhere_leads_back(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    write_page(tmp_path / "folder", page_of([("x", [])]), tmp_path / "cache")
    assert read_page(tmp_path / "cache")[0]["base"] == (tmp_path / "folder").as_uri() + "/"
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_file_of_entries_holds_a_line_once(tmp_path: Path) -> None:
    assert write_entries(tmp_path, [[code("C", "a\nb\na\nb")]] * 3) == [0]
    found = unpacked(re.findall(r'"(.*)"', (tmp_path / "000.js").read_text())[0])
    assert found["lines"] == ["a", "b"]
    assert [views[0]["text"] for views in found["entries"]] == [[0, 2, 0, 2]] * 3


def test_the_parts_of_the_script_declare_each_name_once() -> None:
    """They share one scope: a name that two of them declare would stop all of it."""
    declared = Counter(
        name
        for part in Path(frame.__file__).with_name("page").glob("*.js")
        for name in re.findall(r"^(?:const|let|function) (\w+)", part.read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert len(declared) > 40
    assert {name: number for name, number in declared.items() if number > 1} == {}
