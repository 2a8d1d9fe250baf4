"""`check_nn`: a network is trained by its own `train_setup` and `learn`, as LEMUR's trainer trains it, and measured.

What `ab.nn.api.check_nn` of nn-dataset 2.1.0 returns, each of the four by its definition:

| | |
|---|---|
| name | `PREFIX-` and the MD5 of the code without white space |
| accuracy | on the test images, after the last epoch |
| accuracy to time | accuracy above chance (0.1 for CIFAR-10), by 100 seconds: `max(0, accuracy - 0.1) / (nanoseconds / 1e11)`, from `train_setup` to the end of the last evaluation |
| code quality | 1.0 less 0.05 an error, 0.02 a warning, 0.01 a matter of style or of complexity |

What differs from the package: it executes the code in its own process, here that happens in the sandbox, with limits; it
writes a trial to its database and raises when the accuracy is at most 1.2 times chance, here nothing is written (that is
`write_lemur_files` and `register`) and `status` says so; it uses a GPU where there is one and its transforms work on PIL
images one by one in a second process, here it is the CPU and whole batches of tensors, so accuracies agree closely but
not to the digit, and times do not compare; it trains a code that meets half of its contract, here that is refused first
(`check_contract`); it takes whatever values of hyperparameters it is given, here they lie in 0..1, as in its search.
Random generators are seeded here. A network that loads trained weights finds no network to load them from.

LEMUR takes errors, warnings and matters of style from Pylint and complexity from Radon, and so does this. Where Pylint
is not installed, Pyflakes finds errors and warnings, and long lines are the only matter of style, so that the score is
higher than LEMUR's by what Pylint has to say beyond that. LEMUR also runs the network on random images of 224 x 224 and
means to take off 0.10 if that fails, but never does: it tests the first key of a dict, which is always true. The
training that comes with the score shows whether the network runs.

Source: `ab/nn/util/CodeEval.py` of https://github.com/ABrain-One/nn-dataset, 2.1.0; McCabe, "A Complexity Measure",
IEEE Transactions on Software Engineering SE-2(4), 1976
"""  # noqa: E501

import ast
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyflakes import messages
from pyflakes.checker import Checker
from radon.complexity import cc_visit_ast

from lemur_core.files.errors import UserError
from lemur_core.files.workers import available_cores
from lemur_core.sandbox import Job, Limits, Outcome, Sandbox, Status
from train.contract import check_contract, lemur_name, transform_module
from train.data import Cifar10

ENTRY = "train.lemur_trainer:run_check"

#: Accuracy of guessing, from which LEMUR's measures count; and how far above it a network must come to be stored.
CHANCE = 0.1
_GOOD = 1.2

_NANOSECONDS = 1e11  # the unit of time of "accuracy to time"
_ERROR_CHARACTERS = 400


_COST = {"error": 5, "warning": 2, "convention": 1, "refactor": 1, "complexity": 1}
_LINE_CHARACTERS = 120
_MOST_COMPLEX = 10
_PYLINT_SECONDS = 300
#: Missing docstrings, final newlines, white space at the end of lines, superfluous parentheses: LEMUR does not mind.
_NOT_MINDED = "C0116,C0115,C0114,C0304,C0303,C0305,C0325"
_UNTIDY = (
    messages.UnusedImport,
    messages.UnusedVariable,
    messages.UnusedAnnotation,
    messages.RedefinedWhileUnused,
    messages.ImportShadowedByLoopVar,
    messages.ImportStarUsed,
    messages.ImportStarUsage,
    messages.FStringMissingPlaceholders,
    messages.MultiValueRepeatedKeyLiteral,
    messages.MultiValueRepeatedKeyVariable,
    messages.IsLiteral,
    messages.IfTuple,
    messages.AssertTuple,
)


@dataclass(frozen=True, slots=True)
class Quality:
    """A score in 0..1, how often what was found, and what looked for it."""

    score: float
    found: dict[str, int]
    by: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What LEMUR's check gives, and what else is known.

    `status` is `ok`; `low_accuracy`, which LEMUR does not store; or why there are no figures: `contract`, the step that
    failed (`import_failed`, `construct_failed`, `train_setup_failed`, `learn_failed`, `forward_failed`,
    `wrong_output`), `missing_dependency`, or how the sandbox ended it (`timeout`, `out_of_memory`, `denied`, …).
    """

    name: str
    accuracy: float | None
    accuracy_to_time: float | None
    code_quality: float | None
    status: str = "ok"
    error: str | None = None
    duration: int | None = None  # nanoseconds, from train_setup to the end of the last evaluation
    quality: Quality | None = field(default=None, repr=False)  # what code_quality counts


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """How a network is checked: `images` trains on the first so many only, and tests on the first fifth as many."""

    epochs: int = 1
    images: int | None = None
    seed: int = 0
    threads: int | None = None  # of PyTorch; None: the cores that this process may use
    wall_seconds: float = 1800.0  # of the whole check
    memory_bytes: int = 8 * 2**30


def open_box(dataset: Cifar10, *, unsafe: bool = False) -> Sandbox:
    """A sandbox for checks on these images, one at a time; it starts with the first one. Close it."""
    return Sandbox(entries=[ENTRY], readable=[dataset.folder], workers=1, unsafe=unsafe)


def check_nn(
    code: str,
    prm: Mapping[str, object],
    *,
    dataset: Cifar10,
    prefix: str = "",
    settings: CheckSettings = CheckSettings(),
    unsafe: bool = False,
    box: Sandbox | None = None,
) -> CheckResult:
    """Train and measure a network by LEMUR's contract, in the sandbox.

    Args:
        prm: hyperparameters: `batch` (images), `transform` (a name of LEMUR's), and a value in 0..1 for each name that
            the network supports.
        prefix: of the network's name.
        unsafe: without the sandbox's walls.
        box: a sandbox to run in, made by `open_box`, opened when it is needed and left open; by default one of its own.

    Returns: the result; one whose status is not `ok` says why, in one line.
    Raises: UserError if `prm` lacks something or has a value out of range, or no sandbox can be had.
    """
    _check_settings(settings, dataset)
    given = _check_prm(prm) | {"epoch": settings.epochs}
    name = lemur_name(code, prefix)
    reason = check_contract(code)
    if reason is not None:
        return CheckResult(name, None, None, None, "contract", reason)
    threads = settings.threads or available_cores()
    asked = {name: getattr(settings, name) for name in ("images", "epochs", "seed")}
    payload = {"code": code, "prm": given, "data": str(dataset.folder), "threads": threads, **asked}
    limits = Limits(
        wall_seconds=settings.wall_seconds,
        cpu_seconds=settings.wall_seconds * threads,
        memory_bytes=settings.memory_bytes,
        threads=64 + 2 * threads,
    )
    with contextlib.ExitStack() as stack:
        if box is None:
            box = stack.enter_context(open_box(dataset, unsafe=unsafe))
        elif not box.is_open:
            box.__enter__()
        (outcome,) = box.run([Job(name, ENTRY, payload, limits)])
    return _result(name, code, outcome, settings)


def accuracy_to_time(accuracy: float, duration: int) -> float:
    """LEMUR's measure of how fast a network learns: accuracy above chance, by 100 seconds.

    Args:
        duration: nanoseconds.

    Source: `accuracy_to_time_metric` in `ab/nn/util/Util.py` of nn-dataset 2.1.0
    """
    return max(0.0, accuracy - CHANCE) / (duration / _NANOSECONDS)


def _check_settings(settings: CheckSettings, dataset: Cifar10) -> None:
    for what, number in (("epochs", settings.epochs), ("images", settings.images), ("threads", settings.threads)):
        if number is not None and number < 1:
            raise UserError(f"{what}: {number}; at least 1 is needed")
    if settings.images is not None and settings.images > len(dataset.train_images):
        raise UserError(f"images: {settings.images}; {dataset.label} has {len(dataset.train_images)} training images")


def _check_prm(prm: Mapping[str, object]) -> dict[str, object]:
    """The hyperparameters, what the trainer itself needs of them looked at."""
    missing = [name for name in ("batch", "transform") if name not in prm]
    if missing:
        needed = 'give for example {"batch": 64, "transform": "norm_32_flip", "lr": 0.01, "momentum": 0.9}'
        raise UserError(f"prm: {' and '.join(missing)} missing; {needed}")
    batch = prm["batch"]
    if isinstance(batch, bool) or not isinstance(batch, int | float) or not 1 <= batch < 2**20 or batch != int(batch):
        raise UserError(f"prm: batch is {batch!r}; give a number of images, for example 64")
    transform_module(prm["transform"])
    return dict(prm) | {"batch": int(batch)}


def _result(name: str, code: str, outcome: Outcome, settings: CheckSettings) -> CheckResult:
    if outcome.status is not Status.OK:
        return CheckResult(name, None, None, None, outcome.status.value, _ended(outcome, settings))
    answer = outcome.value
    assert isinstance(answer, dict)
    if answer.get("category") == "prm":
        raise UserError(str(answer["error"]))
    if "category" in answer:
        return CheckResult(name, None, None, None, str(answer["category"]), str(answer["error"]))
    accuracy, duration = float(answer["accuracy"]), int(answer["duration"])
    status, error = "ok", None
    if accuracy <= CHANCE * _GOOD:
        status, error = (
            "low_accuracy",
            f"accuracy {accuracy:.4f} is at most {CHANCE * _GOOD:g}: LEMUR would not store it",
        )
    found = code_quality(code, name)
    rate = accuracy_to_time(accuracy, duration)
    return CheckResult(name, accuracy, rate, found.score, status, error, duration, found)


def _ended(outcome: Outcome, settings: CheckSettings) -> str:
    """How the sandbox ended a network, in one line."""
    if outcome.status is Status.OUT_OF_MEMORY:
        limit = f"{settings.memory_bytes / 2**30:.2f} GiB"
        return f"the network asked for more memory than {limit} beyond what PyTorch itself takes"
    first = (outcome.error or "gave no reason").splitlines()[0][:_ERROR_CHARACTERS]
    return f"the network {first}" if first[:1].islower() else first


def code_quality(code: str, name: str, *, python: str | None = sys.executable) -> Quality:
    """The score of a file that parses; nothing of it is executed.

    Args:
        name: of the network; Pylint has a say on the name of the file.
        python: the interpreter whose Pylint is used, if it has one; None for Pyflakes in any case.

    Raises: UserError if Pylint is there and fails.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in the file are not ours
        tree = ast.parse(code)
        by_pylint = _by_pylint(code, name, python) if python is not None else None
        found, by = by_pylint or (_by_pyflakes(code, tree), "pyflakes")
    found["complexity"] = sum(block.complexity > _MOST_COMPLEX for block in cc_visit_ast(tree))
    cost = sum(_COST.get(kind, 0) * count for kind, count in found.items())
    return Quality(max(0, 100 - cost) / 100, {kind: found[kind] for kind in _COST if found[kind]}, by)


def _by_pyflakes(code: str, tree: ast.Module) -> Counter[str]:
    found = Counter("warning" if isinstance(message, _UNTIDY) else "error" for message in Checker(tree).messages)
    found["convention"] = sum(len(line) > _LINE_CHARACTERS for line in code.splitlines())
    return found


def _by_pylint(code: str, name: str, python: str) -> tuple[Counter[str], str] | None:
    """What Pylint finds, and its name and version; None where it is not installed. It reads files, and runs none."""
    with tempfile.TemporaryDirectory(prefix="lemur-quality-") as folder:
        file = Path(folder) / f"{name}.py"
        file.write_text(code, encoding="utf-8", newline="\n")
        empty = Path(folder) / "none.toml"  # else settings of the user's, who may have any, would decide
        empty.touch()
        version = _run([python, "-P", "-c", "import pylint; print(pylint.__version__)"], folder)
        if version.returncode != 0:
            return None
        options = ["--output-format=json", f"--max-line-length={_LINE_CHARACTERS}", f"--disable={_NOT_MINDED}"]
        done = _run([python, "-P", "-m", "pylint", str(file), f"--rcfile={empty}", *options], folder)
    try:
        kinds = [str(finding["type"]) for finding in json.loads(done.stdout or "[]")]
    except (ValueError, TypeError, KeyError) as error:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UserError(f"{python} -m pylint: gives no JSON: {last}; mend or remove Pylint") from error
    return Counter(kinds), f"pylint {version.stdout.strip()}"


def _run(command: list[str], folder: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYLINTHOME": folder}
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_PYLINT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"{command[0]} -m pylint: takes over {_PYLINT_SECONDS} seconds; mend or remove Pylint"
        ) from error
