"""The report of a curation: what it says is what the decisions say, whatever the input looks like."""

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate.folder.report import write_report
from curate.model.corpus import CodeFile, read_corpus
from curate.model.options import CurateOptions
from curate.published.outcome import CurationOutcome, count_decisions
from curate.run.pipeline import curate
from curate.sources import open_source
from lemur_core.files.markdown import block, code_span, percent, plain, ratio, table
from lemur_core.similarity.index import Verdict
from tests.curate.conftest import warm_features

Row = dict[str, Any]

LAYERS = (
    "nn.Conv2d(64, 64, kernel_size=3, padding=1, bias=False)",
    "nn.Sequential(nn.Linear(64, 64), nn.ReLU(inplace=True))",
    "nn.LSTM(64, 64, num_layers=2, batch_first=True)",
    "nn.MultiheadAttention(64, num_heads=4) if train else nn.Identity()",
    "nn.ModuleList([nn.GroupNorm(4, 64) for i in range(3)])",
    "[nn.GELU(), nn.SiLU(), nn.ELU()][depth % 3]",
    "nn.Parameter(torch.zeros(1, 64, 1, 1)) + nn.Dropout(p=0.5)(x)",
    "nn.MaxPool2d(2) or nn.AvgPool2d(2, stride=2, ceil_mode=True)",
)
PRETRAINED = "torchvision.models.resnet18(weights='DEFAULT')"


def network(layers: Sequence[int], *, width: int = 64, note: str = "", extra: str = "", other: int = 0) -> str:
    """A network of the given layers: `width` changes literals only, `note` a comment, `other` code beside the class."""
    lines = ["import torch", "import torchvision", "from torch import nn", f"# {note}", "", "class Net(nn.Module):"]
    lines += ["    def __init__(self, in_shape, out_shape, prm, device):", "        super().__init__()"]
    lines += [f"        self.layer{i} = {LAYERS[k]}".replace("64", str(width)) for i, k in enumerate(layers)]
    lines += [f"        self.backbone = {extra}"] if extra else []
    lines += ["    def forward(self, x):"]
    lines += [f"        x = self.layer{i}(x)" for i in range(len(layers))]
    return "\n".join([*lines, "        return x", "", f"seed = {other}"]) + "\n"


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
    rows += [row("rag-comment", network(base[0], note="another remark"), 1, 0.2)]
    rows += [row(f"ga-{width}", network(base[1], width=width), 1, 0.1) for width in range(32, 38)]
    rows += [row("ga-glue", network(base[1], other=7), 1, 0.1), row("ga-glue", network(base[1], other=7), 2, 0.1)]
    rows += [row("ast-long", network([*base[2] * 3, 0]), 1, 0.1)]
    rows += [row("loads-weights", network([4, 2, 0, 7, 1, 3], extra=PRETRAINED), 1, 0.95)]
    rows += [row("ga-loads", network(base[3], extra="None"), 1, 0.1)]
    return [*rows, row("broken-1", "class Net(:\n"), row("broken-2", "x = 1\nclass Net(:\n"), row("empty", None)]


def curate_rows(folder: Path, rows: Sequence[Row], name: str = "out", **options: Any) -> Path:
    """The snapshot folder of a curation of a JSONL file."""
    chosen = CurateOptions(**options)
    curate(open_source(str(write_rows(folder / "rows.jsonl", rows, chosen))), folder / name, chosen, jobs=1)
    return folder / name


Run = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`run(rows, name, **options)`: the snapshot folder of a curation."""

    def run_here(rows: Sequence[Row], name: str = "out", **options: Any) -> Path:
        return curate_rows(tmp_path, rows, name, **options)

    return run_here


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The curation of the small corpus."""
    return curate_rows(tmp_path_factory.mktemp("small"), small_corpus())


def write_rows(path: Path, rows: Sequence[Row], options: CurateOptions) -> Path:
    """Rows as a file; the features are worked out here, so that no worker process has to start for them."""
    warm_features((item["nn_code"] for item in rows if item["nn_code"]), options.tokens)
    path.write_text("".join(json.dumps(item) + "\n" for item in rows))
    return path


def report_of(folder: Path) -> str:
    text = (folder / "report.md").read_text(encoding="utf-8")
    check_markdown(text)
    return text


def check_markdown(text: str) -> None:
    """Every table is rectangular, every block closed, and nothing invisible is left."""
    assert text.endswith("\n")
    assert all(char.isprintable() or char in "\n\t" for char in text)
    fence, width = "", 0
    for line in text.split("\n"):
        if match := re.match("(`{3,})", line):
            if not fence:
                fence = match[1]
            elif line == fence:
                fence = ""
            continue
        if fence:
            continue
        cells = line.count("|") if line.startswith("|") else 0
        assert not width or not cells or cells == width, line
        assert cells or "|" not in line, line
        width = cells
    assert not fence


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


# --- numbers ----------------------------------------------------------------------------------------------------


def test_funnel_is_that_of_the_decisions(snapshot: Path) -> None:
    folder = snapshot
    decisions = pq.read_table(folder / "decisions.parquet").to_pylist()
    stages = Counter(item["stage"] or "kept" for item in decisions)
    assert {"invalid", "repeat", "exact", "lexical", "kept"} <= set(stages)
    steps = {cells[0]: cells for cells in table_of(report_of(folder), "From rows to records")}
    assert number(steps["in"][1]) == len(decisions) == 32
    labels = {
        "invalid: no code, or not Python": "invalid",
        "further rows of a network": "repeat",
        "exact duplicates": "exact",
        "lexical near-duplicates": "lexical",
        "structural near-duplicates": "structural",
        "kept": "kept",
    }
    assert {labels[label]: number(cells[1]) for label, cells in steps.items() if label != "in"} == {
        stage: stages[stage] for stage in labels.values()
    }
    assert steps["further rows of a network"][2:] == ["", "", ""]
    removed = {item["id"]: item["stage"] for item in decisions if item["stage"] in ("exact", "lexical", "structural")}
    kept = {item["id"] for item in decisions if item["kept"]}
    codes = Counter(stage for id_, stage in removed.items() if id_ not in kept)
    for label in ("exact duplicates", "lexical near-duplicates", "structural near-duplicates"):
        assert number(steps[label][3]) == codes[labels[label]], label
    assert number(steps["kept"][3]) == len(kept)
    usable = [item for item in decisions if item["stage"] != "invalid"]
    assert number(steps["in"][2]) == len({(item["nn"], item["id"]) for item in usable})
    assert number(steps["in"][3]) == len({item["id"] for item in usable})
    for column in (1, 2, 3):
        parts = [number(cells[column]) for label, cells in steps.items() if label != "in" and cells[column]]
        assert sum(parts) == number(steps["in"][column])
    share = 100 * len(kept) / number(steps["in"][3])
    assert steps["kept"][4] == f"{share:.1f} %"


def test_groups_and_splits_are_those_of_the_tables(snapshot: Path) -> None:
    folder = snapshot
    text = report_of(folder)
    decisions = [item for item in pq.read_table(folder / "decisions.parquet").to_pylist() if item["id"]]
    records = pq.read_table(folder / "data" / "records").to_pylist()
    networks = {(item["nn"].split("-")[0], item["nn"], item["id"]) for item in decisions if item["stage"] != "invalid"}
    before = Counter(prefix for prefix, _, _ in networks)
    after = Counter(record["prefix"] for record in records)
    prefixes = {cells[0]: cells for cells in table_of(text, "By prefix")}
    assert {name: number(cells[1]) for name, cells in prefixes.items()} == before
    assert {name: number(cells[-3]) for name, cells in prefixes.items()} == {name: after[name] for name in before}
    assert prefixes["ga"][-2] == f"{100 * (before['ga'] - after['ga']) / before['ga']:.0f} %" == "100 %"
    families = {cells[0]: number(cells[-3]) for cells in table_of(text, "By family")}
    assert {name: kept for name, kept in families.items() if kept} == Counter(record["family"] for record in records)
    splits = {cells[0]: cells for cells in table_of(text, "Splits")}
    assert {name: number(cells[1]) for name, cells in splits.items() if number(cells[1])} == Counter(
        record["split"] for record in records
    )
    assert sum(number(cells[3]) for cells in splits.values()) == len({record["cluster"] for record in records})


def test_shares_of_the_splits_are_those_of_the_tables(run: Run) -> None:
    dice = random.Random(1)
    codes = [network([dice.randrange(8) for _ in range(12)], width=32 + 8 * n) for n in range(60)]
    rows = [row(f"{'alt' if n % 4 else 'rl'}-{n}", code, 1, n / 100) for n, code in enumerate(codes)]
    folder = run([*rows, row("only", network([1, 2, 3, 4]), 1, 0.5)], graph="off")
    records = pq.read_table(folder / "data" / "records").to_pylist()
    text = report_of(folder)
    tables = text[text.index("## Splits") :].split("\n\n| ")[2:4]
    for column, lines_of in zip(("prefix", "family"), tables, strict=True):
        lines = [[cell.strip().strip("`") for cell in line.strip("| ").split(" | ")] for line in lines_of.split("\n")]
        assert lines[0] == [column, "train", "validation", "test"]
        shown = [cells for cells in lines[2:] if len(cells) == 4]
        for place, split in enumerate(("train", "validation", "test"), start=1):
            of_split = [record for record in records if record["split"] == split]
            assert sum(number(cells[place]) for cells in shown) == len(of_split)
            for cells in shown:
                if not cells[0].endswith("others"):
                    count = sum(record[column] == cells[0] for record in of_split)
                    assert cells[place] == f"{count} ({percent(count, len(of_split))})"


def test_accuracies_off_the_scale_are_listed(run: Run) -> None:
    many = [network([n % 8, 3, n // 8, 5, n % 8, 7 - n % 8]) for n in range(9)]
    rows = [row(f"net-{n}", code, 1, n / 10) for n, code in enumerate(many)]
    text = report_of(run([*rows, row("off", network([2, 7, 2, 6, 4, 4, 1]), 1, 45.0)], graph="off"))
    assert "1 accuracy lies outside 0 to 1" in text
    (cells,) = table_of(text, "Accuracies off their scale")
    assert cells == ["off", "45", "img-classification", "cifar-10", "acc", "1"]
    assert "outside 0 to 1" not in report_of(run(rows, "fractions", graph="off"))


def test_largest_groups_are_those_of_the_decisions(snapshot: Path) -> None:
    folder = snapshot
    text = report_of(folder)
    decisions = pq.read_table(folder / "decisions.parquet").to_pylist()
    kept = {item["id"]: item["nn"] for item in decisions if item["kept"]}
    members: dict[str, dict[str, Any]] = {}
    for item in decisions:
        if item["stage"] in ("exact", "lexical", "structural") and item["id"] not in kept:
            members.setdefault(kept[item["canonical"]], {})[item["id"]] = item
    groups = {cells[1]: cells for cells in table_of(text, "The largest groups")}
    assert {name: number(cells[3]) for name, cells in groups.items()} == {
        name: len(group) + 1 for name, group in members.items()
    }
    sizes = [number(cells[3]) for cells in groups.values()]
    assert sizes == sorted(sizes, reverse=True)
    for name, group in members.items():
        assert groups[name][4] == ratio(min(item["similarity"] for item in group.values()))


def test_removals_by_text_are_said_to_be_that(snapshot: Path, run: Run) -> None:
    """In the report and the card, and only where there are some."""
    claim = "2 computed the same as the kept network, 19 the same up to widths, 79 another architecture"
    for text in (report_of(snapshot), (snapshot / "README.md").read_text()):
        assert claim in " ".join(text.split())
        assert "`--graph keep-different`" in text
    alone = run(small_corpus()[:3], "alone", graph="off")
    assert all("--graph keep-different" not in text for text in (report_of(alone), (alone / "README.md").read_text()))


# --- options ----------------------------------------------------------------------------------------------------


def test_options_are_told(run: Run) -> None:
    text = report_of(run(small_corpus(), min_per_prefix=1, prefer=("ga", "nowhere")))
    assert "prefer `ga`, `nowhere`" in text
    assert "Not everything could be done as asked:\n\n- minimum of prefix nowhere: 0 kept, 1 required" in text


def test_invalid_rows_are_grouped_by_reason(snapshot: Path) -> None:
    reasons = table_of(report_of(snapshot), "Invalid rows")
    assert [(cells[0], number(cells[2])) for cells in reasons] == [
        ("not Python: line N: invalid syntax", 2),
        ("nn\\_code is missing", 1),
    ]
    assert reasons[0][1] == "29: `broken-1`, 30: `broken-2"


def test_left_out_rows_have_their_line(run: Run) -> None:
    folder = run(small_corpus(), include=("ga",))
    stages = Counter(item["stage"] for item in pq.read_table(folder / "decisions.parquet").to_pylist())
    steps = {cells[0]: cells for cells in table_of(report_of(folder), "From rows to records")}
    assert number(steps["left out by an option"][1]) == stages["filter"] > number(steps["left out by an option"][2])
    left_out = table_of(report_of(folder), "By prefix")[-1]
    assert left_out[0] == "4 left out by an option"  # alt, ast, loads, rag
    assert left_out[-2:] == ["–", "0 %"]


# --- odd inputs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "options", "result"),
    [
        ([row("only", network([0, 1, 2]))], {}, "1 of 1 distinct code kept (100 %)"),
        ([row("a-1", network([0, 1, 2])), row("b-1", network([5, 6, 7]))], {}, "2 of 2 distinct codes kept (100 %)"),
        (
            [row("a-1", "class Net(Module): x = 1\n"), row("a-1", "class Net(Module): x  =  1\n")],
            {"lexical_threshold": 1.0},
            "1 of 2 distinct codes kept",
        ),
        (
            [row("a-1", "class Net(Module): x = 1\n"), row("b", "class Net(Module): y = 2\n")],
            {"lexical_threshold": 0.5},
            "1 of 2 distinct codes kept",
        ),
    ],
)
def test_odd_inputs(run: Run, rows: list[Row], options: dict[str, Any], result: str) -> None:
    assert f"**{result}" in report_of(run(rows, **options))


def written(folder: Path, rows: Sequence[Row], decisions: list[Verdict], options: CurateOptions, **kept: Any) -> str:
    """The report of given decisions."""
    folder.mkdir(exist_ok=True)
    source = open_source(str(write_rows(folder / "rows.jsonl", rows, options)))
    nothing: dict[str, Any] = {
        "kept": [],
        "representatives": {},
        "splits": {},
        "clusters": {},
        "families": {},
        "scores": {},
    }
    outcome = CurationOutcome(decisions, **{**nothing, "weights": {}, **kept})
    with CodeFile(folder / "codes") as file:
        corpus = read_corpus(source, file, options.tokens, jobs=1)
        write_report(folder, corpus, outcome, count_decisions(corpus, outcome), options, source.name)
    return report_of(folder)


def test_nothing_is_left(tmp_path: Path) -> None:
    invalid = Verdict("invalid", None, None, "not Python")
    text = written(tmp_path / "invalid", [row("a", "class ("), row("b", None)], [invalid] * 2, CurateOptions())
    assert "**0 of 0 distinct codes kept (–).**" in text
    assert [cells[0] for cells in table_of(text, "Invalid rows")] == ["not Python"]
    left_out = Verdict("filter", None, None, "left out")
    text = written(
        tmp_path / "filter", [row("a-1", network([0])), row("b", network([1]))], [left_out] * 2, CurateOptions()
    )
    assert "**0 of 2 distinct codes kept (0 %).**" in text


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_odd_names_and_codes(run: Run) -> None:
    names = ("a|b-1", "``tick`-1", "$x_{$-1", "new\nline-1", "網路-1", "\u202eleft-1", " -1", "", "<b>-1", "back\\|-1")
    hostile = '"""\n```\n\x0c| a | b |\n````\n"""\n'
    rows = [row(name, hostile + network([0, 1, place % 8])) for place, name in enumerate(names)]
    rows += [row(f"{name}x", network([0, 1, place % 8])) for place, name in enumerate(names)]
    rows += [row("bad|\n`name`", "class ("), row("bad2", "class X:\n  `|`")]
    folder = run(rows, lexical_threshold=0.5)
    text = report_of(folder)
    prefixes = table_of(text, "By prefix")
    assert sum(number(cells[1]) for cells in prefixes) == len({item["nn"] for item in rows[:-2]})
    assert "<code>a&#124;b</code>" in text


def test_long_tails_are_folded(run: Run) -> None:
    generator = random.Random(3)
    rows = [
        row(f"p{place:02}-x", network([generator.randrange(8) for _ in range(9)], extra=f"nn.Layer{place}()"))
        for place in range(30)
    ]
    text = report_of(run(rows))
    prefixes = table_of(text, "By prefix")
    assert len(prefixes) == 21
    assert prefixes[-1][0] == "10 others"
    assert sum(number(cells[1]) for cells in prefixes) == 30


# --- determinism ------------------------------------------------------------------------------------------------


def test_two_runs_give_the_same_bytes_whatever_the_order(run: Run, tmp_path: Path) -> None:
    rows = small_corpus()[:-3]  # unusable rows are named by their number
    before = run(rows, "before")
    random.Random(5).shuffle(rows)
    after = run(rows, "after")
    assert report_of(before) == report_of(after)
    assert str(tmp_path) not in report_of(before)


def test_a_kept_record_goes_by_the_name_that_shows_it(tmp_path: Path) -> None:
    rows = [row("a-twin", network([0, 1])), row("b-shown", network([0, 1])), row("c-1", network([5, 3]))]
    decisions = [Verdict(None, 0, None, "kept") for _ in range(2)]
    decisions.append(Verdict("structural", 0, 0.9, "near"))
    kept = {"kept": [0], "representatives": {0: 1}, "splits": {0: "train"}, "families": {0: "f", 1: "f"}}
    text = written(tmp_path, rows, decisions, CurateOptions(), clusters={0: "g"}, **kept)
    assert [cells[1] for cells in table_of(text, "The largest groups")] == ["b-shown"]


# --- text -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 9, "0 %"), (9, 9, "100 %"), (0, 0, "–"), (1, 9999, "< 0.1 %"), (9998, 9999, "> 99.9 %"), (1, 3, "33.3 %")],
)
def test_percent(part: int, whole: int, text: str) -> None:
    assert percent(part, whole) == text


@pytest.mark.parametrize(("value", "text"), [(0.8999999, "0.899"), (0.9, "0.900"), (0.99999, "0.999"), (1.0, "1.000")])
def test_ratio_is_never_rounded_up(value: float, text: str) -> None:
    assert ratio(value) == text


def test_markdown_is_safe() -> None:
    assert code_span("plain-name_1") == "`plain-name_1`"
    assert code_span("a|b`c\\") == "<code>a&#124;b&#96;c&#92;</code>"
    assert code_span("a\nb\x1b[0m") == "<code>a&#92;nb&#92;x1b&#91;0m</code>"
    assert code_span("") == code_span(" \t") == "(no name)"
    assert code_span("x" * 100, 10) == "`xxxxxxxxxx …`"
    assert plain("a|b *c* <d> [e](f)") == "a&#124;b \\*c\\* \\<d\\> \\[e\\](f)"
    assert block(["a", "`````", "b"], "diff") == ["``````diff", "a", "`````", "b", "``````", ""]
    assert table(["", "n"], [["x", "1"]]) == ["|  | n |", "| :-- | --: |", "| x | 1 |", ""]


# --- the best on one benchmark ------------------------------------------------------------------------------------------


def test_the_ten_best_codes_on_cifar10(snapshot: Path) -> None:
    """A code counts once, by its best row; what loads weights is marked; removed codes are there too."""
    text = report_of(snapshot).partition("## Best on CIFAR-10")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    rows = [cells for cells in rows if cells[0].isdigit()]
    assert [int(cells[0]) for cells in rows] == list(range(1, 11))
    assert rows[0][1] == "`loads-weights`"
    assert rows[0][4:] == ["yes", "1", "95.00 %"]
    assert [cells[4:] for cells in rows[1:6]] == [["", "1", "90.00 %"]] * 5
    assert len({cells[2] for cells in rows}) == 10
    accuracies = [float(cells[6].removesuffix(" %")) for cells in rows]
    assert accuracies == sorted(accuracies, reverse=True)
    assert any(cells[3].startswith(("lexical", "structural", "exact")) for cells in rows)


def test_other_benchmarks_are_not_among_the_best(run: Run) -> None:
    rows = [row("alt-1", network([0, 1]), 1, 0.5), row("alt-2", network([3, 4, 5]), 1, 0.9) | {"dataset": "mnist"}]
    rows += [row("alt-3", network([6, 7, 2]), 1, 0.7) | {"metric": None}, row("alt-4", network([2, 2, 5, 1]), 1, 0.4)]
    text = report_of(run(rows)).partition("## Best on CIFAR-10")[2].partition("\n## ")[0]
    assert [name in text for name in ("alt-1", "alt-2", "alt-3", "alt-4")] == [True, False, False, True]
    assert "## Best on" not in report_of(run(rows[1:3], "none"))
