"""The files of a contribution: of paths, of folders, or of a range of git commits."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from extract.sources.git import read_blobs, run_git
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import check_plain
from lemur_core.similarity.outline import MAX_CODE_BYTES

#: `A..B`: the files that B has and A has not, or has otherwise. A or B may be left out, for HEAD.
_RANGE = re.compile(r"(?P<before>[^.\s-][^\s]*?)?(?P<dots>\.{2,3})(?P<after>[^.\s-][^\s]*)?")
_STATISTICS = re.compile(r"(?:.*/)?stat/(?:train/)?(?P<folder>[^/]+)/(?P<file>[^/]+)\.json")
#: Of what lies in LEMUR's own tree, the networks are here; elsewhere every file of Python is one.
_IN_LEMUR = re.compile(r"(?:.*/)?ab/nn/(?!nn/[^/]+\.py$)")
_CODES = "ab/nn/nn"


@dataclass(frozen=True, slots=True)
class Contribution:
    """The networks and the statistics of a contribution, each with its bytes by the path to show, in order.

    `others` counts the files that are neither; `names` are networks that are there besides those to check.
    """

    networks: Mapping[str, bytes]
    statistics: Mapping[str, bytes]
    others: int
    names: frozenset[str]


def read_contribution(paths: Sequence[str]) -> Contribution:
    """Read the files to check.

    Args: paths: files, folders, and ranges of commits `A..B` of the repository in the working folder.
    Raises: UserError if one does not exist or cannot be read, or there is nothing to check.
    """
    files: dict[str, bytes] = {}
    names: set[str] = set()
    for path in paths:
        commits = None if Path(path).exists() else _RANGE.fullmatch(path)
        if commits is not None and (commits["before"] or commits["after"]):
            ends = commits["before"] or "HEAD", commits["after"] or "HEAD"
            files |= _read_range(path, ends, commits["dots"], names)
        else:
            files |= _read_path(path, names)
    networks = {path: data for path, data in files.items() if _is_network(path)}
    statistics = {path: data for path, data in files.items() if _STATISTICS.fullmatch(path)}
    if not networks and not statistics:
        raise UserError(
            f"{', '.join(paths)}: no networks (.py files) and no statistics (stat/train/TASK_DATASET_METRIC_NAME/"
            "EPOCH.json); nothing was checked"
        )
    return Contribution(networks, statistics, len(files) - len(networks) - len(statistics), frozenset(names))


def match_statistics(path: str) -> tuple[str, str]:
    """Return the folder and the name without `.json` of a file of statistics."""
    match = _STATISTICS.fullmatch(path)
    assert match is not None
    return match["folder"], match["file"]


def _is_network(path: str) -> bool:
    plain = PurePosixPath(path)
    return plain.suffix == ".py" and plain.name != "__init__.py" and not _IN_LEMUR.match(path)


def _read_path(path: str, names: set[str]) -> Iterator[tuple[str, bytes]]:
    start = Path(path)
    if not start.exists():
        raise UserError(f"{path}: no such file or folder; give files, a folder, or a range of commits A..B")
    files = [start] if not start.is_dir() else [file for file in sorted(start.rglob("*")) if _is_seen(file, start)]
    for file in files:
        check_plain(file)
        yield file.as_posix(), _read_file(file)
    for root in (start, *start.resolve().parents):
        names |= {file.stem for file in (root / _CODES).glob("*.py")}


def _is_seen(file: Path, start: Path) -> bool:
    parts = file.relative_to(start).parts
    hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
    return not hidden and not file.is_symlink() and file.is_file()


def _read_file(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_CODE_BYTES + 1)  # one more: too large
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from error


def _read_range(shown: str, ends: tuple[str, str], dots: str, names: set[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the files that a range adds or changes, as they are at its end."""
    run = partial(run_git, shown, None)
    commits = [
        run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").decode() for name in ends
    ]
    first, last = (commit.strip() for commit in commits)
    options = ("-z", "--name-only", "--no-renames", "--no-ext-diff", "--diff-filter=AMT")
    changed = set(run("diff", *options, f"{first}{dots}{last}", "--").split(b"\0"))
    listed = run("ls-tree", "-r", "-z", "--full-tree", "--long", last).split(b"\0")
    blobs: dict[str, str | None] = {}  # None: too large
    for line in filter(None, listed):
        facts, _, raw = line.partition(b"\t")
        mode, _, blob, size = facts.split()
        path = raw.decode("utf-8", "backslashreplace")
        if path.startswith(f"{_CODES}/") and path.endswith(".py"):
            names.add(PurePosixPath(path).stem)
        if raw in changed and mode.startswith(b"100"):
            blobs[path] = blob.decode() if size.isdigit() and int(size) <= MAX_CODE_BYTES else None
    contents = read_blobs(run, sorted({blob for blob in blobs.values() if blob is not None}))
    for path, wanted in blobs.items():
        yield path, b" " * (MAX_CODE_BYTES + 1) if wanted is None else contents[wanted]
