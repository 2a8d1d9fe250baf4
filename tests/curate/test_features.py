"""Any text may come as a code: each gets features or a reason, and none ends the run."""

import importlib
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.model import corpus
from curate.model.corpus import Features, FeatureStore, code_features, map_codes
from lemur_core.files.errors import DamagedError
from lemur_core.similarity.outline import MAX_CODE_BYTES, PYTHON  # noqa: F401 (the page names them)
from tests.builders.suites import read_table, table

CODE = "import torch\n\n\nclass Net(nn.Module):\n    def forward(self, x):\n        return self.conv(x)\n"

pytestmark = pytest.mark.filterwarnings("ignore")  # invalid escapes and the like in foreign code


@table(__file__, "features.md", "A reason", globals())
def test_a_reason(code: str, reason: str) -> None:
    found = code_features(code)
    assert isinstance(found, str)
    assert found.startswith(reason)
    assert len(found) <= 250
    assert "\n" not in found


DEEP = read_table(__file__, "features.md", "Deep", globals())


@pytest.mark.parametrize("depth", [150, 900, 2900, 10_000])
@pytest.mark.parametrize("kind", DEEP)
def test_deep_nesting(kind: str, depth: int) -> None:
    found = code_features(CODE + DEEP[kind](depth) + "\n")
    assert isinstance(found, Features) or found.startswith(("nested too deeply", "not Python"))
    if depth == 150:
        assert isinstance(found, Features), found


@table(__file__, "features.md", "Odd but valid", globals())
def test_odd_but_valid(code: str) -> None:
    found = code_features(code)
    assert isinstance(found, Features), found
    assert len(found.shingles)


@table(__file__, "features.md", "What is equal", globals())
def test_what_is_equal(other: str, equal: set[str]) -> None:
    one, two = code_features(CODE), code_features(other)
    assert isinstance(one, Features)
    assert isinstance(two, Features)
    names = ("tree", "literal", "shingle_set", "fingerprint")
    assert {name for name in names if getattr(one, name) == getattr(two, name)} == equal


def test_trees_that_look_alike_are_told_apart() -> None:
    """The text of a tree that is digested must not read the same for two trees."""
    codes = (
        """
x = 1 | x = '1' | x = 1.0 | x = True | x == 1 | x.y | x.y() | x('y') | x[y] | (x, y) | [x, y] | {x, y}
{x: y} | {**x} | f(*x) | f(**x) | f(x=x) | f(x)(x) | f(x, x) | f(f(x)) | -x | +x | not x | a if b else c
b if a else c | global x | global y | global x, y | nonlocal_ | import x | import x as y | from x import y
from .x import y | from ..x import y | def f(): pass | async def f(): pass | def f(x): pass | def f(*x): pass
def f(*, x): pass | def f(x, /): pass | def f(x=1): pass | class f: pass | x = b'' | x = '' | x = ...
x = None | x = 1j | x: int | x: int = 1 | (x): int | f'{x}' | f'{x!r}' | f'{x:y}' | f'x'
""".strip()
        .replace("\n", " | ")
        .split(" | ")
    )
    codes += ["'x'; y", "if x:\n y\nelse:\n z", "if x:\n y\nz"]
    codes += ["if x:\n y\n z", "x = a\nb", "x = 'a\\nb'", "x = 'a'\n'b'"]
    codes += ["try:\n x\nexcept y:\n z", "try:\n x\nfinally:\n z"]
    digests: dict[bytes, str] = {}
    for code in codes:
        found = code_features("y = 0\n" + code)
        assert isinstance(found, Features), (code, found)
        assert digests.setdefault(found.tree, code) == code
    assert len(digests) == len(codes)


@given(text=st.text(max_size=60), start=st.integers(0, len(CODE)))
def test_any_text_is_taken(text: str, start: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = code_features(CODE[:start] + text + CODE[start:])
    assert isinstance(found, (str, Features))
    if isinstance(found, str):
        assert "\n" not in found


def test_a_code_that_kills_its_worker_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By work, importable in workers, that ends its process at a word, as a crashing parser would."""
    (tmp_path / "deadly_features.py").write_text(
        "import os\nfrom curate.model.corpus import code_features\n"
        "def work(code):\n    return os._exit(1) if 'KILL' in code else code_features(code)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    deadly = importlib.import_module("deadly_features").work
    monkeypatch.setitem(sys.modules, "deadly_features", sys.modules.pop("deadly_features"))  # for this test alone
    monkeypatch.setattr(corpus, "_CHUNK_CODES", 2)
    codes = [(bytes([i]), f"x{i} = {i}\n") for i in range(7)]
    codes[3] = (bytes([3]), "KILL = 1\n")
    results = [item for result in map_codes(deadly, iter(codes), 2) for item in result]
    assert [digest for digest, _ in results] == [digest for digest, _ in codes]
    for (digest, code), (_, found) in zip(codes, results, strict=True):
        if "KILL" in code:
            assert found == "Python's parser crashed on it"
        else:
            assert isinstance(found, Features), (digest, found)


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path))
    return tmp_path


def filled(codes: list[str]) -> FeatureStore:
    store = FeatureStore()
    for code in codes:
        store.add(code.encode().rjust(32, b"\0"), code_features(code))
    store.flush()
    return store


def test_what_is_stored_comes_back(own_cache: Path) -> None:
    codes = ["x = f(1)\n", "y = f(2)\n", "def f(:\n", "x = torch.hub.load('a', 'b')\n", "z = g()[1]\n"]
    filled(codes[:2])
    store = filled(codes[2:])
    digests = [code.encode().rjust(32, b"\0") for code in codes]
    assert all(digest in store for digest in digests)
    order = [4, 2, 0, 3, 1, 0]
    table = store.table([digests[i] for i in order])
    assert len(table) == 6
    for place, i in enumerate(order):
        expected = code_features(codes[i])
        if isinstance(expected, str):
            assert table.problems[place] == expected
            assert table.shingle_set[place] == table.tree[place] == table.fingerprint[place] == -1
            continue
        number = int(table.shingle_set[place])
        assert table.shingles(number).tolist() == expected.shingles.tolist()
        assert table.signatures[number].tolist() == expected.signature.tolist()
        assert table.set_sizes[number] == len(expected.shingles)
        assert table.elements[int(table.fingerprint[place])].tolist() == expected.elements.tolist()
        assert table.family[place] == expected.family
        assert (place in table.pretrained) == expected.pretrained
    assert table.shingle_set[2] == table.shingle_set[4] == table.shingle_set[5]  # x = f(1), y = f(2)
    assert table.tree[2] != table.tree[4]


def test_a_changed_shard_is_dropped(own_cache: Path) -> None:
    found = code_features("x = f(1)\n")
    assert isinstance(found, Features)
    filled(["x = f(1)\n"])
    (path,) = own_cache.rglob("*.arrow")
    changed = path.read_bytes().replace(found.shingles.tobytes(), bytes(found.shingles.nbytes))
    path.unlink()
    path.write_bytes(changed)
    with pytest.raises(DamagedError):
        FeatureStore().table([b"x = f(1)\n".rjust(32, b"\0")])
    assert not path.exists()
