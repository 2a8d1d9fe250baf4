"""The operators of `torch.ops.torchvision`, same signatures, in torch alone."""
# ruff: noqa: A002

import torch


def _tvops_samples(start: torch.Tensor, side: torch.Tensor, bins: int, ratio: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each bin is sampled along one axis (K, bins, most), and how many samples each region takes (K)."""
    side_of_bin = side / bins
    count = torch.full_like(side, ratio) if ratio > 0 else side_of_bin.ceil().clamp(min=0)
    most = int(count.max()) if len(count) else 0
    step = torch.arange(most, device=side.device, dtype=side.dtype) + 0.5
    inner = step * side_of_bin[:, None] / count.clamp(min=1)[:, None]
    place = start[:, None] + torch.arange(bins, device=side.device, dtype=side.dtype) * side_of_bin[:, None]
    return place[:, :, None] + inner[:, None, :], count


def _tvops_corners(place: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The lower and upper pixel of sampled places, the share of the upper one, and which places count."""
    valid = (place >= -1) & (place <= length)
    place = place.clamp(min=0)
    low = place.floor().clamp(max=length - 1)
    place = torch.where(low >= length - 1, low, place)
    high = (low + 1).clamp(max=length - 1)
    return low.long().clamp(0, length - 1), high.long().clamp(0, length - 1), place - low, valid


def _tvops_channels(input: torch.Tensor, bins: tuple[int, int]) -> int:
    """Channels of the output where each bin reads its own."""
    if input.shape[1] % (bins[0] * bins[1]):
        raise RuntimeError(f"input has {input.shape[1]} channels, not a multiple of the {bins[0]} x {bins[1]} bins")
    return input.shape[1] // (bins[0] * bins[1])


def _tvops_align(
    input: torch.Tensor,
    rois: torch.Tensor,
    y: tuple[torch.Tensor, torch.Tensor],
    x: tuple[torch.Tensor, torch.Tensor],
    per_bin: bool,
) -> torch.Tensor:
    """Averages of bilinear samples (K, C, bins, bins); with `per_bin` each bin reads channels of its own.

    Samples are added one by one, row by row, as the compiled operator does: in another order the last bit differs.
    """
    (ys, n_rows), (xs, n_columns) = y, x
    bins = (ys.shape[1], xs.shape[1])
    channels = _tvops_channels(input, bins) if per_bin else input.shape[1]
    total = input.new_zeros(len(rois), *bins, channels) + input.flatten()[:0].sum()  # differentiable without regions
    of = rois[:, 0].long()[:, None, None]
    own: tuple[torch.Tensor, ...] = ()
    if per_bin:
        pixels = input.view(len(input), channels, *bins, *input.shape[2:]).permute(0, 2, 3, 4, 5, 1)
        own = (torch.arange(bins[0], device=of.device)[:, None], torch.arange(bins[1], device=of.device)[None, :])
    else:
        pixels = input.permute(0, 2, 3, 1)
    for i in range(ys.shape[2]):
        low_y, high_y, ly, valid_y = (part[:, :, None] for part in _tvops_corners(ys[:, :, i], input.shape[2]))
        for j in range(xs.shape[2]):
            low_x, high_x, lx, valid_x = (part[:, None, :] for part in _tvops_corners(xs[:, :, j], input.shape[3]))
            hy, hx = 1 - ly, 1 - lx
            sample = (
                (hy * hx)[..., None] * pixels[(of, *own, low_y, low_x)]
                + (hy * lx)[..., None] * pixels[(of, *own, low_y, high_x)]
                + (ly * hx)[..., None] * pixels[(of, *own, high_y, low_x)]
                + (ly * lx)[..., None] * pixels[(of, *own, high_y, high_x)]
            )
            used = valid_y & valid_x & (i < n_rows)[:, None, None] & (j < n_columns)[:, None, None]
            total = total + torch.where(used[..., None], sample, 0)
    count = (n_rows * n_columns)[:, None, None, None]
    total = total / (count if per_bin else count.clamp(min=1))
    return total.permute(0, 3, 1, 2).contiguous()


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
    rows = _tvops_samples(y1, (y2 - y1).clamp(min=least), pooled_height, sampling_ratio)
    columns = _tvops_samples(x1, (x2 - x1).clamp(min=least), pooled_width, sampling_ratio)
    return _tvops_align(input, rois, rows, columns, per_bin=False)


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
    rows = _tvops_samples(y1, y2 - y1, pooled_height, sampling_ratio)
    columns = _tvops_samples(x1, x2 - x1, pooled_width, sampling_ratio)
    output = _tvops_align(input, rois, rows, columns, per_bin=True)
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
        rows = _tvops_spans(y1, (y2 - y1).clamp(min=0.1), pooled_height, input.shape[2] - cut)
        columns = _tvops_spans(x1, (x2 - x1).clamp(min=0.1), pooled_width, input.shape[3] - cut)
        pooled.append(_tvops_average(input, rois, rows, columns))
    output = pooled[0].detach() + (pooled[1] - pooled[1].detach())
    return output, _tvops_channel_mapping(output)


def _tvops_spans(start: torch.Tensor, side: torch.Tensor, bins: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first pixel of each bin (K, bins), and how many it has."""
    step = torch.arange(bins, device=side.device, dtype=side.dtype)
    side_of_bin = (side / bins)[:, None]
    low = ((step * side_of_bin).floor() + start[:, None]).clamp(0, last)
    high = (((step + 1) * side_of_bin).ceil() + start[:, None]).clamp(0, last)
    return low.long(), (high - low).clamp(min=0)


def _tvops_average(
    input: torch.Tensor,
    rois: torch.Tensor,
    rows: tuple[torch.Tensor, torch.Tensor],
    columns: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Averages of the pixels of each bin, which reads channels of its own; pixels are added row by row."""
    (top, height), (left, width) = rows, columns
    bins = (top.shape[1], left.shape[1])
    channels = _tvops_channels(input, bins)
    pixels = input.view(len(input), channels, *bins, *input.shape[2:]).permute(0, 2, 3, 4, 5, 1)
    own = (torch.arange(bins[0], device=top.device)[:, None], torch.arange(bins[1], device=top.device)[None, :])
    of = rois[:, 0].long()[:, None, None]
    total = input.new_zeros(len(rois), *bins, channels) + input.flatten()[:0].sum()
    for i in range(int(height.max()) if len(rois) else 0):
        y = (top + i).clamp(max=input.shape[2] - 1)[:, :, None]
        for j in range(int(width.max())):
            x = (left + j).clamp(max=input.shape[3] - 1)[:, None, :]
            used = (i < height)[:, :, None] & (j < width)[:, None, :]
            total = total + torch.where(used[..., None], pixels[(of, *own, y, x)], 0)
    area = height[:, :, None] * width[:, None, :]
    return (total / area.clamp(min=1)[..., None]).permute(0, 3, 1, 2).contiguous()


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
    taps = kernel_h * kernel_w
    out_h = (height + 2 * pad_h - dilation_h * (kernel_h - 1) - 1) // stride_h + 1
    out_w = (width + 2 * pad_w - dilation_w * (kernel_w - 1) - 1) // stride_w + 1
    if offset.shape[1:] != (offset_groups * 2 * taps, out_h, out_w):
        raise RuntimeError(f"offset has shape {tuple(offset.shape)}, not {(n, offset_groups * 2 * taps, out_h, out_w)}")
    shift = offset.reshape(n, offset_groups, taps, 2, out_h, out_w)

    def steps(count: int, stride: int) -> torch.Tensor:
        return torch.arange(count, device=input.device, dtype=input.dtype) * stride

    y = steps(out_h, stride_h)[:, None] - pad_h + steps(kernel_h, dilation_h).repeat_interleave(kernel_w)[:, None, None]
    x = steps(out_w, stride_w)[None, :] - pad_w + steps(kernel_w, dilation_w).repeat(kernel_h)[:, None, None]
    sampled = _tvops_bilinear(
        input.reshape(n, offset_groups, channels // offset_groups, height, width),
        y + shift[:, :, :, 0],
        x + shift[:, :, :, 1],
    )  # (n, offset groups, channels of one, taps, out_h, out_w)
    if use_mask:
        sampled = mask.reshape(n, offset_groups, 1, taps, out_h, out_w) * sampled
    # One product for as many images as the compiled operator takes together: the bits of a sum depend on its sizes.
    together = next(size for size in range(min(n, 32), 0, -1) if n % size == 0) if n else 1
    columns = sampled.reshape(n // together, together, groups, channels // groups * taps, out_h * out_w)
    columns = columns.permute(0, 2, 3, 1, 4).reshape(n // together, groups, channels // groups * taps, -1)
    kernels = weight.reshape(groups, outputs // groups, -1)
    parts = [
        torch.stack(
            [torch.addmm(part.new_zeros(()), kernel, part) for kernel, part in zip(kernels, batch, strict=True)]
        )
        for batch in columns
    ]
    result = torch.stack(parts).reshape(n // together, outputs, together, out_h, out_w)
    return result.transpose(1, 2).reshape(n, outputs, out_h, out_w) + bias[:, None, None]


def _tvops_bilinear(pixels: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Samples (N, G, C, T, h, w) of images (N, G, C, H, W) at places (N, G, T, h, w); zero outside."""
    n, groups, channels, height, width = pixels.shape
    flat = pixels.reshape(n, groups, channels, height * width)
    inside = (y > -1) & (y < height) & (x > -1) & (x < width)
    low_y, low_x = y.floor(), x.floor()
    ly, lx = y - low_y, x - low_x
    total: torch.Tensor | None = None
    for dy, share_y in ((0, 1 - ly), (1, ly)):
        for dx, share_x in ((0, 1 - lx), (1, lx)):
            row, column = low_y + dy, low_x + dx
            there = (row >= 0) & (row <= height - 1) & (column >= 0) & (column <= width - 1)
            place = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).long().reshape(n, groups, 1, -1)
            value = flat.gather(3, place.expand(-1, -1, channels, -1)).reshape(n, groups, channels, *y.shape[2:])
            part = (share_y * share_x)[:, :, None] * torch.where(there[:, :, None], value, 0)
            total = part if total is None else total + part
    assert total is not None
    return torch.where(inside[:, :, None], total, 0)
