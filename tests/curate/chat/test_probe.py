"""What is measured of a network that runs."""

from dataclasses import asdict
from typing import Any

import pytest

from curate.compute.runs import InputCase, RunRequest, open_box, read_answer
from curate.folder.chat import MEASURE, NetworkFacts

CASE = InputCase((2, 3, 8, 8), (4,))
BUILT = "    def __init__(self, in_shape, out_shape, prm, device):\n        super().__init__()\n"
HEAD = f"import random\nimport torch\nimport torch.nn as nn\n\nclass Net(nn.Module):\n{BUILT}"

#: Draws how wide it is: 0 and 1 as seeds give 50 and 18.
DRAWN = f"""{HEAD}        self.head = nn.Linear(192, random.randint(1, 100))

    def forward(self, x):
        return self.head(x.flatten(1))
"""

#: Its parts are fixed, but how many samples its second layer gets depends on weights and inputs.
DETECTS = f"""{HEAD}        self.stem = nn.Conv2d(3, 4, 1)
        self.pick = nn.Linear(1, 5)

    def forward(self, x):
        scores = self.stem(x)
        return self.pick(scores[scores > 0][:, None])
"""

#: Its parts are called in another order than they are defined, in every way that there is, one of them in vain.
PARTS = f"""{HEAD}        self.criterion = nn.CrossEntropyLoss()
        self.spare = nn.LazyLinear(1)
        self.last = nn.Linear(4, 4)
        self.again = self.last
        self.list = nn.ModuleList([nn.Sequential(nn.Conv2d(3, 4, 1)), Own()])
        self.broken = nn.Linear(99, 1).requires_grad_(False)
        self.first = nn.ReLU()
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        x = self.list[1](self.list[0](self.first(x)))
        try:
            x = self.broken(x)
        except RuntimeError:
            pass
        x = self.last(x.mean((2, 3)))
        return self.attend(x[None], x[None], x[None])[0][0]

    def learn(self, train_data):
        pass


class Own(nn.Module):
    def forward(self, x):
        return x @ x
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    codes = {"drawn": DRAWN, "detects": DETECTS, "parts": PARTS, "fails": "x = 1\n"}
    requests = {name: RunRequest(code, asdict(CASE), {}) for name, code in codes.items()}
    with open_box([MEASURE], jobs=1, unsafe=False) as box:
        return {reply.key: read_answer(reply) for reply in MEASURE.run(box, requests)}


def test_a_drawn_architecture_is_not_measured(answers: dict[str, Any]) -> None:
    answer = answers["drawn"]
    assert (answer.runs, answer.category) == (False, "not_measured")
    assert answer.error.startswith("chance decides its architecture: {'parameters': 9650, ")


def test_what_does_not_run_says_why(answers: dict[str, Any]) -> None:
    assert answers["fails"].fault == "no_net: the file defines no class Net"


def test_what_weights_and_inputs_decide_is_left_out(answers: dict[str, Any]) -> None:
    assert answers["detects"] == NetworkFacts(26, 26, 0, {"Conv2d": 1, "Linear": 1}, ())


def test_layers_parameters_and_multiply_adds(answers: dict[str, Any]) -> None:
    """Losses and own classes are no layers, a shared one is one; what only ran in vain is not counted as run."""
    facts = answers["parts"]
    assert facts.layers == {"Linear": 2, "Conv2d": 1, "LazyLinear": 1, "MultiheadAttention": 1, "ReLU": 1}
    assert facts.parameters == facts.trainable + 100 == (4 * 3 + 4) + 2 * (4 * 4 + 4) + (12 * 4 + 12) + 100
    attention = 4 * 2 * 4 * 4 + 2 * 2 * 2 * 2 * 2  # four projections; two products for each of two heads
    assert facts.multiply_adds == 2 * 64 * 4 * 3 + 2 * 4 * 8 * 8 * 8 + 2 * 4 * 4 + attention
    assert facts.methods == ("learn",)
