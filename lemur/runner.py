"""Run the stages in order; a stage is kept if none of its inputs changed and its output is intact.

`stages.json` has the digests of inputs and outputs of each finished stage. If the run is killed at any point, finished
stages remain finished: the entry of a stage is removed before it is built, and added once its outputs are in place.
Partial results of a killed stage are in the caches, or in the partial folder of a training run.
"""

import contextlib
import errno
import hashlib
import importlib.util
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from lemur_core.files.atomic import check_ours, own, remove_unfinished, sha256_file, write_text
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
from manifests.folders.manifest import package_versions
from manifests.records import Record, Sha256

#: The file that makes a folder the output of `lemur demo`.
STATE = "stages.json"
_LOCK = ".lock"
_OF_THE_PLACE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)
_CODE = frozenset({".py", ".json", ".toml", ".jinja"})


@dataclass(frozen=True, slots=True)
class Summary:
    """The content of a finished stage: counts for programs, and a short text for people."""

    counts: Mapping[str, object]
    text: str


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage, which writes its outputs to the folder of the run, and reads only the outputs of its parents there."""

    name: str
    outputs: tuple[str, ...]  # files or folders, relative to the folder of the run; each is complete or absent
    make: Callable[[Path], object]  # writes the outputs to the folder of the run, replacing older ones
    summarize: Callable[[Path], Summary]  # reads the outputs and summarizes them
    parents: tuple[str, ...] = ()  # names of earlier stages
    packages: tuple[str, ...] = ()  # our packages whose code determines the outputs
    parameters: Mapping[str, object] = field(default_factory=dict)  # other values that determine the outputs, as JSON
    # Whether `make` accepts an existing output as its own (a training run is recognized by its identity), so that it
    # must be removed before a rebuild.
    resumes: bool = False


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """The outcome of a stage in one run. `why` is None and `seconds` is 0 if it was kept."""

    stage: Stage
    why: str | None
    seconds: float
    summary: Summary


class StageRecord(Record):
    """A finished stage: digests of its inputs, by kind or parent, and of every byte of its outputs."""

    inputs: dict[str, Sha256]
    output: Sha256


class State(Record):
    """The finished stages, by name."""

    stages: dict[str, StageRecord]


def run_stages(stages: Sequence[Stage], out: Path, *, force: bool = False) -> list[StageOutcome]:
    """Bring every stage up to date, in this order, parents first.

    Args: force: rebuild all of them.
    Returns: the outcome of each stage.
    Raises: UserError that names the failed stage.
    """
    with _own_folder(out):
        finished = _read_state(out, rebuild=force)
        _write_state(out, finished)  # marks the folder as ours from now on
        outputs: dict[str, str] = {}
        outcomes = []
        for number, stage in enumerate(stages, 1):
            inputs = _digest_inputs(stage, outputs)
            output = digest_outputs(out, stage.outputs)
            why = _why(finished.get(stage.name), inputs, output, force=force)
            note(f"stage {number} of {len(stages)}, {stage.name}: {why or 'nothing changed'}")
            started = time.monotonic()
            if why is not None:
                previous = finished.pop(stage.name, None)
                _write_state(out, finished)
                # Remove outputs that somebody has changed and, with `--force`, those of a stage that would resume from
                # them.
                with _naming(stage):
                    if (previous is not None and output != previous.output) or (force and stage.resumes):
                        for name in stage.outputs:
                            _remove(out / name)
                    stage.make(out)
                output = digest_outputs(out, stage.outputs)
                assert output is not None, f"stage {stage.name} has not written {stage.outputs}"
                finished[stage.name] = StageRecord(inputs=inputs, output=output)
                _write_state(out, finished)
            assert output is not None
            outputs[stage.name] = output
            seconds = time.monotonic() - started if why is not None else 0.0
            outcomes.append(StageOutcome(stage, why, round(seconds, 3), stage.summarize(out)))
    return outcomes


def in_stage(name: str, error: UserError, more: str = "") -> UserError:
    """Return the same error, prefixed with the stage that it comes from."""
    return type(error)(f"stage {name}: {error}{more}")


@contextlib.contextmanager
def _naming(stage: Stage) -> Iterator[None]:
    """Name the stage in errors of the block."""
    try:
        yield
    except UserError as error:
        raise in_stage(stage.name, error) from error
    except BaseException as error:
        if isinstance(error, OSError) and error.errno in _OF_THE_PLACE:
            where = f"{error.filename}: " if error.filename else ""
            reason = f"{where}{error.strerror}; fix that, then run the same command again to resume"
            raise UserError(f"stage {stage.name}: {reason}") from error
        # Ctrl-C and signals, too: what is cached or lies in the partial folder stays.
        note(f"stage {stage.name}: not finished; run the same command again to resume")
        raise


def _why(record: StageRecord | None, inputs: dict[str, str], output: str | None, *, force: bool) -> str | None:
    """Return the reason why a stage must be built, in a few words; None if it is up to date."""
    if force:
        return "rebuilt because of --force"
    if record is None:
        return "not built yet"
    # Of both: a parent that a stage no longer has is a change, too.
    changed = [name for name in inputs | record.inputs if record.inputs.get(name) != inputs.get(name)]
    if changed:
        return f"rebuilt: {', '.join(changed)} changed"
    if output is None:
        return "rebuilt: its output is missing"
    return None if output == record.output else "rebuilt: its output was changed"


# -- the state on disk --------------------------------------------


@contextlib.contextmanager
def _own_folder(out: Path) -> Iterator[None]:
    """Lock the folder of a run, created if missing; partial outputs of killed runs are removed.

    Raises: UserError if it has other content, cannot be written, or another run works there.
    """
    if out.is_symlink() or out.exists():
        if not out.is_dir():
            raise UserError(f"{out}: is a file, not a folder; choose another --out")
        if not (out / STATE).is_file() and any(path.name != _LOCK for path in out.iterdir()):
            raise UserError(f"{out}: has no {STATE}, so `lemur demo` did not create it; choose another --out")
    with own(out, _LOCK, "another run works there"):
        remove_unfinished(out)
        yield


def _read_state(out: Path, *, rebuild: bool) -> dict[str, StageRecord]:
    """Read the finished stages; with `rebuild`, ignore a damaged file. Raises: UserError if the file is not ours."""
    path = out / STATE
    if not path.is_file():
        return {}
    try:
        return State.model_validate(json.loads(path.read_bytes())).stages
    except ValidationError as error:
        raise UserError(f"{path}: is not of `lemur demo`; choose another --out") from error
    except (ValueError, RecursionError) as error:
        if rebuild:
            return {}
        raise UserError(f"{path}: is damaged; add --force to rebuild every stage") from error


def _write_state(out: Path, finished: dict[str, StageRecord]) -> None:
    write_text(out / STATE, State(stages=finished).model_dump_json(indent=2) + "\n")


def _remove(path: Path) -> None:
    """Remove an output of a stage. Raises: UserError if it is a folder with files that lemur did not write."""
    if path.is_dir() and not path.is_symlink():
        check_ours(path)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# -- digests of inputs and outputs --------------------------------------------


def _digest_inputs(stage: Stage, outputs: Mapping[str, str]) -> dict[str, str]:
    """Return digests of all inputs of a stage; it is rebuilt if one of them changes."""
    own = {
        "parameters": _digest_json(dict(stage.parameters)),
        "code": _digest_json({name: _digest_package(name) for name in stage.packages}),
        "versions": _digest_json(_versions()),
    }
    return own | {name: outputs[name] for name in stage.parents}


def digest_outputs(out: Path, outputs: Sequence[str]) -> str | None:
    """Return the digest of every byte of a stage's outputs; None if one of them is missing or cannot be read.

    A rebuilt folder has another digest because its manifest contains timings; stages that depend on it are rebuilt too,
    because their manifests name that manifest as a parent.
    """
    listed: dict[str, str] = {}
    try:
        for name in outputs:
            path = out / name
            files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
            listed |= {file.relative_to(out).as_posix(): sha256_file(file) for file in files}
    except OSError:
        return None
    return _digest_json(listed)


def _digest_json(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


@cache
def _versions() -> Mapping[str, str]:
    return package_versions("torch", "torchvision", "sandlock")


@cache
def _digest_package(name: str) -> str:
    """Return the digest of the files of one of our packages: Python, and the data that it reads."""
    spec = importlib.util.find_spec(name)
    assert spec is not None, name
    assert spec.submodule_search_locations is not None, name
    root = Path(next(iter(spec.submodule_search_locations)))
    # Files instead of the version: a checkout changes without one.
    files = [path for path in sorted(root.rglob("*")) if path.suffix in _CODE and path.is_file()]
    return _digest_json({path.relative_to(root).as_posix(): sha256_file(path) for path in files})
