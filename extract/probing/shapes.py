"""Inputs to try for forward, told from its arguments' names, the documented shapes, and the layers of the module."""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from extract.probing.running import has_shape
from extract.probing.tensors import COMPLEX, FLOAT, INDEX, MASK, POSITIVE, Fields, Inputs, Items, Literal, Tensor, Value

BATCH = 2
_NODES, _EDGES = 8, 16

#: Kinds of activations by how their sizes are laid out.
NCHW, NHWC, NLC, NC, NCL, NCTHW, N, LNC, NCHW_LARGE, NTC_LONG = range(10)


@dataclass(frozen=True, slots=True)
class Layers:
    """What the layers of a module say about its input."""

    channels: tuple[int, ...]  # of the first layers, the first first
    ranks: tuple[int, ...]  # of the input, by the kind of the first layers
    embeds: bool  # its first layer looks up an embedding
    dtype: str = "float32"


def look_at(module: nn.Module) -> Layers:
    """What the first layers take."""
    channels: list[int] = []
    ranks: list[int] = []
    embeds = False
    for layer in module.modules():
        size, rank = _takes(layer)
        if isinstance(layer, nn.Embedding) and not channels:
            embeds = True
        if size:
            channels.append(size)
        if rank:
            ranks.append(rank)
    for parameter in (p for p in module.parameters(recurse=False) if has_shape(p) and p.dim()):
        channels += [size for size in parameter.shape if size > 1]
    unique = tuple(dict.fromkeys(channels))
    return Layers(unique[:6], tuple(dict.fromkeys(ranks)), embeds)


def _takes(layer: nn.Module) -> tuple[int, int]:
    """Channels that a layer takes, and the rank of its input; 0 for unknown."""
    kinds: Sequence[tuple[type[nn.Module], str, int]] = (
        (nn.Conv2d, "in_channels", 4),
        (nn.ConvTranspose2d, "in_channels", 4),
        (nn.Conv1d, "in_channels", 3),
        (nn.Conv3d, "in_channels", 5),
        (nn.BatchNorm2d, "num_features", 4),
        (nn.BatchNorm1d, "num_features", 2),
        (nn.BatchNorm3d, "num_features", 5),
        (nn.GroupNorm, "num_channels", 4),
        (nn.Linear, "in_features", 3),
        (nn.LSTM, "input_size", 3),
        (nn.GRU, "input_size", 3),
        (nn.MultiheadAttention, "embed_dim", 3),
    )
    for kind, attribute, rank in kinds:
        if isinstance(layer, kind):
            value = getattr(layer, attribute, 0)
            return (value if isinstance(value, int) else 0), rank
    if isinstance(layer, nn.LayerNorm) and len(layer.normalized_shape) == 1:
        return layer.normalized_shape[0], 3
    return 0, 0


def layouts(channels: int, image: int = 16) -> dict[int, tuple[int, ...]]:
    """Shapes by rank and layout, for a number of channels."""
    return {
        NCHW: (BATCH, channels, image, image),
        NLC: (BATCH, 16, channels),
        NC: (BATCH, channels),
        NHWC: (BATCH, 8, 8, channels),
        NCL: (BATCH, channels, 16),
        NCTHW: (BATCH, channels, 4, 16, 16),
        N: (channels,),
        LNC: (16, BATCH, channels),
        NCHW_LARGE: (BATCH, channels, 64, 64),
        NTC_LONG: (BATCH, 64, channels),
    }


_OF_RANK = {1: (N,), 2: (NC,), 3: (NLC, NCL, LNC, NTC_LONG), 4: (NCHW, NHWC, NCHW_LARGE), 5: (NCTHW,)}


def orders(layers: Layers, documented: Sequence[int], name: str) -> list[int]:
    """Layouts to try for the main input, the likeliest first."""
    ranks = [*documented, *layers.ranks]
    lower = name.lower()
    if lower in {
        "hidden_states",
        "hidden_state",
        "src",
        "tgt",
        "query",
        "q",
        "queries",
        "tokens",
        "memory",
        "inputs_embeds",
        "seq",
        "sequence",
        "hidden",
    }:
        ranks.insert(len(documented), 3)
    if lower in {"pixel_values", "img", "image", "images", "imgs", "feat", "feature", "features", "fmap"}:
        ranks.insert(len(documented), 4)
    ranks += [4, 3, 2, 5, 1]
    found = [kind for rank in ranks for kind in _OF_RANK.get(rank, ())]
    return list(dict.fromkeys(found))


_INDEX = (
    r".*(ids|token_type.*|labels?|indices|index|idx|timesteps?|token)$"
    r"|^(t|y|text|texts|words)$"
)
_MASK = r".*mask.*|.*_mask|valid.*"
_LISTS = (
    r"inputs|feats|features|xs|multi_level.*|mlvl.*|hidden_states_list|feature_maps|backbone_features|x_list|preds_list"
    r"|ins|laterals|feature_list|img_feats"
)

# Arguments with one meaning across the field: shapes in N nodes, E edges, C channels, L tokens.
_FIXED: tuple[tuple[str, Value], ...] = (
    (r"edge_index.*|adj_t|edge_label_index|edges|edge_index_dict", Tensor((2, _EDGES), INDEX, _NODES)),
    (r"edge_(weight|attr_weight)|weights?_edge", Tensor((_EDGES,), POSITIVE)),
    (r"edge_types?|rel_type|edge_label", Tensor((_EDGES,), INDEX)),
    (r"batch(_[xy]|_index|_idx)?|batch_vec", Tensor((_NODES,), INDEX, 1)),
    (r"num_nodes|dim_size|size_?n", Literal(str(_NODES))),
    (r"pos|coords?|points|xyz|pos_[ij]", Tensor((_NODES, 3))),
    (r"z|atomic_numbers|node_type|atom_types?", Tensor((_NODES,), INDEX, 8)),
    (r"hyperedge_index", Tensor((2, _EDGES), INDEX, _NODES)),
    (
        r"(box|bbox)(es)?|rois|proposals|anchors",
        Literal("torch.tensor([[0.0, 1.0, 1.0, 6.0, 6.0], [1.0, 2.0, 2.0, 7.0, 7.0]])"),
    ),
    (r"(h|height|H|W|w|width|hh|ww)|h_|w_", Literal("4")),
    (
        r"(hw|size|spatial_size|hw_shape|input_size|grid_size|target_size|output_size|img_size|image_size|feat_size|resolution|patch_resolution|input_dimensions|shape)|hw_shapes?|output_shape|interpolation_size",
        Literal("(4, 4)"),
    ),
    (r"spatial_shapes_list", Literal("[(4, 4)]")),
    (r"(spatial_shapes?)", Literal("torch.tensor([[4, 4]])")),
    (r"level_start_index", Literal("torch.tensor([0])")),
    (r"reference_points", Tensor((BATCH, 16, 1, 2), POSITIVE)),
    (r"(num_heads|heads)", Literal("4")),
    (r"(seq_?len|length|seq_length|sequence_length|L|max_len|[qk]v?_?len|num_tokens|tgt_len|src_len)", Literal("16")),
    (r"(batch_size|bsz|bs|B|b)", Literal(str(BATCH))),
    (r"(num_frames|T|frames)", Literal("4")),
    (
        r"(training|return_.*|use_.*|output_.*|need_.*|is_.*|only_.*|do_.*|augment|profile|visualize|inplace|causal|deterministic)",
        Literal("False"),
    ),
    (r"(scale|scale_factor|temperature|drop_prob|p|alpha|eps)", Literal("1.0")),
    (r"(layer_idx|layer_id|idx_layer|i|level|block_idx|step)", Literal("0")),
    (r"(mode)", Literal("'tensor'")),
    (
        r"(batch_?img_?metas|img_metas|metas|batch_data_samples|data_samples)",
        Literal(
            "[{'img_shape': (64, 64), 'pad_shape': (64, 64), 'ori_shape': (64, 64), 'batch_input_shape': (64, 64), "
            "'scale_factor': (1.0, 1.0)}] * 2"
        ),
    ),
    (r"(device)", Literal("torch.device('cpu')")),
    (r"(dtype)", Literal("torch.float32")),
    (r"(image_sizes)", Literal("[(64, 64), (64, 64)]")),
    (r"(grid_thw|image_grid_thw)", Literal("torch.tensor([[1, 4, 4]])")),
    (r"(cu_seqlens)", Literal("torch.tensor([0, 16], dtype=torch.int32)")),
    (r"(freqs_cis)", Tensor((16, 4), COMPLEX)),
    (r"(index|ptr)", Tensor((_NODES,), INDEX, 1)),
)


def fixed(name: str) -> Value | None:
    """The value of an argument whose name says what it is."""
    return next((value for pattern, value in _FIXED if re.fullmatch(pattern, name)), None)


def is_graph(arguments: Sequence[str]) -> bool:
    """Whether forward works on graphs: its main input has a row for each node."""
    return any(
        name in {"edge_index", "adj_t", "batch", "index", "edge_index_dict", "hyperedge_index"} for name in arguments
    )


def is_loss(arguments: Sequence[str], class_name: str) -> bool:
    """Whether forward compares a prediction with a target."""
    targets = {"target", "targets", "label", "labels", "gt", "y_true", "soft_label"}
    return bool(targets & set(arguments)) or class_name.lower().endswith(("loss", "criterion"))


def like_main(name: str, main: Tensor, *, loss: bool) -> list[Value]:
    """Values for a further argument, given the main input: what its name says, else a tensor like the main one."""
    value = fixed(name)
    if value is not None and not (loss and name in {"pos", "mode"}):
        return [value, main]
    lower = name.lower()
    tokens = main.shape[1] if len(main.shape) == 3 else main.shape[-1]
    rows = main.shape[:1]
    if loss and lower in {"target", "targets", "label", "labels", "gt", "y", "y_true", "input2", "x2"}:
        return [
            main,
            Tensor(main.shape, POSITIVE),
            Tensor(rows, INDEX),
            Tensor((rows[0], *main.shape[2:]), INDEX),
            Tensor(rows),
        ]
    if lower in {"position_embeddings", "rotary_pos_emb", "rope", "cos_sin"}:
        pair = Tensor((1, tokens, 8))
        return [Items((pair, pair), is_tuple=True), main, Literal("None")]
    if lower in {"attention_mask", "attn_mask"}:
        return [
            Literal("None"),
            Tensor((rows[0], 1, tokens, tokens)),
            Tensor((rows[0], tokens), MASK),
            Tensor((tokens, tokens), MASK),
        ]
    if re.fullmatch(r"cos|sin", lower):
        return [Tensor((1, tokens, 8)), main]
    if re.fullmatch(_MASK, lower):
        return [
            Literal("None"),
            Tensor((rows[0], tokens), MASK),
            Tensor(main.shape, MASK),
            Tensor((rows[0], *main.shape[2:]), MASK),
        ]
    if re.fullmatch(_INDEX, lower):
        return [Tensor((rows[0], tokens), INDEX), Tensor(rows, INDEX), main, Literal("None")]
    if re.fullmatch(_LISTS, lower):
        return [Items((main, main)), main]
    return [main, Literal("None"), Literal("1"), Tensor((rows[0], tokens), INDEX)]


def main_values(name: str, annotation: str, layout: int, channels: int, layers: Layers) -> Iterator[Value]:
    """Values for the first argument in one layout."""
    shape = layouts(channels)[layout]
    lower = name.lower()
    value = fixed(name)
    if value is not None:
        yield value
    looks_up = re.fullmatch(_INDEX, lower) is not None or (layers.embeds and len(shape) in (2, 3))
    if looks_up:
        yield Tensor((BATCH, 16), INDEX)
        yield Tensor((BATCH,), INDEX)
    listed = (
        re.fullmatch(_LISTS, lower) is not None or re.match(r"(list|tuple|sequence)", annotation.lower()) is not None
    )
    if listed:
        yield pyramid(channels, 3, max(8, shape[-1] if len(shape) == 4 else 16))
    yield Tensor(shape, FLOAT)
    if listed:
        return


def pyramid(channels: int | Sequence[int], levels: int, largest: int = 32) -> Items:
    """Feature maps of falling size, as a backbone gives them."""
    widths = [channels] * levels if isinstance(channels, int) else list(channels)
    return Items(
        tuple(Tensor((BATCH, width, max(1, largest >> i), max(1, largest >> i))) for i, width in enumerate(widths))
    )


def graph_main(channels: int) -> Tensor:
    """Features of the nodes of the small graph that `edge_index` is of."""
    return Tensor((_NODES, channels))


def required(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """Names of forward's arguments that have no default, in order; one for `*inputs`."""
    names = [
        name
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    if not names:
        names = [f"*{name}" for name, parameter in parameters.items() if parameter.kind is parameter.VAR_POSITIONAL]
    return names


def with_value(inputs: Inputs, name: str, value: Value) -> Inputs:
    """The inputs with one more or another value."""
    if any(known == name for known, _ in inputs):
        return tuple((known, value if known == name else old) for known, old in inputs)
    return (*inputs, (name, value))


def mapping_of(value: Value, keys: Sequence[str]) -> Fields:
    """A dict that holds the value under each key."""
    return Fields(tuple((key, value) for key in keys))
