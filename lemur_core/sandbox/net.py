"""Inside the sandbox: build and run a LEMUR network as LEMUR's trainer does, and report any failure in one line.

The trainer executes the file, constructs `Net(in_shape, out_shape, prm, device)`, moves it to the device, calls
`train_setup(prm)`, then `learn(train_data)` once per epoch, and evaluates `net(inputs)` in eval mode without gradients.

Source: `ab/nn/util/Train.py` of https://github.com/ABrain-One/nn-dataset, 2.1.0
"""

import ctypes
import gc
import inspect
import linecache
import random
import re
import sys
import types
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.utils.model_zoo
import torchvision
from torch import Tensor
from torch.nn.modules.module import _IncompatibleKeys

from lemur_core.files import Json
from lemur_core.sandbox.loader import NETWORK, load
from lemur_core.sandbox.server.foreign import (
    is_kind,
    list_frames,
    name_type,
    one_line,
    read_message,
    read_missing,
)

_MESSAGE_CHARACTERS = 240
_LINE_CHARACTERS = 100


class NetError(Exception):
    """A failure of a network.

    `category` is the step that failed, or the reason; `what` the type and message of the error. For a foreign exception
    also: `step`; `tried`, the call in progress; `line` and `source`, the last executed line of the network's
    own file; `traceback` as Python prints it from there on; `missing`, the module that could not be imported, if that
    was the reason.
    """

    def __init__(self, category: str, what: str) -> None:
        super().__init__(what)
        self.category, self.what = category, what
        self.step, self.tried, self.line, self.source, self.missing, self.traceback = "", "", 0, "", "", ""

    @classmethod
    def from_exception(cls, error: BaseException, category: str, tried: str) -> "NetError":
        """Return a NetError with the facts of a foreign exception."""
        message = one_line(read_message(error), _MESSAGE_CHARACTERS)
        failure = cls(category, f"{name_type(error)}: {message}")
        failure.step, failure.tried = category, tried
        lines = [(file, line) for file, line, _ in list_frames(error) if file.endswith(_FILE)]
        if lines:
            failure.line = lines[-1][1]
            failure.source = one_line(linecache.getline(*lines[-1]), _LINE_CHARACTERS)
            failure.traceback = _format_traceback(error)
        failure.missing = read_missing(error)
        if failure.missing:
            failure.category = "missing_dependency"
        elif is_kind(error, PermissionError):
            failure.category = "denied"
        return failure

    @property
    def detail(self) -> str:
        """All facts in one line, the same on every machine."""
        where = [f"line {self.line}: {self.source}"] if self.line else []
        context = "; ".join([*where, *([self.tried] if self.tried else [])])
        return f"{self.what} ({context})" if context else self.what

    def answer(self) -> Json:
        """Return the failure as the answer of a job."""
        facts = {"category": self.category, "error": self.detail, "missing": self.missing}
        return {"runs": False, **facts, "traceback": self.traceback}


_FILE = f"{NETWORK}.py"


_PACKAGE = re.compile(r"(?:^|/)((?:torch|torchvision|numpy)/.+)$")
#: By these functions torch runs a module, and a measurement sees a call.
_CALLING = frozenset({"_wrapped_call_impl", "_call_impl", "__torch_function__", "handle_torch_function"})


def _format_traceback(error: BaseException) -> str:
    """Return the traceback as Python prints it, from the first line of the network's file on.

    What runs modules and watches calls is left out, and paths begin at the package, so that every machine gives
    the same text.
    """
    frames = list_frames(error)
    first = next(index for index, (file, _, _) in enumerate(frames) if file.endswith(_FILE))
    lines = ["Traceback (most recent call last):"]
    for file, number, function in frames[first:]:
        text = linecache.getline(file, number).strip()
        if function in _CALLING or text.startswith("return handle_torch_function("):
            continue
        package = _PACKAGE.search(file)
        path = package[1] if package else file.rpartition("/")[2]
        lines.append(f'  File "{path}", line {number}, in {function}')
        lines += [f"    {text}"] if text else []
    message = one_line(read_message(error), _MESSAGE_CHARACTERS)
    return "\n".join([*lines, f"{name_type(error)}: {message}" if message else name_type(error)])


@contextmanager
def step(category: str, tried: str = "") -> Iterator[None]:
    """Convert exceptions of foreign code in the block to a NetError.

    Args:
        category: the category of the NetError, unless the exception has a more specific one.
        tried: the call in progress, for the message.
    Returns: a context manager.
    Raises: NetError; MemoryError, or PyTorch's error for a failed allocation, as they are: the sandbox itself reports a
        lack of memory.
    """
    try:
        yield
    except (NetError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if "can't allocate memory" in read_message(error):  # PyTorch's allocator
            raise
        raise NetError.from_exception(error, category, tried) from error


def seed_all(seed: int) -> None:
    """Seed every generator that a network may use, and silence its warnings.

    Args: seed: for Python, NumPy and PyTorch alike.
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed notes where it was called, for CUDA, reading files
    warnings.simplefilter("ignore")


def keep_memory() -> None:
    """Have this process keep the memory that it frees: a third of the time would go into getting it again.

    Its objects, too: a graph is many and holds no cycles, and looking for cycles takes two thirds of the time.
    """
    gc.set_threshold(100_000, 10, 10)
    libc = ctypes.CDLL(None)
    libc.mallopt(-4, 0)  # M_MMAP_MAX: no pages of its own for a large block
    libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def execute(code: str) -> ModuleType:
    """Execute a network's file.

    Args: code: its whole source.
    Returns: the module, which is also in `sys.modules`.
    Raises: NetError of category `import_failed`, or of a more specific one.
    """
    with step("import_failed"):
        return load(code, NETWORK)


def construct(
    module: ModuleType,
    in_shape: Sequence[Any],
    out_shape: Sequence[Any],
    prm: Json,
    device: torch.device = torch.device("cpu"),  # noqa: B008 (immutable)
    *,
    contract: bool = True,
) -> Any:
    """Construct the network of a module, on this device.

    Args:
        module: from `execute`.
        in_shape, out_shape, prm: as LEMUR passes them to `Net`; `prm` maps hyperparameters to values.
        device: passed to `Net`, and where the network is moved afterwards.
        contract: without it, a `Net` that takes fewer of these arguments gets those that it names.
    Returns: an `nn.Module`.
    Raises: NetError of category `no_net` or `construct_failed`, or of a more specific one.
    """
    build = getattr(module, "Net", None)
    if not callable(build):
        raise NetError("no_net", "the file defines no class Net")
    tried = f"Net(in_shape={in_shape}, out_shape={out_shape}, prm with {', '.join(sorted(prm)) or 'nothing'})"
    given = {"in_shape": in_shape, "out_shape": out_shape, "prm": prm, "device": device}
    with step("construct_failed", tried):
        signature = _read_signature(build)
        if signature is None or _takes(signature, *given.values()):
            net = build(*given.values())
        else:
            named = {name: value for name, value in given.items() if name in signature.parameters}
            if contract or not _takes(signature, **named):
                what = one_line(f"Net{signature} is not LEMUR's contract: Net({', '.join(given)})", _MESSAGE_CHARACTERS)
                raise NetError("construct_failed", what)
            net = build(**named)
        if not isinstance(net, torch.nn.Module):
            raise NetError("no_net", f"Net gives {type(net).__name__}, which is not a torch.nn.Module")
        return net.to(device)


def _read_signature(build: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(build)
    except (TypeError, ValueError):
        return None


def _takes(signature: inspect.Signature, *args: object, **kwargs: object) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def run_network(payload: Json) -> Json:
    """Construct a network and run it forward once, in eval mode.

    Args:
        payload: `code`; `prm`; `seed`, default 0; `case`: `in_shape` and `out_shape` as LEMUR passes them,
            `dtype` and `values`, the range, of the inputs, `output`, the expected output shape, or null, and
            `words`, the size of the vocabulary of LEMUR's caption loader, or 0.

    Returns: `{"runs": true}`, or `{"runs": false, "category": …, "error": …, "missing": …}`: the error in one line,
        and the missing module, if that was the reason.
    Raises: MemoryError and the like, which the sandbox reports.
    """
    seed_all(int(payload.get("seed", 0)))
    stub_weights()
    case = payload["case"]
    install_vocabulary(case["words"])
    try:
        module = execute(payload["code"])
        net = construct(module, tuples(case["in_shape"]), tuples(case["out_shape"]), payload["prm"]).eval()
        inputs = make_inputs(case)
        with step("forward_failed", f"input {_describe_tensor(inputs)}"), torch.no_grad():
            output = net(inputs)
        check_output(output, case["output"])
    except NetError as error:
        return error.answer()
    return {"runs": True}


def make_inputs(case: Json) -> Tensor:
    """Return random inputs for a network of this case.

    Args: case: `in_shape`, `dtype`, and `values`: the bounds, of which the upper one does not occur.
    Returns: a tensor of `in_shape`, in float32 unless the dtype is `int64` or `complex64`.
    """
    low, high = (float(bound) for bound in case["values"])
    shape = [int(size) for size in case["in_shape"]]
    if case["dtype"] == "int64":
        return torch.randint(int(low), int(high), shape)
    pixels = torch.rand(shape) * (high - low) + low
    return pixels.to(torch.complex64) if case["dtype"] == "complex64" else pixels


def check_output(output: object, expected: list[int] | None) -> None:
    """Check the output. Only classification fixes its shape: a row of class scores per sample."""
    if expected is None:
        return
    if not isinstance(output, Tensor):
        raise NetError("wrong_output", f"forward gives {type(output).__name__}, not a tensor of {sizes(expected)}")
    if list(output.shape) != expected:
        raise NetError(
            "wrong_output", f"forward gives {_describe_tensor(output)}, not {sizes(expected)}: samples x classes"
        )
    if not bool(torch.isfinite(output).all()):
        raise NetError("not_finite", f"forward gives {_describe_tensor(output)} with infinite values or NaN")


def install_vocabulary(words: int) -> None:
    """Set the vocabulary where networks import it: a global in the module of LEMUR's caption loader.

    Args: words: its size, with the four special words; 0 for none.
    """
    if not words:
        return
    names = ["<PAD>", "<SOS>", "<EOS>", "<UNK>", *(f"word{number}" for number in range(words - 4))]
    module = types.ModuleType("ab.nn.loader.coco_.Caption")
    numbers = {name: number for number, name in enumerate(names)}
    module.__dict__["GLOBAL_CAPTION_VOCAB"] = {"word2idx": numbers, "idx2word": dict(enumerate(names))}
    sys.modules[module.__name__] = module


def tuples(value: object) -> Any:
    """Convert lists back to tuples, which JSON does not have.

    Args: value: decoded JSON.
    Returns: the value with tuples; lists inside of dicts remain lists.
    """
    return tuple(tuples(item) for item in value) if isinstance(value, list) else value


def _describe_tensor(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {sizes(tensor.shape)}"


def sizes(shape: Sequence[int], nothing: str = "scalar") -> str:
    """Format a shape: `3x32x32`.

    Args: nothing: the text for a shape without dimensions.
    Returns: the sizes, joined by `x`.
    """
    return "x".join(str(size) for size in shape) or nothing


def stub_weights() -> None:
    """Disable the loading of trained weights: they are unavailable in the sandbox, and not the object of the check.

    Every function by which torch and torchvision download a state returns an empty one, and loading an empty state
    keeps the initial values. The architecture is still the one that matches the weights; dropping `weights=` would
    change it, since builders derive the number of classes and auxiliary heads from them.

    Call it only in the sandbox: it changes torch for the rest of the process.
    """
    torch.hub.load_state_dict_from_url = _no_state
    torch.utils.model_zoo.load_url = _no_state  # type: ignore[attr-defined]
    torchvision._internally_replaced_utils.load_state_dict_from_url = _no_state
    torchvision.models._api.load_state_dict_from_url = _no_state
    torchvision.models._api.WeightsEnum.get_state_dict = _no_state
    load_state_dict = torch.nn.Module.load_state_dict

    def load_what_there_is(
        self: torch.nn.Module, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> _IncompatibleKeys:
        return load_state_dict(self, state_dict, *args, **kwargs) if state_dict else _IncompatibleKeys([], [])

    torch.nn.Module.load_state_dict = load_what_there_is  # type: ignore[method-assign]


def _no_state(*_args: object, **_kwargs: object) -> "OrderedDict[str, Tensor]":
    return OrderedDict()
