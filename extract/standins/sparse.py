"""Sparse convolution as index pairs and one matrix product a kernel place (Yan et al., "SECOND", Sensors 2018).

Submanifold form: Graham et al., CVPR 2018. Indices are (n, 1 + dimensions): image, then coordinates; int32.
"""

import torch


def _row_major(places, image, shape):
    """One number a place."""
    flat = image.long()
    for axis, size in enumerate(shape):
        flat = flat * size + places[..., axis].long()
    return flat


def _targets(indices, shape, kernel_size, stride, padding, dilation, transpose):
    """Where each kernel place takes each input (kernel places, n, dimensions), and whether that is anywhere."""
    device = indices.device
    taps = torch.cartesian_prod(*(torch.arange(k, device=device) for k in kernel_size)).view(-1, len(shape))
    taps = (taps * torch.tensor(list(dilation), device=device))[:, None]
    steps, pads, limits = (torch.tensor(list(v), device=device) for v in (stride, padding, shape))
    source = indices[None, :, 1:].long()
    if transpose:
        target = source * steps - pads + taps
        valid = torch.ones(target.shape[:2], dtype=torch.bool, device=device)
    else:
        numerator = source + pads - taps
        target = numerator.div(steps, rounding_mode="floor")
        valid = (numerator % steps == 0).all(-1)
    return target, valid & ((target >= 0) & (target < limits)).all(-1)


def get_indice_pairs_3d_forward(
    indices, batch_size, out_shape, spatial_shape, kernel_size, stride, padding, dilation, out_padding, subm, transpose
):
    """Output indices (sorted), pairs (kernel places, 2, n) of (input row, output row) padded with -1, their counts."""
    shape = list(out_shape)
    if subm:
        stride, padding = [1] * len(shape), [k // 2 for k in kernel_size]
    target, valid = _targets(indices, shape, kernel_size, stride, padding, dilation, transpose)
    flat = _row_major(target, indices[:, 0].expand(len(target), -1), shape)
    if subm:
        known, order = _row_major(indices[:, 1:], indices[:, 0], shape).sort()
        place = torch.searchsorted(known, flat).clamp(max=max(len(known) - 1, 0))
        valid = valid & (known[place] == flat)
        row, out = order[place], indices
    else:
        known = flat[valid].unique()
        row = torch.searchsorted(known, flat)
        columns, rest = [], known
        for size in reversed(shape):
            columns.append(rest % size)
            rest = rest.div(size, rounding_mode="floor")
        out = torch.stack([rest, *reversed(columns)], 1).to(indices.dtype)
    pairs = indices.new_full((len(target), 2, len(indices)), -1)
    for tap, own in enumerate(valid):
        rows = own.nonzero().squeeze(1)
        pairs[tap, :, : len(rows)] = torch.stack([rows, row[tap, rows]]).to(indices.dtype)
    return [out, pairs, valid.sum(1).to(indices.dtype)]


def get_indice_pairs_3d_backward(indices, grid, *arguments):
    """The same; the scratch grid of the caller is not needed."""
    return get_indice_pairs_3d_forward(indices, *arguments)


get_indice_pairs_2d_forward = get_indice_pairs_4d_forward = get_indice_pairs_3d_forward
get_indice_pairs_2d_backward = get_indice_pairs_3d_backward


def _rows_of_taps(indice_pairs, indice_pair_num):
    """(input rows, output rows) for every kernel place."""
    return [pair[:, :count] for pair, count in zip(indice_pairs.long(), indice_pair_num.tolist(), strict=True)]


def _sparse_convolution(features, filters, pairs, count):
    """Features (count, out channels) by a (source rows, target rows) for every kernel place.

    Filters are (*kernel, in channels, out channels).
    """
    output = features.new_zeros(int(count), filters.shape[-1])
    for kernel, (source, target) in zip(filters.reshape(-1, *filters.shape[-2:]), pairs, strict=True):
        output = output.index_add(0, target, features[source] @ kernel)
    return output


class SparseConvFunction:
    """Sparse convolution, also on a submanifold."""

    @staticmethod
    def apply(features, filters, indice_pairs, indice_pair_num, num_activate_out):
        return _sparse_convolution(features, filters, _rows_of_taps(indice_pairs, indice_pair_num), num_activate_out)


SubMConvFunction = SparseConvFunction


class SparseInverseConvFunction:
    """The convolution back from the outputs to the inputs of the pairs."""

    @staticmethod
    def apply(features, filters, indice_pairs, indice_pair_num, num_activate_out):
        pairs = [pair.flip(0) for pair in _rows_of_taps(indice_pairs, indice_pair_num)]
        return _sparse_convolution(features, filters, pairs, num_activate_out)


def fused_indice_conv_forward(features, filters, bias, indice_pairs, indice_pair_num, num_activate_out, inverse, subm):
    """A sparse convolution plus a bias."""
    kind = SparseInverseConvFunction if inverse else SparseConvFunction
    return kind.apply(features, filters, indice_pairs, indice_pair_num, num_activate_out) + bias


class SparseMaxPoolFunction:
    """Maximum over the pairs and zero, as the compiled operator starts from a tensor of zeros."""

    @staticmethod
    def apply(features, indice_pairs, indice_pair_num, num_activate_out):
        output = features.new_zeros(int(num_activate_out), features.shape[1])
        for source, target in _rows_of_taps(indice_pairs, indice_pair_num):
            output = output.scatter_reduce(0, target[:, None].expand(-1, features.shape[1]), features[source], "amax")
        return output
