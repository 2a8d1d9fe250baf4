"""What the commands of training do between parsing and printing."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from lemur_core.files.atomic import check_writable, write_text
from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import note
from lemur_core.files.workers import available_cores
from manifests.records import TrainingRecord
from train.assemble import Assembled, assemble
from train.candidates import Candidate
from train.contract import check_contract
from train.history import read_history
from train.lemur_files import LEMUR, can_enter_from, check_storable, trained_with, why_refused, write_lemur_files
from train.recipe import Recipe
from train.run import Network, Resources, TrainingRun, train_once
from train.run_folder import RECORD, complete_run

#: Where an assembled network's file states its hyperparameters.
PRM_LINE = re.compile(r"^# Prm: +(\{.*\})$", re.MULTILINE)
_MORE = {"out_of_memory": "; --memory gives it more", "timeout": "; --step-limit gives it longer"}


def read_numbers(text: str, option: str, least: int) -> tuple[int, ...]:
    """Whole numbers from `1,2,3`.

    Raises: UsageError if one is no number, or below `least`.
    """
    found = []
    for part in text.split(","):
        if not part.strip().isdecimal() or int(part) < least:
            raise UsageError(f"{option} {text!r}: {part.strip()!r} is no whole number from {least}; write 1,2,3")
        found.append(int(part))
    return tuple(found)


def resources(
    threads: int | None,
    memory_gib: float,
    time_limit: float | None,
    *,
    unsafe: bool,
    jobs: int = 1,
    device: str = "auto",
    step_limit: float = 600.0,
) -> Resources:
    """What each of `jobs` runs may use; the cores are shared among them unless `threads` is given."""
    return Resources(
        threads=threads or max(1, available_cores() // jobs),
        device=device,
        memory_bytes=int(memory_gib * 2**30),
        time_limit=time_limit,
        step_limit=step_limit,
        unsafe=unsafe,
    )


def candidate_lines(found: Sequence[Candidate], *, every: bool) -> list[str]:
    """One line a candidate, those that fit first."""
    shown = [candidate for candidate in found if candidate.fits or every]
    lines = [candidate.line() for candidate in shown]
    fitting = sum(candidate.fits for candidate in found)
    return [
        *lines,
        f"{fitting} of {len(found)} fit" + ("" if every or fitting == len(found) else "; --all shows why not"),
    ]


def read_prm(text: str) -> dict[str, object]:
    """Hyperparameters from JSON, or from a file of it.

    Raises: UsageError if it is no JSON object; UserError if there is no such file.
    """
    if not text.lstrip().startswith("{"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"--prm {text}: neither a JSON object nor a file of one; write '{{\"lr\": 0.01}}'"
            ) from error
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--prm: not JSON: {error}; write '{{\"lr\": 0.01}}'") from error
    if not isinstance(found, dict):
        raise UsageError("--prm: not a JSON object; write '{\"lr\": 0.01}'")
    return found


def read_code(path: Path) -> str:
    """The text of a network's file.

    Raises: UserError if it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give a network's file (NET.py)") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text; give a network's file (NET.py)") from error


def assemble_to(out: Path, recipe: Recipe, folder: Path | None, *, unsafe: bool, force: bool) -> Assembled:
    """Assemble a recipe and write its file.

    Raises: UserError if it cannot be assembled or written, or the file is there and `force` is not given.
    """
    if out.exists() and (out.is_dir() or not force):
        raise UserError(f"{out}: exists already; choose another --out" + ("" if out.is_dir() else ", or add --force"))
    check_writable(out)
    assembled = assemble(recipe, folder, unsafe=unsafe)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, assembled.code)
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror}; choose another --out") from error
    return assembled


def network_in(path: Path, prm: str | None) -> Network:
    """The network in a file of LEMUR's contract.

    Args: prm: its hyperparameters as given; an assembled network's file names those of its recipe.
    Raises: UserError if it cannot be read, is off the contract, or no hyperparameters are known.
    """
    code = read_code(path)
    fault = check_contract(code)
    if fault is not None:
        raise UserError(f"{path}: not by LEMUR's contract: {fault}")
    stated = PRM_LINE.search(code)
    text = prm if prm is not None else stated and stated[1]
    if not text:
        raise UserError(f'{path}: give its hyperparameters, for example --prm \'{{"lr": 0.01, "momentum": 0.9}}\'')
    return Network(path.stem, code, read_prm(text))


def train_to(
    out: Path, run: TrainingRun, *, resources: Resources, force: bool, library: Path | None = None
) -> TrainingRecord:
    """Train a network; a run that came to its end gets its files for LEMUR too, below `lemur`.

    Args: library: the extraction folder of its blocks, which its manifest then names.
    """
    net = run.network
    if can_enter_from(run.data.label):
        check_storable(net.prm)
    used = trained_with(json.loads(run.recipe.to_json()))
    for name in sorted(used.keys() & net.prm.keys()):
        if net.prm[name] != used[name]:
            said = f"{name} {net.prm[name]!r} only constructs it"
            note(f"{net.name}: {said}; the recipe trains it with {used[name]!r}: --set training.… changes that")
    record = train_once(run, out, resources=resources, force=force)
    if not why_refused(record):
        history = [epoch.model_dump(mode="json") for epoch in read_history(out)]
        write_lemur_files(out / LEMUR, record, net.code, history)
    complete_run(out, library)
    return record


def run_text(record: TrainingRecord, out: Path) -> str:
    """What a run came to, in a few lines."""
    if record.status != "ok" and Path(f"{out}.partial").is_dir():
        return f"{record.name}: {record.error}; run again, it goes on from {out}.partial"
    if record.status != "ok":
        more = _MORE.get(record.status, "")
        return f"{record.name}: {record.status}: {record.error}{more}; see {out / RECORD}"
    rows = [
        ("data", f"{record.data}, {record.train_images:,} images to train on"),
        (
            "training",
            f"{plural(record.epochs, 'epoch')}, {plural(record.steps, 'step')}, {record.train_seconds:,.0f} s",
        ),
        ("waiting for data", f"{100 * record.data_seconds / max(record.train_seconds, 1e-9):.1f} %"),
        ("parameters", f"{record.parameters or 0:,}"),
        ("held out", "–" if record.val_accuracy is None else f"{100 * record.val_accuracy:.2f} %"),
        ("test", "–" if record.test_accuracy is None else f"{100 * record.test_accuracy:.2f} %"),
        ("device", f"{record.device}, {record.precision}"),
    ]
    lines = [f"{record.name}, seed {record.seed}", *(f"  {name:<17} {value}" for name, value in rows)]
    return "\n".join([*lines, f"-> {out}"])
