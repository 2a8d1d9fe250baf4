"""What is cut out of a file goes back into it, byte for byte; which part is asked for, and with what beside it."""

import ast
import hashlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.chat.complete import completions, gaps
from curate.chat.design import BLOCK_SYSTEMS, SYSTEMS, describe_output
from curate.chat.network import ChatNetwork, Child, NetworkFacts, read_code
from curate.compute.runs import InputCase
from curate.model.residue import find_note, strip_residue
from manifests.conversations.conversation import MARK, Draft, Sampler, Skipped, fence, put_back, read_fenced_code
from tests.builders.suites import read_files, table

NOTHING: Any = {"own": {}, "functions": {}, "dropout": (), "optimizers": (), "losses": ()}
COUNTS: Any = {"parameters": 650, "trainable": 650, "buffers": 0, "multiply_adds": 0, "layers": {"Linear": 1}}
HEAD = Child("head", "Linear", 650, "called", "2x10")
MEASURED = NetworkFacts(**COUNTS, **NOTHING, attention=False, output="2x10", setup_error=None, children=(HEAD,))

INIT = "        super().__init__()\n        size = 64\n        self.head = nn.Linear(size, 10)\n"
FORWARD = "        x = x.mean((2, 1))\n        x = self.head(x)\n        return x\n"


def file(init: str = INIT, forward: str = FORWARD, name: str = "Net", more: str = "") -> str:
    head = f"class {name}(nn.Module):\n    def __init__(self, in_shape, out_shape, prm, device):\n{init}"
    return f"{head}\n    def forward(self, x):\n{forward}{more}"


def network(code: str, split: str = "train", facts: NetworkFacts | None = MEASURED) -> ChatNetwork:
    return ChatNetwork(
        id=hashlib.sha256(code.encode()).hexdigest(),
        nn="net",
        split=split,
        code=code,
        reading=read_code(code),
        task="img-classification",
        dataset="cifar-10",
        pretrained=False,
        prm={"lr": 0.1},
        case=InputCase((2, 3, 8, 8), (10,)),
        facts=facts,
        fault="",
        results=(),
        reached=(),
    )


def complete(*networks: ChatNetwork) -> list[Draft | Skipped]:
    return completions(networks, [Sampler(1, item.id, "complete") for item in networks])


def test_sizes_are_asked_for_with_what_was_measured_and_only_where_nothing_else_can_be() -> None:
    (plain,) = complete(network(file()))
    assert isinstance(plain, Draft)
    assert plain.variant == "body Net.forward"
    assert "Measured" not in plain.user
    code = file(forward="        return self.head(x)\n")
    draft, not_measured = complete(network(code))[0], complete(network(code, facts=None))[0]
    assert isinstance(draft, Draft)
    assert draft.variant == "body Net.__init__"
    for line in (
        "It is built as `Net(in_shape=(2, 3, 8, 8), out_shape=(10,), prm={'lr': 0.1}, device=torch.device('cpu'))`.",
        "- 650 parameters, all trainable",
        "- layers: Linear x 1",
        "- `head` (Linear): 650 parameters, gives 2x10",
    ):
        assert line in draft.user.split("\n")
    reason = "the rest of the file and measurements do not tell all of any part that can be cut out"
    assert not_measured == Skipped("no_part", reason)


def test_sizes_that_measurements_only_bound_are_not_asked_for() -> None:
    sizes = "".join(f"        self.conv{size} = nn.Conv2d({size}, {size}, {size})\n" for size in (5, 7, 11, 13))
    (skipped,) = complete(network(file(init=sizes, forward="        return self.head(x)\n")))
    assert isinstance(skipped, Skipped)
    assert skipped.reason == "no_part"
    (stated,) = complete(network(file(init=f"{sizes}", forward="        return self.head(x[5:7, 11:13])\n")))
    assert isinstance(stated, Draft)


def test_a_part_of_one_record_goes_before_one_of_several() -> None:
    helper = "\n    def helper(self, x):\n        {0} = x\n        {0} = {0} + x\n        return {0}\n"
    files = (
        file(f"        self.{name} = 1\n", f"        x = self.helper(x)\n{FORWARD}", more=helper.format(name))
        for name in ("a", "b", "c", "d")
    )
    drafts = complete(*(network(code) for code in files))
    assert [draft.variant for draft in drafts if isinstance(draft, Draft)] == ["body Net.helper"] * 4


def test_no_answer_of_training_is_asked_for_again() -> None:
    one, two, three = (file(init=f"        self.{name} = 1\n") for name in "abc")
    later, first, again = complete(network(one, "test"), network(two, "train"), network(three, "train"))
    assert isinstance(first, Draft)
    assert isinstance(again, Draft), "within a split it may be"
    assert later == Skipped("in_another_split", "every part that can be cut out is asked for in an earlier split")
    assert read_fenced_code(first.assistant) == read_fenced_code(again.assistant)


def test_a_file_with_a_gap_that_has_two_answers_is_not_asked_about() -> None:
    other = FORWARD.replace("(2, 1)", "(1, 2)")
    for draft in complete(network(file()), network(file(forward=other))):
        assert isinstance(draft, Draft)
        assert draft.variant == "body Net.__init__"


def test_only_files_with_a_network_are_called_networks() -> None:
    net, block = complete(network(file()), network(file(name="Block", forward=FORWARD.replace("x = x", "x = 1 + x"))))
    assert isinstance(net, Draft)
    assert isinstance(block, Draft)
    assert net.system in SYSTEMS
    assert block.system in BLOCK_SYSTEMS
    assert not any("Net" in system for system in BLOCK_SYSTEMS)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# Auto-generated single-file for Gate\n# Standard library\nimport torch\n", "import torch\n"),
        ("x = 1\n\n# Chromosome used to generate this model:\n# {'width': 8}\n", "x = 1\n\n"),
        ("x = 1\n# --- Chromosome used to generate this model ---\n# Chromosome: {}", "x = 1\n"),
        ("# a remark\nx = 'chromosome used to generate'\n", "# a remark\nx = 'chromosome used to generate'\n"),
        ("# a remark\n\n# Autogenerated\n\n# another\n", "# a remark\n\n\n# another\n"),
        ("# ---- timm.layers.mlp.Mlp ----\nx = 1\n# ---- Gate (target) ----\n", "x = 1\n"),
        (
            "# ---- the stem ----\nif x:\n    # ← insert the provided block here\n    y = 1\n",
            "# ---- the stem ----\nif x:\n    y = 1\n",
        ),
    ],
)
def test_comments_of_generators_are_left_out(before: str, after: str) -> None:
    assert strip_residue(before) == after


@pytest.mark.parametrize("line", ["addon_accuracy: 0.6135", "# UNRESOLVED DEPENDENCIES:"])
def test_a_note_of_what_made_a_file_is_found(line: str) -> None:
    assert find_note(f"import torch\n{line}\n{file()}") == line
    assert find_note(f"import torch\n# not {line}\n{file()}") is None


IDLE = f"{INIT}        self.tail = nn.Linear(size, 10)\n"
LEARN = "\n    def learn(self, data):\n        a = 1\n        b = 0.3\n        return a * b\n"


def test_neither_a_forward_that_leaves_a_module_out_nor_numbers_of_training_are_asked_for() -> None:
    idle, skipped = complete(
        network(file(init=IDLE)), network(file("        self.x = 1\n", "        return x\n", more=LEARN))
    )
    assert isinstance(idle, Draft)
    assert idle.variant == "body Net.__init__"
    assert isinstance(skipped, Skipped)


UNREACHED = "\n    def helper(self, x):\n        y = x + x\n        x = y + x\n        return x\n"
LOSS = "\n    def train_setup(self, prm):\n        self.loss = nn.CrossEntropyLoss()\n"


@pytest.mark.parametrize(
    ("forward", "more"),
    [
        ("        x = self.head(x)\n        y = x + x\n        return self.dropout(y)\n", ""),
        ("        x = self.head(x)\n        y = x + x\n        return F.log_softmax(y, 1)\n", LOSS),
        ("        x = self.head(x)\n        y = F.softmax(x, 1)\n        return y\n", LOSS),
        ("        x = self.norm(x)\n        y = self.norm(x)\n        return self.head(y)\n", ""),
        ("        y = self.head(x)\n        z = nn.Parameter(torch.zeros(1))\n        return y + z\n", ""),
        ("        return self.head(x)\n", UNREACHED),
    ],
)
def test_what_nothing_shows_is_not_asked_for(forward: str, more: str) -> None:
    """Where a dropout stands changes no measurement, and a method that nothing calls may hold anything."""
    (draft,) = complete(network(file(forward=forward, more=more)))
    assert isinstance(draft, Draft)
    assert draft.variant == "body Net.__init__"


@table(__file__, "complete.md", "Boxes and decoded words are no output to state", globals())
def test_boxes_and_decoded_words_are_no_output_to_state(task: str, output: str | None, known: bool) -> None:
    item = replace(network(file()), task=task, facts=replace(MEASURED, output=output))
    assert describe_output(item) == (output if known else None)


def test_hyperparameters_may_be_stated_as_a_dictionary() -> None:
    code = "def supported_hyperparameters():\n    return {'momentum': 0.9, 'lr': (0.1, 1)}\n"
    assert read_code(code).hyperparameters == ("lr", "momentum")


LINES = (
    "x = 1",
    "return x",
    "# note",
    "",
    "    ",
    "for i in range(3):\n{t}    x += i\n\n{t}    pass",
    "y = '''a\n  b\n{t}c'''",
    "if x: return x  # größer",
    "z = (1,\n2)",
    "def inner():\n{t}    return '# <missing part'",
    "s = 'Größe'; t = 2",
)
NAMES = st.sampled_from(["a", "b", "forward", "__init__"])
TABS = st.sampled_from(["    ", "\t", "  "])
ENDS = st.sampled_from(["\n", "\r\n"])


@st.composite
def sources(draw: st.DrawFn) -> str:
    """A file of classes with methods, and functions, in any layout that parses."""
    tab, end = draw(TABS), draw(ENDS)
    parts = ["import torch", ""]
    for number in range(draw(st.integers(1, 3))):
        in_class = draw(st.booleans())
        if in_class:
            parts += ["@torch.jit.ignore"] * draw(st.integers(0, 1))
            parts += [f"class C{number}:"]
        outer = tab if in_class else ""
        for _ in range(draw(st.integers(1, 2))):
            parts.append(f"{outer}def {draw(NAMES)}(self, x):")
            inner = outer + tab
            body = draw(st.lists(st.sampled_from(LINES), min_size=1, max_size=5))
            parts += [line if not line.strip() else inner + line.format(t=inner) for line in [*body, "pass"]]
            parts += [""] * draw(st.integers(0, 2))
    text = "\n".join(parts) + "\n" * draw(st.integers(0, 2))
    return text.replace("\n", end)


@given(text=sources())
def test_a_gap_and_its_part_are_the_file(text: str) -> None:
    for gap in gaps(text):
        assert gap.text.count(MARK) == 1
        assert gap.text != text
        assert put_back(gap.text, gap.part) == text
        ast.parse(gap.part)
        (asked,), (answered,) = read_fenced_code(fence(gap.text)), read_fenced_code(fence(gap.part))
        assert put_back(asked, answered.removesuffix("\n")).rstrip("\r\n") == text.rstrip("\r\n")


TEXTS = read_files(__file__, "complete.md")
FILE = TEXTS["FILE"]


def test_what_is_cut_out() -> None:
    found = {gap.name: gap for gap in gaps(FILE)}
    # Net.forward and Net.learn hold lines that stand further left than their body, so they would not come back
    assert set(found) == {"body Block.forward", "body Block.documented", "class Block"}
    gap = found["body Block.forward"]
    assert gap.what == "the body of the method `forward` of class `Block`"
    assert gap.part == "x = x + 1\n\nreturn x"
    assert f"    def forward(self, x):\n        {MARK}\n\n    def documented" in gap.text
    assert found["class Block"].what == "the body of the class `Block`"
    assert f'class Block:\n    "What it does."\n\n    {MARK}\n\n\ndef helper' in found["class Block"].text
    assert found["body Block.documented"].part.startswith("@staticmethod\ndef inner(y):"), "docstrings stay"


def test_the_network_is_never_cut_out_whole() -> None:
    body = "    def forward(self, x):\n        y = x\n        z = y\n        return z\n"
    found = gaps(f"class Block:\n{body}\n\nclass Net:\n{body}")
    assert [gap.name for gap in found] == ["class Block", "body Block.forward", "body Net.forward"]


@table(__file__, "complete.md", "What the rest of the file cannot tell", globals())
def test_what_the_rest_of_the_file_cannot_tell(line: str, plain: bool) -> None:
    (gap,) = gaps(f"def f(x):\n    {line}\n    y = x\n    return y\n")
    assert gap.plain is plain


@pytest.mark.parametrize("text", [f"{FILE}# {MARK}\n", "x = 1\n", "def f():\n    return 1\n", ""])
def test_where_nothing_can_be_cut_out(text: str) -> None:
    assert gaps(text) == []
