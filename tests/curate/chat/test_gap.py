"""What is cut out of a file goes back into it, byte for byte."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.chat.gap import MARK, gaps, put_back
from curate.chat.text import Source, fence, fenced_codes

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
    for gap in gaps(Source(text)):
        assert gap.text.count(MARK) == 1
        assert gap.text != text
        assert put_back(gap.text, gap.part) == text
        ast.parse(gap.part)
        (asked,), (answered,) = fenced_codes(fence(gap.text)), fenced_codes(fence(gap.part))
        assert put_back(asked, answered.removesuffix("\n")).rstrip("\r\n") == text.rstrip("\r\n")


FILE = """import torch


class Block:
    "What it does."

    def forward(self, x):
        x = x + 1

        return x

    def documented(self, x):
        "Says much."
        @staticmethod
        def inner(y):
            return y + 7
        return inner(x)

    def brief(self):
        "Two lines are left."
        x = 1
        return x


def helper(a): return a


class Net:
    def forward(self, x):
        y = '''
    far left'''
        return y

    def learn(self):
        a = 1
        b = '''
  far left'''
"""


def test_what_is_cut_out() -> None:
    found = {gap.name: gap for gap in gaps(Source(FILE))}
    # Net.forward and Net.learn hold lines that stand further left than their body, so they would not come back
    assert set(found) == {"body Block.forward", "body Block.documented", "class Block"}
    gap = found["body Block.forward"]
    assert gap.what == "the body of the method `forward` of class `Block`"
    assert gap.part == "x = x + 1\n\nreturn x"
    assert f"    def forward(self, x):\n        {MARK}\n\n    def documented" in gap.text


def test_the_network_is_never_cut_out_whole() -> None:
    body = "    def forward(self, x):\n        y = x\n        z = y\n        return z\n"
    found = gaps(Source(f"class Block:\n{body}\n\nclass Net:\n{body}"))
    assert [gap.name for gap in found] == ["class Block", "body Block.forward", "body Net.forward"]


def test_docstrings_stay() -> None:
    found = {gap.name: gap for gap in gaps(Source(FILE))}
    assert found["class Block"].what == "the body of the class `Block`"
    assert f'class Block:\n    "What it does."\n\n    {MARK}\n\n\ndef helper' in found["class Block"].text
    assert found["body Block.documented"].part.startswith("@staticmethod\ndef inner(y):")


@pytest.mark.parametrize(
    ("line", "plain"),
    [
        ("x = x + 1", True),
        ("x = x.flatten(1, -2)", True),
        ("kind = 'relu'", True),
        ("x = nn.Linear(x, 64)", False),
        ("rate = 0.5", False),
        ("raise ValueError('no such layer')", False),
        ("raise ValueError(f'no such {x}')", False),
        ("def inner():\n        'Documented.'\n        return x", False),
    ],
)
def test_what_the_rest_of_the_file_cannot_tell(line: str, plain: bool) -> None:
    (gap,) = gaps(Source(f"def f(x):\n    {line}\n    y = x\n    return y\n"))
    assert gap.plain is plain


@pytest.mark.parametrize("text", [f"{FILE}# {MARK}\n", "x = 1\n", "def f():\n    return 1\n", ""])
def test_where_nothing_can_be_cut_out(text: str) -> None:
    assert gaps(Source(text)) == []


@given(text=st.text(st.sampled_from("`a \n'\"p"), max_size=40))
def test_a_fence_gives_its_code_back(text: str) -> None:
    code = text if text.endswith("\n") else text + "\n"
    assert fenced_codes(f"before\n\n{fence(text)}\nafter") == [code]
