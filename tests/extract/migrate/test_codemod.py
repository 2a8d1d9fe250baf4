"""A host's text with a block in it: texts before and after, and what holds for all of them."""

import ast
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.migrate.codemod import insert_block
from extract.migrate.insertion_points import BlockFit, How, InsertionPoint
from extract.migrate.messages import ObservedSubmodule
from extract.specs.make import StatedArguments
from lemur_core.files.errors import UserError
from lemur_core.source.quality import find_undefined_names
from tests.builders.suites import read_files, read_table, table

TEXTS = read_files(__file__, "codemod.md")
BLOCK = TEXTS["BLOCK"]

HOST = TEXTS["HOST"]


def place(path: str, steps: str, within: tuple[str, int] = ("Net", 4)) -> ObservedSubmodule:
    shape = ((2, 8, 4, 4),)
    return ObservedSubmodule(path, steps, "Conv2d", within, 1, 0, False, 1, True, (shape,), (shape,))


def point(
    path: str,
    steps: str,
    how: How = "after",
    within: tuple[str, int] = ("Net", 4),
    call: StatedArguments | None = None,
    **changes,
) -> InsertionPoint:
    filling = BlockFit(call or StatedArguments(("8",)), changes.get("before"), changes.get("after"), 1, 4)
    return InsertionPoint(place(path, steps, within), how, ((2, 8, 4, 4),), ((2, 8, 4, 4),), "", filling)


def lines_of(
    one: InsertionPoint,
    target_network: str = HOST,
    block: str = BLOCK,
    header: tuple[str, ...] = (),
    top: tuple[str, ...] = (),
) -> str:
    return insert_block(target_network.lstrip("\n"), one, "Gate", block.lstrip("\n"), header, top, "note").text


#: Sites, and the lines of Net.__init__ that they change or add.
SITES = read_table(__file__, "codemod.md", "Sites", globals())


@pytest.mark.parametrize("name", SITES)
def test_the_site_is_edited_where_it_is_made(name: str) -> None:
    one, expected = SITES[name]
    assert expected in lines_of(one)


def test_whatever_is_not_edited_stays_and_in_its_order() -> None:
    assert _within(HOST.lstrip("\n").splitlines(), lines_of(SITES["deep inside"][0]).splitlines())


def test_definitions_stand_before_net_and_imports_after_those_of_the_host() -> None:
    text = lines_of(SITES["deep inside"][0])
    assert text.startswith("import torch.nn as nn\nimport math\nimport torch\n")
    assert text.index("def helper") < text.index("class Gate") < text.index("class Net")


def test_names_that_are_taken_are_changed_in_the_block_alone() -> None:
    target_network = HOST + "\n\ndef helper(y):\n    return y\n\n\nclass Gate:\n    pass\n"
    text = lines_of(SITES["an attribute, in its place"][0], target_network)
    assert "def helper_2(x)" in text
    assert "return helper_2(x) *" in text
    assert "self.stem = Gate_2(8)" in text
    assert "def helper(y)" in text


def test_what_both_define_alike_stands_once_and_the_block_after_it() -> None:
    shared = "\n\ndef helper(x):\n    return x * math.pi\n"
    target_network = "import math\n" + HOST.lstrip("\n") + shared
    text = lines_of(SITES["an attribute, in its place"][0], target_network)
    assert text.count("def helper") == 1
    assert text.index("def helper") < text.index("class Gate")


def test_the_names_of_arguments_mean_what_they_meant() -> None:
    """`partial` and `nn` are the usual ones; the host has other things of that name."""
    target_network = HOST.replace("import torch.nn as nn", "import torch.nn as nn\n\npartial = 1\n")
    call = StatedArguments(("8",), {"norm": "partial(nn.BatchNorm2d, eps=1e-3)", "kind": "helper"})
    text = lines_of(point("inner", ".inner", "replace", call=call), target_network)
    assert "from functools import partial as partial_2" in text
    assert "self.inner = Gate(8, norm=partial_2(nn.BatchNorm2d, eps=1e-3), kind=helper)" in text


def test_future_imports_come_first() -> None:
    future = "from __future__ import annotations\n"
    target_network = '#!/usr/bin/env python\n"""The host."""\n\n' + HOST.lstrip("\n")
    text = lines_of(SITES["an attribute, in its place"][0], target_network, future + BLOCK, top=("made", "of two"))
    compile(text, "net.py", "exec")
    assert text.startswith(
        '#!/usr/bin/env python\n# made\n# of two\n\n"""The host."""\nfrom __future__ import annotations\n'
    )
    again = lines_of(SITES["an attribute, in its place"][0], future + target_network.split("\n", 3)[3], BLOCK)
    assert again.startswith("from __future__ import annotations\n")
    assert again.count(future) == 1


def test_the_header_stands_above_the_definitions_or_where_there_are_none() -> None:
    one = SITES["an attribute, in its place"][0]
    assert "\n\n\n# Slot stem: Gate.\n\ndef helper" in lines_of(one, header=("Slot stem: Gate.",))
    whole = "import math\n\nimport torch\n" + HOST.lstrip("\n") + BLOCK.partition("from torch import nn")[2]
    text = lines_of(one, whole, header=("Slot stem: Gate.",))
    assert text.count("class Gate") == 1
    assert text.endswith("# Slot stem: Gate.\n") or "\n# Slot stem: Gate.\n" in text


def test_indentation_of_each_stays_its_own() -> None:
    target_network = HOST.replace("    ", "\t")
    text = lines_of(SITES["deep inside"][0], target_network)
    assert "\n\t\tself.inner.conv[0] = nn.Sequential(" in text
    assert "\n    def __init__(self, channels):\n        super()" in text
    compile(text, "net.py", "exec")


def test_a_statement_stands_before_a_return() -> None:
    target_network = HOST.replace("self.inner = Inner()", "self.inner = Inner()\n        return")
    assert "nn.Sequential(self.inner.conv[0], Gate(8))\n        return\n" in lines_of(
        SITES["deep inside"][0], target_network
    )


def test_what_is_assigned_twice_is_not_edited_there() -> None:
    target_network = HOST.replace("self.inner = Inner()", "self.stem = self.stem.float()")
    text = lines_of(SITES["an attribute, in its place"][0], target_network)
    assert "self.stem = nn.Conv2d(3, 8, 3)" in text
    assert "# note\n        self.stem = Gate(8)\n" in text


@table(__file__, "codemod.md", "What cannot be done is said in one line", globals())
def test_what_cannot_be_done_is_said_in_one_line(target_network: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as failure:
        lines_of(SITES["an attribute, after it"][0], target_network)
    assert "\n" not in str(failure.value)


def test_the_names_of_star_imports_are_taken() -> None:
    target_network = "from os.path import *\n" + HOST.lstrip("\n")
    one, stars = SITES["an attribute, in its place"][0], {"os.path": ["helper", "join", "nn"]}
    text = insert_block(target_network, one, "Gate", BLOCK, stars=stars).text
    assert text.startswith("from os.path import *\nimport torch.nn as nn\nimport math\n")
    assert "def helper_2(x)" in text
    assert "def join" not in text


NAMES = ("helper", "Gate", "x", "math", "torch", "Extra")


@st.composite
def hosts(draw: st.DrawFn) -> str:
    """Hosts whose globals may have the names of the block's, imported or defined, above Net or below it."""
    kinds = ("{} = 1\n", "def {}(a):\n    return a\n", "class {}:\n    '''A\n\n      text.'''\n", "import os as {}\n")
    made = [draw(st.sampled_from(kinds)).format(name) for name in draw(st.lists(st.sampled_from(NAMES), unique=True))]
    cut = draw(st.integers(0, len(made)))
    comment = draw(st.sampled_from(["", "# above\n", "\n\n\n# above\n\n"]))
    net = HOST.lstrip("\n").partition("\n\n\n")[2]
    return f"{comment}import torch.nn as nn\n{''.join(made[:cut])}{comment}{net}{''.join(made[cut:])}"


@settings(max_examples=60, deadline=None)
@given(target_network=hosts(), name=st.sampled_from(sorted(SITES)))
def test_for_any_host_the_result_is_closed_and_holds_the_hosts_text(target_network: str, name: str) -> None:
    text = lines_of(SITES[name][0], target_network, header=("Slot x: Gate.",), top=("made",))
    assert not find_undefined_names(ast.parse(text))
    before, after = target_network.lstrip("\n").splitlines(), text.splitlines()
    edited = [number for number, line in enumerate(before) if "self." in line]
    assert _within(before, after) or any(_within(before[:n] + before[n + 1 :], after) for n in edited)


def _within(lines: list[str], others: list[str]) -> bool:
    """Whether all lines stand among the others, in their order."""
    rest = iter(others)
    return all(any(line == other for other in rest) for line in lines)


def test_a_host_over_several_lines_keeps_its_layout() -> None:
    target_network = textwrap.dedent(
        """\
        import torch.nn as nn
        class Net(nn.Module):
            def __init__(self, in_shape, out_shape, prm, device):
                super().__init__()
                self.body = nn.Sequential(
                    nn.ReLU(),  # one

                    nn.Conv2d(8, 8,
                              3),
                )
        """
    )
    text = lines_of(point("body.1", ".body[1]", within=("Sequential", 2)), target_network)
    assert (
        "        self.body = nn.Sequential(\n            nn.ReLU(),  # one\n\n            nn.Sequential(nn.Conv2d(8, 8,\n"
        in text
    )
