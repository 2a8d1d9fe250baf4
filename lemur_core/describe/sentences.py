"""Describe single operations in words, independent of names in any source.

Widths are marked with `‹` and `›`, so that repeats with other widths can be recognized; `remove_marks` drops the marks.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from lemur_core.describe.layouts import Layout, channels_first, channels_last
from lemur_core.graphs.graph import Argument, Graph, Node

_WIDTHS = re.compile(r"‹[^›]*›")
_DIMENSIONS = {"N": "the batch", "C": "the channels", "L": "the length", "D": "D", "H": "H", "W": "W"}
#: What an operation does; names of arguments stand in braces.
_TEXTS = {
    "relu": "ReLU",
    "relu6": "ReLU6",
    "silu": "SiLU",
    "elu": "ELU",
    "selu": "SELU",
    "celu": "CELU",
    "hardsigmoid": "hard sigmoid",
    "hardswish": "hard swish",
    "leaky_relu": "leaky ReLU of slope {negative_slope:g}",
    "_prelu_kernel": "ReLU with a learned slope",
    "log_sigmoid_forward": "logarithm of the sigmoid",
    "sqrt": "square root",
    "rsqrt": "one over the square root",
    "exp": "exponential",
    "log": "logarithm",
    "abs": "absolute value",
    "neg": "changes the sign",
    "reciprocal": "one over it",
    "sin": "sine",
    "cos": "cosine",
    "erf": "error function",
    "expm1": "exponential minus one",
    "log1p": "logarithm of one plus it",
    "bitwise_not": "not",
    "logical_not": "not",
    "dropout": "dropout of {p:g}",
    "feature_dropout": "dropout of {p:g}, whole channels",
    "batch_norm": "batch normalisation",
    "instance_norm": "instance normalisation",
    "group_norm": "group normalisation, ‹{num_groups}› groups",
    "stop_gradient": "no gradient goes back from here",
    "custom_gradient": "a gradient of its own",
    "pixel_shuffle": "channels to pixels, by {upscale_factor}",
    "pixel_unshuffle": "pixels to channels, by {downscale_factor}",
    "channel_shuffle": "channels shuffled among {groups} groups",
    "native_channel_shuffle": "channels shuffled among {groups} groups",
    "nonzero": "the places that are not 0",
    "repeat_interleave": "each place as often as it says",
    "view_as_real": "real and imaginary parts as a last dimension",
    "view_as_complex": "the last dimension as real and imaginary parts",
}
_COMPARISONS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most", "eq": "equal to", "ne": "other than"}
_REDUCTIONS = {
    "mean": "mean",
    "sum": "sum",
    "amax": "maximum",
    "amin": "minimum",
    "max": "maximum",
    "min": "minimum",
    "var": "variance",
    "std": "standard deviation",
    "var_mean": "variance and mean",
    "logsumexp": "logarithm of the sum of exponentials",
    "linalg_vector_norm": "norm",
    "argmax": "place of the maximum",
    "argmin": "place of the minimum",
    "cumsum": "running sum",
    "_softmax": "softmax",
    "_log_softmax": "logarithm of the softmax",
    "topk": "largest values",
    "sort": "values in order",
    "prod": "product",
}
_RECURRENT = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "recurrent layer, tanh", "rnn_relu": "recurrent layer, ReLU"}
_RESIZES = re.compile(r"_?upsample_(\w+?)(_aa)?\d?d?$")
_POOLS = re.compile(r"_?(adaptive_)?(avg|max|lp|fractional_max)_pool(\d)d(_with_indices)?$")
_PADS = re.compile(r"(constant|reflection|replication)_pad")
OPERATORS = {"add": "plus", "sub": "minus", "mul": "times", "div": "divided by", "matmul": "product with"}
OPERATORS |= {"maximum": "the larger of it and", "minimum": "the smaller of it and"}
#: Operations that only move elements; described only where that helps.
SILENT = frozenset({"cast", "expand", "to_dense"})
WINDOWS = (0, 1, 3, 2, 4, 5)  # the order of dimensions that cuts an image into windows, or puts them together
RESHAPED = "reshaped to "


def remove_marks(words: str) -> str:
    """Remove the marks around widths."""
    return words.replace("‹", "").replace("›", "")


def remove_widths(words: str) -> str:
    """Remove the widths."""
    return _WIDTHS.sub("", words)


def format_sizes(values: Sequence[Any]) -> str:
    """Format sizes as in `3×3`."""
    return "×".join(map(str, values))


def format_number(value: Argument) -> str:
    """Format a number of the graph in at most four digits."""
    return f"{value:.4g}" if isinstance(value, int | float) else "a value"


def name_dimensions(layout: Layout, dims: Sequence[int]) -> str:
    """Name dimensions as in `H and W`, or by position (`the last dimension`) if the layout is unknown."""
    rank = len(layout)
    names = []
    for dim in sorted(dim % rank if rank else dim for dim in dims):
        letter = layout[dim] if dim < rank else "?"
        if letter in _DIMENSIONS:
            names.append(_DIMENSIONS[letter])
        else:
            names.append("the last dimension" if dim == rank - 1 else f"dimension {dim + 1} of {rank}")
    if rank and len(names) == rank:
        return "everything" if rank > 1 else "all values"
    return join_words(names)


def name_extent(layout: Layout, shape: Sequence[int]) -> str:
    """Describe what a tensor has values for when it is broadcast: `for each channel`; empty if that is unknown."""
    offset = len(layout) - len(shape)
    if offset < 0:  # it is not broadcast: what reads it gives fewer dimensions
        return ""
    letters = {layout[dim + offset] for dim, size in enumerate(shape) if size > 1}
    if letters == {"C"}:
        return " for each channel"
    return " for each place" if letters and letters <= set("LDHW") else ""


def join_words(words: Sequence[str]) -> str:
    """Join words as in `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def find_origin(graph: Graph, index: int) -> str:
    """Return the origin of a value that depends on no input: `random`, `learned` (from parameters) or `fixed`."""
    waiting, seen, learned = [index], set[int](), False
    while waiting:
        index = waiting.pop()
        if index in seen:
            continue
        seen.add(index)
        node = graph.nodes[index]
        if node.get("draw") is not None:
            return "random"
        learned |= node.op == "parameter"
        waiting += [ref.node for ref in node.inputs]
    return "learned" if learned else "fixed"


def describe(graph: Graph, index: int, layouts: Sequence[Layout]) -> str:
    """Describe one operation on one value; return an empty text if it is not worth mentioning."""
    node = graph.nodes[index]
    source = node.inputs[0] if node.inputs else None
    before = layouts[source.node] if source is not None else ""
    if node.op in SILENT:
        return ""
    if node.op in _RULES:
        return _RULES[node.op](graph, node, before)
    if node.op in _TEXTS:
        return _TEXTS[node.op].format_map(dict(node.arguments))
    if node.op in _COMPARISONS:
        other = node.get("other")
        shown = f"{other:.4g}" if isinstance(other, int | float) else "another value"
        return f"whether {_COMPARISONS[node.op]} {shown}"
    if node.op in _REDUCTIONS:
        return _reduction(node, before)
    if node.op in _RECURRENT:
        layers = node.get("num_layers") or 1
        both = ", in both directions" if node.get("bidirectional") else ""
        return f"{_RECURRENT[node.op]}{f', {layers} layers' if layers > 1 else ''}{both}"
    if match := _POOLS.match(node.op):
        return _pool(node, match)
    if match := _RESIZES.match(node.op):
        kind = match[1].removesuffix("1d").removesuffix("2d").replace("_", " ").strip()
        factor = node.get("scales_h") or node.get("scales")
        by = f"by {factor:g}" if factor else f"to ‹{format_sizes(node.outputs[0].shape[2:])}›"
        return f"resized {by}, {kind}"
    if match := _PADS.match(node.op):
        if not any(node.get("padding") or node.get("pad") or (1,)):
            return ""
        return "padded" + {"constant": "", "reflection": " by reflection", "replication": " by repetition"}[match[1]]
    # No rule: the operation's name, without its library (`torchvision::nms`).
    return node.op.rpartition("::")[2].strip("_").replace("_", " ")


def _power(_graph: Graph, node: Node, _layout: Layout) -> str:
    exponent = node.get("exponent")
    return "square" if exponent == 2 else f"to the power {exponent:g}" if isinstance(exponent, float) else "power"


def _reduction(node: Node, layout: Layout) -> str:
    dims = node.get("dim")
    dims = dims if isinstance(dims, tuple) else () if dims is None else (dims,)
    count = f"‹{node.get('k')}› " if node.op == "topk" else ""
    return f"{count}{_REDUCTIONS[node.op]} over {name_dimensions(layout, dims or range(len(layout)))}"


def _pool(node: Node, match: re.Match[str]) -> str:
    kind = {"avg": "average", "max": "maximum", "lp": "power-average", "fractional_max": "maximum"}[match[2]]
    if match[1]:
        return f"{kind} pooling to {format_sizes(node.outputs[0].shape[2:])}"
    kernel = node.get("kernel_size") or ()
    kernel = kernel if len(kernel) > 1 else tuple(kernel) * int(match[3])
    stride = node.get("stride") or kernel
    step = f", stride {_format_each(stride)}" if set(stride) != {1} else ""
    return f"{format_sizes(kernel)} {kind} pooling{step}"


def _format_each(values: Sequence[int]) -> str:
    return str(values[0]) if len(set(values)) == 1 else format_sizes(values)


def _convolution(graph: Graph, node: Node, layout: Layout) -> str:
    kernel, groups = node.get("kernel"), node.get("groups")
    channels = -len(kernel) - 1  # the first dimension of an input without a batch
    before, after = graph.type_of(node.inputs[0]).shape[channels], node.outputs[0].shape[channels]
    kind = "transposed " if node.get("transposed") else ""
    shape = f"{format_sizes(kernel)} filter" if len(kernel) > 1 else f"filter of length {kernel[0]},"
    text = f"{kind}{shape} ‹{before} to {after}›"
    if groups > 1:
        text += ", each channel by itself" if groups == before else f", {groups} groups"
    for name in ("stride", "dilation"):
        if set(node.get(name)) != {1}:
            text += f", {name} {_format_each(node.get(name))}"
    # Padding that keeps the size is the usual case; only other padding is mentioned.
    usual = tuple(rate * (size - 1) // 2 for rate, size in zip(node.get("dilation"), kernel, strict=True))
    padding = node.get("padding")
    if padding not in (usual, "same") and not node.get("transposed"):
        text += ", no padding" if not any(padding) else f", padding {_format_each(padding)}"
    if "C" in layout[2:]:
        text += " along the channels"
    return text


def _linear(graph: Graph, node: Node, layout: Layout) -> str:
    rank = len(layout)
    last = f" over the last of {rank} dimensions" if rank > 3 else ""
    return f"linear ‹{graph.type_of(node.get('input')).shape[-1]} to {node.outputs[0].shape[-1]}›{last}"


def _layer_norm(graph: Graph, node: Node, _layout: Layout) -> str:
    kind = "layer" if node.op == "layer_norm" else "root-mean-square"
    over, rank = len(node.get("normalized_shape") or ()), len(graph.type_of(node.inputs[0]).shape)
    last = "the last dimension" if rank < 4 else f"the last of {rank} dimensions"
    return f"{kind} normalisation over {last if over == 1 else f'the last {over} dimensions'}"


def _permute(graph: Graph, node: Node, layout: Layout) -> str:
    if node.get("dims") == WINDOWS:
        return _window(graph, node)
    dims, rank = node.get("dims"), len(node.get("dims"))
    ends = layout, "".join(layout[dim] for dim in dims) if len(layout) == rank else ""
    if ends == (channels_first(rank), channels_last(rank)):
        return "channels moved last"
    if ends == (channels_last(rank), channels_first(rank)):
        return "channels moved to the front"
    shape = graph.type_of(node.inputs[0]).shape
    moved = [dim for dim in dims if shape[dim] != 1]
    if moved == sorted(moved):
        return "" if "?" not in layout else _format_reshape(layout, shape, node.outputs[0].shape)
    if dims == (*range(rank - 2), rank - 1, rank - 2):
        return "transposed"
    return f"dimensions in the order {', '.join(str(dim + 1) for dim in dims)}"


def _window(graph: Graph, node: Node) -> str:
    """Describe rows and columns that are split into windows, or windows that are merged."""
    source = graph.nodes[node.inputs[0].node]
    if source.op != "reshape":
        return "dimensions in the order 1, 2, 4, 3, 5, 6"
    whole, parts, shape = graph.type_of(source.inputs[0]).shape, source.outputs[0].shape, node.outputs[0].shape
    if whole[:3] == (parts[0], parts[1] * parts[2], parts[3] * parts[4]):
        return f"cut into windows of {format_sizes(shape[3:5])}"
    return f"windows of {format_sizes((shape[2], shape[4]))} put together"


def _reshape(graph: Graph, node: Node, layout: Layout) -> str:
    old, new = graph.type_of(node.inputs[0]).shape, node.outputs[0].shape
    if len(new) == 2 and len(old) > 2 and new[0] == old[0]:
        return "flattened" if any(size > 1 for size in old[2:]) else ""
    if len(new) == 3 and layout.endswith("HW") and new[:2] == old[:2]:
        return "pixels as a sequence"
    if len(new) == 3 and layout == "NHWC" and (new[0], new[2]) == (old[0], old[3]):
        return "pixels as a sequence"
    if layout == "NLC" and len(new) == 4 and new[:2] == old[:2] and new[2] * new[3] == old[2] and 1 not in new[2:]:
        return f"‹{new[2]}› heads of ‹{new[3]}›"
    if len(old) == 3 and len(new) == 4 and layout == "NLC" and (new[0], new[3]) == (old[0], old[2]):
        return f"sequence as {format_sizes(new[1:3])} pixels"
    if [size for size in old if size != 1] == [size for size in new if size != 1]:
        return ""
    source = graph.nodes[node.inputs[0].node]
    if source.op == "permute" and source.get("dims") == WINDOWS:
        return ""
    return _format_reshape(layout, old, new)


def _format_reshape(layout: Layout, old: Sequence[int], new: Sequence[int]) -> str:
    first = "N" if layout[:1] == "N" and new[:1] == old[:1] else str(new[0]) if new else "scalar"
    return f"{RESHAPED}‹{format_sizes((first, *new[1:]))}›"


def _slice(graph: Graph, node: Node, layout: Layout) -> str:
    dim, start, end, step = (node.get(name) for name in ("dim", "start", "end", "step"))
    size = graph.type_of(node.inputs[0]).shape[dim]
    where = name_dimensions(layout, [dim])
    if step > 1:
        return f"each {step}nd of {where}" if step == 2 else f"one in {step} of {where}"
    if start == 0:
        return f"first ‹{end} of {size}› of {where}"
    return f"last ‹{size - start} of {size}› of {where}" if end >= size else f"‹{start} to {end} of {size}› of {where}"


def _roll(_graph: Graph, node: Node, layout: Layout) -> str:
    shifts, dims = node.get("shifts"), node.get("dims")
    return f"rolled by {' and '.join(map(str, shifts))} along {name_dimensions(layout, dims)}" if dims else "rolled"


def _fourier(_graph: Graph, node: Node, layout: Layout) -> str:
    inverse = node.op == "_fft_c2r" or node.get("forward") is False
    over = name_dimensions(layout, node.get("dim"))
    kind = {"_fft_r2c": " of real values", "_fft_c2r": ", to real values"}.get(node.op, "")
    return f"inverse Fourier transform over {over}{kind}" if inverse else f"Fourier transform{kind} over {over}"


def _repeat(_graph: Graph, node: Node, _layout: Layout) -> str:
    return f"repeated {format_sizes(node.get('repeats'))} times"


def _clamp(_graph: Graph, node: Node, _layout: Layout) -> str:
    low, high = (node.get(name) for name in ("min", "max"))
    low = node.get("min_val") if low is None else low
    high = node.get("max_val") if high is None else high
    if (low, high) == (0.0, 6.0):
        return "ReLU6"
    limits = [f"not below {low:g}"] if isinstance(low, float | int) else []
    limits += [f"not above {high:g}"] if isinstance(high, float | int) else []
    return " and ".join(limits) or "clamped"


_RULES: dict[str, Callable[[Graph, Node, Layout], str]] = {
    "convolution": _convolution,
    "linear": _linear,
    "permute": _permute,
    "reshape": _reshape,
    "slice": _slice,
    "roll": _roll,
    "pow": _power,
    "repeat": _repeat,
    **dict.fromkeys(("_fft_r2c", "_fft_c2c", "_fft_c2r"), _fourier),
    **dict.fromkeys(("layer_norm", "rms_norm"), _layer_norm),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max", "hardtanh"), _clamp),
    "gelu": lambda _graph, node, _layout: "GELU, tanh form" if node.get("approximate") == "tanh" else "GELU",
    "flip": lambda _graph, node, layout: f"reversed along {name_dimensions(layout, node.get('dims'))}",
    "embedding": lambda graph, node, _layout: (
        f"looks up rows of ‹{format_sizes(graph.type_of(node.get('weight')).shape)}›"
    ),
    "im2col": lambda _graph, node, _layout: f"windows of {format_sizes(node.get('kernel_size'))} unfolded",
    "col2im": lambda _graph, node, _layout: f"windows of {format_sizes(node.get('kernel_size'))} folded together",
}
