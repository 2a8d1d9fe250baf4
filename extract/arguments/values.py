"""Values that arguments may have: as expressions, and which of them to try first.

The choice follows from names and annotations, from what a file does with a name, and from the layers of the module. The
names are the usual ones of the field: `in_channels`, `num_heads`, `hidden_states`. Widths are 32, a multiple of each
number of heads.
"""

import ast
import functools
import inspect
import itertools
import math
import re
import sys
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
BLOCK = "@block"  # placeholder for a class of the block's file
_MAX_COMPARED = 6  # texts for one name


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


Value = Tensor | Literal | ListOfValues
Inputs = tuple[tuple[str, Value], ...]  # forward's arguments by name, in order; "*" for further positional ones


def tensors_in(value: Value) -> Iterator[Tensor]:
    """Yield the tensors of a value, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, ListOfValues):
        yield from itertools.chain.from_iterable(map(tensors_in, value.values))


def change_tensors(value: Value, change: Callable[[Tensor], Tensor | None]) -> Value:
    """Return the value with its tensors changed, but for those for which there is None."""
    if isinstance(value, Tensor):
        return change(value) or value
    if isinstance(value, ListOfValues):
        return replace(value, values=tuple(change_tensors(item, change) for item in value.values))
    return value


def with_value(inputs: Inputs, name: str, value: Value) -> Inputs:
    """Return the inputs with one value added or replaced."""
    return tuple({**dict(inputs), name: value}.items())


def format_call(name: str, arguments: Mapping[str, str]) -> str:
    """Return a call with these keyword arguments, as an expression."""
    return f"{name}({', '.join(f'{key}={text}' for key, text in sorted(arguments.items()))})"


def format_dict(items: Mapping[Any, str]) -> str:
    """Return a dict with these items, as an expression."""
    return f"{{{', '.join(f'{name!r}: {text}' for name, text in items.items())}}}"


# -- tensors -----------------------------------------------------------------------------------------------------------


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


# -- parameters --------------------------------------------------------------------------------------------------------


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


def read_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function or class, empty if its signature is unavailable.

    Of a class that takes anything (`*args, **kwargs`), as its metaclass may, they are those of the first constructor in
    its order of classes that states its own.
    """
    try:
        parameters = dict(inspect.signature(function).parameters)
        for owner in function.__mro__ if isinstance(function, type) else ():
            if len(parameters) != 2 or not all(map(is_variadic, parameters.values())):
                break
            if "__init__" in vars(owner):
                _, *names = (own := inspect.signature(vars(owner)["__init__"]).parameters)
                parameters = {name: own[name] for name in names}
    except Exception:  # noqa: BLE001 - what is foreign may refuse to be looked at in any way
        return {}
    return parameters


# -- by name and annotation --------------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """Values for parameters whose lower-case name or annotation fully matches a pattern."""

    pattern: str
    values: str  # separated by |


NAMES: tuple[Rule, ...] = (
    Rule(
        r".*heads?|head_num|(output|out|roi|pool(ed|ing)?|patch|tubelet|grid|cell|win(dow)?)_?(size|shape)|ps|ws"
        r"|(.*_)?(ratio|factor|reduction)",
        "4|(4, 4)|2|1|7|(2, 4, 4)|0.25",
    ),
    Rule(r"kernel(_sizes?|s)?|ksize|ks|(num_)?anchors?|na", "3|(3, 3)|[3, 5]|[3, 3]"),
    Rule(r"strides?|s|padding|pad|p|dilations?|d|.*(token_id|pad(ding)?_idx)", "1|2|(1, 1)|[1, 2, 2, 2]|[4, 8, 16]"),
    Rule(
        r"((num|n)_)?(hidden_)?(layers?|blocks|stages|levels|convs|stacks|depth)|depths|repeats?"
        r"|((up|down)_?)?(scales?|sample|rate)(_factor)?",
        "2|1|3|4|[2, 2, 2, 2]|[1, 2]|(2, 2)",
    ),
    Rule(r"(num|n)?_?class(es)?|nc|(num|n)_(labels|outputs?)", "10|4"),
    Rule(r".*drop(out)?(_?(prob|rate|path|p|ratio|out))?s?|prob|dpr|(.*_)?eps", "0.1|[0.1, 0.1]|0.0|1e-05"),
    Rule(r"(act(ivation)?|norm|conv|attn|block|layer)_?(class|cls)", "nn.ReLU|nn.Identity|@block|nn.BatchNorm2d"),
    Rule(r"(is|use|add|with|has|return|output|enable|tie)_.*|_?apply_.*", "False|True"),
    Rule(r"(.*_)?act(ivation)?(_?(fn|func|function))?", "'relu'|nn.ReLU()|nn.ReLU"),
)
ANNOTATIONS: tuple[Rule, ...] = (
    Rule(r"bool", "False|True"),
    Rule(
        r"(torch\.)?(float|long)?tensor\b.*",
        "torch.rand((32, 32))|torch.rand((32,))|torch.rand((2, 32, 16, 16))|torch.tensor(1.0)",
    ),
    Rule(r".*ndarray.*", "np.ones((32, 32), dtype='float32')|np.ones((32,), dtype='float32')"),
    Rule(
        r".*(list|sequence|iterable)\[.*(callable|module).*",
        "[nn.Identity(), nn.Identity()]|nn.ModuleList([nn.Identity()])",
    ),
    Rule(r"(type|callable).*", "nn.Identity|nn.ReLU|@block|F.relu"),
    Rule(r".*(module|nn\.).*", "nn.Identity()|nn.Linear(32, 32)|nn.Identity"),
    Rule(r".*(list|sequence|iterable)\[str.*", "['0', '1']"),
    Rule(r".*(list|sequence|tuple|iterable|size).*", "[32, 32]|[32, 32, 32]|(4, 4)|[2, 2, 2, 2]|(32, 32)"),
    Rule(r".*(dict|mapping).*", "{}|{'0': 32}"),
    Rule(r".*float.*", "0.5|1.0"),
    Rule(r".*int.*", "32|4|2|1"),
    Rule(r".*str.*", "'mean'|'relu'|''"),
)
ANYTHING = "32|[32, 32, 32]|2|None|nn.Identity()|[32, 32]|(32, 32)|[32, 32, 32, 32]|@block|'mean'|0.5|3"

#: Patterns of annotations, and of the start of expressions with a matching type.
_STARTS: tuple[tuple[str, str], ...] = (
    (r"(typing\.)?(list|tuple|sequence|iterable)\b.*", r"[\[(]"),
    (r"str|literal\[['\"].*", r"['\"]"),
    (r"(typing\.)?(dict|mapping)\b.*", r"[{]|dict\("),
)


def candidates(name: str, annotation: object = inspect.Parameter.empty) -> tuple[str, ...]:
    """Return the usual values of a parameter, most likely first, with `BLOCK` unexpanded."""
    spelling = annotation_text(annotation).lower().removeprefix("typing.")
    texts = [*_match(NAMES, name.lower().strip("_")), *_match(ANNOTATIONS, spelling)]
    start = next((start for pattern, start in _STARTS if re.fullmatch(pattern, spelling)), "")
    texts.sort(key=lambda text: re.match(start, text) is None)
    return tuple(dict.fromkeys(texts if len(texts) > 3 else [*texts, *ANYTHING.split("|")]))


def _match(rules: Iterable[Rule], text: str) -> list[str]:
    return next((rule.values.split("|") for rule in rules if re.fullmatch(rule.pattern, text)), [])


def list_compared(module: str, name: str, annotation: object = inspect.Parameter.empty) -> tuple[str, ...]:
    """Return the texts that a file compares a name with, unless an annotation asks for something else than a text."""
    spelling = annotation_text(annotation)
    takes_text = not spelling or re.search(r"(?i)str|literal|any\b|enum", spelling)
    return read_compared(module).get(name, ()) if takes_text else ()


@functools.cache
def read_compared(module: str) -> Mapping[str, tuple[str, ...]]:
    """Return the texts that the names in an imported module are compared with; empty if its text is unavailable.

        assert mode.lower() in ("mean", "max")              # mode: 'mean', 'max'
        self.scale = SCALES[mode]                           # mode: the keys of SCALES
        self.scale = tables.scales.get(mode)                # mode: the keys of tables.scales

    A name means the same wherever a file uses it, so its functions and other classes count, too.
    """
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[str, dict[str, None]] = {}
    for node in ast.walk(tree):
        texts: Iterable[object] = ()
        named: ast.expr | None = None
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.In | ast.NotIn):
            texts = [part.value for part in ast.walk(node.comparators[0]) if isinstance(part, ast.Constant)]
            named = node.left
        elif isinstance(node, ast.Subscript):
            texts, named = _list_keys(node.value, module), node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            texts, named = _list_keys(node.func.value, module), node.args[0] if node.args else None
        names = re.fullmatch(r"(?:.*\.)?(\w+?)(?:\.\w+\(\))?", ast.unparse(named)) if texts and named else None
        for text in texts if names is not None else ():
            if isinstance(text, str) and names is not None:
                found.setdefault(names[1], {})[repr(text)] = None
    return {name: tuple(texts)[:_MAX_COMPARED] for name, texts in found.items()}


def _list_keys(table: ast.expr, module: str) -> list[str]:
    """Return the keys of a dict that an imported module names: `SCALES`, or `tables.scales`."""
    attributes: list[str] = []
    while isinstance(table, ast.Attribute):
        attributes.insert(0, table.attr)
        table = table.value
    held = vars(sys.modules[module]).get(table.id) if isinstance(table, ast.Name) else None
    for attribute in attributes:
        held = inspect.getattr_static(held, attribute, None)
    return sorted(map(str, held)) if isinstance(held, dict) else []


#: Patterns of names, the small size to use, and the largest default that is kept.
SMALL: tuple[tuple[str, int, int], ...] = (
    (r".*(token_id|token_index|pad_idx|padding_idx)", 1, 100),
    (r".*(vocab_size|num_embeddings|n_vocab|vocab)", 128, 128),
    (r".*(layers?|num_blocks|depths?|repeats)", 2, 2),
    (r".*(heads?|n_head)", 4, 4),
    (r"d_[kqv]|.*head_dim|head_size", 8, 8),
    (r".*(image_size|img_size)", 32, 64),
    (r".*(patch_size|patch)", 4, 4),
    (r".*(positions?|_positions_?.*|position_embeddings|n_ctx|max_.*_?len.*|sliding_window)", 64, 64),
    (r".*(intermediate|ffn|feed_?forward|d_ff|mlp_dim|inner).*", 64, 64),
    (r".*num_labels|num_classes", 10, 10),
    (r".*(embed|hidden|model|width|channel|dim|_size|features|n_embd|filters|planes).*", 32, 64),
)


def shrunk(name: str, default: object) -> str | None:
    """Return a small value for a parameter with a large default, or None to keep the default."""
    lower = name.lower().strip("_")
    small, limit = next(((size, most) for pattern, size, most in SMALL if re.fullmatch(pattern, lower)), (0, 0))
    if small and type(default) is int:
        return str(small) if default > limit else None
    size = min(small, 32)  # of widths; numbers of heads and depths are smaller
    if not small or not isinstance(default, list | tuple) or not all(type(item) is int for item in default):
        return None
    if max(default, default=0) <= 2 * size:
        return None
    # Numbers of heads divide widths.
    fresh = [size if size < 32 and size % max(min(item, size), 1) else min(item, size) for item in default]
    return str(type(default)(fresh))


def shrunk_arguments(defaults: Mapping[str, object]) -> dict[str, str]:
    """Return small values for all parameters whose defaults make the model large."""
    texts = {name: shrunk(name, default) for name, default in defaults.items()}
    return {name: text for name, text in texts.items() if text is not None}


# -- the first inputs of forward ---------------------------------------------------------------------------------------

BATCH = 2
_TOKENS = 16
_NODES, _EDGES = 8, 16  # of the small graph used for graph networks

_SEQUENCES = re.compile(r"hidden_states?|src|tgt|quer(y|ies)|q|tokens|memory|inputs_embeds|seq(uence)?|hidden")
_IMAGES = re.compile(r"pixel_values|imgs?|images?|feat(ure)?s?|fmap")
_INDEX = re.compile(r".*(ids|labels?|indices|index|idx|timesteps?|token)|t|y|texts?|words")
_MASK = re.compile(r".*mask.*|valid.*")
_TENSORS = re.compile(r"(typing\.)?[tT]uple\[(torch\.)?Tensor(, ?(torch\.)?Tensor)+\]")  # as many as it states
_TARGETS = re.compile(r"targets?|labels?|gt|y_true")
_GRAPH = {"edge_index", "adj_t", "batch", "index"}  # arguments that have the same meaning everywhere
_NUMBERS = r"(list|sequence|tuple|iterable|size)\[int.*\]"  # sides of an image or a map

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

#: Shapes for a number of channels by rank, most likely first; of one number the shape's axes are as they stand.
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

#: Gives the texts that the block's file compares a parameter with.
Compared = Callable[[str, object], Sequence[str]]


def read_layers(module: nn.Module) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """Return the channels and ranks that the first layers expect, and whether the first one is an embedding."""
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
    return tuple(dict.fromkeys(channels))[:6], tuple(dict.fromkeys(ranks)), embeds


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
    values: list[Value] = []
    if re.search(r"\bNone\b|Optional\[", annotation) and "Tensor" not in annotation:
        values.append(Literal("None"))
    if plain in ("int", "bool"):
        values += map(Literal, ("4", "1") if plain == "int" else ("False", "True"))
    elif re.fullmatch(r"(list|sequence|tuple|iterable)\[tensor(,\.\.\.)?\]", plain):
        values.append(ListOfValues((main, main)))
    elif re.fullmatch(_NUMBERS, plain):
        sides = _list_sides(main, max(plain.count("int"), 2))
        values.append(Literal(str(sides if plain.startswith(("tuple", "size")) else list(sides))))
    return values


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


def list_first_inputs(
    module: nn.Module, parameters: Mapping[str, inspect.Parameter], compared: Compared
) -> Iterator[Inputs]:
    """Yield the inputs to start from, most likely first: one for each layout and number of channels.

    Those of a graph come first where arguments have its names; they may take something else.
    """
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
    channels, ranks, embeds = read_layers(module)
    loss = is_loss(parameters, type(module).__name__)
    spelled = {name: annotation_text(parameters[name.lstrip("*")].annotation) for name in names}

    def choose(name: str, main: Tensor) -> list[Value]:
        by_annotation = values_from_annotation(spelled[name], main)
        texts = compared(name, parameters[name].annotation)
        by_name = [*map(Literal, texts), *propose_like_main(name, main, loss=loss)]
        return [*by_name, *by_annotation] if find_meaning(name) is not None else [*by_annotation, *by_name]

    for graph in (True, False) if not _GRAPH.isdisjoint(parameters) else (False,):
        by_name = [4] if _IMAGES.fullmatch(names[0].lower()) else [3] if _SEQUENCES.fullmatch(names[0].lower()) else []
        first_ranks = [2] if graph or loss else [2, 3] if embeds else []
        shapes = [s for rank in dict.fromkeys([*first_ranks, *by_name, *ranks, 4, 3, 2, 5, 1]) for s in _LAYOUTS[rank]]
        for position, layout in enumerate(shapes[:1] if graph else shapes):
            for size in (channels or (32, 3))[: 2 if position < 2 else 1]:
                for value in _list_main(names[0], spelled[names[0]], layout(size), embeds=embeds):
                    main: Value = Tensor((_NODES, size)) if graph and isinstance(value, Tensor) else value
                    like = next(tensors_in(main), Tensor((BATCH, size, 16, 16)))
                    choices = [(name, choose(name, like)) for name in names[1:]]
                    likeliest = [(name, values[0]) for name, values in choices]
                    yield ((names[0], main), *likeliest)
                    for other in choices[0][1][1:3] if choices and (loss or len(choices) == 1) else ():
                        yield ((names[0], main), (names[1], other), *likeliest[1:])


def _list_main(name: str, annotation: str, shape: tuple[int, ...], *, embeds: bool) -> Iterator[Value]:
    """Yield values for the first argument in one layout."""
    if _TENSORS.fullmatch(annotation):
        tensor = Tensor((BATCH, _TOKENS), INDEX) if embeds else Tensor(shape)
        yield ListOfValues((tensor,) * annotation.count("Tensor"), is_tuple=True)
    if (value := find_meaning(name)) is not None:
        yield value
    if _INDEX.fullmatch(name.lower()) or (embeds and len(shape) in (2, 3)):
        indices = [Tensor((BATCH, _TOKENS), INDEX), Tensor((BATCH,), INDEX)]
        yield from reversed(indices) if len(shape) == 1 else indices
    if re.match(r"(typing\.)?(dict|(mutable)?mapping)\b", annotation.lower()):
        yield Literal("{}")
    if re.match(r"(typing\.)?(list|tuple|sequence)\b", annotation.lower()):
        yield ListOfValues((Tensor(shape), Tensor(shape)), is_tuple="tuple" in annotation.lower())
    yield Tensor(shape)
