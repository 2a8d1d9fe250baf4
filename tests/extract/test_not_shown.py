"""What the run of a block did not show stands in its row, its spec, the report, and the call that is printed."""

import typing

import pytest
import torch

from extract import BlockLibrary, extract
from extract.arguments.observing import fits
from tests.builders.shown import show_block

SOURCE = """\
import typing as tp
import torch
from torch import nn
Pair = tp.Tuple[torch.Tensor, torch.Tensor]  # tokens, mask
Scaled = tp.Tuple[torch.Tensor, float]
class Unset(nn.Module):
    def __init__(self, width: int = 16):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.empty(width))
    def forward(self, x):
        return self.inner(x) * self.scale
class Same(nn.Module):
    def forward(self, x):
        return x
class Masked(nn.Module):
    def __init__(self, width: int = 16):
        super().__init__()
        self.inner = nn.Linear(width, width)
    def forward(self, x):
        return self.inner(x) * (x.abs().max() > 1e6)
class Frozen(nn.Module):
    def __init__(self, width: int = 16):
        super().__init__()
        self.inner = nn.Linear(width, width)
    def forward(self, x):
        if self.training:
            raise RuntimeError("train the head alone")
        return self.inner(x)
class Unpacks(nn.Module):
    def __init__(self, bins: int = 32, width: int = 16):
        super().__init__()
        self.embed = nn.Embedding(bins, width)
    def forward(self, inputs: Pair) -> Pair:
        tokens, mask = inputs
        return self.embed(tokens) * mask.unsqueeze(-1), mask
class UnpacksByAccident(nn.Module):
    def forward(self, inputs: Scaled) -> torch.Tensor:
        tokens, scale = inputs
        return tokens * scale
class Halves(nn.Module):
    def __init__(self, width: int = 16):
        super().__init__()
        self.inner = nn.Linear(width, width)
    def forward(self, x):
        low, high = torch.chunk(self.inner(x), 2, dim=1)
        return torch.stack((low, high), 2)
class Distances(nn.Module):
    def forward(self, x):
        return 1 / x + x.exp()
class Compresses(nn.Module):
    def forward(self, x, factor: int):
        return (x * 10).round() / 10 + x * factor
class Streams(nn.Module):
    # Of an input with three dimensions, the samples of `rest` are taken for tokens.
    def __init__(self, width: int = 16):
        super().__init__()
        self.inner = nn.Linear(width, width)
    def forward(self, x, rest):
        assert rest.dim() == 3 and x.shape[-1] == rest.shape[-1]
        mixed = self.inner(x)[:, None, :1] + rest
        return mixed.flatten(0, 1)
class Windows(nn.Module):
    def __init__(self, width: int = 16):
        super().__init__()
        self.inner = nn.Conv2d(width, width, 1)
    def forward(self, x):
        assert x.dim() == 4
        return self.inner(x).unflatten(1, (2, -1)).flatten(0, 1)
class Joined(nn.Module):
    def forward(self, x, threshold):
        return (x - threshold.mean(0)).relu()
class Steps(nn.Module):
    def forward(self, x, steps=None):
        if steps is None:
            return x.sigmoid()
        total = torch.zeros_like(x)
        for step in steps:
            total = total + step * x
        return total / len(steps)
class DropsRows(nn.Module):
    # It has a name of a graph, and takes something else.
    def __init__(self, rate: float = 0.5):
        super().__init__()
        self.drop = nn.Dropout(rate)
    def forward(self, x, batch=None):
        if not self.training:
            return x
        assert x.dim() == 3
        return x * self.drop(torch.ones_like(x[:, :1]))
class Noise(nn.Module):
    def forward(self, x):
        return torch.randn_like(x)
class Drops(nn.Module):
    def __init__(self, rate: float = 0.5):
        super().__init__()
        self.drop = nn.Dropout(rate)
    def forward(self, x):
        return self.drop(x)
"""
EXPECTED = {
    "Unset": "no code initializes these parameters: scale",
    "Same": "its output is its input",
    "Masked": "its output is the same for other inputs\nall gradients are zero",
    "Frozen": "train mode fails: RuntimeError: train the head alone",
    "Unpacks": None,
    "UnpacksByAccident": "a value does not fit its annotation: inputs: tuple for Tuple[Tensor, float]",
    "Halves": "no call shows how many dimensions are meant: with 2 or 4 it runs, too, and computes otherwise",
    "Distances": "its output grows without bound where its input nears zero",
    "Compresses": "no call shows which number is meant: factor",
    "Streams": "the output of a sample depends on the other samples",
    "Windows": None,
    "Joined": "the output of a sample depends on the other samples",
    "Steps": "most of its own code did not run: 2 of 6 statements",
    "DropsRows": None,
    "Noise": None,
    "Drops": None,
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> BlockLibrary:
    folder = tmp_path_factory.mktemp("source") / "layers"
    folder.mkdir()
    (folder / "layers.py").write_text(SOURCE)
    return extract(folder, out=folder.parent / "blocks", jobs=1)


def test_a_row_says_what_its_run_did_not_show(library: BlockLibrary) -> None:
    assert {block.name: block.row.not_shown for block in library} == EXPECTED
    assert {block.level for block in library if block.name != "Noise"} == {"backward"}
    kinds = {block.name: block.spec.not_shown for block in library if block.spec is not None}
    assert kinds == {
        name: tuple(line.partition(":")[0] for line in (text or "").splitlines()) for name, text in EXPECTED.items()
    }
    report = (library.folder / "report.md").read_text()
    assert "| not shown: all gradients are zero | 1 | 6.2 % |" in report
    assert "Pair = tp.Tuple[torch.Tensor, torch.Tensor]" in (library["Unpacks"].code or ""), "an alias stays"


def test_the_printed_call_fills_what_nobody_initializes(
    library: BlockLibrary, capsys: pytest.CaptureFixture[str]
) -> None:
    show_block(library.folder, "Unset")
    assert "for name in ['scale']: nn.init.normal_(attrgetter(name)(block), std=0.02)" in capsys.readouterr().out
    assert all(check.ok for check in library.verify(jobs=1)), "among them: printed calls run"


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (1, "float", True),
        (False, "Union[float, torch.Tensor]", False),
        (1.5, "int", False),
        (None, "Optional[int]", True),
        ("relu", "Union[str, Callable]", True),
        ((8, 8, 8), "Tuple[int, int]", False),
        ((8, 8, 8), "tuple[int, ...]", True),
        (torch.ones(2), "Sequence[torch.Tensor]", False),
        ([torch.ones(2)], "list[torch.Tensor]", True),
        (torch.nn.ModuleList(), "list[torch.nn.Module]", True),
        ({"a": 1}, "dict[str, int]", True),
        (torch.ones(2), "Literal['a']", True),
        (1, "T", True),
        ([8, 8], "List", True),
        ((), "Tuple[()]", True),
    ],
)
def test_which_values_fit(value: object, hint: str, expected: bool) -> None:
    assert fits(value, eval(hint, {**vars(typing), "torch": torch, "T": typing.TypeVar("T")})) is expected
