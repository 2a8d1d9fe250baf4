"""Smoke tests of networks for LEMUR's other tasks: nn-dataset's own trainer and metrics on generated data.

That a network trains and is measured says that it keeps LEMUR's contract for its task; the value of the metric says
nothing of its worth, and is not stored anywhere.
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
from train.lemur.check import CheckResult, CheckSettings, check_nn, check_prm, result_of
from train.model.contract import check_contract, lemur_name
from train.model.recipe import read_code, read_prm
from train.runs.register import archive, check_enters

ENTRY = "train.lemur.task_guest:run_task"

#: What every output says.
LABEL = f"generated (smoke test of nn-dataset {DEFAULT_VERSION}'s trainer; says nothing of the network's worth)"
_SAMPLES = 32  # to train on, and as many to test on
_CODE = ("ab/nn/util/", "ab/nn/metric/", "ab/nn/loader/", "ab/nn/transform/")
_FILES = ("ab/__init__.py", "ab/nn/__init__.py", "ab/nn/api.py")
_FORMAT = 1
#: What nn-dataset's trainer imports besides the declared runtime.
_TRAINER = ("pandas", "radon", "tqdm")


@dataclass(frozen=True, slots=True)
class Task:
    """A task of LEMUR's: its dataset, its metrics, the usual one first, and what these import beside the runtime."""

    dataset: str
    metrics: tuple[str, ...]
    needs: tuple[str, ...] = ()


TASKS: Mapping[str, Task] = {
    "img-segmentation": Task("coco", ("iou",)),
    "obj-detection": Task("coco", ("map",)),
    "img-captioning": Task("coco", ("bleu",), ("nltk",)),
    "txt-generation": Task("wikitext", ("acc", "ppl")),
}
#: Tasks of which nn-dataset's code cannot be run on generated data, and why.
REFUSED: Mapping[str, str] = {
    "txt-image": "its metrics, clip and fid, measure with pretrained networks that they download",
    "img-classification": "is not a smoke test: leave --task out, and give --data",
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
    """Check the network of a file on CIFAR-10, or by a smoke test of another task, and archive it where that is asked.

    Args:
        prm: JSON, or a file of it.
        data: CIFAR-10, as for a run; not read for another task.
        db: the LEMUR database to archive it in.

    Returns: its figures, by what they are called.
    Raises: UserError if the check fails, or nothing may be archived.
    """
    code, given = read_code(net), read_prm(prm)
    if task is not None:
        if db is not None:
            raise UserError("--archive: a smoke test is not archived; leave --task or --archive out")
        result, label = check_task(code, given, task, metric=metric, settings=settings, unsafe=unsafe), LABEL
    else:
        cifar10 = load_cifar10(data)
        label = cifar10.label
        if db is not None:
            check_enters(db, label, given)
        result = check_nn(code, given, dataset=cifar10, settings=settings, unsafe=unsafe)
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
            given,
            data=label,
            epoch=settings.epochs,
            accuracy=result.accuracy,
            duration=result.duration,
        )
        figures["archived"] = f"{db}: {'1 trial added' if new else 'this trial is there already'}"
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
        metric: one of the task's; the usual one by default.

    Returns: the result, its `accuracy` the metric's value; one whose status is not `ok` says why, in one line.
    Raises: UserError if the task or metric cannot be checked so, or `prm` lacks something; RetryableError if the
        package cannot be fetched.
    """
    known = _task(task, metric)
    given = check_prm(prm) | {"epoch": settings.epochs}
    name = lemur_name(code, prefix)
    reason = check_contract(code)
    if reason is not None:
        return CheckResult(name, None, None, None, "contract", reason)
    package = package_code()
    threads = settings.threads or available_cores()
    payload = {
        "code": code,
        "prm": given,
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
    found = result_of(name, code, outcome, settings, chance=0.0)
    return replace(found, status="ok", error=None) if found.status == "low_accuracy" else found


def _task(task: str, metric: str | None) -> Task:
    """The task with this metric. Raises: UsageError if LEMUR has neither; UserError saying why it cannot be checked."""
    if task in REFUSED:
        raise UserError(f"--task {task}: {REFUSED[task]}")
    if task not in TASKS:
        raise UsageError(f"--task {task}: not one of LEMUR's; there are {', '.join(TASKS)}")
    known = TASKS[task]
    if metric is not None and metric not in known.metrics:
        raise UsageError(f"--metric {metric}: {task} is measured by {' or '.join(known.metrics)}")
    missing = [name for name in known.needs if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"--task {task}: its metric {known.metrics[0]} needs {missing[0]}: pip install {missing[0]}")
    return known


def package_code() -> Path:
    """A folder with the code of nn-dataset that trains and measures, from its wheel; nothing of it is run here.

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
