"""Inside the sandbox: a LEMUR network is built and run as LEMUR's trainer does it, and what fails is told in one line.

The trainer executes the file, constructs `Net(in_shape, out_shape, prm, device)`, moves it to the device, calls
`train_setup(prm)`, once an epoch `learn(train_data)`, and evaluates `net(inputs)` in eval mode without gradients.

Source: `ab/nn/util/Train.py` of https://github.com/ABrain-One/nn-dataset, 2.1.0
"""

import random
import sys
import traceback
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

from lemur_core.sandbox.server.foreign import NETWORK, causes_of, load, message_of, one_line

_MESSAGE_CHARACTERS = 240
_LINE_CHARACTERS = 100


class NetError(Exception):
    """What a network does not do.

    `category` is the step that failed, or why it did; `what` the type and message of the error. Of a foreign exception
    also: `step`; `tried`, what was done with the network then; `line` and `source`, the last line of the network's own
    file that was being executed; `missing`, the module that could not be found, if that was why.
    """

    def __init__(self, category: str, what: str) -> None:
        super().__init__(what)
        self.category, self.what = category, what
        self.step, self.tried, self.line, self.source, self.missing = "", "", 0, "", ""

    @classmethod
    def of(cls, error: BaseException, category: str, tried: str) -> "NetError":
        """What a foreign exception tells."""
        told = one_line(message_of(error), _MESSAGE_CHARACTERS)
        made = cls(category, f"{type(error).__name__}: {told}")
        made.step, made.tried = category, tried
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(_FILE)]
        if frames:
            made.line = frames[-1].lineno or 0
            made.source = one_line(frames[-1].line or "", _LINE_CHARACTERS)
        made.missing = _missing_module(error)
        if made.missing:
            made.category = "missing_dependency"
        elif isinstance(error, PermissionError):
            made.category = "denied"
        return made

    @property
    def detail(self) -> str:
        """All of it in one line, the same on every machine."""
        where = [f"line {self.line}: {self.source}"] if self.line else []
        context = "; ".join([*where, *([self.tried] if self.tried else [])])
        return f"{self.what} ({context})" if context else self.what

    def answer(self) -> dict[str, Any]:
        """It as the answer of a job."""
        return {"runs": False, "category": self.category, "error": self.detail, "missing": self.missing}


_FILE = f"{NETWORK}.py"


def _missing_module(error: BaseException) -> str:
    """The name of the module whose absence led to this error, or nothing."""
    return next((cause.name for cause in causes_of(error) if isinstance(cause, ModuleNotFoundError) and cause.name), "")


@contextmanager
def step(category: str, tried: str = "") -> Iterator[None]:
    """What foreign code raises in here, as a NetError of that category; the sandbox tells of a lack of memory."""
    try:
        yield
    except (NetError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if "can't allocate memory" in message_of(error):  # PyTorch's allocator
            raise
        raise NetError.of(error, category, tried) from error


def seed_all(seed: int) -> None:
    """Set every generator that a network may draw from, and keep its warnings to itself."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    warnings.simplefilter("ignore")


def execute(code: str) -> ModuleType:
    """A network's file as a module. Raises: NetError."""
    with step("import_failed"):
        return load(code, NETWORK)


def construct(
    module: ModuleType,
    in_shape: Sequence[Any],
    out_shape: Sequence[Any],
    prm: dict[str, Any],
    device: torch.device = torch.device("cpu"),  # noqa: B008 (immutable)
) -> Any:
    """The network of a module, on this device. Raises: NetError."""
    build = getattr(module, "Net", None)
    if not callable(build):
        raise NetError("no_net", "the file defines no class Net")
    tried = f"Net(in_shape={in_shape}, out_shape={out_shape}, prm with {', '.join(sorted(prm)) or 'nothing'})"
    with step("construct_failed", tried):
        net = build(in_shape, out_shape, prm, device)
        if not isinstance(net, torch.nn.Module):
            raise NetError("no_net", f"Net gives {type(net).__name__}, which is no torch.nn.Module")
        return net.to(device)


def run_network(payload: dict[str, Any]) -> dict[str, Any]:
    """Construct a network and run it forward once, in eval mode.

    Args:
        payload: `code`; `prm`; `seed`, 0 where it is left out; `case`: `in_shape` and `out_shape` as LEMUR gives them,
            `dtype` and `values`, the range, of the inputs, `output`, the shape that must come out, or null, and
            `words`, the size of the vocabulary of LEMUR's caption loader, or 0.

    Returns: `{"runs": true}`, or `{"runs": false, "category": …, "error": …, "missing": …}`: the error in one line, and
        the module that could not be found, if that was why.
    Raises: MemoryError and the like, which the sandbox tells.
    """
    seed_all(int(payload.get("seed", 0)))
    stub_weights()
    case = payload["case"]
    hand_over_vocabulary(case["words"])
    try:
        module = execute(payload["code"])
        net = construct(module, tuples(case["in_shape"]), tuples(case["out_shape"]), payload["prm"]).eval()
        inputs = inputs_of(case)
        with step("forward_failed", f"input {_told(inputs)}"), torch.no_grad():
            output = net(inputs)
        _check(output, case["output"])
    except NetError as error:
        return error.answer()
    return {"runs": True}


def inputs_of(case: dict[str, Any]) -> Tensor:
    """What a network of this case is given, at random."""
    low, high = (float(bound) for bound in case["values"])
    shape = [int(size) for size in case["in_shape"]]
    if case["dtype"] == "int64":
        return torch.randint(int(low), int(high), shape)
    pixels = torch.rand(shape) * (high - low) + low
    return pixels.to(torch.complex64) if case["dtype"] == "complex64" else pixels


def _check(output: object, expected: list[int] | None) -> None:
    """Classification alone fixes the output: a row of class scores for each sample."""
    if expected is None:
        return
    if not isinstance(output, Tensor):
        raise NetError("wrong_output", f"forward gives {type(output).__name__}, not a tensor of {sizes(expected)}")
    if list(output.shape) != expected:
        raise NetError("wrong_output", f"forward gives {_told(output)}, not {sizes(expected)}: samples x classes")
    if not bool(torch.isfinite(output).all()):
        raise NetError("not_finite", f"forward gives {_told(output)} with infinite values or NaN")


def hand_over_vocabulary(words: int) -> None:
    """Put a vocabulary where LEMUR's caption loader puts it, in a global of its own module that networks import."""
    if not words:
        return
    names = ["<PAD>", "<SOS>", "<EOS>", "<UNK>", *(f"word{number}" for number in range(words - 4))]
    module = types.ModuleType("ab.nn.loader.coco_.Caption")
    numbers = {name: number for number, name in enumerate(names)}
    module.__dict__["GLOBAL_CAPTION_VOCAB"] = {"word2idx": numbers, "idx2word": dict(enumerate(names))}
    sys.modules[module.__name__] = module


def tuples(value: object) -> Any:
    """Lists, which JSON made of tuples, as tuples again."""
    return tuple(tuples(item) for item in value) if isinstance(value, list) else value


def _told(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {sizes(tensor.shape)}"


def sizes(shape: Sequence[int], nothing: str = "scalar") -> str:
    """A shape to print."""
    return "x".join(str(size) for size in shape) or nothing


def stub_weights() -> None:
    """Make the loading of trained weights do nothing: they cannot be had in the sandbox, and are not what is checked.

    Every way in which torch and torchvision fetch a state gives an empty one, and a module that is given an empty state
    keeps the values that it was made with. The architecture stays the one that goes with the weights, which it would
    not if `weights=` were dropped: builders derive the number of classes and auxiliary heads from them.

    For the sandbox alone: it changes torch for the rest of the process.
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
