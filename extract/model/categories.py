"""Category of a class by name, not proven: from its own name, those of its base classes, and its module.

A name is split into words (`RoIAlign` is `roi align`, `MaxPool2d` is `max pool`), and the first row of the table with
a matching pattern decides; more specific words come first, so that `FocalLossHead` is a loss, `MultiHeadAttention` is
attention and `ConvNormAct` a convolution. If the name matches no row, the names of the base classes are tried, then
the folders and the file of the module from the file upwards, then weak words like `block`. Two folders override the
name: classes among transforms are augmentation or, if their name does not say so, nothing known (they also scale
targets and prepare batches), and a convolution of a graph library works on graphs.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

OTHER = "Other"

#: Each category with patterns of whole words, separated by commas (`^` and `$` are the ends): of names; of the
#: module's folders and file; and weak ones of names. The first row that matches decides.
_TABLE = r"""
Loss; loss(es)?, criterion, cross entropy, ghm[cr], divergence; loss(es)?
Network; for [a-z].*
Augmentation; random .*, batch .*(resize|pad)$, ^resize( .*)?$, (center|five|ten) crop, ^normalize$,
    (auto|rand|trivial) augment, aug mix, cut ?mix, mix ?up, color jitter, gr[ae]yscale, gaussian (blur|noise),
    elastic transform, convert image dtype, linear transformation, data preprocessor, tp ?s transform, \w*augment
Quantization; quantiz\w*, fake quant, (de)?quant, observer; quantiz\w*, quantized
Regularization; drop ?(path|out|block|connect)?, stochastic depth
Attention; \w*attention, \w*attns?, att, attentive, non ?local, excite, excitation, self output$,
    se( module| layer)?$, (e|ese|eca|ceca|gca|ema) module, cbam, selective kernel, context block,
    (mh|sh|gp|p|c2p)sa, xca, lite mla, mla( module)?$, global context$, focal modulation, savpe; attention, attn
Head; \w*heads?, classif(y|ier), predict(ors?)?, \w*detect$, proto, output layers, dfl, integral, (i|sigmoid) bin,
    i keypoint, head transform; heads?
Neck; \w*fpn, neck, pan, feature pyramid, last level; necks?, fpn
MLP; \w*mlp$, \w*ffn$, feed ?forward, ff, intermediate$, output$, (swi|ge|re) ?glu
Graph; \w*gnn\w*, \w*gcn, gat, gin, gae, gps, gpse, graph, \w*sage, message, hetero, tgn, node,
    edge (conv|block|pooling|embedding), grapher, (wl|mr|pna|dirgnn) conv, kge, linkx, knn,
    (sch|dime|vis) ?net( block)?, jumping knowledge, meta (layer|path), aggregat(or|ion), link encoder, interaction,
    inner product decoder, correct and smooth, neural fingerprint, atomref; gnn, graph, geometric
Detection; roi, align, anchors?, nms, rpn, rcnn, proposals?, \w*box(es)?, matcher, assigner, ssd, ssd\w*, fcos,
    retina ?net, yolo\w*, \w*detector, detection, \w*detr, corner pool, dynamic scatter, voxel\w*,
    (?<!down )(?<!up )sampler$, query and group, group all, center prior, trim border, kernel updat(e|or),
    task decomposition; roi, detectors?, detection, rpn, yolo\w*, \w*detr, bbox
Embedding; embed, \w*embeds?, \w*embeddings?, embedder, pos (enc|conv|embed|bias), position(al)?, rotary, rope,
    ^rel pos( bias| mlp)?( tf)?$, encoding, patchify, smearing, fourier (features?|encod\w*|project\w*), basis,
    tokenizer, time encoder, timesteps?, sinusoid(al)?, envelope, alibi, codebook; embeddings?, pos\w* embed
Segmentation; \w*seg, segment(or|ation)?, semantic, mask, pixel decoder, ^sam, side adapter, lraspp, prompt encoder;
    segmentors?, segmentation, \w*seg
Recurrent; \w*lstm, \w*gru, \w*rnn, recurrent, mamba(?! out), rwkv, ssm, update block; rnn, recurrent, lstm, rwkv,
    mamba
Resampling; (down|up) ?(sampl|scal)\w*, [as]?c?down, up, pixel (un)?shuffle, patch (merg|split|expand)\w*, carafe,
    interp, (depth|space) to (depth|space), resampler?, transpose, deconv, blur, re org, factorized reduction,
    ^(contract|expand|focus|mp)$
Pooling; \w*pool(ing|er)?( same padding| output)?$, \w*spp\w*, ^sp$, ppm$; pooling, pool
Normalization; ^(?!.*(conv|linear|mlp|block)).*norm( act| tlu| edge| node| fp| [bs]\d)*( layer)?$, abn$, ^grn$,
    normalization$; norm, normalization
Network; \w*net( features| encoder| large| a large| wrapper)?$, ^(vgg|dla|dpn|raft|xception( aligned)?)$
Transformer; \w*transformers?, \w*former, \w*vit, swin, deit, beit, (en|de)coder (layer|block), tnt, perceiver,
    cait, xcit, coat, twins, volo, nest( level)?$, levit, hiera, outlooker, eva, rel pos block, layer scale block,
    rtmcc, things block, focal net, \w*bert layer, naflex; transformer, \w*former, \w*vit, swin\w*, modeling, hiera,
    deit, beit, cait, xcit
Convolution; \w*convs?, convolution, \w*bottle ?2?neck\w*, inception( [a-e]| aux| block)$, fire$, separable, stem,
    cell$, res(idual)?, rep( \w+)+, reparam, \w*csp\w*, ghost( \w+)*$, mixed\w*, \w*elan, dla, cross stage,
    (first|normal|reduction) [ab]$, bn act$, xception, [a-z]*\d*c[123][a-z]?( .*)?$, cb (fuse|linear), cib,
    \w*dcn\w*, lka, resolution module, (dark|hg|edge|cx|cn|osa) block, (dense|basic|res net) (block|layer|stage),
    selec sls, norm free, oso?a stage, dense layer; \w*net, conv, resnet\w*, vgg, dla, rexnet, inception, xception,
    convnext\w*, conv next; blocks?, stage, down, next
Activation; \w*relu, \w*gelu, \w*silu, \w*elu, \w*glu$, swish, \w*sigmoid, \w*tanh, mish, softmax,
    soft(min|plus|shrink|sign), hard(shrink|tanh|sigmoid|swish), threshold, activation, tanhshrink, (act|acon c)$,
    snake; activations?
MLP; \w*mlp, \w*ffn, \w*linear, experts?, moe, adapter, lora, spatial gating, mixer, affine, project(or|ion),
    sequencer, dense$
Network; backbone, inception, model\w*, generator, discriminator, autoencoder, pyramid, u net; ; encoder, decoder
"""

_TRANSFORMS = re.compile(r"\btransforms\b")
_GRAPHS = re.compile(r"\bgeometric\b|\bgnn\b|\bgraph\b")
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

_ROWS = [re.split("; ?", row) for row in re.sub(r"\n +", " ", _TABLE.strip()).split("\n")]
#: All categories, in the order of the table.
CATEGORIES = (*dict.fromkeys(category for category, *_ in _ROWS), OTHER)


def find_category(name: str, qualname: str, bases: Sequence[str]) -> str:
    """Return the category of a class.

    Args: name: its bare name. qualname: its dotted name. bases: names of its base classes, dotted or not.
    """
    places = [split_words(part) for part in qualname.split(".")[:-1]]
    folders = places[1:] or places  # the name of a package says nothing of one of its classes
    if any(re.search(r"\baugment", folder) for folder in folders):
        return "Augmentation"
    if any(_TRANSFORMS.search(folder) for folder in folders):
        return "Augmentation" if _match(1, split_words(name)) == "Augmentation" else OTHER
    words = [split_words(word) for word in (name, *(base.rpartition(".")[2] for base in bases))]
    tried = [*((1, each) for each in words), *((2, folder) for folder in reversed(folders)), (3, words[0])]
    category = next((found for column, each in tried if (found := _match(column, each))), OTHER)
    # Losses, attention and the like keep their category in a graph library, too.
    if category in _ON_GRAPHS and any(_GRAPHS.search(folder) for folder in places):
        return "Graph"
    return category


def split_words(name: str) -> str:
    """Return the words of a name in lower case, separated by spaces, without version numbers and dimensions.

    `RoIAlignRotated_v2` gives `roi align rotated`, `MaxPool2dSamePadding` gives `max pool same padding`.
    """
    for spelling, plain in _SPELLINGS:
        name = re.sub(spelling, plain, name)
    words = (word.lower() for word in _WORD.findall(name))
    return " ".join(re.sub(r"(?<=[a-z]{2})\d+d?$", "", word) for word in words if not _VERSION.fullmatch(word))


@lru_cache(maxsize=4096)
def _match(column: int, words: str) -> str:
    """Return the category of the first row whose pattern in a column is among the words; empty if there is none."""
    return next((category for category, patterns in _PATTERNS[column] if patterns.search(words)), "")


#: By column: the categories with a pattern there.
_PATTERNS = [
    [
        (row[0], re.compile(rf"\b(?:{row[column].replace(', ', '|')})\b"))
        for row in _ROWS
        if row[column:] and row[column]
    ]
    for column in range(4)
]
