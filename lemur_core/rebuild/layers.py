"""Group parameters into layers: the `nn` layers that a graph's operations and their parameters form."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lemur_core.graphs.graph import Argument, Node
from lemur_core.graphs.modes import EVAL, TRAIN, ModeModule, ModeStep, Value
from lemur_core.graphs.symbolic import Size
from lemur_core.rebuild.calls import collapse_equal, differing

_RECURRENT = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}
_CELLS = {"lstm_cell": "LSTMCell", "gru_cell": "GRUCell", "rnn_tanh_cell": "RNNCell", "rnn_relu_cell": "RNNCell"}
_NORMS = {"batch_norm": "BatchNorm", "instance_norm": "InstanceNorm"}


@dataclass(slots=True)
class Layer:
    """One layer: its constructor, and the original's names of its parameters and buffers by its own names."""

    text: str
    state: dict[str, str]
    inputs: tuple[str, ...] = ("input",)
    counter: str | None = None  # the original's name of the batch counter
    name: str = ""
    frozen: tuple[str, ...] = ()
    steps: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _LayerCall:
    step: ModeStep
    module: ModeModule

    @property
    def node(self) -> Node:
        return self.step.node

    def leaf(self, name: str) -> Node | None:
        """Return the parameter that an argument names, or None."""
        return self.of(self.step.arguments.get(name))

    def of(self, value: Argument) -> Node | None:
        step = self.module.steps[value.index] if isinstance(value, Value) else None
        return step.node if step is not None and step.node.op == "parameter" else None


def _weight_and_bias(call: _LayerCall) -> dict[str, str] | None:
    """Return weight and bias, or the weight alone; None if they are not parameters, or there is only a bias."""
    weight, bias = (call.leaf(name) for name in ("weight", "bias"))
    present = [isinstance(call.step.arguments.get(name), Value) for name in ("weight", "bias")]
    if weight is None or present != [True, bias is not None]:
        return None
    return {"weight": weight.scope} | ({"bias": bias.scope} if bias else {})


def _write(name: str, *positional: object, **named: object) -> str:
    """Write the call of a constructor, without the arguments that are None."""
    keywords = [f"{key}={value!r}" for key, value in named.items() if value is not None]
    return f"nn.{name}({', '.join([*map(str, positional), *keywords])})"


def _no_bias(state: Mapping[str, str]) -> dict[str, bool]:
    return {} if "bias" in state else {"bias": False}


def _convolution(call: _LayerCall) -> Layer | None:
    state, weight, node = _weight_and_bias(call), call.leaf("weight"), call.node
    if state is None or weight is None:
        return None
    shape, groups, transposed = weight.outputs[0].shape, node.get("groups"), node.get("transposed")
    # The weight is (in, out / groups, ...) if transposed, else (out, in / groups, ...).
    channels = (shape[0], shape[1] * groups) if transposed else (shape[1] * groups, shape[0])
    named = differing(node, stride=1, padding=0, output_padding=0, dilation=1, groups=1) | _no_bias(state)
    name = f"Conv{'Transpose' if transposed else ''}{len(node.get('kernel'))}d"
    return Layer(_write(name, *channels, collapse_equal(node.get("kernel")), **named), state)


def _linear(call: _LayerCall) -> Layer | None:
    state, weight = _weight_and_bias(call), call.leaf("weight")
    if state is None or weight is None or len(weight.outputs[0].shape) != 2:
        return None
    width, inputs = weight.outputs[0].shape
    return Layer(_write("Linear", inputs, width, **_no_bias(state)), state)


def _layer_norm(call: _LayerCall) -> Layer | None:
    state, shape = _weight_and_bias(call), call.node.get("normalized_shape")
    if state is None:
        return None
    size = shape[0] if len(shape) == 1 else shape
    if call.node.op == "rms_norm":
        return Layer(_write("RMSNorm", size, eps=call.node.get("eps")), state)
    return Layer(_write("LayerNorm", size, **differing(call.node, eps=1e-5), **_no_bias(state)), state)


def _group_norm(call: _LayerCall) -> Layer | None:
    state, weight = _weight_and_bias(call), call.leaf("weight")
    if state is None or "bias" not in state or weight is None:
        return None
    named = differing(call.node, eps=1e-5)
    return Layer(_write("GroupNorm", call.node.get("num_groups"), weight.outputs[0].shape[0], **named), state)


def _statistics(call: _LayerCall) -> Layer | None:
    """Return a norm that tracks statistics, or has weight and bias."""
    step, node = call.step, call.node
    flag = "training" if node.op == "batch_norm" else "use_input_stats"
    state = {}
    affine = isinstance(step.arguments.get("weight"), Value)
    if affine:
        state = _weight_and_bias(call) or {}
        if len(state) != 2:
            return None
    elif isinstance(step.arguments.get("bias"), Value):
        return None
    evaluated, trained = step.nodes[EVAL], step.nodes[TRAIN]
    statistics = [_find_statistics(call, name) for name in ("running_mean", "running_var")]
    flags = [None if node is None else bool(node.get(flag)) for node in (evaluated, trained)]
    if all(statistics):
        # The layer uses the statistics of the batch in train mode, and only there.
        if flags not in ([False, True], [False, None]):
            return None
        state |= {name: leaf for name, leaf in zip(("running_mean", "running_var"), statistics, strict=True) if leaf}
    elif any(statistics) or not all(flags) or not affine:
        return None
    kind = node.outputs[0]
    rank = {2: 1, 3: 1, 4: 2, 5: 3}.get(len(kind.shape))
    width = kind.shape[1] if rank else None
    if rank is None or isinstance(width, Size) or (node.op == "instance_norm" and len(kind.shape) == 2):
        return None
    named = differing(node, eps=1e-5)
    if statistics[0] and trained:
        named |= differing(trained, momentum=0.1)
    stated = {"affine": affine, "track_running_stats": bool(statistics[0])}
    usual = node.op == "batch_norm"  # of both flags
    named |= {name: value for name, value in stated.items() if value is not usual}
    mean = state.get("running_mean", "")
    prefix = mean.removesuffix("running_mean")
    counter = f"{prefix}num_batches_tracked" if mean.endswith("running_mean") else None
    return Layer(_write(f"{_NORMS[node.op]}{rank}d", width, **named), state, counter=counter)


def _find_statistics(call: _LayerCall, name: str) -> str | None:
    """Return the buffer of a norm's statistics: the one it reads, or that an earlier call of it reads."""
    value = call.step.arguments.get(name)
    while True:
        if value is not None and not isinstance(value, Value):
            value = getattr(value, "eval", None)
        if not isinstance(value, Value):
            return None
        step = call.module.steps[value.index]
        if step.node.op == "buffer":
            return step.node.scope
        # Output 0 is the result of a norm; the others are its updated statistics.
        if step.node.op != call.node.op or value.output == 0:
            return None
        value = step.arguments.get(name)


def _embedding(call: _LayerCall) -> Layer | None:
    weight = call.leaf("weight")
    if weight is None:
        return None
    # -1 is ATen's number for none.
    named = differing(call.node, padding_idx=-1, scale_grad_by_freq=False, sparse=False)
    return Layer(_write("Embedding", *weight.outputs[0].shape, **named), {"weight": weight.scope}, ("indices",))


def _recurrent(call: _LayerCall) -> Layer | None:
    node, params = call.node, call.step.arguments.get("params")
    if not isinstance(params, tuple) or node.get("batch_sizes") is not None:
        return None
    leaves = [leaf for leaf in map(call.of, params) if leaf is not None]
    if len(leaves) != len(params):
        return None
    biases, both = node.get("has_biases"), node.get("bidirectional")
    # The gates are stacked in one weight: four in an LSTM, three in a GRU.
    hidden = leaves[1].outputs[0].shape[0] // {"lstm": 4, "gru": 3}.get(node.op, 1)
    # weight_hh reads the previous output, which a projection makes narrower than the hidden state.
    projected = leaves[1].outputs[0].shape[1]
    named: dict[str, object] = {"nonlinearity": "relu"} if node.op == "rnn_relu" else {}
    named |= differing(node, num_layers=1) | ({} if biases else {"bias": False})
    named |= differing(node, batch_first=False, dropout=0, bidirectional=False)
    named |= {"proj_size": projected} if projected != hidden else {}
    roles = ["weight_ih", "weight_hh"] + (["bias_ih", "bias_hh"] if biases else [])
    roles += ["weight_hr"] if projected != hidden else []
    ends = [
        f"_l{number}{end}" for number in range(node.get("num_layers")) for end in (("", "_reverse") if both else ("",))
    ]
    names = [f"{role}{end}" for end in ends for role in roles]
    state = {name: leaf.scope for name, leaf in zip(names, leaves, strict=True)}
    return Layer(_write(_RECURRENT[node.op], leaves[0].outputs[0].shape[1], hidden, **named), state, ("input", "hx"))


def _cell(call: _LayerCall) -> Layer | None:
    op = call.node.op
    roles = {"w_ih": "weight_ih", "w_hh": "weight_hh", "b_ih": "bias_ih", "b_hh": "bias_hh"}
    leaves = {mine: call.leaf(theirs) for theirs, mine in roles.items()}
    state = {name: leaf.scope for name, leaf in leaves.items() if leaf is not None}
    weight = leaves["weight_ih"]
    if weight is None or leaves["weight_hh"] is None or len(state) not in (2, 4):
        return None
    named: dict[str, object] = {"bias": False} if len(state) == 2 else {}
    named |= {"nonlinearity": "relu"} if op == "rnn_relu_cell" else {}
    rows, width = weight.outputs[0].shape
    hidden = rows // {"lstm_cell": 4, "gru_cell": 3}.get(op, 1)
    return Layer(_write(_CELLS[op], width, hidden, **named), state, ("input", "hx"))


_BUILDERS: dict[str, Callable[[_LayerCall], Layer | None]] = {
    "convolution": _convolution,
    "linear": _linear,
    "layer_norm": _layer_norm,
    "rms_norm": _layer_norm,
    "group_norm": _group_norm,
    "batch_norm": _statistics,
    "instance_norm": _statistics,
    "embedding": _embedding,
    **dict.fromkeys(_RECURRENT, _recurrent),
    **dict.fromkeys(_CELLS, _cell),
}

_WORD = re.compile(r"\W+")


class UniqueNames:
    """Unique attribute names.

    A name follows the original's path: `layer1.0.conv` becomes `layer1_0_conv`.
    """

    def __init__(self, taken: Sequence[str]) -> None:
        self._taken = set(taken)

    def of(self, path: str, otherwise: str) -> str:
        """Return an unused name for the object with this path."""
        name = _WORD.sub("_", path).strip("_") or otherwise
        name = f"m{name}" if name[0].isdigit() else name
        number, free = 1, name
        while free in self._taken:
            number += 1
            free = f"{name}_{number}"
        self._taken.add(free)
        return free


def group_layers(module: ModeModule, live: set[int]) -> tuple[dict[int, Layer], list[Layer]]:
    """Return the layers of a module: by the steps that call them, and each once in order of first use.

    A parameter of a layer is read only by calls of that layer; if another operation reads it as well, it becomes a
    parameter of the module.
    """
    call: dict[int, Layer] = {}
    readers: dict[str, set[int]] = {}
    for index in sorted(live):
        step = module.steps[index]
        builder = _BUILDERS.get(step.node.op)
        layer = builder(_LayerCall(step, module)) if builder else None
        if layer is not None:
            call[index] = layer
        for value in values_in(tuple(step.arguments.values())):
            source = module.steps[value.index].node
            if source.op in ("parameter", "buffer"):
                readers.setdefault(source.scope, set()).add(index)
    by_key: dict[tuple[object, ...], Layer] = {}
    for index, layer in call.items():
        # Calls with the same text and parameters are calls of one layer.
        by_key.setdefault((layer.text, tuple(layer.state.items())), layer).steps.append(index)
    kept = [
        layer
        for layer in by_key.values()
        if all(readers.get(name, set()) <= {*layer.steps} for name in layer.state.values())
    ]
    return {index: layer for layer in kept for index in layer.steps}, kept


def values_in(argument: Argument) -> list[Value]:
    """Return the values that an argument refers to, those of both modes."""
    if isinstance(argument, Value):
        return [argument]
    if isinstance(argument, tuple):
        return [value for item in argument for value in values_in(item)]
    if hasattr(argument, "train"):
        return [*values_in(argument.eval), *values_in(argument.train)]
    return []
