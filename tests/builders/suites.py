"""Tests that are documents: Markdown pages of cases, each a heading, files in fenced blocks, and what is expected.

A block stands for the file whose path follows its language (` ```py p/a.py `) or precedes it (`` `p/a.py`: ``), or for the
only file of the case; below a line `--- p/b.py` of a block without a path stands that file. What is expected stands in
comments at the end of a block, `# verb: text`, or, where it has several lines, in a block named like a file: ` ```text verb `.
Blocks above the first case are files of every case; in one of them, a line `...` is where the only file of a case goes.

    ## A name that is bound again

    ```py
    SIZE = 1
    SIZE = SIZE + 1
    # gives: SIZE == 2
    ```

A table whose first column is `case` and another one a verb has a case in each row: the other cells are its files, a line each.

A test names pages and the verbs that it checks: `@suite(__file__, "names.md", verbs=("gives", "has", "lacks"))`. A page fails to
load if a case expects nothing, or has a verb that the test does not know: a misspelt expectation is not a comment.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

_HEADING = re.compile(r"^(#+) (.+)$")
_FENCE = re.compile(r"^(`{3,})(\w*)(?: (.+))?$")
_NAME = re.compile(r"^`([^`]+)`:$")
_BAR = re.compile(r"(?<!\\)\|")
_EXPECTED = re.compile(r"^# ([a-z ]+): (.*)$")


@dataclass(slots=True)
class Case:
    """One case of a page: files by path, and by verb what is expected, each in the order of the page."""

    title: str
    files: dict[str, str] = field(default_factory=dict)
    expected: dict[str, list[str]] = field(default_factory=dict)

    @property
    def code(self) -> str:
        """The only file of the case, without what all cases of the page share."""
        return self.files[""]

    def all(self, verb: str) -> list[str]:
        return self.expected.get(verb, [])

    def one(self, verb: str) -> str:
        (text,) = self.expected[verb]
        return text

    def value(self, verb: str, **names: object) -> Any:
        """Return the one text after a verb as the Python value that it writes."""
        return eval(self.one(verb), dict(names))

    def equation(self, verb: str = "gives") -> tuple[str, Any]:
        """Return the left side of `expression == value` as text, and the value."""
        expression, _, value = self.one(verb).partition(" == ")
        return expression, eval(value)

    def check_text(self, text: str) -> None:
        """Check that a text contains what it `has` and nothing that it `lacks`; several lines are whole lines of it."""
        for part in self.all("has"):
            assert (f"\n{part}\n" if "\n" in part else part) in f"\n{text}\n"
        for line in self.all("has line"):
            assert line in text.splitlines()
        for part in self.all("lacks"):
            assert part not in text


def read_suite(path: Path, verbs: Collection[str]) -> list[Case]:
    """Return the cases of a page in order.

    Raises ValueError: a case without an expectation, or with an unknown verb; two cases of one title.
    """
    (shared, *_), *sections = [list(_read_cases(title, lines, verbs)) for title, lines in _sections(path)]
    cases = [case for section in sections for case in section if case.files or case.expected]
    titles = [case.title for case in cases]
    if silent := [case.title for case in cases if not case.expected]:
        raise ValueError(f"{path.name}: nothing is expected of {silent}")
    if len(set(titles)) < len(titles):
        raise ValueError(f"{path.name}: two cases have one title: {sorted(titles)}")
    for case in cases:
        _add_shared(case, shared.files)
    return cases


def read_files(test: str, page: str, title: str = "") -> dict[str, str]:
    """Return the named blocks of a page that only holds files, or of one section of it, by their names."""
    path = Path(test).with_name(page)
    sections = [_read_cases("", lines, ()) for heading, lines in _sections(path) if title in ("", heading)]
    return {name: text for cases in sections for case in cases for name, text in case.files.items()}


def write_files(folder: Path, files: Mapping[str, str]) -> Path:
    """Write files below a folder, and return it."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def suite(test: str, *pages: str, verbs: Collection[str]) -> pytest.MarkDecorator:
    """Return the parameters `case` of a test: the cases of pages beside its file."""
    cases = {page: read_suite(Path(test).with_name(page), verbs) for page in pages}
    params = [pytest.param(case, id=f"{page}: {case.title}") for page in pages for case in cases[page]]
    return pytest.mark.parametrize("case", params)


def table(test: str, page: str, title: str, names: dict[str, Any]) -> pytest.MarkDecorator:
    """Return the parameters of a test: the table below a heading of a page, whose cells are Python in backticks.

    A column `id` has the names of the cases, a column `remark` is for the reader.

    Args: names: what the cells may use.
    """
    cases = _read_table(test, page, title, names)
    ids = [case.pop("id") for case in cases] if "id" in cases[0] else None
    columns = list(cases[0])
    values = [tuple(case.values()) if len(columns) > 1 else case[columns[0]] for case in cases]
    return pytest.mark.parametrize(columns if len(columns) > 1 else columns[0], values, ids=ids)


def read_table(test: str, page: str, title: str, names: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of such a table by their first cells: the other cell, or all others."""
    rows = [tuple(case.values()) for case in _read_table(test, page, title, names)]
    return {row[0]: row[1:] if len(row) > 2 else row[1] for row in rows}


def _read_table(test: str, page: str, title: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    lines = dict(_sections(Path(test).with_name(page)))[title]
    columns, _, *rows = ([cell.strip() for cell in _BAR.split(line[1:-1])] for line in lines if line.startswith("|"))
    return [
        {
            column: eval(cell.strip("` ").replace("\\|", "|"), names)
            for column, cell in zip(columns, row, strict=True)
            if column != "remark"
        }
        for row in rows
    ]


def _sections(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield headings and the lines below each; a `#` in a fence is no heading."""
    title, lines, fence = "", [], ""
    for line in path.read_text(encoding="utf-8").split("\n"):
        mark = _FENCE.match(line)
        if not fence and (heading := _HEADING.match(line)) and len(heading[1]) > 1:
            yield title, lines
            title, lines = heading[2], []
            continue
        if mark and not fence:
            fence = mark[1]
        elif line == fence:
            fence = ""
        lines.append(line)
    yield title, lines


def _read_cases(title: str, lines: list[str], known: Collection[str]) -> Iterator[Case]:
    """Yield the case below a heading; if its blocks have no names, each of them is a case."""
    case, name, rest, number = Case(title), "", iter(lines), 1
    columns: list[str] = []
    for line in rest:
        if line.startswith("| case |") or columns:
            if not columns:
                columns = _read_cells(line)
            elif not line.startswith("|"):
                return
            elif not line.startswith("|--"):
                yield _read_row(dict(zip(columns, _read_cells(line), strict=True)), case.files, known)
        elif named := _NAME.match(line):
            name = named[1]
        elif mark := _FENCE.match(line):
            block, name = [], mark[3] or name
            while (inner := next(rest)) != mark[1]:
                block.append(inner)
            if name in known:
                case.expected.setdefault(name, []).append("\n".join(block))
                name = ""
                continue
            paths = [] if name else [n for n, text in enumerate(block) if text.startswith("--- ")]
            if not name and "" in case.files and paths[:1] != [0]:
                yield case
                number += 1
                case = Case(f"{title}, {number}")
            if known:
                _take_expected(case, block, known)
            for first, last in pairwise([*paths, len(block)]):
                case.files[block[first][4:]] = "".join(f"{kept}\n" for kept in block[first + 1 : last])
            if paths[:1] != [0]:
                case.files[name] = "".join(f"{kept}\n" for kept in block[: paths[0] if paths else None])
            name = ""
    yield case


def _read_cells(line: str) -> list[str]:
    return [cell.strip().strip("`").replace("\\|", "|") for cell in _BAR.split(line[1:-1])]


def _read_row(row: dict[str, str], files: dict[str, str], known: Collection[str]) -> Case:
    case = Case(row.pop("case"), dict(files))
    for column, cell in row.items():
        if column in known:
            case.expected[column] = [cell]
        else:
            case.files[column] = f"{cell}\n"
    return case


def _take_expected(case: Case, block: list[str], known: Collection[str]) -> None:
    """Move the comments at the end of a block, `# verb: text`, from the block into the case."""
    first = len(block)
    while first and (match := _EXPECTED.match(block[first - 1])):
        first -= 1
        verb, text = match.groups()
        if verb not in known:
            raise ValueError(f"{case.title}: {verb!r} is not a verb that the test checks: {sorted(known)}")
        case.expected.setdefault(verb, []).insert(0, text)
    del block[first:]


def _add_shared(case: Case, shared: dict[str, str]) -> None:
    """Give a case the files of its page; one of them may have a line `...` for the only file of the case."""
    for path, text in shared.items():
        if hole := re.search(r"^( *)\.\.\.\n", text, re.M):
            text = text[: hole.start()] + indent(case.files.pop("", ""), hole[1]) + text[hole.end() :]
        case.files.setdefault(path, text)
