"""What is seen of a network that runs: activations by name, multiply-adds, and calls that fail."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from curate.chat.recorder import recording

F = nn.functional
X = torch.linspace(-3, 3, 2 * 4 * 6 * 6).reshape(2, 4, 6, 6)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (nn.ReLU(inplace=True), "relu"),
        (nn.ReLU6(), "relu6"),
        (nn.Hardtanh(), "hardtanh"),
        (nn.Hardsigmoid(), "hardsigmoid"),
        (nn.Softplus(), "softplus"),
        (nn.LogSoftmax(1), "log_softmax"),
        (nn.Softmax2d(), "softmax"),
        (nn.Softmin(1), "softmin"),
        (nn.SELU(), "selu"),
        (nn.CELU(), "celu"),
        (nn.PReLU(), "prelu"),
        (nn.RReLU(), "rrelu"),
        (nn.Softsign(), "softsign"),
        (nn.Softshrink(), "softshrink"),
        (nn.Hardshrink(), "hardshrink"),
        (nn.Tanhshrink(), "tanhshrink"),
        (nn.LogSigmoid(), "log_sigmoid"),
        (nn.Threshold(0.1, 0.0), "threshold"),
        (nn.GLU(1), "glu"),
    ],
)
def test_an_activation_module_is_one_call_of_its_function(module: nn.Module, name: str) -> None:
    with recording() as recorder, torch.no_grad():
        nn.Sequential(module)(X.clone())
    assert recorder.functions == {name: 1}


class Calls(nn.Module):
    """Calls a function."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: F.relu6(x), "relu6"),
        (lambda x: F.selu_(x), "selu"),
        (lambda x: torch.relu_(x), "relu"),
        (lambda x: x.sigmoid_(), "sigmoid"),
        (lambda x: F.hardtanh(x, -2.0, 2.0), "hardtanh"),
        (lambda x: x.log_softmax(-1), "log_softmax"),
    ],
)
def test_functions_count_like_modules_in_place_or_not(
    function: Callable[[torch.Tensor], torch.Tensor], name: str
) -> None:
    with recording() as recorder:
        Calls(function)(X.clone())
    assert recorder.functions == {name: 1}


def test_attention_counts_its_four_projections() -> None:
    query, other = torch.rand(3, 5, 8), torch.rand(3, 7, 6)
    attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True)
    with recording() as recorder, torch.no_grad():
        attention(query, key=other, value=other)
    # queries and output 3 * 5 * 8 * 8 each, keys and values 3 * 7 * 6 * 8 each
    assert recorder.multiply_adds == 2 * 3 * 5 * 8 * 8 + 2 * 3 * 7 * 6 * 8


def test_attention_inside_a_composite_of_torch_is_counted() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with recording() as recorder, torch.no_grad():
        layer(torch.rand(2, 5, 8))
    assert recorder.multiply_adds == 2 * 5 * (4 * 8 * 8 + 2 * 8 * 16)


class Tries(nn.Module):
    """Goes on where its part fails."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(99, 2)
        self.last = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return torch.as_tensor(self.part(x))
        except RuntimeError:
            return torch.as_tensor(self.last(x))


def test_a_call_that_raises_gives_no_output() -> None:
    net = Tries()
    with recording() as recorder:
        net(X)
    assert recorder.output == "2x4x6x2"
    assert recorder.outputs == {id(net.last): "2x4x6x2"}
    assert recorder.called == {id(net): 0, id(net.part): 1, id(net.last): 2}
    assert recorder.multiply_adds == 2 * 4 * 6 * 2 * 6


def test_a_network_is_seen_after_an_outermost_call_that_raised() -> None:
    net = nn.Sequential(nn.Linear(6, 2))
    with recording() as recorder:
        with pytest.raises(RuntimeError):
            nn.Linear(99, 1)(X)
        net(X)
    assert recorder.root is net
    assert recorder.output == "2x4x6x2"


def test_nothing_is_recorded_afterwards() -> None:
    with recording() as recorder:
        nn.Linear(6, 2)(X)
    nn.ReLU()(X)
    assert recorder.output == "2x4x6x2"
    assert recorder.functions == {}
