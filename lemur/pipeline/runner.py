"""Stage after stage, each left as it is while nothing in front of it changed and its output is whole.

`stages.json` holds what each finished stage was made from and what came out. Killed at any point, the finished stages
stay finished: a stage is forgotten before it is made, and noted once its outputs are in place. What a killed stage had
worked out lies in the caches, or in the partial folder of a training run.
"""

import contextlib
import errno
import hashlib
import importlib.metadata
import importlib.util
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lemur.finished.folders import STATE
from lemur_core.files.atomic import own, sha256_file, write_text
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
from manifests.folders.manifest import package_versions
from manifests.records import Record, Sha256

_LOCK = ".lock"
_OF_THE_PLACE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)
#: Packages whose releases may change results, beside those of every manifest.
_MORE_VERSIONS = ("torch", "torchvision", "sandlock")
_CODE = frozenset({".py", ".json", ".toml", ".jinja"})


@dataclass(frozen=True, slots=True)
class Summary:
    """What a finished stage holds: counts for programs, the same in a few words for people."""

    counts: Mapping[str, Any]
    text: str


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage writes its outputs below the folder of the run, and reads nothing there but the outputs of its parents.

    Args:
        outputs: files or folders, relative to the folder of the run; each is whole or absent.
        make: writes the outputs into the folder of the run, in place of older ones.
        summarise: reads the outputs again.
        parents: names of stages before this one.
        packages: ours, whose code decides what comes out.
        parameters: what else decides it, as JSON can hold it.
        resumes: an output that is there already is taken for the same thing's (a training run is known by its
            identity), so one that is to be made anew must go first.
    """

    name: str
    outputs: tuple[str, ...]
    make: Callable[[Path], object]
    summarise: Callable[[Path], Summary]
    parents: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    resumes: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a stage in one run. `why` is None, and `seconds` 0, where it was left as it is."""

    stage: Stage
    why: str | None
    seconds: float
    summary: Summary


class StageRecord(Record):
    """A stage that was finished: digests of its inputs, by kind or parent, and of the outputs, every byte of them."""

    inputs: dict[str, Sha256]
    output: Sha256


class State(Record):
    """The finished stages, by name."""

    stages: dict[str, StageRecord]


def run_stages(stages: Sequence[Stage], out: Path, *, force: bool = False) -> list[Done]:
    """Bring every stage up to date, in the given order, parents first.

    Args:
        force: make all of them again.

    Returns: what became of each.
    Raises: UserError that names the stage.
    """
    with _own_folder(out):
        finished = _read_state(out, anew=force)
        _write_state(out, finished)  # from here on the folder is known for one of ours
        outputs: dict[str, str] = {}
        done = []
        for place, stage in enumerate(stages, 1):
            inputs = _digest_inputs(stage, outputs)
            found = digest_outputs(out, stage.outputs)
            why = _why(finished.get(stage.name), inputs, found, force=force)
            note(f"stage {place} of {len(stages)}, {stage.name}: {why or 'nothing changed'}")
            started = time.monotonic()
            if why is not None:
                known = finished.pop(stage.name, None)
                _write_state(out, finished)
                if (known is not None and found != known.output) or (force and stage.resumes):
                    for name in stage.outputs:
                        _remove(out / name)
                found = _make(stage, out)
                finished[stage.name] = StageRecord(inputs=inputs, output=found)
                _write_state(out, finished)
            assert found is not None
            outputs[stage.name] = found
            seconds = time.monotonic() - started if why is not None else 0.0
            done.append(Done(stage, why, round(seconds, 3), stage.summarise(out)))
    return done


def in_stage(name: str, error: UserError, more: str = "") -> UserError:
    """The same error, with the stage that it comes from."""
    return type(error)(f"stage {name}: {error}{more}")


def _make(stage: Stage, out: Path) -> str:
    try:
        stage.make(out)
    except UserError as error:
        raise in_stage(stage.name, error) from error
    except BaseException as error:
        if isinstance(error, OSError) and error.errno in _OF_THE_PLACE:
            where = f"{error.filename}: " if error.filename else ""
            reason = f"{where}{error.strerror}; mend that, and the same command goes on"
            raise UserError(f"stage {stage.name}: {reason}") from error
        note(f"stage {stage.name}: not finished; the same command goes on from here")
        raise
    found = digest_outputs(out, stage.outputs)
    assert found is not None, f"stage {stage.name} has not written {stage.outputs}"
    return found


def _why(record: StageRecord | None, inputs: dict[str, str], found: str | None, *, force: bool) -> str | None:
    """Why a stage must be made, in a few words; None when it need not."""
    if force:
        return "made again, as --force asks"
    if record is None:
        return "not made yet"
    changed = [name for name in inputs | record.inputs if record.inputs.get(name) != inputs.get(name)]
    if changed:
        return f"made again: {', '.join(changed)} changed"
    if found is None:
        return "made again: its output is gone"
    return None if found == record.output else "made again: its output was changed"


# -- the state on disk --------------------------------------------


@contextlib.contextmanager
def _own_folder(out: Path) -> Iterator[None]:
    """The folder of a run, made when missing, for this process alone; what killed runs left half done is removed.

    Raises: UserError if it holds something else, cannot be written, or another run works there.
    """
    if out.is_symlink() or out.exists():
        if not out.is_dir():
            raise UserError(f"{out}: is a file, not a folder; choose another --out")
        if not (out / STATE).is_file() and any(path.name != _LOCK for path in out.iterdir()):
            raise UserError(f"{out}: holds no {STATE}, so it was not made by `lemur run`; choose another --out")
    with own(out, _LOCK, "another run works there"):
        for left in sorted([*out.glob(".*.part"), *out.glob(".*.old")]):
            _remove(left)
        yield


def _read_state(out: Path, *, anew: bool) -> dict[str, StageRecord]:
    """The finished stages. Damage does no harm when all is made `anew`. Raises: UserError if the file is not ours."""
    path = out / STATE
    if not path.is_file():
        return {}
    try:
        return State.model_validate_json(path.read_text(encoding="utf-8")).stages
    except (ValidationError, UnicodeDecodeError) as error:
        if anew:
            return {}
        raise UserError(f"{path}: is damaged; add --force to make every stage again") from error


def _write_state(out: Path, finished: dict[str, StageRecord]) -> None:
    write_text(out / STATE, State(stages=finished).model_dump_json(indent=2) + "\n")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# -- digests of what goes in and of what came out --------------------------------------------


def _digest_inputs(stage: Stage, outputs: Mapping[str, str]) -> dict[str, str]:
    """Digests of all that decides what comes out; a change of any of them makes the stage anew."""
    own = {
        "parameters": _digest_json(dict(stage.parameters)),
        "code": _digest_json({name: _digest_package(name) for name in stage.packages}),
        "versions": _digest_json(_versions()),
    }
    return own | {name: outputs[name] for name in stage.parents}


def digest_outputs(out: Path, outputs: Sequence[str]) -> str | None:
    """The digest of every byte of a stage's outputs; None if one of them is missing, or cannot be read.

    Of a folder that is made again it is another one, since manifests state seconds; so must be what is made from the
    folder, whose manifest names that manifest as its parent.
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
    """The versions of Python and of the packages that decide results."""
    found = package_versions()
    for name in _MORE_VERSIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


@cache
def _digest_package(name: str) -> str:
    """Of one of our packages' own files: Python, and the data that they read."""
    spec = importlib.util.find_spec(name)
    assert spec is not None, name
    assert spec.submodule_search_locations is not None, name
    root = Path(next(iter(spec.submodule_search_locations)))
    files = [path for path in sorted(root.rglob("*")) if path.suffix in _CODE and path.is_file()]
    return _digest_json({path.relative_to(root).as_posix(): sha256_file(path) for path in files})
