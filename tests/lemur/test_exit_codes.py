"""Exit codes of every command: 2 for a line that no files could make right, 1 for one that fails on what is there.

Either is told in one line on stderr, nothing goes to stdout, and the working folder is as before. Numbers and
enumerations are tried for every option that takes one; options of text or paths stand in the table, or take any text.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from extract.extractor import read_names
from lemur.experts.facts import load_settings
from lemur_core.files.errors import SpecialFileError
from manifests.folders.tables import read_bytes
from manifests.records.corpus import load_corpus
from tests.builders import commands, extractions
from tests.builders.suites import read_files, table
from tests.builders.training import TINY
from train.model.recipe import load_recipe, read_code, read_prm

TEXTS = read_files(__file__, "exit_codes_cases.md")

ROOT, TREE = commands.ROOT, commands.TREE


#: By exit status, commands that fail.
LINES = {int(status): text.splitlines() for status, text in read_files(__file__, "exit_codes.md").items()}

#: Options that any text is right for: it is looked for, or told to a model.
FREE = {
    "search": {"query", "category", "license_", "source"},
    "extract": {"names", "repositories", "paths", "symbols", "start_from"},
    "curate": {"prefer", "topup_prefix", "ray"},
    "synthesize": {"key_name", "goal"},
    "experts train": {"domains"},  # tests/lemur/experts
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
    (folder / "taken" / "mine.tex").write_text("precious")
    (folder / "notes.txt").write_text("no table, no code, no folder\n")
    (folder / "broken" / "manifest.json").write_text("{")
    for end in ("py", "parquet", "jsonl", "csv", "db", "toml"):
        (folder / f"noise.{end}").write_bytes(bytes(range(256)))
    for name, text in {"other": '{"nn": "a", "code": "x"}', "empty": "", "blank": "\n\n"}.items():
        (folder / f"{name}.jsonl").write_text(text)
    (folder / "net.py").write_text(TINY)
    (folder / "mine" / "block.py").write_text(TINY)
    row = '{"nn": "ga-%d", "nn_code": "class Net(Module): x = %d", "task": "t", "dataset": "d", "metric": "m", "accuracy": 0.5}\n'
    (folder / "rows.jsonl").write_text("".join(row % (number, number) for number in range(3)))
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
    assert told.isprintable()
    assert "Error(" not in told
    assert done.stdout == ""
    assert state(place) == before


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
            if option.name in hints and not any(wrong_values(hints[option.name])) and not _is_flag(hints[option.name]):
                stands = option.opts[0] in used or not option.opts[0].startswith("-")
                assert stands or option.name in FREE.get(command, ()), f"{command} {option.opts[0]}"


def _is_flag(hint: Any) -> bool:
    return get_args(hint)[0] is bool


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
    ("imports", "name", "status"),
    [(20, "SIGINT", 130), (60, "SIGINT", 130), (150, "SIGINT", 130), (300, "SIGINT", 130), (250, "SIGTERM", 143)],
)
def test_a_signal_while_the_commands_are_imported_is_one_line(imports: int, name: str, status: int) -> None:
    """In the first second, and also if a library is being loaded."""
    command = [sys.executable, "-P", "-c", TEXTS["_AT_AN_IMPORT"], str(imports), name, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr == (
        "lemur: interrupted; no partial output was written, finished work is cached: run again to resume\n"
    )


# Pipes and devices where a command reads or writes a file: refused in one line, before anything waits for them.

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    return tmp_path / "pipe.py"


@table(__file__, "pipes.md", "A command refuses pipes and devices", globals())
def test_a_command_refuses_pipes_and_devices(line: str, pipe: Path, lemur_here: Command) -> None:
    done = lemur_here(*line.replace("PIPE", "pipe.py").split(), cwd=pipe.parent)
    assert (done.returncode, done.stdout) == (1, "")
    name = "/dev/zero" if "/dev/zero" in line else "pipe.py"
    assert done.stderr == f"lemur: {name}: is a pipe, a socket or a device, not a file; name a file\n"


READERS: list[Callable[[Path], Any]] = [
    *(read_names, load_recipe, read_code, load_settings, read_bytes),
    *(lambda path: read_prm(str(path)), lambda path: load_corpus(str(path))),
]


@pytest.mark.parametrize("reader", READERS)
def test_a_function_refuses_pipes(reader: Callable[[Path], Any], pipe: Path) -> None:
    with pytest.raises(SpecialFileError, match=r"pipe\.py: is a pipe, a socket or a device, not a file"):
        reader(pipe)
