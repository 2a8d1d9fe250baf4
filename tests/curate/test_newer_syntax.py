"""Syntax that this Python does not know: the code is invalid, and the reason says that a newer one may read it."""

import sys
from pathlib import Path

import pytest

from curate.model.corpus import FeatureStore
from lemur_core.similarity.outline import outline_code

#: By the Python that brought it, PEP 695, 701, 696, 750 and 758.
NEWER = {
    (3, 12): "class Net[T]:\n    def forward(self, x: T) -> T:\n        return x\n",
    (3, 13): "class Net[T = int]:\n    pass\n",
    (3, 14): "text = t'{3}'\n",
    (3, 12, 1): "type Shape = tuple[int, ...]\n",
    (3, 12, 2): "text = f'{'a'}'\n",
    (3, 14, 1): "try:\n    pass\nexcept TypeError, ValueError:\n    pass\n",
}
OURS = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.parametrize("since", NEWER)
def test_newer_syntax_is_named(since: tuple[int, ...]) -> None:
    told = outline_code(NEWER[since])
    if sys.version_info[:2] >= since[:2]:
        assert not isinstance(told, str)
    else:
        assert str(told).startswith(f"not Python {OURS}, but perhaps a newer one: line ")


NEVER = "def (: | print 'x' | x = ( | 1 = x | not code at all! |    x = 1 | type x | class Net(:"


@pytest.mark.parametrize("code", [*(f"{code}\n" for code in NEVER.split(" | ")), "(" * 90_000])
def test_what_no_python_reads(code: str) -> None:
    assert str(outline_code(code)).startswith("not Python: line 1: ")


def test_another_python_reads_it_anew(tmp_path: Path) -> None:
    """What is kept of a code between runs is not what an older Python made of it."""
    older, same, broken = b"o" * 32, b"s" * 32, b"b" * 32
    store = FeatureStore("abstract", tmp_path)
    store.add(older, "not Python 3.10, but perhaps a newer one: line 1: invalid syntax")
    store.add(same, f"not Python {OURS}, but perhaps a newer one: line 1: invalid syntax")
    store.add(broken, "not Python: line 1: invalid syntax")
    store.flush()
    again = FeatureStore("abstract", tmp_path)
    assert [digest in again for digest in (older, same, broken)] == [False, True, True]
    again.add(older, "not Python: line 1: invalid syntax")
    again.flush()
    assert older in FeatureStore("abstract", tmp_path)
