"""Inputs of forward: values that can be varied and written as expressions, and which of them to try first.

The choice follows from the names and annotations of the arguments, and the layers of the module.
"""

import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

#: Kinds of tensors, by the use of their numbers, and how they are created.
FLOAT, INDEX, POSITIVE, MASK = "float", "index", "positive", "mask"
_CREATED = {
    FLOAT: "torch.randn({shape})",
    INDEX: "torch.randint(0, {below}, {shape})",
    POSITIVE: "torch.rand({shape})",
    MASK: "torch.ones({shape}, dtype=torch.bool)",
}
#: A class of dicts whose items are attributes, too, as those of a batch of graphs. What is missing is an
#: AttributeError, so that `hasattr` and copies work.
RECORD = (
    "type('Record', (dict,), {'__getattr__': lambda self, key: "
    "self[key] if key in self else object.__getattribute__(self, key), '__setattr__': dict.__setitem__})"
)
#: A function that returns the first of what it is called with.
FIRST = "lambda x, *_, **__: x"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor to create, with its shape and kind. Indices are less than `below`."""

    shape: tuple[int, ...]
    kind: str = FLOAT
    below: int = 2

    @property
    def is_image(self) -> bool:
        """Whether it has the axes of square images or videos."""
        return len(self.shape) in (4, 5) and self.shape[-1] == self.shape[-2]

    def expression(self) -> str:
        """Return Python code that creates it."""
        return _CREATED[self.kind].format(shape=self.shape, below=self.below)

    def with_shape(self, shape: Sequence[int]) -> "Tensor":
        """Return the tensor with another shape."""
        return replace(self, shape=tuple(shape))


@dataclass(frozen=True, slots=True)
class Literal:
    """Any other value, as a Python expression."""

    text: str

    def expression(self) -> str:
        """Return Python code that creates it."""
        return self.text


@dataclass(frozen=True, slots=True)
class ListOfValues:
    """A list or tuple of values."""

    values: tuple["Value", ...]
    is_tuple: bool = False

    def expression(self) -> str:
        """Return Python code that creates it."""
        inside = ", ".join(value.expression() for value in self.values)
        comma = "," if len(self.values) == 1 else ""
        return f"({inside}{comma})" if self.is_tuple else f"[{inside}]"


@dataclass(frozen=True, slots=True)
class FieldValues:
    """Values by name: a dict, a namespace if they are read as attributes, or a dict that is read both ways."""

    fields: tuple[tuple[str, "Value"], ...] = ()
    by_key: bool = True
    by_attribute: bool = False

    def expression(self) -> str:
        """Return Python code that creates it."""
        if not self.by_attribute:
            return f"{{{', '.join(f'{name!r}: {value.expression()}' for name, value in self.fields)}}}"
        kind = RECORD if self.by_key else "types.SimpleNamespace"
        return f"{kind}({', '.join(f'{name}={value.expression()}' for name, value in self.fields)})"


Value = Tensor | Literal | ListOfValues | FieldValues
Inputs = tuple[tuple[str, Value], ...]  # forward's arguments by name, in order; "*" for further positional ones


def tensors_in(value: Value) -> Iterator[Tensor]:
    """Yield the tensors of a value, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, ListOfValues):
        yield from itertools.chain.from_iterable(map(tensors_in, value.values))
    elif isinstance(value, FieldValues):
        yield from itertools.chain.from_iterable(tensors_in(item) for _, item in value.fields)


def change_tensors(value: Value, change: Callable[[Tensor], Tensor | None]) -> Value:
    """Return the value with its tensors changed, but for those for which there is None."""
    if isinstance(value, Tensor):
        return change(value) or value
    if isinstance(value, ListOfValues):
        return replace(value, values=tuple(change_tensors(item, change) for item in value.values))
    if isinstance(value, FieldValues):
        return replace(value, fields=tuple((name, change_tensors(item, change)) for name, item in value.fields))
    return value


def flatten(value: object, depth: int = 8, *, compute: bool = True) -> list[torch.Tensor]:
    """Return the tensors in an output of forward, in order: from containers, mappings, and attributes of objects.

    Args: compute: compute operators that are not computed yet, such as a kernel of gpytorch: they hold their inputs.
    """
    if isinstance(value, torch.Tensor):
        return [value]
    # A module has tensors, too, but they are its parameters, not an output.
    if depth == 0 or isinstance(value, (str, bytes, torch.nn.Module, type)):
        return []
    items: Iterable[object] = ()
    if isinstance(value, Mapping):
        items = value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        items = value
    elif compute and hasattr(value, "shape") and callable(dense := getattr(value, "to_dense", None)):
        items = [dense()]
    elif isinstance(fields := getattr(value, "__dict__", None), dict):
        items = fields.values()
    return [tensor for item in items for tensor in flatten(item, depth - 1, compute=compute)]


def change_nested(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return nested containers with every tensor changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return type(value)((key, change_nested(item, change)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        items = [change_nested(item, change) for item in value]
        # A named tuple takes its items one by one.
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, SimpleNamespace):
        return SimpleNamespace(**change_nested(vars(value), change))
    return value


def value_text(value: Any) -> str:
    """Describe a value in a few words: `float32 2x16x8x8`, or its type."""
    if isinstance(value, torch.Tensor):
        sizes = "x".join(str(size) for size in value.shape) or "scalar"
        return f"{str(value.dtype).removeprefix('torch.')} {sizes}"
    return type(value).__name__


def has_shape(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has a shape; those of lazy modules get theirs in the first forward."""
    return not isinstance(tensor, UninitializedTensorMixin)


# -- facts from the layers of a module ------------------------------------------------------------------------------

BATCH = 2
_TOKENS = 16
_NODES, _EDGES = 8, 16  # of the small graph used for graph networks


class Layers(NamedTuple):
    """Facts about the input of a module, from its layers."""

    channels: tuple[int, ...]  # input channels of the first layers, in order
    ranks: tuple[int, ...]  # possible ranks of the input, by type of the first layers
    embeds: bool  # the first layer is an embedding


#: Layer type, attribute with its number of input channels, rank of its input.
_LAYERS: tuple[tuple[type[nn.Module], str, int], ...] = (
    (nn.Conv2d, "in_channels", 4),
    (nn.ConvTranspose2d, "in_channels", 4),
    (nn.Conv1d, "in_channels", 3),
    (nn.Conv3d, "in_channels", 5),
    (nn.BatchNorm2d, "num_features", 4),
    (nn.BatchNorm1d, "num_features", 2),
    (nn.BatchNorm3d, "num_features", 5),
    (nn.GroupNorm, "num_channels", 4),
    (nn.Linear, "in_features", 3),
    (nn.RNNBase, "input_size", 3),
    (nn.MultiheadAttention, "embed_dim", 3),
)


def read_layers(module: nn.Module) -> Layers:
    """Return the channels and ranks that the first layers expect."""
    channels: list[int] = []
    ranks: list[int] = []
    embeds = False
    for layer in module.modules():
        embeds |= isinstance(layer, nn.Embedding) and not channels
        # The first kind that fits: subclasses count, too.
        for kind, attribute, rank in _LAYERS:
            if isinstance(layer, kind):
                size = getattr(layer, attribute, 0)
                channels += [size] if isinstance(size, int) and size else []
                ranks.append(rank)
                break
        if isinstance(layer, nn.LayerNorm) and len(layer.normalized_shape) == 1:
            channels.append(layer.normalized_shape[0])
            ranks.append(3)
    for parameter in (p for p in nn.Module.parameters(module, recurse=False) if has_shape(p) and p.dim()):
        channels += [size for size in parameter.shape if size > 1]
    return Layers(tuple(dict.fromkeys(channels))[:6], tuple(dict.fromkeys(ranks)), embeds)


#: Layouts by rank, most likely first: functions from a number of channels to a shape.
_LAYOUTS: dict[int, tuple[Callable[[int], tuple[int, ...]], ...]] = {
    1: (lambda c: (c,),),
    2: (lambda c: (BATCH, c),),
    3: (
        lambda c: (BATCH, _TOKENS, c),
        lambda c: (BATCH, c, _TOKENS),
        lambda c: (_TOKENS, BATCH, c),
        lambda c: (BATCH, 64, c),
    ),
    4: (lambda c: (BATCH, c, 16, 16), lambda c: (BATCH, 8, 8, c), lambda c: (BATCH, c, 64, 64)),
    5: (lambda c: (BATCH, c, 4, 16, 16),),
}
_SEQUENCES = re.compile(r"hidden_states?|src|tgt|quer(y|ies)|q|tokens|memory|inputs_embeds|seq(uence)?|hidden")
_IMAGES = re.compile(r"pixel_values|imgs?|images?|feat(ure)?s?|fmap")

Layout = Callable[[int], tuple[int, ...]]


def layouts(layers: Layers, name: str, *, rows: bool) -> list[Layout]:
    """Return layouts to try for the main input, most likely first. Args: rows: one for each node or prediction."""
    by_name = [4] if _IMAGES.fullmatch(name.lower()) else [3] if _SEQUENCES.fullmatch(name.lower()) else []
    first = [2] if rows else [2, 3] if layers.embeds else []
    return [
        layout for rank in dict.fromkeys([*first, *by_name, *layers.ranks, 4, 3, 2, 5, 1]) for layout in _LAYOUTS[rank]
    ]


# -- facts from the names and annotations of arguments ---------------------------------------------------------------

_INDEX = re.compile(r".*(ids|labels?|indices|index|idx|timesteps?|token)|t|y|texts?|words")
_MASK = re.compile(r".*mask.*|valid.*")
_TENSORS = re.compile(r"(typing\.)?[tT]uple\[(torch\.)?Tensor(, ?(torch\.)?Tensor)+\]")  # as many as it states
_TARGETS = re.compile(r"targets?|labels?|gt|y_true")
_GRAPH = {"edge_index", "adj_t", "batch", "index"}  # arguments that have the same meaning everywhere
_NUMBERS = r"(list|sequence|tuple|iterable|size)\[int.*\]"  # sides of an image or a map


def is_loss(arguments: Iterable[str], class_name: str) -> bool:
    """Return whether forward compares a prediction with a target."""
    named = any(_TARGETS.fullmatch(name) for name in arguments)
    return named or class_name.lower().endswith(("loss", "criterion"))


def find_meaning(name: str) -> Tensor | None:
    """Return the value of an argument that describes the small graph, or None."""
    if re.fullmatch(r"edge_index.*|adj_t|edge_label_index|edges", name):
        return Tensor((2, _EDGES), INDEX, _NODES)
    return Tensor((_NODES,), INDEX, 1) if re.fullmatch(r"batch(_idx)?|index", name) else None


def values_from_annotation(annotation: str, main: Tensor) -> list[Value]:
    """Return values of the annotated type, sizes like those of the main input; empty for other annotations."""
    plain = re.sub(r"\b(torch|typing|nn|t|collections\.abc)\.|\s|['\"]", "", annotation).lower()
    plain = re.sub(r"optional\[(.*)\]$", r"\1", plain).removesuffix("|none")
    if plain == "int":
        return [Literal("4"), Literal("1")]
    if plain == "bool":
        return [Literal("False"), Literal("True")]
    if re.fullmatch(r"(list|sequence|tuple|iterable)\[tensor(,\.\.\.)?\]", plain):
        return [ListOfValues((main, main))]
    if re.fullmatch(_NUMBERS, plain):
        sides = _list_sides(main, max(plain.count("int"), 2))
        return [Literal(str(sides if plain.startswith(("tuple", "size")) else list(sides)))]
    return []


def _list_sides(main: Tensor, number: int) -> tuple[int, ...]:
    """Return the spatial sizes of the main input; tokens are arranged in a map that is as square as possible."""
    if len(main.shape) != 3:
        return main.shape[-number:] if len(main.shape) > number else (4,) * number
    side = max(math.isqrt(main.shape[1]), 1)
    return (*(1,) * (number - 2), side, max(main.shape[1] // side, 1))


def propose_like_main(name: str, main: Tensor, *, loss: bool) -> list[Value]:
    """Return values for a further argument: by its name, else a tensor like the main input."""
    if (value := find_meaning(name)) is not None:
        return [value, main]
    lower = name.lower()
    tokens = main.shape[1] if len(main.shape) == 3 else main.shape[-1]
    rows = main.shape[:1]
    if loss and (_TARGETS.fullmatch(lower) or lower in {"y", "input2", "x2"}):
        positions = Tensor((rows[0], *main.shape[2:]), INDEX)
        return [main, Tensor(main.shape, POSITIVE), Tensor(rows, INDEX), positions, Tensor(rows)]
    if _MASK.fullmatch(lower):
        masks = [(rows[0], tokens), main.shape, (rows[0], *main.shape[2:])]
        return [
            Literal("None"),
            *(Tensor(shape, MASK) for shape in masks),
            Tensor((rows[0], 1, tokens, tokens)),
            Tensor((tokens, tokens), MASK),
        ]
    if lower.startswith("edge"):  # features of the edges of the small graph
        return [Tensor((_EDGES, main.shape[-1])), Tensor((_EDGES,)), Literal("None")]
    if _INDEX.fullmatch(lower):
        return [Tensor((rows[0], tokens), INDEX), Tensor(rows, INDEX), main, Literal("None")]
    return [main, Literal("None"), Literal("1"), Tensor((rows[0], tokens), INDEX)]


def main_values(name: str, annotation: str, shape: tuple[int, ...], layers: Layers) -> Iterator[Value]:
    """Yield values for the first argument in one layout."""
    if _TENSORS.fullmatch(annotation):
        tensor = Tensor((BATCH, _TOKENS), INDEX) if layers.embeds else Tensor(shape)
        yield ListOfValues((tensor,) * annotation.count("Tensor"), is_tuple=True)
    if (value := find_meaning(name)) is not None:
        yield value
    if _INDEX.fullmatch(name.lower()) or (layers.embeds and len(shape) in (2, 3)):
        indices = [Tensor((BATCH, _TOKENS), INDEX), Tensor((BATCH,), INDEX)]
        yield from reversed(indices) if len(shape) == 1 else indices
    if re.match(r"(typing\.)?(dict|(mutable)?mapping)\b", annotation.lower()):
        yield FieldValues()
    if re.match(r"(typing\.)?(list|tuple|sequence)\b", annotation.lower()):
        yield ListOfValues((Tensor(shape), Tensor(shape)), is_tuple="tuple" in annotation.lower())
    yield Tensor(shape)


# -- the first inputs --------------------------------------------------------------------------------------------------

#: Gives the texts that the block's file compares a parameter with.
Compared = Callable[[str, object], Sequence[str]]


def list_first_inputs(
    module: nn.Module, parameters: Mapping[str, inspect.Parameter], compared: Compared
) -> Iterator[Inputs]:
    """Yield the inputs to start from, most likely first."""
    if not _GRAPH.isdisjoint(parameters):
        yield from _list_first_inputs(module, parameters, compared, graph=True)
    # What has the names of a graph may take something else.
    yield from _list_first_inputs(module, parameters, compared, graph=False)


def _list_first_inputs(
    module: nn.Module, parameters: Mapping[str, inspect.Parameter], compared: Compared, *, graph: bool
) -> Iterator[Inputs]:
    """Yield initial inputs, one for each layout and number of channels; of a graph, one for each number."""
    layers = read_layers(module)
    loss = is_loss(parameters, type(module).__name__)
    # A forward of `*inputs` alone has no required parameter, but takes at least one input.
    names = list_required(parameters) or [
        f"*{name}" for name, parameter in parameters.items() if parameter.kind is parameter.VAR_POSITIONAL
    ]
    if not names:
        if not parameters or any(p.default is not None for p in parameters.values() if not is_variadic(p)):
            yield ()
        names = list(parameters)[:1]
    if not names:
        return

    def annotation(name: str) -> str:
        return annotation_text(parameters[name.lstrip("*")].annotation)

    def choose(name: str, main: Tensor) -> list[Value]:
        spelled = annotation(name)
        by_annotation = values_from_annotation(spelled, main)
        if re.search(r"\bNone\b|Optional\[", spelled) and "Tensor" not in spelled:
            by_annotation.insert(0, Literal("None"))
        texts = compared(name, parameters[name].annotation)
        by_name = [*map(Literal, texts), *propose_like_main(name, main, loss=loss)]
        return [*by_name, *by_annotation] if find_meaning(name) is not None else [*by_annotation, *by_name]

    shapes = layouts(layers, names[0], rows=graph or loss)
    for position, layout in enumerate(shapes[:1] if graph else shapes):
        for size in (layers.channels or (32, 3))[: 2 if position < 2 else 1]:
            for value in main_values(names[0], annotation(names[0]), layout(size), layers):
                main: Value = Tensor((_NODES, size)) if graph and isinstance(value, Tensor) else value
                first = next(tensors_in(main), Tensor((BATCH, size, 16, 16)))
                choices = [(name, choose(name, first)) for name in names[1:]]
                likeliest = [(name, values[0]) for name, values in choices]
                yield ((names[0], main), *likeliest)
                if choices and (loss or len(choices) == 1):
                    for other in choices[0][1][1:3]:
                        yield ((names[0], main), (names[1], other), *likeliest[1:])


# -- parameters ------------------------------------------------------------------------------------------------------


def annotation_text(annotation: object) -> str:
    """Return an annotation as text, or "" if there is none."""
    if annotation is inspect.Parameter.empty:
        return ""
    if isinstance(annotation, str):
        return annotation
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def list_required(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """Return the names of the parameters without a default, in order."""
    return [name for name, p in parameters.items() if p.default is p.empty and not is_variadic(p)]


def is_variadic(parameter: inspect.Parameter) -> bool:
    """Return whether a parameter is `*args` or `**kwargs`."""
    return parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)


def with_value(inputs: Inputs, name: str, value: Value) -> Inputs:
    """Return the inputs with one value added or replaced."""
    if any(known == name for known, _ in inputs):
        return tuple((known, value if known == name else old) for known, old in inputs)
    return (*inputs, (name, value))
