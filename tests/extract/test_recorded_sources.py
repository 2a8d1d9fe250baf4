"""Calls that are recorded while the models of a source run: which code is run, and what it shows."""

import importlib
import itertools
import os
import subprocess
import sys
import types
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from extract.extractor import BlockExtractor
from extract.recording import source_guest
from extract.recording.configured import Registries
from extract.recording.drivers import Driver, Tables, list_examples
from extract.recording.meta import LargeModelError, LightTensors
from extract.recording.recorder import SourceRecorder
from extract.recording.source_guest import spread
from extract.recording.testing import find_absent, run_tests
from extract.recording.users import UseGraph, list_stored
from extract.sources import open_source
from extract.standins import sparse
from tests.builders.suites import read_files

#: A part whose arguments nobody guesses: the text says which code passes them.
TEXTS = read_files(__file__, "recorded_sources.md")
PART = TEXTS["PART"]
MODEL = TEXTS["MODEL"]
FILES = read_files(__file__, "recorded_sources.md", "Files")
MAIN = """
if __name__ == "__main__":
    model = MainNet({"Main": (3, 5)}, 25).to("cuda")
    print(model(torch.randn(2, 25, 6, device="cuda")).shape)
"""
WIDTHS = {"Listed": 21, "Made": 23, "Main": 25, "Shown": 27, "Proven": 29, "Checked": 31}
WIDTHS |= {"Filed": 33, "Scripted": 35}
#: Nobody compiled the operators of this package.
COMPILED = """
import importlib
OPERATORS = importlib.import_module("folding._ext")
assert callable(OPERATORS.add) and not hasattr(OPERATORS, "__path__")
"""
#: Those of this one were compiled for another torch, and those of a package that it uses, too.
UNLOADABLE = """
import os, sys, torch
torch.ops.load_library(os.path.join(os.path.dirname(__file__), "table.pt"))
import folding_operators
"""
OPERATORS = """
import ctypes, os
LIBRARY = ctypes.CDLL(os.path.join(os.path.dirname(__file__), "operators.so"))
"""
#: A table beside the code is read, weights that are not there hold nothing.
TABLE = """
import os
import torch
assert torch.load(os.path.join(os.path.dirname(__file__), "table.pt"))["a"].sum() == 2
assert torch.load("gone.pt") == {}
"""
#: The first model that is tried with the part `Made`: it cannot be put into evaluation mode.
TRAINER = """
from torch import nn
from ..parts.made import Made
class Trainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Made({"Made": (3, 5)})
    def forward(self, x):
        return self.part(x, carry=[])
    def train(self, model, x):
        raise NotImplementedError
"""


@given(st.integers(0, 60))
def test_drivers_of_one_module_are_tried_from_all_its_parts(count: int) -> None:
    drivers = [Driver(str(place), 0, lambda _: None) for place in range(count)]
    places = [int(driver.key) for driver in spread(drivers)]
    assert sorted(places) == list(range(count))
    assert places[:1] == [0][:count]
    # No gap is more than four times as long as with even steps.
    for tried in range(1, count + 1):
        edges = sorted([*places[:tried], count])
        assert max(after - before for before, after in itertools.pairwise(edges)) <= max(1, 4 * count / tried)


class LoadsAll(dict[str, object]):
    """A table whose values are loaded when it is asked for them."""

    def values(self) -> Any:
        raise ValueError("Could not find Part")


def write(folder: Path) -> None:
    files = dict(FILES)
    for name, width in (*WIDTHS.items(), ("Stated", 33)):
        part = name.lower()
        files[f"folding/parts/{part}.py"] = PART.format(name=name)
        files[f"folding/models/{part}.py"] = MODEL.format(name=name, part=part, width=width)
    files["folding/models/main.py"] += MAIN
    files["folding/models/a_trainer.py"] = TRAINER
    files["folding/models/assembled.py"] = TEXTS["CONFIGURED"]
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the sandbox needs Linux")
def test_registries_factories_scripts_examples_and_tests_show_true_arguments(tmp_path: Path) -> None:
    write(tmp_path / "project")
    with (tmp_path / "project" / "folding" / "__init__.py").open("a") as file:
        file.write(COMPILED + TABLE + UNLOADABLE)
    (tmp_path / "project" / "folding_operators").mkdir()
    (tmp_path / "project" / "folding_operators" / "__init__.py").write_text(OPERATORS)
    torch.save({"a": torch.ones(2)}, tmp_path / "project" / "folding" / "table.pt")
    names = list(WIDTHS)
    with BlockExtractor(sources=[str(tmp_path / "project")], level="forward", jobs=1) as extractor:
        rows = {result.row.name: result.row for result in extractor.extract_multiple_blocks(names)}
        assert extractor.facts.notes == []
    assert {name: (row.level, row.arguments_from) for name, row in rows.items()} == dict.fromkeys(
        names, ("forward", "recorded")
    )
    assert all(f"'{name}': (3, 5)" in (row.arguments or "") for name, row in rows.items())
    # What else is extracted does not matter.
    with BlockExtractor(sources=[str(tmp_path / "project")], level="forward", jobs=1) as extractor:
        row = extractor.extract_single_block("Made").row
    assert (row.arguments, row.arguments_from) == (rows["Made"].arguments, "recorded")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the sandbox needs Linux")
def test_a_source_that_cannot_be_imported_shows_nothing_and_says_so(tmp_path: Path) -> None:
    write(tmp_path / "project")
    (tmp_path / "project" / "folding" / "__init__.py").write_text("raise RuntimeError('not today')\n")
    with BlockExtractor(sources=[str(tmp_path / "project")], level="forward", jobs=1) as extractor:
        rows = {r.row.name: r.row.level for r in extractor.extract_multiple_blocks(["Listed", "Made", "Main", "Shown"])}
        notes = extractor.facts.notes
    # Calls in the corpus show how `Made` and `Main` are constructed, and nothing how they are called.
    assert rows == {"Listed": "executed", "Made": "constructed", "Main": "constructed", "Shown": "executed"}
    assert notes == ["project: its own models were not run: RuntimeError: not today"]


def test_what_replaces_compiled_packages_is_there_while_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    class SparseTensor:
        def coo(self) -> None: ...

    def radius_graph(x: Any, r: float, another: int) -> None: ...

    kept = {"torch_sparse": torch, "radius_graph": radius_graph}
    package = __name__.partition(".")[0]
    modules = {f"{package}.defining": {"SparseTensor": SparseTensor, **kept}, "other": {"SparseTensor": SparseTensor}}
    for name, values in modules.items():
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        vars(sys.modules[name]).update(values)
    source_guest._stand_in(frozenset({package}))
    assert sys.modules[f"{package}.defining"].SparseTensor is sparse.SparseTensor
    assert sys.modules["other"].SparseTensor is SparseTensor
    # One takes what ours does not, the other is no class.
    assert {name: vars(sys.modules[f"{package}.defining"])[name] for name in kept} == kept


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("ImportError", "numpy.core.multiarray failed to import"),
        ("ImportError", "Could not find module '_version_cpu'"),
        ("OSError", "operators.so: undefined symbol: _ZN2at4_ops"),
    ],
)
def test_a_package_whose_compiled_parts_cannot_be_loaded_counts_as_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, message: str
) -> None:
    (tmp_path / "scattering.py").write_text(f"import json\nraise {error}({message!r})\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises((ImportError, OSError)) as caught:
        importlib.import_module("scattering")
    assert find_absent(caught.value) == "scattering"
    assert find_absent(ImportError("_ops.so: undefined symbol: _ZN", name="folding._ops")) == "folding._ops"
    assert find_absent(ImportError("something else")) is None


def test_examples_of_a_readme(tmp_path: Path) -> None:
    from extract.recording.source import list_examples as list_fenced

    write(tmp_path)
    with (tmp_path / "README.md").open("a") as file:
        file.write("\n```pycon\n>>> x = 1\n>>> x\n1\n```\n\n```sh\nrm x\n```\n")
    documents = tmp_path / "documents"
    (documents / "guide").mkdir(parents=True)
    text = "Use\n\n.. code-block:: python\n   :linenos:\n\n   y = 2\n   z = [\n      y]\n\nThen rest.\n"
    (documents / "guide" / "use.rst").write_text(text)
    source = open_source(str(tmp_path))
    assert list_fenced(source, documents, ()) == ["y = 2\nz = [\n   y]\n"]
    _denied, _waits, shown, typed, documented = list_fenced(source, None, [tmp_path])
    assert documented == "y = 2\nz = [\n   y]\n"
    assert shown.startswith("import torch\nfrom folding.models.shown")
    assert typed == "x = 1\nx"


# -- inside the sandbox ----------------------------------------------------------------------------------------------


def test_light_tensors_keep_small_values_and_drop_large_ones() -> None:
    with LightTensors(), torch.no_grad():
        assert [round(rate.item(), 2) for rate in torch.linspace(0, 0.2, 3)] == [0, 0.1, 0.2]
        layer = nn.Linear(2**20, 2**20)
        assert layer.weight.is_meta
        output = layer(torch.randn(2, 2**20)) + torch.ones(2**20)
        assert output.is_meta
        assert output.shape == (2, 2**20)
        assert torch.zeros(3).cuda().tolist() == torch.zeros(3, device="cuda").to("cuda").tolist() == [0, 0, 0]
        assert torch.zeros(3).to("cuda", torch.float64).dtype == torch.float64
    with LightTensors(keeps_drawn=True), torch.no_grad():
        assert torch.randint(3, 4, (2,)).tolist() == torch.randint(3, 4, size=(2,)).tolist() == [3, 3]
        assert nn.Linear(8, 8)(torch.randn(2, 8)).nonzero().shape == (16, 2)
        assert torch.randn(2).new_empty(3, 5).shape == (3, 5)
        large = (torch.randint(9, (2**20,)), torch.randn(2).new_empty((2**20,)), nn.Linear(2**10, 2**10).weight)
        assert all(tensor.is_meta for tensor in large)
    with LightTensors(on_meta=False):
        assert not torch.randn(3, device="cuda").is_meta
    with LightTensors(on_meta=False, most_drawn=1000), torch.no_grad():
        nn.Linear(20, 20)
        with pytest.raises(LargeModelError, match="too large"):
            nn.Linear(20, 100)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "folding"]:
        del sys.modules[name]


@pytest.mark.usefixtures("package")
def test_what_reaches_a_class() -> None:
    import folding.models.factory as factory  # type: ignore[import-not-found]
    from folding.parts.listed import Listed  # type: ignore[import-not-found]

    factory.create.__defaults__ = (LoadsAll(),)
    reaching = [item.__name__ for item in UseGraph(frozenset({"folding"})).list_reaching(Listed)]
    assert reaching[:2] == ["ListedNet", "listed_small"]
    assert sorted(reaching[2:]) == ["create", "register"]


class Refusing(tuple[Any, ...]):
    """Such as the representations of a group: their numbers are no sizes."""

    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Any:
        raise NotImplementedError


def test_containers_that_refuse_to_be_read_are_read_as_they_are_stored() -> None:
    assert list_stored(Refusing((1, 2))) == [1, 2]
    assert list_stored(OrderedDict(a=3)) == [3]
    assert list_stored(types.MappingProxyType({"a": 4})) == [4]


@pytest.mark.usefixtures("package")
def test_a_name_that_a_registry_would_look_up_is_noted() -> None:
    from folding.models.factory import MODELS, StatedNet  # type: ignore[import-not-found]

    registries = Registries(frozenset({"folding"}))
    assert MODELS.get("StatedNet") is registries.find_type("StatedNet") is StatedNet
    assert registries.find_type("Unknown") is None
    recorder = SourceRecorder(frozenset({"folding"}), 100, registries.find_type)
    description = recorder._describe([{"type": "StatedNet"}, {"type": "Unknown"}], {}, StatedNet)
    assert description is not None
    assert description.names == {"StatedNet": "folding.models.stated"}


@pytest.mark.usefixtures("package")
def test_a_class_that_is_never_called_shows_how_it_is_constructed() -> None:
    from folding.parts.listed import Listed  # type: ignore[import-not-found]

    recorder = SourceRecorder(frozenset({"folding"}), 100)
    with recorder:
        Listed({"Listed": (3, 5)})
    assert recorder.calls == {}
    recorder.forget()
    (record,) = recorder.calls["folding.parts.listed:Listed"]
    assert record.calls == {"init": {"args": ["{'Listed': (3, 5)}"], "kwargs": {}}}


@pytest.mark.usefixtures("package")
def test_tables_state_arguments_of_a_class_and_of_all() -> None:
    import folding.models as module
    from folding.models.listed import ListedNet  # type: ignore[import-not-found]

    module.DEFAULTS = {"plan": 1, "width": 2, "other": 3}
    module.ROWS = [("ListedNet", ["width"], {"width": 4, "unknown": 5}), ("Other", [], {"plan": 6})]
    tables = Tables(frozenset({"folding"}))
    assert tables.list_arguments(ListedNet) == [{"plan": 1, "width": 4}, {"width": 4}, {"plan": 1, "width": 2}]


def test_examples_of_a_docstring() -> None:
    def function() -> None:
        """Do nothing.

        >>> x = [
        ...     1]
        >>> x
        [1]
        """

    assert list_examples(function) == ["x = [\n    1]\nx\n"]


SUITE = """
import pytest
RAN = []
@pytest.fixture(scope="module")
def base():
    return 3
@pytest.fixture
def width(base):
    yield base * 2
@pytest.mark.parametrize("rate", [0.5, 0.0])
@pytest.mark.parametrize(("a", "b"), [pytest.param(1, 2, id="first"), (3, 4)])
def test_values(width, rate, a, b, *, c=9):
    RAN.append((width, rate, a, b, c))
def test_unknown(unknown):
    RAN.append("unknown")
@pytest.fixture(name="side", params=[5, 6, 7])
def _side(request, tmp_path):
    (tmp_path / "side").write_text(str(request.param))
    return request.param, request.getfixturevalue("base")
def test_sides(side, kind):
    RAN.append((*side, kind))
from nobody_has_this import measure
def test_absent():
    RAN.append("absent")
    measure(2)
    RAN.append("measured")
def test_expected():
    with pytest.raises(KeyError, match="x"):
        {}["x"]
    pytest.skip("enough")
    RAN.append("skipped")
@pytest.mark.parametrize("scale", [1, 2])
class TestAll:
    def setup_method(self):
        self.name = "set up"
    @pytest.fixture
    def own(self):
        return self.name
    def test_method(self, own, scale):
        RAN.append((own, scale))
        assert False
import torch
@pytest.fixture(scope="module")
def wide():
    return torch.zeros(4, 10000)
def test_values_are_read(wide):
    RAN.append((len(wide), "on meta" if wide.is_meta else "with values"))
    wide.sum().item()
"""


def test_tests_run_with_their_first_values_then_with_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    # Of the project itself, neither its options nor its plugins count.
    (tmp_path / "pyproject.toml").write_text(FILES["pyproject.toml"])
    suite = tmp_path / "folding_tests" / "inner"
    suite.mkdir(parents=True)
    (suite / "test_folding_suite.py").write_text(SUITE)
    kinds = "import pytest\nimport nobody_has_this\n@pytest.fixture\ndef kind():\n    return 'outer'\n"
    (suite.parent / "conftest.py").write_text(kinds)
    run_tests(tmp_path, "folding_tests/inner/test_folding_suite.py")
    first = [(6, 0.5, 1, 2, 9), (5, 3, "outer"), "absent", ("set up", 1), (4, "on meta"), (4, "with values")]
    others = [(6, 0.0, 1, 2, 9), (6, 3, "outer"), ("set up", 2), (6, 0.5, 3, 4, 9), (7, 3, "outer")]
    assert [*first, *others] == sys.modules["folding_tests.inner.test_folding_suite"].RAN
    # A `conftest.py` that fails costs its fixtures.
    (suite.parent / "conftest.py").write_text("1 / 0")
    sys.modules["folding_tests.inner.test_folding_suite"].RAN.clear()
    run_tests(tmp_path, "folding_tests/inner/test_folding_suite.py")
    assert [*first[:1], *first[2:]] == sys.modules["folding_tests.inner.test_folding_suite"].RAN[:5]


def test_an_extraction_itself_imports_no_torch() -> None:
    code = "import sys, extract.interface; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout == "False\n"
