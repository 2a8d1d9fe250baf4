"""Point operators against loops over their definitions."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.standins.native import points as ops
from extract.standins.native import points_in_boxes as boxed
from extract.standins.native import voxelize


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def d2(a, b):
    return sum((float(x) - float(y)) ** 2 for x, y in zip(a, b, strict=True))


@given(st.integers(0, 2**31), st.integers(1, 12), st.integers(1, 5), st.floats(0, 1), st.floats(0.5, 3))
@settings(max_examples=25, deadline=None)
def test_ball_query(seed, count, nsample, least, most):
    xyz, centres = random(2, count, 3, seed=seed), random(2, 4, 3, seed=seed + 1)
    centres[:, 0] = xyz[:, 0]
    idx = torch.zeros(2, 4, nsample, dtype=torch.int32)
    ops.ball_query_forward(centres, xyz, idx, b=2, n=count, m=4, min_radius=least, max_radius=most, nsample=nsample)
    for b, m in itertools.product(range(2), range(4)):
        distances = [d2(centres[b, m], p) for p in xyz[b]]
        hits = [k for k, d in enumerate(distances) if d == 0 or least**2 <= d < most**2][:nsample]
        assert idx[b, m].tolist() == (hits + [hits[0]] * (nsample - len(hits)) if hits else [0] * nsample)


def test_stacked_ball_query_and_grouping():
    xyz, centres = random(9, 3), random(5, 3, seed=1)
    xyz_count, centre_count = torch.tensor([4, 5], dtype=torch.int32), torch.tensor([3, 2], dtype=torch.int32)
    centres[4] += 100
    idx = torch.zeros(5, 3, dtype=torch.int32)
    ops.stack_ball_query_forward(centres, centre_count, xyz, xyz_count, idx, max_radius=1.5, nsample=3)
    for m in range(5):
        cloud = xyz[:4] if m < 3 else xyz[4:]
        hits = [k for k, p in enumerate(cloud) if d2(centres[m], p) < 1.5**2][:3]
        assert idx[m].tolist() == (hits + [hits[0]] * (3 - len(hits)) if hits else [-1, 0, 0])
    assert idx[4, 0] == -1
    assert idx.max() > 0
    idx = idx.clamp(min=0)
    features, out = random(9, 2, seed=2), torch.zeros(5, 2, 3, dtype=torch.float64)
    ops.stack_group_points_forward(features, xyz_count, idx, centre_count, out, b=2, m=5, c=2, nsample=3)
    for m, k in itertools.product(range(5), range(3)):
        assert torch.equal(out[m, :, k], features[idx[m, k] + (0 if m < 3 else 4)])
    grad, wanted = torch.zeros_like(features), features.clone().requires_grad_()
    ops.stack_group_points_backward(out, idx, centre_count, xyz_count, grad, b=2, c=2, m=5, n=9, nsample=3)
    rows = idx.long() + torch.tensor([0, 0, 0, 4, 4])[:, None]
    (wanted[rows].transpose(1, 2) * out).sum().backward()
    torch.testing.assert_close(grad, wanted.grad)


@pytest.mark.parametrize("count", [2, 9])
def test_nearest_neighbours(count):
    xyz, centres = random(2, count, 3), random(2, 4, 3, seed=1)
    k = min(5, count)
    idx, distance = torch.zeros(2, 4, k, dtype=torch.int32), torch.zeros(2, 4, k)
    ops.knn_forward(xyz, centres, idx, distance, b=2, n=count, m=4, nsample=k)
    three, three_d2 = torch.zeros(2, 4, 3, dtype=torch.int32), torch.zeros(2, 4, 3, dtype=torch.float64)
    ops.three_nn_forward(centres, xyz, three_d2, three, b=2, n=4, m=count)
    for b, m in itertools.product(range(2), range(4)):
        near = sorted((d2(centres[b, m], p), i) for i, p in enumerate(xyz[b]))
        assert idx[b, m].tolist() == [i for _, i in near[:k]]
        assert distance[b, m].tolist() == pytest.approx([d for d, _ in near[:k]])
        assert three[b, m].tolist() == ([i for _, i in near] + [0])[:3]
        assert three_d2[b, m].tolist() == pytest.approx(([d for d, _ in near] + [float("inf")])[:3])


@pytest.mark.parametrize("pairwise", [False, True])
def test_furthest_point_sampling(pairwise):
    xyz = random(2, 12, 3).float()
    distances = (xyz[:, :, None] - xyz[:, None]).square().sum(-1)
    temp, idx = torch.full((2, 12), 1e10), torch.zeros(2, 6, dtype=torch.int32)
    if pairwise:
        ops.furthest_point_sampling_with_dist_forward(distances, temp, idx, b=2, n=12, m=6)
    else:
        ops.furthest_point_sampling_forward(xyz, temp, idx, b=2, n=12, m=6)
    for b in range(2):
        chosen = [0]
        while len(chosen) < 6:
            chosen.append(max(range(12), key=lambda k: min(float(distances[b, k, c]) for c in chosen)))
        assert idx[b].tolist() == chosen


class Take(torch.autograd.Function):
    """Gather (idx (B, m)) or group (idx (B, m, k))."""

    @staticmethod
    def forward(ctx, features, idx):
        b, c, n = features.shape
        output = features.new_zeros(b, c, *idx.shape[1:])
        ctx.kwargs = {"b": b, "c": c, "n": n, "npoints": idx.shape[1]} | (
            {"nsample": idx.shape[2]} if idx.ndim == 3 else {}
        )
        (ops.group_points_forward if idx.ndim == 3 else ops.gather_points_forward)(features, idx, output, **ctx.kwargs)
        ctx.save_for_backward(idx)
        return output

    @staticmethod
    def backward(ctx, grad):
        (idx,) = ctx.saved_tensors
        target = grad.new_zeros(ctx.kwargs["b"], ctx.kwargs["c"], ctx.kwargs["n"])
        back = ops.group_points_backward if idx.ndim == 3 else ops.gather_points_backward
        back(grad.contiguous(), idx, target.data, **ctx.kwargs)
        return target, None


@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 3)])
def test_gather_and_group(shape):
    features = random(2, 3, 5)
    idx = torch.randint(5, shape, generator=torch.Generator().manual_seed(0)).int()
    wanted = torch.stack([features[b][:, idx[b].long()] for b in range(2)])
    assert torch.equal(Take.apply(features, idx), wanted)
    assert torch.autograd.gradcheck(lambda t: Take.apply(t, idx), features.requires_grad_())


class Interpolate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, idx, weight):
        (b, c, m), n = features.shape, idx.shape[1]
        ctx.saved = (idx, weight, m)
        output = features.new_empty(b, c, n)
        ops.three_interpolate_forward(features, idx, weight, output, b=b, c=c, m=m, n=n)
        return output

    @staticmethod
    def backward(ctx, grad):
        idx, weight, m = ctx.saved
        b, c, n = grad.shape
        target = grad.new_zeros(b, c, m)
        ops.three_interpolate_backward(grad.contiguous(), idx, weight, target.data, b=b, c=c, n=n, m=m)
        return target, None, None


def test_three_interpolate():
    features, weight = random(2, 3, 5), random(2, 4, 3, seed=1)
    idx = torch.randint(5, (2, 4, 3), generator=torch.Generator().manual_seed(0)).int()
    got = Interpolate.apply(features, idx, weight)
    for b, c, n in itertools.product(range(2), range(3), range(4)):
        assert float(got[b, c, n]) == pytest.approx(
            sum(float(features[b, c, idx[b, n, k]] * weight[b, n, k]) for k in range(3))
        )
    assert torch.autograd.gradcheck(lambda t: Interpolate.apply(t, idx, weight), features.requires_grad_())


class Chamfer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        one, two = a.new_zeros(a.shape[:2]), b.new_zeros(b.shape[:2])
        idx1, idx2 = torch.zeros(one.shape, dtype=torch.int32), torch.zeros(two.shape, dtype=torch.int32)
        ops.chamfer_distance_forward(a, b, one, two, idx1, idx2)
        ctx.save_for_backward(a, b, idx1, idx2)
        return one, two

    @staticmethod
    def backward(ctx, grad1, grad2):
        a, b, idx1, idx2 = ctx.saved_tensors
        grads = torch.zeros_like(a), torch.zeros_like(b)
        ops.chamfer_distance_backward(a, b, idx1, idx2, grad1.contiguous(), grad2.contiguous(), *grads)
        return grads


def test_chamfer_distance():
    a, b = random(2, 4, 2), random(2, 5, 2, seed=1)
    one, two = Chamfer.apply(a, b)
    full = torch.cdist(a, b) ** 2
    torch.testing.assert_close(one, full.amin(2))
    torch.testing.assert_close(two, full.amin(1))
    assert torch.autograd.gradcheck(Chamfer.apply, (a.requires_grad_(), b.requires_grad_()))


class AssignScore(torch.autograd.Function):
    @staticmethod
    def forward(ctx, points, centers, scores, idx):
        (b, n0, m, o), (_, n1, k, _) = points.shape, scores.shape
        ctx.kwargs = {"B": b, "N0": n0, "N1": n1, "M": m, "K": k, "O": o, "aggregate": 0}
        output = points.new_zeros(b, o, n1, k)
        ops.assign_score_withk_forward(points, centers, scores, idx, output, **ctx.kwargs)
        ctx.save_for_backward(points, centers, scores, idx)
        return output

    @staticmethod
    def backward(ctx, grad):
        tensors = ctx.saved_tensors
        grads = [torch.zeros_like(t) for t in tensors[:3]]
        ops.assign_score_withk_backward(grad.contiguous(), *tensors, *grads, **ctx.kwargs)
        return (*grads, None)


def test_assign_score():
    points, centers, scores = random(2, 5, 2, 3), random(2, 5, 2, 3, seed=1), random(2, 4, 3, 2, seed=2)
    idx = torch.randint(5, (2, 4, 3), generator=torch.Generator().manual_seed(0))
    idx[0, 1, 2] = 7  # out of range: nothing is added
    got = AssignScore.apply(points, centers, scores, idx)
    for b, o, n, k in itertools.product(range(2), range(3), range(4), range(3)):
        known = idx[b, n, k] < 5
        wanted = sum(
            float(scores[b, n, k, m] * (points[b, idx[b, n, k], m, o] - centers[b, idx[b, n, 0], m, o]))
            for m in range(2 if known else 0)
        )
        assert float(got[b, o, n, k]) == pytest.approx(wanted)
    leaves = [t.requires_grad_() for t in (points, centers, scores)]
    assert torch.autograd.gradcheck(lambda *t: AssignScore.apply(*t, idx), leaves)


def some_boxes():
    boxes = random(2, 4, 7).abs() * 2
    boxes[..., :3] = random(2, 4, 3, seed=1)
    boxes[..., 6] = random(2, 4, seed=2) * 3
    return boxes


def inside(point, box):
    """Turn the point into the frame of the box; z starts at the bottom."""
    shift = complex(*(point[:2] - box[:2]).tolist()) * complex(torch.cos(box[6]), -torch.sin(box[6]))
    height = float(point[2] - box[2])
    return abs(shift.real) < box[3] / 2 and abs(shift.imag) < box[4] / 2 and 0 <= height <= box[5]


def test_points_in_boxes():
    points, boxes = random(2, 40, 3, seed=3), some_boxes()
    every = torch.tensor([[[inside(p, box) for box in boxes[b]] for p in points[b]] for b in range(2)])
    assert 0 < every.sum() < every.numel()
    part = torch.full((2, 40), -1, dtype=torch.int)
    boxed.points_in_boxes_part_forward(boxes, points, part)
    assert part.tolist() == [[row.index(True) if any(row) else -1 for row in cloud] for cloud in every.tolist()]
    table = torch.zeros(2, 40, 4, dtype=torch.int)
    boxed.points_in_boxes_all_forward(boxes, points, table)
    assert torch.equal(table, every.int())
    own = torch.zeros(4, 40, dtype=torch.int)
    boxed.points_in_boxes_cpu_forward(boxes[0], points[0], own)
    assert torch.equal(own, every[0].T.int())


def test_points_in_polygons():
    points = torch.tensor([[0.5, 0.5], [1.5, 0.5], [0.2, 0.9], [-0.1, 0.0]])
    polygons = torch.tensor([[0.0, 0, 1, 0, 1, 1, 0, 1], [0, 0, 2, 0, 2, 1, 1, 0.6]])
    output = torch.zeros(4, 2)
    boxed.points_in_polygons_forward(points, polygons, output)
    assert output.tolist() == [[1, 0], [0, 1], [1, 0], [0, 0]]


class RoIAware(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, rois, points, size, most, mode):
        pooled = features.new_zeros(len(rois), *size, features.shape[1])
        argmax = features.new_zeros(pooled.shape, dtype=torch.int)
        cells = features.new_zeros((len(rois), *size, most), dtype=torch.int)
        boxed.roiaware_pool3d_forward(rois, points, features, argmax, cells, pooled, pool_method=mode)
        ctx.saved = (cells, argmax, mode, features.shape)
        return pooled

    @staticmethod
    def backward(ctx, grad):
        cells, argmax, mode, shape = ctx.saved
        target = grad.new_zeros(shape)
        boxed.roiaware_pool3d_backward(cells, argmax, grad.contiguous(), target, pool_method=mode)
        return target, None, None, None, None, None


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("most", [3, 100])
def test_roiaware_pooling(mode, most):
    points, rois, features, size = random(120, 3, seed=3), some_boxes()[0], random(120, 2, seed=4), (2, 3, 2)
    wanted = torch.zeros(4, *size, 2, dtype=torch.float64)
    full = 0
    for k, box in enumerate(rois):
        cells = {}
        for i, point in enumerate(points):
            if inside(point, box):
                turn = complex(*(point[:2] - box[:2]).tolist()) * complex(torch.cos(box[6]), -torch.sin(box[6]))
                place = (turn.real + box[3] / 2, turn.imag + box[4] / 2, point[2] - box[2])
                cell = tuple(
                    min(int(p / (box[3 + a] / n)), n - 1) for a, (p, n) in enumerate(zip(place, size, strict=True))
                )
                cells.setdefault(cell, []).append(i)
        for cell, members in cells.items():
            own = features[members[: most - 1]]
            full += len(members) >= most
            wanted[(k, *cell)] = own.amax(0) if mode == 0 else own.mean(0)
    assert full or most == 100
    args = (rois, points, size, most, mode)
    torch.testing.assert_close(RoIAware.apply(features, *args), wanted)
    assert torch.autograd.gradcheck(lambda t: RoIAware.apply(t, *args), features.requires_grad_(), fast_mode=True)


def test_roipoint_pooling():
    points, boxes, features = random(2, 40, 3, seed=3), some_boxes(), random(2, 40, 2, seed=4)
    boxes[1, 2, :3] += 100
    pooled, flag = torch.zeros(2, 4, 6, 5, dtype=torch.float64), torch.zeros(2, 4, dtype=torch.int)
    boxed.roipoint_pool3d_forward(points, boxes, features, pooled, flag)
    for b, k in itertools.product(range(2), range(4)):
        own = [i for i, p in enumerate(points[b]) if inside(p, boxes[b, k])][:6]
        assert bool(flag[b, k]) == (not own)
        for s in range(6):
            wanted = (
                torch.cat([points[b, own[s % len(own)]], features[b, own[s % len(own)]]]) if own else torch.zeros(5)
            )
            torch.testing.assert_close(pooled[b, k, s], wanted.double())
    assert flag[1, 2] == 1
    assert flag.sum() < 8


SIZE, RANGE = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([-1.0, -2.0, -2.0, 1.0, 2.0, 2.0])


def voxel_of(point):
    place = [int((float(point[a]) - float(RANGE[a])) // float(SIZE[a])) for a in range(3)]
    grid = [round(float(RANGE[a + 3] - RANGE[a]) / float(SIZE[a])) for a in range(3)]
    return tuple(reversed(place)) if all(0 <= p < g for p, g in zip(place, grid, strict=True)) else (-1, -1, -1)


@pytest.mark.parametrize(("max_points", "max_voxels"), [(2, 100), (50, 6), (1, 1)])
def test_voxelize(max_points, max_voxels):
    points = random(60, 4).float()
    places = torch.zeros(60, 3, dtype=torch.int)
    voxelize.dynamic_voxelize_forward(points, SIZE, RANGE, places, NDim=3)
    assert [tuple(row) for row in places.tolist()] == [voxel_of(p) for p in points]
    assert (places == -1).any()
    wanted = {}
    for point in points:
        voxel = voxel_of(point)
        if voxel[0] >= 0 and (voxel in wanted or len(wanted) < max_voxels):
            members = wanted.setdefault(voxel, [])
            members.extend([point] if len(members) < max_points else [])
    voxels, coors = torch.zeros(max_voxels, max_points, 4), torch.zeros(max_voxels, 3, dtype=torch.int)
    counts, number = torch.zeros(max_voxels, dtype=torch.int), torch.zeros((), dtype=torch.long)
    voxelize.hard_voxelize_forward(
        points, SIZE, RANGE, voxels, coors, counts, number,
        max_points=max_points, max_voxels=max_voxels, NDim=3, deterministic=True,
    )  # fmt: skip
    assert number == len(wanted)
    for row, (voxel, members) in enumerate(wanted.items()):
        assert tuple(coors[row].tolist()) == voxel
        assert counts[row] == len(members)
        assert torch.equal(voxels[row, : len(members)], torch.stack(members))
        assert voxels[row, len(members) :].abs().sum() == 0


class PointToVoxel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, feats, coors, kind):
        reduced, places, index, counts = voxelize.dynamic_point_to_voxel_forward(feats, coors, kind)
        ctx.kind = kind
        ctx.save_for_backward(feats, reduced, index, counts)
        ctx.mark_non_differentiable(places)
        return reduced, places

    @staticmethod
    def backward(ctx, grad, _):
        feats, reduced, index, counts = ctx.saved_tensors
        target = torch.zeros_like(feats)
        voxelize.dynamic_point_to_voxel_backward(target, grad.contiguous(), feats, reduced, index, counts, ctx.kind)
        return target, None, None


@pytest.mark.parametrize("kind", ["max", "sum", "mean"])
@pytest.mark.parametrize("outside", [True, False])
def test_points_to_voxels(kind, outside):
    feats, coors = random(20, 3), torch.randint(0, 2, (20, 3), generator=torch.Generator().manual_seed(0))
    if outside:
        coors[3, 1] = coors[7, 0] = -1
    groups = {}
    for i, coor in enumerate(coors.tolist()):
        if min(coor) >= 0:
            groups.setdefault(tuple(coor), []).append(i)
    reduced, places = PointToVoxel.apply(feats, coors, kind)
    assert [tuple(p) for p in places.tolist()] == sorted(groups)
    for row, voxel in enumerate(sorted(groups)):
        own = feats[groups[voxel]]
        torch.testing.assert_close(reduced[row], {"max": own.amax(0), "sum": own.sum(0), "mean": own.mean(0)}[kind])
    assert torch.autograd.gradcheck(lambda t: PointToVoxel.apply(t, coors, kind)[0], feats.requires_grad_())


def test_no_points_make_no_voxels():
    sizes = [len(t) for t in voxelize.dynamic_point_to_voxel_forward(random(0, 3), torch.zeros(0, 3).long(), "max")]
    assert sizes == [0, 0, 0, 0]
