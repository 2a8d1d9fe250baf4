"""The checks of one file that need nothing else: contract, name, statistics, secrets and license. Nothing is run.

The rules of one file of statistics are those that the 99,771 files of nn-dataset 2.1.0 follow, but for seven trials
that lack a hyperparameter which their network needs, and one that states its accuracy twice. `find_untrained` says what
no training gives of several.

Source: `ab/nn/util/db/{Write,Read}.py` and `ab/nn/stat/train` of https://github.com/ABrain-One/nn-dataset, 2.1.0
"""

import ast
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Literal

from curate.folder.novelty import Query, build_query
from curate.sources.rows import TASK_DATASETS
from extract.sources.git import GitError, read_blobs, run_git
from lemur_core.files import Json
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import check_plain
from lemur_core.sandbox.server.received import read_json
from lemur_core.similarity.outline import MAX_CODE_BYTES
from lemur_core.source.text import parse_code
from manifests.provenance.licenses import is_permissive, read_head
from manifests.publishing.secrets import find_hits
from train.model.certificates import ARCH_UID
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


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason to refuse a file. `rule`: of `RULES`; `line`: counted from 1."""

    rule: str
    message: str
    line: int = 1


@dataclass(slots=True)
class GatedFile:
    """One file and why it is refused. `nearest` and `similarity`: by tokens, of a network."""

    path: str
    kind: Literal["network", "statistics", "link"]
    findings: list[Refusal] = field(default_factory=list)
    nearest: str | None = None
    similarity: float | None = None

    @property
    def passed(self) -> bool:
        """True if nothing was found."""
        return not self.findings


@dataclass(slots=True)
class Network(GatedFile):
    """The file of a network.

    Attributes:
        query: about its novelty; None if it is not Python.
        parameters: the names that `supported_hyperparameters` returns, as far as they are written.
        needed: those that it reads as `prm["NAME"]`; for any other it has a default.
        certificate: 32 digits at the end of its name that are not LEMUR's digest of the code up to 2.2.11.
    """

    query: Query | None = None
    parameters: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    certificate: str = ""


def inspect_network(item: tuple[str, bytes]) -> Network:
    """Check the file of a network. Args: item: its path and bytes."""
    path, data = item
    network = Network(path, "network", _find_secrets(data))
    refuse = partial(network.findings.insert, 0)
    if len(data) > MAX_CODE_BYTES:
        refuse(Refusal("contract", f"has more than {MAX_CODE_BYTES:,} bytes"))
        return network
    try:  # as LEMUR writes it: in UTF-8, whatever it declares
        code = data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        refuse(Refusal("contract", f"invalid UTF-8 at byte {error.start}"))
        return network
    query, reason = build_query(path, code), check_contract(code)
    if reason is not None:
        line, _, fault = reason.removeprefix("line ").partition(": ")
        refuse(Refusal("contract", fault, int(line)))
    elif isinstance(query, str):
        refuse(Refusal("contract", query))
    match = _DIGEST.search(PurePosixPath(path).stem)
    if match is None and "_" in PurePosixPath(path).stem:
        what = "holds an underscore, at which LEMUR splits the folders of statistics; write a hyphen"
        network.findings.append(Refusal("name", what))
    stated = [license_ for license_ in read_head(code).licenses if not is_permissive(license_)]
    network.findings += [Refusal("license", f"its head states {name}, which does not permit it") for name in stated]
    if not isinstance(query, str):
        tree = parse_code(code, None)  # the query parsed it, however deep it is
        subscripts = {ast.unparse(node.slice) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
        network.query, network.parameters = query, _read_supported(tree)
        network.needed = tuple(name for name in network.parameters if repr(name) in subscripts)
        network.certificate = match[1] if match is not None and match[1] != lemur_digest(code) else ""
    return network


def _find_secrets(data: bytes) -> list[Refusal]:
    return [Refusal("secret", f"{hit.kind}; revoke it, and take it out", hit.line) for hit in find_hits(data)]


def _read_supported(tree: ast.Module) -> tuple[str, ...]:
    """Return the names in the literal that `supported_hyperparameters` returns; none if it computes them."""
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "supported_hyperparameters":
            for node in ast.walk(statement):
                if isinstance(node, ast.Set | ast.List | ast.Tuple | ast.Dict):
                    items = node.keys if isinstance(node, ast.Dict) else node.elts  # of a dict LEMUR takes the keys
                    values = [item.value for item in items if isinstance(item, ast.Constant)]
                    return tuple(value for value in values if isinstance(value, str))
    return ()


# Statistics: the trials of one network after one epoch.

_STATISTICS = re.compile(r"(?:.*/)?stat/(?:train/)?(?P<folder>[^/]+)/(?P<file>[^/]+)\.json", re.DOTALL)
_EPOCH = re.compile(r"0|[1-9][0-9]{0,5}")


@dataclass(slots=True)
class Statistics(GatedFile):
    """A file of statistics: its trials, and what its path says, empty or -1 where that cannot be read."""

    task: str = ""
    dataset: str = ""
    metric: str = ""
    network: str = ""
    epoch: int = -1
    trials: list[Json] = field(default_factory=list)


def read_statistics(path: str, data: bytes, find_needed: Callable[[str], tuple[str, ...] | None]) -> Statistics:
    """Read and check a file of statistics.

    Args: find_needed: returns the hyperparameters that a network needs, by its name; None if there is no such network.
    """
    folder, epoch = _match_statistics(path)
    file, parts = Statistics(path, "statistics", _find_secrets(data)), folder.split("_")
    needed: tuple[str, ...] | None = ()
    faults = []
    if len(parts) != 4 or not all(parts):
        faults.append(f"{folder}: the folder is not TASK_DATASET_METRIC_NAME")
    else:
        file.task, file.dataset, file.metric, file.network = parts
        needed = find_needed(file.network)
        if file.task not in TASK_DATASETS:
            faults.append(f"{file.task}: not a task of LEMUR; one of {', '.join(TASK_DATASETS)}")
        elif needed is None:
            faults.append(f"{file.network}: there is no network of this name")
    if _EPOCH.fullmatch(epoch):
        file.epoch = int(epoch)
    else:
        faults.append(f"{epoch}.json: the file is not named by an epoch")
    try:
        trials = read_json(data)
        if isinstance(trials, list) and trials and all(isinstance(trial, dict) for trial in trials):
            file.trials = trials
        else:
            faults.append("not a list of trials, each an object")
    except ValueError as error:
        faults.append(f"not plain JSON: {str(error)[:100]}")
    for number, trial in enumerate(file.trials, 1):
        faults += [f"trial {number}: {fault}" for fault in _check_trial(trial, needed or ())]
    file.findings += [Refusal("statistics", fault) for fault in faults]
    return file


def _match_statistics(path: str) -> tuple[str, str]:
    """Return the folder and the name without `.json` of a file of statistics."""
    match = _STATISTICS.fullmatch(path)
    assert match is not None
    return match["folder"], match["file"]


def _check_trial(trial: Json, needed: tuple[str, ...]) -> Iterator[str]:
    def show(name: str) -> str:
        return f"{name} is {'missing' if trial.get(name) is None else repr(trial[name])[:40]}"

    def read_number(name: str) -> float | None:
        value = trial.get(name)
        return None if isinstance(value, bool) or not isinstance(value, int | float) else value

    accuracy, duration, uid = read_number("accuracy"), read_number("duration"), trial.get("uid")
    if accuracy is None or not 0 <= accuracy <= 1:
        yield f"{show('accuracy')}; a number from 0 to 1 is needed"
    if trial.get("duration") is not None and (duration is None or duration <= 0):
        yield f"{show('duration')}; a positive number of nanoseconds is needed"
    if not isinstance(uid, str) or not _UID.fullmatch(uid):
        yield f"{show('uid')}; 32 hexadecimal digits are needed"
    if missing := sorted({*needed, *TRAINER_PARAMETERS} - {"epoch"} - trial.keys()):
        yield f"lacks {', '.join(missing)}"


#: Classes of LEMUR's data sets for classification, and the multiple of guessing up to which its trainer stores nothing.
_CLASSES = {"celeba-gender": 2, "cifar-10": 10, "cifar-100": 100, "imagenette": 10, "mnist": 10, "svhn": 10}
_GOOD = 1.2
_MANY = 5  # networks of a data set, most of which must not have one accuracy


def find_untrained(files: Iterable[Statistics], present: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield what no training gives, with the path of the file that shows it, among well-formed statistics.

    A network's epochs have a gap; the duration of a trial, counted from the start of its training, does not grow; no
    accuracy is above that of guessing; a trial is that of another network, digit for digit; or most networks of a data
    set end with one accuracy, as where the data were broken.

    Args: present: the paths of all statistics that are there, these among them.
    Source: the audit in `ab/gpt/brute/loss_opt/ReuseResults.py` of https://github.com/ABrain-One/nn-gpt
    """
    epochs: defaultdict[PurePosixPath, set[int]] = defaultdict(set)  # by folder, of all files that are there
    for path in present:
        if (epoch := _match_statistics(path)[1]).isdecimal():
            epochs[PurePosixPath(path).parent].add(int(epoch))
    folders: defaultdict[PurePosixPath, list[Statistics]] = defaultdict(list)
    for file in sorted(files, key=lambda file: file.epoch):
        folders[PurePosixPath(file.path).parent].append(file)
    seen: dict[tuple[object, ...], Statistics] = {}  # the first file of each result of a trial
    ends: defaultdict[tuple[str, ...], dict[str, float]] = defaultdict(dict)  # best accuracies of last epochs, by path
    for folder, given in sorted(folders.items()):
        last, benchmark = given[-1], (given[-1].task, given[-1].dataset, given[-1].metric)
        paths = {file.epoch: file.path for file in given}
        for before, after in pairwise(sorted(epochs[folder])):
            if after > before + 1 and after in paths:
                missing = f"epoch {before + 1}" + (f" to {after - 1}" if after > before + 2 else "")
                yield paths[after], f"{missing} is missing: an epoch of a training has those before it"
        took: dict[object, tuple[int, float]] = {}
        for file in given:
            uids = Counter(trial["uid"] for trial in file.trials)
            for number, trial in enumerate(file.trials, 1):
                accuracy, duration, uid = trial["accuracy"], trial.get("duration"), trial["uid"]
                if duration is None:
                    continue
                before, least = took.get(uid, (0, 0))
                if duration <= least and uids[uid] == 1:
                    shorter = f"its duration, {duration}, is not above the {least} of epoch {before}"
                    yield file.path, f"trial {number}: {shorter}: LEMUR counts from the start of the training"
                took[uid] = file.epoch, duration
                first = seen.setdefault((benchmark, file.epoch, accuracy, duration), file)
                if first.network != file.network:
                    words = f"accuracy {accuracy} after {duration} ns is that of another network, digit for digit"
                    yield file.path, f"trial {number}: {words}: {first.path}"
        best = [max(trial["accuracy"] for trial in file.trials) for file in given]
        least_good = _GOOD / _CLASSES.get(last.dataset, math.inf)
        if paths.keys() == epochs[folder] and last.metric == "acc" and max(best) <= least_good:
            guessing = f"guessing reaches {least_good / _GOOD:g} on {last.dataset}"
            stored = f"LEMUR's trainer stores nothing up to {least_good:g}"
            yield last.path, f"no accuracy is above {max(best)}, and {guessing}: {stored}"
        ends[benchmark][last.path] = best[-1]
    for (_, dataset, _), by_path in ends.items():
        value, number = Counter(by_path.values()).most_common(1)[0]
        if len(by_path) >= _MANY and 2 * number > len(by_path):
            words = f"{number} of {len(by_path)} networks end on {dataset} with this accuracy, {value}"
            for path in (path for path, own in by_path.items() if own == value):
                yield path, f"{words}: the data were broken, or nothing was trained"


# The files of a contribution: of paths, of folders, or of a range of git commits.

#: `A..B`: the files that B has and A has not, or has otherwise. A or B may be left out, for HEAD.
_RANGE = re.compile(r"(?P<before>[^.\s-][^\s]*?)?(?P<dots>\.{2,3})(?P<after>[^.\s-][^\s]*)?")
#: Of what lies in LEMUR's own tree, the networks are here; elsewhere every file of Python is one.
_IN_LEMUR = re.compile(r"(?:.*/)?ab/nn/(?!nn/[^/]+\.py$)", re.DOTALL)
_CODES = "ab/nn/nn"
#: Where LEMUR looks for networks and statistics: what is here, and the folders above, must not lead elsewhere.
_PLACES = re.compile(r"(?:.*/)?(?:ab(?:/nn)?|(?:ab/nn/nn|stat)(?:/.*)?)", re.DOTALL)
_LINK = "a symbolic link"
_LINK_MODES = {b"120000": _LINK, b"160000": "a git submodule"}
_TOO_LARGE = b" " * (MAX_CODE_BYTES + 1)


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


def read_contribution(paths: Sequence[str]) -> Contribution:
    """Read the files to check.

    Args: paths: files, folders, and ranges of commits `A..B` of the repository in the working folder.
    Raises: UserError if one does not exist or cannot be read.
    """
    found = Contribution()
    for given in paths:
        commits = _find_commits(given)
        entries = _list_path(Path(given), found) if commits is None else _list_range(given, commits, found)
        for path, content in entries:
            plain = PurePosixPath(path)
            is_network = plain.suffix == ".py" and plain.name != "__init__.py" and not _IN_LEMUR.match(path)
            if isinstance(content, str):
                if is_network or _PLACES.fullmatch(path):
                    found.links[path] = content
            elif is_network:
                found.networks[path] = content
            elif _STATISTICS.fullmatch(path):
                found.statistics[path] = content
                found.present.add(path)
            else:
                found.others.add(path)
    return found


def _list_path(start: Path, found: Contribution) -> Iterator[tuple[str, bytes | str]]:
    """Yield the files at a path, each with its bytes, or as what else it is; note in `found` what is beside them."""
    if not start.exists() and not start.is_symlink():
        raise UserError(f"{start}: no such file or folder; give files, a folder, or a range of commits A..B")
    check_plain(start, inside=False)
    for root in (start, *Path(os.path.realpath(start)).parents):
        found.names |= {file.stem for file in (root / _CODES).glob("*.py")}
        if found.arch_uid is None and (root / ARCH_UID).is_file():
            found.arch_uid = _read_file(root / ARCH_UID).decode("utf-8", "replace")
    for file in (start, *([] if start.is_symlink() else sorted(start.rglob("*")))):
        if any(part.startswith(".") or part == "__pycache__" for part in file.relative_to(start).parts):
            continue
        if file.is_symlink():
            yield file.as_posix(), _LINK
        elif file.is_file():
            yield file.as_posix(), _read_file(file)
            if _STATISTICS.fullmatch(file.as_posix()):
                found.present |= {other.as_posix() for other in file.parent.glob("*.json")}


def _read_file(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(len(_TOO_LARGE))
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


def _list_range(shown: str, commits: tuple[str, str, str], found: Contribution) -> Iterator[tuple[str, bytes | str]]:
    """Yield what a range adds or changes, as it is at its end, and as `_list_path` does."""
    run = partial(run_git, shown, None)
    # All of it, whatever `.gitmodules` and the settings of whoever runs this say.
    options = ("-z", "--name-only", "--no-renames", "--no-ext-diff", "--no-relative", "--ignore-submodules=none")
    changed = set(run("diff", *options, "--diff-filter=AMT", "".join(commits), "--").split(b"\0"))
    blobs: dict[str, str] = {}
    for line in filter(None, run("ls-tree", "-r", "-z", "--full-tree", "--long", commits[-1]).split(b"\0")):
        facts, _, raw = line.partition(b"\t")
        mode, _, blob, size = facts.split()
        path = os.fsdecode(raw)
        if path.startswith(f"{_CODES}/") and path.endswith(".py"):
            found.names.add(PurePosixPath(path).stem)
        if _STATISTICS.fullmatch(path):
            found.present.add(path)
        if raw in changed and mode in _LINK_MODES:
            yield path, _LINK_MODES[mode]
        elif raw in changed and int(size) > MAX_CODE_BYTES:
            yield path, _TOO_LARGE
        elif raw in changed:
            blobs[path] = blob.decode()
    contents = read_blobs(run, sorted(set(blobs.values())))
    yield from ((path, contents[blob]) for path, blob in blobs.items())
    if run("ls-tree", "--full-tree", commits[0], ARCH_UID):  # as it was before: it judges what comes
        found.arch_uid = run("show", f"{commits[0]}:{ARCH_UID}").decode("utf-8", "replace")
