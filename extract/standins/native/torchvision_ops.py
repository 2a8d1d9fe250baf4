"""The operators of `torch.ops.torchvision`, same signatures, in torch alone."""
# ruff: noqa: A002

import torch


def _tvops_interpolation(
    start: torch.Tensor, side: torch.Tensor, bins: int, length: int, ratio: int, at_least_one: bool
) -> torch.Tensor:
    """Weights (K, bins, length) that average the samples of each bin: bilinear interpolation is separable."""
    side_of_bin = side / bins
    samples = torch.full_like(side, ratio) if ratio > 0 else side_of_bin.ceil().clamp(min=0)
    most = int(samples.max()) if len(samples) else 0
    step = torch.arange(most, device=side.device, dtype=side.dtype)
    used = step < samples[:, None]
    divisor = samples.clamp(min=1) if at_least_one else samples
    inner = (step + 0.5) * (side_of_bin / samples.clamp(min=1))[:, None]
    place = (start[:, None] + torch.arange(bins, device=side.device) * side_of_bin[:, None])[:, :, None]
    place = place + inner[:, None, :]
    share = ((place >= -1) & (place <= length) & used[:, None, :]).to(side.dtype) / divisor[:, None, None]
    place = place.clamp(0, length - 1)
    low = place.floor()
    high = (low + 1).clamp(max=length - 1)
    weights = side.new_zeros(len(side), bins, length)
    weights.scatter_add_(2, low.long(), share * (1 - (place - low)))
    return weights.scatter_add_(2, high.long(), share * (place - low))


def _tvops_pool_each_image(
    input: torch.Tensor, rois: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, per_bin: bool
) -> torch.Tensor:
    """Weighted sums over height and width for every region; with `per_bin` each bin reads channels of its own."""
    bins = (rows.shape[1], columns.shape[1])
    channels = input.shape[1] // (bins[0] * bins[1]) if per_bin else input.shape[1]
    output = input.new_zeros(len(rois), channels, *bins)
    for index in range(len(input)):
        members = (rois[:, 0].long() == index).nonzero().squeeze(1)
        for part in members.chunk(len(members) // 128 + 1):
            if per_bin:
                image = input[index].view(channels, *bins, *input.shape[2:])
                half = torch.einsum("kph,cpqhw->kcpqw", rows[part], image)
                pooled = torch.einsum("kcpqw,kqw->kcpq", half, columns[part])
            else:
                half = torch.einsum("kph,chw->kcpw", rows[part], input[index])
                pooled = torch.einsum("kcpw,kqw->kcpq", half, columns[part])
            output = output.index_copy(0, part, pooled)
    return output


def _tvops_channel_mapping(output: torch.Tensor) -> torch.Tensor:
    mapping = torch.arange(output[0].numel() if len(output) else 0, device=output.device, dtype=torch.int32)
    return mapping.view(1, *output.shape[1:]).repeat(len(output), 1, 1, 1) if len(output) else output.int()


def nms(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Indices of the boxes kept by greedy NMS, best score first."""
    alive = scores.argsort(descending=True, stable=True)
    areas = (dets[:, 2] - dets[:, 0]) * (dets[:, 3] - dets[:, 1])
    kept: list[torch.Tensor] = []
    while alive.numel():
        best, alive = alive[0], alive[1:]
        kept.append(best)
        sides = torch.minimum(dets[best, 2:], dets[alive, 2:]) - torch.maximum(dets[best, :2], dets[alive, :2])
        inter = sides.clamp(min=0).prod(1)
        alive = alive[~(inter / (areas[best] + areas[alive] - inter) > iou_threshold)]
    return torch.stack(kept) if kept else alive


def qnms(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Greedy NMS of integer (quantised) boxes and scores."""
    return nms(dets.float(), scores.float(), iou_threshold)


def roi_align(
    input: torch.Tensor,
    rois: torch.Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> torch.Tensor:
    """RoI Align (K, C, h, w) of regions (K, 5) (He et al., "Mask R-CNN", ICCV 2017)."""
    x1, y1, x2, y2 = (rois[:, 1:] * spatial_scale - (0.5 if aligned else 0.0)).unbind(1)
    least = -torch.inf if aligned else 1.0
    rows = _tvops_interpolation(y1, (y2 - y1).clamp(min=least), pooled_height, input.shape[2], sampling_ratio, True)
    columns = _tvops_interpolation(x1, (x2 - x1).clamp(min=least), pooled_width, input.shape[3], sampling_ratio, True)
    return _tvops_pool_each_image(input, rois, rows, columns, per_bin=False)


def qroi_align(
    input: torch.Tensor,
    rois: torch.Tensor,
    input_scale: float,
    input_zero_point: int,
    rois_scale: float,
    rois_zero_point: int,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> torch.Tensor:
    """RoI Align on the integers of quantised tensors; integers again (averages are rounded to the nearest)."""
    pixels = (input.float() - input_zero_point) * input_scale
    regions = (rois.float() - rois_zero_point) * rois_scale
    pooled = roi_align(pixels, regions, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned)
    limits = torch.iinfo(input.dtype)
    return ((pooled / input_scale).round() + input_zero_point).clamp(limits.min, limits.max).to(input.dtype)


def ps_roi_align(
    input: torch.Tensor,
    rois: torch.Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Position-sensitive RoI Align and, for each output, the input channel it reads (Light-Head R-CNN, 2017)."""
    x1, y1, x2, y2 = (rois[:, 1:] * spatial_scale - 0.5).unbind(1)
    rows = _tvops_interpolation(y1, y2 - y1, pooled_height, input.shape[2], sampling_ratio, False)
    columns = _tvops_interpolation(x1, x2 - x1, pooled_width, input.shape[3], sampling_ratio, False)
    output = _tvops_pool_each_image(input, rois, rows, columns, per_bin=True)
    return output, _tvops_channel_mapping(output)


def _tvops_bins(
    start: torch.Tensor, side: torch.Tensor, bins: int, length: int, last: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of `length` places lie in each bin (K, bins, length), and the number of them."""
    step = torch.arange(bins, device=side.device, dtype=side.dtype)
    low = (step * (side / bins)[:, None]).floor() + start[:, None]
    high = ((step + 1) * (side / bins)[:, None]).ceil() + start[:, None]
    low, high = low.clamp(0, last), high.clamp(0, last)
    place = torch.arange(length, device=side.device, dtype=side.dtype)
    return (place >= low[..., None]) & (place < high[..., None]), (high - low).clamp(min=0)


def _tvops_round(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x < 0, (x - 0.5).ceil(), (x + 0.5).floor())


def roi_pool(
    input: torch.Tensor, rois: torch.Tensor, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """RoI max pooling and the flat index of each maximum, -1 for an empty bin (Fast R-CNN, ICCV 2015)."""
    height, width = input.shape[2:]
    x1, y1, x2, y2 = _tvops_round(rois[:, 1:] * spatial_scale).unbind(1)
    in_row, n_rows = _tvops_bins(y1, (y2 - y1 + 1).clamp(min=1), pooled_height, height, height)
    in_column, n_columns = _tvops_bins(x1, (x2 - x1 + 1).clamp(min=1), pooled_width, width, width)
    values, places = [], []
    for k, index in enumerate(rois[:, 0].long().tolist()):
        image = input[index]
        spans = image.detach()[:, :, None, :].masked_fill(~in_column[k], -torch.inf)
        best, column = spans.max(-1)
        best, row = best[:, None].masked_fill(~in_row[k][..., None], -torch.inf).max(2)
        column = column[:, None].expand(-1, pooled_height, -1, -1).gather(2, row[:, :, None]).squeeze(2)
        empty = (n_rows[k][:, None] * n_columns[k]) == 0
        place = (row * width + column).masked_fill(empty, -1)
        taken = image.flatten(1).gather(1, place.clamp(min=0).flatten(1)).view_as(best)
        values.append(taken.masked_fill(empty, 0))
        places.append(place.int())
    if not values:
        nothing = input[:0, :, :1, :1].expand(0, -1, pooled_height, pooled_width)
        return nothing, nothing.int()
    return torch.stack(values), torch.stack(places)


def ps_roi_pool(
    input: torch.Tensor, rois: torch.Tensor, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Position-sensitive RoI average pooling and the input channel of each output (R-FCN, NeurIPS 2016).

    As in the compiled operator, bins end before the last row and column in the values, not in the gradient.
    """
    x1, y1, x2, y2 = _tvops_round(rois[:, 1:] * spatial_scale).unbind(1)
    pooled = []
    for cut in (1, 0):
        shares = []
        for low, high, bins, length in (
            (y1, y2, pooled_height, input.shape[2]),
            (x1, x2, pooled_width, input.shape[3]),
        ):
            inside, count = _tvops_bins(low, (high - low).clamp(min=1), bins, length, length - cut)
            shares.append(inside.to(input.dtype) / count.clamp(min=1)[..., None])
        pooled.append(_tvops_pool_each_image(input, rois, shares[0], shares[1], per_bin=True))
    output = pooled[0].detach() + (pooled[1] - pooled[1].detach())
    return output, _tvops_channel_mapping(output)


def deform_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    offset: torch.Tensor,
    mask: torch.Tensor,
    bias: torch.Tensor,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> torch.Tensor:
    """Deformable convolution v1, and v2 with `use_mask` (Dai et al., ICCV 2017; Zhu et al., CVPR 2019)."""
    n, channels, height, width = input.shape
    outputs, _, kernel_h, kernel_w = weight.shape
    out_h, out_w = offset.shape[2:]
    taps = kernel_h * kernel_w
    shift = offset.reshape(n * offset_groups, taps, 2, out_h, out_w)

    def steps(count: int, stride: int) -> torch.Tensor:
        return torch.arange(count, device=input.device, dtype=input.dtype) * stride

    y = steps(out_h, stride_h)[:, None] - pad_h + steps(kernel_h, dilation_h).repeat_interleave(kernel_w)[:, None, None]
    x = steps(out_w, stride_w)[None, :] - pad_w + steps(kernel_w, dilation_w).repeat(kernel_h)[:, None, None]
    x, y = (2 * (x + shift[:, :, 1]) + 1) / width - 1, (2 * (y + shift[:, :, 0]) + 1) / height - 1
    columns = torch.nn.functional.grid_sample(
        input.reshape(n * offset_groups, channels // offset_groups, height, width),
        torch.stack([x, y], dim=-1).reshape(n * offset_groups, taps * out_h, out_w, 2),
        padding_mode="zeros",
        align_corners=False,
    )
    columns = columns.reshape(n * offset_groups, -1, taps, out_h, out_w)
    if use_mask:
        columns = columns * mask.reshape(n * offset_groups, 1, taps, out_h, out_w)
    columns = columns.reshape(n, groups, channels // groups * taps, out_h * out_w)
    kernels = weight.reshape(groups, outputs // groups, -1)
    result = torch.einsum("gok,ngkp->ngop", kernels, columns).reshape(n, outputs, out_h, out_w)
    return result + bias[:, None, None]
