"""Names bound by every kind of statement, bound again, or deleted."""

from collections.abc import Callable

import pytest

Behaves = Callable[..., str]

CASES: dict[str, tuple[str, str, object]] = {
    "names bound by loops, with, unpacking, walrus": (
        """
        --- p/a.py
        import contextlib
        from torch import nn
        (P, Q), *R = (1, 2), 3, 4
        for I in range(3):
            LAST = I
        with contextlib.nullcontext(5) as W:
            V = W
        SIZE = 6 + (BIG := 1)
        TOTAL = sum(K := [1, 2])
        class A(nn.Module):
            def forward(self, x): return P, Q, R, I, LAST, W, V, SIZE, BIG, TOTAL, K
        """,
        "A()(0)",
        (1, 2, [3, 4], 2, 2, 5, 5, 7, 1, 3, [1, 2]),
    ),
    "a constant that is bound again": (
        """
        --- p/a.py
        from torch import nn
        SIZE = 1
        SIZE = SIZE + 1
        SIZE *= 3
        class A(nn.Module):
            def forward(self, x): return SIZE
        """,
        "A()(0)",
        6,
    ),
    "a name read between two bindings": (
        """
        --- p/a.py
        from torch import nn
        size = 2
        class Small(nn.Module):
            width = size
            def forward(self, x): return x
        size = 3
        class A(nn.Module):
            def forward(self, x): return size, Small.width
        """,
        "A()(0)",
        (3, 2),
    ),
    "a name deleted in the end": (
        """
        --- p/a.py
        from torch import nn
        _base = 4
        class Wide(nn.Module):
            width = _base * 2
            def forward(self, x): return x
        del _base
        class A(nn.Module):
            def forward(self, x): return Wide.width
        """,
        "A()(0)",
        8,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_behaves_as_the_original(behaves: Behaves, case: str) -> None:
    behaves(*CASES[case])
