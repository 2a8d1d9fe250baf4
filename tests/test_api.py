"""The Python interface: what docs/api.md lists is public, documented and typed, and its examples run on small real input."""

import ast
import importlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lemur
import manifests
from lemur.synthesis import AttemptOptions, Sampling, Service
from lemur_core.files.errors import UsageError, UserError
from tests.builders import synthesis
from tests.builders.suites import read_files, read_table
from tests.test_environments import make_row

TEXTS = read_files(__file__, "api.md")

ROOT = Path(__file__).parents[1]
WHOLE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
#: The page without what is generated.
PAGE = re.sub(r"^<!-- (::: [\w.]+) -->\n.*?^<!-- end -->$", r"\1", WHOLE, flags=re.MULTILINE | re.DOTALL)
PACKAGES = ("curate", "extract", "lemur", "manifests", "train")
LISTED = re.findall(r"^::: ([\w.]+)$", PAGE, re.MULTILINE)

#: Examples that are not run here, and why not; mypy reads them all the same.
NOT_RUN = {
    "publish": "an account of the Hub; tests/manifests/publishing has a Hub of its own",
    "pull": "an account of the Hub; tests/manifests/publishing has a Hub of its own",
    "synthesize": "a language model; tests/lemur/synthesis has one of its own",
}
#: They replace functions of other packages, and show progress as the commands do; all others print nothing.
SHOW_PROGRESS = ("BlockExtractor", "check_nn")
#: Examples that train.
TRAINING = "Training: `train`"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the examples run."""
    (tmp_path / "mylib").mkdir()
    (tmp_path / "mylib" / "layers.py").write_text(TEXTS["LAYERS"])
    first, *others = map(synthesis.varied_network, (0, 1093, 2186))
    codes = [first, *others, first.replace("self.stem", "self.first")]
    rows = [make_row(f"tiny-{number}", code) for number, code in enumerate(codes)]
    (tmp_path / "network.py").write_text(synthesis.varied_network(600))
    (tmp_path / "networks.jsonl").write_text("".join(rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@cache
def definition(path: str) -> ast.FunctionDef | ast.ClassDef:
    """The definition that a line `::: path` describes, read from its file: nothing is imported."""
    module, _, name = path.rpartition(".")
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    return next(node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_page_lists_what_is_public(package: str) -> None:
    exported = importlib.import_module(package)
    homes = (package, "lemur_core") if package == "lemur" else (package,)  # some are defined on the ground floor
    listed = [path.rpartition(".") for path in LISTED if path.partition(".")[0] in homes]
    assert sorted(exported.__all__) == sorted(name for _, _, name in listed)
    for module, _, name in listed:
        assert getattr(exported, name) is getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        exported.no_such_name  # noqa: B018


def test_the_page_is_current() -> None:
    """If this fails, run `make api`."""
    assert runpy.run_path(str(ROOT / ".ci" / "api.py"))["page_text"](WHOLE) == WHOLE
    assert len(LISTED) == len(set(LISTED))
    assert 20 <= len(LISTED) <= 32
    there = {where for _, where, _ in EXAMPLES}
    assert {path.rpartition(".")[2] for path in INTERFACES} <= there
    assert set(NOT_RUN) <= there
    for _, where, piece in EXAMPLES:
        ast.parse(piece, where)


INTERFACES = [path for path in LISTED if ".interface." in path]


@pytest.mark.parametrize("path", INTERFACES)
def test_a_docstring_has_its_sections_and_describes_arguments(path: str) -> None:
    """All arguments but the first are keywords, with a few exceptions."""
    described = definition(path)
    text = ast.get_docstring(described) or ""
    sections = set(re.findall(r"^(Args|Attributes|Returns|Raises|Example):$", text, re.MULTILINE))
    assert re.match(r"[A-Z].*\.( |\n|$)", text), "the first line begins with a sentence"
    assert "Example" in sections
    assert sections & {"Args", "Attributes"}
    if isinstance(described, ast.FunctionDef):
        assert sections >= {"Args", "Returns", "Raises"}
        names = [one.arg for one in (*described.args.args, *described.args.kwonlyargs)]
        assert [name for name in names if not re.search(rf"^    {name}: ", text, re.MULTILINE)] == []
        further = [one.arg for one in described.args.args[1:]]
        assert further == {"assemble": ["library"], "ablate": ["library"], "diff": ["after"]}.get(described.name, [])


def test_packages_say_that_they_are_typed_and_import_nothing_heavy() -> None:
    """The sandbox and the command import the packages, too."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]
    for package in (*PACKAGES, "lemur_core"):
        assert (ROOT / package / "py.typed").is_file()
        assert "py.typed" in data[package]
    heavy = ("torch", "datasets", "pyarrow", "matplotlib", "libcst", "pydantic", "typer")
    script = f"import sys, {', '.join(PACKAGES)}; print([name for name in {heavy} if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "[]", done.stderr


def examples() -> Iterator[tuple[str, str, str]]:
    """Section, place and text of each example: those of the page and of the docstrings, in the order of the page."""
    for section in PAGE.split("\n## ")[1:]:
        title = section.partition("\n")[0]
        pieces = re.findall(r"^::: ([\w.]+)$|^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        for path, piece in pieces:
            if piece:
                yield title, "page", piece
                continue
            text = ast.get_docstring(definition(path)) or ""
            for example in re.findall(r"^    ```python\n(.*?)^    ```$", text, re.MULTILINE | re.DOTALL):
                yield title, path.rpartition(".")[2], textwrap.dedent(example)


EXAMPLES = list(examples())


def run_examples(capfd: pytest.CaptureFixture[str], *, training: bool) -> SimpleNamespace:
    """Run the examples of these sections in one namespace, and return it. An example replaces what another wrote."""
    names: dict[str, Any] = {"__name__": "example"}
    for title, where, piece in EXAMPLES:
        if where not in NOT_RUN and (title == TRAINING) is training:
            for out in re.findall(r'out="([\w/]+)"', piece):
                shutil.rmtree(out, ignore_errors=True)
            capfd.readouterr()
            exec(compile(piece, f"{title}: {where}", "exec"), names)
            assert not (errors := capfd.readouterr().err) or any(name in piece for name in SHOW_PROGRESS), errors
    return SimpleNamespace(**names)


def test_examples_of_folders(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Extraction, curation and finished folders; the results are what the documents say of them."""
    names = run_examples(capfd, training=False)

    library = names.library
    assert [block.name for block in library] == ["SqueezeExcitation", "ConvNormAct"]
    assert {block.level for block in library} == {"backward"}
    block = library["SqueezeExcitation"]
    assert block.id in library
    assert "class SqueezeExcitation(nn.Module)" in block.code
    assert block.minimized is None, "nothing of it can be cut"
    assert block.spec.keeps_shape is True
    assert len(block.graph.nodes) > 5
    assert library.search("squeeze excitation")[0].id == block.id
    assert [link.what for link in block.trace()] == ["block", "release", "source", "manifest"]
    with pytest.raises(UsageError, match="trusted=True"):
        block.load(trusted=False)
    with pytest.raises(KeyError, match="near names: SqueezeExcitation"):
        library["SqueezeExcitatio"]
    with pytest.raises(FrozenInstanceError):
        library.folder = place
    with pytest.raises(UserError, match="not an extraction"):
        type(library)("snapshot")

    snapshot = names.snapshot
    (removed,) = snapshot.decisions[~snapshot.decisions.kept].itertuples()
    assert removed.canonical in set(snapshot.records.id)
    network_ = snapshot[removed.nn]
    assert (network_.decision.stage, network_.graph) == (removed.stage, None), "nothing was run"
    assert removed.canonical in network_.explanation
    assert set(snapshot.stats.id) == set(snapshot.networks.id)
    with pytest.raises(KeyError, match="near names: tiny-"):
        snapshot["tiny"]
    for shown, text in ((snapshot, "3 of 4 codes kept: "), (network_, f"removed at stage {removed.stage}>")):
        assert text in repr(shown)
    assert repr(block) == "<LibraryBlock mylib::SqueezeExcitation backward 22 lines NOASSERTION>"
    assert repr(library) == "<BlockLibrary blocks 2 blocks: 2 backward>"
    assert list(library.blocks.name) == [block.name for block in library]
    new = snapshot.novelty(synthesis.varied_network(600))
    assert not new.known
    assert names.novelty.verdict == "novel"
    assert new.nearest[0].folder == "snapshot"
    with pytest.raises(FrozenInstanceError):
        snapshot.folder = place
    with pytest.raises(UserError, match="not a snapshot"):
        type(snapshot)("blocks")

    finished = manifests.open_folder(library)
    assert finished.kind == "extraction"
    for table in ("blocks", "specs.jsonl", "specs"):
        assert [row["block"] for row in finished.rows(table)] == list(library.ids)
    with pytest.raises(UserError, match="has no table 'decisions'"):
        finished.rows("decisions")
    finished = manifests.open_folder(snapshot)
    assert {row["id"] for row in finished.rows("records")} == set(snapshot.records.id)
    name = snapshot.records.nn[0]
    assert name in finished.show(name).lines[0]
    with pytest.raises(KeyError, match="no-such"):
        finished.show("no-such")
    assert finished.verify(jobs=1) == snapshot.verify(jobs=1)


@pytest.mark.slow
def test_examples_of_training(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names = run_examples(capfd, training=True)
    run = names.run
    assert run.ok
    assert run.folder == Path("runs/plain")
    assert run.record.test_accuracy is not None
    assert len(run.history) == run.record.epochs == 1
    assert run.weights.is_file()
    assert run.code == names.network.code
    assert [row.variant for row in names.study.rows] == ["full", "no flip"]
    assert names.result.added + len(names.result.failed) == 1
    assert names.measured.accuracy is not None
    with pytest.raises(UserError, match="is not a training run"):
        type(run)("mylib")


def test_synthesis_hands_on_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    monkeypatch.setattr("lemur.synthesis.loop.run_synthesis", lambda *args, **options: calls.append((args, options)))
    monkeypatch.setattr("lemur.interface.open_folder", Path)
    options = AttemptOptions(attempts=3, query="q", against=(Path("a"),))
    made = lemur.synthesize("blocks", model="m", out="out", options=options, force=True)
    asked = (Path("blocks"), "m", Path("out"), options, Service())
    assert calls == [(asked, {"sampling": Sampling(), "force": True})]
    assert made == Path("out")


#: A line that mypy must refuse, and how.
REFUSED = read_table(__file__, "api.md", "Refused", globals())


@pytest.mark.slow
def test_mypy_reads_examples_and_types(tmp_path: Path) -> None:
    """All examples, those that are not run among them, pass `mypy --strict`; wrong calls do not."""
    for number, title in enumerate(dict.fromkeys(title for title, _, _ in EXAMPLES)):
        text = "\n".join(piece for section, _, piece in EXAMPLES if section == title)
        (tmp_path / f"section_{number}.py").write_text(text)
    (tmp_path / "typed.py").write_text(TEXTS["TYPED"])
    (tmp_path / "refused.py").write_text(TEXTS["TYPED"] + "\n".join(REFUSED) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", *map(str, sorted(tmp_path.glob("*.py")))]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line for line in errors if "refused.py" not in line] == [], done.stdout + done.stderr
    first = TEXTS["TYPED"].count("\n") + 1
    for number, (line, code) in enumerate(REFUSED.items(), first):
        found = [error for error in errors if f"refused.py:{number}: " in error and f"[{code}]" in error]
        assert found, f"{line}: {done.stdout}"
