"""Find the layers of a graph: the `nn` classes that an operation and its parameters form."""

from dataclasses import dataclass, field

from lemur_core.graphs.formulas import Size
from lemur_core.graphs.graph import Argument, Node
from lemur_core.graphs.modes import EVAL, TRAIN, ModeModule, ModeStep, Value

_STATISTICS = ("running_mean", "running_var")


@dataclass(slots=True)
class Layer:
    """One layer: its constructor, and the original's names of its parameters and buffers by its own names.

    Args:
        counter: the original's name of the batch counter.
        steps: the calls of the layer.
    """

    text: str
    state: dict[str, str]
    name: str = ""
    counter: str | None = None
    steps: list[int] = field(default_factory=list)


def group_layers(module: ModeModule, live: set[int]) -> list[Layer]:
    """Return the layers of a module, in order of first use.

    A parameter of a layer is read only by calls of that layer; if another operation reads it as well, it becomes a
    parameter of the module.
    """
    layers: dict[tuple[object, ...], Layer] = {}
    readers: dict[str, set[int]] = {}
    for index in sorted(live):
        step = module.steps[index]
        for value in values_in(tuple(step.arguments.values())):
            readers.setdefault(module.steps[value.index].node.scope, set()).add(index)
        layer = _find_layer(module, step)
        if layer is not None:
            # Calls with the same text and parameters are calls of one layer.
            layers.setdefault((layer.text, tuple(layer.state.items())), layer).steps.append(index)
    return [layer for layer in layers.values() if all(readers[name] <= {*layer.steps} for name in layer.state.values())]


def _find_layer(module: ModeModule, step: ModeStep) -> Layer | None:
    """Return the layer that an operation is, if it is one."""
    node, op = step.node, step.node.op
    present = [name for name in ("weight", "bias") if isinstance(step.arguments.get(name), Value)]
    read = {name: module.steps[step.arguments[name].index].node for name in present}
    leaves = {name: leaf for name, leaf in read.items() if leaf.op == "parameter"}
    state = {name: leaf.scope for name, leaf in leaves.items()}
    weight = leaves.get("weight")
    if len(state) < len(present):
        return None
    if op == "batch_norm" and len(state) in (0, 2):
        return _find_batch_norm(module, step, state)
    if weight is None:
        return None
    shape = weight.outputs[0].shape
    no_bias = {} if "bias" in state else {"bias": False}
    if op == "convolution":
        groups, transposed, kernel = (node.get(name) for name in ("groups", "transposed", "kernel"))
        # The weight is (in, out / groups, ...) if transposed, else (out, in / groups, ...).
        channels = (shape[0], shape[1] * groups) if transposed else (shape[1] * groups, shape[0])
        named = _list_unusual(node, stride=1, padding=0, output_padding=0, dilation=1, groups=1) | no_bias
        name = f"Conv{'Transpose' if transposed else ''}{len(kernel)}d"
        return Layer(_construct(name, *channels, _collapse(kernel), **named), state)
    if op == "linear" and len(shape) == 2:
        return Layer(_construct("Linear", shape[1], shape[0], **no_bias), state)
    if op == "layer_norm":
        return Layer(_construct("LayerNorm", _collapse_one(shape), **_list_unusual(node, eps=1e-5), **no_bias), state)
    if op == "rms_norm":
        return Layer(_construct("RMSNorm", _collapse_one(shape), eps=node.get("eps")), state)
    if op == "group_norm" and not no_bias:
        return Layer(_construct("GroupNorm", node.get("num_groups"), shape[0], **_list_unusual(node, eps=1e-5)), state)
    if op == "embedding":
        # -1 is ATen's number for none.
        named = _list_unusual(node, padding_idx=-1, scale_grad_by_freq=False, sparse=False)
        return Layer(_construct("Embedding", *shape, **named), state)
    return None


def _find_batch_norm(module: ModeModule, step: ModeStep, state: dict[str, str]) -> Layer | None:
    """Return a batch norm that uses the statistics of the batch in train mode, and only there, and tracks them."""
    evaluated, trained = step.nodes[EVAL], step.nodes[TRAIN]
    flags = [node and bool(node.get("training")) for node in (evaluated, trained)]
    statistics = {name: _find_statistics(module, step, name) for name in _STATISTICS}
    kind = step.node.outputs[0]
    rank = {2: 1, 3: 1, 4: 2, 5: 3}.get(len(kind.shape))
    if flags not in ([False, True], [False, None]) or not all(statistics.values()) or rank is None:
        return None
    if isinstance(width := kind.shape[1], Size):
        return None
    named = _list_unusual(step.node, eps=1e-5) | ({} if trained is None else _list_unusual(trained, momentum=0.1))
    named |= {} if state else {"affine": False}
    mean = statistics["running_mean"] or ""
    counter = mean.removesuffix("running_mean") + "num_batches_tracked" if mean.endswith("running_mean") else None
    buffers = {name: scope for name, scope in statistics.items() if scope}
    return Layer(_construct(f"BatchNorm{rank}d", width, **named), state | buffers, counter=counter)


def _find_statistics(module: ModeModule, step: ModeStep, name: str) -> str | None:
    """Return the buffer of a norm's statistics: the one it reads, or that an earlier call of it reads."""
    while True:
        value = step.arguments.get(name)
        value = getattr(value, "eval", value)
        if not isinstance(value, Value):
            return None
        before = module.steps[value.index]
        if before.node.op == "buffer":
            return before.node.scope
        # Output 0 is the result of a norm; the others are its updated statistics.
        if before.node.op != "batch_norm" or value.output == 0:
            return None
        step = before


def _construct(name: str, *positional: object, **named: object) -> str:
    keywords = [f"{key}={value!r}" for key, value in named.items()]
    return f"nn.{name}({', '.join([*map(str, positional), *keywords])})"


def _list_unusual(node: Node, **usual: Argument) -> dict[str, Argument]:
    """Return the arguments of a node that differ from their usual values, `(3, 3)` as 3."""
    collapsed = {name: _collapse(node.get(name)) for name in usual}
    return {name: value for name, value in collapsed.items() if value not in (usual[name], None, ())}


def _collapse(value: Argument) -> Argument:
    return value[0] if type(value) is tuple and value and all(item == value[0] for item in value) else value


def _collapse_one(shape: tuple[int, ...]) -> object:
    return shape[0] if len(shape) == 1 else shape


def values_in(argument: Argument) -> list[Value]:
    """Return the values that an argument refers to, those of both modes."""
    if isinstance(argument, Value):
        return [argument]
    if isinstance(argument, tuple):
        return [value for item in argument for value in values_in(item)]
    if hasattr(argument, "train"):
        return [*values_in(argument.eval), *values_in(argument.train)]
    return []
