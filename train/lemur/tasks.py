"""Smoke tests of networks for LEMUR's other tasks: nn-dataset's own trainer and metrics on generated data.

A passed test shows that the network meets LEMUR's contract for its task; the value of the metric says nothing about
the network's quality, and is not stored.
"""

import contextlib
import importlib.util
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lemur_core.files.atomic import atomic_folder
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.lemur_release import DEFAULT_VERSION, fetch_release
from lemur_core.files.workers import available_cores
from lemur_core.sandbox import Job, Limits, Sandbox
from train.data import load_cifar10
from train.lemur.check import CheckResult, CheckSettings, build_result, check_nn, check_prm
from train.model.contract import check_contract, lemur_name
from train.model.recipe import read_code, read_prm
from train.runs.register import archive, check_enters

ENTRY = "train.lemur.task_guest:run_task"

#: The label on every output.
LABEL = f"generated (smoke test of nn-dataset {DEFAULT_VERSION}'s trainer; says nothing of the network's worth)"
_SAMPLES = 32  # for training, and as many for test
_CODE = ("ab/nn/util/", "ab/nn/metric/", "ab/nn/loader/", "ab/nn/transform/")
_FILES = ("ab/__init__.py", "ab/nn/__init__.py", "ab/nn/api.py")
_FORMAT = 1
#: The packages that nn-dataset's trainer imports besides the declared runtime.
_TRAINER = ("pandas", "radon", "tqdm")


@dataclass(frozen=True, slots=True)
class Task:
    """One of LEMUR's tasks: its dataset, its metrics (default first), and their imports besides the runtime."""

    dataset: str
    metrics: tuple[str, ...]
    needs: tuple[str, ...] = ()


TASKS: Mapping[str, Task] = {
    "img-segmentation": Task("coco", ("iou",)),
    "obj-detection": Task("coco", ("map",)),
    "img-captioning": Task("coco", ("bleu",), ("nltk",)),
    "txt-generation": Task("wikitext", ("acc", "ppl")),
}
#: Tasks whose code in nn-dataset cannot be run on generated data, with the reason.
REFUSED: Mapping[str, str] = {
    "txt-image": "its metrics, clip and fid, use pretrained networks that they download",
    "img-classification": "is not a smoke test: omit --task, and pass --data",
}


def check_file(
    net: Path,
    prm: str,
    *,
    data: str,
    task: str | None = None,
    metric: str | None = None,
    db: Path | None = None,
    settings: CheckSettings = CheckSettings(),  # noqa: B008 (frozen)
    unsafe: bool = False,
) -> dict[str, object]:
    """Check the network of a file on CIFAR-10, or by a smoke test of another task, and archive it if requested.

    Args:
        prm: JSON, or the path of a JSON file.
        data: CIFAR-10, as for a run; not read for another task.
        db: the LEMUR database to archive it in.

    Returns: its figures by name.
    Raises: UserError if the check fails, or the network cannot be archived.
    """
    code, hyperparameters = read_code(net), read_prm(prm)
    if task is not None:
        if db is not None:
            raise UserError("--archive: a smoke test is not archived; omit --task or --archive")
        result, label = check_task(code, hyperparameters, task, metric=metric, settings=settings, unsafe=unsafe), LABEL
    else:
        cifar10 = load_cifar10(data)
        label = cifar10.label
        if db is not None:
            check_enters(db, label, hyperparameters)
        result = check_nn(code, hyperparameters, dataset=cifar10, settings=settings, unsafe=unsafe)
    if result.status != "ok":
        raise UserError(f"{net}: {result.status}: {result.error}")
    figures: dict[str, object] = {"name": result.name}
    if task is None:
        figures["accuracy"] = result.accuracy
    else:
        used = metric or TASKS[task].metrics[0]
        figures |= {"smoke_test": True, "task": task, "metric": used, used: result.accuracy}
    figures |= {"accuracy_to_time": result.accuracy_to_time, "code_quality": result.code_quality, "data": label}
    if db is not None:
        assert result.accuracy is not None
        assert result.duration is not None
        new = archive(
            db,
            code,
            result.name,
            hyperparameters,
            data=label,
            epoch=settings.epochs,
            accuracy=result.accuracy,
            duration=result.duration,
        )
        figures["archived"] = f"{db}: {'1 trial added' if new else 'this trial is already there'}"
    return figures


def check_task(
    code: str,
    prm: Mapping[str, object],
    task: str,
    *,
    metric: str | None = None,
    prefix: str = "",
    settings: CheckSettings = CheckSettings(),  # noqa: B008 (frozen)
    unsafe: bool = False,
) -> CheckResult:
    """Train and measure a network for a task on generated data, in the sandbox.

    Args:
        prm: as for `train.lemur.check.check_nn`; `transform` is a module of `ab.nn.transform`.
        metric: one of the task's metrics; its first by default.

    Returns: the result, with the metric's value as `accuracy`; if its status is not `ok`, `error` has the reason.
    Raises: UserError if the task or metric cannot be smoke-tested, or `prm` lacks something; RetryableError if the
        package cannot be fetched.
    """
    known = _task(task, metric)
    hyperparameters = check_prm(prm) | {"epoch": settings.epochs}
    name = lemur_name(code, prefix)
    reason = check_contract(code)
    if reason is not None:
        return CheckResult(name, None, None, None, "contract", reason)
    package = package_code()
    threads = settings.threads or available_cores()
    payload = {
        "code": code,
        "prm": hyperparameters,
        "task": task,
        "dataset": known.dataset,
        "metric": metric or known.metrics[0],
        "package": str(package),
        "samples": settings.images or _SAMPLES,
        "epochs": settings.epochs,
        "seed": settings.seed,
        "threads": threads,
    }
    limits = Limits(
        wall_seconds=settings.wall_seconds,
        cpu_seconds=settings.wall_seconds * threads,
        memory_bytes=settings.memory_bytes,
        threads=64 + 2 * threads,
    )
    runtime = [*_TRAINER, *known.needs, *settings.runtime]
    with Sandbox(entries=[ENTRY], readable=[package], workers=1, unsafe=unsafe, runtime=runtime) as box:
        (outcome,) = box.run([Job(name, ENTRY, payload, limits)])
    result = build_result(name, code, outcome, settings, chance=0.0)
    return replace(result, status="ok", error=None) if result.status == "low_accuracy" else result


def _task(task: str, metric: str | None) -> Task:
    """Return the task with this metric. Raises: UsageError if LEMUR lacks one of them; UserError if not testable."""
    if task in REFUSED:
        raise UserError(f"--task {task}: {REFUSED[task]}")
    if task not in TASKS:
        raise UsageError(f"--task {task}: not one of LEMUR's tasks; choose from {', '.join(TASKS)}")
    known = TASKS[task]
    if metric is not None and metric not in known.metrics:
        raise UsageError(f"--metric {metric}: {task} is measured by {' or '.join(known.metrics)}")
    missing = [name for name in known.needs if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"--task {task}: its metric {known.metrics[0]} needs {missing[0]}: pip install {missing[0]}")
    return known


def package_code() -> Path:
    """Return a folder with nn-dataset's code for training and metrics, from its wheel; it is not executed here.

    Raises: RetryableError if the wheel cannot be fetched; UserError if it is damaged.
    """
    wheel, digest = fetch_release()
    folder = cache_folder("lemur", DEFAULT_VERSION) / f"code-{digest[:16]}-v{_FORMAT}"
    if not folder.is_dir():
        with contextlib.suppress(FileExistsError), zipfile.ZipFile(wheel) as archive, atomic_folder(folder) as part:
            for name in archive.namelist():
                if name.endswith(".py") and (name.startswith(_CODE) or name in _FILES):
                    archive.extract(name, part)
    return folder
