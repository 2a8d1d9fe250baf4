"""One run of an ablation or a search: it lies in a folder of its own below that of the study."""

import difflib
from pathlib import Path

from lemur_core.files.errors import UserError
from manifests import trace_run
from manifests.manifest import FILE_NAME, read_manifest
from manifests.trace import Link, Traced, manifest_link

_RUNS = "runs"
_NEAR = 5


def find(folder: Path, wanted: str) -> Traced:
    """The run whose folder has this name; `NAME/BLOCK` is one block of its network.

    Raises: UserError if nothing is called so, with near names.
    """
    runs = [path.name for path in _runs(folder)]
    name, _, block = wanted.partition("/")
    if name not in runs:
        near = difflib.get_close_matches(name, runs, _NEAR, 0.3) or runs[:_NEAR]
        raise UserError(
            f"{wanted}: no run of this {read_manifest(folder).kind} is called so; near names: {', '.join(near)}"
        )
    run = folder / _RUNS / name
    return _with_manifest(folder, run, trace_run.find(run, block or "net"))


def find_code(folder: Path, sha256: str) -> Traced | None:
    """The first run whose network has this digest, or a block of it."""
    for run in _runs(folder):
        found = trace_run.find_code(run, sha256)
        if found is not None:
            return _with_manifest(folder, run, found)
    return None


def _with_manifest(folder: Path, run: Path, found: Traced) -> Traced:
    of_run = Link("in", run.relative_to(folder).as_posix(), {})
    return Traced((of_run, *found.links, manifest_link(run, read_manifest(run))), found.codes)


def _runs(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / _RUNS).glob("*") if (path / FILE_NAME).is_file())
