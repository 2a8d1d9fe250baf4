"""What is taken for code in an answer: fences, thoughts."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemur.synthesis.loop import AnswerError, code_in

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
    ["`", "```\n", "`" * 99 + "\n", " ", "~", "<think>", "</think>"],
)
def test_an_answer_of_signs_is_read_in_no_time(sign: str) -> None:
    answer = sign * ((1 << 20) // len(sign))
    started = time.monotonic()
    with pytest.raises(AnswerError, match=r"holds no|at most 262,144 are read"):
        code_in(answer)
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


@given(st.text(max_size=300))
def test_any_text_is_code_or_a_told_fault(answer: str) -> None:
    try:
        told = code_in(answer)
    except AnswerError as error:
        told = f"{error}\n"
    assert told.endswith("\n")
    assert told.strip()
