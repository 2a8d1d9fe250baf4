"""Category of a class, inferred from its name, its base classes, its graph and its module.

A name is split into words (`RoIAlign` is `roi align`, `MaxPool2d` is `max pool`), and the first rule with a matching
pattern decides; more specific words come first, so that `FocalLossHead` is a loss, `MultiHeadAttention` is
attention and `ConvNormAct` a convolution. If the name matches no rule, the names of the base classes are tried, then
the operations of the graph, if the class has one, then the folders and the file of the module, then weak words like
`block`. Two folders override the name: classes among transforms are augmentation or, if their name does not say so,
nothing known (they also scale targets and prepare batches), and a convolution of a graph library works on graphs.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache

from lemur_core.graphs.graph import Graph

OTHER = "Other"

#: Patterns of whole words, separated by commas; `^` and `$` are the ends of the name. The first match decides.
_NAMES: tuple[tuple[str, str], ...] = (
    ("Loss", "loss(es)?, criterion, cross entropy, ghm[cr], divergence"),
    ("Network", "for [a-z].*"),
    (
        "Augmentation",
        "random .*, batch .*(resize|pad)$, ^resize( .*)?$, (center|five|ten) crop, ^normalize$, "
        "(auto|rand|trivial) augment, aug mix, cut ?mix, mix ?up, color jitter, gr[ae]yscale, "
        "gaussian (blur|noise), elastic transform, convert image dtype, linear transformation, "
        r"data preprocessor, tp ?s transform, \w*augment",
    ),
    ("Quantization", r"quantiz\w*, fake quant, (de)?quant, observer"),
    ("Regularization", "drop ?(path|out|block|connect)?, stochastic depth"),
    (
        "Attention",
        r"\w*attention, \w*attns?, att, attentive, non ?local, excite, excitation, self output$, "
        "se( module| layer)?$, (e|ese|eca|ceca|gca|ema) module, cbam, selective kernel, context block, "
        "(mh|sh|gp|p|c2p)sa, xca, lite mla, mla( module)?$, global context$, focal modulation, savpe",
    ),
    (
        "Head",
        r"\w*heads?, classif(y|ier), predict(ors?)?, \w*detect$, proto, output layers, dfl, integral, "
        "(i|sigmoid) bin, i keypoint, head transform",
    ),
    ("Neck", r"\w*fpn, neck, pan, feature pyramid, last level"),
    ("MLP", r"\w*mlp$, \w*ffn$, feed ?forward, ff, intermediate$, output$, (swi|ge|re) ?glu"),
    (
        "Graph",
        r"\w*gnn\w*, \w*gcn, gat, gin, gae, gps, gpse, graph, \w*sage, message, hetero, tgn, node, "
        "edge (conv|block|pooling|embedding), grapher, (wl|mr|pna|dirgnn) conv, kge, linkx, knn, "
        "(sch|dime|vis) ?net( block)?, jumping knowledge, meta (layer|path), aggregat(or|ion), link encoder, "
        "interaction, inner product decoder, correct and smooth, neural fingerprint, atomref",
    ),
    (
        "Detection",
        r"roi, align, anchors?, nms, rpn, rcnn, proposals?, \w*box(es)?, matcher, assigner, ssd, ssd\w*, "
        r"fcos, retina ?net, yolo\w*, \w*detector, detection, \w*detr, corner pool, dynamic scatter, "
        r"voxel\w*, (?<!down )(?<!up )sampler$, query and group, group all, center prior, trim border, "
        "kernel updat(e|or), task decomposition",
    ),
    (
        "Embedding",
        r"embed, \w*embeds?, \w*embeddings?, embedder, pos (enc|conv|embed|bias), position(al)?, rotary, "
        r"rope, ^rel pos( bias| mlp)?( tf)?$, encoding, patchify, smearing, fourier (features?|encod\w*|project\w*), "
        "basis, tokenizer, time encoder, timesteps?, sinusoid(al)?, envelope, alibi, codebook",
    ),
    (
        "Segmentation",
        r"\w*seg, segment(or|ation)?, semantic, mask, pixel decoder, ^sam, side adapter, lraspp, "
        "prompt encoder",
    ),
    ("Recurrent", r"\w*lstm, \w*gru, \w*rnn, recurrent, mamba(?! out), rwkv, ssm, update block"),
    (
        "Resampling",
        r"(down|up) ?(sampl|scal)\w*, [as]?c?down, up, pixel (un)?shuffle, patch (merg|split|expand)\w*, "
        "carafe, interp, (depth|space) to (depth|space), resampler?, transpose, deconv, blur, re org, "
        "factorized reduction, ^(contract|expand|focus|mp)$",
    ),
    ("Pooling", r"\w*pool(ing|er)?( same padding| output)?$, \w*spp\w*, ^sp$, ppm$"),
    (
        "Normalization",
        r"^(?!.*(conv|linear|mlp|block)).*norm( act| tlu| edge| node| fp| [bs]\d)*( layer)?$, abn$, ^grn$, "
        "normalization$",
    ),
    ("Network", r"\w*net( features| encoder| large| a large| wrapper)?$, ^(vgg|dla|dpn|raft|xception( aligned)?)$"),
    (
        "Transformer",
        r"\w*transformers?, \w*former, \w*vit, swin, deit, beit, (en|de)coder (layer|block), tnt, perceiver, "
        "cait, xcit, coat, twins, volo, nest( level)?$, levit, hiera, outlooker, eva, rel pos block, "
        r"layer scale block, rtmcc, things block, focal net, \w*bert layer, naflex",
    ),
    (
        "Convolution",
        r"\w*convs?, convolution, \w*bottle ?2?neck\w*, inception( [a-e]| aux| block)$, fire$, separable, "
        r"stem, cell$, res(idual)?, rep( \w+)+, reparam, \w*csp\w*, ghost( \w+)*$, mixed\w*, \w*elan, dla, "
        r"cross stage, (first|normal|reduction) [ab]$, bn act$, xception, [a-z]*\d*c[123][a-z]?( .*)?$, "
        r"cb (fuse|linear), cib, \w*dcn\w*, lka, resolution module, (dark|hg|edge|cx|cn|osa) block, "
        "(dense|basic|res net) (block|layer|stage), selec sls, norm free, oso?a stage, dense layer",
    ),
    (
        "Activation",
        r"\w*relu, \w*gelu, \w*silu, \w*elu, \w*glu$, swish, \w*sigmoid, \w*tanh, mish, softmax, "
        "soft(min|plus|shrink|sign), hard(shrink|tanh|sigmoid|swish), threshold, activation, tanhshrink, "
        "(act|acon c)$, snake",
    ),
    (
        "MLP",
        r"\w*mlp, \w*ffn, \w*linear, experts?, moe, adapter, lora, spatial gating, mixer, affine, "
        "project(or|ion), sequencer, dense$",
    ),
    ("Network", r"backbone, inception, model\w*, generator, discriminator, autoencoder, pyramid, u net"),
)

#: By folder or file of the module, if name and bases match nothing; from the file upwards.
_PLACES: tuple[tuple[str, str], ...] = (
    ("Loss", "loss(es)?"),
    ("Attention", "attention, attn"),
    ("Graph", "gnn, graph, geometric"),
    ("Head", "heads?"),
    ("Neck", "necks?, fpn"),
    ("Detection", r"roi, detectors?, detection, rpn, yolo\w*, \w*detr, bbox"),
    ("Segmentation", r"segmentors?, segmentation, \w*seg"),
    ("Embedding", r"embeddings?, pos\w* embed"),
    ("Activation", "activations?"),
    ("Normalization", "norm, normalization"),
    ("Pooling", "pooling, pool"),
    ("Recurrent", "rnn, recurrent, lstm, rwkv, mamba"),
    ("Quantization", r"quantiz\w*, quantized"),
    ("Transformer", r"transformer, \w*former, \w*vit, swin\w*, modeling, hiera, deit, beit, cait, xcit"),
    ("Convolution", r"\w*net, conv, resnet\w*, vgg, dla, rexnet, inception, xception, convnext\w*, conv next"),
)

#: By weak words of the name, if nothing else matches.
_WEAK: tuple[tuple[str, str], ...] = (("Convolution", "blocks?, stage, down, next"), ("Network", "encoder, decoder"))

_AUGMENTING = re.compile(r"\baugment")
_TRANSFORMS = re.compile(r"\btransforms\b")
_GRAPHS = re.compile(r"\bgeometric\b|\bgnn\b|\bgraph\b")
#: What a whole network may be called after: its parts.
_PARTS = frozenset({"Attention", "Convolution", "Detection", "MLP", "Recurrent", "Segmentation", "Transformer", OTHER})
_WEIGHTED = frozenset({"convolution", "linear", "attention", "lstm", "gru"})
_DEEP = 6  # operations with weights in a row; a block between stem and head has fewer
_ON_GRAPHS = frozenset({"Convolution", "Network", "Normalization", "Pooling", "MLP", "Resampling", OTHER})

_SPELLINGS = (
    ("R[oO]I", "Roi"),
    ("ReLU", "Relu"),
    ("SiLU", "Silu"),
    ("ViT", "Vit"),
    ("ViS", "Vis"),
    ("NeXt", "Next"),
    ("CoaT", "Coat"),
    ("NaFlex", "Naflex"),
    ("([DB])eiT", r"\1eit"),
    ("RoPE", "Rope"),
    ("LoRA", "Lora"),
    ("MoE", "Moe"),
    ("GLU(?=[A-Z])", "Glu"),
    (r"\dx\d", ""),
    (r"_?v\d+$", ""),
)
_WORD = re.compile(r"[A-Z]+(?![a-z])(?:\d+[a-z]*)?|[A-Z]?[a-z]+(?:\d+[a-z]*)?|\d+")
_VERSION = re.compile(r"v?\d+d?")


#: By the operations of the graph, if name and bases match nothing: all of one of these sets. The first match decides.
_STRUCTURES: tuple[tuple[str, tuple[frozenset[str], ...]], ...] = (
    ("Recurrent", tuple(frozenset({name}) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))),
    ("Transformer", tuple(frozenset({name, "layer_norm", "linear"}) for name in ("attention", "_softmax"))),
    ("Attention", (frozenset({"attention"}), frozenset({"_softmax", "matmul"}))),
    ("Convolution", (frozenset({"convolution"}),)),
    ("MLP", (frozenset({"linear"}),)),
    ("Embedding", (frozenset({"embedding"}),)),
    ("Normalization", tuple(frozenset({f"{name}_norm"}) for name in ("batch", "layer", "group", "instance", "rms"))),
)


#: What a graph must show at least one of; else a name or place means something else (`GCN`: global convolutions).
_SIGNS: Mapping[str, frozenset[str]] = {
    "Convolution": frozenset({"convolution", "im2col", "matmul", "unfold"}),
    "Graph": frozenset({"gather", "index", "index_add", "index_select", "matmul", "scatter", "scatter_add"})
    | {"scatter_reduce", "sparse_mm"},
    "Transformer": frozenset({"attention", "_softmax", "layer_norm", "linear", "matmul"}),
}


def is_network(graph: Graph) -> bool:
    """Return whether a graph takes images or words through many layers, and is more than their stem."""
    depth: list[int] = []
    sizes: list[tuple[int, ...]] = []  # of the images
    words = False
    for node in graph.nodes:
        depth.append(max((depth[ref.node] for ref in node.inputs), default=0) + (node.op in _WEIGHTED))
        shape = node.outputs[0].shape if node.outputs else ()
        if node.op == "input" and node.get("number") == 0 and len(shape) in (4, 5) and shape[1] in (1, 3):
            sizes.append(shape[2:])
        words |= node.op == "embedding" and any(graph.nodes[ref.node].op == "input" for ref in node.inputs)
    is_deep = max((depth[ref.node] for ref in graph.outputs), default=0) >= _DEEP
    outputs = [graph.type_of(ref).shape for ref in graph.outputs]
    is_stem = len(outputs) == 1 and len(outputs[0]) > 3 and outputs[0][2:] not in sizes
    return is_deep and (words or bool(sizes)) and not is_stem


def find_category(
    name: str, qualname: str, bases: Sequence[str], operations: AbstractSet[str] = frozenset(), *, whole: bool = False
) -> str:
    """Return the category of a class.

    Args:
        name: bare class name.
        qualname: dotted name, from which folders and file of the module are derived.
        bases: names of the base classes, dotted or not.
        operations: of the graph; none if there is no graph.
        whole: the graph is that of a whole network.
    """
    places = [split_words(part) for part in qualname.split(".")[:-1]]
    folders = places[1:] or places  # the name of a package says nothing of one of its classes
    if any(_AUGMENTING.search(folder) for folder in folders):
        return "Augmentation"
    if any(_TRANSFORMS.search(folder) for folder in folders):
        return "Augmentation" if _match_name(name) == "Augmentation" else OTHER
    candidates = (
        *(_match_name(word) for word in (name, *(base.rpartition(".")[2] for base in bases))),
        next((kind for kind, sets in _STRUCTURES if any(some <= operations for some in sets)), ""),
        *(_match(_PLACE_RULES, folder) for folder in reversed(folders)),
        _match(_WEAK_RULES, split_words(name)),
    )
    category = next((kind for kind in candidates if kind and not _contradicts(kind, operations)), OTHER)
    if whole and category in _PARTS:
        return "Network"
    # Losses, attention and the like keep their category in a graph library, too.
    if category in _ON_GRAPHS and any(_GRAPHS.search(folder) for folder in places):
        return "Graph"
    return category


def _contradicts(kind: str, operations: AbstractSet[str]) -> bool:
    """Return whether a graph with these operations shows that a name means something else; False without a graph."""
    return bool(operations) and _SIGNS.get(kind, frozenset(operations)).isdisjoint(operations)


def split_words(name: str) -> str:
    """Return the words of a name in lower case, separated by spaces, without version numbers and dimensions.

    `RoIAlignRotated_v2` gives `roi align rotated`, `MaxPool2dSamePadding` gives `max pool same padding`.
    """
    for spelling, plain in _SPELLINGS:
        name = re.sub(spelling, plain, name)
    words = (word.lower() for word in _WORD.findall(name))
    return " ".join(re.sub(r"(?<=[a-z]{2})\d+d?$", "", word) for word in words if not _VERSION.fullmatch(word))


def _compile(table: Iterable[tuple[str, str]]) -> tuple[tuple[str, re.Pattern[str]], ...]:
    alternatives = ((category, patterns.replace(", ", "|")) for category, patterns in table)
    return tuple((category, re.compile(rf"\b(?:{either})\b")) for category, either in alternatives)


_NAME_RULES, _PLACE_RULES, _WEAK_RULES = _compile(_NAMES), _compile(_PLACES), _compile(_WEAK)

#: All categories, in rule order.
CATEGORIES = (*dict.fromkeys(category for category, _ in _NAMES), OTHER)


def _match(rules: Iterable[tuple[str, re.Pattern[str]]], words: str) -> str:
    return next((category for category, pattern in rules if pattern.search(words)), "")


@lru_cache(maxsize=4096)
def _match_name(name: str) -> str:
    return _match(_NAME_RULES, split_words(name))
