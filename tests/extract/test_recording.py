"""Calls that are recorded while the models of a source run: what is run, which expressions give the values again."""

import contextlib
import copy
import dataclasses
import enum
import functools
import importlib
import os
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from extract.arguments.hints import HintFinder
from extract.arguments.messages import RECORD
from extract.extractor import BlockExtractor
from extract.recording.definitions import list_accepted, list_stored, read_settings
from extract.recording.meta import LargeModelError, LightTensors
from extract.recording.recorder import RecordedCall, SourceRecorder
from extract.recording.source import find_origin
from extract.recording.source import list_examples as list_documented
from extract.recording.source_guest import list_examples, run_models, spread
from extract.recording.testing import find_absent, run_tests
from extract.sources import open_source
from tests.builders.suites import read_files, write_files

TEXTS = read_files(__file__, "recording.md", "Texts")
FOLDING = read_files(__file__, "recording.md", "A project that shows its arguments in every way")
READING = read_files(__file__, "recording.md", "Models that are built from settings")
#: Of the project `folding`, the inputs of its models: a part's arguments nobody guesses, the text says who passes them.
WIDTHS = {"Listed": 21, "Made": 23, "Shown": 27, "Proven": 29, "Checked": 31}


def write_folding(folder: Path) -> None:
    files = dict(FOLDING)
    for name, width in (*WIDTHS.items(), ("Stated", 33)):
        part = name.lower()
        files[f"folding/parts/{part}.py"] = TEXTS["PART"].format(name=name)
        files[f"folding/models/{part}.py"] = TEXTS["MODEL"].format(name=name, part=part, width=width)
    write_files(folder, files)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(tmp_path))
    write_folding(tmp_path)
    write_files(tmp_path, READING)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("folding", "reading")]:
        del sys.modules[name]


@pytest.fixture
def models(package: None) -> types.ModuleType:
    return importlib.import_module("reading.models")


@pytest.fixture
def recorder() -> SourceRecorder:
    return make_recorder()


def make_recorder(package: str = __name__.partition(".")[0], **options: Any) -> SourceRecorder:
    return SourceRecorder(frozenset({package}), 100, **options)


def list_calls(recorder: SourceRecorder, cls: type) -> list[dict[str, Any]]:
    return [record.calls for record in recorder.calls.get(f"{cls.__module__}:{cls.__name__}", ())]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the sandbox needs Linux")
def test_models_factories_examples_and_tests_show_true_arguments(tmp_path: Path) -> None:
    write_folding(tmp_path / "folding_project")
    package = tmp_path / "folding_project" / "folding"
    with (package / "__init__.py").open("a") as file:
        file.write(TEXTS["IMPORTS"])
    torch.save({"a": torch.ones(2)}, package / "table.pt")
    write_files(tmp_path / "reading_project", READING)
    expected = dict.fromkeys((*WIDTHS, "Detector", "Both", "Inner"), ("forward", "recorded"))
    # The small settings are a guess.
    expected |= dict.fromkeys(("Cell", "Part"), ("forward", "guessed above"))
    expected |= dict.fromkeys(("Reader", "Tagger", "Twice"), ("forward", "search"))
    sources = [str(tmp_path / f"{name}_project") for name in ("folding", "reading")]
    with BlockExtractor(sources=sources, level="forward", jobs=1) as extractor:
        rows = {result.row.name: result.row for result in extractor.extract_multiple_blocks([*expected])}
        assert extractor.facts.notes == []
    assert {name: (row.level, row.arguments_from) for name, row in rows.items()} == expected
    texts = {name: row.arguments or "" for name, row in rows.items()}
    assert all(f"'{name}': (3, 5)" in texts[name] for name in WIDTHS)
    # `Pyramid` checks the class of its part, and a registry finds `Scaled` by a string.
    assert "Pyramid(Last(8))" in texts["Detector"]
    assert "MODELS.register_module('Scaled', module=Scaled)" in (rows["Both"].code or "")
    settings = "Settings(hidden_size=32, num_layers=2, num_heads=4, vocab_size=128)"
    assert f'"{settings}", "0"' in texts["Cell"]
    assert "memory" not in texts["Cell"]
    assert settings in texts["Tagger"]
    assert "Settings(" in texts["Part"]  # of two classes with this name, the annotated one
    assert '["20"]' in texts["Inner"]  # from a function with its defaults, after whose model no guess is wanted
    # What else is extracted does not matter.
    with BlockExtractor(sources=sources[:1], level="forward", jobs=1) as extractor:
        row = extractor.extract_single_block("Made").row
    assert (row.arguments, row.arguments_from) == (rows["Made"].arguments, "recorded")
    assert (row.graph, row.lean_error) == (None, "only `--level backward` minimizes")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the sandbox needs Linux")
def test_tests_that_name_what_makes_a_class_show_it_alone_and_among_others_in_a_monorepo(tmp_path: Path) -> None:
    code = (
        "from torch import nn\nclass Part(nn.Module):\n    def __init__(self, width):\n        super().__init__()\n"
        "        self.layer = nn.Linear(width, 2)\n    def forward(self, x):\n        return self.layer(x)\n"
        "class Model(Part):\n    def __init__(self, settings):\n        super().__init__(settings.NET['OUT'])\n"
        "        self.part = Part(settings.NET.WIDTH)\n    def forward(self, x):\n        return self.part(x)\n"
    )
    files = {"parts": code, "make": "def make(*args):\n    from .parts import Model\n    return Model(*args)\n"}
    files |= {
        "__init__": "from vis import make, parts\n",
        "other": code.replace("Part", "Other")[: code.index("class M")],
    }
    write_files(tmp_path, {f"packages/vision/src/vis/{name}.py": text for name, text in files.items()})
    test = "from vis import make\nfrom torch import ones\nclass Node(dict):\n    __getattr__ = dict.__getitem__\n"
    test += "def test():\n    make.make(Node(NET=Node(WIDTH=21, OUT=3)))(ones(4, 21))\n"
    write_files(tmp_path, {"tests/test_make.py": test + "def test_other():\n    from vis.other import Other\n"})
    shown = {}
    for names in (["Part"], ["Part", "Model", "Other"]):
        with BlockExtractor(sources=[str(tmp_path)], level="forward", jobs=1) as extractor:
            rows = {result.row.name: result.row for result in extractor.extract_multiple_blocks(names)}
            assert extractor.facts.notes == []
        shown |= {(name, len(names)): (row.level, row.arguments_from, row.arguments) for name, row in rows.items()}
    assert shown["Part", 1] == shown["Part", 3]
    assert shown["Part", 1][:2] == shown["Model", 3][:2] == ("forward", "recorded")
    assert f"{RECORD}({{'NET': {{'WIDTH': 21, 'OUT': 3}}}})" in (shown["Model", 3][2] or "")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the sandbox needs Linux")
def test_a_source_that_cannot_be_imported_shows_nothing_and_says_so(tmp_path: Path) -> None:
    write_folding(tmp_path / "project")
    (tmp_path / "project" / "folding" / "__init__.py").write_text("raise RuntimeError('not today')\n")
    with BlockExtractor(sources=[str(tmp_path / "project")], level="forward", jobs=1) as extractor:
        rows = {r.row.name: r.row.level for r in extractor.extract_multiple_blocks(["Listed", "Made", "Shown"])}
        notes = extractor.facts.notes
    # A call in the corpus shows how `Made` is constructed, and nothing how it is called.
    assert rows == {"Listed": "executed", "Made": "constructed", "Shown": "executed"}
    assert notes == ["project: its own models were not run: RuntimeError: not today"]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the sandbox needs Linux")
def test_nothing_is_searched_for_blocks_that_are_only_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hints read every file of the source; a run that constructs nothing does without them."""
    (tmp_path / "parts.py").write_text(TEXTS["PART"].format(name="Fold"))
    monkeypatch.setattr(HintFinder, "hints_for", lambda *_: pytest.fail("hints were searched for"))
    with BlockExtractor(sources=[str(tmp_path)], level="executed", jobs=1) as extractor:
        (result,) = extractor.extract_multiple_blocks(["Fold"])
    assert result.row.level == "executed"


def test_drivers_of_one_module_are_tried_from_all_its_parts() -> None:
    assert spread(range(8)) == [0, 4, 2, 6, 1, 5, 3, 7]
    assert [sorted(spread(range(count))) for count in range(9)] == [list(range(count)) for count in range(9)]


def test_a_package_whose_compiled_parts_cannot_be_loaded_counts_as_absent() -> None:
    for error in (
        ImportError("numpy.core.multiarray failed to import"),
        ImportError("Could not find module '_version_cpu'"),
        OSError("operators.so: undefined symbol: _ZN2at4_ops"),
    ):
        with pytest.raises((ImportError, OSError)) as caught:
            exec(compile("raise error", "scattering.py", "exec"), {"__name__": "scattering", "error": error})
        assert find_absent(caught.value) == "scattering"
    assert find_absent(ImportError("_ops.so: undefined symbol: _ZN", name="folding._ops")) == "folding._ops"
    assert find_absent(ImportError("something else")) is None


def test_examples_of_a_readme(tmp_path: Path) -> None:
    write_folding(tmp_path)
    with (tmp_path / "README.md").open("a") as file:
        file.write("\n```pycon\n>>> x = 1\n>>> x\n1\n```\n\n```sh\nrm x\n```\n")
    documents = tmp_path / "documents"
    (documents / "guide").mkdir(parents=True)
    text = "Use\n\n.. code-block:: python\n   :linenos:\n\n   y = 2\n   z = [\n      y]\n\nThen rest.\n"
    (documents / "guide" / "use.rst").write_text(text)
    source = open_source(str(tmp_path))
    assert list_documented(source, documents, ()) == ["y = 2\nz = [\n   y]\n"]
    _denied, _waits, shown, typed, documented = list_documented(source, None, [tmp_path])
    assert documented == "y = 2\nz = [\n   y]\n"
    assert shown.startswith("import torch\nfrom folding.models.shown")
    assert typed == "x = 1\nx"


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
        assert torch.randint(3, 4, (2,)).tolist() == torch.randint(3, 4, size=(2,)).tolist() == [3, 3]
        assert nn.Linear(8, 8)(torch.randn(2, 8)).nonzero().shape == (16, 2)
        assert torch.randn(2).new_empty(3, 5).shape == (3, 5)
        large = (torch.randint(9, (2**20,)), torch.randn(2).new_empty((2**20,)), nn.Linear(2**10, 2**10).weight)
        assert all(tensor.is_meta for tensor in large)
        wide = torch.randn(2, 8, 64, 64)
        for layer in (nn.BatchNorm2d(8), nn.GroupNorm(4, 8), nn.LayerNorm(64)):
            assert (layer(wide).is_meta, layer(wide).shape) == (True, wide.shape)
        for layer in (nn.BatchNorm2d(6), nn.GroupNorm(3, 6), nn.LayerNorm(8)):
            with pytest.raises((RuntimeError, ValueError)):
                layer(wide)
    with LightTensors(on_meta=False):
        assert not torch.randn(3, device="cuda").is_meta
    with LightTensors(on_meta=False), torch.no_grad():
        nn.Linear(20, 20)
        with pytest.raises(LargeModelError, match="too large"):
            nn.Linear(2000, 2100)


def test_containers_that_refuse_to_be_read_are_read_as_they_are_stored() -> None:
    class Refusing(tuple[Any, ...]):  # such as the representations of a group: their numbers are no sizes
        __len__ = __iter__ = None  # type: ignore[assignment]

    assert list_stored(Refusing((1, 2))) == [1, 2]
    assert list_stored(OrderedDict(a=3)) == [3]
    assert list_stored(types.MappingProxyType({"a": 4})) == [4]


@pytest.mark.usefixtures("package")
def test_a_class_that_is_never_called_shows_how_it_is_constructed() -> None:
    from folding.parts.listed import Listed

    recorder = make_recorder("folding")
    with recorder:
        Listed({"Listed": (3, 5)})
    assert recorder.calls == {}
    recorder.forget()
    (record,) = recorder.calls["folding.parts.listed:Listed"]
    assert record.calls == {"init": {"args": ["{'Listed': (3, 5)}"], "kwargs": {}}}


def test_examples_of_a_docstring() -> None:
    def function() -> None:
        """Do nothing.

        >>> x = [
        ...     1]
        >>> x
        [1]
        """

    assert list_examples(function) == ["x = [\n    1]\nx\n"]


def test_tests_run_with_their_first_values_then_with_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    # Of the project itself, neither its options nor its plugins count.
    (tmp_path / "pyproject.toml").write_text(FOLDING["pyproject.toml"])
    suite = tmp_path / "folding_tests" / "inner"
    suite.mkdir(parents=True)
    (suite / "test_folding_suite.py").write_text(TEXTS["SUITE"])
    kinds = "import pytest\nimport nobody_has_this\n@pytest.fixture\ndef kind():\n    return 'outer'\n"
    (suite.parent / "conftest.py").write_text(kinds)
    run_tests(tmp_path, "folding_tests/inner/test_folding_suite.py")
    first = [(6, 0.5, 1, 2, 9), (5, 3, "outer"), "absent", ("set up", 1), (4, "on meta"), (4, "with values")]
    others = [(6, 0.0, 1, 2, 9), (6, 3, "outer"), ("set up", 2), (6, 0.5, 3, 4, 9), (7, 3, "outer")]
    assert [*first, *others] == sys.modules["folding_tests.inner.test_folding_suite"].RAN
    # Of many values four are passed, and all that are classes.
    assert sys.modules["folding_tests.inner.test_folding_suite"].KINDS == [1, 2, 3, 4, 0, 0.0]
    # A `conftest.py` that fails costs its fixtures.
    (suite.parent / "conftest.py").write_text("1 / 0")
    sys.modules["folding_tests.inner.test_folding_suite"].RAN.clear()
    run_tests(tmp_path, "folding_tests/inner/test_folding_suite.py")
    assert [*first[:1], *first[2:]] == sys.modules["folding_tests.inner.test_folding_suite"].RAN[:5]


@pytest.mark.parametrize(
    ("ways", "origin"),
    [
        (["guessed above", "recorded"], "recorded"),
        (["guessed above", "call"], "call site"),
        (["guessed above", "search"], "guessed above"),
        (["search"], "search"),
    ],
)
def test_where_arguments_are_from(ways: list[str], origin: str) -> None:
    hints = {"init": [{"args": ["8"], "kwargs": [], "way": way} for way in ways]}
    assert find_origin('{"init": {"args": ["8"], "kwargs": {}}}', hints) == origin


class Mode(enum.Enum):
    FAST = "fast"


class Pair(NamedTuple):
    first: int
    second: int


@dataclasses.dataclass
class Settings:
    width: int = 8
    act: type = nn.SiLU


class Taker(nn.Module):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.zeros(1)


class Constant(int): ...


class Node(dict[str, Any]):
    __getattr__ = dict.__getitem__


#: Values, and the expressions that they become.
VALUES: list[tuple[object, str]] = [
    (None, "None"),
    (0.5, "0.5"),
    (float("inf"), "float('inf')"),
    ((3,), "(3,)"),
    ([1, (2, "x")], "[1, (2, 'x')]"),
    ({"a": 1}, "{'a': 1}"),
    (Node(a=Node(b=[Node(c=1)])), f"{RECORD}({{'a': {{'b': [{RECORD}({{'c': 1}})]}}}})"),
    (OrderedDict(items=1), "{'items': 1}"),
    (nn.GELU, "nn.GELU"),
    (nn.functional.gelu, "F.gelu"),
    (torch.relu, "torch.relu"),
    (functools.partial(nn.LayerNorm, eps=1e-6), "functools.partial(nn.LayerNorm, eps=1e-06)"),
    (Mode.FAST, "Mode.FAST"),
    (Pair(1, 2), "Pair(1, 2)"),
    (Settings(4), "Settings(width=4)"),
    (types.SimpleNamespace(a=1), "types.SimpleNamespace(a=1)"),
    (torch.Size((2, 3)), "(2, 3)"),
    (torch.float16, "torch.float16"),
    (np.array([1.5, float("nan")]), "np.array([1.5, float('nan')], dtype='float64')"),
    (Constant(2), "2"),
    (torch.zeros(2, 3), "torch.randn((2, 3))"),
    (torch.zeros(2, dtype=torch.float64), "torch.randn((2,), dtype=torch.float64)"),
    (torch.rand(9, 4), "torch.rand((9, 4))"),
    (torch.rand(2, dtype=torch.float16), "torch.rand((2,), dtype=torch.float16)"),
    (torch.tensor([0.0, 3.0]), "torch.randint(0, 4, (2,), dtype=torch.float32)"),
    (torch.Generator(), "torch.Generator().manual_seed(0)"),
    (torch.tensor([[4, 5]]), "torch.tensor([[4, 5]], dtype=torch.int64)"),
    (torch.arange(3, 23), "torch.randint(3, 23, (20,), dtype=torch.int64)"),
    (torch.ones(2, dtype=torch.bool), "torch.ones((2,), dtype=torch.bool)"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "text"), VALUES, ids=[text for _, text in VALUES])
def test_expressions(recorder: SourceRecorder, value: object, text: str) -> None:
    with recorder:
        Taker(value, named=value)(value)
    (call,) = list_calls(recorder, Taker)
    assert call == {"init": {"args": [text], "kwargs": {"named": text}}, "forward": {"args": [text], "kwargs": {}}}
    again = eval(text, globals() | {"F": nn.functional})
    if isinstance(value, torch.Tensor):
        assert (again.shape, again.dtype) == (value.shape, value.dtype)
    elif isinstance(value, np.ndarray):
        np.testing.assert_array_equal(again, value)
    elif not isinstance(value, functools.partial | torch.Generator):
        assert again == value


@pytest.mark.parametrize("value", [object(), lambda x: x, torch.eye(2).to_sparse(), "x" * 20_000])
def test_what_has_no_expression_is_not_recorded(recorder: SourceRecorder, value: object) -> None:
    with recorder:
        Taker(value)(torch.ones(1))
        Taker()(value)
    assert recorder.calls == {}


class Gate(nn.Module):
    def __init__(self, dim: int, rate: float = 0.5, act: object = None) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor, mask: object = None, scale: int = 1) -> torch.Tensor:
        return x


def test_calls_of_wanted_classes_alone_are_kept_and_models_without_them_are_not_called() -> None:
    recorder = make_recorder(wanted={f"{__name__}:Gate"})
    ran: list[str] = []

    class Net(nn.Module):
        def __init__(self, part: nn.Module) -> None:
            super().__init__()
            self.part = part

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ran.append(type(self.part).__name__)
            return self.part(x)  # type: ignore[no-any-return]

    with recorder:
        for part in (Taker, lambda: Gate(8)):
            run_models([lambda part=part: Net(part())], True, lambda: recorder.holds([Gate]))
    assert set(ran) == {"Gate"}
    assert [*recorder.calls] == [f"{__name__}:Gate"]


def test_defaults_by_name_are_left_out(recorder: SourceRecorder) -> None:
    with recorder:
        Gate(8, rate=0.5, act=None)(torch.ones(2), mask=None, scale=2)
        Gate(8, rate=0, act=1)(torch.ones(2), scale=True)  # equal, but of another type
    first, second = list_calls(recorder, Gate)
    assert (first["init"]["kwargs"], first["forward"]["kwargs"]) == ({}, {"scale": "2"})
    assert (second["init"]["kwargs"], second["forward"]["kwargs"]) == ({"rate": "0", "act": "1"}, {"scale": "True"})


class Hub(Gate):
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(cls)


def test_arguments_that_new_does_not_pass_on_are_not_known(recorder: SourceRecorder) -> None:
    with recorder:
        Hub(8)(torch.ones(2))
    assert list_calls(recorder, Hub) == []


def test_only_calls_that_return_and_few_of_a_kind(recorder: SourceRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    call = nn.Module.__call__
    with recorder:
        for size in (1, 1, 2, 3, 4):
            Taker(size)(1)
        monkeypatch.setattr(Taker, "forward", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Taker(5)()
    assert [item["init"]["args"] for item in list_calls(recorder, Taker)] == [["1"], ["2"], ["3"]]
    assert nn.Module.__call__ == call
    nn.Linear(2, 2)(torch.ones(2))
    assert len(list_calls(recorder, Taker)) == 3


def test_classes_that_state_no_module_are_passed() -> None:
    space: dict[str, Any] = {"nn": nn}  # without a `__name__`, as of generated code
    exec("Made = type('Made', (nn.Sequential,), {})", space)
    recorder = make_recorder("net")
    with recorder:
        space["Made"]()(torch.ones(1))
    recorder.forget()
    assert recorder.calls == {}


class Scorer(nn.Module):
    def __init__(self, part: nn.Module, width: int = 1) -> None:
        super().__init__()
        self.part, self.width = part, width

    def forward(self, x: torch.Tensor, scale: int = 1) -> torch.Tensor:
        return self.part(x) / scale  # type: ignore[no-any-return]


class PlainScorer(Scorer):
    pass


class WideScorer(Scorer):
    def __init__(self, width: int) -> None:
        super().__init__(nn.ReLU(), width=width)


class OtherScorer(WideScorer):
    def forward(self, x: torch.Tensor, scale: int = 1) -> torch.Tensor:
        return x


class Outer(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor, scale: Any) -> torch.Tensor:
        return self.part(x, scale)  # type: ignore[no-any-return]


def record_scorers(calls: Callable[[], object]) -> list[tuple[dict[str, Any], list[str], bool]]:
    recorder = make_recorder(bases=[Scorer])
    init = Scorer.__init__
    with recorder:
        calls()
    assert Scorer.__init__ is init
    recorder.forget()
    records = recorder.calls.get(f"{__name__}:Scorer", [])
    return [(r.calls["init"], r.calls.get("forward", {"args": []})["args"], r.worked) for r in records]


def test_calls_of_subclasses_are_those_of_their_base_if_its_forward_runs() -> None:
    for make, kwargs in ((lambda: PlainScorer(nn.ReLU()), {}), (lambda: WideScorer(4), {"width": "4"})):
        recorded = record_scorers(lambda make=make: make()(torch.ones(1)))
        assert recorded == [({"args": ["nn.ReLU()"], "kwargs": kwargs}, ["torch.randn((1,))"], True)]
    assert record_scorers(lambda: OtherScorer(4)(torch.ones(1))) == []


def test_inner_calls_that_fail_come_after_those_that_work() -> None:
    """They may lack what a block has: a compiled operator, or values. An outer one may be a guess."""
    init = {"args": ["nn.Linear(1, 1)"], "kwargs": {}}

    def call(outer: bool, *scales: int) -> None:
        scorer = Scorer(nn.Linear(1, 1))
        for scale in scales:
            with contextlib.suppress(TypeError):
                (Outer(scorer) if outer else scorer)(torch.ones(1), scale or [])

    assert [worked for _, _, worked in record_scorers(lambda: call(True, 0, 0))] == [False]
    both = record_scorers(lambda: call(True, 0, 2))
    assert both == [(init, ["torch.randn((1,))", "2"], True), (init, ["torch.randn((1,))", "[]"], False)]
    assert record_scorers(lambda: call(False, 0)) == [(init, [], True)]


def test_containers_that_are_filled_later_are_written_with_what_they_hold(recorder: SourceRecorder) -> None:
    with recorder:
        for kind in (nn.ModuleList, nn.Sequential):
            layers: Any = kind()
            layers.append(nn.ReLU())
            Taker(layers)(torch.ones(1))
    texts = [call["init"]["args"] for call in list_calls(recorder, Taker)]
    assert texts == [["nn.ModuleList([nn.ReLU()])"], ["nn.Sequential(nn.ReLU())"]]


def test_calls_nearest_to_the_defaults_go_before_smaller_ones() -> None:
    recorder = make_recorder("net")
    for size, settings in ((1, {"apply_act": "False"}), (3, {}), (2, {"groups": "1"})):
        recorder.keep("net:Norm", RecordedCall({"init": {"args": ["64"], "kwargs": settings}}, {}, size))
    assert [call.size for call in recorder.calls["net:Norm"]] == [3, 1, 2]


def test_an_object_with_slots_is_recorded_by_its_tensors() -> None:
    kept = ("nodes", torch.Tensor, dataclasses.field(init=False))
    batch = dataclasses.make_dataclass("Batch", [("rows", dataclasses.InitVar[object]), kept], slots=True)(0)
    batch.nodes = torch.tensor([[1.0, 2.0]])
    assert read_settings(batch) is None  # its fields do not tell what it was made of
    description = SourceRecorder(frozenset(), 9).describe([batch], {}, None)
    assert description is not None
    assert description.call["args"] == ["types.SimpleNamespace(nodes=torch.randint(1, 3, (1, 2), dtype=torch.float32))"]


def test_a_kind_of_generated_code_that_states_no_module_is_passed(models: types.ModuleType) -> None:
    space: dict[str, type] = {}
    exec("Generated = type('Generated', (), {})", space)
    models.Twice.pooled_kind = space["Generated"]
    assert list_accepted(models.Twice) == [("pooled", models.Pooled)]


def test_settings_of_dataclasses_with_slots_or_without_fields() -> None:
    slotted = dataclasses.make_dataclass("Slotted", [("width", int), ("depth", int, 2)], frozen=True, slots=True)
    assert read_settings(slotted(16)) == {"width": 16, "depth": 2}
    assert read_settings(dataclasses.make_dataclass("Empty", [])()) == {}


def test_settings_are_written_without_defaults_and_what_has_no_expression_is_left_out(models: types.ModuleType) -> None:
    settings = models.Settings(hidden_size=8, num_heads=2, num_layers=1, vocab_size=10)
    settings.scale = 0.25
    torch.manual_seed(0)
    assert read_settings(models.Memory()) is None
    recorder = make_recorder("reading")
    with recorder:
        models.Reader(settings)(torch.zeros((2, 3), dtype=torch.int64))
    (call,) = recorder.calls["reading.models:Cell"]
    text = "Settings(hidden_size=8, num_layers=1, num_heads=2, vocab_size=10, scale=0.25)"
    assert call.calls["init"] == {"args": [text, "0"], "kwargs": {}}
    pair = "(torch.randn((3, 2)), torch.randn((3, 2)))"
    assert call.calls["forward"] == {"args": ["torch.randn((2, 3, 8))", pair], "kwargs": {}}
    assert call.names == {"Settings": "reading.settings"}


class Graph:
    """Items by name, and no attribute that tells how it was made."""

    def __init__(self, **stored: object) -> None:
        self.stored = {**stored, "made by": "hand", "origin": object()}

    def keys(self) -> list[str]:
        return list(self.stored)

    def __getitem__(self, name: str) -> object:
        return self.stored[name]


class Convolution(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(width, width)

    def forward(self, graph: Graph) -> torch.Tensor:
        return self.layer(graph["x"])  # type: ignore[no-any-return]


def test_a_copy_was_made_as_what_it_is_copied_from_and_a_batch_is_written_by_its_names() -> None:
    recorder = make_recorder()
    with recorder:
        copied = copy.deepcopy([Convolution(4), Convolution(6)])
        copied[1](Graph(x=torch.ones(2, 6), edge_index=torch.tensor([[0, 1], [1, 0]])))
    (call,) = recorder.calls[f"{__name__}:Convolution"]
    assert call.calls["init"] == {"args": ["6"], "kwargs": {}}
    names = "x=torch.randn((2, 6)), edge_index=torch.tensor([[0, 1], [1, 0]], dtype=torch.int64)"
    assert call.calls["forward"] == {"args": [f"{RECORD}({names})"], "kwargs": {}}


def test_the_default_type_of_a_test_is_that_of_a_block(recorder: SourceRecorder) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with recorder:
            Taker()(torch.rand(9, 4))
    finally:
        torch.set_default_dtype(torch.float32)
    assert list_calls(recorder, Taker)[0]["forward"]["args"] == ["torch.rand((9, 4))"]
