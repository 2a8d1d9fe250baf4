"""What is checked is the text that runs: encodings that files declare, and values that are written into code.

Each kind is tried through its command. `unicode_escape` and its like hide statements in what reads as a comment.
"""

import ast
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from curate.model.options import CurateOptions
from curate.run.pipeline import curate
from curate.sources import open_source
from extract.model.blocks import load_block
from lemur_core.files.foreign import comment_lines, decode_python
from lemur_core.graphs.graph import Graph
from lemur_core.rebuild.operators import RebuildError
from lemur_core.rebuild.rebuild import rebuild
from lemur_core.sandbox.loader import load
from lemur_core.source.bundle import Part, bundle
from lemur_core.source.text import parse_code
from manifests.folders.manifest import list_outputs, read_manifest, write_manifest
from manifests.records import Block, Ingredient, LemurRecord, Spec
from tests.builders import synthesis

Command = Callable[..., subprocess.CompletedProcess[str]]

KNOWN = synthesis.network(make="self.conv = nn.Conv2d(3, 16, 1)", use="x = torch.tanh(x)")
OTHER = synthesis.network(make="self.scale = nn.Parameter(torch.ones(3))", use="x = x.cumsum(1)")

#: How each encoding writes a line break in what reads as a comment.
BREAKS = {"unicode_escape": r"\x0a", "raw_unicode_escape": r"\u000a", "utf-7": "+AAo-", "UTF7": "+AAo-"}


def hide(encoding: str, seen: str, hidden: str, first: str = "# coding: ") -> str:
    """A file that reads as `seen`, and in its encoding ends in the statements of `hidden`."""
    line = f"\n{hidden}".replace("\n", BREAKS[encoding])
    return f"{first}{encoding}\n{seen}\n# note:{line}\n"


HIDING = {
    **{name: hide(name, OTHER, "import this_is_hidden") for name in BREAKS},
    "in the second line": hide("utf-7", OTHER, "import this_is_hidden", "#!/usr/bin/env python\n# vim: fileencoding="),
    "below a blank line": hide("utf-7", OTHER, "import this_is_hidden", " \t\n#-*-coding:"),
    "behind old line ends": hide("utf-7", OTHER, "import this_is_hidden", "\r#coding="),
}

_ANOTHER = "declares the encoding iso8859-1 after a byte-order mark; "
#: Files that Python reads in some way or not at all, and what is said of them.
REFUSED = {
    **{name: (text.encode(), "only UTF-8 and Latin-1 are read") for name, text in HIDING.items()},
    "unknown": (b"# coding: nonsense\nx = 1\n", "declares the encoding nonsense; only UTF-8 and Latin-1 are read"),
    "rot13": (b"# coding: rot13\nvzcbeg bf\n", "declares the encoding rot-13; "),
    "punycode": (b"# coding: punycode\nx = 1\n", "declares the encoding punycode; "),
    "Latin-9": ("# coding: iso-8859-15\nx = '€'\n".encode("iso-8859-15"), "declares the encoding iso8859-15; "),
    "a mark, and another encoding": (b"\xef\xbb\xbf# coding: latin-1\nx = 1\n", _ANOTHER),
    "UTF-16": ("x = 1\n".encode("utf-16"), "invalid UTF-8 at byte 0"),
    "no UTF-8": (b"x = 1  # caf\xe9\n", "invalid UTF-8 at byte 12"),
    "no ASCII": ("# coding: ascii\nx = 'é'\n".encode(), "invalid ASCII at byte 21"),
}

READ = {
    "nothing declared": ("x = 'é'\n".encode(), "x = 'é'\n"),
    "a mark": (b"\xef\xbb\xbfx = 1\r\ny = 2\rz = 3", "x = 1\ny = 2\nz = 3"),
    "UTF-8": ("# -*- coding: utf-8 -*-\nx = 'é'\n".encode(), "# -*- coding: utf-8 -*-\nx = 'é'\n"),
    "UTF-8 by another name": ("# coding: utf_8-unix\nx = 'é'\n".encode(), "# coding: utf_8-unix\nx = 'é'\n"),
    "Latin-1": (b"# -*- coding: latin-1 -*-\nx = '\xe9'\n", "# -*- coding: utf-8 -*-\nx = 'é'\n"),
    "Latin-1, second line": (b"#!python\n# coding=L1\nx = '\xe9'\n", "#!python\n# coding=utf-8\nx = 'é'\n"),
    "ASCII": (b"# coding: us-ascii\nx = 1\n", "# coding: utf-8\nx = 1\n"),
    "a third line": (b"\n\n# coding: nonsense\nx = 1\n", "\n\n# coding: nonsense\nx = 1\n"),
    "below code": (b"x = 1\n# coding: nonsense\n", "x = 1\n# coding: nonsense\n"),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_read_is_what_python_reads(name: str) -> None:
    raw, text = READ[name]
    assert decode_python(raw) == text
    assert ast.dump(ast.parse(raw)) == ast.dump(parse_code(raw)) == ast.dump(ast.parse(text.encode()))
    assert decode_python(text) == text


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, said = REFUSED[name]
    with pytest.raises(SyntaxError) as caught:
        decode_python(raw)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    if name in HIDING:
        text = HIDING[name]
        modules = {ast.unparse(node) for node in ast.parse(raw).body if isinstance(node, ast.Import)}
        assert "import this_is_hidden" in modules, "it hides nothing"
        assert "this_is_hidden" not in ast.dump(ast.parse(text))
        for refuse in (decode_python, parse_code, lambda code: load(code, "hiding")):
            monkeypatch.chdir(tmp_path)
            with pytest.raises(SyntaxError, match="only UTF-8 and Latin-1 are read"):
                refuse(text)
    with pytest.raises(SyntaxError, match="declares Latin-1, as which"):
        parse_code("# coding: latin-1\nx = 'é'\n")


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / f"{re.sub('[ _]', '-', name).replace(',', '')}.py").write_bytes(data)
    return folder


def row(name: str, code: str) -> dict[str, Any]:
    benchmark = {"task": "img-classification", "dataset": "cifar-10", "metric": "acc", "epoch": 1, "accuracy": 0.5}
    return {"nn": name, "nn_code": code, **benchmark, "prm": json.dumps({"lr": 0.1, "momentum": 0.9})}


def records(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    return path


REFUSED_FILES = {name: data for name, (data, _) in REFUSED.items()}


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("snapshot")
    source = open_source(str(records(folder / "rows.jsonl", [row("known", KNOWN)])))
    curate(source, folder / "snapshot", CurateOptions(graph="off"), jobs=1)
    return folder / "snapshot"


def test_gate(lemur_here: Command, snapshot: Path, tmp_path: Path) -> None:
    copied = {"a copy": hide("unicode_escape", OTHER, KNOWN).encode(), "Latin-1": READ["Latin-1"][0]}
    nets = REFUSED_FILES | copied
    write(tmp_path / "nets", nets)
    done = lemur_here("gate", "nets", "--against", snapshot, "--jobs", 1, "--json", cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (3, False)
    files = json.loads(done.stdout)["files"]
    assert len(files) == len(nets)
    for file in files:
        assert {finding["rule"] for finding in file["findings"]} == {"contract"}, file
        assert any(said in file["findings"][0]["message"] for said in ("are read", "invalid ", "U+FEFF")), file


def test_novel(lemur_here: Command, snapshot: Path, tmp_path: Path) -> None:
    for path in sorted(write(tmp_path, REFUSED_FILES).glob("*.py")):
        done = lemur_here("novel", path, "--against", snapshot, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        (line,) = (line for line in done.stderr.splitlines() if path.name in line)
        assert f"{path}: cannot be read: " in line
    latin = f"# coding: latin-1\n# caf\xe9\n{KNOWN}".encode("latin-1")
    write(tmp_path, {"marked": b"\xef\xbb\xbf" + KNOWN.encode(), "latin": latin})
    done = lemur_here("novel", "marked.py", "latin.py", "--against", snapshot, "--json", cwd=tmp_path)
    assert [file["verdict"] for file in json.loads(done.stdout)["files"]] == ["known", "known"]


def decisions(lemur_here: Command, source: Path) -> dict[str, tuple[str | None, str | None]]:
    """Of each row of a source: the stage that removed it, and its reason."""
    out = source.with_name("curated")
    done = lemur_here("curate", source, "--out", out, "--graph", "off", "--jobs", 1, "--force", cwd=source.parent)
    assert done.returncode == 0, done.stderr
    found = pq.read_table(out / "decisions.parquet").to_pylist()
    return {one["nn"]: (one["stage"], one["reason"]) for one in found}


def test_curate(lemur_here: Command, tmp_path: Path) -> None:
    latin = f"# coding: latin-1\n# caf\xe9\n{OTHER}"
    codes = {"known": KNOWN, "ascii": f"# coding: latin-1\n{OTHER}", "latin": latin, **HIDING}
    rows = [row(name, code) for name, code in codes.items()]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    for source in (records(tmp_path / "rows.jsonl", rows), tmp_path / "rows.parquet"):
        found = decisions(lemur_here, source)
        assert [name for name, (stage, _) in found.items() if stage != "invalid"] == ["known", "ascii"]
        assert all(": line 1: declares " in str(reason) for stage, reason in found.values() if stage == "invalid")
    write(tmp_path / "nets", {**REFUSED_FILES, "known": KNOWN.encode(), "latin": latin.encode("latin-1")})
    found = decisions(lemur_here, tmp_path / "nets")
    assert sorted(name for name, (stage, _) in found.items() if stage != "invalid") == ["known", "latin"]
    assert len(found) == len(REFUSED) + 2
    kept = pq.read_table(tmp_path / "curated" / "networks.parquet").to_pylist()
    (code,) = (one["nn_code"] for one in kept if one["nn"] == "latin")
    assert code == f"# coding: utf-8\n# café\n{OTHER}"


def test_extract(lemur_here: Command, tmp_path: Path) -> None:
    body = "from torch import nn\n\n\nclass NAME(nn.Module):\n    def forward(self, x):\n        return x  # é\n"
    good = {
        "Plain": body.encode(),
        "Marked": b"\xef\xbb\xbf# coding: utf-8\n" + body.encode(),
        "Latin": b"# -*- coding: latin-1 -*-\n" + body.encode("latin-1"),
    }
    named = {name: data.replace(b"NAME", name.encode()) for name, data in good.items()}
    source = write(tmp_path / "source", REFUSED_FILES | named)
    shutil.copy(Path(__file__).parents[1] / "LICENSE", source / "LICENSE")
    done = lemur_here("extract", "--source", "./source", "--out", "out", "--jobs", 1, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    left_out = "files are not Python, and left out: Latin-9.py: declares the encoding iso8859-15; "
    assert f"source: {len(REFUSED)} {left_out}" in done.stderr
    blocks = {one["name"]: one for one in pq.read_table(tmp_path / "out" / "blocks.parquet").to_pylist()}
    assert blocks.keys() == good.keys()
    for name, block in blocks.items():
        data = (tmp_path / "out" / block["file"]).read_bytes()
        assert (decode_python(data), "# é" in data.decode(), b"coding" in data) == (block["code"], True, False)
        assert (block["level"], load_block(tmp_path / "out", name).__name__) == ("backward", name)


@pytest.fixture(scope="module")
def library(curator_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An extraction of two blocks, with what they compute."""
    codes = {name: (name, synthesis.HEAD + code) for name, code in synthesis.SOURCES.items()}
    answers = synthesis.traced(tmp_path_factory.mktemp("traced"), codes)
    return synthesis.write(tmp_path_factory.mktemp("library"), answers)


#: What ends a line for Python, for some editors, or for a terminal.
CONTROLS = ["\r\n", *"\r\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\0\x1b\x7f"]
FIELDS: dict[Any, str] = {
    Block: "block name qualname source path license lean_license file swhid",
    Spec: "block name source path license file swhid",
    Ingredient: "block source path license swhid",
    LemurRecord: "nn license origin origin_license",
}


@pytest.mark.parametrize("record", FIELDS)
def test_a_value_is_one_line(record: Any) -> None:
    fields = FIELDS[record].split()
    for control in CONTROLS:
        with pytest.raises(ValidationError) as caught:
            record.model_validate(dict.fromkeys(fields, f"alpha{control}import os"))
        faults = {fault["loc"][0]: fault["type"] for fault in caught.value.errors() if fault["type"] != "missing"}
        assert faults == dict.fromkeys(fields, "string_pattern_mismatch"), ascii(control)


#: Lines of comments that would be more.
LINES = [
    *(f"File: a.py{control}import os; os.system('id')" for control in CONTROLS),
    *(f"coding: {name} {end}import os" for name, end in BREAKS.items()),
    "encoding=utf-7 +AAo-import os",
    "Slot x: coding:nonsense",
]


@pytest.mark.parametrize("line", LINES)
def test_a_comment_stays_one(line: str) -> None:
    for header in ((line,), ("", line), ("a", "b", line)):
        for imports in ("", "import torch\n"):
            text = bundle([Part("s", "A", f"{imports}class A:\n    pass\n", header)]).text
            for read in (text, text.encode()):
                body = [type(node).__name__ for node in ast.parse(read).body]
                assert body == ["Import"] * bool(imports) + ["ClassDef"]
        assert ast.parse("\n".join([*comment_lines(header), "x = 1", ""]).encode()).body[0].lineno > len(header)


def test_a_comment_of_a_part_declares_nothing() -> None:
    """Its docstring, above which it declares nothing, is left out."""
    for indent in ("", "  ", "\f"):
        code = f'"""A part."""\n\n{indent}# coding: utf-7 +AAo-import os\nclass A:\n    pass\n'
        text = bundle([Part("s", "A", code)]).text
        assert [type(node).__name__ for node in ast.parse(text.encode()).body] == ["ClassDef"]
    with pytest.raises(RebuildError, match="is not the name of a class"):
        rebuild(Graph((), ()), name='A(__import__("os").system("id") or nn.Module): #')


def forge(library: Path, out: Path, field: str, value: str) -> Path:
    """A copy of an extraction with another value in each row and spec, whose manifest states what it holds."""
    shutil.copytree(library, out)
    table = pq.read_table(out / "blocks.parquet")
    rows = [{**one, field: f"{one[field]}{value}"} for one in table.to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), out / "blocks.parquet")
    specs = [json.loads(line) for line in (out / "specs.jsonl").read_text().splitlines()]
    specs = [{**one, field: f"{one[field]}{value}"} for one in specs]
    (out / "specs.jsonl").write_text("".join(f"{json.dumps(one, sort_keys=True)}\n" for one in specs))
    manifest = read_manifest(out)
    write_manifest(out, manifest.model_copy(update={"outputs": list_outputs(out)}))
    return out


@pytest.mark.parametrize("field", ["path", "license", "name", "source"])
def test_forged_values(lemur_here: Command, library: Path, tmp_path: Path, field: str) -> None:
    (tmp_path / "rec.toml").write_text('[slots.attention]\nuse = "SqueezeGate"\n')
    for number, control in enumerate(("\r", "\x1b[2J", "\u2028")):
        folder = forge(library, tmp_path / f"forged{number}", field, f"{control}import os; os.system('id') #")
        for command in (
            ("verify", folder),
            ("train", "assemble", "rec.toml", "--in", folder, "--out", "net.py"),
            ("rebuild", "SqueezeGate", "--in", folder, "--out", "rebuilt.py"),
        ):
            done = lemur_here(*command, cwd=tmp_path)
            said = done.stdout + done.stderr
            assert (done.returncode, "Traceback" in said, control in said) == (1, False, False), said
            assert f"{field}: must be one line, without control characters" in said
    assert not list(tmp_path.glob("*.py"))


def test_names_of_others_are_escaped(lemur_here: Command, tmp_path: Path) -> None:
    rows = [row(f"a{control}b", f"{KNOWN}# {n}\n") for n, control in enumerate(CONTROLS)]
    found = decisions(lemur_here, records(tmp_path / "rows.jsonl", rows))
    assert found.keys() == {f"a{ascii(control)[1:-1]}b" for control in CONTROLS}
    done = lemur_here("verify", "curated", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    for control in ("\n", "\r", "\x1b", "\u2028"):  # and a folder with another line in its name
        write(tmp_path / f"a{control}b", {"net": b"x = 1\n"})
        done = lemur_here("extract", "--source", f"./a{control}b", "--out", "out", cwd=tmp_path)
        assert (done.returncode, (tmp_path / "out").exists()) == (1, False)
        assert "a source's name holds no control characters; rename it" in done.stderr
