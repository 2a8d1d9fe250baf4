"""The resources of training, declared once for the command line and for Python."""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
from lemur_core.files.workers import available_cores
from lemur_core.sandbox import Limits
from lemur_core.sandbox.runtime import find_runtime
from manifests.options import RUNTIME, Option

#: The packages that the sandbox's entry itself imports besides the declared runtime.
LIBRARIES = ("pyarrow", "pydantic")

_PANEL = "Resources and sandbox"
_DAY = 86_400
_NO_LIMIT = 10.0 * 365 * _DAY  # seconds
_GRACE = 600.0  # seconds for evaluation and files, after the time limit
_FILE_BYTES, _SCRATCH_BYTES = 4 * 2**30, 16 * 2**30
_OPEN_FILES, _FILES = 1024, 2**16  # a GPU's driver opens many
_NO_MEMORY_LIMIT = 2**46  # a GPU's driver reserves far more addresses than it uses
UNSAFE = "Run foreign code without the sandbox: only code that you trust. Required for a GPU."


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of a run. Only threads and device affect the result, through the order of sums.

    `threads`: by default one for each core. `memory_gib`: limit of the process
    in addition to its libraries (not counted on a GPU). `time_limit`, in seconds, stops the run after a step; it can be
    resumed. `step_limit` ends it if nothing finishes for that many seconds. `runtime`: distributions that networks can
    import besides the declared runtime.
    """

    threads: Annotated[
        int | None, Option("Threads of a run (default: one for each core).", metavar="N", least=1, panel=_PANEL)
    ] = None
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"], Option("auto: a GPU if one is available and allowed.", panel=_PANEL)
    ] = "auto"
    memory_gib: Annotated[
        float,
        Option("Memory limit per run.", flag="--memory", metavar="GIB", least=0.5, most=2**20, panel=_PANEL),
    ] = 8.0
    time_limit: Annotated[
        float | None,
        Option(
            "Stop a run after this time; it can be resumed.", metavar="SECONDS", least=1, most=_NO_LIMIT, panel=_PANEL
        ),
    ] = None
    step_limit: Annotated[
        float,
        Option(
            "End a run if no step finishes within this time.", metavar="SECONDS", least=1, most=_NO_LIMIT, panel=_PANEL
        ),
    ] = 600.0
    unsafe: Annotated[bool, Option(UNSAFE, flag="--unsafe-no-sandbox", panel=_PANEL)] = False
    runtime: Annotated[tuple[str, ...], Option(RUNTIME.help, metavar=RUNTIME.metavar)] = ()

    def resolve(self) -> "Resources":
        """Return the same resources, with the number of threads and the device filled in.

        Raises: UserError for values out of range, a device that does not exist or is not allowed, or a package of
            `runtime` that is not installed.
        """
        for name in ("threads", "time_limit", "step_limit"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"{name.replace('_', ' ')}: {value}; it must be greater than 0")
        find_runtime((*LIBRARIES, *self.runtime))
        return replace(self, threads=self.threads or available_cores(), device=self._choose_device())

    def limits(self) -> Limits:
        """Return the sandbox's limits: a last resort, wider than those that the process enforces itself."""
        wall = _NO_LIMIT if self.time_limit is None else self.time_limit + 2 * self.step_limit + _GRACE
        threads = 64 + 4 * (self.threads or 1)
        limits = Limits(
            wall_seconds=wall,
            cpu_seconds=min(_NO_LIMIT, wall * threads),
            memory_bytes=int(self.memory_gib * 2**30) if self.device == "cpu" else _NO_MEMORY_LIMIT,
            threads=threads if self.device == "cpu" else 4096,
            file_bytes=_FILE_BYTES,
            open_files=_OPEN_FILES,
            files=_FILES,
            scratch_bytes=_SCRATCH_BYTES,
        )
        # While a GPU computes, the process may only wait for it.
        return limits if self.device == "cpu" else replace(limits, idle_seconds=wall)

    def _choose_device(self) -> Literal["cpu", "cuda", "mps"]:
        import torch  # here: a command's parameters are read from this class

        present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        kind = self.device
        if kind == "auto":
            found: Literal["cpu", "cuda", "mps"] = "cuda" if present["cuda"] else "mps" if present["mps"] else "cpu"
            if found == "cpu" or self.unsafe:
                return found
            note(f"training on the CPU: the sandbox blocks the GPU ({found}); --unsafe-no-sandbox allows it")
            return "cpu"
        if kind not in present:
            raise UserError(f"device {kind!r}: choose from auto, {', '.join(present)}")
        if not present[kind]:
            raise UserError(f"device {kind}: torch finds none on this machine; use cpu or auto")
        if kind != "cpu" and not self.unsafe:
            raise UserError(f"device {kind}: the sandbox blocks it; add --unsafe-no-sandbox, or use cpu")
        return kind
