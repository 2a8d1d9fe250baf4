"""Which files are code, under which module names."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extract.sources.layout import keep_paths, module_names

KEPT = {
    "pkg/__init__.py": True,
    "pkg/layers/se.py": True,
    "hubconf.py": True,
    "test.py": True,  # a script of that name, as in yolov7
    "pkg/test_time_aug.py": True,  # within a package: code
    "pkg/testing/lstm.py": True,
    "pkg/benchmark/timer.py": True,
    "pkg/examples/one.py": True,
    "configs/x.py": True,
    "pkg/data.json": False,
    "pkg/ops.pyi": False,
    "pkg/weights.pth": False,
    "setup.py": False,
    "pkg/ops/setup.py": False,
    "conftest.py": False,
    "test_all.py": False,
    "tools/test_server.py": False,
    "tests/__init__.py": False,
    "tests/models/toy.py": False,
    "pkg/tests/toy.py": False,
    "pkg/layers/test/toy.py": False,
    "docs/conf.py": False,
    "examples/train.py": False,
    "benchmarks/speed.py": False,
    "pkg/.mim/configs/x.py": False,
    ".github/x.py": False,
    "pkg/._se.py": False,
    "pkg/layers.py": True,  # no package pkg/layers: there is no __init__
    "pkg/hidden/__init__.py": True,
    "pkg/hidden.py": False,  # nothing can import it
    "pkg/a\nb.py": False,
    "pkg/\udcff.py": False,
}


def test_kept() -> None:
    assert set(keep_paths(KEPT)) == {path for path, kept in KEPT.items() if kept}
    assert keep_paths(KEPT) == sorted(keep_paths(reversed(KEPT)))


@pytest.mark.parametrize(
    ("files", "within"),
    [
        ({"timm/__init__.py": "timm", "timm/layers/__init__.py": "timm.layers", "timm/layers/se.py": "timm.layers.se"}, ""),
        ({"src/pkg/__init__.py": "pkg", "src/pkg/a.py": "pkg.a"}, ""),
        ({"pkg/__init__.py": "pkg", "pkg/space/a.py": "pkg.space.a", "pkg/space/in/__init__.py": "pkg.space.in"}, ""),
        ({"models/a.py": "models.a", "utils/b.py": "utils.b", "train.py": "train"}, ""),
        ({"src/a.py": "src.a"}, ""),
        ({"__init__.py": "__init__", "a.py": "a"}, ""),
        ({"__init__.py": "sam", "a.py": "sam.a", "sub/b.py": "sam.sub.b", "x/y/__init__.py": "sam.x.y"}, "sam"),
        ({"projects/PointRend/point_rend/__init__.py": "point_rend", "projects/PointRend/train.py": "projects.PointRend.train"}, ""),
        # two packages of one name: both are named from the root, with all that is in them
        ({"p/a/models/__init__.py": "p.a.models", "p/a/models/x.py": "p.a.models.x", "p/b/models/__init__.py": "p.b.models"}, ""),
        # a package of that name, a folder without __init__, or a module is at the root: it has the right of way
        ({"models/__init__.py": "models", "p/models/__init__.py": "p.models", "p/models/x.py": "p.models.x"}, ""),
        ({"models/x.py": "models.x", "p/models/__init__.py": "p.models"}, ""),
        ({"models.py": "models", "p/models/__init__.py": "p.models"}, ""),
    ],
)  # fmt: skip
def test_module_names(files: dict[str, str], within: str) -> None:
    assert module_names(files, within) == files


folders = st.lists(st.sampled_from(["a", "b", "models", "src"]), max_size=3)
files = st.sampled_from(["__init__.py", "a.py", "b.py", "models.py"])
trees = st.lists(st.tuples(folders, files).map(lambda parts: "/".join([*parts[0], parts[1]])), max_size=12)


@given(trees, st.sampled_from(["", "root"]))
def test_no_two_modules_share_a_name(paths: list[str], within: str) -> None:
    kept = keep_paths(paths)
    modules = module_names(kept, within)
    assert set(modules) == set(kept)
    assert not [name for name, count in Counter(modules.values()).items() if count > 1]
    for path, name in modules.items():
        dotted = f"{within}/{path}".removesuffix(".py").strip("/").replace("/", ".")
        assert f".{dotted}".endswith((f".{name}", f".{name}.__init__"))


@given(trees)
def test_the_order_of_paths_is_irrelevant(paths: list[str]) -> None:
    assert keep_paths(paths) == keep_paths(paths[::-1])
    assert module_names(keep_paths(paths)) == module_names(keep_paths(paths)[::-1])
