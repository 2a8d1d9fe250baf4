"""Which files are code, under which module names; what metadata states; which paths a pattern asks for."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extract.sources.contents import Facts, is_text, keep_paths, module_names, read_facts
from extract.sources.model import matches

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


MIT = b"Permission is hereby granted, free of charge, to any person obtaining a copy\nto deal in the Software without restriction\nThe above copyright notice and this permission notice shall be"
METADATA = b"""Metadata-Version: 2.1
Name: Pack_age
Version: 1.2
License: BSD
Classifier: License :: OSI Approved :: MIT License
Requires-Dist: torch (>=1.7)
Requires-Dist: pytest ; extra == 'test'

Requires-Dist: not a header, but the description
"""


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (
            {"x-1.2.dist-info/METADATA": METADATA},
            Facts("Pack_age", "1.2", "MIT", ("torch (>=1.7)", "pytest ; extra == 'test'")),
        ),
        (
            {"PKG-INFO": METADATA.partition(b"License")[0], "LICENSE": MIT},
            Facts("Pack_age", "1.2", "MIT", ()),
        ),
        (
            {"x.egg-info/requires.txt": b"numpy>=1\nyaml\n\n[all]\ntorch\n", "LICENSE.md": b"All rights reserved."},
            Facts("", "", "NOASSERTION", ("numpy>=1", "yaml")),
        ),
        (
            {"pyproject.toml": b'[project]\ndependencies = ["torch>=2", "?"]', "requirements.txt": b"numpy"},
            Facts("", "", "NOASSERTION", ("torch>=2",)),
        ),
        (
            {"requirements.txt": b"# pip install\n-r more.txt\ntorch>=1.5,!=1.6 # newer\ngit+https://x/y\n\nnumpy"},
            Facts("", "", "NOASSERTION", ("torch!=1.6,>=1.5", "numpy")),
        ),
        (
            {"requirements.txt": b"-r requirements/runtime.txt", "requirements/runtime.txt": b"numpy"},
            Facts("", "", "NOASSERTION", ("numpy",)),
        ),
        ({"pyproject.toml": b"not = [toml", "LICENSE": b"\xff\xfe"}, Facts("", "", "NOASSERTION", ())),
        ({"pyproject.toml": b"project = 3"}, Facts("", "", "NOASSERTION", ())),
        ({}, Facts("", "", "NOASSERTION", ())),
    ],
)
def test_facts(texts: dict[str, bytes], expected: Facts) -> None:
    assert read_facts(texts) == expected


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("LICENSE", True),
        ("LICENCE.txt", True),
        ("LICENSE-APACHE", True),
        ("COPYING.LESSER", True),
        ("UNLICENSE", True),
        ("license.py", False),
        ("licenses", False),
        ("sub/LICENSE", False),
        ("x-1.dist-info/METADATA", True),
        ("x-1.dist-info/licenses/LICENSE", True),
        ("x-1.dist-info/RECORD", False),
        ("sub/x-1.dist-info/METADATA", False),
        ("PKG-INFO", True),
        ("x.egg-info/requires.txt", True),
        ("pyproject.toml", True),
        ("sub/pyproject.toml", False),
        ("requirements.txt", True),
        ("requirements/runtime.txt", True),
        ("requirements/tests.txt", False),
    ],
)
def test_texts_to_read(path: str, wanted: bool) -> None:
    assert is_text(path) is wanted


@pytest.mark.parametrize(
    ("pattern", "path", "asked"),
    [
        ("timm/layers", "timm/layers/se.py", True),
        ("timm/layers/", "timm/layers/deep/se.py", True),
        ("timm/layers", "timm/layers2/se.py", False),
        ("timm/layers", "timm/layers.py", True),
        ("timm/lay", "timm/layers/se.py", False),
        ("layers", "timm/layers/se.py", False),
        ("models_mae", "models_mae.py", True),
        ("models_mae", "models_mae_v2.py", False),
        ("models_mae.py", "models_mae.py", True),
        ("util", "util/misc.py", True),
        ("./util", "util/misc.py", True),
        (".", "util/misc.py", True),
        ("*.py", "a.py", True),
        ("*.py", "b/a.py", False),
        ("*", "b/a.py", True),
        ("**/a.py", "a.py", True),
        ("**/a.py", "b/c/a.py", True),
        ("**/a.py", "b/c/ba.py", False),
        ("a/**/c", "a/c/x.py", True),
        ("a/**/c", "a/b/b/c.py", True),
        ("a/**", "a/b/c.py", True),
        ("a/**", "b/c.py", False),
        ("**", "a/b.py", True),
        ("models/*/modeling_*.py", "models/bert/modeling_bert.py", True),
        ("models/*/modeling_*.py", "models/bert/deep/modeling_bert.py", False),
        ("models/*", "models/bert/deep/x.py", True),
        ("re?net", "resnet/x.py", True),
        ("re?net", "re/net/x.py", False),
        ("[ab]/x.py", "b/x.py", True),
        ("[!ab]/x.py", "b/x.py", False),
        ("[!ab]/x.py", "c/x.py", True),
        ("[ab", "[ab/x.py", True),
        ("a.b+c", "a.b+c/x.py", True),
        ("a.b", "axb/x.py", False),
    ],
)
def test_patterns(pattern: str, path: str, asked: bool) -> None:
    assert matches((pattern,), path) is asked


def test_one_of_several_suffices() -> None:
    paths = ("a/x.py", "b/x.py", "c/x.py", "b/c/x.py")
    assert [matches(("a", "b/*.py"), path) for path in paths] == [True, True, False, False]
    assert not matches((), "a.py")
