"""Graphs, which others leave to compiled packages: adjacency matrices as of torch-sparse, and edges by distance."""

import torch


class SparseTensor:
    """A matrix of `sparse_sizes` with the entries at `row` and `col`, sorted by row, then by column.

    `value` (nnz, ...) has what the entries hold; without it they count as one. Equal places stay apart.
    """

    def __init__(
        self, row=None, rowptr=None, col=None, value=None, sparse_sizes=None, is_sorted=False, trust_data=False
    ):
        if row is None:
            row = torch.arange(len(rowptr) - 1, device=col.device).repeat_interleave(rowptr.diff())
        rows, cols = sparse_sizes or (None, None)
        if rows is None:
            rows = len(rowptr) - 1 if rowptr is not None else int(row.max()) + 1 if len(row) else 0
        if cols is None:
            cols = int(col.max()) + 1 if len(col) else 0
        if not is_sorted:
            order = torch.argsort(row * cols + col, stable=True)
            row, col, value = row[order], col[order], None if value is None else value[order]
        self._row, self._col, self._value, self._sizes = row, col, value, (rows, cols)

    @classmethod
    def from_edge_index(cls, edge_index, edge_attr=None, sparse_sizes=None, is_sorted=False, trust_data=False):
        return cls(edge_index[0], None, edge_index[1], edge_attr, sparse_sizes, is_sorted)

    @classmethod
    def from_dense(cls, mat, has_value=True):
        row, col = (mat if mat.dim() == 2 else mat.abs().sum(tuple(range(2, mat.dim())))).nonzero(as_tuple=True)
        return cls(row, None, col, mat[row, col] if has_value else None, mat.shape[:2], True)

    @classmethod
    def from_torch_sparse_coo_tensor(cls, mat, has_value=True):
        mat = mat.coalesce()
        row, col = mat.indices()
        return cls(row, None, col, mat.values() if has_value else None, mat.shape[:2], True)

    @classmethod
    def from_torch_sparse_csr_tensor(cls, mat, has_value=True):
        value = mat.values() if has_value else None
        return cls(None, mat.crow_indices(), mat.col_indices(), value, mat.shape[:2])

    @classmethod
    def eye(cls, M, N=None, has_value=True, dtype=None, device=None, fill_cache=False):
        place = torch.arange(min(M, M if N is None else N), device=device)
        value = torch.ones(len(place), dtype=dtype, device=device) if has_value else None
        return cls(place, None, place, value, (M, M if N is None else N), True)

    @property
    def storage(self):
        return self

    def row(self):
        return self._row

    def col(self):
        return self._col

    def value(self):
        return self._value

    def rowcount(self):
        return torch.bincount(self._row, minlength=self._sizes[0])

    def colcount(self):
        return torch.bincount(self._col, minlength=self._sizes[1])

    def rowptr(self):
        return torch.cat((self._row.new_zeros(1), self.rowcount().cumsum(0)))

    def coo(self):
        return self._row, self._col, self._value

    def csr(self):
        return self.rowptr(), self._col, self._value

    def csc(self):
        turned = self.t()
        return turned.rowptr(), turned._col, turned._value

    def sparse_sizes(self):
        return self._sizes

    def sparse_size(self, dim):
        return self._sizes[dim]

    def sizes(self):
        return [*self._sizes, *(() if self._value is None else self._value.shape[1:])]

    def size(self, dim):
        return self.sizes()[dim]

    def dim(self):
        return len(self.sizes())

    def nnz(self):
        return len(self._row)

    def has_value(self):
        return self._value is not None

    def dtype(self):
        return torch.float if self._value is None else self._value.dtype

    def device(self):
        return self._row.device

    def is_cuda(self):
        return self._row.is_cuda

    def requires_grad(self):
        return self._value is not None and self._value.requires_grad

    def _with(self, value):
        return SparseTensor(self._row, None, self._col, value, self._sizes, True)

    def clone(self):
        value = None if self._value is None else self._value.clone()
        return SparseTensor(self._row.clone(), None, self._col.clone(), value, self._sizes, True)

    def to(self, *args, **kwargs):
        device = torch.empty(0, dtype=self.dtype(), device=self.device()).to(*args, **kwargs).device
        value = None if self._value is None else self._value.to(*args, **kwargs)
        return SparseTensor(self._row.to(device), None, self._col.to(device), value, self._sizes, True)

    def _ordered(self, value, layout):
        """Return values in the order of the entries, whatever the order they are given in."""
        if layout != "csc" or value is None:
            return value
        order = torch.argsort(self._col * self._sizes[0] + self._row, stable=True)
        return value[torch.argsort(order)]

    def set_value(self, value, layout=None):
        return self._with(self._ordered(value, layout))

    def fill_value(self, fill_value, dtype=None):
        return self._with(torch.full((self.nnz(),), fill_value, dtype=dtype or self.dtype(), device=self.device()))

    def mul_nnz(self, other, layout=None):
        other = self._ordered(other, layout)
        return self._with(other if self._value is None else self._value * other)

    def _ones(self, dtype=None):
        """The values, or ones in their place."""
        value = self.fill_value(1, dtype)._value if self._value is None else self._value
        return value if dtype is None else value.to(dtype)

    def t(self):
        return SparseTensor(self._col, None, self._row, self._value, self._sizes[::-1])

    def to_dense(self, dtype=None):
        value = self._ones(dtype)
        return value.new_zeros(self.sizes()).index_put((self._row, self._col), value)

    def to_torch_sparse_coo_tensor(self, dtype=None):
        return torch.sparse_coo_tensor(torch.stack((self._row, self._col)), self._ones(dtype), self.sizes())

    def to_torch_sparse_csr_tensor(self, dtype=None):
        return torch.sparse_csr_tensor(self.rowptr(), self._col, self._ones(dtype), self.sizes())

    def coalesce(self, reduce="sum"):
        """The entries of one place become one."""
        key, group = torch.unique(self._row * self._sizes[1] + self._col, return_inverse=True)
        value = None if self._value is None else _reduce(self._value, group, len(key), reduce)
        return SparseTensor(key // self._sizes[1], None, key % self._sizes[1], value, self._sizes, True)

    def sum(self, dim=None):
        if dim is None:
            return self._ones().sum()
        dim %= self.dim()
        if dim > 1:
            return self._with(self._value.sum(dim - 1))
        return _reduce(self._ones(), (self._col, self._row)[dim], self._sizes[1 - dim], "sum")

    def index_select(self, dim, idx):
        """The rows (dim 0) or columns of the numbers `idx`, in this order; those named twice are there twice."""
        if dim:
            return self.t().index_select(0, idx).t()
        counts, start = self.rowcount()[idx], self.rowptr()[idx]
        row = torch.arange(len(idx), device=idx.device).repeat_interleave(counts)
        place = torch.arange(len(row), device=idx.device) + (start - counts.cumsum(0) + counts)[row]
        value = None if self._value is None else self._value[place]
        return SparseTensor(row, None, self._col[place], value, (len(idx), self._sizes[1]), True)

    def __getitem__(self, index):
        out = self
        for dim, part in enumerate(index if isinstance(index, tuple) else (index,)):
            numbers = torch.arange(self._sizes[dim], device=self.device())[part]
            out = out.index_select(dim, numbers.reshape(-1))
        return out

    def __mul__(self, other):
        return mul(self, other)

    __rmul__ = __mul__

    def __matmul__(self, other):
        return matmul(self, other)


def _reduce(value, group, count, reduce):
    """The values (N, ...) of each of `count` groups, reduced; zero for a group without any."""
    index = group.view(-1, *[1] * (value.dim() - 1)).expand_as(value)
    how = {"add": "sum", "min": "amin", "max": "amax"}.get(reduce, reduce)
    return value.new_zeros(count, *value.shape[1:]).scatter_reduce(0, index, value, how, include_self=False)


def matmul(src, other, reduce="sum"):
    """The product with a dense matrix, whose terms `reduce` joins, or with a sparse one."""
    if isinstance(other, torch.Tensor):
        terms = other[src._col]
        if src._value is not None:
            terms = terms * src._value.view(-1, *[1] * (terms.dim() - 1)).to(terms.dtype)
        return _reduce(terms, src._row, src._sizes[0], reduce)
    pairs = other.index_select(0, src._col)  # a row for each entry of `src`
    value = None
    if src._value is not None or other._value is not None:
        value = src._ones()[pairs._row] * pairs._ones()
    return SparseTensor(src._row[pairs._row], None, pairs._col, value, (src._sizes[0], other._sizes[1])).coalesce()


def mul(src, other):
    """The product with a column, a row or a matrix of factors."""
    factors = other.expand(*src._sizes, *other.shape[2:])[src._row, src._col]
    return src._with(factors if src._value is None else src._value * factors)


class torch_sparse:  # noqa: N801 (theirs)
    """The functions of the package that blocks call by its name."""

    matmul = staticmethod(matmul)
    mul = staticmethod(mul)

    @staticmethod
    def sum(src, dim=None):
        return src.sum(dim)

    @staticmethod
    def set_diag(src, values=None, k=0):
        """The entries of a diagonal replaced by `values`, or by ones."""
        rest = torch_sparse.masked_select_nnz(src, src._col - src._row != k)
        count = max(min(src._sizes[0] + min(k, 0), src._sizes[1] - max(k, 0)), 0)
        place = torch.arange(count, device=src.device())
        value = None
        if src._value is not None:
            shape = (count, *src._value.shape[1:])
            value = torch.cat((rest._value, rest._value.new_ones(shape) if values is None else values))
        row, col = torch.cat((rest._row, place - min(k, 0))), torch.cat((rest._col, place + max(k, 0)))
        return SparseTensor(row, None, col, value, src._sizes)

    @staticmethod
    def fill_diag(src, fill_value, k=0):
        out = torch_sparse.set_diag(src, None, k)
        if out._value is None:
            return out
        on_diagonal = (out._col - out._row == k).view(-1, *[1] * (out._value.dim() - 1))
        return out._with(out._value.masked_fill(on_diagonal, fill_value))

    @staticmethod
    def masked_select_nnz(src, mask, layout=None):
        mask = src._ordered(mask, layout)
        value = None if src._value is None else src._value[mask]
        return SparseTensor(src._row[mask], None, src._col[mask], value, src._sizes, True)


def radius_graph(
    x,
    r,
    batch=None,
    loop=False,
    max_num_neighbors=32,
    flow="source_to_target",
    num_workers=1,
    batch_size=None,
):
    """Edges (2, E) between the points (N, F) of one example that are no more than `r` apart, by centre.

    A centre with more neighbours than `max_num_neighbors` keeps those of the smallest numbers; None keeps all.
    """
    points = x[:, None] if x.dim() == 1 else x
    near = (points[:, None] - points[None]).square().sum(-1) <= r * r
    if batch is not None:
        near &= batch[:, None] == batch[None]
    if not loop:
        near.fill_diagonal_(False)
    if max_num_neighbors is not None:
        near &= near.cumsum(1) <= max_num_neighbors
    centre, neighbour = near.nonzero(as_tuple=True)
    return torch.stack((neighbour, centre) if flow == "source_to_target" else (centre, neighbour))
