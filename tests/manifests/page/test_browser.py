"""Pages as a reader meets them: in a real browser, without network, by mouse, by keyboard and on a small screen."""

import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lemur_core.describe.picture import Box
from manifests.folders.frame import (
    Entry,
    EntryLibrary,
    Page,
    View,
    code,
    curves,
    facts,
    graph,
    link,
    note,
    operations,
    pairs,
    results,
    table,
    versions,
    write_page,
)
from tests.builders import browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.PROGRAM is None, reason="no Chromium here; the distribution's package has one"),
]
HOSTILE = "<script>fault()</script></script></textarea><img src=x onerror=fault()>"
BIDI = "user\u202ecod\u2066e\u200b\x1b"
SEEN = "user\\u202ecod\\u2066e\\u200b\\x1b"
KEPT = "\n".join(f"line {at}" for at in range(40))
REMOVED = KEPT.replace("line 20\n", f"line zwanzig {HOSTILE}\nand one more\n").replace("line 30\n", "")


BOXES = [
    Box("input", ("2×3",), (), "input"),
    Box(HOSTILE, ("a", BIDI), (0,), "learned"),
    Box("add", ("2×3",), (1, 0), "operation"),
    Box("output", ("2×3",), (2,), "output"),
]


def name_of(at: int) -> str:
    return HOSTILE if at == 3 else BIDI if at == 4 else f"thing {at:05d}"


def entry(at: int) -> Entry:
    further = (f"old {at:05d} first", f"old {at:05d} second")
    facets = ("even" if at % 2 == 0 else HOSTILE, f"k{at % 7}")
    return Entry(name_of(at), f"note {at}", facets, (float(at % 50), None), further)


def views_of(number: int) -> Iterator[list[View]]:
    for name in map(name_of, range(number)):
        yield [
            facts("Facts", [("name", name), ("file", link("a file", f"some folder/{name}.py")), ("none", None)]),
            versions("Stands for", KEPT, [("lexical 0.95", REMOVED), ("exact", KEPT)]),
            results(
                "Results", [("t", HOSTILE, "acc", [(1, 0.5), (2, 0.75), (5, 0.7)]), ("t", "d", "acc", [(None, 0.1)])]
            ),
            operations("What it computes", ["(1) from the input: a sum.", HOSTILE]),
            graph("Graph", BOXES),
            code("Code", f"# {HOSTILE}\nclass A:\n\tx = '{BIDI}'"),
        ]


def whole_page(number: int = 250) -> Page:
    views = [
        facts(
            "Overview", [("title", HOSTILE), ("links", [link("one", "report.md"), link("two", "javascript:fault()")])]
        ),
        table("Table", ["name", "number"], [["b", 2], ["a", 10], [HOSTILE, None]]),
        curves("Curves", "epoch", [("loss", [("train", [(1.0, 2.0), (2.0, 1.5)]), ("held out", [(1.0, 2.2)])])]),
        pairs("Pairs", "points", [("worse", -1.0, -1.5, -0.5), ("open", 0.1, -0.2, 0.4), ("one", 0.2, None, None)]),
        note("Note", HOSTILE, BIDI),
    ]
    library = EntryLibrary(
        "Library",
        "things",
        ("parity", "kind"),
        ("size", "nothing"),
        [entry(at) for at in range(number)],
        views_of(number),
        number,
        "x",
        "size",
        sizes=("size",),
        results={
            ("task", HOSTILE, "acc"): {at: [(1, at / number), (5, 1 - at / number)] for at in range(0, number, 2)},
            ("task", "few", "acc"): {5: [(1, 0.25)], 1: [(1, 0.5)]},
        },
    )
    return Page(f"Title {HOSTILE}", "test", f"Lead {BIDI}", views, library)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page #1")
    (folder / "table").write_bytes(bytes(20_000_000))
    return write_page(folder, whole_page())


COUNT = "document.querySelector('.count').textContent"
NAMES = "[...document.querySelectorAll('.list b')].map(e => e.textContent)"


def test_hostile_text_is_text(tab: Any, page: Path) -> None:
    tab.open(page)
    assert tab.run("document.querySelector('h1').textContent") == f"Title {HOSTILE}"
    assert tab.run("document.querySelector('header .lead').textContent") == f"Lead {SEEN}", (
        "what cannot be seen is shown"
    )
    assert tab.run("document.querySelectorAll('img, textarea, iframe, main script').length") == 0
    assert tab.run("document.querySelectorAll('script').length") == 2
    hrefs = tab.run("[...document.querySelectorAll('a')].map(a => a.href)")
    assert all(href.startswith("file:") for href in hrefs)
    tab.open(page, "/3")
    tab.until("document.querySelectorAll('.code > span').length > 0")
    assert tab.run("document.querySelector('.code').innerText").startswith(f"# {HOSTILE}")
    assert SEEN in tab.run("document.querySelector('.code').textContent")
    assert HOSTILE in tab.run("[...document.querySelectorAll('.graph b')].map(e => e.textContent)")
    assert tab.run("document.querySelectorAll('img, textarea, iframe').length") == 0
    href = tab.run("document.querySelector('.entry dd a').href")
    assert href.startswith(page.parent.as_uri() + "/some%20folder/%3Cscript%3E")


def test_search_filter_order_and_more(tab: Any, page: Path) -> None:
    tab.open(page)
    assert tab.run(COUNT) == "250 of 250 things"
    assert tab.run(f"{NAMES}.length") == 25
    assert tab.run(f"{NAMES}[0]") == "thing 00049", "the largest first, as the library asks"
    typed = "const e = document.querySelector('[type=search]'); e.value = {!r}; e.dispatchEvent(new Event('input'))"
    tab.run(f"(() => {{ {typed.format('thing 0012')} }})()")
    tab.until(f"{COUNT} === '11 of 250 things'")  # 00012 and 00120 to 00129
    tab.run(f"(() => {{ {typed.format('OLD 00123')} }})()")
    assert tab.run(NAMES) == ["thing 00123"]
    assert "also old 00123 first" in tab.run("document.querySelector('.list').textContent")
    tab.run(f"(() => {{ {typed.format('')} }})()")
    chosen = (
        "const e = document.querySelectorAll('.tools select')[{}]; e.value = {!r}; e.dispatchEvent(new Event('change'))"
    )
    tab.run(f"(() => {{ {chosen.format(0, '0')} }})()")
    assert tab.run(COUNT) == "125 of 250 things"
    tab.run(f"(() => {{ {chosen.format(4, 'name')} }})()")
    found = tab.run(NAMES)
    assert found == sorted(found)
    tab.run("document.querySelector('.list ~ button').click()")
    assert tab.run(f"{NAMES}.length") == 125
    assert tab.run("document.querySelector('.list ~ button').hidden")
    assert tab.run("document.activeElement.closest('li') === document.querySelectorAll('.list li')[25]")


def test_the_difference_of_two_texts(tab: Any, page: Path) -> None:
    tab.open(page, "/7")
    tab.until("document.querySelectorAll('.diff .row').length > 1")
    assert tab.run("[...document.querySelectorAll('.diff del')].map(e => e.innerText)") == ["line 20", "line 30"]
    assert tab.run("[...document.querySelectorAll('.diff ins')].map(e => e.innerText)") == [
        f"line zwanzig {HOSTILE}",
        "and one more",
    ]
    assert tab.run("document.querySelector('.diff mark').textContent") == "20"
    before = tab.run("document.querySelectorAll('.diff .same').length")
    tab.run("document.querySelector('.diff .fold').click()")
    assert tab.run("document.querySelectorAll('.diff .same').length") > before
    tab.run("document.querySelectorAll('.pick button')[1].click()")
    assert tab.run("document.querySelectorAll('.diff del, .diff ins').length") == 0


def test_differences_are_right_and_short(tab: Any, tmp_path: Path) -> None:
    draw = random.Random(3)

    def text() -> str:
        return "\n".join(draw.choice("abcdef") for _ in range(draw.randrange(1, 30)))

    cases = [(text(), text()) for _ in range(60)]
    made = [Entry(str(at), "", (), (), ("o",)) for at in range(len(cases))]
    views = [[versions("V", one, [("", other)])] for one, other in cases]
    write_page(tmp_path, Page("T", "t", "l", (), EntryLibrary("L", "things", (), (), made, views, len(made), "x")))
    for at, (one, other) in enumerate(cases):
        tab.open(tmp_path / "index.html", f"/{at}")
        tab.until("document.querySelectorAll('.diff .row').length > 1")
        tab.run("[...document.querySelectorAll('.diff .fold')].forEach(e => e.click())")
        rows = tab.run(
            "[...document.querySelectorAll('.diff .row:not(.heads)')].map(r => [...r.children].map(e => e.className === 'none' ? null : e.textContent))"
        )
        for side, lines in enumerate((one.split("\n"), other.split("\n"))):
            assert [row[side] for row in rows if row[side] is not None] == lines
        changed = tab.run("document.querySelectorAll('.diff del, .diff ins').length")
        assert changed == _shortest(one.split("\n"), other.split("\n"))


def _shortest(one: Sequence[str], other: Sequence[str]) -> int:
    """Lines that differ at least: of a longest common subsequence, by the table."""
    best = [0] * (len(other) + 1)
    for line in one:
        last = 0
        for at, found in enumerate(other, 1):
            last, best[at] = best[at], last + 1 if line == found else max(best[at], best[at - 1])
    return len(one) + len(other) - 2 * best[-1]


def test_by_keyboard_alone(tab: Any, page: Path) -> None:
    tab.open(page)
    focus = "document.activeElement"
    reached = []
    for _ in range(60):
        tab.press("Tab")
        reached.append(tab.run(f"{focus}.className || {focus}.type || {focus}.tagName"))
        if tab.run(f"!!{focus}.closest('.list')"):
            break
    assert reached[0] == "skip", "the way past the navigation comes first"
    assert "search" in reached
    assert tab.run("getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is seen"
    tab.press("Enter")
    tab.until("document.querySelectorAll('.pick button').length > 0")
    assert tab.run(f"{focus}.tagName") == "H1", "a reader hears where it went"
    steps = [tab.press("Tab") or tab.run(f"!!{focus}.closest('.pick')") for _ in range(2)]
    assert steps == [False, True], "one stop for all removed codes, behind the link to a file"
    tab.press("ArrowDown")
    assert tab.run("document.querySelectorAll('.pick button')[1].getAttribute('aria-selected')") == "true"
    tab.run("history.back()")
    tab.until("!document.querySelector('.list').closest('[hidden]')")
    assert tab.run(f"!!{focus}.closest('.list')"), "where it was before"


CONTRAST = """(() => {
  const parts = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [.2126, .7152, .0722][at], 0);
  const behind = (e) => { for (; e; e = e.parentElement) { const c = parts(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] > 0) return c; } };
  const wrong = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !e.checkVisibility() || e.matches('script, style, option')) continue;
    const style = getComputedStyle(e);
    const ink = e instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [light(parts(ink)), light(behind(e))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) wrong.push([ratio, e.tagName, e.className, walk.currentNode.data.slice(0, 20)]);
  }
  return wrong;
})()"""


@pytest.mark.parametrize(("dark", "place"), list(itertools.product((False, True), ("", "/3"))))
def test_everything_can_be_read(tab: Any, page: Path, dark: bool, place: str) -> None:
    tab.open(page, place, dark=dark)
    if place:
        tab.until("document.querySelectorAll('.code > span').length > 0")
    paper = tab.run("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(22, 24, 26)") == dark
    assert tab.run(CONTRAST) == [], "4.5 to 1, as WCAG AA asks"


@pytest.mark.parametrize("place", ["", "/3"])
def test_landmarks_and_names(tab: Any, page: Path, place: str) -> None:
    tab.open(page, place)
    if place:
        tab.until("document.querySelectorAll('.code > span').length > 0")
    shown = "[...document.querySelectorAll('{}')].filter(e => e.checkVisibility())"
    assert tab.run(f"{shown.format('h1')}.length") == 1
    assert tab.run(f"{shown.format('main')}.length") == 1
    assert tab.run("document.documentElement.lang") == "en"
    if not place:
        for one in ("header", "nav[aria-label]", "form[role=search]", "[role=status]"):
            assert tab.run(f"{shown.format(one)}.length") == 1, one
    unnamed = f"{shown.format('input, select')}.filter(e => !e.labels.length).length"
    assert tab.run(unnamed) == 0
    assert (
        tab.run(
            f"{shown.format('section, [role=group], [role=listbox]')}.filter(e => !e.getAttribute('aria-label')).length"
        )
        == 0
    )
    assert tab.run(f"{shown.format('a, button')}.filter(e => !e.textContent.trim()).length") == 0
    assert tab.run(
        "new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size === document.querySelectorAll('[id]').length"
    )
    tree = tab.call("Accessibility.getFullAXTree")["nodes"]
    roles = {node["role"]["value"] for node in tree if not node["ignored"] and "role" in node}
    assert "main" in roles


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("place", ["", "/3"])
def test_nothing_is_wider_than_the_window(tab: Any, page: Path, place: str, width: int) -> None:
    tab.open(page, place, width=width)
    if place:
        tab.until("document.querySelectorAll('.code > span').length > 0")
    else:
        tab.run(
            "(() => { const e = document.querySelector('optgroup').parentNode; e.value = 0; e.dispatchEvent(new Event('change')) })()"
        )
    assert tab.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), (
        "nothing hangs over the edge"
    )


def test_a_table_sorts(tab: Any, page: Path) -> None:
    tab.open(page)
    first = "[...document.querySelectorAll('.v-table td:first-child')].map(e => e.textContent)"
    tab.run("document.querySelectorAll('.v-table th button')[0].click()")
    assert tab.run(first) == [HOSTILE, "a", "b"]
    tab.run("document.querySelectorAll('.v-table th button')[1].click()")
    assert tab.run(first)[1:] == ["a", "b"]
    assert tab.run("document.querySelectorAll('.v-table th')[1].getAttribute('aria-sort')") == "descending"


def test_a_shard_that_is_gone_is_told(tab: Any, tmp_path: Path) -> None:
    index = write_page(tmp_path, whole_page(5))
    (tmp_path / "page" / "000.js").unlink()
    tab.open(index, "/2")
    tab.until("document.body.textContent.includes('Not to be shown: page/000.js cannot be read.')")
    tab.faults.clear()  # the browser names the missing file, too
