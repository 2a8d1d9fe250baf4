"""`check_nn`: train a network by its own `train_setup` and `learn`, as LEMUR's trainer does, and measure it.

The result has the four values of `ab.nn.api.check_nn` of nn-dataset 2.1.0, by the same definitions:

| | |
|---|---|
| name | `PREFIX-` and the MD5 digest of the code without white space |
| accuracy | on the test images, after the last epoch |
| accuracy to time | accuracy above chance (0.1 for CIFAR-10), by 100 seconds: `max(0, accuracy - 0.1) / (nanoseconds / 1e11)`, from `train_setup` to the end of the last evaluation |
| code quality | 1.0 minus 0.05 per error, 0.02 per warning, 0.01 per style or complexity finding: of Pylint, as in LEMUR, where it is installed, else of Pyflakes, which finds less |

Differences from the package:

- It executes the code in its own process; here it runs in the sandbox, with limits. Code that loads trained weights has
  no internet connection to load them with.
- It writes a trial to its database and raises if the accuracy is at most 1.2 times chance; here nothing is written (see
  `write_lemur_files` and `register`), and `status` reports it.
- It uses a GPU if there is one, and transforms PIL images one by one in a second process; here the CPU transforms whole
  batches of tensors. Accuracies agree closely, but not to the digit; times are not comparable.
- It trains code that meets only half of its contract; here `check_contract` refuses that first.
- It accepts any hyperparameter values; here they must be in 0..1, as in LEMUR's search.
- Random generators are seeded here.

`lemur_core.source.quality` describes how the code is scored. LEMUR also runs the network on random images of 224 x 224 and
is meant to subtract 0.10 if that fails, but never does: it tests the first key of a dict, which is always true. Here the
training shows whether the network runs.

Source: `ab/nn/util/CodeEval.py` of https://github.com/ABrain-One/nn-dataset, 2.1.0
"""  # noqa: E501

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from lemur_core.files import Json
from lemur_core.files.errors import UserError
from lemur_core.sandbox import Job, Limits, Outcome
from lemur_core.sandbox.cached import SharedSandbox
from lemur_core.sandbox.stage import SandboxStage
from lemur_core.source.quality import code_quality
from manifests.records import drop_outcomes
from train.data import Cifar10, count_images
from train.model.contract import check_contract, lemur_name, transform_module
from train.runs.resources import Resources

#: Accuracy of guessing, which is zero in LEMUR's measures; and the multiple of it that a network needs to be stored.
CHANCE = 0.1
_GOOD = 1.2

_NANOSECONDS = 1e11  # the unit of time of "accuracy to time"
_ERROR_CHARACTERS = 400
_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of LEMUR's check, with details.

    `status` is `ok`; `low_accuracy`, which LEMUR does not store; or the reason for missing figures: `contract`, the
    step that failed (`import_failed`, `construct_failed`, `train_setup_failed`, `learn_failed`, `forward_failed`,
    `wrong_output`), `missing_dependency`, or how the sandbox ended it (`timeout`, `out_of_memory`, `denied`, …).
    """

    name: str
    accuracy: float | None = None
    accuracy_to_time: float | None = None
    code_quality: float | None = None
    status: str = "ok"
    error: str | None = None
    duration: int | None = None  # nanoseconds, from train_setup to the end of the last evaluation
    quality_by: str | None = None  # the checker behind code_quality


@dataclass(frozen=True, slots=True)
class CheckFigures:
    """The answer about a network that was trained and measured; `duration` in nanoseconds."""

    accuracy: float
    duration: Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True)
class CheckFailure:
    """The answer about a network that was not: the step that failed or the reason, and one line."""

    category: Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]
    error: str


Answer = CheckFigures | CheckFailure
CHECK = SandboxStage[Answer]("train.model.check_guest:run_check", Answer, Limits(), retries=False)


def open_box(dataset: Cifar10, resources: Resources) -> SharedSandbox:
    """Return a sandbox for checks on these images, one at a time; it starts with the first check."""
    return SharedSandbox(
        entries=[CHECK.guest],
        readable=[dataset.folder],
        workers=1,
        unsafe=resources.unsafe,
        runtime=resources.runtime,
    )


def check_nn(
    code: str,
    prm: Mapping[str, object],
    *,
    dataset: Cifar10,
    prefix: str = "",
    epochs: int = 1,
    images: int | None = None,
    seed: int = 0,
    resources: Resources = Resources(),  # noqa: B008 (frozen)
    box: SharedSandbox | None = None,
) -> CheckResult:
    """Train and measure a network by LEMUR's contract, in the sandbox.

    Args:
        code: the text of the network's file.
        prm: hyperparameters: `batch` (images), `transform` (a name of LEMUR's), and a value in 0..1 for each name that
            the network supports.
        dataset: the images, from `train.data.sources.load_cifar10`.
        prefix: prefix of the network's name.
        epochs: how often its `learn` is called.
        images: train on the first N images only, and test on the first N/5.
        seed: of all random draws.
        resources: threads, memory, the time limit of the whole check (half an hour by default), packages that the
            network can import, and whether to run it without the sandbox; it is trained on the CPU.
        box: a sandbox from `open_box`, left open; a new one by default.

    Returns: the result; if its status is not `ok`, `error` has the reason in one line.
    Raises: UserError if `prm` lacks something or has a value out of range, or no sandbox is available.

    Example:
        ```python
        from train import check_nn
        from train.data.sources import load_cifar10

        values = {"lr": 0.01, "batch": 32, "transform": "norm_32"}
        refused = check_nn("class Network: ...", values, dataset=load_cifar10("synthetic:320"))
        print(refused.status, refused.error)  # "contract": nothing is run
        ```
    """
    if epochs < 1:
        raise UserError(f"epochs: {epochs}; at least 1 is needed")
    count_images(dataset, 0, images)
    resources = replace(resources, device="cpu").resolve()
    hyperparameters = check_prm(prm) | {"epoch": epochs}
    name = lemur_name(code, prefix)
    if (reason := check_contract(code)) is not None:
        return CheckResult(name, status="contract", error=reason)
    threads, seconds = resources.threads or 1, resources.time_limit or _SECONDS
    payload: Json = {
        "code": code,
        "prm": hyperparameters,
        "data": str(dataset.folder),
        "images": images,
        "epochs": epochs,
        "seed": seed,
        "threads": threads,
    }
    limits = Limits(
        wall_seconds=seconds,
        cpu_seconds=seconds * threads,
        memory_bytes=int(resources.memory_gib * 2**30),
        threads=64 + 2 * threads,
    )
    with open_box(dataset, resources) if box is None else contextlib.nullcontext(box) as opened:
        (outcome,) = opened.run([Job(name, CHECK.guest, payload, limits)])
    return build_result(name, code, outcome)


def accuracy_to_time(accuracy: float, duration: int) -> float:
    """Return LEMUR's measure of how fast a network learns: accuracy above chance, per 100 seconds.

    Args: duration: nanoseconds.
    Source: `accuracy_to_time_metric` in `ab/nn/util/Util.py` of nn-dataset 2.1.0
    """
    return max(0.0, accuracy - CHANCE) / (duration / _NANOSECONDS)


def check_prm(prm: Mapping[str, object]) -> dict[str, object]:
    """Return the hyperparameters without outcomes, after checking those that the trainer itself needs."""
    missing = [name for name in ("batch", "transform") if name not in prm]
    if missing:
        needed = 'give for example {"batch": 64, "transform": "norm_32_flip", "lr": 0.01, "momentum": 0.9}'
        raise UserError(f"prm: {' and '.join(missing)} missing; {needed}")
    batch = prm["batch"]
    if isinstance(batch, bool) or not isinstance(batch, int | float) or not 1 <= batch < 2**20 or batch != int(batch):
        raise UserError(f"prm: batch is {batch!r}; give a number of images, for example 64")
    transform_module(prm["transform"])
    return drop_outcomes(prm) | {"batch": int(batch)}


def build_result(name: str, code: str, outcome: Outcome) -> CheckResult:
    """Turn the outcome of a training job into a result."""
    reply = CHECK.read(outcome)
    answer = reply.answer
    if answer is None:
        return CheckResult(name, status=reply.outcome.status.value, error=reply.reason(_ERROR_CHARACTERS))
    if isinstance(answer, CheckFailure):
        if answer.category == "prm":
            raise UserError(answer.error)
        return CheckResult(name, status=answer.category, error=answer.error)
    quality, rate = code_quality(code, name), accuracy_to_time(answer.accuracy, answer.duration)
    result = CheckResult(name, answer.accuracy, rate, quality.score, "ok", None, answer.duration, quality.owner)
    if answer.accuracy > CHANCE * _GOOD:
        return result
    error = f"accuracy {answer.accuracy:.4f} is at most {CHANCE * _GOOD:g}: LEMUR would not store it"
    return replace(result, status="low_accuracy", error=error)
