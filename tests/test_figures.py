"""Every figure of the pages of results is in a record that its section links: stale ones, and those without, fail.
On the other pages, so is every figure of a paragraph that links a record.

A figure is a number outside of code, versions and thresholds. A record is a file below `docs/records`, or one that a
command of README printed. A share may also be the quotient of two figures beside it.
"""

import json
import re
from argparse import Namespace
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

from benchmarks import all as measuring

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", *(f"docs/{name}.md" for name in ("measured", "experiments", "comparison")))
#: Not results: code, fences, addresses, versions, thresholds, names that end in digits.
_ASIDE = re.compile(
    r"^```.*?^```$|`[^`]*`|(?<=\])\([^)]*\)|<[^>]+>|\b\d+\.\d+\.\d+\b|Python [\d.]+( to [\d.]+)?|>= [\d.]+|arXiv:\S+"
    r"|\b[A-Za-z]+\w*-?\d[\w.-]*",
    re.DOTALL | re.MULTILINE,
)
_RECORD = re.compile(r"\]\(([^)#]*records/\w[\w/-]*\.json)\)")
_NUMBER = re.compile(r"\d[\d,]*\d(?:\.\d+)?|\d(?:\.\d+)?")


def numbers_in(text: str) -> set[str]:
    return {number.replace(",", "") for number in _NUMBER.findall(text)}


def sections(page: str) -> Iterator[str]:
    """The text below each heading of a page."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for part in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]:
        yield part.partition("\n")[2]


def recorded_in(path: Path) -> set[str]:
    """The numbers of a record, as written and rounded to up to three digits."""
    found = numbers_in(path.read_text(encoding="utf-8"))
    precise = [float(number) for number in found if "." in number]
    return found | {f"{value:.{digits}f}" for value in precise for digits in range(4)}


def quotients(numbers: set[str]) -> set[str]:
    """What shares of each other the whole numbers are, in percent."""
    whole = [int(number) for number in numbers if number.isdigit() and number != "0"]
    return {f"{100 * a / b:.{digits}f}" for a, b in permutations(whole, 2) if a < b for digits in (0, 1)}


def stated_beside_records() -> Iterator[tuple[str, str, list[str]]]:
    """Each paragraph, row or item with what it links, on a page of results with what its section links."""
    for page in sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"))):
        for body in sections(page):
            for block in re.split(r"\n\s*\n|\n(?=[-|] ?)", body):
                links = _RECORD.findall(body if page in PAGES else block)
                if links or page in PAGES:
                    yield page, block, links


def test_figures_are_recorded() -> None:
    wrong = []
    for page, block, links in stated_beside_records():
        recorded = set().union(*(recorded_in((ROOT / page).parent / link) for link in links))
        stated = numbers_in(_ASIDE.sub(" ", block))
        missing = stated - recorded - quotients(stated & recorded)
        if missing:
            wrong.append(f"{page}: {sorted(missing)} in none of {links}:\n{block.strip()}")
    assert wrong == [], "\n\n".join(wrong)


def test_records_say_what_made_them() -> None:
    for path in (ROOT / "docs" / "records").glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(record, dict) and ({"result", "stated"} & record.keys()):
            assert record["command"]
            assert record.get("commit") or record["commits"], path.name


@pytest.mark.parametrize(
    ("text", "found"),
    [("1,061 of `12`", {"1061"}), ("torch 2.15.0, 45 %", {"45"}), ("Jaccard >= 0.90: 7 (airbench94)", {"7"})],
)
def test_what_counts_as_a_figure(text: str, found: set[str]) -> None:
    assert numbers_in(_ASIDE.sub(" ", text)) == found


def test_a_step_is_measured_once_on_a_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "RECORDS", tmp_path)
    given = Namespace(work=tmp_path / "work", seed=None, names=None, pool=None, paritybench=None)
    step = measuring.Step("one", "echo x >> times; echo '[3]'", 1, cold=())
    for commit, times in (("a", "x\n"), ("a", "x\n"), ("b", "x\nx\n")):
        assert measuring.run_step(step, given, commit)
        assert (given.work / "times").read_text() == times
    record = json.loads((tmp_path / "one.json").read_text())
    assert (record["commit"], record["result"]) == ("b", [3])
    for refused in (measuring.Step("two", "echo 1; exit 3", 1), measuring.Step("two", "echo 1", 1, needs="seed")):
        assert not measuring.run_step(refused, given, "a")
    assert not (tmp_path / "two.json").exists()
    assert sum(step.minutes for step in measuring.STEPS) < 190
    modules = re.findall(r"benchmarks\.(\w+)", " ".join(step.command for step in measuring.STEPS))
    assert [name for name in modules if not (ROOT / "benchmarks" / f"{name}.py").exists()] == []
