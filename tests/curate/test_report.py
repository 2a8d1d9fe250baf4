"""The report of a curation: what it says is what the decisions say, whatever the input looks like."""

import functools
import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from datasets import load_dataset

from curate.compute.outcome import STAGES
from curate.interface import summary_text
from curate.model.options import CurateOptions
from curate.run.pipeline import curate
from curate.sources import open_source
from lemur_core.files.markdown import block, code_span, percent, plain, ratio, table
from manifests.folders.manifest import read_manifest
from tests.curate import conftest
from tests.curate.conftest import warm_features

Row = dict[str, Any]
network = functools.partial(conftest.network, glue=False)


def row(nn: str, code: str | None, epoch: int = 1, accuracy: float = 0.5) -> Row:
    task = {"task": "img-classification", "dataset": "cifar-10", "metric": "acc"}
    return {"nn": nn, "nn_code": code, **task, "epoch": epoch, "accuracy": accuracy, "duration": 1, "prm": "{}"}


def small_corpus() -> list[Row]:
    """29 usable rows of 17 networks with 16 codes, of which 6 are unlike each other, and 3 rows that cannot be used."""
    rows = []
    base = [[0, 0, 1, 2, 0, 1], [3, 4, 5, 3, 4, 5], [6, 7, 6, 2, 7, 3], [5, 1, 7, 4, 6, 0], [2, 5, 2, 6, 1, 4]]
    for number, layers in enumerate(base):
        rows += [row(f"alt-{number}", network(layers), epoch, 0.9) for epoch in (1, 2, 5)]
    rows += [row("rag-copy", network(base[0]), 1, 0.3), row("rag-copy", network(base[0]), 2, 0.3)]
    rows += [row("rag-comment", network(base[0], comment="another remark"), 1, 0.2)]
    rows += [row(f"ga-{width}", network(base[1], width=width), 1, 0.1) for width in range(32, 38)]
    rows += [
        row("ga-glue", network(base[1], extra="seed = 7\n"), 1, 0.1),
        row("ga-glue", network(base[1], extra="seed = 7\n"), 2, 0.1),
    ]
    rows += [row("ast-long", network([*base[2] * 3, 0]), 1, 0.1)]
    pretrained = "    backbone = torchvision.models.resnet18(weights='DEFAULT')\n"
    rows += [row("loads-weights", network([4, 2, 0, 7, 1, 3], extra=pretrained), 1, 0.95)]
    rows += [row("ga-loads", network(base[3], extra="    backbone = None\n"), 1, 0.1)]
    return [*rows, row("broken-1", "class Net(:\n"), row("broken-2", "x = 1\nclass Net(:\n"), row("empty", None)]


def curate_rows(folder: Path, rows: Sequence[Row], name: str = "out", jobs: int = 1, **options: Any) -> Path:
    chosen = CurateOptions(**options)
    warm_features(item["nn_code"] for item in rows if item["nn_code"])  # so that no worker has to start
    (folder / "rows.jsonl").write_text("".join(json.dumps(item) + "\n" for item in rows))
    curate(open_source(str(folder / "rows.jsonl")), folder / name, chosen, jobs=jobs)
    return folder / name


Run = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return functools.partial(curate_rows, tmp_path, graph="off")


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return curate_rows(tmp_path_factory.mktemp("small"), small_corpus())


def report_of(folder: Path) -> str:
    return (folder / "report.md").read_text(encoding="utf-8")


def table_of(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    lines = iter(text[text.index(f"## {heading}\n") :].split("\n"))
    line = next(line for line in lines if line.startswith("|"))
    found = []
    while line.startswith("|"):
        found.append([cell.strip().strip("*`") for cell in line.strip("|").split(" | ")])
        line = next(lines)
    return found[2:]


def number(cell: str) -> int:
    return int(cell.split(" ")[0].replace(",", ""))


STEPS = {label: stage for stage, label in STAGES.items()} | {"kept": "kept"}


def test_numbers_are_those_of_the_tables(snapshot: Path) -> None:
    """Rows are counted from the decisions, codes from the table of networks; each column adds up."""
    text = report_of(snapshot)
    decisions = pq.read_table(snapshot / "decisions.parquet").to_pylist()
    networks = pq.read_table(snapshot / "networks.parquet").to_pylist()
    records = pq.read_table(snapshot / "data" / "records").to_pylist()
    rows = Counter(item["stage"] or "kept" for item in decisions)
    codes = Counter(item["stage"] or "kept" for item in networks)
    assert {"invalid", "repeat", "exact", "lexical", "kept"} <= set(rows)
    (label, *whole), *steps = table_of(text, "From rows to records")
    assert (label, *map(number, whole[:2])) == ("in", len(decisions), len(networks)) == ("in", 32, 16)
    assert {STEPS[step]: number(cells[0]) for step, *cells in steps} == rows
    for step, _, *cells in steps:
        some = codes[STEPS[step]]
        assert cells == (["–", "–"] if STEPS[step] in ("invalid", "repeat") else [str(some), percent(some, 16)])
    assert f"**{len(records)} of 16 distinct codes kept ({percent(len(records), 16)}): " in text
    manifest = read_manifest(snapshot)
    assert manifest.counts["stages"] == codes
    first, *lines = summary_text(Path("out"), manifest, as_json=False).split("\n")
    assert first == "16 distinct codes of 17 networks, in 32 rows; 3 rows without usable code"
    assert {line.split()[0]: number(line.split()[1]) for line in lines[: len(codes)]} == codes
    shown = {cells[0]: cells for cells in table_of(text, "By prefix")}
    assert {name: number(cells[1]) for name, cells in shown.items()} == Counter(row["prefix"] for row in networks)
    for name, cells in shown.items():
        own = [row for row in records if row["prefix"] == name]
        splits = [sum(row["split"] == split for row in own) for split in ("train", "validation", "test")]
        assert [*map(number, cells[-3:])] == splits
        assert number(cells[-5]) == len(own)
        graphs = [row["graph"] for row in networks if row["prefix"] == name and row["graph"]]
        assert cells[2] == (f"{len(set(graphs))} of {len(graphs)}" if graphs else "–")
        assert cells[-4] == percent(number(cells[1]) - len(own), number(cells[1]))
    for split, *cells in table_of(text, "Splits"):
        own = Counter(row["cluster"] for row in records if row["split"] == split)
        sizes = (own.total(), len(own), max(own.values(), default=0))
        assert (number(cells[0]), number(cells[2]), number(cells[3])) == sizes


def test_every_usable_code_has_one_row(snapshot: Path) -> None:
    networks = pq.read_table(snapshot / "networks.parquet").to_pylist()
    expected: dict[str, set[str]] = {}
    for item in small_corpus()[:-3]:
        expected.setdefault(hashlib.sha256(item["nn_code"].encode()).hexdigest(), set()).add(item["nn"])
    assert {row["id"]: set(row["names"]) for row in networks} == expected
    assert len(networks) == len(expected)
    assert all(hashlib.sha256(row["nn_code"].encode()).hexdigest() == row["id"] for row in networks)
    assert [(row["nn"], row["id"]) for row in networks] == sorted((row["nn"], row["id"]) for row in networks)
    records = pq.read_table(snapshot / "data" / "records").to_pylist()
    assert {row["id"] for row in networks if row["kept"]} == {row["id"] for row in records}
    stats = pq.read_table(snapshot / "data" / "stats").to_pylist()
    assert Counter(stat["nn"] for stat in stats) == Counter(item["nn"] for item in small_corpus()[:-3])
    loaded = load_dataset(str(snapshot), "networks", split="full", cache_dir=str(snapshot.parent / "loaded"))
    assert loaded["nn_code"][:] == [row["nn_code"] for row in networks]


def test_accuracies_off_the_scale_are_listed(run: Run) -> None:
    many = [network([n % 8, 3, n // 8, 5, n % 8, 7 - n % 8]) for n in range(9)]
    rows = [row(f"net-{n}", code, 1, n / 10) for n, code in enumerate(many)]
    text = report_of(run([*rows, row("off", network([2, 7, 2, 6, 4, 4, 1]), 1, 45.0)]))
    assert "- outside 0 to 1: row 9: accuracy 45\n" in text
    assert "outside 0 to 1" not in report_of(run(rows, "fractions"))


def test_removals_by_text_are_said_to_be_that(snapshot: Path, run: Run) -> None:
    """In the report and the card, and only where there are some."""
    claim = "2 computed the same as the kept network, 19 the same up to widths, 79 another architecture"
    for text in (report_of(snapshot), (snapshot / "README.md").read_text()):
        assert claim in " ".join(text.split())
        assert "`--graph keep-different`" in text
    alone = run(small_corpus()[:3], "alone")
    assert all("another architecture" not in text for text in (report_of(alone), (alone / "README.md").read_text()))
    assert "\nWhat is it for? This one for fine-tuning on code, where" in report_of(alone)


def test_options_and_what_they_left_out_are_told(run: Run) -> None:
    text = report_of(run(small_corpus(), min_per_prefix=1, prefer=("ga", "nowhere")))
    assert "- prefer: ga, nowhere\n" in text
    assert "Not everything could be done as asked:\n\n- minimum of prefix nowhere: 0 kept, 1 required" in text
    assert "\n- preference of prefix nowhere: it has no records\n" in text
    folder = run(small_corpus(), "ga", include=("ga",))
    assert " (include: ga left out " in (folder / "README.md").read_text()
    stages = Counter(item["stage"] for item in pq.read_table(folder / "decisions.parquet").to_pylist())
    steps = {cells[0]: cells for cells in table_of(report_of(folder), "From rows to records")}
    assert number(steps["left out by an option"][1]) == stages["filter"] > number(steps["left out by an option"][2])
    left_out = table_of(report_of(folder), "By prefix")[-1]
    assert left_out[0] == "4 others"  # alt, ast, loads, rag
    assert left_out[-4:] == ["–", "0", "0", "0"], "a share of nothing is none"


def test_invalid_rows_are_grouped_by_reason(snapshot: Path) -> None:
    assert table_of(report_of(snapshot), "Invalid rows") == [
        ["not Python for this interpreter: line N: invalid syntax", "29: broken-1, 30: broken-2", "2"],
        ["nn\\_code is missing", "31: empty", "1"],
    ]


@pytest.mark.parametrize(
    ("codes", "result"),
    [
        ([network([0, 1, 2])], "1 of 1 distinct code kept (100 %): "),
        (["class Net(Module): x = 1\n", "class Net(Module): x  =  1\n"], "1 of 2 distinct codes kept"),
    ],
)
def test_few_codes(run: Run, codes: list[str], result: str) -> None:
    assert f"**{result}" in report_of(run([row("a-1", code) for code in codes], lexical_threshold=1.0))


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_odd_names_and_codes_break_no_table(run: Run) -> None:
    names = ("a|b-1", "``tick`-1", "$x_{$-1", "new\nline-1", "網路-1", "\u202eleft-1", " -1", "", "<b>-1", "back\\|-1")
    hostile = '"""\n```\n\x0c| a | b |\n````\n"""\n'
    rows = [row(name, hostile + network([0, 1, place % 8, place // 8])) for place, name in enumerate(names)]
    rows += [row("bad|\n`name`", "class ("), row("bad2", "class X:\n  `|`")]
    text = report_of(run(rows, lexical_threshold=0.5))
    assert sum(number(cells[1]) for cells in table_of(text, "By prefix")) == 10
    assert "| a&#124;b |" in text
    width = 0
    for line in text.split("\n"):
        assert all(char.isprintable() or char == "\t" for char in line)
        cells = line.count("|") if line.startswith("|") else 0
        assert not width or not cells or cells == width, line
        width = cells


def test_long_tails_are_folded(run: Run) -> None:
    generator = random.Random(3)
    codes = [
        network([generator.randrange(8) for _ in range(9)], extra=f"    layer = nn.Layer{place}()\n")
        for place in range(30)
    ]
    prefixes = table_of(report_of(run([row(f"p{n:02}-x", code) for n, code in enumerate(codes)])), "By prefix")
    assert (len(prefixes), prefixes[-1][0]) == (21, "10 others")
    assert sum(number(cells[1]) for cells in prefixes) == 30


def test_two_runs_give_the_same_bytes_whatever_the_order(run: Run, tmp_path: Path) -> None:
    rows = small_corpus()[:-3]  # unusable rows are named by their number
    before = run(rows, "before")
    random.Random(5).shuffle(rows)
    after = run(rows, "after", jobs=2)
    for name in ("report.md", "networks.parquet"):
        assert (before / name).read_bytes() == (after / name).read_bytes(), name
    assert str(tmp_path) not in report_of(before)


def test_numbers_are_never_rounded_to_all_or_nothing() -> None:
    shares = {
        (0, 9): "0 %",
        (9, 9): "100 %",
        (0, 0): "–",
        (1, 9999): "< 0.1 %",
        (9998, 9999): "> 99.9 %",
        (1, 3): "33.3 %",
    }
    assert {parts: percent(*parts) for parts in shares} == shares
    ratios = {0.8999999: "0.899", 0.9: "0.900", 0.99999: "0.999", 1.0: "1.000"}
    assert {value: ratio(value) for value in ratios} == ratios


def test_markdown_is_safe() -> None:
    assert code_span("plain-name_1") == "`plain-name_1`"
    assert code_span("a|b`c\\") == "<code>a&#124;b&#96;c&#92;</code>"
    assert code_span("a\nb\x1b[0m") == "<code>a&#92;nb&#92;x1b&#91;0m</code>"
    assert code_span("") == code_span(" \t") == "(no name)"
    assert code_span("x" * 100, 10) == "`xxxxxxxxxx …`"
    assert plain("a|b *c* <d> [e](f)") == "a&#124;b \\*c\\* \\<d\\> \\[e\\](f)"
    assert block(["a", "`````", "b"], "diff") == ["``````diff", "a", "`````", "b", "``````", ""]
    assert table(["", "n"], [["x", "1"]]) == ["|  | n |", "| :-- | --: |", "| x | 1 |", ""]
