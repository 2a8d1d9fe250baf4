"""Write windows, grids, norms, attention and losses idiomatically: as functions of `torch.nn.functional`."""

from lemur_core.graphs.symbolic import Size
from lemur_core.rebuild.calls import (
    REDUCTIONS,
    Operation,
    RebuildError,
    Text,
    collapse_equal,
    emits,
    function,
    name_family,
)


def _window(call: Operation) -> list[str]:
    kernel, stride, padding = (collapse_equal(call.get(name)) for name in ("kernel_size", "stride", "padding"))
    has_padding = padding not in (0, None, ())
    strides = [stride] if stride not in (None, (), kernel) else [kernel] if has_padding else []
    return [call.number(value, call) for value in (kernel, *strides, *([padding] if has_padding else []))]


def _return_indices(call: Operation) -> dict[str, str]:
    return {"return_indices": "True"} if "max" in call.node.op and call.takes > 1 else {}


@emits("max_pool")
def _max_pool(call: Operation) -> Text:
    named = call.options(dilation=1, ceil_mode=False) | _return_indices(call)
    if "dilation" in named:
        named["dilation"] = call.literal("dilation")
    return function(f"F.{call.node.op.removesuffix('_with_indices')}", call["input"].text, *_window(call), **named)


@emits("avg_pool")
def _avg_pool(call: Operation) -> Text:
    named = call.options(ceil_mode=False, count_include_pad=True, divisor_override=None)
    return function(f"F.{call.node.op}", call["input"].text, *_window(call), **named)


@emits("adaptive_avg_pool", "adaptive_max_pool")
def _adaptive(call: Operation) -> Text:
    size = call.collapsed("output_size")
    return function(f"F.{call.node.op.lstrip('_')}", call["input"].text, size, **_return_indices(call))


@emits("fractional_max_pool")
def _fractional(call: Operation) -> Text:
    named = {"output_size": call.collapsed("output_size")} | _return_indices(call)
    samples = call["random_samples"].text
    kernel = call.collapsed("kernel_size")
    return function(f"F.{call.node.op}", call["input"].text, kernel, **named, _random_samples=samples)


@emits(*(f"upsample_{kind}" for kind in ("nearest", "nearest_exact", "linear", "bilinear", "bicubic", "trilinear")))
def _interpolate(call: Operation) -> Text:
    named: dict[str, str] = {}
    factors = call.get("scale_factors") or tuple(
        value for name, value in call.node.arguments if name.startswith("scales") and value is not None
    )
    if factors and not any(isinstance(factor, Size) for factor in factors):
        factor = collapse_equal(tuple(factors))
        factor = int(factor) if isinstance(factor, float) and factor == int(factor) else factor
        named["scale_factor"] = call.number(factor, call)
    else:
        named["size"] = call.number(tuple(call.get("output_size") or call.node.outputs[0].shape[2:]), call)
    mode = name_family(call.node.op).removeprefix("upsample_").replace("_", "-")
    if mode != "nearest":
        named["mode"] = repr(mode)
    named |= call.options(align_corners=False)
    if call.node.op.endswith("_aa"):
        named["antialias"] = "True"
    return function("F.interpolate", call["input"].text, **named)


_SAMPLING = ("'bilinear'", "'nearest'", "'bicubic'"), ("'zeros'", "'border'", "'reflection'")


@emits("grid_sampler")
def _grid(call: Operation) -> Text:
    mode, padding = call.get("interpolation_mode"), call.get("padding_mode")
    named = {"mode": _SAMPLING[0][mode]} if mode else {}
    named |= {"padding_mode": _SAMPLING[1][padding]} if padding else {}
    named["align_corners"] = repr(bool(call.get("align_corners")))
    return function("F.grid_sample", call["input"].text, call["grid"].text, **named)


@emits("im2col", "col2im")
def _fold(call: Operation) -> Text:
    named = call.options(dilation=1, padding=0, stride=1)
    name, sizes = ("F.unfold", []) if call.node.op == "im2col" else ("F.fold", [call.literal("output_size")])
    return function(name, call["input"].text, *sizes, call.collapsed("kernel_size"), **named)


@emits("attention")
def _attention(call: Operation) -> Text:
    width = call.kinds["query"].shape[-1]
    named = call.texts("attn_mask")
    if call.get("dropout_p"):
        named["dropout_p"] = f"{call.literal('dropout_p')} if self.training else 0.0"
    named |= call.options(is_causal=False)
    # 1 / sqrt(width) is the default.
    if isinstance(width, Size) or abs(call.get("scale") * width**0.5 - 1) > 1e-9:
        named["scale"] = call.literal("scale")
    named |= call.options(enable_gqa=False)
    return function("F.scaled_dot_product_attention", *call.texts("query", "key", "value").values(), **named)


@emits("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def _dropout(call: Operation) -> Text:
    op = call.node.op
    if op == "feature_dropout":
        op = {3: "dropout1d", 5: "dropout3d"}.get(len(call.node.outputs[0].shape), "dropout2d")
    return function(f"F.{op}", call["input"].text, call.literal("p"), "self.training")


@emits("nll_loss_forward", "nll_loss2d_forward")
def _likelihood(call: Operation) -> Text:
    named = call.texts("weight") | call.options(ignore_index=-100)
    # 1 is the mean, the default.
    if call.get("reduction") != 1:
        named["reduction"] = repr(REDUCTIONS[call.get("reduction")])
    return function("F.nll_loss", call["input"].text, call["target"].text, **named)


@emits("weight_norm_interface")
def _weight_norm(call: Operation) -> Text:
    return function("torch._weight_norm", call["v"].text, call["g"].text, call.literal("dim"))


@emits("torchvision::deform_conv")
def _deform_conv(call: Operation) -> Text:
    named = {}
    for name, key, usual in (("stride", "stride", 1), ("pad", "padding", 0), ("dilation", "dilation", 1)):
        value = collapse_equal((call.get(f"{name}_h"), call.get(f"{name}_w")))
        if value != usual:
            named[key] = call.number(value, call)
    if call.get("use_mask"):
        named |= call.texts("mask")
    positional = call.texts("input", "offset", "weight", "bias").values()
    return function("torchvision.ops.deform_conv2d", *positional, **named)


@emits(*(f"torchvision::{name}" for name in ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool")))
def _regions(call: Operation) -> Text:
    name = call.node.op.replace("::", ".ops.")
    size = call.number(collapse_equal((call.get("pooled_height"), call.get("pooled_width"))), call)
    named = {"spatial_scale": call.literal("spatial_scale")} | call.options(sampling_ratio=None, aligned=None)
    return function(name, call["input"].text, call["rois"].text, size, **named)


@emits("torchvision::nms")
def _nms(call: Operation) -> Text:
    return function("torchvision.ops.nms", *(call[name].text for name in ("dets", "scores", "iou_threshold")))


@emits("trilinear")
def _bilinear(call: Operation) -> Text:
    positional = [call.get(name) for name in ("expand1", "expand2", "expand3", "sumdim")]
    # F.bilinear computes this pattern; for others there is no public function.
    if positional != [(1, 3), (0,), (1, 2), (2, 3)]:
        raise RebuildError("operation _trilinear has no public form")
    return function("F.bilinear", *call.texts("i1", "i3", "i2").values())


_SELU = 1.0507009873554805, 1.6732632423543772


@emits("elu")
def _elu(call: Operation) -> Text:
    alpha, scale, inner = (call.get(name) for name in ("alpha", "scale", "input_scale"))
    # torch computes SELU as an ELU with these constants, and CELU as one with an input scale.
    if scale not in (None, 1.0):
        if abs(scale - _SELU[0]) > 1e-6 or abs(alpha - _SELU[1]) > 1e-6:
            raise RebuildError("operation elu of this scale has no public form")
        return function("F.selu", call["input"].text)
    if inner not in (None, 1.0):
        return function("F.celu", call["input"].text, repr(alpha))
    return function("F.elu", call["input"].text, *([] if alpha == 1.0 else [repr(alpha)]))


@emits("prelu_kernel")
def _prelu(call: Operation) -> Text:
    return function("F.prelu", call["input"].text, f"{call.atom('weight')}.flatten()")


@emits("native_channel_shuffle", "channel_shuffle")
def _shuffle(call: Operation) -> Text:
    return function("F.channel_shuffle", call["input"].text, call.literal("groups"))


@emits("embedding")
def _embedding(call: Operation) -> Text:
    return function("F.embedding", call["indices"].text, call["weight"].text)


@emits("layer_norm", "rms_norm")
def _normalize(call: Operation) -> Text:
    named = call.texts("weight", "bias")
    if call.get("eps") is not None:
        named["eps"] = call.literal("eps")
    return function(f"F.{call.node.op}", call["input"].text, call.literal("normalized_shape"), **named)


@emits("group_norm")
def _group_norm(call: Operation) -> Text:
    named = call.texts("weight", "bias") | {"eps": call.literal("eps")}
    return function("F.group_norm", call["input"].text, call.literal("num_groups"), **named)


@emits("batch_norm", "instance_norm")
def _statistics(call: Operation) -> Text:
    named = call.texts("running_mean", "running_var", "weight", "bias")
    is_batch = call.node.op == "batch_norm"
    if is_batch and "running_mean" not in named:
        named |= {"running_mean": "None", "running_var": "None"}
    # The defaults differ: False for batch_norm, True for instance_norm.
    flag = "training" if is_batch else "use_input_stats"
    if is_batch == bool(call.get(flag)):
        named[flag] = repr(bool(call.get(flag)))
    if call.get("momentum") is not None:
        raise RebuildError(f"{call.node.op} that updates statistics outside of a layer")
    return function(f"F.{call.node.op}", call["input"].text, **named, eps=call.literal("eps"))


@emits("linear")
def _linear(call: Operation) -> Text:
    return function("F.linear", *call.texts("input", "weight", "bias").values())


_NORMS = ("backward", "ortho", "forward")  # of the transform; those of the inverse, in the opposite order


@emits("fft_r2c", "fft_c2c", "fft_c2r")
def _fourier(call: Operation) -> Text:
    inverse = call.node.op == "_fft_c2r" or (call.node.op == "_fft_c2c" and not call.get("forward"))
    dims = tuple(call.get("dim"))
    several = len(dims) > 1
    # Of real values, `fftn` makes complex ones first.
    if call.node.op == "_fft_r2c" and not call.get("onesided") and several:
        raise RebuildError("operation _fft_r2c of both sides and several dimensions has no public form")
    real = call.node.op == "_fft_c2r" or bool(call.get("onesided"))
    name = f"torch.fft.{'i' if inverse else ''}{'r' if real else ''}fft{'n' if several else ''}"
    named = {}
    if call.node.op == "_fft_c2r":  # the number of real values does not follow from that of the complex ones
        sizes = tuple(call.node.outputs[0].shape[dim] for dim in dims)
        named = {"s": call.number(sizes, call)} if several else {"n": call.number(sizes[0], call)}
    norm = (_NORMS[::-1] if inverse else _NORMS)[call.get("normalization")]
    named |= {"dim": repr(dims if several else dims[0])} | ({} if norm == "backward" else {"norm": repr(norm)})
    return function(name, call["input"].text, **named)


@emits("cdist_forward", "euclidean_dist")
def _distances(call: Operation) -> Text:
    named = call.options(p=2.0)
    if call.get("compute_mode") == 2:
        named["compute_mode"] = repr("donot_use_mm_for_euclid_dist")
    return function("torch.cdist", *call.texts("x1", "x2").values(), **named)


@emits("convolution")
def _convolution(call: Operation) -> Text:
    name = f"F.conv{'_transpose' if call.get('transposed') else ''}{len(call.get('kernel'))}d"
    named = call.options(stride=1, padding=0, output_padding=0, dilation=1, groups=1)
    return function(name, *call.texts("input", "weight", "bias").values(), **named)
