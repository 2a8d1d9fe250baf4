"""Sparse matrices against dense ones, and edges between near points against a loop."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.standins import sparse
from extract.standins.sparse import SparseTensor, radius_graph, torch_sparse


def draw(seed, shape, more=()):
    """Return a dense matrix with about half of its entries zero."""
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(shape, generator=generator) < 0.5
    values = torch.randn(*shape, *more, dtype=torch.float64, generator=generator)
    return values * kept.view(*shape, *[1] * len(more))


#: Of PyTorch, about its own sparse tensors.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse ")
SEEDS, SIZES = st.integers(0, 2**31), st.integers(1, 6)
matrices = given(SEEDS, SIZES, SIZES)
many = settings(max_examples=40, deadline=None)


def check(got, wanted):
    torch.testing.assert_close(got.to_dense() if isinstance(got, SparseTensor) else got, wanted)


@matrices
@many
def test_the_same_matrix_however_it_is_given(seed, rows, columns):
    dense = draw(seed, (rows, columns))
    made = SparseTensor.from_dense(dense)
    row, col, value = made.coo()
    rowptr, _, _ = made.csr()
    order = torch.randperm(made.nnz(), generator=torch.Generator().manual_seed(seed))
    size = (rows, columns)
    for again in (
        SparseTensor(row[order], None, col[order], value[order], size),
        SparseTensor(None, rowptr, col, value, size),
        SparseTensor.from_edge_index(torch.stack((row, col))[:, order], value[order], size),
        SparseTensor.from_torch_sparse_coo_tensor(dense.to_sparse_coo()),
        SparseTensor.from_torch_sparse_csr_tensor(dense.to_sparse_csr()),
        made.clone().to("cpu"),
    ):
        assert all(torch.equal(a, b) for a, b in zip(again.coo(), made.coo(), strict=True))
        check(again, dense)
    check(made.to_torch_sparse_coo_tensor().to_dense(), dense)
    check(made.to_torch_sparse_csr_tensor().to_dense(), dense)
    csr = dense.to_sparse_csr()
    assert torch.equal(rowptr, csr.crow_indices())
    assert (made.sizes(), made.sparse_sizes(), made.dim(), made.dtype()) == ([rows, columns], size, 2, torch.float64)
    check(made.fill_value(2.0), (dense != 0).double() * 2)
    check(made.set_value(None), (dense != 0).float())


@matrices
@many
def test_parts_and_sums(seed, rows, columns):
    dense = draw(seed, (rows, columns), (2,))
    made = SparseTensor.from_dense(dense)
    check(made.t(), dense.transpose(0, 1))
    for dim in (0, 1):
        check(made.sum(dim=dim), dense.sum(dim))
        chosen = torch.randint(dense.size(dim), (4,), generator=torch.Generator().manual_seed(seed))
        check(made.index_select(dim, chosen), dense.index_select(dim, chosen))
    check(made.sum(dim=-1), dense.sum(-1))
    check(made.sum(), dense.sum())
    check(made[torch.arange(rows) % 2 == 0, 1:], dense[::2, 1:])
    check(made[rows - 1], dense[rows - 1 :])
    there = (dense != 0).any(-1)
    check(made.set_value(None).sum(dim=1), there.sum(1).float())
    assert torch.equal(made.storage.rowcount(), there.sum(1))
    assert torch.equal(made.storage.colcount(), there.sum(0))


@given(SEEDS, SIZES, SIZES, SIZES)
@many
def test_products(seed, rows, inner, columns):
    left, right = draw(seed, (rows, inner)), draw(seed + 1, (inner, columns))
    made = SparseTensor.from_dense(left)
    check(made @ right, left @ right)
    check(made @ SparseTensor.from_dense(right), left @ right)
    there = left != 0
    check(made.set_value(None) @ SparseTensor.from_dense(right), there.double() @ right)
    counts = there.sum(1, keepdim=True).clamp(min=1)
    check(torch_sparse.matmul(made, right, reduce="mean"), left @ right / counts)
    terms = (left[:, :, None] * right).masked_fill(~there[:, :, None], -torch.inf).amax(1)
    check(torch_sparse.matmul(made, right, reduce="max"), terms.masked_fill(terms == -torch.inf, 0))
    column, row = right[:, :1].new_tensor(range(1, rows + 1))[:, None], left.new_tensor(range(1, inner + 1))[None]
    check(row * made * column, row * left * column)
    check(made.mul_nnz(torch.tensor(3.0)), left * 3)


@given(SEEDS, SIZES, SIZES, st.integers(-2, 2))
@many
def test_diagonals_and_masks(seed, rows, columns, k):
    dense = draw(seed, (rows, columns))
    made = SparseTensor.from_dense(dense)
    wanted, count = dense.clone(), len(dense.diagonal(k)) if -rows < k < columns else 0
    if count:
        wanted.diagonal(k).fill_(7)
    check(torch_sparse.fill_diag(made, 7.0, k), wanted)
    check(torch_sparse.set_diag(made, torch.full((count,), 7.0, dtype=torch.float64), k), wanted)
    pattern = torch_sparse.set_diag(made.set_value(None), k=k)
    check(pattern, ((dense != 0) | (wanted == 7)).float())
    check(torch_sparse.masked_select_nnz(made, made.storage.value() > 0), dense.clamp(min=0))
    check(SparseTensor.eye(rows, columns), torch.eye(rows, columns))


def test_values_in_the_order_of_columns():
    made = SparseTensor.from_dense(draw(3, (4, 5)))
    by_column = made.csc()[2]
    assert not torch.equal(by_column, made.storage.value())
    check(made.set_value(None).set_value(by_column, layout="csc"), made.to_dense())
    check(made.set_value(None).mul_nnz(by_column, layout="csc"), made.to_dense())


@pytest.mark.parametrize(("reduce", "wanted"), [("sum", 5.0), ("mean", 2.5), ("min", 2.0), ("max", 3.0)])
def test_entries_of_one_place(reduce, wanted):
    made = SparseTensor(torch.tensor([1, 0, 1]), None, torch.tensor([2, 0, 2]), torch.tensor([2.0, 1.0, 3.0]))
    assert (made.nnz(), made.sparse_sizes()) == (3, (2, 3))
    joined = made.coalesce(reduce)
    assert [part.tolist() for part in joined.coo()] == [[0, 1], [0, 2], [1.0, wanted]]


def test_gradients_reach_values_and_factors():
    value, other = torch.ones(2, requires_grad=True), torch.ones(2, 3, requires_grad=True)
    made = SparseTensor(torch.tensor([0, 1]), None, torch.tensor([1, 1]), value, (2, 2))
    assert made.requires_grad()
    sparse.matmul(made, other).sum().backward()
    assert value.grad.tolist() == [3, 3]
    assert other.grad.tolist() == [[0, 0, 0], [2, 2, 2]]


@given(st.integers(0, 2**31), st.integers(1, 9), st.floats(0.1, 3), st.booleans(), st.sampled_from([1, 2, 32, None]))
@settings(max_examples=40, deadline=None)
def test_edges_of_near_points(seed, count, r, loop, most):
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


def test_one_example_and_one_coordinate():
    assert radius_graph(torch.tensor([0.0, 1.0, 9.0]), 1.0).tolist() == [[1, 0], [0, 1]]
