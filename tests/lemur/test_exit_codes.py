"""Exit codes of every command: 2 for a line that no files could make right, 1 for one that fails on what is there.

Either is told in one line on stderr, nothing goes to stdout, and the working folder is as before. Numbers and
enumerations are tried for every option that takes one; options of text or paths stand in the table, or take any text.
"""

import shlex
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from tests.builders import commands, extractions

NET = """import torch.nn as nn


def supported_hyperparameters():
    return {"lr"}


class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__()

    def train_setup(self, prm):
        pass

    def learn(self, train_data):
        pass

    def forward(self, x):
        return x
"""

ROOT, TREE = commands.ROOT, commands.TREE

#: What is wrong by itself, whatever lies there.
WRONG = """
trace ga-1
search --like Scale conv --in lib
search --like Scale --spec new.json --in lib
cache no-such-room
cache --older-than 3
extract --corpus no-such --out new
extract --source 'a b' --out new
extract --source git+https://h/a/b@ --out new
extract --source timm@ --out new
extract --source git+ftp://x --out new
extract --source ./mine --include-code --out new
extract --source ./mine --tasks 3 --out new
show Scale --in lib --graph new.png
migrate Scale --in lib --into net.py --prm [
migrate Scale --in lib --into net.py --prm []
migrate Scale --in lib --into net.py --in-shape 3x3
migrate Scale --in lib --into net.py --full
migrate Scale --in lib --into net.py --list --site after:x
migrate Scale --in lib --into net.py --list --out new.py
migrate Scale --in lib --into mine --site after:x
curate lemur@nonsense! --out new
curate lemur-db@nonsense! --out new
curate hf://nonsense --out new
curate hf://models/a/b --out new
curate rows.jsonl rows.jsonl --out new
curate rows.jsonl --out new --lexical-threshold 0.2
curate rows.jsonl --out new --lexical-threshold nan
curate rows.jsonl --out new --structural-threshold 2
curate rows.jsonl --out new --min-per-prefix -1
curate rows.jsonl --out new --topup-per-prefix -1
curate rows.jsonl --out new --profile nn-dup --keep-per-family -1
curate rows.jsonl --out new --profile nn-dup --fractal-threshold 7
curate rows.jsonl --out new --profile nn-dup --topup-lexical-max 7
curate rows.jsonl --out new --profile nn-dup --topup-structural-max -7
curate rows.jsonl --out new --profile nn-dup --graph all
curate rows.jsonl --out new --profile nn-dup --tokens literal
curate rows.jsonl --out new --keep-per-family 3
curate rows.jsonl --out new --topup-family No --profile nn-dup
curate rows.jsonl --out new --upweight a
curate rows.jsonl --out new --upweight a:-1
curate rows.jsonl --out new --chat-max-tokens 0
curate rows.jsonl --out new --chat-max-tokens 7
curate rows.jsonl --out new --license free
curate rows.jsonl --out new --graph off --unsafe-no-sandbox
curate rows.jsonl --out new --tasks 3
curate rows.jsonl --out new --work w
curate rows.jsonl --out new --executor local --profile nn-dup
explain snap ga-1 --graph new.png
novel net.py --against snap --task no-such
novel net.py --against snap --prm [
novel net.py --against snap --prm 3
sensitivity lemur@nonsense! --out new
sensitivity rows.jsonl --out new --lexical 7
sensitivity rows.jsonl --out new --structural x
sensitivity rows.jsonl --out new --structural 7
train assemble plain --out new.py --set x
train assemble plain --out new.py --set training.learning_rate=fast
train assemble plain --out new.py --set training.no_such=1
train assemble no-such-recipe --out new.py
train candidates --slot stem --in lib --widths 3,x
train candidates --slot stem --in lib --widths 0
train search --in lib --out new --data synthetic --recipe no-such
train search --in lib --out new --data hf://nonsense
train search --in lib --out new --data synthetic --set x
train run no-such-recipe --out new --data synthetic --held-out 9
train run plain --out new --data hf://nonsense
train run plain --out new --data synthetic --held-out 9 --set x
train run plain --out new --data synthetic --held-out 9 --prm {}
train run net.py --out new --data synthetic --held-out 9 --prm [
train run net.py --out new --data synthetic --held-out 9 --prm 3
train run net.py --out new --data synthetic --held-out 9 --set model.width=3
train ablate no-such-recipe --out new --data synthetic --held-out 9
train ablate plain --out new --data hf://nonsense
train ablate plain --out new --data synthetic --held-out 9 --seeds 1,x
train ablate plain --out new --data synthetic --held-out 9 --seeds 1,1
train ablate plain --out new --data synthetic --held-out 9 --variant x
train ablate plain --out new --data synthetic --held-out 9 --variant 'a: x'
train ablate plain --out new --data synthetic --held-out 9 --set x
train check net.py --prm {} --memory inf
train run plain --out new --data synthetic --time-limit inf
train check net.py --prm [ --data synthetic
train check net.py --prm 3 --data synthetic
train check net.py --prm {} --data synthetic --metric iou
train check net.py --prm {} --data synthetic --task no-such
train check net.py --prm {} --task txt-generation --metric no-such
train check net.py --prm {} --data hf://nonsense
synthesize --in lib --out new
synthesize --in lib --out new --model m --compare a --compare b
synthesize --in lib --out new --compare a
synthesize --in lib --out new --compare a@http://h/v1 --compare a@http://h/v1
synthesize --in lib --out new --model m --base-url nonsense
synthesize --in lib --out new --model m --base-url http://localhost:9/v1 --register x.db
synthesize --in lib --out new --model m --base-url http://localhost:9/v1 --blocks 0
synthesize --in lib --out new --model m --base-url http://localhost:9/v1 --spec s.json --search conv
synthesize --in lib --out new --model m --base-url http://localhost:9/v1 --license free
synthesize --in lib --out new --model m --base-url http://localhost:9/v1 --train 1 --data hf://nonsense
publish snap --repo-id nonsense --dry-run
publish snap --repo-id a/b/c --dry-run
publish snap --repo-id a/b --revision 'a b' --dry-run
publish snap --repo-id a/b --tag 'a b' --dry-run
publish snap --repo-id a/b --tag main --dry-run
publish snap --repo-id a/b --not-secret nonsense --dry-run
pull nonsense --out new
pull a/b --out new --revision 'a b'
run --out new --data hf://nonsense
"""

#: What fails on the files that are there.
FAILS = """
verify missing
verify empty
verify notes.txt
verify broken
verify snap --against missing
verify sample --against snap
open missing --no-browser
open empty --no-browser
open notes.txt --no-browser
trace no-such --in snap
trace ga-1 --in missing
trace ga-1 --in sample
trace noise.py --in snap
trace net.py --in snap
publish missing --repo-id a/b --dry-run
publish empty --repo-id a/b --dry-run
publish broken --repo-id a/b --dry-run
pull a/b --out taken
run --out taken --data synthetic
run --out notes.txt --data synthetic
run --out new --data missing
search --in missing
search --in empty
search --in snap
search --in notes.txt
search --in lib --like no-such
search --in lib --like noise.py
search --in lib conv --spec notes.txt
search --in lib conv --spec missing/new.json
search --in lib conv --spec taken
extract --source ./missing --out new
extract --source ./empty --out new
extract --source ./notes.txt --out new
extract --source ./mine --out taken
extract --source ./mine --out notes.txt
extract --corpus missing.json --out new
extract --corpus notes.txt --out new
extract --corpus noise.py --out new
extract --source ./mine --executor local --work no-such://x/y --out new
extract --source ./mine --names missing.json --out new
extract --source ./mine --names notes.txt --out new
extract --source ./mine --names noise.py --out new
show no-such --in lib
show Scale --in missing
show Scale --in snap
show Scale --in broken
rebuild no-such --in lib --out new.py
rebuild Scale --in missing --out new.py
rebuild Scale --in snap --out new.py
rebuild Scale --in lib --out notes.txt
rebuild missing.json --out new.py
rebuild notes.txt --out new.py
migrate no-such --in lib --into net.py
migrate Scale --in missing --into net.py
migrate Scale --in snap --into net.py
migrate Scale --in lib --into missing.py
migrate Scale --in lib --into noise.py
migrate Scale --in lib --into notes.txt
migrate Scale --in lib --into empty
migrate Scale --in lib --into net.py --out notes.txt
curate missing.csv --out new
curate missing --out new
curate empty --out new
curate notes.txt --out new
curate noise.parquet --out new
curate noise.jsonl --out new
curate noise.csv --out new
curate noise.db --out new
curate broken --out new
curate rows.jsonl --out taken
curate rows.jsonl --out notes.txt
curate rows.jsonl --out notes.txt/new
curate rows.jsonl --out new --include no-such
curate rows.jsonl --out new --task no-such
curate rows.jsonl --out new --dataset no-such
curate rows.jsonl --out new --metric no-such
curate rows.jsonl --out new --against missing
curate rows.jsonl --out new --runtime no-such-package
curate rows.jsonl --out new --against lib
curate rows.jsonl --out new --origins missing
curate rows.jsonl --out new --origins snap
curate rows.jsonl --out new --executor local --work notes.txt
curate rows.jsonl --out new --executor local --work no-such://x/y
explain missing ga-1
explain lib ga-1
explain snap no-such
explain snap ga-1 --graph taken.svg
explain snap ga-1 --against lib
novel missing.py --against snap
novel noise.py --against snap
novel notes.txt --against snap
novel net.py --against missing
novel net.py --against snap --runtime no-such-package
novel net.py --against sample
sensitivity missing.csv --out new
sensitivity noise.parquet --out new
sensitivity rows.jsonl --out taken
train assemble missing.toml --out new.py
train assemble noise.toml --out new.py
train assemble plain --out notes.txt
train assemble preact_se --in missing --out new.py
train assemble preact_se --in snap --out new.py
train candidates --slot stem --in missing
train candidates --slot stem --in snap
train search --in lib --out new --data synthetic
train search --in missing --out new --data synthetic:6000
train search --in lib --out taken --data synthetic:6000
train search --in lib --out new --data missing
train run missing.toml --out new --data synthetic --held-out 9
train run missing.py --out new --data synthetic --held-out 9
train run plain --out new --data synthetic --held-out 9 --runtime no-such-package
train run noise.py --out new --data synthetic --held-out 9
train run noise.toml --out new --data synthetic --held-out 9
train run plain --out taken --data synthetic --held-out 9
train run plain --out notes.txt --data synthetic --held-out 9
train run plain --out new --data missing
train run plain --out new --data notes.txt
train run plain --out new --data empty
train run plain --out new --data torchvision:empty
train run plain --out new --data synthetic --images 9999 --held-out 5
train run plain --out new --data synthetic --held-out 5000
train run preact_se --in missing --out new --data synthetic --held-out 9
train run net.py --prm missing.json --out new --data synthetic --held-out 9
train ablate missing.toml --out new --data synthetic --held-out 9
train ablate plain --out taken --data synthetic --held-out 9
train ablate plain --out new --data missing
train ablate preact_se --in missing --out new --data synthetic --held-out 9
train check missing.py --prm {} --data synthetic
train check noise.py --prm {} --data synthetic
train check net.py --prm missing.json --data synthetic
train check net.py --prm {} --data missing
train check net.py --prm '{"lr": 0.1, "batch": 4, "transform": "norm_32"}' --data synthetic --runtime no-such-package
train check net.py --prm {} --data synthetic --archive notes.txt
train register missing --db new.db
train register snap --db new.db
train register empty --db new.db
train register run --db noise.db
synthesize --in missing --out new --model m --base-url http://localhost:9/v1
synthesize --in snap --out new --model m --base-url http://localhost:9/v1
synthesize --in lib --out taken --model m --base-url http://localhost:9/v1
synthesize --in lib --out new --model m --base-url http://localhost:9/v1 --spec missing.json
synthesize --in lib --out new --model m --base-url http://localhost:9/v1 --spec notes.txt
synthesize --in lib --out new --model m --base-url http://localhost:9/v1 --parents missing
synthesize --in lib --out new --model m --base-url http://localhost:9/v1 --parents lib
synthesize --in lib --out new --model m --base-url http://localhost:9/v1 --against missing
synthesize --in lib --out new --model m --base-url http://localhost:9/v1 --search no-such-thing-at-all
experts data missing.toml
experts data noise.toml
experts adapt missing.toml
experts adapt noise.toml
experts align missing.toml
experts align noise.toml
experts route missing.toml
experts route noise.toml
experts evaluate missing.toml
experts evaluate noise.toml
experts answer missing.toml q
experts answer noise.toml q
"""

#: Options that any text is right for: it is looked for, or told to a model.
FREE = {
    "search": {"query", "category", "license_", "source"},
    "extract": {"names", "repo", "path", "symbol", "start_from"},
    "migrate": {"site"},
    "curate": {"prefer", "topup_prefix"},
    "synthesize": {"key_env", "goal"},
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
    (folder / "net.py").write_text(NET)
    (folder / "mine" / "block.py").write_text(NET)
    row = '{"nn": "ga-%d", "nn_code": "x = %d", "task": "t", "dataset": "d", "metric": "m", "accuracy": 0.5}\n'
    (folder / "rows.jsonl").write_text("".join(row % (number, number) for number in range(3)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("extract.folder.report.draw_figures", lambda *given: {})
        sources = [extractions.source(folder / "sources", name) for name in ("alpha@1.0", "beta@2.0")]
        extractions.write(folder / "lib", extractions.results(sources), sources)
    options = CurateOptions(graph="off", license="MIT")
    curate(open_source(str(folder / "rows.jsonl")), folder / "snap", options, jobs=1)
    finished(folder / "sample")
    return folder


def state(folder: Path) -> dict[Path, tuple[int, int]]:
    """What lies in a folder, with sizes and times in nanoseconds."""
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


@pytest.mark.parametrize(
    ("status", "line"), [*((2, line) for line in lines(WRONG)), *((1, line) for line in lines(FAILS))]
)
def test_what_goes_wrong_is_one_line(
    status: int, line: str, place: Path, lemur_here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lemur.cli.app", ROOT)  # the same tree, not built anew
    before = state(place)
    done = lemur_here(*shlex.split(line), cwd=place)
    assert done.returncode == status, done.stderr
    (told,) = [text for text in done.stderr.splitlines() if not text.startswith("features: ")]
    assert told.startswith("lemur: ")
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
        elif isinstance(one, type) and issubclass(one, StrEnum):
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
    gone = [shlex.split(line) for line in lines(WRONG) + lines(FAILS)]
    for command, parsed in TREE.items():
        words = command.split()
        used = {word for line in gone if line[: len(words)] == words for word in line}
        hints = get_type_hints(parsed.callback, include_extras=True)
        for option in parsed.params:
            if option.name in hints and not any(wrong_values(hints[option.name])) and not _is_flag(hints[option.name]):
                stands = option.opts[0] in used or not option.opts[0].startswith("-")
                if command.startswith("experts "):  # what stands in its file of settings: tests/lemur/experts
                    continue
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
