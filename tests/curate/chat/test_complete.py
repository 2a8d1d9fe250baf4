"""Which part of a file is asked for, and what the request tells so that it can be answered."""

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from curate.chat.change import change_all
from curate.chat.complete import completions
from curate.chat.conversation import No, Talk
from curate.chat.design import design
from curate.chat.explain import explain
from curate.chat.facts import Child, Facts
from curate.chat.lab import Lab
from curate.chat.reading import read_code
from curate.chat.repair import repairs
from curate.chat.subject import Subject
from curate.chat.text import Source, fenced_codes
from curate.chat.wording import BLOCK_SYSTEMS, SYSTEMS, output_of
from curate.runs.contract import Case
from manifests.conversations.draw import Draw

FACTS: Any = {
    "buffers": 0,
    "trainable": 650,
    "multiply_adds": 0,
    "attention": False,
    "output": "2x10",
    "own": {},
    "functions": {},
    "dropout": (),
    "optimizers": (),
    "losses": (),
    "setup_error": None,
    "children": (Child("head", "Linear", 650, "called", "2x10"),),
}
MEASURED = Facts(parameters=650, layers={"Linear": 1}, **FACTS)

INIT = "        super().__init__()\n        size = 64\n        self.head = nn.Linear(size, 10)\n"
FORWARD = "        x = x.mean((2, 1))\n        x = self.head(x)\n        return x\n"


def file(init: str = INIT, forward: str = FORWARD, name: str = "Net", more: str = "") -> str:
    head = f"class {name}(nn.Module):\n    def __init__(self, in_shape, out_shape, prm, device):\n{init}"
    return f"{head}\n    def forward(self, x):\n{forward}{more}"


def subject(code: str, split: str = "train", facts: Facts | None = MEASURED) -> Subject:
    source = Source(code)
    return Subject(
        id=hashlib.sha256(code.encode()).hexdigest(),
        nn="net",
        split=split,
        source=source,
        reading=read_code(source),
        task="img-classification",
        dataset="cifar-10",
        pretrained=False,
        prm={"lr": 0.1},
        case=Case((2, 3, 8, 8), (10,)),
        facts=facts,
        fault="",
        results=(),
        reached=(),
    )


def complete(*subjects: Subject) -> list[Talk | No]:
    return completions(subjects, [Draw(1, item.id, "complete") for item in subjects])


def test_a_part_that_the_file_tells_goes_first() -> None:
    (talk,) = complete(subject(file()))
    assert isinstance(talk, Talk)
    assert talk.variant == "body Net.forward"
    assert "Measured" not in talk.user


def test_sizes_are_asked_for_with_what_was_measured() -> None:
    code = file(forward="        return self.head(x)\n")
    talk, untold = complete(subject(code))[0], complete(subject(code, facts=None))[0]
    assert isinstance(talk, Talk)
    assert talk.variant == "body Net.__init__"
    for line in (
        "It is built as `Net(in_shape=(2, 3, 8, 8), out_shape=(10,), prm={'lr': 0.1}, device=torch.device('cpu'))`.",
        "- 650 parameters, all trainable",
        "- layers: Linear x 1",
        "- `head` (Linear): 650 parameters, gives 2x10",
    ):
        assert line in talk.user.split("\n")
    assert untold == No(
        "no_part", "every part that can be cut out holds what the rest of the file and measurements do not tell"
    )


def test_a_part_of_one_record_goes_before_one_of_several() -> None:
    helper = "\n    def helper(self, x):\n        {0} = x\n        {0} = {0} + x\n        return {0}\n"
    files = (file(init=f"        self.{name} = 1\n", more=helper.format(name)) for name in ("a", "b", "c", "d"))
    talks = complete(*(subject(code) for code in files))
    assert [talk.variant for talk in talks if isinstance(talk, Talk)] == ["body Net.helper"] * 4


def test_no_answer_of_training_is_asked_for_again() -> None:
    one, two, three = (file(init=f"        self.{name} = 1\n") for name in "abc")
    later, first, again = complete(subject(one, "test"), subject(two, "train"), subject(three, "train"))
    assert isinstance(first, Talk)
    assert isinstance(again, Talk), "within a split it may be"
    assert later == No("in_another_split", "every part that can be cut out is asked for in an earlier split")
    assert fenced_codes(first.assistant) == fenced_codes(again.assistant)


def test_a_file_with_a_gap_that_has_two_answers_is_not_asked_about() -> None:
    other = FORWARD.replace("(2, 1)", "(1, 2)")
    for talk in complete(subject(file()), subject(file(forward=other))):
        assert isinstance(talk, Talk)
        assert talk.variant == "body Net.__init__"


def test_only_files_with_a_network_are_called_networks() -> None:
    net, block = complete(subject(file()), subject(file(name="Block", forward=FORWARD.replace("x = x", "x = 1 + x"))))
    assert isinstance(net, Talk)
    assert isinstance(block, Talk)
    assert net.system in SYSTEMS
    assert block.system in BLOCK_SYSTEMS
    assert not any("Net" in system for system in BLOCK_SYSTEMS)


@pytest.mark.parametrize("line", ["addon_accuracy: 0.6135", "# UNRESOLVED DEPENDENCIES:"])
def test_no_answer_is_a_file_with_residue(line: str) -> None:
    item = subject(f"{line}\n{file()}")
    draw = Draw(1, item.id, "design")
    refused = No("residue", f"its file holds the line: {line}")
    with Lab(jobs=1) as lab:
        assert [design(item, draw), *repairs([item], [draw], lab), *change_all([item], [draw], lab)] == [refused] * 3
    assert isinstance(complete(item)[0], Talk), "a part of it may be asked for"
    assert isinstance(explain(item, draw), Talk)


@pytest.mark.parametrize(
    ("task", "output", "told"),
    [
        ("img-classification", "2x10", "2x10"),
        ("img-classification", "2x10 int64", "2x10 int64"),
        ("img-captioning", "2x20x1000", "2x20x1000"),
        ("img-captioning", "2x20 int64", None),
        ("obj-detection", "({boxes: 119x4}, {boxes: 119x4})", None),
        ("obj-detection", None, None),
    ],
)
def test_boxes_and_decoded_words_are_not_told(task: str, output: str | None, told: str | None) -> None:
    assert output_of(replace(subject(file()), task=task, facts=replace(MEASURED, output=output))) == told


def test_hyperparameters_may_be_stated_as_a_dictionary() -> None:
    code = "def supported_hyperparameters():\n    return {'momentum': 0.9, 'lr': (0.1, 1)}\n"
    assert read_code(Source(code)).hyperparameters == ("lr", "momentum")
