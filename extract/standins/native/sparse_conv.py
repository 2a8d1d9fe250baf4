"""Sparse convolution as index pairs and one matrix product a kernel place (Yan et al., "SECOND", Sensors 2018).

Submanifold form: Graham et al., CVPR 2018. Indices are (n, 1 + dimensions): image, then coordinates; int32.
"""
# ruff: noqa: N803

import torch


def _sparse_flat(places: torch.Tensor, image: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """One number a place, in row-major order."""
    flat = image.long()
    for axis, size in enumerate(shape):
        flat = flat * size + places[..., axis].long()
    return flat


def _sparse_pairs(
    indices: torch.Tensor,
    outSpatialShape: list[int],
    kernelSize: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    subM: bool,
    transpose: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output indices, pairs (kernel places, 2, n) of (input row, output row) padded with -1, and their counts."""
    device, shape = indices.device, list(outSpatialShape)
    if subM:
        stride, padding = [1] * len(shape), [k // 2 for k in kernelSize]
    taps = torch.cartesian_prod(*(torch.arange(k, device=device) for k in kernelSize)).view(-1, len(shape))
    taps = taps * torch.tensor(list(dilation), device=device)
    steps, pads = (torch.tensor(list(v), device=device) for v in (stride, padding))
    limits = torch.tensor(shape, device=device)
    source = indices[None, :, 1:].long()
    if transpose:
        target = source * steps - pads + taps[:, None]
        valid = torch.ones(target.shape[:2], dtype=torch.bool, device=device)
    else:
        numerator = source + pads - taps[:, None]
        target = numerator.div(steps, rounding_mode="floor")
        valid = (numerator % steps == 0).all(-1)
    valid &= ((target >= 0) & (target < limits)).all(-1)
    image = indices[:, 0].expand(len(taps), -1)
    flat = _sparse_flat(target, image, shape)
    if subM:
        own = _sparse_flat(indices[:, 1:], indices[:, 0], shape)
        known, order = own.sort()
        place = torch.searchsorted(known, flat).clamp(max=max(len(known) - 1, 0))
        valid &= known[place] == flat
        row, out = order[place], indices
    else:
        known = flat[valid].unique()  # type: ignore[no-untyped-call, unused-ignore]
        row = torch.searchsorted(known, flat)
        columns, rest = [], known
        for size in reversed(shape):
            columns.append(rest % size)
            rest = rest.div(size, rounding_mode="floor")
        out = torch.stack([rest, *reversed(columns)], 1).to(indices.dtype)
    pairs = indices.new_full((len(taps), 2, len(indices)), -1)
    for k in range(len(taps)):
        rows = valid[k].nonzero().squeeze(1)
        pairs[k, 0, : len(rows)] = rows.to(indices.dtype)
        pairs[k, 1, : len(rows)] = row[k, rows].to(indices.dtype)
    return out, pairs, valid.sum(1).to(indices.dtype)


def _sparse_pairs_forward(
    indices: torch.Tensor,
    batchSize: int,
    outSpatialShape: list[int],
    spatialShape: list[int],
    kernelSize: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    outPadding: list[int],
    _subM: int,
    _transpose: int,
) -> list[torch.Tensor]:
    return list(
        _sparse_pairs(indices, outSpatialShape, kernelSize, stride, padding, dilation, bool(_subM), bool(_transpose))
    )


def get_indice_pairs_2d_forward(
    indices: torch.Tensor,
    batchSize: int,
    outSpatialShape: list[int],
    spatialShape: list[int],
    kernelSize: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    outPadding: list[int],
    _subM: int,
    _transpose: int,
) -> list[torch.Tensor]:
    """Output indices (sorted), pairs and their counts in 2 dimensions; submanifold with `_subM`."""
    return _sparse_pairs_forward(
        indices, batchSize, outSpatialShape, spatialShape, kernelSize, stride, padding, dilation, outPadding,
        _subM, _transpose,
    )  # fmt: skip


def get_indice_pairs_3d_forward(
    indices: torch.Tensor,
    batchSize: int,
    outSpatialShape: list[int],
    spatialShape: list[int],
    kernelSize: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    outPadding: list[int],
    _subM: int,
    _transpose: int,
) -> list[torch.Tensor]:
    """Output indices (sorted), pairs and their counts in 3 dimensions; submanifold with `_subM`."""
    return _sparse_pairs_forward(
        indices, batchSize, outSpatialShape, spatialShape, kernelSize, stride, padding, dilation, outPadding,
        _subM, _transpose,
    )  # fmt: skip


def get_indice_pairs_4d_forward(
    indices: torch.Tensor,
    batchSize: int,
    outSpatialShape: list[int],
    spatialShape: list[int],
    kernelSize: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    outPadding: list[int],
    _subM: int,
    _transpose: int,
) -> list[torch.Tensor]:
    """Output indices (sorted), pairs and their counts in 4 dimensions; submanifold with `_subM`."""
    return _sparse_pairs_forward(
        indices, batchSize, outSpatialShape, spatialShape, kernelSize, stride, padding, dilation, outPadding,
        _subM, _transpose,
    )  # fmt: skip


def get_indice_pairs_2d_backward(
    indices: torch.Tensor,
    gridOut: torch.Tensor,
    batchSize: int,
    outSpatialShape: list[int],
    spatialShape: list[int],
    kernelSize: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    outPadding: list[int],
    _subM: int,
    _transpose: int,
) -> list[torch.Tensor]:
    """The same as `get_indice_pairs_2d_forward`; the scratch grid of the caller is not needed."""
    return _sparse_pairs_forward(
        indices, batchSize, outSpatialShape, spatialShape, kernelSize, stride, padding, dilation, outPadding,
        _subM, _transpose,
    )  # fmt: skip


def get_indice_pairs_3d_backward(
    indices: torch.Tensor,
    gridOut: torch.Tensor,
    batchSize: int,
    outSpatialShape: list[int],
    spatialShape: list[int],
    kernelSize: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    outPadding: list[int],
    _subM: int,
    _transpose: int,
) -> list[torch.Tensor]:
    """The same as `get_indice_pairs_3d_forward`; the scratch grid of the caller is not needed."""
    return _sparse_pairs_forward(
        indices, batchSize, outSpatialShape, spatialShape, kernelSize, stride, padding, dilation, outPadding,
        _subM, _transpose,
    )  # fmt: skip


def _sparse_each_tap(
    indicePairs: torch.Tensor, indiceNum: torch.Tensor, inverse: bool
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(source rows, target rows) for every kernel place; exchanged for the inverse convolution."""
    taps = []
    for pair, count in zip(indicePairs.long(), indiceNum.tolist(), strict=True):
        source, target = pair[0, :count], pair[1, :count]
        taps.append((target, source) if inverse else (source, target))
    return taps


def indice_conv_forward(
    features: torch.Tensor,
    filters: torch.Tensor,
    indicePairs: torch.Tensor,
    indiceNum: torch.Tensor,
    numActOut: int,
    _inverse: int,
    _subM: int,
) -> torch.Tensor:
    """Features (numActOut, out channels); filters are (*kernel, in channels, out channels)."""
    kernels = filters.reshape(-1, *filters.shape[-2:])
    output = features.new_zeros(int(numActOut), filters.shape[-1])
    for k, (source, target) in enumerate(_sparse_each_tap(indicePairs, indiceNum, bool(_inverse))):
        output = output.index_add(0, target, features[source] @ kernels[k])
    return output


def fused_indice_conv_forward(
    features: torch.Tensor,
    filters: torch.Tensor,
    bias: torch.Tensor,
    indicePairs: torch.Tensor,
    indiceNum: torch.Tensor,
    numActOut: int,
    _inverse: int,
    _subM: int,
) -> torch.Tensor:
    """`indice_conv_forward` plus a bias."""
    return indice_conv_forward(features, filters, indicePairs, indiceNum, numActOut, _inverse, _subM) + bias


def indice_conv_backward(
    features: torch.Tensor,
    filters: torch.Tensor,
    outGrad: torch.Tensor,
    indicePairs: torch.Tensor,
    indiceNum: torch.Tensor,
    _inverse: int,
    _subM: int,
) -> list[torch.Tensor]:
    """Gradients of features and filters."""
    kernels = filters.reshape(-1, *filters.shape[-2:])
    grad_features, grad_kernels = torch.zeros_like(features), torch.zeros_like(kernels)
    for k, (source, target) in enumerate(_sparse_each_tap(indicePairs, indiceNum, bool(_inverse))):
        grad_features.index_add_(0, source, outGrad[target] @ kernels[k].T)
        grad_kernels[k] = features[source].T @ outGrad[target]
    return [grad_features, grad_kernels.view_as(filters)]


def indice_maxpool_forward(
    features: torch.Tensor, indicePairs: torch.Tensor, indiceNum: torch.Tensor, numAct: int
) -> torch.Tensor:
    """Maximum over the pairs and zero, as the compiled operator starts from a tensor of zeros."""
    output = features.new_zeros(int(numAct), features.shape[1])
    for source, target in _sparse_each_tap(indicePairs, indiceNum, False):
        rows = target[:, None].expand(-1, features.shape[1])
        output = output.scatter_reduce(0, rows, features[source], "amax")
    return output


def indice_maxpool_backward(
    features: torch.Tensor,
    outFeatures: torch.Tensor,
    outGrad: torch.Tensor,
    indicePairs: torch.Tensor,
    indiceNum: torch.Tensor,
) -> torch.Tensor:
    """Gradient of the features: each one that equals the maximum receives it whole."""
    grad = torch.zeros_like(features)
    for source, target in _sparse_each_tap(indicePairs, indiceNum, False):
        grad.index_add_(0, source, outGrad[target] * (features[source] == outFeatures[target]))
    return grad
