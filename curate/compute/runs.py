"""How LEMUR constructs and calls a network, and the job that does it once, in the sandbox.

The trainer constructs `Net(in_shape, out_shape, prm, device)`, moves it to the device, and evaluates `net(inputs)` in
eval mode without gradients. `in_shape` is the shape of the first batch, including the batch size; `out_shape` comes
from the data loader: the number of classes, or of words. `prm` holds the hyperparameters of the trial, including
`batch` and `transform`; the name of the transform gives the image size.

Source: `ab/nn/util/Train.py`, `ab/nn/loader` and `ab/nn/transform` of https://github.com/ABrain-One/nn-dataset, 2.1.0
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from curate.sources.rows import DEFAULT_TASK, TASK_DATASETS
from lemur_core.files import Json
from lemur_core.files.workers import available_cores
from lemur_core.sandbox import PRELOAD, Limits, Status
from lemur_core.sandbox.cached import TRANSIENT, CachedSandbox, describe_failure, workers_within_memory
from lemur_core.sandbox.server.received import receive
from lemur_core.sandbox.stage import Answer, Reply, SandboxOptions, SandboxStage, open_sandbox
from manifests.records import drop_outcomes

#: The smallest batch that exposes a network which mixes up its samples.
BATCH = 2

#: Sizes that LEMUR's loaders derive from the data, which is absent here; networks take them as arguments: any will do.
CAPTION_WORDS = 1_000
TEXT_CHARACTERS = 256

_TEXT_LENGTH = 128  # characters of a sample of wikitext
_COCO_TASKS, _COCO_CLASSES = ("img-segmentation", "obj-detection"), 6  # in this release
_TEXT2IMAGE_SIZE = 256  # if the transform does not name a size
_PADDED = 800  # soft_pad pads to this

Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Images:
    """An image classification dataset; `size` is None if its images differ in size."""

    channels: int
    size: Size | None
    classes: int


DATASETS = {
    "celeba-gender": Images(3, (218, 178), 2),
    "cifar-10": Images(3, (32, 32), 10),
    "cifar-100": Images(3, (32, 32), 100),
    "imagenette": Images(3, None, 10),
    "mnist": Images(1, (28, 28), 10),
    "places365": Images(3, (256, 256), 365),
    "svhn": Images(3, (32, 32), 10),
}

_RESIZED = re.compile(r"(?:norm|echo|complex)_(\d+)(?:_flip)?")
_KEEPS_SIZE = re.compile(r"(?:norm|echo|complex)(?:_flip)?")
_FIXED = {"center_crop": 64, "random_horizontal_flip": 64, "random_vertical_flip": 64}


@dataclass(frozen=True, slots=True)
class InputCase:
    """The inputs of one network, and the expected output."""

    in_shape: tuple[int, ...]
    out_shape: tuple[object, ...]
    dtype: Literal["float32", "complex64", "int64"] = "float32"
    values: tuple[float, float] = (0.0, 1.0)  # drawn evenly from this range, the end excluded
    output: tuple[int, ...] | None = None  # expected shape; None if the task does not fix it
    words: int = 0  # of the vocabulary that the caption loader fills


def build_case(task: str | None, dataset: str | None, transform: object) -> InputCase | str:
    """Return the inputs that LEMUR passes to a network of this benchmark, or why they are unknown."""
    if task is None or dataset is None:
        return "the record names no task and dataset"
    if (task, dataset) == ("txt-generation", "wikitext"):
        values = (0.0, float(TEXT_CHARACTERS))
        return InputCase((BATCH, _TEXT_LENGTH), (TEXT_CHARACTERS,), "int64", values)
    if not isinstance(transform, str):
        return "prm names no transform, which tells the size of the images"
    not_known = f"the inputs of task {task} on {dataset} are not known"
    if task == "img-classification" and dataset in DATASETS:
        images = DATASETS[dataset]
    elif dataset == "coco":
        images = Images(3, None, _COCO_CLASSES)
    else:
        return not_known
    size = _size(transform, images.size, dataset)
    if task == "txt-image":
        size = (_TEXT2IMAGE_SIZE, _TEXT2IMAGE_SIZE) if isinstance(size, str) else size
        # The loader builds its own transform, so the images are normalized floats whatever the name says.
        out: tuple[object, ...] = ({"vocab_size": 30_000}, (3, *size), None)
        return InputCase((BATCH, 3, *size), out, "float32", (-1.0, 1.0))
    if isinstance(size, str):
        return size
    shape = (BATCH, images.channels, *size)
    if dataset in DATASETS:
        return InputCase(shape, (images.classes,), *_values(transform), output=(BATCH, images.classes))
    if task == "img-captioning":
        return InputCase(shape, (CAPTION_WORDS,), *_values(transform), words=CAPTION_WORDS)
    return InputCase(shape, (images.classes,), *_values(transform)) if task in _COCO_TASKS else not_known


def _size(transform: str, native: Size | None, dataset: str) -> Size | str:
    """Return the height and width after a transform."""
    if match := _RESIZED.fullmatch(transform):
        return int(match[1]), int(match[1])
    if transform in _FIXED:
        return _FIXED[transform], _FIXED[transform]
    if transform == "soft_pad":
        height, width = native or (0, 0)
        return max(height, _PADDED), max(width, _PADDED)
    if not _KEEPS_SIZE.fullmatch(transform):
        return f"the transform {transform} is not known"
    if native is None:
        return f"the images of {dataset} differ in size, and the transform {transform} leaves them so"
    return native


def _values(transform: str) -> tuple[Literal["float32", "complex64"], tuple[float, float]]:
    """Return the type and range of pixels: `norm` moves them to about zero mean and unit deviation."""
    if transform.startswith("complex"):
        return "complex64", (0.0, 1.0)
    return "float32", (-2.0, 2.0) if transform.startswith("norm") else (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A network to construct and run. `case`: the fields of `InputCase`."""

    code: str
    case: Mapping[str, object]
    prm: Mapping[str, object]


_NAME_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class NetRuns:
    """The answer of a network that runs."""

    runs: Literal[True] = True


@dataclass(frozen=True, slots=True)
class NetFailure:
    """Why a network does not run: the step that failed or the reason, one line, and the missing module, if any.

    `traceback` is that of an exception in its file, as Python prints it.
    """

    category: str
    error: str
    missing: str = ""
    traceback: str = ""
    runs: Literal[False] = False

    def __post_init__(self) -> None:
        """Raise ValueError if the category is not a short word, or the module's name none."""
        if not re.fullmatch(r"[a-z_0-9]{1,40}", self.category):
            raise ValueError("a category is a short word")
        if self.missing and not all(map(str.isidentifier, self.missing.split("."))):
            raise ValueError("a missing module has a name")
        if len(self.missing) > _NAME_CHARACTERS:
            raise ValueError(f"the name of a missing module has more than {_NAME_CHARACTERS} characters")

    @property
    def fault(self) -> str:
        """The category, a colon, the line."""
        return f"{self.category}: {' '.join(self.error.split())[:_FAULT_CHARACTERS]}"


LIMITS = Limits(wall_seconds=300, cpu_seconds=60, memory_bytes=6 * 2**30)
RUN = SandboxStage[NetRuns | NetFailure](
    "lemur_core.sandbox.net:run_network", NetRuns | NetFailure, LIMITS, label="runs", unit="networks"
)

_FAULT_CHARACTERS = 2_000


def open_box(
    stages: Sequence[SandboxStage[Any]],
    *,
    jobs: int | None,
    unsafe: bool,
    runtime: Sequence[str] = (),
    preload: Sequence[str] = PRELOAD,
    transient: frozenset[Status] = TRANSIENT,
) -> CachedSandbox:
    """Open a sandbox for networks.

    Args:
        runtime: packages that they can import besides the declared runtime.
        transient: statuses after which a job runs again.
    """
    workers = workers_within_memory(jobs or available_cores(), stages[0].limits)
    options: SandboxOptions = {"jobs": workers, "unsafe": unsafe}
    return open_sandbox(None, stages, options, runtime=runtime, preload=preload, transient=transient)


def read_answer(reply: Reply[Answer]) -> Answer | NetFailure:
    """Return the answer about a network; if its job has none, how the sandbox ended it."""
    return reply.answer or NetFailure(reply.outcome.status.value, describe_failure(reply.outcome))


# The arguments that a network is run with: those of its record, and the usual ones where it states none.

#: The hyperparameters that LEMUR's trainer passes, at their most frequent values, for a record that states none.
PRM: Json = {"lr": 0.01, "momentum": 0.9, "dropout": 0.2, "epoch": 1, "transform": "norm_256"}
_NET = re.compile(r"^(?:class|def)\s+Net\b|^Net\s*=", re.MULTILINE)
_READ = re.compile(r"""\w\[["'](\w+)["']\]""")


def read_parameters(prm: str | None) -> Json:
    """Return the hyperparameters of a record, cleaned as `receive` does; empty unless `prm` is a JSON object.

    The outcomes that an older snapshot may still have in `prm` are no hyperparameters.
    """
    try:
        parameters = receive(json.loads(prm or ""), any_number=True)
    except (ValueError, RecursionError):
        return {}
    return drop_outcomes(parameters) if isinstance(parameters, dict) else {}


def complete(record: Mapping[str, str | None], code: str) -> tuple[str | None, str | None, Json]:
    """Return the task, dataset and hyperparameters that a network is run with: its record's, else the usual ones.

    Of a record that states all three the hyperparameters are completed by those alone that the code reads as
    `prm["NAME"]`: what is read with a default has the value of the record's run.

    Args: record: `task`, `dataset` and `prm`, each a text or None.
    Returns: no task if the record states none and the code defines no Net, as LEMUR's contract demands.
    """
    task, dataset, prm = record["task"], record["dataset"], read_parameters(record["prm"])
    if task is None and not _NET.search(code):
        return task, dataset, prm
    if None not in (task, dataset, record["prm"]):
        return task, dataset, {name: PRM[name] for name in _READ.findall(code) if name in PRM} | prm
    task = task or DEFAULT_TASK
    return task, dataset or TASK_DATASETS.get(task), PRM | prm
