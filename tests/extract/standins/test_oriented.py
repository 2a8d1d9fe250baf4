"""Border and Bezier sampling, rotated features and filters, boxes from above, shifts in time."""

import itertools
import math

import pytest
import torch

from extract.standins.native import rotated, rotated_features
from extract.standins.native.bezier_align import bezier_align_backward, bezier_align_forward
from extract.standins.native.border_align import border_align_backward, border_align_forward
from extract.standins.native.tin_shift import tin_shift_backward, tin_shift_forward


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


class BorderAlign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, boxes, pool_size):
        output = x.new_zeros(len(x), x.size(1) // 4, boxes.size(1), 4)
        argmax = x.new_zeros(output.shape).to(torch.int)
        border_align_forward(x, boxes, output, argmax, pool_size=pool_size)
        ctx.save_for_backward(boxes, argmax)
        ctx.args = (x.shape, pool_size)
        return output

    @staticmethod
    def backward(ctx, grad):
        boxes, argmax = ctx.saved_tensors
        target = grad.new_zeros(ctx.args[0])
        border_align_backward(grad, boxes, argmax, target, pool_size=ctx.args[1])
        return target, None, None


def test_border_align():
    x = random(2, 8, 6, 7)
    boxes = torch.tensor([[[0.5, 1.2, 4.7, 4.1], [-3.0, -0.5, 9.0, 3.0]], [[2, 2, 3, 5.5], [1.0, 0, 6, 5]]]).double()
    got = BorderAlign.apply(x, boxes, 5)
    for n, c, k, side in itertools.product(range(2), range(2), range(2), range(4)):
        x1, y1, x2, y2 = boxes[n, k].tolist()
        ways = [((y1, x1), (y1, x2)), ((y1, x1), (y2, x1)), ((y2, x2), (y2, x1)), ((y2, x2), (y1, x2))]
        (ya, xa), (yb, xb) = ways[side]
        values = [bilinear(x[n, side * 2 + c], ya + t / 5 * (yb - ya), xa + t / 5 * (xb - xa)) for t in range(6)]
        assert float(got[n, c, k, side]) == pytest.approx(max(values))
    assert torch.autograd.gradcheck(lambda t: BorderAlign.apply(t, boxes, 5), x.requires_grad_(), fast_mode=True)


class BezierAlign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, beziers, size, scale, ratio, aligned):
        output = x.new_zeros(len(beziers), x.size(1), *size)
        ctx.kwargs = {
            "aligned_height": size[0], "aligned_width": size[1], "spatial_scale": scale, "sampling_ratio": ratio,
            "aligned": aligned,
        }  # fmt: skip
        bezier_align_forward(x, beziers, output, **ctx.kwargs)
        ctx.save_for_backward(beziers)
        ctx.shape = x.shape
        return output

    @staticmethod
    def backward(ctx, grad):
        target = grad.new_zeros(ctx.shape)
        bezier_align_backward(grad, *ctx.saved_tensors, target, **ctx.kwargs)
        return target, None, None, None, None, None


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("ratio", [0, 2])
def test_bezier_align(ratio, aligned):
    x, size, scale = random(2, 2, 7, 8), (2, 3), 0.8
    upper = torch.tensor([[1.0, 1], [3, 0.5], [5, 2], [8, 1.5]])
    lower = torch.tensor([[8.5, 6], [6, 7.5], [3, 6], [0.5, 6.5]])  # from the other end
    beziers = torch.cat([torch.tensor([1.0]), upper.flatten(), lower.flatten()])[None].double()
    got = BezierAlign.apply(x, beziers, size, scale, ratio, aligned)
    top, bottom = (upper * scale).double(), (lower.flip(0) * scale).double()
    width, height = (max(abs(float(p[0, a] - p[3, a])) for p in (top, bottom)) for a in (0, 1))
    if not aligned:
        width, height = max(width, 1), max(height, 1)
    rows, columns = ratio or math.ceil(height / size[0]), ratio or math.ceil(width / size[1])

    def curve(p, u):
        return sum(math.comb(3, k) * u**k * (1 - u) ** (3 - k) * p[k] for k in range(4))

    outside = beziers + torch.cat(
        [torch.zeros(1), torch.tensor([-20.0, 0]).repeat(4), torch.tensor([0.0, 20]).repeat(4)]
    )
    far = BezierAlign.apply(x, outside, size, scale, ratio, aligned)
    assert far[0, :, 0, 0].abs().max() == 0, "the upper curve is left of the image"
    for c, i, j in itertools.product(range(2), range(2), range(3)):
        u, v = j / size[1], i / size[0]
        cx, cy = (curve(bottom, u) * v + curve(top, u) * (1 - v) - (0.5 if aligned else 0)).tolist()
        values = [
            bilinear(
                x[1, c],
                cy + ((a + 0.5) / rows - 0.5) * height / size[0],
                cx + ((b + 0.5) / columns - 0.5) * width / size[1],
            )
            for a in range(rows)
            for b in range(columns)
        ]
        assert float(got[0, c, i, j]) == pytest.approx(sum(values) / len(values), abs=1e-6)
    assert torch.autograd.gradcheck(
        lambda t: BezierAlign.apply(t, beziers, size, scale, ratio, aligned), x.requires_grad_(), fast_mode=True
    )


class FeatureAlign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, boxes, scale, points):
        output = torch.zeros_like(x)
        ctx.kwargs = {"spatial_scale": scale, "points": points}
        rotated_features.rotated_feature_align_forward(x, boxes, output, **ctx.kwargs)
        ctx.save_for_backward(boxes)
        return output

    @staticmethod
    def backward(ctx, grad):
        target = torch.zeros_like(grad)
        rotated_features.rotated_feature_align_backward(grad.contiguous(), *ctx.saved_tensors, target, **ctx.kwargs)
        return target, None, None, None


@pytest.mark.parametrize("points", [1, 5])
def test_rotated_feature_align(points):
    x, boxes = random(2, 2, 3, 4), random(2, 3, 4, 5, seed=1) * 3
    got = FeatureAlign.apply(x, boxes, 0.5, points)
    for n, c, i, j in itertools.product(range(2), range(2), range(3), range(4)):
        y, z, w, h = (boxes[n, i, j, :4] * 0.5).tolist()
        turn = complex(torch.cos(boxes[n, i, j, 4]), torch.sin(boxes[n, i, j, 4]))
        places = [0j] + [complex(a * w / 2, b * h / 2) * turn for a, b in ((1, 1), (-1, 1), (-1, -1), (1, -1))]
        wanted = float(x[n, c, i, j]) + sum(bilinear(x[n, c], y + p.imag, z + p.real) for p in places[:points])
        assert float(got[n, c, i, j]) == pytest.approx(wanted)
    assert torch.autograd.gradcheck(lambda t: FeatureAlign.apply(t, boxes, 0.5, points), x.requires_grad_())


class ActiveFilter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, indices):
        out, planes, orientations, h, w = x.shape
        output = x.new_zeros(out * indices.shape[-1], planes * orientations, h, w)
        rotated_features.active_rotated_filter_forward(x, indices, output)
        ctx.save_for_backward(x, indices)
        return output

    @staticmethod
    def backward(ctx, grad):
        x, indices = ctx.saved_tensors
        target = torch.zeros_like(x)
        rotated_features.active_rotated_filter_backward(grad, indices, target)
        return target, None


def test_active_rotated_filter():
    x, rotations = random(2, 3, 2, 2, 2), 3
    orders = [torch.randperm(8, generator=torch.Generator().manual_seed(s)) for s in range(rotations)]
    indices = (torch.stack(orders, -1) + 1).view(2, 2, 2, rotations).int()
    got = ActiveFilter.apply(x, indices).view(2, rotations, 3, 8)
    for r, order in enumerate(orders):
        assert torch.equal(got[:, r][..., order], x.flatten(2))
    assert torch.autograd.gradcheck(lambda t: ActiveFilter.apply(t, indices), x.requires_grad_())


def test_boxes_from_above():
    """Heights play no part; the overlap is that of the rotated rectangles."""
    boxes = random(12, 7).abs() * 3
    boxes[:, 6] = random(12, seed=2) * 3
    flat = boxes[:, [0, 1, 3, 4, 6]]
    ious, areas = torch.zeros(12, 12, dtype=torch.float64), torch.zeros(12, 12, dtype=torch.float64)
    rotated.box_iou_rotated(flat, flat, ious)
    rotated.iou3d_boxes_overlap_bev_forward(boxes, boxes, areas)
    own = boxes[:, 3] * boxes[:, 4]
    torch.testing.assert_close(areas / (own[:, None] + own - areas), ious)
    level = flat * torch.tensor([1, 1, 1, 1, 0])
    kept = {}
    for threshold, headed in itertools.product((0.1, 0.2, 0.3), (True, False)):
        keep, number = torch.zeros(12, dtype=torch.long), torch.zeros((), dtype=torch.long)
        function = rotated.iou3d_nms3d_forward if headed else rotated.iou3d_nms3d_normal_forward
        function(boxes, keep, number, nms_overlap_thresh=threshold)
        rotated.box_iou_rotated(flat if headed else level, flat if headed else level, ious)
        wanted = []
        for i in range(12):
            if all(ious[i, j] <= threshold for j in wanted):
                wanted.append(i)
        assert keep[:number].tolist() == wanted
        kept[threshold, headed] = wanted
    assert any(kept[threshold, True] != kept[threshold, False] for threshold in (0.1, 0.2, 0.3))


class Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shift):
        ctx.save_for_backward(shift)
        output = torch.zeros_like(x)
        tin_shift_forward(x, shift, output)
        return output

    @staticmethod
    def backward(ctx, grad):
        target = torch.zeros_like(grad)
        tin_shift_backward(grad, *ctx.saved_tensors, target)
        return target, None


def test_tin_shift():
    x, shift = random(2, 5, 4, 3), torch.tensor([[1, -2], [0, 7]], dtype=torch.int32)
    got, wanted = Shift.apply(x, shift), torch.zeros_like(x)
    for n, t, c in itertools.product(range(2), range(5), range(4)):
        to = t + int(shift[n, c // 2])
        if 0 <= to < 5:
            wanted[n, to, c] = x[n, t, c]
    assert torch.equal(got, wanted)
    assert torch.autograd.gradcheck(lambda t: Shift.apply(t, shift), x.requires_grad_())
