"""What is seen of a network that runs: modules, multiply-adds, failing calls, and what is chance."""

import json
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import nn

from curate.chat.design import is_chance, result_line
from curate.chat.network import BestResult, Lab, NetworkFacts, best_results
from curate.chat.probe import recording
from curate.compute.runs import InputCase, RunRequest
from tests.builders.suites import table

CASE = InputCase((2, 3, 8, 8), (4,))
BUILT = "    def __init__(self, in_shape, out_shape, prm, device):\n        super().__init__()\n"
HEAD = f"import random\nimport torch\nimport torch.nn as nn\n\nclass Net(nn.Module):\n{BUILT}"

#: Draws how wide it is: 0 and 1 as seeds give 50 and 18.
DRAWN = f"""{HEAD}        self.head = nn.Linear(192, random.randint(1, 100))

    def forward(self, x):
        return self.head(x.flatten(1))
"""

#: Its parts are fixed, but how many boxes it gives and how often it decodes depends on weights and inputs.
DETECTS = f"""{HEAD}        self.stem = nn.Conv2d(3, 4, 1)
        self.pick = nn.Identity()

    def forward(self, x):
        scores = self.stem(x)
        return self.pick(torch.sigmoid(scores[scores > 0]))
"""

#: Its children are called in another order than they are defined, and in every way that there is.
PARTS = f"""{HEAD}        self.criterion = nn.CrossEntropyLoss()
        self.spare = nn.Linear(1, 1, bias=False)
        self.last = nn.Linear(4, 4)
        self.list = nn.ModuleList([nn.Conv2d(3, 4, 1)])
        self.broken = nn.Linear(99, 1)
        self.first = nn.ReLU()

    def forward(self, x):
        x = self.list[0](self.first(x))
        try:
            x = self.broken(x)
        except RuntimeError:
            pass
        return self.last(x.mean((2, 3)))
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    codes = {"drawn": DRAWN, "detects": DETECTS, "parts": PARTS}
    with Lab(jobs=1) as lab:
        found = lab.make([RunRequest(code, asdict(CASE), {}) for code in codes.values()], "tests")
    return dict(zip(codes, found, strict=True))


@pytest.fixture
def parts(answers: dict[str, Any]) -> NetworkFacts:
    return answers["parts"]


def test_a_drawn_architecture_is_not_measured(answers: dict[str, Any]) -> None:
    answer = answers["drawn"]
    assert (answer.runs, answer.category) == (False, "not_measured")
    assert answer.error.startswith("chance decides its parameters: 9650 with one seed, ")


def test_what_weights_and_inputs_decide_is_left_out(answers: dict[str, Any]) -> None:
    facts = answers["detects"]
    assert facts.parameters == 16
    assert facts.multiply_adds == 2 * 8 * 8 * 3 * 4, "the same with both seeds"
    assert facts.output is None


def test_layers_are_counted_without_losses(parts: NetworkFacts) -> None:
    assert parts.layers == {"Linear": 3, "Conv2d": 1, "ReLU": 1}


X = torch.linspace(-3, 3, 2 * 4 * 6 * 6).reshape(2, 4, 6, 6)


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
    assert recorder.multiply_adds == 2 * 4 * 6 * 2 * 6


def test_a_network_is_seen_after_an_outermost_call_that_raised_and_nothing_afterwards() -> None:
    net = nn.Sequential(nn.Linear(6, 2))
    with recording() as recorder:
        with pytest.raises(RuntimeError):
            nn.Linear(99, 1)(X)
        net(X)
    nn.ReLU()(X)
    assert recorder.root is net
    assert recorder.output == "2x4x6x2"


# Recorded results: whose trial gave them, and which of them a request may ask for.

Row = dict[str, Any]
OWN, OTHER = {"lr": 0.1, "transform": "norm_32", "batch": 64}, {"lr": 0.2, "transform": "norm_256_flip", "batch": 128}


def row(name: str, epoch: int, accuracy: float, prm: Row = OWN, dataset: str = "cifar-10") -> Row:
    code = f"class Net:\n    {name} = '{name}'\n"
    base = {"nn": name, "nn_code": code, "task": "img-classification", "dataset": dataset, "metric": "acc"}
    return base | {"epoch": epoch, "accuracy": accuracy, "prm": json.dumps(prm), "duration": 1.0}


def test_a_result_is_reached_by_trials_with_the_same_hyperparameters(curated: Any) -> None:
    # at one epoch the first is the best of two; at two it is the worst, with other hyperparameters
    rows = [
        row("one", 1, 0.6),
        row("one", 2, 0.7, OTHER),
        row("one", 1, 0.5),
        row("one", 1, 0.99, OWN, "mnist"),
        row("two", 1, 0.1),
        row("two", 2, 0.9),
    ]
    run = curated(rows)
    codes = [run.corpus.ids.index(id_) for id_ in dict.fromkeys(run.corpus.ids)]
    found = best_results(run.corpus, codes, [0, 5])
    one = BestResult("img-classification", "cifar-10", "acc", 0.6, 1, "norm_32", 64)
    two = BestResult("img-classification", "cifar-10", "acc", 0.9, 2, "norm_32", 64)
    assert found == [(one,), (two,)]


@table(__file__, "results.md", "A result in words", globals())
def test_a_result_in_words(best: BestResult, line: str) -> None:
    assert result_line(best) == line


@table(__file__, "results.md", "What guessing reaches", globals())
def test_what_guessing_reaches(dataset: str, metric: str, accuracy: float, chance: bool) -> None:
    assert is_chance(BestResult("img-classification", dataset, metric, accuracy, 1, None, None)) is chance
