"""Pages of cases as tests read them: files, expectations, what all cases share, and pages that must not load."""

import re
from pathlib import Path

import pytest

from tests.builders.suites import Case, read_suite, table

PAGE = """# Names

What all cases share.

`p/a.py`:

```py
import os
if os:
    ...
```

## A section of prose only

# no case

## One

```py
x = 1
# why
--- p/c.py
y = 1
--- p/d.py
# gives: x == 1
# has:   x
```

`lacks`:

````py
```
y
````

## Two

`p/b.py`:

```py
# gives: nothing
z = 2
# gives: z == 2
```
"""


def read(tmp_path: Path, text: str) -> list[Case]:
    (tmp_path / "page.md").write_text(text)
    return read_suite(tmp_path / "page.md", ("gives", "has", "lacks"))


def test_pages_rows_edits_and_tables(tmp_path: Path) -> None:
    one, two = read(tmp_path, PAGE)
    assert (one.title, two.title) == ("One", "Two")
    assert one.files == {"p/a.py": "import os\nif os:\n    x = 1\n    # why\n", "p/c.py": "y = 1\n", "p/d.py": ""}
    assert one.expected == {"gives": ["x == 1"], "has": ["  x"], "lacks": ["```\ny"]}
    assert one.equation() == ("x", 1)
    assert two.files["p/b.py"] == "# gives: nothing\nz = 2\n"
    (row,) = read(tmp_path, "## In a table\n\n| case | one | gives |\n|---|---|---|\n| A bar | `x = a \\| b` | 1 |\n")
    assert (row.title, row.files["one"], row.one("gives")) == ("A bar", "x = a | b\n", "1")
    sums = "## Sums\n\n| id | text | sum | remark |\n|---|---|---|---|\n| `'one'` | `'a\\|b'` | `1 + ONE` | a bar |\n"
    (tmp_path / "page.md").write_text(sums)
    mark = table(str(tmp_path / "test.py"), "page.md", "Sums", {"ONE": 1})
    assert mark.args == (["text", "sum"], [("a|b", 2)])
    assert mark.kwargs == {"ids": ["one"]}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("# gives: z == 2\n", ""), "nothing is expected of ['Two']"),
        (("# gives: z == 2", "# give: z == 2"), "'give' is not a verb that the test checks"),
        (("## Two", "## One"), "two cases have one title"),
    ],
)
def test_a_page_that_does_not_load(tmp_path: Path, change: tuple[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        read(tmp_path, PAGE.replace(*change))


def test_several_lines_are_whole_lines() -> None:
    for text, holds in {"x\ny": True, "x\ny\n": True, "  x\ny": False, "x\nyy": False, "y": False}.items():
        case = Case("", expected={"has": ["x\ny"], "lacks": ["z"]})
        if holds:
            case.check_text(text)
            case = Case("", expected={"lacks": ["y"]})
        with pytest.raises(AssertionError):
            case.check_text(text)
