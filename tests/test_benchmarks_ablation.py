"""The ablation: what the documents link is made of the runs; runs of two processors are never paired."""

import json
import random
import statistics
from pathlib import Path

import pytest
from scipy.stats import ttest_1samp

from benchmarks.ablation import correct, pairs_needed, power, read, report

DOCS = Path(__file__).parents[1] / "docs"


def cells(lines: list[str]) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]


def test_the_record_of_the_differences_is_that_of_the_runs() -> None:
    records = (DOCS / "ablation" / "design.jsonl").read_text(encoding="utf-8").splitlines()
    recorded = json.loads((DOCS / "records" / "ablation.json").read_text(encoding="utf-8"))["result"]
    assert recorded == [line for line in "\n".join(report(*read(records))).splitlines() if line]


def test_runs_are_paired_by_seed_on_one_processor() -> None:
    full = {("A", "data", 0): 0.5, ("A", "data", 1): 0.6, ("B", "data", 1): 0.8, ("B", "data", 2): 0.5, ("B", "", 3): 0}
    other = {("A", "data", 0): 0.52, ("A", "data", 1): 0.61, ("B", "data", 1): 0.86, ("B", "data", 3): 0.9}
    lines = report({"full": full, "SEModule": other}, {"full": 1.0, "SEModule": 2.0})
    interval = ttest_1samp([2, 1, 6], 0).confidence_interval(0.95)
    whole, apart = cells(lines)[3], cells(lines)[-1]
    assert whole[:4] == ["SEModule", "3", f"+3.00 ({interval.low:+.2f} to {interval.high:+.2f})", "2.65"]
    assert [apart[1][:5], apart[1][-5:], apart[2]] == ["+1.50", "n = 2", "+6.00 (–), n = 1"]


def test_power_and_pairs_are_those_of_drawn_differences() -> None:
    differences = [0.004, -0.006, 0.011, 0.002, 0.009, -0.003]
    draw, spread = random.Random(0), statistics.stdev(differences)
    drawn = [[draw.gauss(0.005, spread) for _ in differences] for _ in range(2000)]
    seen = [float(ttest_1samp(each, 0).pvalue) < 0.05 for each in drawn]
    assert power(differences) == pytest.approx(statistics.fmean(seen), abs=0.03)
    n = pairs_needed(differences)
    halves = []
    for number in (n - 1, n):
        values = [spread, -spread] * (number // 2) + [0.0] * (number % 2)
        scaled = [value * spread / statistics.stdev(values) for value in values]
        halves.append(float(ttest_1samp(scaled, 0).confidence_interval(0.95).high) - statistics.fmean(scaled))
    assert halves[0] > 0.004 >= halves[1]
    corrected = {"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02}
    assert correct({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}) == pytest.approx(corrected)
