"""One attempt: execute a file, construct, call, differentiate. Every error is an outcome that says how far it came."""

import linecache
import random
import re
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import torch

from extract.arguments.values import flatten, has_shape
from lemur_core.sandbox.loader import load as load_module
from lemur_core.sandbox.server.foreign import is_kind, list_frames, name_type, read_message, read_traceback
from lemur_core.sandbox.server.foreign import one_line as to_line

MODULE_NAME = "block"
#: The files in which an error means that an operator is not Python: PyTorch's builder of extensions, and Triton.
_NATIVE_FILES = re.compile(r"torch/utils/cpp_extension\.py$|/triton/")
_NATIVE_MESSAGES = re.compile(
    r"not compiled with CUDA|NVIDIA driver|CUDA_HOME|No CUDA GPUs|\d active drivers|CUDA error|'_OpNamespace' '"
    r"|Could not load this library|undefined symbol|cannot open shared object file"
)
_EXTENSION = re.compile(r"_C[A-Z]*|(?:\w*_)?(?:cuda|ext|cpp)")  # usual names of extensions that a build compiles
SEED = 0
UNSET_SCALE = 0.02  # standard deviation of the values of parameters that nobody initialized
_MAX_LINES = 20
_MAX_FRAMES = 6  # in the measure of progress
_ELEMENT = 8  # multiply-adds that take as long as writing one element of an activation


class _Hidden:
    """A finder that makes the modules of some packages impossible to import."""

    def __init__(self, packages: Collection[str]) -> None:
        self._packages = frozenset(packages)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        """Return None for every other module, so that the next finder handles it.

        Raises: ModuleNotFoundError for a hidden one.
        """
        if _is_inside(fullname, self._packages):
            raise ModuleNotFoundError(f"No module named {fullname!r} (the block's origin)", name=fullname)


def hide(packages: Collection[str]) -> None:
    """Make packages impossible to import, and drop those that are already imported.

    An empty torchvision module is kept: files may import it for its compiled operators, which are registered already.
    """
    for name in [name for name in sys.modules if _is_inside(name, packages)]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Hidden(packages))
    if "torchvision" in packages:
        sys.modules["torchvision"] = ModuleType("torchvision")


def _is_inside(module: str, packages: Collection[str]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def load(code: str) -> ModuleType:
    """Execute a file as the module `block`, and suppress its warnings."""
    sys.dont_write_bytecode = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_module(code, MODULE_NAME)


def classify_error(error: BaseException) -> str:
    """Return the category of an error: its type in snake case; the most common types share `runtime_error`.

    What needs a compiler for C++ or CUDA, its results, Triton's compiler or a GPU is `native_op`, whatever its type.
    """
    if is_kind(error, ModuleNotFoundError):
        missing = re.search(r"No module named '(?:[\w.]*\.)?(\w+)'", read_message(error))
        return "native_op" if missing and _EXTENSION.fullmatch(missing[1]) else "missing_dependency"
    if _read_variable(error):
        return "environment_variable"
    if _NATIVE_MESSAGES.search(read_message(error)) or any(
        _NATIVE_FILES.search(file) for file, _, _ in list_frames(error)
    ):
        return "native_op"
    name = name_type(error)
    if name in {"OSError", "RuntimeError", "AssertionError", "KeyError", "IndexError", "ValueError"}:
        return "runtime_error"
    return "".join("_" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(name))


def _read_variable(error: BaseException) -> str:
    """Return the environment variable whose absence led to an error; "" if it was not that."""
    frames = list_frames(error)
    # The file of `os` is part of the interpreter.
    unset = is_kind(error, KeyError) and frames and frames[-1][0] == "<frozen os>" and frames[-1][2] == "__getitem__"
    return read_message(error).strip("'\"") if unset else ""


def one_line(error: BaseException) -> str:
    """Return the type and message of an error, and the last line of the block's file that it passed, in one line."""
    variable = _read_variable(error)
    reason = f"the environment variable {variable} is not set, and its source assigns no literal value to it"
    message = to_line(reason if variable else read_message(error), 300)
    lines = [(file, line) for file, line, _ in list_frames(error) if file.endswith(f"{MODULE_NAME}.py")]
    where = f" (line {lines[-1][1]}: {linecache.getline(*lines[-1]).strip()[:120]})" if lines else ""
    return f"{name_type(error)}: {message}{where}"


# -- attempts ----------------------------------------------------------------------------------------------------------


class TooManyStepsError(RuntimeError):
    """An action ran too many lines of the block."""


class AttemptError(Exception):
    """A failed attempt.

    Attributes:
        cause: the exception.
        progress: number of submodules that finished, and line numbers of the block's frames, outermost first.
        lines: source lines of the block's frames, outermost first.
        numbers: line numbers of `lines`.
    """

    def __init__(self, cause: BaseException, finished: int = 0) -> None:
        super().__init__(read_message(cause))
        self.cause = cause
        frames = [frame for frame in traceback.extract_tb(read_traceback(cause)) if _is_of_block(frame.filename)]
        self.lines = tuple(_statement(frame) for frame in frames)
        self.numbers = tuple(frame.lineno or 0 for frame in frames)
        self.progress = (finished, *(self.numbers[:_MAX_FRAMES] or (0,)))

    @property
    def rank(self) -> tuple[int, ...]:
        """`progress` as a key for a heap: smaller means more progress."""
        return tuple(-value for value in (*self.progress, *(0,) * _MAX_FRAMES)[: _MAX_FRAMES + 1])

    @property
    def message(self) -> str:
        """The type and message in one line, the same on every machine."""
        return f"{name_type(self.cause)}: {to_line(str(self), 400)}"

    @property
    def kind(self) -> str:
        """The category of the error."""
        return classify_error(self.cause)

    def where(self) -> str:
        """Return the innermost line of the block's file, in parentheses, or ""."""
        return f" (line {self.numbers[-1]}: {self.lines[-1][:120]})" if self.lines else ""


def _is_of_block(file: str) -> bool:
    return file.endswith(f"{MODULE_NAME}.py") or "companion_" in file


def _statement(frame: traceback.FrameSummary) -> str:
    """Return the expression at which a frame stopped, in one line."""
    first, last = frame.lineno or 0, getattr(frame, "end_lineno", None) or frame.lineno or 0
    lines = [
        linecache.getline(frame.filename, number).strip() for number in range(first, min(last, first + _MAX_LINES) + 1)
    ]
    return " ".join(line for line in lines if line)


def seed_all(seed: int = SEED) -> None:
    """Seed every global random generator."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed notes where it was called, for CUDA, reading files
    random.seed(seed)
    np.random.seed(seed)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the warnings of foreign code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def limit_steps(most: int) -> Iterator[None]:
    """Raise TooManyStepsError once more lines of the block's files have run: the same on every machine."""
    left = most

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if event == "call":
            return count if _is_of_block(frame.f_code.co_filename) else None
        left -= event == "line"
        if left < 0:
            raise TooManyStepsError(f"more than {most:,} lines ran")
        return count

    previous = sys.gettrace()
    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(previous)


def attempt(action: Callable[[], Any], seconds: float = 10.0, *, steps: int | None = None) -> Any:
    """Run an action of foreign code and return its result.

    Args:
        seconds: CPU time after which it is stopped, at the next line of Python.
        steps: lines of the block after which it is stopped.
    Raises: AttemptError wrapping any exception, except MemoryError, PermissionError and KeyboardInterrupt.
    """
    finished = 0

    def count(*_: object) -> None:
        nonlocal finished
        finished += 1

    hook = torch.nn.modules.module.register_module_forward_hook(count)
    previous_handler = signal.signal(signal.SIGVTALRM, _stop)
    # CPU time, so that the result does not depend on the load of the machine.
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        with quiet(), limit_steps(steps) if steps else nullcontext():
            return action()
    except (MemoryError, PermissionError, KeyboardInterrupt):
        # The sandbox or the user raised these, not the action.
        raise
    except BaseException as error:  # noqa: BLE001 - foreign code raises anything, even SystemExit
        raise AttemptError(error, finished) from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous_handler)
        hook.remove()


def _stop(*_: object) -> None:
    raise TimeoutError("ran too long")


@dataclass(slots=True)
class TimeBudget:
    """The remaining attempts and CPU seconds; only large models use up the seconds.

    Args: construction: CPU seconds of one construction with guessed arguments.
    """

    constructions: int = 150
    forwards: int = 320
    seconds: float = 2.5
    construction: float = 3.0
    started: float = field(default_factory=time.process_time)

    def late(self) -> bool:
        """Return whether the CPU seconds are used up."""
        return time.process_time() - self.started > self.seconds


@dataclass(slots=True)
class BlockNamespace:
    """The names of the block's file, its companions and the usual modules, for evaluating expressions."""

    names: Mapping[str, Any]
    cache: dict[str, Any] = field(default_factory=dict)

    def value(self, expression: str) -> Any:
        """Evaluate an expression; each call creates a new value."""
        code = self.cache.get(expression)
        if code is None:
            code = self.cache[expression] = compile(expression, "<argument>", "eval")
        return eval(code, {"__builtins__": __builtins__, **self.names})


def count_elements(module: torch.nn.Module) -> int:
    """Return the number of elements of all parameters and buffers."""
    return sum(p.numel() for p in _tensors(module))


def _tensors(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    for tensor in (*torch.nn.Module.parameters(module), *torch.nn.Module.buffers(module)):  # classes override both
        if has_shape(tensor):
            yield tensor


@contextmanager
def counting_work() -> Iterator[list[int]]:
    """Count the multiply-adds of the modules that run in this context, as far as their types show them.

    Yields: a list whose only item is the number.
    """
    total = [0]

    def count(module: torch.nn.Module, _inputs: object, output: object) -> None:
        parameters = vars(module).get("_parameters", {})  # of a script module not a dict
        weight = parameters["weight"] if "weight" in parameters else None  # noqa: SIM401
        tensors = flatten(output, compute=False)
        if weight is not None and has_shape(weight) and weight.dim() > 1 and tensors:
            total[0] += tensors[0].numel() // max(weight.shape[0], 1) * weight.numel()
        else:
            total[0] += _ELEMENT * sum(tensor.numel() for tensor in tensors)

    hook = torch.nn.modules.module.register_module_forward_hook(count)
    try:
        yield total
    finally:
        hook.remove()


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether all elements are finite."""
    # A finite sum shows it without a copy of the tensor; the sum of finite numbers may overflow.
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def fill_unset(module: torch.nn.Module) -> list[str]:
    """Fill parameters and buffers that were left uninitialized (NaN under `unset_is_nan`) with small random values.

    Returns: their names.
    """
    # A separate generator, because filling must not advance the global one.
    generator = torch.Generator().manual_seed(SEED)
    filled = []
    with torch.no_grad():
        for name, tensor in (*torch.nn.Module.named_parameters(module), *torch.nn.Module.named_buffers(module)):
            if not has_shape(tensor):
                continue
            is_real = tensor.is_floating_point()
            if tensor.is_meta or not (is_real or tensor.is_complex()) or is_finite(tensor):
                continue
            dtype = torch.float32 if is_real else tensor.dtype
            fresh = torch.randn(tensor.shape, generator=generator, dtype=dtype) * UNSET_SCALE
            unset = torch.isnan(tensor)
            if unset.any():
                filled.append(name)
            tensor.copy_(torch.where(unset, fresh.to(tensor.dtype), tensor))
    return filled


def draw_state(module: torch.nn.Module, seed: int = SEED) -> None:
    """Give parameters and real buffers random values, so that nothing holds only because of an initial zero or one.

    Signs stay, because variances and masks need theirs; what is zero gets small values of both signs, unless it is a
    part of a buffer, such as a mask or a fixed filter. Buffers in no state dict stay: no checkpoint changes them.
    """
    generator = torch.Generator().manual_seed(seed)
    parameters = {id(parameter) for parameter in torch.nn.Module.parameters(module)}
    kept = {id(part._buffers[name]) for part in module.modules() for name in part._non_persistent_buffers_set}
    with torch.no_grad():
        for tensor in _tensors(module):
            if tensor.is_meta or not tensor.is_floating_point() or tensor.layout is not torch.strided:
                continue
            if id(tensor) in kept:
                continue
            factors = 0.5 + torch.rand(tensor.shape, generator=generator)
            small = 0.25 * torch.randn(tensor.shape, generator=generator)
            fills = id(tensor) in parameters or not tensor.any()
            fresh = torch.where(tensor == 0, small, tensor * factors) if fills else tensor * factors
            tensor.copy_(fresh.to(tensor.dtype))


@contextmanager
def unset_is_nan() -> Iterator[None]:
    """Make `torch.empty` return NaN, so that uninitialized memory is never mistaken for a value."""
    # torch.use_deterministic_algorithms would import the compiler, which costs seconds in each process.
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(False)


def differentiate(module: torch.nn.Module, output: object, inputs: object) -> tuple[int, int]:
    """Run backward from a random weighting of the outputs.

    Returns: the number of parameters (of inputs, if there are none) that got a gradient, and that require one.
    Raises: ValueError if nothing is differentiable, a gradient is not finite, or there is none.
    """
    outputs = [t for t in flatten(output) if t.requires_grad and t.numel()]
    if not outputs:
        raise ValueError("no output depends on a parameter or an input in a differentiable way")
    parts = []
    for tensor in outputs:
        weight = torch.randn(tensor.shape, dtype=tensor.real.dtype if tensor.is_complex() else tensor.dtype)
        parts.append(((tensor.real if tensor.is_complex() else tensor) * weight).sum())
    torch.autograd.backward(torch.stack([part.float() for part in parts]).sum())
    wanted: list[torch.Tensor] = [p for p in torch.nn.Module.parameters(module) if p.requires_grad]
    if not wanted:
        wanted = [t for t in flatten(inputs) if t.requires_grad]
    reached = [p.grad for p in wanted if p.grad is not None]
    if not reached:
        raise ValueError(f"no gradient reaches any of its {len(wanted)} parameters")
    # `isfinite` does not support sparse gradients, only their values.
    if not all(is_finite(g.coalesce().values() if g.is_sparse else g) for g in reached):
        raise ValueError("a gradient is not finite")
    return len(reached), len(wanted)
