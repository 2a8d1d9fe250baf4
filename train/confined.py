"""The caller's side of the process that trains: its sandbox, its limits, and what its end means."""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
from lemur_core.files.workers import available_cores
from lemur_core.sandbox import PRELOAD as COMMON
from lemur_core.sandbox import Job, Limits, Outcome, Sandbox, Status
from train.plan import Plan

ENTRY = "train.loop:train"
PRELOAD = (*COMMON, "torchvision.transforms.v2")
_NO_LIMIT = 10.0 * 365 * 86400  # seconds
_GRACE = 600.0  # seconds for evaluation and files, after the time limit
_FILE_BYTES, _SCRATCH_BYTES = 4 * 2**30, 16 * 2**30
_NO_MEMORY_LIMIT = 2**46  # a GPU's driver reserves far more addresses than it uses
_STUCK = re.compile(r"^Timeout \(\d+:\d\d:\d\d", re.MULTILINE)  # faulthandler's first line
_FRAME = re.compile(r'File "net\.py", line (\d+) in (\S+)')


@dataclass(frozen=True, slots=True)
class Resources:
    """What a run may use. Nothing of it changes what is computed, but for threads and device: the order of sums.

    `memory_bytes` is what the process may take beside its libraries (not counted on a GPU); `time_limit`, in seconds,
    ends the run after a step, to go on another time; `step_limit` ends it when nothing gets done for so long.
    """

    threads: int | None = None
    device: str = "auto"
    memory_bytes: int = 8 * 2**30
    time_limit: float | None = None
    step_limit: float = 600.0
    unsafe: bool = False

    def checked(self) -> "Resources":
        """The same, with the number of threads and the device told.

        Raises: UserError for values out of range, or a device that is not there or out of reach.
        """
        for name, value in (
            ("threads", self.threads),
            ("time limit", self.time_limit),
            ("step limit", self.step_limit),
        ):
            if value is not None and value <= 0:
                raise UserError(f"{name}: {value}; it must be above 0")
        device = _choose_device(self.device, unsafe=self.unsafe)
        threads = self.threads or available_cores()
        return Resources(threads, device, self.memory_bytes, self.time_limit, self.step_limit, self.unsafe)

    def limits(self) -> Limits:
        """The walls' limits: the last resort, behind those that the process keeps itself."""
        wall = _NO_LIMIT if self.time_limit is None else self.time_limit + 2 * self.step_limit + _GRACE
        threads = 64 + 4 * (self.threads or 1)
        return Limits(
            wall_seconds=wall,
            cpu_seconds=min(_NO_LIMIT, wall * threads),
            memory_bytes=self.memory_bytes if self.device == "cpu" else _NO_MEMORY_LIMIT,
            threads=threads if self.device == "cpu" else 4096,
            file_bytes=_FILE_BYTES,
            scratch_bytes=_SCRATCH_BYTES,
        )


def open_box(data: Path, resources: Resources) -> Sandbox:
    """A sandbox for training runs on the images in that cache folder; several runs may share it, one after another.

    Args: resources: as `Resources.checked` gives them.
    """
    assert resources.device != "auto"
    environment = {}
    if resources.device == "cuda":
        environment["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it cuBLAS need not compute the same twice
    return Sandbox(
        preload=PRELOAD,
        entries=[ENTRY],
        readable=[data],
        workers=1,
        environment=environment,
        unsafe=resources.unsafe,
    )


@contextlib.contextmanager
def box_for(box: Sandbox | None, data: Path, resources: Resources) -> Iterator[Sandbox]:
    """This sandbox, opened if it is not yet and left open; or one of our own for the time."""
    if box is not None:
        yield box if box.is_open else box.__enter__()
        return
    with open_box(data, resources) as own:
        yield own


def run_plan(box: Sandbox, plan: Plan, scratch: Path, limits: Limits) -> Outcome:
    """Run one plan to its end, in that folder."""
    (outcome,) = box.run([Job("run", ENTRY, plan.to_payload(), limits, scratch=str(scratch.resolve()))])
    return outcome


def judge(outcome: Outcome, step_limit: float) -> tuple[str, str]:
    """Status and reason, in one line, of a run that ended before it could say how itself."""
    line = (outcome.error.strip().splitlines() or ["no reason was given"])[0]
    if outcome.status == Status.OUT_OF_MEMORY:
        return "out_of_memory", line
    if outcome.status == Status.TIMEOUT:
        return "timeout", line
    if outcome.status == Status.CRASHED and _STUCK.search(outcome.stderr_tail):
        frame = _FRAME.search(outcome.stderr_tail)
        place = f", in net.py:{frame[1]} in {frame[2]}" if frame else ""
        return "timeout", f"nothing was finished within {step_limit:g} s{place}"
    return "error", line


def _choose_device(kind: str, *, unsafe: bool) -> str:
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind == "auto":
        found = next((name for name in ("cuda", "mps") if present[name]), "cpu")
        if found != "cpu" and not unsafe:
            note(f"training on the CPU: the sandbox keeps jobs from the GPU ({found}); --unsafe-no-sandbox uses it")
            return "cpu"
        return found
    if kind not in present:
        raise UserError(f"device {kind!r}: there are auto, {', '.join(present)}")
    if not present[kind]:
        raise UserError(f"device {kind}: torch finds none on this machine; use cpu or auto")
    if kind != "cpu" and not unsafe:
        raise UserError(f"device {kind}: the sandbox keeps jobs from it; add --unsafe-no-sandbox, or use cpu")
    return kind
