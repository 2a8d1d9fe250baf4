"""One regression test for each verified defect of nn-dup 2.2.4 that curation must not have.

Each corpus is built so that the peer's way of deciding would fail the test. `test_guarantees.py` has 1 to 5 (chains, near
pairs that are kept, leakage, order, witnesses that are not kept or not near) and 11 (support of prefixes) on drawn corpora,
the tables of tokens and fingerprints 9 (layouts that are valid) and 10 (boilerplate, positions, bases).
"""

import ast
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate.compute.outcome import count_decisions
from curate.folder.snapshot import write_snapshot_tables

Network = Callable[..., str]


def different(network: Network, count: int) -> list[str]:
    dice = random.Random(11)
    return [network([dice.randrange(12) for _ in range(16)], name=f"Net{'ABCDEFGHIJ'[i % 10]}") for i in range(count)]


def test_defect_06_further_rows_are_no_duplicates(network: Network, curated: Any) -> None:
    """`exact` counts networks with the same code, or the same but for comments and layout; epochs are `repeat`."""
    one, two, three = different(network, 3)
    remarked = "# a remark\n" + one.replace("(self, in_shape,", "(\n            self, in_shape,")
    assert ast.dump(ast.parse(remarked)) == ast.dump(ast.parse(one))
    rows = [{"nn": nn, "nn_code": code, "epoch": epoch, "accuracy": 0.5} for epoch in range(1, 6) for nn, code in
            (("a-1", one), ("a-2", two), ("a-3", three))]  # fmt: skip
    rows += [
        {"nn": "b-1", "nn_code": one},
        {"nn": "b-1", "nn_code": one, "epoch": 2},
        {"nn": "c-1", "nn_code": remarked},
    ]
    result = curated(rows)
    counts = count_decisions(result.corpus, result.outcome)
    assert counts["rows"]["repeat"] == 3 * 4 + 1
    assert counts["rows"]["exact"] == 2
    assert counts["rows"]["kept"] == 3
    assert (counts["networks"], counts["names"], counts["codes"], counts["trees"]) == (5, 5, 4, 3)
    reasons = {d.reason for d in result.decisions if d.stage == "exact"}
    assert reasons == {"same code as a-1", "same code as a-1 but for comments, docstrings and layout"}


def test_defect_07_benchmarks_are_not_compared_raw(network: Network, curated: Any, tmp_path: Path) -> None:
    """The best on CIFAR-10 stands for a group, not the one whose easier benchmark gives higher figures; ties do not go
    to the longer code; and the record says where its accuracy comes from."""
    blocks = [0, 1, 2, 3, 4, 6]
    good, weak = network(blocks, width=64), network(blocks, width=128) + "\n\ndef unused(a, b):\n    return a + b\n"
    others = different(network, 8)
    cifar = {"task": "img-classification", "dataset": "cifar-10", "metric": "acc", "epoch": 5, "prm": '{"lr": 0.1}'}
    mnist = {**cifar, "dataset": "mnist"}
    rows = [{"nn": "ga-good", "nn_code": good, "accuracy": 0.92, **cifar}]
    rows += [{"nn": "ga-weak", "nn_code": weak, "accuracy": 0.98, **mnist}]
    for i, code in enumerate(others):
        rows += [{"nn": f"o-{i}", "nn_code": code, "accuracy": 0.5 + i / 50, **cifar}]
        rows += [{"nn": f"o-{i}", "nn_code": code, "accuracy": 0.99, **mnist}]
    result = curated(rows)
    assert good in result.kept
    assert result.decisions[1].stage == "lexical"
    tied = curated([{"nn": "n-2", "nn_code": weak, "accuracy": 0.5}, {"nn": "n-1", "nn_code": good, "accuracy": 0.5}])
    assert tied.kept == [good]
    write_snapshot_tables(tmp_path, result.corpus, result.outcome, iter(()))
    records = pq.read_table(sorted((tmp_path / "data" / "records").glob("*.parquet"))).to_pylist()
    (record,) = [record for record in records if record["nn"] == "ga-good"]
    assert {name: record[name] for name in cifar} == cifar
    assert record["accuracy"] == 0.92
    assert record["score"] == pytest.approx((9 / 19 * (8.5 / 9) + 0.5) / (9 / 19 + 1))


def test_defect_08_what_the_fingerprints_do_not_see_is_told(network: Network, curated: Any) -> None:
    """Another activation, width or depth looks the same to the published tokens. The reason says so, `literal` tokens
    keep them apart, and the structural fingerprint sees what changes layers."""
    blocks = [0, 1, 4, 0, 1, 4]
    relu = network(blocks)
    gelu = relu.replace("torch.relu(", "torch.nn.functional.gelu(").replace("torch.nn.functional.", "torch.")
    deeper = network([*blocks, 0, 1, 4])
    for other in (gelu, deeper):
        rows = [{"nn": "a-1", "nn_code": relu}, {"nn": "a-2", "nn_code": other}]
        abstract = curated(rows)
        assert abstract.kept_names() == ["a-1"]
        assert abstract.decisions[1].reason == "same shingles as a-1; names, numbers or repetitions differ"
    both = [{"nn": "a-1", "nn_code": relu}, {"nn": "a-2", "nn_code": gelu}, {"nn": "a-3", "nn_code": deeper}]
    assert len(curated(both, tokens="literal").kept) == 3
    assert len(curated(both, tokens="literal", structural_threshold=0.5, lexical_threshold=0.5).kept) == 1
