"""Exit codes of every command: 2 for a line that no files could make right, 1 for one that fails on what is there.

Either is told in one line on stderr, nothing goes to stdout, and the working folder is as before. Numbers and
enumerations are tried for every option that takes one; options of text or paths stand in the table, or take any text.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from extract.extractor import read_names
from lemur.cli import app
from lemur.experts.facts import load_settings
from lemur.folders import list_items
from lemur_core.files.errors import SpecialFileError, UserError
from manifests.folders.tables import read_bytes
from manifests.records.corpus import load_corpus
from tests.builders import commands, extractions
from tests.builders.suites import read_files
from tests.builders.training import TINY
from train.model.recipe import load_recipe, read_code, read_prm

TEXTS = read_files(__file__, "exit_codes_cases.md")

ROOT, TREE = commands.ROOT, commands.TREE


#: By exit status, commands that fail.
LINES = {int(status): text.splitlines() for status, text in read_files(__file__, "exit_codes.md").items()}

#: Options that any text is right for: it is looked for, or told to a model.
FREE = {
    "search": {"query"},
    "extract": {"names", "paths", "ray", "symbols", "start_from"},
    "curate": {"prefer", "topup_prefix", "ray"},
    "synthesize": {"key_name"},
    "experts train": {"domains"},  # tests/lemur/experts
    "publish": {"revision"},  # the Hub knows the branches: tests/manifests/publishing
    "pull": {"revision"},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, finished: Callable[..., Path]) -> Path:
    """A folder with one of everything that a command reads, whole and broken."""
    from curate.model.options import CurateOptions
    from curate.run.pipeline import curate
    from curate.sources import open_source

    folder = tmp_path_factory.mktemp("place")
    for name in ("empty", "taken", "taken.svg", "mine", "broken"):
        (folder / name).mkdir()
    os.mkfifo(folder / "pipe.py")
    (folder / "taken" / "mine.tex").write_text("precious")
    (folder / "notes.txt").write_text("no table, no code, no folder\n")
    (folder / "broken" / "manifest.json").write_text("{")
    for end in ("py", "jsonl", "db", "toml"):
        (folder / f"noise.{end}").write_bytes(bytes(range(256)))
    (folder / "net.py").write_text(TINY)
    (folder / "mine" / "block.py").write_text(TINY)
    row = '{"nn": "ga-%d", "nn_code": "class Net(Module): x = %d", "task": "t", "dataset": "d", "metric": "m", "accuracy": 0.5}\n'
    (folder / "rows.jsonl").write_text("".join(row % (number, number) for number in range(3)))
    (folder / "row.jsonl").write_text(row % (0, 0))
    sources = [extractions.source(folder / "sources", name) for name in ("alpha@1.0", "beta@2.0")]
    extractions.write(folder / "lib", extractions.results(sources), sources)
    options = CurateOptions(graph="off", license="MIT")
    curate(open_source(str(folder / "rows.jsonl")), folder / "snap", options, jobs=1)
    finished(folder / "sample")
    return folder


def state(folder: Path) -> dict[Path, tuple[int, int]]:
    """What lies in a folder, with sizes and times in nanoseconds."""
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


@pytest.mark.parametrize(("status", "line"), [(status, line) for status in (2, 1) for line in LINES[status]])
def test_what_goes_wrong_is_one_line(
    status: int, line: str, place: Path, lemur_here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lemur.cli.app", ROOT)  # the same tree, not built anew
    before = state(place)
    line, _, said = line.partition("  # ")
    done = lemur_here(*shlex.split(line), cwd=place)
    assert done.returncode == status, done.stderr
    (told,) = [text for text in done.stderr.splitlines() if not text.startswith("token sets and fingerprints: ")]
    assert told.startswith("lemur: ")
    assert [part for part in said.split(" … ") if part not in told] == []
    assert (told.isprintable(), "Error(" in told) == (True, False)
    assert (done.stdout, state(place)) == ("", before)


def wrong_values(hint: Any) -> Iterator[str]:
    """Values that an option of this type and these bounds cannot have."""
    kind, *notes = get_args(hint)
    options = [kind, *get_args(kind), *(inner for part in get_args(kind) for inner in get_args(part))]
    least = next((note.min for note in notes if getattr(note, "min", None) is not None), None)
    for one in options:
        if one in (int, float):
            yield from ("x", "", "1,5", *(["1.5"] if one is int else []))
            if least is not None:
                yield from (str(least - 1), *(["nan"] if one is float else []))
        elif get_origin(one) is Literal or (isinstance(one, type) and issubclass(one, StrEnum)):
            yield from ("no-such", "")


@pytest.mark.parametrize("command", TREE)
def test_wrong_options_and_values(command: str) -> None:
    """Of every command, by its own parser: an option that is not there, and a value that is none of the type."""
    hints = get_type_hints(TREE[command].callback, include_extras=True)
    given = {option.name: option.opts[0] for option in TREE[command].params if option.opts[0].startswith("-")}
    wrong = [
        ["--no-such-option"],
        *([given[n], v] for n, hint in hints.items() if n in given for v in wrong_values(hint)),
    ]
    for arguments in wrong:
        with pytest.raises(Exception, match=r".*") as refused:
            ROOT.main([*command.split(), *arguments], prog_name="lemur", standalone_mode=False)
        assert getattr(refused.value, "exit_code", None) == 2, arguments
        assert arguments[0] in str(refused.value.format_message())  # type: ignore[attr-defined]


def test_every_option_is_gone_through() -> None:
    """Options of text or paths stand in the table, or any text is right for them."""
    gone = [shlex.split(line.partition("  # ")[0]) for line in LINES[2] + LINES[1]]
    for command, parsed in TREE.items():
        words = command.split()
        used = {word for line in gone if line[: len(words)] == words for word in line}
        hints = get_type_hints(parsed.callback, include_extras=True)
        for option in parsed.params:
            if (
                option.name in hints
                and not any(wrong_values(hints[option.name]))
                and get_args(hints[option.name])[0] is not bool
            ):
                stands = option.opts[0] in used or not option.opts[0].startswith("-")
                assert stands or option.name in FREE.get(command, ()), f"{command} {option.opts[0]}"


def test_a_line_that_cannot_be_read(lemur_here: Callable[..., Any], tmp_path: Path) -> None:
    for line in ("curat", "curate", "verify a b", "verify --jobs 0 a", "train run plain --out", "verify a --json=3"):
        done = lemur_here(*line.split(), cwd=tmp_path)
        assert (done.returncode, len(done.stderr.splitlines()), done.stdout) == (2, 1, ""), done.stderr
        assert done.stderr.rstrip().endswith("--help")
    for line in ("", "train"):
        done = lemur_here(*line.split(), cwd=tmp_path)
        assert (done.returncode, done.stderr) == (2, "")
        assert "Usage: lemur" in done.stdout


def test_a_signal_during_a_finalizer_is_not_lost_and_one_after_the_command_silent() -> None:
    """Python ignores what a `__del__` raises: Ctrl-C went by, and the command ran to its end."""
    done = subprocess.run([sys.executable, "-c", TEXTS["_IN_A_FINALIZER"]], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("ended 130\n", "")
    script = "import atexit, os, lemur\natexit.register(os.kill, os.getpid(), 2)\nlemur.main()"
    command = [sys.executable, "-P", "-c", script, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (-2, "")


@pytest.mark.parametrize(
    ("imports", "name", "status"), [(20, "SIGINT", 130), (150, "SIGINT", 130), (250, "SIGTERM", 143)]
)
def test_a_signal_while_the_commands_are_imported_is_one_line(imports: int, name: str, status: int) -> None:
    """In the first second, and also if a library is being loaded."""
    command = [sys.executable, "-P", "-c", TEXTS["_AT_AN_IMPORT"], str(imports), name, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1)
    assert done.stderr.startswith("lemur: interrupted; its output, if any, is whole or absent: run again")


READERS: list[Callable[[Path], Any]] = [
    *(read_names, load_recipe, read_code, load_settings, read_bytes),
    *(lambda path: read_prm(str(path)), lambda path: load_corpus(str(path))),
]


@pytest.mark.parametrize("reader", READERS)
def test_a_function_refuses_pipes(reader: Callable[[Path], Any], place: Path) -> None:
    with pytest.raises(SpecialFileError, match=r"pipe\.py: is a pipe, a socket or a device, not a file"):
        reader(place / "pipe.py")


# The help of every command, old names, and `lemur list`.


def walk(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, (*words, name))


COMMANDS = dict(walk(typer.main.get_command(app)))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_options_are_whole(words: tuple[str, ...]) -> None:
    own = {option for item in COMMANDS[words].params if not item.hidden for option in item.opts if option[0] == "-"}
    for columns in ("80", "200"):
        shown = CliRunner(env={"COLUMNS": columns}).invoke(app, [*words, "--help"]).stdout
        assert own <= set(re.findall(r"--?[a-z][\w-]*", shown))


@pytest.mark.parametrize("name", TREE)
def test_every_help_has_an_example(name: str) -> None:
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*name.split(), "--help"]).stdout
    assert re.search(rf"^ Examples: *\n +lemur {name}\b", shown, re.MULTILINE)


def test_the_help_ends_with_the_addresses_of_the_package() -> None:
    """They come with the wheel; documents do not."""
    urls = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["--help"]).stdout
    assert re.findall(r"https://[^\s.]+(?:[.][^\s.]+)+", shown) == list(urls.values())


def test_any_name_of_a_block_finds_it(place: Path) -> None:
    extraction = place / "lib"
    rows = list_items(extraction)
    block = "alpha@1.0::alpha.blocks.Attention"
    assert block in [item.names[0] for item in rows]
    for pattern in (block, "attention", "*blocks.att*", "ALPHA@*Attention"):
        assert block in [item.names[0] for item in list_items(extraction, pattern)]
    printed = CliRunner().invoke(app, ["list", str(extraction)]).stdout.splitlines()
    assert len(printed) == len(rows)
    stated = json.loads(CliRunner().invoke(app, ["list", str(extraction), "*Attention", "--json"]).stdout)
    assert {"name", "level", "category", "n_lines", "license"} == stated[0].keys()
    with pytest.raises(UserError, match=r"Nope\*: none of the \d+ items of .* has such a name; try '\*Nope\*'"):
        list_items(extraction, "Nope*")
