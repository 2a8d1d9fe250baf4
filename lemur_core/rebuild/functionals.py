"""Write windows, grids, norms, attention and losses idiomatically: as functions of `torch.nn.functional`."""

from lemur_core.graphs.symbolic import Size
from lemur_core.rebuild.calls import REDUCTIONS, Operation, RebuildError, Text, collapse_equal, emits, function


def _window(call: Operation) -> list[str]:
    kernel, stride, padding = (collapse_equal(call.get(name)) for name in ("kernel_size", "stride", "padding"))
    positional = [call.number(kernel, call)]
    if stride not in (None, (), kernel):
        positional.append(call.number(stride, call))
    elif padding not in (0, None, ()):
        positional.append(call.number(kernel, call))
    if padding not in (0, None, ()):
        positional.append(call.number(padding, call))
    return positional


@emits(
    "max_pool2d_with_indices",
    "max_pool3d_with_indices",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_pool1d_with_indices",
)
def _max_pool(call: Operation) -> Text:
    name = call.node.op.removesuffix("_with_indices")
    named = {} if collapse_equal(call.get("dilation")) in (None, 1) else {"dilation": call.literal("dilation")}
    if call.get("ceil_mode"):
        named["ceil_mode"] = "True"
    if call.takes > 1:
        named["return_indices"] = "True"
    return function(f"F.{name}", call["input"].text, *_window(call), **named)


@emits("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(call: Operation) -> Text:
    named = {}
    if call.get("ceil_mode"):
        named["ceil_mode"] = "True"
    if call.get("count_include_pad") is False:
        named["count_include_pad"] = "False"
    if call.get("divisor_override"):
        named["divisor_override"] = call.literal("divisor_override")
    return function(f"F.{call.node.op}", call["input"].text, *_window(call), **named)


@emits(
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    "adaptive_avg_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
)
def _adaptive(call: Operation) -> Text:
    size = call.number(collapse_equal(call.get("output_size")), call)
    named = {"return_indices": "True"} if "max" in call.node.op and call.takes > 1 else {}
    return function(f"F.{call.node.op.lstrip('_')}", call["input"].text, size, **named)


_UPSAMPLES = {
    "upsample_nearest1d": "nearest",
    "upsample_nearest2d": "nearest",
    "upsample_nearest3d": "nearest",
    "_upsample_nearest_exact1d": "nearest-exact",
    "_upsample_nearest_exact2d": "nearest-exact",
    "upsample_linear1d": "linear",
    "upsample_bilinear2d": "bilinear",
    "upsample_bicubic2d": "bicubic",
    "upsample_trilinear3d": "trilinear",
    "_upsample_bilinear2d_aa": "bilinear",
    "_upsample_bicubic2d_aa": "bicubic",
}


@emits(*_UPSAMPLES)
def _interpolate(call: Operation) -> Text:
    op = call.node.op
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
    if _UPSAMPLES[op] != "nearest":
        named["mode"] = repr(_UPSAMPLES[op])
    if call.get("align_corners"):
        named["align_corners"] = "True"
    if op.endswith("_aa"):
        named["antialias"] = "True"
    return function("F.interpolate", call["input"].text, **named)


_SAMPLING = ("'bilinear'", "'nearest'", "'bicubic'"), ("'zeros'", "'border'", "'reflection'")


@emits("grid_sampler_2d", "grid_sampler_3d", "grid_sampler")
def _grid(call: Operation) -> Text:
    mode, padding = call.get("interpolation_mode"), call.get("padding_mode")
    named = {"mode": _SAMPLING[0][mode]} if mode else {}
    if padding:
        named["padding_mode"] = _SAMPLING[1][padding]
    named["align_corners"] = repr(bool(call.get("align_corners")))
    return function("F.grid_sample", call["input"].text, call["grid"].text, **named)


@emits("im2col")
def _unfold(call: Operation) -> Text:
    return _folding(call, "F.unfold", [])


@emits("col2im")
def _fold(call: Operation) -> Text:
    return _folding(call, "F.fold", [call.literal("output_size")])


def _folding(call: Operation, name: str, extra: list[str]) -> Text:
    named = {}
    for key, usual in (("dilation", 1), ("padding", 0), ("stride", 1)):
        if collapse_equal(call.get(key)) != usual:
            named[key] = call.number(collapse_equal(call.get(key)), call)
    return function(
        name, call["input"].text, *extra, call.number(collapse_equal(call.get("kernel_size")), call), **named
    )


@emits("attention")
def _attention(call: Operation) -> Text:
    width = call.kinds["query"].shape[-1]
    named = {}
    if "attn_mask" in call.tensors:
        named["attn_mask"] = call["attn_mask"].text
    if call.get("dropout_p"):
        named["dropout_p"] = f"{call.literal('dropout_p')} if self.training else 0.0"
    if call.get("is_causal"):
        named["is_causal"] = "True"
    # 1 / sqrt(width) is the default.
    if isinstance(width, Size) or abs(call.get("scale") * width**0.5 - 1) > 1e-9:
        named["scale"] = call.literal("scale")
    if call.get("enable_gqa"):
        named["enable_gqa"] = "True"
    texts = (call[name].text for name in ("query", "key", "value"))
    return function("F.scaled_dot_product_attention", *texts, **named)


@emits("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def _dropout(call: Operation) -> Text:
    op = call.node.op
    if op == "feature_dropout":
        op = {3: "dropout1d", 5: "dropout3d"}.get(len(call.node.outputs[0].shape), "dropout2d")
    return function(f"F.{op}", call["input"].text, call.literal("p"), "self.training")


@emits("fractional_max_pool2d", "fractional_max_pool3d")
def _fractional(call: Operation) -> Text:
    kernel = call.number(collapse_equal(call.get("kernel_size")), call)
    named = {"output_size": call.number(collapse_equal(call.get("output_size")), call)}
    if call.takes > 1:
        named["return_indices"] = "True"
    return function(
        f"F.{call.node.op}", call["input"].text, kernel, **named, _random_samples=call["random_samples"].text
    )


@emits("nll_loss_forward", "nll_loss2d_forward")
def _likelihood(call: Operation) -> Text:
    named = {"weight": call["weight"].text} if "weight" in call.tensors else {}
    if call.get("ignore_index") != -100:
        named["ignore_index"] = call.literal("ignore_index")
    # 1 is the mean, the default.
    if call.get("reduction") != 1:
        named["reduction"] = repr(REDUCTIONS[call.get("reduction")])
    return function("F.nll_loss", call["input"].text, call["target"].text, **named)


@emits("_weight_norm_interface")
def _weight_norm(call: Operation) -> Text:
    return function("torch._weight_norm", call["v"].text, call["g"].text, call.literal("dim"))


@emits("torchvision::deform_conv2d")
def _deform_conv(call: Operation) -> Text:
    named = {}
    for name, key in (("stride", "stride"), ("pad", "padding"), ("dilation", "dilation")):
        value = collapse_equal((call.get(f"{name}_h"), call.get(f"{name}_w")))
        if value != (0 if name == "pad" else 1):
            named[key] = call.number(value, call)
    if call.get("use_mask"):
        named["mask"] = call["mask"].text
    positional = (call[name].text for name in ("input", "offset", "weight", "bias"))
    return function("torchvision.ops.deform_conv2d", *positional, **named)


@emits("torchvision::roi_align", "torchvision::roi_pool", "torchvision::ps_roi_align", "torchvision::ps_roi_pool")
def _regions(call: Operation) -> Text:
    op = call.node.op.removeprefix("torchvision::")
    size = call.number(collapse_equal((call.get("pooled_height"), call.get("pooled_width"))), call)
    named = {"spatial_scale": call.literal("spatial_scale")}
    named |= {name: call.literal(name) for name in ("sampling_ratio", "aligned") if call.get(name) is not None}
    return function(f"torchvision.ops.{op}", call["input"].text, call["rois"].text, size, **named)


@emits("torchvision::nms")
def _nms(call: Operation) -> Text:
    positional = (call[name].text for name in ("dets", "scores", "iou_threshold"))
    return function("torchvision.ops.nms", *positional)


@emits("_trilinear")
def _bilinear(call: Operation) -> Text:
    positional = [call.get(name) for name in ("expand1", "expand2", "expand3", "sumdim")]
    # F.bilinear computes this pattern; for others there is no public function.
    if positional != [(1, 3), (0,), (1, 2), (2, 3)]:
        raise RebuildError("operation _trilinear has no public form")
    return function("F.bilinear", *(call[name].text for name in ("i1", "i3", "i2")))


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


_SELU = 1.0507009873554805, 1.6732632423543772


@emits("_prelu_kernel")
def _prelu(call: Operation) -> Text:
    return function("F.prelu", call["input"].text, f"{call.atom('weight')}.flatten()")


@emits("native_channel_shuffle")
def _shuffle(call: Operation) -> Text:
    return function("F.channel_shuffle", call["input"].text, call.literal("groups"))


@emits("embedding")
def _embedding(call: Operation) -> Text:
    return function("F.embedding", call["indices"].text, call["weight"].text)


@emits("layer_norm", "rms_norm")
def _normalise(call: Operation) -> Text:
    shape = call.literal("normalized_shape")
    named = {name: call[name].text for name in ("weight", "bias") if name in call.tensors}
    if call.get("eps") is not None:
        named["eps"] = call.literal("eps")
    return function(f"F.{call.node.op}", call["input"].text, shape, **named)


@emits("group_norm")
def _group_norm(call: Operation) -> Text:
    named = {name: call[name].text for name in ("weight", "bias") if name in call.tensors}
    return function("F.group_norm", call["input"].text, call.literal("num_groups"), **named, eps=call.literal("eps"))


@emits("batch_norm", "instance_norm")
def _statistics(call: Operation) -> Text:
    flag = "training" if call.node.op == "batch_norm" else "use_input_stats"
    names = ("running_mean", "running_var", "weight", "bias")
    named = {name: call[name].text for name in names if name in call.tensors}
    if call.node.op == "batch_norm" and "running_mean" not in named:
        named |= {"running_mean": "None", "running_var": "None"}
    # The defaults differ: False for batch_norm, True for instance_norm.
    if (call.node.op == "batch_norm") == bool(call.get(flag)):
        named[flag] = repr(bool(call.get(flag)))
    if call.get("momentum") is not None:
        raise RebuildError(f"{call.node.op} that updates statistics outside of a layer")
    return function(f"F.{call.node.op}", call["input"].text, **named, eps=call.literal("eps"))


@emits("linear")
def _linear(call: Operation) -> Text:
    positional = [call[name].text for name in ("input", "weight", "bias") if name in call.tensors]
    return function("F.linear", *positional)


@emits("convolution")
def _convolution(call: Operation) -> Text:
    rank = len(call.get("kernel"))
    positional = [call[name].text for name in ("input", "weight", "bias") if name in call.tensors]
    name = f"F.conv_transpose{rank}d" if call.get("transposed") else f"F.conv{rank}d"
    return function(name, *positional, **convolving(call))


def convolving(call: Operation) -> dict[str, str]:
    """Return the arguments of a convolution other than its channels and kernel."""
    named = {}
    for key, usual in (("stride", 1), ("padding", 0), ("output_padding", 0), ("dilation", 1), ("groups", 1)):
        value = collapse_equal(call.get(key))
        if value not in (usual, None, ()):
            named[key] = call.number(value, call)
    return named
