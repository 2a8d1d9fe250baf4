"""Values to try for a constructor's parameter, told from its name, its annotation and its default.

The names are those of the field: `in_channels`, `embed_dim`, `num_heads`, `norm_layer`. A scale sets the widths, so
that the same rules give a narrow and a wide variant; numbers of heads, groups and experts divide every width.
"""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Scale:
    """How wide a variant is: `width` for most sizes, `inner` for what comes out of a bottleneck, `image` for pixels."""

    width: int = 32
    inner: int = 32
    image: int = 32


#: The variants, the likeliest first.
SCALES = (Scale(), Scale(64, 64, 64), Scale(64, 16, 64), Scale(32, 64, 32), Scale(128, 128, 224), Scale(16, 16, 16))

# Patterns over the whole lower-case name; W, I and P stand for the width, the inner width and the image of the scale.
_RULES: tuple[tuple[str, str], ...] = (
    (r"(output|out|roi|pool(ed|ing)?)_(size|shape)", "4|(4, 4)|7|W"),
    (r"rope_(parameters|scaling)", "{'rope_type': 'default', 'rope_theta': 10000.0}"),
    (r".*(token_id|pad_idx|padding_idx|token_index)", "1"),
    (
        r"(num|n|number_of)_?(attention_|attn_|kv_|key_value_|query_|q_)?heads?|n?heads?|head_num|num_attention_heads",
        "4|2|1",
    ),
    (r"(num_)?groups?|num_norm_groups|n_groups|cardinality|group_size|norm_groups", "1|4|W"),
    (r"(attention_)?head_(dim|size|width)|dim_head|qk_dim_head|dim_heads?|qk_nope_head_dim|v_head_dim", "8|16"),
    (r"num_class(es)?|n_?class(es)?|nc|num_labels|n_labels|num_outputs?|num_things?_classes|num_stuff_classes", "10|4"),
    (r"(num_)?(embeddings|tokens|types|vocab)|vocab(_size)?|num_embeddings|vocabulary_size|num_relations", "64|W"),
    (r"(num_)?nodes|num_points?|n_points", "8|4"),
    (
        r"(num_)?(layers|blocks|stages|levels|convs|stacks|stacked_convs|fcs|cascades)|n_layers?|depth|n_blocks|repeats?"
        r"|num_hidden_layers|layer_num|num_ins|nl|n_conv|num_layers_.*",
        "2|1|3|4",
    ),
    (r"n|m|k|t", "2|3|W"),
    (
        r"layers|depths|num_blocks|blocks_per_stage|stage_blocks|block_repeats|repeats_list",
        "[2, 2, 2, 2]|2|[1, 1, 1]|[2, 2]|[(W, 1, 1)]",
    ),
    (
        r"kernel(_size|_sizes|s)?|ks|kernel_sz|ksize|filter_size|conv_kernel(_size)?|aa_filt_size|filt_size",
        "3|(3, 3)|[3, 5]|[3, 3]",
    ),
    (r"strides?|downsample_rate|conv_stride|s", "1|2|(1, 1)|[1, 2, 2, 2]|[4, 8, 16]"),
    (r"padding|pad|p", "1|0|(1, 1)|'same'"),
    (r"dilations?|d", "1|(1, 1)|[1, 1, 1, 1]"),
    (r"(patch|tubelet|grid|cell)_?(size|resolution)|patch|ps", "4|(4, 4)|2|16|(2, 4, 4)"),
    (r"(win(dow)?|ws|shifted?_?window)(_?size)?|window|attn_window_size", "4|(4, 4)|7|(7, 7)|(2, 4, 4)"),
    (r"shift(_size)?", "0|(0, 0)|2"),
    (
        r"(input|feat(ure)?|token|spatial|attention|q|k|base|orig)_?(res(olution)?|size|shape|map_size)|fmap_size|feat_size"
        r"|spatial_shape|map_size|grid",
        "(8, 8)|8|(16, 16)|16|W",
    ),
    (
        r"(img|image|crop|target|video|inp)_?(size|shape|res|resolution)?|imgsz|(output|out|roi)_size|resolution",
        "P|(P, P)|7|(7, 7)|8",
    ),
    (r"height|width|h|w|(img|image|max)_(h|w|height|width)|hh|ww", "8|16|P"),
    (
        r"(?!block$)(seq|sequence|context|block|max|src|tgt|max_source|max_target|num_(pos|patches)|max_seq|n_ctx)_?(len(gth)?|positions?|size|seq_len(gth)?)?"
        r"|max_position_embeddings|num_positions|num_patches|n_positions|max_sequence_length|length|seqlen",
        "16|64|W",
    ),
    (
        r"num_(quer(y|ies)|object_queries|proposals|prompts|slots|latents|codes|codevectors|clusters|mem|proto.*|masks?|bins)|nm|npr",
        "8|W|16",
    ),
    (r"(num_|n_)?(experts|routed_experts)|num_local_experts|experts_num", "4|2"),
    (r"(num_experts_per_tok|top_?k|n_shared_experts|num_selects)", "2|1"),
    (r"num_anchors?|num_base_priors|num_prior.*|na", "3|1"),
    (r"anchors", "((10, 13, 16, 30, 33, 23),) * 3|()|[[10, 13, 16, 30]]"),
    (r"num_(keypoints|joints|kpts|parts)|kpt_shape|out_joints", "17|(17, 3)"),
    (r"num_(frames|segments|clips)|n_segment|frames?|t_length", "4|8"),
    (
        r"num_(channels)|chans?|in_?chan(s|nels)?|in_chs?|c_in|ch_in|inp|input_channels?|ch1|img_channels",
        "W|3|[W, W, W]|[W, W]",
    ),
    (r"ch|channels_list|in_channels_list|in_dims|dims?_in|in_features_list", "W|[W, W, W]|(W, W, W)|[W, W]"),
    (
        r"(hidden_|embed_|out_|in_|feat_|stage_|base_|all_)?(dims|channels|planes|sizes|features|chs)(_list)?|widths|filters|nb_filter|hidden_units",
        "W|[W, W, W, W]|[W, I]|[W, W]|(W, W, W)",
    ),
    (
        r"(r|se|rd|reduction|squeeze|attn|bottle|channel|ratio)_?(ratio|factor|rate|reduction)?|reduction_ratio|r|expand_ratio_se",
        "4|0.25|2",
    ),
    (
        r"(mlp|ffn|expand|expansion|mult|ff|width|exp|hidden)_?(ratio|factor|mult|rate|scale)?|expansion|e",
        "2|2.0|0.5|W",
    ),
    (
        r"(scale|upscale|upsample|down|sampling|sr|zoom|up)_?(factor|ratio|size|rate)?|scales?|block_size|bs|sr_ratio|factor|rate|downscale",
        "2|1|1.0|[1, 2]|(2, 2)",
    ),
    (
        r".*(drop|dropout)(_?(prob|rate|path|p|ratio|out|probability))?|p_drop|drop|prob|probability|dropouts?|.*_pdrop|dpr",
        "0.0|[0.0, 0.0]|0.1",
    ),
    (r"eps|epsilon|.*_eps", "1e-05"),
    (
        r"temperature|tau|alpha|beta|gamma|lambd?a?|sigma|theta|weight|momentum|init_values?|layer_scale.*|std|mean|.*_weight|.*_scale|scale_by_keep|"
        r"margin|threshold|thresh|.*thr|.*_threshold|slope|negative_slope|smoothing|gain|lr|delta|cutoff|base|value",
        "1.0|0.5|2|(0.5, 0.5, 0.5)|[1.0]",
    ),
    (
        r"norm_?(layer|cls|func|fn|class|type)?|bn|normalization|norm_module|norms|layernorm",
        "nn.LayerNorm|nn.BatchNorm2d|nn.Identity|'BN'|nn.LayerNorm(W)|None|True",
    ),
    (
        r"(act|activation|nonlinearity|gate|non_lin|transfer)_?(layer|fn|func|cls|fun|function|type|name|act|module)?|relu"
        r"|activ.*|.*_(act|activation|act_fn|activation_(function|fn))",
        "nn.ReLU|nn.ReLU()|'relu'|'gelu'|F.relu|None|True",
    ),
    (
        r"conv_?(layer|cls|op|func|module|type|block|fn)?|conv_builder|basic_conv|conv2d|lin(ear)?_?(layer|cls)?|conv[12]d?",
        "nn.Conv2d|nn.Linear|nn.Conv2d(W, W, 3, padding=1)|nn.Linear(W, W)",
    ),
    (r"(pool|pooling)_?(layer|type|cls|fn|mode|size)?", "nn.AdaptiveAvgPool2d|'avg'|'max'|2|nn.MaxPool2d(2)|'mean'"),
    (
        r"attn_?(layer|type|cls|class)?|attention(_layer|_module)?|mixer|token_mixer|mixer_layer|attn_block|self_attn",
        "nn.Identity|nn.Identity()|'se'|nn.MultiheadAttention(W, 4)|None",
    ),
    (r".*mlp_?(layer|cls)?|ffn|feedforward|ff_module|ffn_layer", "nn.Identity|nn.Identity()|nn.Linear(W, W)"),
    (
        r"(block|unit|cell|layer|stage|bottleneck|transition)_?(fn|cls|class|func|module|type|layer|types)?|block_type|builder|encoder_layer|decoder_layer",
        "@block|nn.Identity|nn.Identity()|nn.TransformerEncoderLayer(W, 4, 64, batch_first=True)|'basic'",
    ),
    (
        r"(backbone|encoder|body|trunk|base_model|model|net(work)?|stem|vision_model|feature_extractor|embed(der|ding)?|.*_encoder|image_encoder)",
        "nn.Conv2d(3, W, 3, padding=1)|nn.Identity()|nn.Linear(W, W)|nn.Sequential(nn.Conv2d(3, W, 3, padding=1))",
    ),
    (
        r"(module|fn|func(tion)?|nn|main|branch|sub|inner|wrapped|op|lin|transform|residual|mod|m|f|g|phi|rho|decoder|head|neck|discriminator)(_?\d)?",
        "nn.Identity()|nn.Linear(W, W)|nn.Sequential(nn.Linear(W, W))|nn.Conv2d(W, W, 1)|torch.relu",
    ),
    (
        r"modules?_?(list)?|layers_list|blocks|branches|heads_list|module_list|models|convs|nns",
        "[nn.Identity(), nn.Identity()]|[nn.Linear(W, W)]|nn.ModuleList([nn.Identity()])|[nn.Conv2d(W, W, 1)]",
    ),
    (r"data_format|input_format|output_format|format|fmt|layout", "'channels_last'|'channels_first'|'NCHW'"),
    (r"mode|interpolation|upsample_mode|align", "'nearest'|'bilinear'|'mean'|'sum'"),
    (r"reduction|reduce|aggr(egation)?|aggregator|aggrs?|scaler|combine|fusion", "'mean'|'sum'|4|['mean']"),
    (r"padding_mode|pad_mode", "'zeros'"),
    (
        r"bias|use_.*|with_.*|is_.*|has_.*|do_.*|inplace|affine|bidirectional|batch_first|causal|.*_bias|shortcut|normalize|pre_norm|training|flip|qkv_bias"
        r"|add_.*|return_.*|enable.*|no_.*|share_.*|concat|residual|self_loop.*|learnable.*|.*_enabled?|.*only|last|legacy|trainable",
        "False|True",
    ),
    (
        r"layer_?(idx|id|index|number|num|i)|idx|index|i|layer_ids?|block_id(x)?|block_index|stage_?(idx|id|index)?|level|depth_idx|position",
        "0|1",
    ),
    (r"device|dtype|name|key|init_cfg|init|prefix|cfg_path|pretrained|checkpoint.*", "None|'name'"),
    (
        r"(in|input|inp|src|query|q|target|kv|key|value|context|cond|text|image|vision|visual|lang|token|node|edge|time|temb|emb|embed|embedding|model|hidden|feature|feat|proj|attn|attention|inner|"
        r"intermediate|ffn|mlp|feedforward|feed_forward|bottleneck|mid|middle|out|output|skip|base|stem|rd|gate|latent|state|kernel|channel|word|audio|video|decoder|encoder|pos|global|local|d|c)?"
        r"_?(dim|dims|dimension|channels?|chs?|chans?|chan|c|planes?|feat(ure)?s?|feats|size|width|embed(ding)?(_dim(s)?|_size)?|d|ch|units|model|hidden|ff|inner|dim_?\d|channels?_?\d|in|out|depth_?dim|n?f|filters?)(_?(in|out|size|dims?|\d))?"
        r"|d_model|dim_feedforward|d_ff|d_kv|n_embd|c[12_]?|c\d|num_features|num_hiddens?|emb|bottle|nf|ngf|ndf|nin|nout|ni|no|ic|oc|ci|co|cin|cout|a|b|x|growth_rate|bn_size|num_?in.*|num_?out.*|.*_dim|.*_channels?|.*_size|.*_features|.*_planes|.*_chs|.*_width",
        "W|[W, W, W]|(W, W)",
    ),
)
_INNER = re.compile(r"out|hidden|planes$|mid|inner|bottleneck|^c2$|nout|oc$|cout")
_NOT_INNER = re.compile(r"in_?planes|inplanes|in_")

_BY_ANNOTATION: tuple[tuple[str, str], ...] = (
    (r"bool", "False|True"),
    (r"(type|callable).*", "nn.Identity|nn.ReLU|@block|F.relu"),
    (r".*(module|nn\.).*", "nn.Identity()|nn.Linear(W, W)|nn.Identity"),
    (r".*(list|sequence|tuple|iterable).*str.*", "['a', 'b']"),
    (r".*(list|sequence|tuple|iterable|size).*float.*", "[0.5, 0.5]|(0.5, 0.5, 0.5)"),
    (r".*(list|sequence|tuple|iterable|size).*", "[W, W]|[W, W, W]|(4, 4)|[2, 2, 2, 2]|(W, W)"),
    (r".*(dict|mapping|config).*", "{}|@settings"),
    (r".*float.*", "0.5|1.0"),
    (r".*int.*", "W|4|2|1"),
    (r".*str.*", "'mean'|'relu'|''"),
    (r".*tensor.*", "torch.ones(W)|torch.ones(1, W)|torch.ones(())|torch.randn(W, W)"),
)
_UNKNOWN = "W|2|None|nn.Identity()|[W, W]|@block|@settings|'mean'|0.5"


def candidates(name: str, annotation: object, scale: Scale) -> tuple[str, ...]:
    """Expressions to try for a required parameter, the likeliest first.

    `@block` stands for a class of the block's file, `@settings` for an object whose attributes follow these rules.
    """
    found = [*_by_name(name), *_by_annotation(_spelled(annotation))]
    found += [] if len(found) > 3 else _UNKNOWN.split("|")
    width = scale.inner if _INNER.search(name.lower()) and not _NOT_INNER.match(name.lower()) else scale.width
    return tuple(dict.fromkeys(_sized(text, width, scale) for text in found))


def value_of(name: str, scale: Scale) -> str:
    """One expression for an attribute of settings, which hold plain values rather than layers."""
    found = candidates(name, inspect.Parameter.empty, scale)
    return next((text for text in found if not text.startswith(("nn.", "F.", "@"))), "None")


@lru_cache(maxsize=4096)
def _by_name(name: str) -> tuple[str, ...]:
    lower = name.lower().strip("_")
    if re.fullmatch(r"config|cfg|conf|opts?|args|hparams|options|settings|.*_(cfg|config|args|kwargs)", lower):
        return ("@settings", "{}", "None") if not lower.endswith(("args", "_cfg")) else ("None", "{}", "@settings")
    for pattern, values in _RULES:
        if re.fullmatch(pattern, lower):
            return tuple(values.split("|"))
    return ()


@lru_cache(maxsize=4096)
def _by_annotation(annotation: str) -> tuple[str, ...]:
    lower = annotation.lower()
    return next((tuple(values.split("|")) for pattern, values in _BY_ANNOTATION if re.fullmatch(pattern, lower)), ())


def _spelled(annotation: object) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    if isinstance(annotation, str):
        return annotation
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _sized(text: str, width: int, scale: Scale) -> str:
    if text.startswith("@"):
        return text
    sizes = {"W": width, "I": scale.inner, "P": scale.image}
    return re.sub(r"\b[WIP]\b(?!')", lambda match: str(sizes[match[0]]), text)


#: Sizes that make a model small where its default is large, by name.
_SMALL: tuple[tuple[str, int], ...] = (
    (r".*(token_id|token_index|pad_idx|padding_idx)", 1),
    (r".*(vocab_size|num_embeddings|n_vocab|vocab)", 128),
    (
        r".*(num_(hidden_)?layers|n_layers?|num_blocks|depth|encoder_layers|decoder_layers|layers|.*_num_layers|num_.*_layers|n_layer)",
        2,
    ),
    (r".*(kv_heads|key_value_heads|n_kv_heads?)", 2),
    (r".*(heads?|n_head)", 4),
    (r".*head_dim|head_size|d_kv|.*_head_dim", 8),
    (r".*(image_size|img_size)", 32),
    (r".*(patch_size|patch)", 4),
    (r".*(max_position_embeddings|max_.*_positions|n_positions|n_ctx|max_seq_len|max_.*_len.*|sliding_window)", 64),
    (r".*(intermediate|ffn|feedforward|feed_forward|d_ff|mlp_dim|inner|mlp_hidden).*", 64),
    (r".*num_(local_|routed_)?experts|n_routed_experts", 4),
    (r".*num_labels|num_classes", 10),
    (r".*(num_queries|num_latents|num_object_queries)", 8),
    (r".*(embed|hidden|model|width|channels|_dim|^dim|_size|features|d_model|n_embd|filters|planes).*", 32),
)
_LARGE = {1: 100, 2: 2, 4: 4, 8: 8, 10: 10, 32: 64, 64: 64, 128: 128}


def shrunk(name: str, default: object) -> str | None:
    """A small value for a parameter whose default is large; None where it is fine as it is."""
    if isinstance(default, bool) or not isinstance(default, (int, list, tuple)):
        return None
    small = next((size for pattern, size in _SMALL if re.fullmatch(pattern, name.lower().strip("_"))), None)
    if isinstance(default, int):
        return str(small) if small is not None and default > _LARGE[small] else None
    if not default or not all(isinstance(item, int) and not isinstance(item, bool) for item in default):
        return None
    if small is None and "dim" not in name and "channel" not in name and "depth" not in name:
        return None
    if re.search(r"depth|layers|blocks|repeats", name.lower()):
        limit = 2
    elif small is not None and small < 32:
        limit = small
    else:
        limit = 32
    if max(default) <= limit * 2:
        return None
    fresh = [min(item, limit) for item in default]
    return str(tuple(fresh) if isinstance(default, tuple) else fresh)


def shrunk_arguments(parameters: Mapping[str, inspect.Parameter]) -> dict[str, str]:
    """Small values for all parameters whose defaults make a large model."""
    found = {}
    for name, parameter in parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            small = shrunk(name, parameter.default)
            if small is not None:
                found[name] = small
    return found
