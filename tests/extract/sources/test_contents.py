"""Which files are code, under which module names; which paths a pattern matches."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from extract.sources.contents import keep_paths, matches, module_names
from tests.builders.suites import table

#: `test.py` at the root is a script, as in yolov7; within a package, folders and files of such names are code.
KEPT = """
pkg/__init__.py pkg/layers/se.py hubconf.py configs/x.py pkg/layers.py pkg/hidden/__init__.py
test.py pkg/test_time_aug.py pkg/testing/lstm.py pkg/benchmark/timer.py pkg/examples/one.py
"""
LEFT_OUT = """
pkg/data.json pkg/__init__.pyi pkg/ops.pyi pkg/weights.pth setup.py pkg/ops/setup.py conftest.py test_all.py tools/test_server.py
tests/__init__.py tests/models/toy.py pkg/tests/toy.py pkg/layers/test/toy.py docs/conf.py examples/train.py
benchmarks/speed.py pkg/.mim/configs/x.py .github/x.py pkg/._se.py pkg/hidden.py
"""


def test_kept() -> None:
    others = [*LEFT_OUT.split(), "pkg/a\nb.py", "pkg/\udcff.py"]
    assert keep_paths([*others, *KEPT.split()]) == keep_paths([*KEPT.split()[::-1], *others]) == sorted(KEPT.split())


@table(__file__, "contents.md", "Module names", globals())
def test_module_names(files: dict[str, str], within: str) -> None:
    assert module_names(files, within) == files


folders = st.lists(st.sampled_from(["a", "b", "models", "src"]), max_size=3)
files = st.sampled_from(["__init__.py", "a.py", "b.py", "models.py"])
trees = st.lists(st.tuples(folders, files).map(lambda parts: "/".join([*parts[0], parts[1]])), max_size=12)


@given(trees, st.sampled_from(["", "root"]))
def test_no_two_modules_share_a_name(paths: list[str], within: str) -> None:
    kept = keep_paths(paths)
    assert keep_paths(paths[::-1]) == kept
    modules = module_names(kept, within)
    assert module_names(kept[::-1], within) == modules
    assert set(modules) == set(kept)
    assert not [name for name, count in Counter(modules.values()).items() if count > 1]
    for path, name in modules.items():
        dotted = f"{within}/{path}".removesuffix(".py").strip("/").replace("/", ".")
        assert f".{dotted}".endswith((f".{name}", f".{name}.__init__"))


@table(__file__, "contents.md", "Patterns", globals())
def test_patterns(pattern: str, asked: str, others: str) -> None:
    assert [path for path in f"{asked} {others}".split() if matches((pattern,), path)] == asked.split()


def test_one_of_several_suffices() -> None:
    paths = ("a/x.py", "b/x.py", "c/x.py", "b/c/x.py")
    assert [matches(("a", "b/*.py"), path) for path in paths] == [True, True, False, False]
    assert not matches((), "a.py")
