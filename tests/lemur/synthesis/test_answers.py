"""What is taken for code in an answer: fences, thoughts, deltas."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemur.synthesis.attempts.loop import AnswerError, apply_changes, code_in

NET = "class Net:\n    pass\n"
INDENTED = "  class Net:\n      pass\n"
LONG = "x = 1\n" * 30


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (f"```python\n{NET}```", NET),
        (f"Here it is.\n\n``` py\n{NET}```\nIt learns well.", NET),
        (f"```Python3 title=net.py\n{NET}```\n", NET),
        (f"~~~\n{NET}~~~\n", NET),
        (f"````python\n{NET}```\n````\n", f"{NET}```\n"),
        (f"```python\n{NET}", NET),  # cut off, or left open
        (f"  ```python\n  {INDENTED[2:]}  ```\n", NET),  # in a list
        (f"```python\n{NET}```\n".replace("\n", "\r\n"), NET),
        (NET, NET),
        (f"\n\n{NET}\n\n", NET),
        # the one with the network, even where another is longer
        (f"```python\n{LONG}```\n```python\n{NET}```\n", NET),
        (f"```python\nx = 1\n```\n```\n{LONG}```\n", LONG),
        (f"```json\n{{}}\n```\n```python\n{NET}```\n```bash\npip install {'x' * 99}\n```\n", NET),
        (f"<think>\n```python\n{NET}{NET}```\n</think>\n```python\n{NET}```\n", NET),
        (f"<thinking>class Net</thinking>{NET}", NET),
        (f"a draft:\n```python\n{NET}{NET}```\n</think>\n```python\n{NET}```\n", NET),  # the template opened it
    ],
)
def test_code(answer: str, code: str) -> None:
    assert code_in(answer) == code


@pytest.mark.parametrize(
    "answer",
    [
        *("", " \n\t\n", "```python\n```", f"<think>\n```python\n{NET}```\nbut wait", f"{NET}</think>\n"),
        "I'm sorry, but I can't help with that.",
        "I cannot write it:\n\n- from the facts alone it is not clear\n- class and defaults import too much",
        '```json\n{"sorry": true}\n```',
    ],
)
def test_no_code(answer: str) -> None:
    with pytest.raises(AnswerError, match="the answer holds no code; answer with one fence"):
        code_in(answer)


@pytest.mark.parametrize(
    "sign",
    ["`", "```\n", "`" * 99 + "\n", " ", "~", "<<<<<<< SEARCH\n", "<<<<<<< SEARCH\n=======\n", "<think>", "</think>"],
)
def test_an_answer_of_signs_is_read_in_no_time(sign: str) -> None:
    answer = sign * ((1 << 20) // len(sign))
    started = time.monotonic()
    for work in (code_in, lambda told: apply_changes(PARENT, told)):
        with pytest.raises(AnswerError, match=r"holds no|at most 262,144 are read"):
            work(answer)
    assert time.monotonic() - started < 10


def test_a_file_beyond_reading() -> None:
    with pytest.raises(AnswerError, match=r"^the file has 600,000 characters; at most 262,144 are read$"):
        code_in("x = 1\n" * 100_000)


@pytest.mark.parametrize(
    "code",
    [
        "import torch\nclass Net(:\n",
        "from torch import nn\n",
        "x = nn.Linear(\n",
        "Sure.\ndef f(x):\n    return\n",
        "@a\n",
    ],
)
def test_code_without_a_fence_is_taken_as_it_is(code: str) -> None:
    """Whether it is Python is the next step's question."""
    assert code_in(code) == code


def delta(*changes: tuple[str, str]) -> str:
    return "".join(f"<<<<<<< SEARCH\n{old}=======\n{new}>>>>>>> REPLACE\n" for old, new in changes)


PARENT = "a = 1\nb = 2\nb = 2\nc = 3\n"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("a = 1\n", "a = 9\n")], "a = 9\nb = 2\nb = 2\nc = 3\n"),
        ([("a = 1\nb = 2\n", "")], "b = 2\nc = 3\n"),
        ([("a = 1\n", "d = 4\n"), ("d = 4\nb = 2\n", "")], "b = 2\nc = 3\n"),  # each on what the last one left
        ([("c = 3\n", "c = 3\nd = 4\n")], "a = 1\nb = 2\nb = 2\nc = 3\nd = 4\n"),
    ],
)
def test_changes_that_fit(changes: list[tuple[str, str]], code: str) -> None:
    answer = delta(*changes)
    for told in (
        answer,
        f"Sure:\n```\n{answer}```\n",
        answer.replace("\n", "\r\n"),
        f"<think>{answer}</think>{answer}",
    ):
        for parent in (PARENT, PARENT.replace("\n", "\r\n"), PARENT[:-1]):
            assert apply_changes(parent, told) == code


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("", "the answer holds no change; write <<<<<<< SEARCH"),
        (f"```python\n{PARENT}```", "the answer holds no change"),
        ("<<<<<<< SEARCH\na = 1\n=======\na = 9\n", "the answer holds no change"),  # cut off
        (delta(("b = 2\n", "b = 3\n")), "change 1: its SEARCH text, which begins 'b = 2', stands 2 times in the file"),
        (delta(("a = 1\n", "a = 2\n"), ("\n  e = 5\n", "")), "change 2: .* begins 'e = 5', is not in the file"),
        (delta(("", "z = 1\n")), "change 1: .* begins 'nothing', is not in the file"),
        (delta(("a = 1\n", "a = 1\n")), "the changes leave the file as it is"),
        (delta(("a = 1\n", "a = 2\n"), ("a = 2\n", "a = 1\n")), "the changes leave the file as it is"),
        ("<think>" + delta(("a = 1\n", "a = 2\n")), "the answer holds no change"),
    ],
)
def test_changes_that_do_not_fit(answer: str, error: str) -> None:
    with pytest.raises(AnswerError, match=error):
        apply_changes(PARENT, answer)


def test_places_that_overlap_are_two() -> None:
    with pytest.raises(AnswerError, match="stands 2 times"):
        apply_changes("p\np\np\n", delta(("p\np\n", "q\n")))


LINES = st.lists(st.sampled_from(["a", "b", "  c", "", "=", "d = 'é'"]), min_size=1, max_size=8)


def places(lines: list[str], old: list[str]) -> list[int]:
    """Where some lines stand among lines: by whole lines."""
    return [at for at in range(len(lines) - len(old) + 1) if lines[at : at + len(old)] == old]


@given(LINES, LINES, st.data())
def test_one_change_takes_the_place_of_the_lines_that_it_names(
    lines: list[str], new: list[str], data: st.DataObject
) -> None:
    """What stands once is changed, and nothing else; what does not, is refused, and told how often it stands."""
    lines = [*lines, "end"]
    start = data.draw(st.integers(0, len(lines) - 1))
    end = data.draw(st.integers(start + 1, len(lines)))
    old = lines[start:end]
    text, searched, put = ("".join(f"{line}\n" for line in some) for some in (lines, old, new))
    wanted = "".join(f"{line}\n" for line in [*lines[:start], *new, *lines[end:]])
    several = any(text.startswith(searched, at) for at in range(text.index(searched) + 1, len(text)))
    if several or wanted == text:
        with pytest.raises(AnswerError, match="times in the file" if several else "leave the file as it is"):
            apply_changes(text, delta((searched, put)))
    else:
        assert apply_changes(text, delta((searched, put))) == wanted
        assert places(lines, old) == [start]


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_text_is_code_a_change_or_a_told_fault(parent: str, answer: str) -> None:
    for work in (code_in, lambda told: apply_changes(parent, told)):
        try:
            told = work(answer)
        except AnswerError as error:
            told = f"{error}\n"
        assert told.endswith("\n")
        assert told.strip()
