"""Counts what a block does, in plain torch. Its text runs in the sandbox, after the file of the block; see `facts`."""

import functools
import math
import operator
import random
import types
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

#: Functions that are one operation of a graph, and several of the dispatcher.
WHOLE = {
    "scaled_dot_product_attention",
    "instance_norm",
    "batch_norm",
    "group_norm",
    "layer_norm",
    "rms_norm",
    "linear",
}
WHOLE |= {f"{name}{end}" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu") for end in ("", "_cell")}
#: Names that printed calls use.
NAMES: dict[str, Any] = {
    "torch": torch,
    "nn": nn,
    "F": nn.functional,
    "np": numpy,
    "numpy": numpy,
    "math": math,
    "types": types,
}
NAMES |= {"functools": functools, "partial": functools.partial, "OrderedDict": OrderedDict}
NAMES |= {"attrgetter": operator.attrgetter}

Call = Callable[[], Any]


def list_tensors(value: Any, depth: int = 8) -> list[Tensor]:
    """Return the tensors in containers and attributes, in order."""
    if isinstance(value, Tensor):
        return [value]
    if depth == 0 or isinstance(value, str | bytes | nn.Module | type):
        return []
    if isinstance(value, dict):
        items = list(value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        items = list(value)
    else:
        items = list(getattr(value, "__dict__", {}).values())
    return [tensor for item in items for tensor in list_tensors(item, depth - 1)]


def name_shape(tensor: Tensor) -> str:
    """Return a shape as `2x3`."""
    return "x".join(map(str, tensor.shape)) or "scalar"


class Values:
    """The operations that gave each tensor its value; an operation on the same values gives the same ones."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {}  # the number of its value, by the identity of a tensor
        self.kept: list[Tensor] = []
        self.known: dict[Any, int] = {}
        self.made: list[tuple[str, Any, tuple[int, ...]]] = []  # operation, which one of its name, the values it reads
        self.inside = 0

    def read(self, tensor: Tensor) -> int:
        """Return the value of a tensor."""
        if id(tensor) not in self.of:
            self.give(tensor, "", len(self.made), 0, ())
        return self.of[id(tensor)]

    def give(self, tensor: Tensor, name: str, which: Any, output: int, reads: tuple[int, ...]) -> None:
        """Note the operation of a tensor."""
        key = (name, which, output)
        if key not in self.known:
            self.known[key] = len(self.made)
            self.made.append((name, which, reads))
        self.of[id(tensor)] = self.known[key]
        self.kept.append(tensor)

    def note(self, name: str, arguments: Sequence[Any], result: Any, written: Sequence[Tensor] = ()) -> None:
        """Note an operation with its results, or the tensors that it writes to."""
        reads = tuple(self.read(tensor) for tensor in list_tensors(arguments))
        numbers = repr([None if isinstance(value, Tensor) else list_numbers(value) for value in arguments])
        which: Any = (reads, numbers, len(self.made) if "generator" in name or name in DRAWS else 0)
        for output, tensor in enumerate(list_tensors(result)):
            self.give(tensor, name, which, output, reads)
        for tensor in written:
            memory = tensor.untyped_storage()._cdata
            seen = {id(other): other for other in self.kept if other.untyped_storage()._cdata == memory}
            which = (which, len(self.made))
            for number, other in enumerate(seen.values()):  # views of the same memory
                before = () if name.strip("_") in FILLS and other is tensor else (self.of[id(other)],)
                self.give(other, name, which, number, (*reads, *before))

    def count(self, tensors: Sequence[Tensor]) -> dict[str, int]:
        """Return how many operations of each name these tensors depend on."""
        waiting, seen = [self.read(tensor) for tensor in tensors], set[int]()
        operations = set[tuple[str, Any]]()
        while waiting:
            value = waiting.pop()
            if value not in seen:
                seen.add(value)
                name, which, reads = self.made[value]
                operations.add((name, which))
                waiting += reads
        return dict(Counter(name for name, _ in operations if name))


DRAWS = {"rand", "randn", "randint", "bernoulli", "normal", "uniform", "rand_like", "randn_like", "native_dropout"}
FILLS = {"zero", "fill", "copy", "normal", "uniform"}


def list_numbers(value: Any) -> Any:
    """Return the numbers of nested arguments."""
    if isinstance(value, list | tuple):
        return [list_numbers(item) for item in value]
    return "tensor" if isinstance(value, Tensor) else value


class Functions(TorchFunctionMode):
    """Notes the functions that count as one operation."""

    def __init__(self, values: Values) -> None:
        super().__init__()
        self.values = values

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one function."""
        name = getattr(function, "__name__", "")
        if name not in WHOLE or self.values.inside:
            return function(*args, **(kwargs or {}))
        self.values.inside += 1
        try:
            result = function(*args, **(kwargs or {}))
        finally:
            self.values.inside -= 1
        self.values.note(name, [*args, *(kwargs or {}).values()], result)
        return result


class Operations(TorchDispatchMode):
    """Notes the operations outside of these functions."""

    def __init__(self, values: Values) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values = values

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation."""
        result = function(*args, **(kwargs or {}))
        if not self.values.inside:
            name = function._schema.name.partition("::")[2]
            pairs = zip(function._schema.arguments, args, strict=False)
            targets = [value for argument, value in pairs if argument.alias_info and argument.alias_info.is_write]
            written = [value for value in targets if isinstance(value, Tensor)]
            self.values.note(name, [*args, *(kwargs or {}).values()], () if written else result, written)
        return result


def read_states() -> dict[str, str]:
    """Return the states of the generators."""
    return {
        "numpy.random": repr(numpy.random.get_state()[1:]) + repr(numpy.random.get_state()[1].tobytes()),  # type: ignore[index]
        "random": repr(random.getstate()),
        "torch": repr(torch.get_rng_state().tolist()),
    }


def seed() -> None:
    """Seed all generators."""
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)


def run(module: nn.Module, call: Call, train: bool) -> tuple[Any, list[Tensor], list[str]]:
    """Return the output, the first input, and the generators whose states forward changed."""
    module.train(train)
    seen: list[Tensor] = []
    before: dict[str, str] = {}

    def look(_module: Any, args: Any, kwargs: Any) -> None:
        if not before:
            seen.extend(list_tensors([*args, *kwargs.values()])[:1])
            seed()
            before.update(read_states())

    hook = module.register_forward_pre_hook(look, with_kwargs=True)
    seed()
    try:
        with torch.no_grad():
            output = call()
    finally:
        hook.remove()
    after = read_states()
    return output, seen, [name for name in after if after[name] != before.get(name)]


def resize(value: Any, sizes: Any) -> Any:
    """Return a value with its tensors in other shapes, filled by repeating their elements."""
    if isinstance(value, Tensor):
        text = next(sizes, None)
        shape = tuple(value.shape) if text is None else () if text == "scalar" else tuple(map(int, text.split("x")))
        if shape == tuple(value.shape) or not value.numel():
            return value
        return value.reshape(-1)[torch.arange(math.prod(shape)) % value.numel()].reshape(shape)
    if isinstance(value, dict):
        return type(value)((key, resize(item, sizes)) for key, item in value.items())
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(resize(item, sizes) for item in value)
    return value


def list_shapes(module: nn.Module, call: Call, train: bool, sizes: Sequence[str] = ()) -> list[str] | None:
    """Return the shapes of the output; None if the call fails."""
    left = iter(sizes)
    hook = module.register_forward_pre_hook(lambda _, a, k: (resize(a, left), resize(k, left)), with_kwargs=True)
    try:
        return list(map(name_shape, list_tensors(run(module, call, train)[0])))
    except Exception:  # noqa: BLE001 (foreign code raises anything; a mode that fails is stated as null)
        return None
    finally:
        hook.remove()


def equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Return whether tensors are equal; NaN equals NaN."""
    if len(one) != len(other) or any(a.shape != b.shape for a, b in zip(one, other, strict=True)):
        return False
    return all(bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in zip(one, other, strict=True))


def shuffle(module: nn.Module) -> None:
    """Give parameters and statistics values that no initialization gives, such as zero for a whole branch."""
    generator = torch.Generator().manual_seed(5)
    for parameter in module.parameters():
        if parameter.is_floating_point():
            noise = torch.rand(parameter.shape, generator=generator) + 0.5
            parameter.data.copy_(torch.where(parameter == 0, noise - 1, parameter * noise))
    for name, tensor in module.named_buffers():
        if tensor.is_floating_point() and name.endswith(("running_mean", "running_var")):
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)


def count_again(
    block: nn.Module, call: Call, kind: Any, names: dict[str, Any], calls: Sequence[Any], sizes: Sequence[Any]
) -> dict[str, Any]:
    """Return all counts.

    Args:
        block, call: as printed.
        kind: its class; with `calls`, the texts of constructor and forward, in the names of its file.
        sizes: the shapes of the inputs in each case.
    """
    torch.backends.mha.set_fastpath_enabled(False)
    names = NAMES | names
    answer: dict[str, Any] = {
        "cases": [list_shapes(block, call, False, some) for some in sizes],
        "calls": [],
        "elements": sum(parameter.numel() for parameter in block.parameters()),
        "parameters": [[name, name_shape(p)] for name, p in block.named_parameters() if p.requires_grad],
    }
    for init, forward in calls:
        made = eval(f"made({init})", {**names, "made": kind})

        def known(made: Any = made, forward: str = forward) -> Any:
            return eval(f"made({forward})", {**names, "made": made})

        answer["calls"].append([list_shapes(made, known, train) for train in (False, True)])
    values = Values()
    block.eval()
    seed()
    for leaf in (*block.parameters(), *block.buffers()):
        values.read(leaf)
    with torch.no_grad(), Operations(values), Functions(values):
        output = call()
    written = [tensor for tensor in block.buffers() if values.made[values.read(tensor)][0]]
    answer["operations"] = values.count([*list_tensors(output), *written])
    shuffle(block)
    output, first, drawn = run(block, call, False)
    evaluated, answer["draws"] = list_tensors(output), {"eval": drawn}
    answer["identity"] = bool(first) and equal(evaluated[:1], first)
    evaluated = [tensor.clone() for tensor in evaluated]
    try:
        output, _, answer["draws"]["train"] = run(block, call, True)
        answer["differs"] = not equal(evaluated, list_tensors(output))
    except Exception:  # noqa: BLE001 (foreign code raises anything)
        answer["differs"] = None
    return answer
