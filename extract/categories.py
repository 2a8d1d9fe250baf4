"""What a class is for, told from its name, its base classes and the file that it stands in.

A name is split into words (`RoIAlign` is `roi align`, `MaxPool2d` is `max pool`), and the first rule that finds one of
its patterns decides; the more telling words stand first, so that `FocalLossHead` is a loss, `MultiHeadAttention` is
attention and `ConvNormAct` a convolution. Where the name tells nothing, the names of the base classes do, then the
folders and the file of the module. Nothing but names is read: the same class has the same category in every run.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

OTHER = "Other"

#: Patterns of whole words; `^` and `$` are the ends of the name. The first rule that matches decides.
_NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Loss", ("loss", "losses", "criterion", "cross entropy", "ghm[cr]", "divergence")),
    (
        "Augmentation",
        (
            *("^(random|batch) .*(crop|resize|pad|flip|apply|choice|order)", "^random .*", "^resize", "^normalize$"),
            *("(auto|rand|trivial) augment", "aug mix", "(cut|mix) ?(mix|up)", "color jitter", "(center|five|ten) crop"),
            *("gr[ae]yscale", "gaussian (blur|noise)", "elastic transform", "convert image dtype", "data preprocessor"),
            *("linear transformation", "tps transform"),
        ),
    ),
    ("Quantization", ("quantiz\\w*", "fake quant", "quant", "(de)?quant stub", "observer")),
    ("Regularization", ("drop", "drop ?(path|out|block|connect)", "stochastic depth", "patch dropout")),
    (
        "Attention",
        (
            *("\\w*attention", "attentive", "att[ns]?", "\\w*attns?", "non ?local", "squeeze(?! (net|bert))", "excite"),
            *("se( module| layer| block)?$", "(e|ese|eca|ceca|gca|ema|context) (module|block)", "cbam", "selective kernel"),
            *("(mh|sh|gp|p)sa", "xca", "(lite )?mla", "global context$", "focal modulation", "self output", "savpe"),
        ),
    ),
    ("Neck", ("\\w*fpn$", "fpn (block|stage|neck|cell)", "neck", "pan", "feature ?(pyramid|2pyramid)", "last level")),
    (
        "Head",
        (
            *("heads?(?! attention)", "\\w+head", "classifier", "classify", "predictors?", "\\w*d ?detect", "^i?detect", "proto"),
            *("output layers", "predict", "dfl", "integral", "(i|sigmoid) bin", "i keypoint", "lrpc"),
        ),
    ),
    (
        "Detection",
        (
            *("roi", "r?o?i? ?align", "anchors?", "nms", "rpn", "\\w*rcnn", "proposals?", "\\w*box(es)?", "matcher", "assigner"),
            *("ssd", "fcos", "retina ?net", "yolo\\w*", "\\w*detector", "detection", "\\w*detr", "corner pool", "dynamic scatter"),
            *("voxel\\w*", "points? sampler", "fs? sampler", "fps sampler", "(query and )?group( all)?$", "center prior"),
            *("trim border", "kernel updat(e|or)", "task decomposition", "prroi pool", "psroi (align|pool)"),
        ),
    ),
    (
        "Graph",
        (
            *("\\w*gnn", "\\w*gcn", "gat", "gin", "gae", "gps", "gpse", "graphs?", "\\w*sage", "message( passing)?", "hetero\\w*"),
            *("node", "node2vec", "edge (conv|block|pooling|updat\\w*)", "grapher", "(wl|mr|pna) conv", "kge", "linkx", "link"),
            *("(sch|dime|vis) net", "gnnff", "jumping knowledge", "meta (layer|path2vec)", "aggregat(or|ion)", "interaction"),
            *("inner product decoder", "correct and smooth", "neural fingerprint", "atomref", "knn"),
        ),
    ),
    (
        "Embedding",
        (
            *("embed", "embeds?", "\\w*embeddings?", "embedder", "pos", "position(al)?", "rotary", "rope", "rel pos", "encoding"),
            *("patchify", "smearing", "fourier", "basis", "tokenizer", "time encoder", "timesteps?", "sinusoid(al)?"),
            *("envelope", "alibi", "codebook"),
        ),
    ),
    (
        "Segmentation",
        ("\\w*seg", "segment(or|ation)?", "semantic", "mask(?!ed)", "pixel decoder", "sam2?", "side adapter", "prompt encoder"),
    ),
    ("Recurrent", ("\\w*lstm", "\\w*gru", "\\w*rnn", "recurrent", "mamba(?! out)", "rwkv", "ssm", "update block")),
    (
        "Resampling",
        (
            *("(down|up) ?(sampl|scal)\\w*", "[as]?c?down( c)?", "up", "down", "pixel (un)?shuffle", "patch (merg|split|expand)\\w*"),
            *("carafe", "interp", "(depth|space) to (depth|space)", "resampler?", "transpose", "deconv", "blur", "re org"),
            *("factorized reduction", "^(contract|expand|focus|mp)$"),
        ),
    ),
    ("Pooling", ("\\w*pool(s|ing|er)?", "spp\\w*", "aspp", "sp", "ppm")),
    ("Normalization", ("^(?!.*(conv|linear|mlp|free)).*norm( act| tlu| edge| node| fp32| [bs]\\d?)*( layer)?$", "abn$", "^grn$")),
    (
        "Transformer",
        (
            *("\\w*transformers?", "\\w*former", "\\w*vit", "swin", "deit", "beit", "(en|de)coder (layer|block)", "two way"),
            *("perceiver", "cait", "xcit", "coat", "twins", "volo", "nest", "levit", "hiera", "outlooker", "tnt", "na flex"),
            *("eva", "rel pos block", "layer scale block", "rtmcc", "things block", "focal ?net", "\\w*bert layer"),
        ),
    ),
    (
        "Convolution",
        (
            *("\\w*convs?", "convolution", "\\w*bottle ?neck\\w*", "inception( [a-e]| aux)$", "fire$", "separable", "\\w*stem"),
            *("(res|residual|rep|\\w*csp|ghost|mixed|dla|cross|normal|reduction|first|bn act|xception)( \\w+)?$", "elan"),
            *("(basic|dark|hg|edge|cx|cn|osa|dense|selec sls|norm free|high perf gpu) (block|layer|residual)", "cib"),
            *("c[123]\\w?( \\w+)?$", "a2 c2f", "cb (fuse|linear)", "rep\\w*", "block$", "correlation", "lka", "resolution module"),
        ),
    ),
    (
        "Activation",
        (
            *("\\w*relu", "\\w*gelu", "\\w*silu", "\\w*elu", "\\w*glu$", "\\w*swish", "\\w*sigmoid", "\\w*tanh", "\\w*mish"),
            *("soft ?\\w+$", "hard ?\\w+$", "tanhshrink", "threshold", "act$", "activation", "acon", "softmax"),
        ),
    ),
    (
        "MLP",
        (
            *("\\w*mlp", "\\w*ffn", "feed ?forward", "\\w*linear", "intermediate", "output", "\\w*glu", "experts?", "moe", "dense"),
            *("adapter", "lora", "spatial gating", "mixer", "affine", "project(or|ion)", "sequencer\\w*", "head transform"),
        ),
    ),
    (
        "Network",
        (
            *("\\w*net( features| encoder| large)?$", "backbone", "vgg", "dla", "dpn", "s3d", "raft", "inception", "xception"),
            *("model( ema)?$", "for \\w+", "encoder", "decoder", "generator", "discriminator", "\\w*encoder", "backend"),
        ),
    ),
)

#: By one folder or file name of the module, from the last to the first.
_PLACES = (
    ("Augmentation", ("transforms", "augment\\w*")),
    ("Loss", ("loss(es)?",)),
)

_SPELLINGS = (
    ("R[oO]I", "Roi"),
    ("ReLU", "Relu"),
    ("SiLU", "Silu"),
    ("ViT", "Vit"),
    ("NeXt", "Next"),
    ("([DB])eiT", r"\1eit"),
    ("RoPE", "Rope"),
    ("LoRA", "Lora"),
    ("MoE", "Moe"),
    ("GLU(?=[A-Z])", "Glu"),
)
_WORD = re.compile(r"[A-Z]+(?![a-z])(?:\d+[a-z]*)?|[A-Z]?[a-z]+(?:\d+[a-z]*)?|\d+")
_VERSION = re.compile(r"v?\d+d?")


def words_of(name: str) -> str:
    """A name's words in lower case, one space apart, without version numbers and dimensions.

    >>> words_of("RoIAlignRotated_v2"), words_of("MaxPool2dSamePadding")
    ('roi align rotated', 'max pool same padding')
    """
    for spelling, plain in _SPELLINGS:
        name = re.sub(spelling, plain, name)
    found = []
    for word in _WORD.findall(name):
        if not _VERSION.fullmatch(word.lower()):
            found.append(re.sub(r"(?<=[a-z]{2})\d+d?$", "", word.lower()))
    return " ".join(found)


def _compile(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(rf"(?:^|\b)(?:{pattern})(?:\b|$)" for pattern in patterns))


_NAME_RULES = tuple((category, _compile(patterns)) for category, patterns in _NAMES)
_PLACE_RULES = tuple((category, _compile(patterns)) for category, patterns in _PLACES)


def category_of(name: str, qualname: str, bases: Sequence[str]) -> str:
    """The category of a class.

    Args:
        name: the bare class name.
        qualname: its dotted name; the folders and the file of its module are read off it.
        bases: the names of its base classes, dotted or not.
    """
    return _by_name(name) or OTHER


@lru_cache(maxsize=4096)
def _by_name(name: str) -> str:
    words = words_of(name)
    return next((category for category, pattern in _NAME_RULES if pattern.search(words)), "")
