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

How the code is scored stands in `lemur_core.source.quality`. LEMUR also runs the network on random images of 224 x 224 and
means to take off 0.10 if that fails, but never does: it tests the first key of a dict, which is always true. The
training that comes with the score shows whether the network runs.

Source: `ab/nn/util/CodeEval.py` of https://github.com/ABrain-One/nn-dataset, 2.1.0
"""  # noqa: E501

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lemur_core.files.errors import UserError
from lemur_core.files.workers import available_cores
from lemur_core.sandbox import Job, Limits, Outcome, Sandbox, Status
from lemur_core.source.quality import Quality, code_quality
from train.data import Cifar10
from train.model.contract import check_contract, lemur_name, transform_module

ENTRY = "train.lemur.check_guest:run_check"

#: Accuracy of guessing, from which LEMUR's measures count; and how far above it a network must come to be stored.
CHANCE = 0.1
_GOOD = 1.2

_NANOSECONDS = 1e11  # the unit of time of "accuracy to time"
_ERROR_CHARACTERS = 400


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
    runtime: tuple[str, ...] = ()  # what networks can import besides the declared runtime


def open_box(dataset: Cifar10, *, unsafe: bool = False, runtime: Sequence[str] = ()) -> Sandbox:
    """A sandbox for checks on these images, one at a time; it starts with the first one. Close it."""
    return Sandbox(entries=[ENTRY], readable=[dataset.folder], workers=1, unsafe=unsafe, runtime=runtime)


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
    given = check_prm(prm) | {"epoch": settings.epochs}
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
            box = stack.enter_context(open_box(dataset, unsafe=unsafe, runtime=settings.runtime))
        elif not box.is_open:
            box.__enter__()
        (outcome,) = box.run([Job(name, ENTRY, payload, limits)])
    return result_of(name, code, outcome, settings)


def accuracy_to_time(accuracy: float, duration: int, chance: float = CHANCE) -> float:
    """LEMUR's measure of how fast a network learns: accuracy above chance, by 100 seconds.

    Args:
        duration: nanoseconds.
        chance: what guessing comes to.

    Source: `accuracy_to_time_metric` in `ab/nn/util/Util.py` of nn-dataset 2.1.0
    """
    return max(0.0, accuracy - chance) / (duration / _NANOSECONDS)


def _check_settings(settings: CheckSettings, dataset: Cifar10) -> None:
    for what, number in (("epochs", settings.epochs), ("images", settings.images), ("threads", settings.threads)):
        if number is not None and number < 1:
            raise UserError(f"{what}: {number}; at least 1 is needed")
    if settings.images is not None and settings.images > len(dataset.train_images):
        raise UserError(f"images: {settings.images}; {dataset.label} has {len(dataset.train_images)} training images")


def check_prm(prm: Mapping[str, object]) -> dict[str, object]:
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


def result_of(
    name: str, code: str, outcome: Outcome, settings: CheckSettings, *, chance: float = CHANCE
) -> CheckResult:
    """What a job that trains and measures a network tells. Args: chance: what guessing comes to."""
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
    if accuracy <= chance * _GOOD:
        status, error = (
            "low_accuracy",
            f"accuracy {accuracy:.4f} is at most {chance * _GOOD:g}: LEMUR would not store it",
        )
    found = code_quality(code, name)
    rate = accuracy_to_time(accuracy, duration, chance)
    return CheckResult(name, accuracy, rate, found.score, status, error, duration, found)


def _ended(outcome: Outcome, settings: CheckSettings) -> str:
    """How the sandbox ended a network, in one line."""
    if outcome.status is Status.OUT_OF_MEMORY:
        limit = f"{settings.memory_bytes / 2**30:.2f} GiB"
        return f"the network asked for more memory than {limit} beyond what PyTorch itself takes"
    first = (outcome.error or "gave no reason").splitlines()[0][:_ERROR_CHARACTERS]
    return f"the network {first}" if first[:1].islower() else first
