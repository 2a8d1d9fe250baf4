"""Point operators and graphs of points against loops over their definitions."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.standins import points as ops
from extract.standins.neighbours import radius_graph


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
    features = random(9, 2, seed=2).requires_grad_()
    out = ops.GroupingOperation.apply(features, idx, xyz_count, centre_count)
    for m, k in itertools.product(range(5), range(3)):
        assert torch.equal(out[m, :, k], features[idx[m, k] + (0 if m < 3 else 4)])
    assert out.is_contiguous()
    out.sum().backward()
    assert features.grad.sum() == out.numel()


@pytest.mark.parametrize("count", [2, 9])
def test_nearest_neighbours(count):
    xyz, centres = random(2, count, 3), random(2, 4, 3, seed=1)
    k = min(5, count)
    idx, distance = torch.zeros(2, 4, k, dtype=torch.int32), torch.zeros(2, 4, k)
    ops.knn_forward(xyz, centres, idx, distance, b=2, n=count, m=4, nsample=k)
    for b, m in itertools.product(range(2), range(4)):
        near = sorted((d2(centres[b, m], p), i) for i, p in enumerate(xyz[b]))
        assert idx[b, m].tolist() == [i for _, i in near[:k]]
        assert distance[b, m].tolist() == pytest.approx([d for d, _ in near[:k]])


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


@pytest.mark.parametrize(("function", "shape"), [(ops.GatherPoints, (2, 4)), (ops.GroupingOperation, (2, 4, 3))])
def test_gather_and_group(function, shape):
    features = random(2, 3, 5).requires_grad_()
    idx = torch.randint(5, shape, generator=torch.Generator().manual_seed(0)).int()
    got = function.apply(features, idx)
    assert torch.equal(got, torch.stack([features[b][:, idx[b].long()] for b in range(2)]))
    got.sum().backward()
    assert features.grad.sum() == got.numel()


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
    features.requires_grad_()
    got = ops.RoIAwarePool3dFunction.apply(rois, points, features, size, most, mode)
    torch.testing.assert_close(got, wanted)
    got.sum().backward()
    assert features.grad.sum() == pytest.approx(float((wanted != 0).sum()))


def test_roipoint_pooling():
    points, boxes, features = random(2, 40, 3, seed=3), some_boxes(), random(2, 40, 2, seed=4)
    boxes[1, 2, :3] += 100
    pooled, flag = torch.zeros(2, 4, 6, 5, dtype=torch.float64), torch.zeros(2, 4, dtype=torch.int)
    ops.roipoint_pool3d_forward(points, boxes, features, pooled, flag)
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


@pytest.mark.parametrize("kind", ["max", "sum", "mean"])
@pytest.mark.parametrize("outside", [True, False])
def test_points_to_voxels(kind, outside):
    feats, coors = random(20, 3), torch.randint(0, 2, (20, 3), generator=torch.Generator().manual_seed(0))
    feats[0] = feats[1:].amax(0)  # a tie: only the first has the gradient
    coors[0] = coors[int(feats[1:, 0].argmax()) + 1]
    if outside:
        coors[3, 1] = coors[7, 0] = -1
    groups = {}
    for i, coor in enumerate(coors.tolist()):
        if min(coor) >= 0:
            groups.setdefault(tuple(coor), []).append(i)
    feats.requires_grad_()
    reduced, places = ops._DynamicScatter.apply(feats, coors.double().requires_grad_(), kind)
    assert [tuple(p) for p in places.tolist()] == sorted(groups)
    for row, voxel in enumerate(sorted(groups)):
        own = feats[groups[voxel]]
        torch.testing.assert_close(reduced[row], {"max": own.amax(0), "sum": own.sum(0), "mean": own.mean(0)}[kind])
    reduced.sum().backward()
    share = {"max": None, "sum": 1.0, "mean": 1 / len(groups[tuple(coors[0].tolist())])}[kind]
    assert feats.grad[0].tolist() == pytest.approx([share or 1.0] * 3)
    assert feats.grad.sum() == pytest.approx(3 * (len(groups) if kind != "sum" else sum(map(len, groups.values()))))


def test_no_points_make_no_voxels():
    reduced, places = ops._DynamicScatter.apply(random(0, 3), torch.zeros(0, 3).long(), "max")
    assert (len(reduced), len(places)) == (0, 0)


# --- graphs of points -------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**31), st.integers(1, 9), st.floats(0.1, 3), st.booleans(), st.sampled_from([1, 2, 32, None]))
@settings(max_examples=40, deadline=None)
def test_edges_of_near_points(seed: int, count: int, r: float, loop: bool, most: int | None) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, batch = torch.randn(count, 2, generator=generator), torch.randint(0, 2, (count,), generator=generator)
    expected = []
    for centre in range(count):
        near = [k for k in range(count) if batch[k] == batch[centre] and float((x[k] - x[centre]).norm()) <= r]
        near = [k for k in near if loop or k != centre]
        expected += [(k, centre) for k in near[:most]]
    found = radius_graph(x, r, batch, loop=loop, max_num_neighbors=most)
    assert [tuple(edge) for edge in found.T.tolist()] == expected
    back = radius_graph(x, r, batch, loop=loop, max_num_neighbors=most, flow="target_to_source")
    assert torch.equal(back, found.flip(0))


def test_one_example_and_one_coordinate() -> None:
    assert radius_graph(torch.tensor([0.0, 1.0, 9.0]), 1.0).tolist() == [[1, 0], [0, 1]]
