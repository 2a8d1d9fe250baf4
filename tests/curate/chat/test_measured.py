"""What the sandbox tells of networks that leave something to chance, and of their top-level modules."""

import pytest

from curate.chat.lab import Answer, Experiment, Lab
from curate.chat.network import Facts, read_facts
from curate.chat.verbalization import stage_lines
from curate.runs.contract import Case

CASE = Case((2, 3, 8, 8), (4,))
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
def answers() -> dict[str, Answer]:
    codes = {"drawn": DRAWN, "detects": DETECTS, "parts": PARTS}
    with Lab(jobs=1) as lab:
        told = lab.make([Experiment(code, CASE, {}) for code in codes.values()], "tests")
    return dict(zip(codes, told, strict=True))


@pytest.fixture
def parts(answers: dict[str, Answer]) -> Facts:
    return read_facts(answers["parts"])


def test_a_drawn_architecture_is_not_measured(answers: dict[str, Answer]) -> None:
    told = answers["drawn"]
    assert (told["runs"], told["category"]) == (False, "not_measured")
    assert told["error"].startswith("chance decides its parameters: 9650 with one seed, ")


def test_what_weights_and_inputs_decide_is_left_out(answers: dict[str, Answer]) -> None:
    facts = read_facts(answers["detects"])
    assert facts.parameters == 16
    assert facts.multiply_adds == 2 * 8 * 8 * 3 * 4, "the same with both seeds"
    assert facts.output is None
    assert stage_lines(facts) == [
        "- `stem` (Conv2d): 16 parameters, gives 2x4x8x8",
        "- `pick` (Identity): no parameters, called in the forward pass; the size of its output depends on weights and"
        " inputs",
    ]


def test_children_stand_in_the_order_of_their_calls_without_losses(parts: Facts) -> None:
    assert stage_lines(parts) == [
        "- `first` (ReLU): no parameters, gives 2x3x8x8",
        "- `list` (ModuleList): 16 parameters, not called itself in the forward pass; modules in it are",
        "- `broken` (Linear): 100 parameters, fails in the forward pass",
        "- `last` (Linear): 20 parameters, gives 2x4",
        "- `spare` (Linear): 1 parameter, not called as a module in the forward pass",
    ]
    assert parts.layers == {"Linear": 3, "Conv2d": 1, "ReLU": 1}
