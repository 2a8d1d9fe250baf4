"""Do the kept networks run? Each is called as LEMUR calls it, once, in the sandbox; nothing foreign is executed here.

The trainer constructs `Net(in_shape, out_shape, prm, device)`, moves it to the device, and evaluates `net(inputs)` in
eval mode without gradients. `in_shape` is the shape of the first batch, batch size included; `out_shape` comes from the
data loader: the number of classes, or of words. `prm` holds the hyperparameters of the trial, `batch` and `transform`
among them; the name of the transform tells the size of the images.

Source: `ab/nn/util/Train.py`, `ab/nn/loader` and `ab/nn/transform` of https://github.com/ABrain-One/nn-dataset, 2.1.0
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from curate.model.corpus import Corpus
from curate.model.records import Records, leave_out
from curate.model.select import Rescue
from lemur_core.files.progress import progress
from lemur_core.files.workers import available_cores
from lemur_core.sandbox import PRELOAD, Job, Limits, Outcome, Status
from lemur_core.sandbox.cached import CachedSandbox, reason_of, workers_within_memory

#: Two: the least that shows a network which mixes up the samples of a batch.
BATCH = 2

#: Sizes that LEMUR's loaders take from the data, which are not here; networks get them as an argument, so any will do.
CAPTION_WORDS = 1_000
TEXT_CHARACTERS = 256

_TEXT_LENGTH = 128  # characters of a sample of wikitext
_COCO_CLASSES = 6  # of segmentation and detection, in this release
_TEXT2IMAGE_SIZE = 256  # where the transform names none
_PADDED = 800  # soft_pad pads to this

Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Images:
    """An image classification dataset; `size` is None where its images differ in size."""

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
class Case:
    """What one network is given, and what must come out."""

    in_shape: tuple[int, ...]
    out_shape: tuple[object, ...]
    dtype: Literal["float32", "complex64", "int64"] = "float32"
    values: tuple[float, float] = (0.0, 1.0)  # drawn evenly from this range, the end excluded
    output: tuple[int, ...] | None = None  # its shape; None where the task does not fix it
    words: int = 0  # of the vocabulary that the caption loader fills


def case_of(task: str | None, dataset: str | None, transform: object) -> Case | str:
    """What LEMUR hands a network of this benchmark, or why that cannot be told."""
    if task is None or dataset is None:
        return "the record names no task and dataset"
    if (task, dataset) == ("txt-generation", "wikitext"):
        values = (0.0, float(TEXT_CHARACTERS))
        return Case((BATCH, _TEXT_LENGTH), (TEXT_CHARACTERS,), "int64", values)
    if not isinstance(transform, str):
        return "prm names no transform, which tells the size of the images"
    if task == "img-classification" and dataset in DATASETS:
        return _classification(DATASETS[dataset], dataset, transform)
    if dataset == "coco":
        return _coco(task, transform)
    return f"the inputs of task {task} on {dataset} are not known"


def _classification(images: Images, dataset: str, transform: str) -> Case | str:
    size = _size(transform, images.size, dataset)
    if isinstance(size, str):
        return size
    out = (images.classes,)
    return Case((BATCH, images.channels, *size), out, *_values(transform), output=(BATCH, images.classes))


def _coco(task: str, transform: str) -> Case | str:
    if task == "txt-image":
        named = _size(transform, None, "coco")
        size = (_TEXT2IMAGE_SIZE, _TEXT2IMAGE_SIZE) if isinstance(named, str) else named
        # The loader builds a transform of its own, so the images are normalised floats whatever the name says.
        out: tuple[object, ...] = ({"vocab_size": 30_000}, (3, *size), None)
        return Case((BATCH, 3, *size), out, "float32", (-1.0, 1.0))
    found = _size(transform, None, "coco")
    if isinstance(found, str):
        return found
    shape = (BATCH, 3, *found)
    if task in ("img-segmentation", "obj-detection"):
        return Case(shape, (_COCO_CLASSES,), *_values(transform))
    if task == "img-captioning":
        return Case(shape, (CAPTION_WORDS,), *_values(transform), words=CAPTION_WORDS)
    return f"the inputs of task {task} on coco are not known"


def _size(transform: str, native: Size | None, dataset: str) -> Size | str:
    """Height and width after a transform."""
    if found := _RESIZED.fullmatch(transform):
        return int(found[1]), int(found[1])
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
    """Type and range of pixels: `norm` moves them to about zero mean and unit deviation."""
    if transform.startswith("complex"):
        return "complex64", (0.0, 1.0)
    return "float32", (-2.0, 2.0) if transform.startswith("norm") else (0.0, 1.0)


ENTRY = "lemur_core.sandbox.net:run_network"
LIMITS = Limits(wall_seconds=300, cpu_seconds=60, memory_bytes=6 * 2**30)

_MARK = "(--require-runs):"


@dataclass(frozen=True, slots=True)
class RunResult:
    """Whether a network runs; None where that could not be tried. `error` starts with its category and a colon."""

    runs: bool | None
    error: str | None = None

    @property
    def category(self) -> str | None:
        """Why it does not run, or why that was not tried, in one short word; None when it runs."""
        return None if self.error is None else _category_of(self.error)


#: Whether each of these codes runs, as the row that shows it describes it.
Check = Callable[[Mapping[int, int]], dict[int, RunResult]]


class RunChecker:
    """A Check for the records of a corpus. A context manager; its sandbox starts with the first network to run."""

    def __init__(
        self,
        corpus: Corpus,
        *,
        jobs: int | None = None,
        unsafe: bool = False,
        runtime: Sequence[str] = (),
        limits: Limits = LIMITS,
    ) -> None:
        self.ran = 0  # networks whose outcome was not known yet
        self._corpus = corpus
        self._box = open_box([ENTRY], jobs=jobs, unsafe=unsafe, runtime=runtime, limits=limits)
        self._known: dict[tuple[int, int], RunResult] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._box.__exit__(*error)

    def __call__(self, shown: Mapping[int, int]) -> dict[int, RunResult]:
        """Whether each of these codes runs, as the row that shows it describes it.

        Raises: UserError if no sandbox can be had.
        """
        new: list[tuple[int, int, dict[str, object]]] = []
        for code, row in shown.items():
            if (code, row) not in self._known:
                given = self._given(row)
                if isinstance(given, str):
                    self._known[code, row] = RunResult(None, f"unknown_input: {given}")
                else:
                    new.append((code, row, given))
        jobs = (
            Job(str(place), ENTRY, given | {"code": self._corpus.codes[code]})
            for place, (code, _, given) in enumerate(new)
        )
        with progress("runs", len(new), "networks") as advance:
            for outcome in self._box.run(jobs):
                code, row, _ = new[int(outcome.key)]
                told = answer_of(outcome)
                error = None if told["runs"] else f"{told['category']}: {told['error']}"
                self._known[code, row] = RunResult(told["runs"], error)
                self.ran += not outcome.reused
                advance(1)
        return {code: self._known[code, row] for code, row in shown.items()}

    def _given(self, row: int) -> dict[str, object] | str:
        """What the sandbox is given beside the code, or why that cannot be told."""
        (record,) = self._corpus.rows.slice(row, 1).select(["task", "dataset", "prm"]).to_pylist()
        prm = read_parameters(record["prm"])
        case = case_of(record["task"], record["dataset"], prm.get("transform"))
        if isinstance(case, str):
            return case
        # LEMUR's batch size is in both places, and a network may read either.
        return {"case": asdict(case), "prm": prm | {"batch": case.in_shape[0]}}


def open_box(
    entries: list[str],
    *,
    jobs: int | None,
    unsafe: bool,
    limits: Limits,
    runtime: Sequence[str] = (),
    preload: Sequence[str] = PRELOAD,
) -> CachedSandbox:
    """A sandbox for networks. Args: runtime: what they can import besides the declared runtime."""
    workers = workers_within_memory(jobs or available_cores(), limits)
    return CachedSandbox(
        entries=entries, workers=workers, limits=limits, unsafe=unsafe, runtime=runtime, preload=preload
    )


def answer_of(outcome: Outcome) -> dict[str, Any]:
    """What the sandbox answered of a network: `runs`; where that is false, `category`, `error` and `missing`."""
    if outcome.status is Status.OK:
        assert isinstance(outcome.value, dict)
        return outcome.value
    return {"runs": False, "category": outcome.status.value, "error": reason_of(outcome), "missing": ""}


def read_parameters(prm: str | None) -> dict[str, Any]:
    """The hyperparameters of a record; none where there is no JSON object."""
    try:
        found = json.loads(prm or "")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def choose_running(
    records: Records, corpus: Corpus, choose: Callable[[Records], Rescue], check: Check
) -> tuple[Records, Rescue]:
    """`--require-runs`: select until every kept record runs.

    Records are tried as they are about to be kept. Those that do not run are left out, as by a filter, and the
    selection is made again without them. A record that was not tried has no part in the outcome: it is near a kept one
    that outranks it. So the kept set is what the selection over all running records would be, all guarantees hold for
    it, and only a small part of a corpus is ever run.

    Args:
        choose: the selection; its outcome depends on the records alone.

    Returns: the records that were not left out, and the selection among them.
    """
    while True:
        chosen = choose(records)
        kept = {code: records.shown[code] for code, verdict in chosen.verdicts.items() if verdict.stage is None}
        reasons = {code: reason_to_leave_out(result) for code, result in check(kept).items() if not result.runs}
        if not reasons:
            return records, chosen
        records = leave_out(records, corpus, reasons)


def reason_to_leave_out(result: RunResult) -> str:
    """Why `--require-runs` leaves a record out, for its decision."""
    what = "does not run" if result.runs is False else "cannot be tried"
    return f"{what} {_MARK} {result.error}"


def category_left_out(reason: str) -> str | None:
    """The category in such a reason; None for any other reason."""
    _, mark, error = reason.partition(f"{_MARK} ")
    return _category_of(error) if mark else None


def _category_of(error: str) -> str:
    """The category that an error line starts with."""
    return error.partition(":")[0]
