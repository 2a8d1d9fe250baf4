"""Rotated, deformable and precise region pooling; box overlaps; aligned-to-natural masks."""

import math

import pytest
import torch
import torchvision

from extract.standins.native import roi_align_rotated as turned
from extract.standins.native.bbox_overlaps import bbox_overlaps
from extract.standins.native.deform_roi_pool import deform_roi_pool_backward, deform_roi_pool_forward
from extract.standins.native.prroi_pool import prroi_pool_backward, prroi_pool_coor_backward, prroi_pool_forward
from extract.standins.native.swap_align2nat import swap_align2nat_backward, swap_align2nat_forward


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def bilinear(plane, y, x):
    height, width = plane.shape
    if y < -1 or y > height or x < -1 or x > width:
        return 0.0
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    y0, x0 = int(y), int(x)
    return sum(
        float(plane[min(y0 + i, height - 1), min(x0 + j, width - 1)]) * abs(1 - i - (y - y0)) * abs(1 - j - (x - x0))
        for i in (0, 1)
        for j in (0, 1)
    )


TURNED = torch.tensor(
    [[0, 4.0, 3.5, 6.0, 3.0, 0.7], [1, 5.0, 4.0, 9.0, 4.5, -2.1], [0, 2, 2, 0.4, 0.3, 5.0]], dtype=torch.float64
)


def turned_by_loops(x, rois, size, scale, ratio, aligned, clockwise, orientations=1):
    out = torch.zeros(len(rois), x.shape[1], *size, dtype=x.dtype)
    for k, (index, cx, cy, w, h, angle) in enumerate(rois.tolist()):
        shift = 0.5 if aligned else 0.0
        cx, cy, w, h = cx * scale - shift, cy * scale - shift, w * scale, h * scale
        if not aligned:
            w, h = max(w, 1), max(h, 1)
        rows = ratio or math.ceil(h / size[0])
        columns = ratio or math.ceil(w / size[1])
        theta = -angle if clockwise else angle
        place = angle * orientations / (2 * math.pi)
        first, share = math.floor(place), place - math.floor(place)
        for c in range(x.shape[1]):
            group, o = divmod(c, orientations)
            one = group * orientations + (o - first) % orientations
            two = group * orientations + (o - first + 1) % orientations
            for i in range(size[0]):
                for j in range(size[1]):
                    total = 0.0
                    for u in range(rows):
                        for v in range(columns):
                            yy = -h / 2 + (i + (u + 0.5) / rows) * h / size[0]
                            xx = -w / 2 + (j + (v + 0.5) / columns) * w / size[1]
                            y = yy * math.cos(theta) - xx * math.sin(theta) + cy
                            z = yy * math.sin(theta) + xx * math.cos(theta) + cx
                            value = bilinear(x[int(index), one], y, z)
                            if orientations > 1:
                                value = (1 - share) * value + share * bilinear(x[int(index), two], y, z)
                            total += value
                    out[k, c, i, j] = total / max(rows * columns, 1)
    return out


class Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rois, size, scale, ratio, aligned, clockwise, orientations):
        output = x.new_zeros(len(rois), x.size(1), *size)
        ctx.kwargs = {"pooled_height": size[0], "pooled_width": size[1], "spatial_scale": scale, "clockwise": clockwise}
        ctx.invariant = orientations > 1
        if ctx.invariant:
            ctx.kwargs |= {"num_samples": ratio, "num_orientations": orientations}
            turned.riroi_align_rotated_forward(x, rois, output, **ctx.kwargs)
        else:
            ctx.kwargs |= {"sampling_ratio": ratio, "aligned": aligned}
            turned.roi_align_rotated_forward(x, rois, output, **ctx.kwargs)
        ctx.save_for_backward(rois)
        ctx.shape = x.shape
        return output

    @staticmethod
    def backward(ctx, grad):
        (rois,) = ctx.saved_tensors
        grad_input = rois.new_zeros(ctx.shape)
        function = turned.riroi_align_rotated_backward if ctx.invariant else turned.roi_align_rotated_backward
        function(grad.contiguous(), rois, grad_input, **ctx.kwargs)
        return (grad_input, *[None] * 7)


@pytest.mark.parametrize("clockwise", [False, True])
@pytest.mark.parametrize(("aligned", "orientations"), [(True, 1), (False, 1), (False, 4)])
@pytest.mark.parametrize("ratio", [0, 2])
def test_rotated_regions(ratio, aligned, orientations, clockwise):
    x, args = random(2, 4, 7, 8), ((2, 3), 0.8, ratio, aligned, clockwise, orientations)
    torch.testing.assert_close(Turned.apply(x, TURNED, *args), turned_by_loops(x, TURNED, *args))
    if ratio:
        x = random(2, 4, 4, 4).requires_grad_()
        assert torch.autograd.gradcheck(lambda t: Turned.apply(t, TURNED, *args), x, fast_mode=True)


def test_rotated_regions_without_an_angle_are_plain_roi_align():
    x = random(1, 2, 9, 9)
    rois = torch.tensor([[0, 4.0, 5.0, 6.0, 4.0, 0.0]], dtype=torch.float64)
    plain = torch.tensor([[0, 1.0, 3.0, 7.0, 7.0]], dtype=torch.float64)
    got = Turned.apply(x, rois, (3, 2), 1.0, 2, True, False, 1)
    torch.testing.assert_close(got, torchvision.ops.roi_align(x, plain, (3, 2), 1.0, 2, True))


def test_rotated_regions_in_the_form_that_returns_its_result():
    class Returned(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return turned.roi_align_rotated_forward(x, degrees, 0.8, 2, 3, 2)

        @staticmethod
        def backward(ctx, grad):
            return turned.roi_align_rotated_backward(grad, degrees, 0.8, 2, 3, 2, 4, 7, 8, 2)

    degrees = TURNED * torch.tensor([1, 1, 1, 1, 1, 180 / math.pi])
    x = random(2, 4, 7, 8).requires_grad_()
    torch.testing.assert_close(Returned.apply(x), turned_by_loops(x.detach(), TURNED, (2, 3), 0.8, 2, True, False))
    one, two = (torch.autograd.grad(f(x).square().sum(), x)[0] for f in (
        Returned.apply, lambda t: Turned.apply(t, TURNED, (2, 3), 0.8, 2, True, False, 1)
    ))  # fmt: skip
    torch.testing.assert_close(one, two)


ROIS = torch.tensor([[0, 1.3, 2.1, 9.7, 8.2], [1, 0.4, 1.0, 4.5, 11.0], [1, 3.0, 3.0, 3.6, 3.4]], dtype=torch.float64)


class DeformRoIPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rois, offset, size, scale, ratio, gamma):
        output = x.new_zeros(len(rois), x.size(1), *size)
        ctx.kwargs = {
            "pooled_height": size[0], "pooled_width": size[1], "spatial_scale": scale, "sampling_ratio": ratio,
            "gamma": gamma,
        }  # fmt: skip
        deform_roi_pool_forward(x, rois, offset, output, **ctx.kwargs)
        ctx.save_for_backward(x, rois, offset)
        return output

    @staticmethod
    def backward(ctx, grad):
        x, rois, offset = ctx.saved_tensors
        grad_input, grad_offset = grad.new_zeros(x.shape), grad.new_zeros(offset.shape)
        deform_roi_pool_backward(grad, x, rois, offset, grad_input, grad_offset, **ctx.kwargs)
        return grad_input, None, grad_offset if offset.numel() else None, None, None, None, None


@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("moved", [True, False])
def test_deform_roi_pool(moved, ratio):
    x, size, scale, gamma = random(2, 3, 7, 8), (2, 3), 0.7, 0.3
    offset = random(3, 2, *size, seed=1) if moved else torch.zeros(0, dtype=torch.float64)
    wanted = torch.zeros(3, 3, *size, dtype=torch.float64)
    for k, (index, *corners) in enumerate(ROIS.tolist()):
        x1, y1, x2, y2 = (v * scale - 0.5 for v in corners)
        w, h = x2 - x1, y2 - y1
        rows, columns = ratio or math.ceil(h / size[0]), ratio or math.ceil(w / size[1])
        for i in range(size[0]):
            for j in range(size[1]):
                left = x1 + gamma * w * (float(offset[k, 0, i, j]) if moved else 0)
                top = y1 + gamma * h * (float(offset[k, 1, i, j]) if moved else 0)
                for c in range(3):
                    values = [
                        bilinear(
                            x[int(index), c],
                            top + (i + (u + 0.5) / rows) * h / size[0],
                            left + (j + (v + 0.5) / columns) * w / size[1],
                        )
                        for u in range(rows)
                        for v in range(columns)
                    ]
                    wanted[k, c, i, j] = sum(values) / max(len(values), 1)
    torch.testing.assert_close(DeformRoIPool.apply(x, ROIS, offset, size, scale, ratio, gamma), wanted)
    leaves = [random(2, 2, 5, 6).requires_grad_()] + ([offset.requires_grad_()] if moved else [])
    assert torch.autograd.gradcheck(
        lambda t, o=offset: DeformRoIPool.apply(t, ROIS, o, size, scale, ratio, gamma), leaves, fast_mode=True
    )


class PrecisePool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rois, size, scale):
        output = x.new_zeros(len(rois), x.size(1), *size)
        ctx.kwargs = {"pooled_height": size[0], "pooled_width": size[1], "spatial_scale": scale}
        prroi_pool_forward(x, rois, output, **ctx.kwargs)
        ctx.save_for_backward(x, rois, output)
        return output

    @staticmethod
    def backward(ctx, grad):
        x, rois, output = ctx.saved_tensors
        grad_input, grad_rois = torch.zeros_like(x), torch.zeros_like(rois)
        prroi_pool_backward(grad, rois, grad_input, **ctx.kwargs)
        prroi_pool_coor_backward(output, grad, x, rois, grad_rois, **ctx.kwargs)
        return grad_input, grad_rois, None, None


def test_precise_pooling():
    """The integral, by a fine midpoint rule over the image continued by zeros."""
    x, scale, fine = random(2, 2, 6, 7), 0.6, 60
    rois = torch.cat([ROIS, torch.tensor([[0, -4.0, 5.0, 3.0, 14.0], [0, 5.0, 5.0, 5.0, 9.0]], dtype=torch.float64)])
    got = PrecisePool.apply(x, rois, (2, 2), scale)
    padded = torch.nn.functional.pad(x, [4] * 4)
    for k, (index, *corners) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = (v * scale for v in corners)
        steps = (torch.arange(fine, dtype=torch.float64) + 0.5) / fine
        for i in range(2):
            for j in range(2):
                y = y1 + (i + steps) * (y2 - y1) / 2 + 4
                z = x1 + (j + steps) * (x2 - x1) / 2 + 4
                rows = (1 - (y[:, None] - torch.arange(14)).abs()).clamp(min=0)
                columns = (1 - (z[:, None] - torch.arange(15)).abs()).clamp(min=0)
                mean = torch.einsum("yh,chw,xw->c", rows, padded[int(index)], columns) / fine**2
                wanted = mean if x2 > x1 and y2 > y1 else torch.zeros_like(mean)
                torch.testing.assert_close(got[k, :, i, j], wanted, rtol=0, atol=2e-3)
    leaves = [x.requires_grad_(), ROIS.clone().requires_grad_()]

    def pool(image, corners):
        return PrecisePool.apply(image, torch.cat([ROIS[:, :1], corners[:, 1:]], 1), (2, 2), scale)

    assert torch.autograd.gradcheck(pool, leaves, fast_mode=True)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("aligned", [False, True])
def test_bbox_overlaps(mode, offset, aligned):
    first, second = (
        torch.cat([c, c + s.abs()], 1)
        for c, s in ((random(6, 2), random(6, 2, seed=1)), (random(6, 2, seed=2), random(6, 2, seed=3)))
    )
    first[0] = second[0]
    ious = torch.zeros(6 if aligned else (6, 6), dtype=torch.float64)
    bbox_overlaps(first, second, ious, mode=mode, aligned=aligned, offset=offset)
    if offset:
        first, second = (b + torch.tensor([0, 0, 1, 1]) for b in (first, second))
    wanted = torchvision.ops.box_iou(first, second)
    if mode:
        inter = wanted * (torchvision.ops.box_area(first)[:, None] + torchvision.ops.box_area(second)) / (1 + wanted)
        wanted = inter / torchvision.ops.box_area(first)[:, None]
    torch.testing.assert_close(ious, wanted.diagonal() if aligned else wanted)
    assert ious.flatten()[0] == pytest.approx(1)


class SwapAlign2Nat(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, ratio, pad):
        ctx.ratio, ctx.shape = ratio, x.size()
        return swap_align2nat_forward(x, ratio, pad)

    @staticmethod
    def backward(ctx, grad):
        return swap_align2nat_backward(grad, ctx.ratio, *ctx.shape), None, None


@pytest.mark.parametrize("ratio", [1, 2, 3])
def test_swap_align2nat(ratio):
    side, height, width, pad = 2, 4, 3, -6.0
    x, big = random(2, side * side, height, width), ratio * side
    wanted = torch.zeros(2, big * big, math.ceil(height / ratio), math.ceil(width / ratio), dtype=torch.float64)
    cells = x.view(2, side, side, height, width)
    sizes = (side, side, height, width)
    for v, u, y, z in torch.cartesian_prod(*(torch.arange(k) for k in (big, big, *wanted.shape[2:]))).tolist():
        place = [
            (v + 0.5) / ratio - 0.5, (u + 0.5) / ratio - 0.5,
            y * ratio + v - big / 2 + 0.5, z * ratio + u - big / 2 + 0.5,
        ]  # fmt: skip
        for corner in torch.cartesian_prod(*[torch.arange(2)] * 4).tolist():
            at = [math.floor(p) + c for p, c in zip(place, corner, strict=True)]
            share = math.prod(1 - abs(p - a) for p, a in zip(place, at, strict=True))
            known = all(0 <= a < n for a, n in zip(at, sizes, strict=True))
            wanted[:, v * big + u, y, z] += share * (cells[:, at[0], at[1], at[2], at[3]] if known else pad)
    torch.testing.assert_close(SwapAlign2Nat.apply(x, ratio, pad), wanted)
    assert torch.autograd.gradcheck(lambda t: SwapAlign2Nat.apply(t, ratio, pad), x.requires_grad_(), fast_mode=True)
