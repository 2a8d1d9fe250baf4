"""Which calls load trained weights, and which resemble them: adversarial files, marked line by line.

`# loads`: counts, and is found. `# missed` and `# mistaken`: what a plain rule cannot tell (docs/similarity.md states
them): counts and is not found, or is found and does not count. A line without a mark is from scratch.
"""

import textwrap

import pytest

from curate.model.features import code_features
from curate.model.pretrained import Evidence, find_pretrained
from tests.builders.suites import read_files, table

CASES = read_files(__file__, "pretrained.md")


def find(code: str) -> tuple[Evidence, ...]:
    return find_pretrained(code)


@pytest.mark.parametrize("name", CASES)
def test_the_marked_lines_are_found_and_no_others(name: str) -> None:
    lines = CASES[name].split("\n")
    marked = [line for line in lines if line.endswith(("# loads", "# mistaken"))]
    assert [one.text for one in find(CASES[name])] == [line.strip() for line in marked]


@pytest.mark.parametrize("name", CASES)
def test_code_that_never_runs_does_not_count(name: str) -> None:
    body = textwrap.indent(CASES[name].replace("import *", "import resnet18"), "    ")
    assert find(f"if __name__ == '__main__':\n{body}\n") == ()


def test_text_is_cut_and_lines_are_those_of_the_parser() -> None:
    code = "import timm\r\nx = '\x0c'\r\n   \r\nm = timm.create_model('" + "a" * 300 + "', pretrained=True)\r\n"
    (found,) = find(code)
    assert (found.line, len(found.text)) == (4, 160)
    assert found.text.startswith("m = timm.create_model('aaa")


@table(__file__, "pretrained_cases.md", "Any code is read in bounded time", globals())
def test_any_code_is_read_in_bounded_time(code: str) -> None:
    assert not isinstance(code_features(f"import timm\n{code}\n"), str)
