"""The library of a page as a reader meets it: full-text search, results of one benchmark at a time, plot, code to take."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from manifests.folders.frame import Entry, EntryLibrary, Page, View, code, facts, operations, versions, write_page
from tests.builders import browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.PROGRAM is None, reason="no Chromium here; the distribution's package has one"),
]
HEADING = "# one\n# two\n#\n# four\n"
CODE = (
    HEADING
    + 'import torch\n\nclass {name}(nn.Module):\n    """A text, # of\n    two lines."""\n    x = 1.5 if None else "b"\n'
)
#: Name, words of its description, a name in its code, parameters, results by data set.
ENTRIES = [
    ("Gate", "a product with its sigmoid", "GatedUnit", 1_000, {"cifar-10": [(1, 0.50), (5, 0.80)]}),
    ("Plain", "3×3 convolution", "gate_proj", 20_000, {"cifar-10": [(1, 0.60)], "cifar-100": [(5, 0.30)]}),
    ("Ring", "channel gate", "Attention", 300_000, {"cifar-100": [(1, 0.20)]}),
    ("Other", "resnet18, aggregated", "Conv2d", None, {"cifar-10": [(1, 0.90)]}),
]


def views_of(name: str, described: str, used: str) -> list[View]:
    removed = [(f"stage{at % 2}", f"{CODE.format(name=name)}y = {at}") for at in range(12)]
    return [
        facts("Block", [("summary", described)]),
        operations("What it computes", [f"(1) {described}."]),
        versions("Represents", CODE.format(name=name), removed),
        code("Code", CODE.format(name=name) + f"    y = {used}\n"),
    ]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    entries, results = [], {}
    for at, (name, _, _, size, of_entry) in enumerate(ENTRIES):
        further = tuple(f"removed-{at}-{number}" for number in range(12))
        entries.append(Entry(name, "a note", ("train" if at % 2 else "test",), (size, at), further))
        for dataset, points in of_entry.items():
            results.setdefault(("img-classification", dataset, "acc"), {})[at] = points
    views: Iterator[list[View]] = (views_of(name, described, used) for name, described, used, _, _ in ENTRIES)
    library = EntryLibrary("Records", "records", ("split",), ("parameters", "age"), entries, views, len(entries), "x",
                           sizes=("parameters",), results=results)  # fmt: skip
    return write_page(folder, Page("T", "test", "lead", (), library))


NAMES = "[...document.querySelectorAll('.list b')].map(e => e.textContent)"
COUNT = "document.querySelector('.count').textContent"


def choose(tab: Any, label: str, value: str) -> None:
    """Set the control with this label, as a reader does."""
    tab.run(f"""(() => {{
        const control = [...document.querySelectorAll('.tools label')].find(e => e.firstChild.textContent === {label!r}).lastChild;
        control.focus(); control.value = {value!r};
        control.dispatchEvent(new Event('input')); control.dispatchEvent(new Event('change'));
    }})()""")


@pytest.mark.parametrize(
    ("sought", "names"),
    [
        ("gate", ["Gate"]),
        ("PLAIN", ["Plain"]),
        ("a note", ["Gate", "Other", "Plain", "Ring"]),
        ("Removed-2-11", ["Ring"]),
        ("nothing of this", []),
        ("()", []),
    ],
)
def test_words_find_entries(tab: Any, page: Path, sought: str, names: list[str]) -> None:
    tab.open(page)
    choose(tab, "search", sought)
    tab.until(f"{COUNT} === '{len(names)} of 4 records'")
    assert tab.run(NAMES) == names


def test_one_benchmark_at_a_time_the_best_first(tab: Any, page: Path) -> None:
    tab.open(page)
    last = "[...document.querySelectorAll('.list .number:last-child')].map(e => e.innerText)"
    assert tab.run(NAMES) == ["Gate", "Other", "Plain", "Ring"]
    assert [text.split()[-1] for text in tab.run(last)] == ["cifar-10", "cifar-10", "cifar-10", "cifar-100"]
    options = "[...document.querySelectorAll('optgroup option')].map(e => e.textContent)"
    assert tab.run(options) == ["cifar-10, acc (3)", "cifar-100, acc (2)"]
    choose(tab, "results of", "0")
    assert tab.run(NAMES) == ["Other", "Gate", "Plain"]
    assert [text.split()[-3:] for text in tab.run(last)] == [
        ["0.9", "1", "epoch"], ["0.8", "5", "epochs"], ["0.6", "1", "epoch"]]  # fmt: skip
    choose(tab, "epochs", "0")
    assert tab.run(NAMES) == ["Other", "Plain", "Gate"], "within one epoch"
    choose(tab, "results of", "1")
    assert tab.run(NAMES) == ["Ring"]
    choose(tab, "results of", "")
    assert tab.run(NAMES) == ["Gate", "Other", "Plain", "Ring"]


def test_the_best_of_each_benchmark(tab: Any, page: Path) -> None:
    tab.open(page)
    tab.run("document.querySelector('.tools ~ details').open = true")
    cells = "[...document.querySelectorAll('details tbody tr')].map(e => [...e.children].map(e => e.innerText))"
    assert tab.run(cells) == [
        ["cifar-10", "acc", "img-classification", "3", "Other", "0.9", "1"],
        ["cifar-100", "acc", "img-classification", "2", "Plain", "0.3", "5"],
    ]
    tab.run("document.querySelectorAll('details tbody a')[1].click()")
    tab.until("document.querySelector('.entry h1')?.textContent === 'Plain'")


def test_the_plot_by_mouse_and_by_keyboard(tab: Any, page: Path) -> None:
    tab.open(page)
    choose(tab, "results of", "0")
    assert tab.run("document.querySelector('.points.on').getAttribute('d').split('M').length - 1") == 2, "of known size"
    tab.run("document.querySelector('.plot').scrollIntoView()")
    dots = tab.run("""(() => { const r = document.querySelector('.plot svg').getBoundingClientRect();
        return [...document.querySelector('.points.on').getAttribute('d').matchAll(/M([\\d.]+) ([\\d.]+)/g)].map(m => [r.left + +m[1], r.top + +m[2]]) })()""")
    small, large = sorted(dots)
    tab.drag((small[0] - 15, small[1] - 5), (small[0] + 15, small[1] + 15))
    assert tab.run(NAMES) == ["Gate"]
    choose(tab, "to", "")  # the largest number of parameters, by hand
    assert tab.run(NAMES) == ["Gate"]
    tab.run("document.querySelector('.plot button').click()")
    assert tab.run(NAMES) == ["Other", "Gate", "Plain"]
    choose(tab, "result from", "0.7")
    assert tab.run(NAMES) == ["Other", "Gate"], "also where the size is not known"
    tab.run("document.querySelector('.plot button').click()")
    tab.run("document.querySelector('.plot svg').focus()")
    tab.press("ArrowRight")
    tab.press("ArrowRight")
    assert (
        tab.run("document.querySelector('.plot [role=status]').textContent")
        == "Plain: cifar-10, acc 0.6, parameters 20,000"
    )
    tab.press("Enter")
    tab.until("document.querySelector('.entry h1')?.textContent === 'Plain'")
    tab.open(page)
    choose(tab, "results of", "0")
    tab.run("document.querySelector('.plot').scrollIntoView()")
    tab.drag(large, large)
    tab.until("document.querySelector('.entry h1')?.textContent === 'Plain'")


def test_code_is_highlighted_folded_copied_and_kept(tab: Any, page: Path, tmp_path: Path) -> None:
    tab.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    tab.open(page, "/0")
    tab.until("document.querySelectorAll('.code > span').length > 0")
    parts = "[...document.querySelectorAll('.code i')].map(e => e.className + ' ' + e.textContent)"
    assert tab.run(parts)[3:] == ["c # four", "k import", "k class", "d Gate", 's """A text, # of', "s     two lines.\"\"\"",
                                  "n 1.5", "k if", "k None", "k else", 's "b"']  # fmt: skip
    shown = "[...document.querySelectorAll('.code > span')].filter(e => e.checkVisibility()).length"
    lines = CODE.count("\n") + 2
    assert tab.run(shown) == lines - 4
    assert tab.run("document.querySelector('.code').style.counterReset") == "line 4", "numbers are those of the file"
    tab.run("document.querySelectorAll('.buttons button')[2].click()")
    assert tab.run(shown) == lines
    expected = CODE.format(name="Gate") + "    y = GatedUnit\n"
    tab.run("navigator.clipboard.writeText = async (text) => { window.copied = text }")
    tab.run("document.querySelectorAll('.buttons button')[0].click()")
    tab.until("document.querySelectorAll('.buttons button')[0].textContent === 'copied'")
    assert tab.run("window.copied") == expected
    tab.run("document.querySelectorAll('.buttons button')[1].click()")
    tab.wait(lambda: (tmp_path / "Gate.py").is_file())
    assert (tmp_path / "Gate.py").read_text() == expected


def test_what_a_record_represents_is_searched(tab: Any, page: Path) -> None:
    tab.open(page, "/1")
    tab.until("document.querySelectorAll('.pick button').length === 12")
    visible = "[...document.querySelectorAll('.pick button')].filter(e => e.checkVisibility()).map(e => e.firstChild.textContent)"
    typed = "(() => {{ const e = document.querySelector('.split [type=search]'); e.value = {!r}; e.dispatchEvent(new Event('input')) }})()"
    tab.run(typed.format("STAGE1 removed"))
    assert tab.run(visible) == [f"removed-1-{at}" for at in range(1, 12, 2)]
    assert tab.run("document.querySelector('.pick [aria-selected=true]').textContent") == "removed-1-1stage1"
    assert tab.run("document.querySelector('.diff ins').textContent") == "y = 1"
    tab.run("document.querySelector('.pick [aria-selected=true]').focus()")
    tab.press("ArrowDown")
    assert tab.run("document.querySelector('.diff ins').textContent") == "y = 3", "the hidden one is passed over"
