"""The checks of one file that need nothing else: contract, name, statistics, secrets and license. Nothing is run.

The rules of one file of statistics are those that the 99,771 files of nn-dataset 2.1.0 follow, but for 128 trials that
lack a hyperparameter of their network, and one that states its accuracy twice. `find_untrained` says what no training
gives of several.

Source: `ab/nn/util/db/{Write,Read}.py` and `ab/nn/stat/train` of https://github.com/ABrain-One/nn-dataset, 2.1.0
"""

import ast
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from curate.compute.runs import TASK_DATASETS
from curate.folder.novelty import Query, build_query
from extract.sources.git import GitError, read_blobs, run_git
from lemur_core.files import Json
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import check_plain, decode_python
from lemur_core.sandbox.server.received import read_json
from lemur_core.similarity.outline import MAX_CODE_BYTES
from lemur_core.source.text import parse_code
from manifests.provenance.licenses import is_permissive, read_head
from manifests.publish.secrets import find_hits
from train.model.contract import TRAINER_PARAMETERS, check_contract, lemur_digest

#: What is checked, by the name of the rule in every output.
RULES: Mapping[str, str] = {
    "file": "it is a file, not a symbolic link or a git submodule",
    "contract": "the file is a network by LEMUR's contract",
    "name": "the digest at the end of the name is that of the code",
    "statistics": "statistics are well formed, in the right folder, of a network that is there, and of a training",
    "runs": "the network is built and runs, in the sandbox",
    "new": "the network is new: by text, structure, graph and numbers, also among the files that are checked",
    "secret": "the file holds no token, key or password",
    "license": "the file states no license that forbids to publish it",
}

_DIGEST = re.compile(r"(?:^|-)([0-9a-f]{32})$")
_UID = re.compile(r"[0-9a-f]{8}(-?)[0-9a-f]{4}(?:\1[0-9a-f]{4}){2}\1[0-9a-f]{12}")
_LINE = re.compile(r"line (\d+): (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason to refuse a file. `rule`: of `RULES`; `line`: counted from 1."""

    rule: str
    message: str
    line: int = 1


@dataclass(frozen=True, slots=True)
class Inspection:
    """The findings about one file, and a query about its novelty if it is a network in Python."""

    findings: tuple[Refusal, ...]
    query: Query | None = None
    parameters: tuple[str, ...] = ()  # the names that `supported_hyperparameters` returns, as far as they are written
    certificate: str = ""  # 32 digits at the end of the name that are not LEMUR's digest of the code up to 2.2.11


def inspect_network(item: tuple[str, bytes]) -> Inspection:
    """Check the file of a network. Args: item: its path and bytes."""
    path, data = item
    findings = list(_find_secrets(data))
    if len(data) > MAX_CODE_BYTES:
        return Inspection((Refusal("contract", f"has more than {MAX_CODE_BYTES:,} bytes"), *findings))
    try:
        code = data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
        decode_python(code)  # as LEMUR writes it: in UTF-8, whatever it declares
    except UnicodeDecodeError as error:
        return Inspection((Refusal("contract", f"invalid UTF-8 at byte {error.start}"), *findings))
    except SyntaxError as error:
        return Inspection((Refusal("contract", str(error.msg)), *findings))
    if (reason := check_contract(code)) is not None:
        findings.insert(0, _locate("contract", reason))
    name = PurePosixPath(path).stem
    match = _DIGEST.search(name)
    certificate = match[1] if match is not None and match[1] != lemur_digest(code) else ""
    if match is None and "_" in name:
        what = "holds an underscore, at which LEMUR splits the folders of statistics; write a hyphen"
        findings.append(Refusal("name", what))
    stated = (license_ for license_ in read_head(code).licenses if not is_permissive(license_))
    findings += (Refusal("license", f"its head states {license_}, which does not permit it") for license_ in stated)
    query = build_query(path, code)
    if isinstance(query, str):  # `check_contract` reports what cannot be parsed
        return Inspection(tuple(findings) if findings else (Refusal("contract", query),))
    return Inspection(tuple(findings), query, _read_supported(code), certificate)


def _locate(rule: str, reason: str) -> Refusal:
    match = _LINE.fullmatch(reason)
    return Refusal(rule, match[2], int(match[1])) if match else Refusal(rule, reason)


def _find_secrets(data: bytes) -> Iterator[Refusal]:
    for hit in find_hits(data):
        yield Refusal("secret", f"{hit.kind}; revoke it, and take it out", hit.line)


def _read_supported(code: str) -> tuple[str, ...]:
    """Return the names in the literal that `supported_hyperparameters` returns; none if it computes them."""
    try:
        body = parse_code(code).body
    except SyntaxError:  # nested too deeply, which `check_contract` reports
        return ()
    for statement in body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "supported_hyperparameters":
            for node in ast.walk(statement):
                if isinstance(node, ast.Set | ast.List | ast.Tuple | ast.Dict):
                    items = node.keys if isinstance(node, ast.Dict) else node.elts  # of a dict LEMUR takes the keys
                    values = [item.value for item in items if isinstance(item, ast.Constant)]
                    return tuple(value for value in values if isinstance(value, str))
    return ()


def inspect_statistics(
    supported: Callable[[str], tuple[str, ...] | None], path: str, data: bytes, trials: list[Json] | str
) -> list[Refusal]:
    """Check a file of statistics.

    Args:
        supported: returns the hyperparameters of a network by its name; None if there is no such network.
        trials: of the file, from `read_trials`.
    """
    folder, epoch = match_statistics(path)
    parts, names, faults = folder.split("_"), tuple[str, ...](), list[str]()
    if len(parts) != 4 or not all(parts):
        faults.append(f"{folder}: the folder is not TASK_DATASET_METRIC_NAME")
    elif parts[0] not in TASK_DATASETS:
        faults.append(f"{parts[0]}: not a task of LEMUR; one of {', '.join(TASK_DATASETS)}")
    elif (of_network := supported(parts[3])) is None:
        faults.append(f"{parts[3]}: there is no network of this name")
    else:
        names = of_network
    if not re.fullmatch(r"0|[1-9][0-9]{0,5}", epoch):
        faults.append(f"{epoch}.json: the file is not named by an epoch")
    if isinstance(trials, str):
        faults.append(trials)
    else:
        faults += [f"trial {at}: {fault}" for at, trial in enumerate(trials, 1) for fault in _check_trial(trial, names)]
    return [*_find_secrets(data), *(Refusal("statistics", fault) for fault in faults)]


def read_trials(data: bytes) -> list[Json] | str:
    """Return the trials of a file of statistics, or why there are none."""
    try:
        trials: Any = read_json(data)
    except ValueError as error:
        return f"not plain JSON: {str(error)[:100]}"
    if not isinstance(trials, list) or not trials or not all(isinstance(trial, dict) for trial in trials):
        return "not a list of trials, each an object"
    return trials


def _check_trial(trial: Json, names: tuple[str, ...]) -> Iterator[str]:
    accuracy, duration, uid = (trial.get(name) for name in ("accuracy", "duration", "uid"))
    if (measured := _read_number(accuracy)) is None or not 0 <= measured <= 1:
        yield f"accuracy is {_show(accuracy)}; a number from 0 to 1 is needed"
    if duration is not None and ((taken := _read_number(duration)) is None or taken <= 0):
        yield f"duration is {_show(duration)}; a positive number of nanoseconds is needed"
    if not isinstance(uid, str) or not _UID.fullmatch(uid):
        yield f"uid is {_show(uid)}; 32 hexadecimal digits are needed"
    needed = {*names, *TRAINER_PARAMETERS} - {"epoch"}
    if missing := sorted(needed - trial.keys()):
        yield f"lacks {', '.join(missing)}"


def _read_number(value: object) -> float | None:
    """Return a number; None for anything else."""
    return None if isinstance(value, bool) or not isinstance(value, int | float) else value


def _show(value: object) -> str:
    return "missing" if value is None else repr(value)[:40]


#: Classes of LEMUR's data sets for classification, and the multiple of guessing up to which its trainer stores nothing.
_CLASSES = {"celeba-gender": 2, "cifar-10": 10, "cifar-100": 100, "imagenette": 10, "mnist": 10, "svhn": 10}
_GOOD = 1.2
_MANY = 5  # networks of a data set, most of which must not have one accuracy


def find_untrained(trials: Mapping[str, list[Json] | str], present: Collection[str]) -> Iterator[tuple[str, Refusal]]:
    """Yield what no training gives, with the path of the file that shows it, among well-formed statistics.

    A network's epochs have a gap; the duration of a trial, counted from the start of its training, does not grow; no
    accuracy is above that of guessing; a trial is that of another network, digit for digit; or most networks of a data
    set end with one accuracy, as where the data were broken.

    Args: trials: by path, from `read_trials`. present: the paths of all statistics that are there, these among them.
    Source: the audit in `ab/gpt/brute/loss_opt/ReuseResults.py` of https://github.com/ABrain-One/nn-gpt
    """
    report = partial(Refusal, "statistics")
    folders: dict[PurePosixPath, dict[int, str]] = {}
    for path in present:
        named, of_epoch = match_statistics(path)
        if of_epoch.isdecimal() and named.count("_") == 3:
            folders.setdefault(PurePosixPath(path).parent, {})[int(of_epoch)] = path
    seen: dict[tuple[object, ...], tuple[str, str]] = {}
    ends: dict[str, dict[str, float]] = {}  # by benchmark: the best accuracy of each network's last epoch
    for folder, paths in sorted(folders.items()):
        benchmark, _, network = folder.name.rpartition("_")
        _, dataset, metric = benchmark.split("_")
        epochs = sorted(paths)
        read = {epoch: rows for epoch in epochs if isinstance(rows := trials.get(paths[epoch]), list)}
        if not read:
            continue
        for before, after in pairwise(epochs):
            if after > before + 1 and after in read:
                missing = f"epoch {before + 1}" + (f" to {after - 1}" if after > before + 2 else "")
                yield paths[after], report(f"{missing} is missing: an epoch of a training has those before it")
        took: dict[object, tuple[int, float]] = {}
        for epoch, rows in read.items():
            uids = Counter(row["uid"] for row in rows)
            for number, row in enumerate(rows, 1):
                accuracy, duration, uid = row["accuracy"], row.get("duration"), row["uid"]
                if duration is None:
                    continue
                before, least = took.get(uid, (0, 0))
                if duration <= least and uids[uid] == 1:
                    words = f"trial {number}: its duration, {duration}, is not above the {least} of epoch {before}"
                    yield paths[epoch], report(f"{words}: LEMUR counts from the start of the training")
                took[uid] = epoch, duration
                other, place = seen.setdefault((benchmark, epoch, accuracy, duration), (network, paths[epoch]))
                if other != network:
                    words = f"trial {number}: accuracy {accuracy} after {duration} ns is that of another network"
                    yield paths[epoch], report(f"{words}, digit for digit: {place}")
        best = [max(row["accuracy"] for row in rows) for rows in read.values()]
        guessing = 1 / _CLASSES.get(dataset, math.inf)
        if len(read) == len(paths) and metric == "acc" and max(best) <= _GOOD * guessing:
            words = f"no accuracy is above {max(best)}, and guessing reaches {guessing:g} on {dataset}"
            stored = f"LEMUR's trainer stores nothing up to {_GOOD * guessing:g}"
            yield paths[epochs[-1]], report(f"{words}: {stored}")
        ends.setdefault(benchmark, {})[paths[max(read)]] = best[-1]
    for benchmark, by_path in ends.items():
        value, number = Counter(by_path.values()).most_common(1)[0]
        if len(by_path) >= _MANY and 2 * number > len(by_path):
            words = f"{number} of {len(by_path)} networks end on {benchmark.split('_')[1]} with this accuracy, {value}"
            faults = [path for path, own in by_path.items() if own == value]
            yield from ((path, report(f"{words}: the data were broken, or nothing was trained")) for path in faults)


# The files of a contribution: of paths, of folders, or of a range of git commits.

#: `A..B`: the files that B has and A has not, or has otherwise. A or B may be left out, for HEAD.
_RANGE = re.compile(r"(?P<before>[^.\s-][^\s]*?)?(?P<dots>\.{2,3})(?P<after>[^.\s-][^\s]*)?")
_STATISTICS = re.compile(r"(?:.*/)?stat/(?:train/)?(?P<folder>[^/]+)/(?P<file>[^/]+)\.json", re.DOTALL)
#: Of what lies in LEMUR's own tree, the networks are here; elsewhere every file of Python is one.
_IN_LEMUR = re.compile(r"(?:.*/)?ab/nn/(?!nn/[^/]+\.py$)", re.DOTALL)
_CODES, _ARCH_UID = "ab/nn/nn", "ab/nn/util/ArchUID.py"
#: Where LEMUR looks for networks and statistics: what is here, and the folders above, must not lead elsewhere.
_PLACES = re.compile(r"(?:.*/)?(?:ab(?:/nn)?|(?:ab/nn/nn|stat)(?:/.*)?)", re.DOTALL)
_LINK = "a symbolic link"
_LINK_MODES = {b"120000": _LINK, b"160000": "a git submodule"}


@dataclass(slots=True)
class Contribution:
    """The networks and the statistics of a contribution, each with its bytes by the path to show, in order.

    `links` are links and submodules in their places, each with what it is; `others` are files that are none of these;
    `names` are networks that are there besides those to check, `present` the paths of all statistics, also of those
    beside them, `arch_uid` the text of the file by which LEMUR's head computes certificates, if it is there.
    """

    networks: dict[str, bytes] = field(default_factory=dict)
    statistics: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    present: set[str] = field(default_factory=set)
    arch_uid: str | None = None

    def add(self, path: str, data: bytes) -> None:
        """Add a file."""
        if _is_network(path):
            self.networks[path] = data
        elif _STATISTICS.fullmatch(path):
            self.statistics[path] = data
            self.present.add(path)
        else:
            self.others.add(path)


def read_contribution(paths: Sequence[str]) -> Contribution:
    """Read the files to check.

    Args: paths: files, folders, and ranges of commits `A..B` of the repository in the working folder.
    Raises: UserError if one does not exist or cannot be read.
    """
    found = Contribution()
    for path in paths:
        commits = _find_commits(path)
        if commits is None:
            _read_path(path, found)
        else:
            _read_range(path, commits, found)
    return found


def match_statistics(path: str) -> tuple[str, str]:
    """Return the folder and the name without `.json` of a file of statistics."""
    match = _STATISTICS.fullmatch(path)
    assert match is not None
    return match["folder"], match["file"]


def _is_network(path: str) -> bool:
    plain = PurePosixPath(path)
    return plain.suffix == ".py" and plain.name != "__init__.py" and not _IN_LEMUR.match(path)


def _read_path(path: str, found: Contribution) -> None:
    start = Path(path)
    if not start.exists() and not start.is_symlink():
        raise UserError(f"{path}: no such file or folder; give files, a folder, or a range of commits A..B")
    check_plain(start, inside=False)
    inside = [] if start.is_symlink() else [file for file in sorted(start.rglob("*")) if _is_seen(file, start)]
    for file in (start, *inside):
        name = file.as_posix()
        if file.is_symlink() and _is_place(name):
            found.links[name] = _LINK
        elif file.is_file() and (file == start or not file.is_symlink()):
            found.add(name, _read_file(file))
            if name in found.statistics:
                found.present |= {other.as_posix() for other in file.parent.glob("*.json")}
    for root in (start, *Path(os.path.realpath(start)).parents):
        found.names |= {file.stem for file in (root / _CODES).glob("*.py")}
        if found.arch_uid is None and (root / _ARCH_UID).is_file():
            found.arch_uid = _read_file(root / _ARCH_UID).decode("utf-8", "replace")


def _is_place(path: str) -> bool:
    return _is_network(path) or _PLACES.fullmatch(path) is not None


def _is_seen(file: Path, start: Path) -> bool:
    return not any(part.startswith(".") or part == "__pycache__" for part in file.relative_to(start).parts)


def _read_file(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_CODE_BYTES + 1)  # one more: too large
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from error


def _find_commits(path: str) -> tuple[str, str, str] | None:
    """Return the first and the last commit of a range, with the dots between; None for a path.

    What reads as a range is never a path, or a contribution could bring a file of that name to be checked instead.
    """
    match = None if ".." in Path(path).parts else _RANGE.fullmatch(path)
    if match is None or not (match["before"] or match["after"]):
        return None
    verify = partial(run_git, path, None, "rev-parse", "--verify", "--end-of-options")
    try:
        first, last = (verify(f"{match[end] or 'HEAD'}^{{commit}}").decode().strip() for end in ("before", "after"))
    except GitError as error:
        raise UserError(f"{error}; if it is a file or folder, write ./{path}") from error
    return first, match["dots"], last


def _read_range(shown: str, commits: tuple[str, str, str], found: Contribution) -> None:
    """Read what a range adds or changes, as it is at its end."""
    run = partial(run_git, shown, None)
    # All of it, whatever `.gitmodules` and the settings of whoever runs this say.
    options = ("-z", "--name-only", "--no-renames", "--no-ext-diff", "--no-relative", "--ignore-submodules=none")
    changed = set(run("diff", *options, "--diff-filter=AMT", "".join(commits), "--").split(b"\0"))
    blobs: dict[str, str | None] = {}  # None: too large
    for line in filter(None, run("ls-tree", "-r", "-z", "--full-tree", "--long", commits[-1]).split(b"\0")):
        facts, _, raw = line.partition(b"\t")
        mode, _, blob, size = facts.split()
        path = os.fsdecode(raw)
        if path.startswith(f"{_CODES}/") and path.endswith(".py"):
            found.names.add(PurePosixPath(path).stem)
        if _STATISTICS.fullmatch(path):
            found.present.add(path)
        if raw in changed and mode not in _LINK_MODES:
            blobs[path] = blob.decode() if size.isdigit() and int(size) <= MAX_CODE_BYTES else None
        elif raw in changed and _is_place(path):
            found.links[path] = _LINK_MODES[mode]
    contents = read_blobs(run, sorted({blob for blob in blobs.values() if blob is not None}))
    for path, wanted in blobs.items():
        found.add(path, b" " * (MAX_CODE_BYTES + 1) if wanted is None else contents[wanted])
    if run("ls-tree", "--full-tree", commits[0], _ARCH_UID):  # as it was before: it judges what comes
        found.arch_uid = run("show", f"{commits[0]}:{_ARCH_UID}").decode("utf-8", "replace")
