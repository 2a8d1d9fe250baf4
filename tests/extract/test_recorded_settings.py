"""Calls that are recorded in models that are built from settings, or from other models."""

import copy
import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from extract.arguments.values.inputs import RECORD
from extract.extractor import BlockExtractor
from extract.recording.configured import list_accepted, read_settings
from extract.recording.recorder import SourceRecorder
from tests.builders.suites import read_files

FILES = read_files(__file__, "recorded_settings.md", "Files")


def write(folder: Path) -> None:
    for path, text in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the sandbox needs Linux")
def test_parts_of_models_with_large_settings_run_with_small_ones(tmp_path: Path) -> None:
    write(tmp_path / "project")
    with BlockExtractor(sources=[str(tmp_path / "project")], level="forward", jobs=1) as extractor:
        names = ["Cell", "Reader", "Tagger", "Twice", "Part"]
        rows = {result.row.name: result.row for result in extractor.extract_multiple_blocks(names)}
    assert {name: row.level for name, row in rows.items()} == dict.fromkeys(names, "forward")
    # The small settings are a guess.
    assert {name: row.arguments_from for name, row in rows.items()} == {
        "Cell": "guessed above",
        "Reader": "search",
        "Tagger": "search",
        "Twice": "search",
        "Part": "guessed above",
    }
    settings = "Settings(hidden_size=32, num_layers=2, num_heads=4, vocab_size=128)"
    assert f'"{settings}", "0"' in (rows["Cell"].arguments or "")
    assert settings in (rows["Tagger"].arguments or "")
    assert "Settings(" in (rows["Part"].arguments or "")  # of two classes with this name, the annotated one
    assert "memory" not in (rows["Cell"].arguments or "")


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path)
    import reading.models as module  # type: ignore[import-not-found]

    yield module
    for name in [name for name in sys.modules if name.partition(".")[0] == "reading"]:
        del sys.modules[name]


@dataclasses.dataclass(slots=True)
class Batch:
    rows: dataclasses.InitVar[list[list[float]]]
    nodes: torch.Tensor = dataclasses.field(init=False)

    def __post_init__(self, rows: list[list[float]]) -> None:
        self.nodes = torch.tensor(rows)


def test_an_object_with_slots_is_recorded_by_its_tensors() -> None:
    batch = Batch([[1.0, 2.0]])
    assert read_settings(batch) is None  # its fields do not tell what it was made of
    assert (
        SourceRecorder(frozenset(), 9)._text(batch)
        == "types.SimpleNamespace(nodes=torch.randint(1, 3, (1, 2), dtype=torch.float32))"
    )


def test_which_parameters_take_what_can_be_made(models: ModuleType) -> None:
    assert list_accepted(models.Reader) == [("given", models.Settings)]  # annotated, as text
    assert list_accepted(models.Tagger) == [("settings", models.Settings)]  # by an attribute of the class
    assert list_accepted(models.Twice) == [("pooled", models.Pooled)]  # by its name
    assert list_accepted(models.Cell) == list_accepted(models.Pooled) == []
    space: dict[str, type] = {}
    exec("Generated = type('Generated', (), {})", space)
    models.Twice.pooled_kind = space["Generated"]
    list_accepted.cache_clear()
    assert list_accepted(models.Twice) == [("pooled", models.Pooled)]  # generated code may state no module


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    width: int
    depth: int = 2


@dataclasses.dataclass
class Empty:
    pass


def test_settings_of_dataclasses_with_slots_or_without_fields() -> None:
    assert read_settings(Slotted(16)) == {"width": 16, "depth": 2}
    assert read_settings(Empty()) == {}


def test_settings_are_written_without_defaults_and_what_has_no_expression_is_left_out(models: ModuleType) -> None:
    settings = models.Settings(hidden_size=8, num_heads=2, num_layers=1, vocab_size=10)
    settings.scale = 0.25
    torch.manual_seed(0)
    assert read_settings(models.Memory()) is None
    recorder = SourceRecorder(frozenset({"reading"}), 100)
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
    recorder = SourceRecorder(frozenset({__name__.partition(".")[0]}), 100)
    with recorder:
        copied = copy.deepcopy([Convolution(4), Convolution(6)])
        copied[1](Graph(x=torch.ones(2, 6), edge_index=torch.tensor([[0, 1], [1, 0]])))
    (call,) = recorder.calls[f"{__name__}:Convolution"]
    assert call.calls["init"] == {"args": ["6"], "kwargs": {}}
    names = "x=torch.randn((2, 6)), edge_index=torch.tensor([[0, 1], [1, 0]], dtype=torch.int64)"
    assert call.calls["forward"] == {"args": [f"{RECORD}({names})"], "kwargs": {}}


def test_tensors_keep_their_sign() -> None:
    recorder = SourceRecorder(frozenset({__name__.partition(".")[0]}), 100)
    torch.set_default_dtype(torch.float64)
    try:
        with recorder:
            Released(torch.Generator())(
                torch.randn(9, 4), torch.rand(9, 4), torch.tensor([0.0, 3.0]), torch.rand(2, dtype=torch.float16)
            )
    finally:
        torch.set_default_dtype(torch.float32)
    (call,) = recorder.calls[f"{__name__}:Released"]
    assert call.calls["init"]["args"] == ["torch.Generator().manual_seed(0)"]
    whole = "torch.randint(0, 4, (2,), dtype=torch.float32)"
    positive = ["torch.rand((9, 4))", whole, "torch.rand((2,), dtype=torch.float16)"]
    assert call.calls["forward"]["args"] == ["torch.randn((9, 4))", *positive]


class Released(torch.nn.Module):
    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return inputs[0]
