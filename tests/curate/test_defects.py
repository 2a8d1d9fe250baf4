"""One regression test for each verified defect of nn-dup 2.2.4 that curation must not have.

Each corpus is built so that the peer's way of deciding would fail the test. `test_guarantees.py` has 1 to 5 (chains, near
pairs that are kept, leakage, order, witnesses that are not kept or not near) and 11 (support of prefixes) on drawn corpora.
"""

import ast
import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate.folder.snapshot import write_snapshot_tables
from curate.model.features import Features, code_features
from curate.published.outcome import count_decisions
from lemur_core.similarity.outline import outline_tree
from lemur_core.similarity.tokens import region_tokens

Network = Callable[..., str]


@functools.cache
def features_of(code: str, detail: str = "abstract") -> Features:
    found = code_features(code, detail)  # type: ignore[arg-type]
    assert isinstance(found, Features), found
    return found


@functools.cache
def shingles_of(code: str, detail: str) -> frozenset[int]:
    return frozenset(features_of(code, detail).shingles.tolist())


@functools.cache
def lexical(a: str, b: str, detail: str = "abstract") -> float:
    first, second = (shingles_of(code, detail) for code in (a, b))
    return len(first & second) / len(first | second)


def structural(a: str, b: str) -> float:
    first, second = (set(features_of(code).elements.tolist()) for code in (a, b))
    return len(first & second) / len(first | second)


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
    assert lexical(good, weak) >= 0.90
    result = curated(rows)
    assert good in result.kept
    assert weak not in result.kept
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
    assert lexical(relu, gelu) == lexical(relu, deeper) == 1.0
    for other in (gelu, deeper):
        rows = [{"nn": "a-1", "nn_code": relu}, {"nn": "a-2", "nn_code": other}]
        abstract, literal = curated(rows), curated(rows, tokens="literal")
        assert abstract.kept_names() == ["a-1"]
        assert abstract.decisions[1].reason == "same shingles as a-1; names, numbers or repetitions differ"
        assert literal.options.structural_threshold == 0.95
        assert lexical(relu, other, "literal") < lexical(relu, other)
        assert features_of(relu).fingerprint != features_of(other).fingerprint
        assert structural(relu, other) < 1.0
    both = [{"nn": "a-1", "nn_code": relu}, {"nn": "a-2", "nn_code": gelu}, {"nn": "a-3", "nn_code": deeper}]
    assert len(curated(both, tokens="literal").kept) == 3
    assert len(curated(both, tokens="literal", structural_threshold=0.5, lexical_threshold=0.5).kept) == 1


@pytest.mark.parametrize(
    "layout",
    [
        "class Net(nn.Module):\n    def forward(self, x):\n        y = x + \\\n1\n        return \\\ny * {}\n",
        "class Net(nn.Module):\n\tdef forward(self, x):\n\t\tif x:\n\t\t\treturn x ** {}\n\t\treturn x\n",
        "class Net(nn.Module):\n    def forward(self, x):\n    \tif x:\n    \t    return -x // {}\n    \treturn x\n",
        "class Net(nn.Module):\n    def forward(self, x): return (x\n)[{}]\n",
    ],
)
def test_defect_09_valid_code_has_tokens(curated: Any, layout: str) -> None:
    """Bare continuation lines and tabs are valid Python: such codes are read, and merged only for what they say."""
    one = layout.format("Conv2d(x)")
    two = layout.format("max(ResNet(x, x, x), key=lambda LayerNorm: [LayerNorm, LayerNorm.A, LayerNorm.B])")
    for code in (one, two):
        ast.parse(code)
        assert len(features_of(code).shingles) > 5
        tokens, declared = region_tokens(code, outline_tree(ast.parse(code)))
        assert tokens[:5] == ["class", "Net", "(", "nn", "."]
        assert declared == {"Net", "forward"}
    assert lexical(one, two) < 0.90
    broken = [layout.format("("), layout.format(")")]
    rows = [{"nn": f"n-{i}", "nn_code": code} for i, code in enumerate([one, two, *broken])]
    result = curated(rows)
    assert sorted(result.kept) == sorted([one, two])
    assert [d.stage for d in result.decisions[2:]] == ["invalid", "invalid"]
    assert all(d.canonical is None for d in result.decisions[2:])


def test_defect_10_boilerplate_and_positions(network: Network, curated: Any) -> None:
    """The training glue of the contract does not count, positional sizes do, and a network is one whatever its base."""
    blocks = [0, 1, 4, 7]
    with_glue, without = network(blocks), network(blocks, glue=False)
    assert features_of(with_glue).fingerprint == features_of(without).fingerprint
    one = "class Net(nn.Module):\n    def __init__(self):\n        self.a = nn.Conv2d({}, {}, {})\n"
    keywords = "class Net(nn.Module):\n    def __init__(self):\n        self.a = nn.Conv2d({}, kernel_size={}, out_channels={})\n"
    assert features_of(one.format(3, 64, 7)).fingerprint == features_of(keywords.format(3, 7, 64)).fingerprint
    assert features_of(one.format(3, 64, 7)).fingerprint != features_of(one.format(3, 64, 1)).fingerprint
    assert features_of(one.format(3, 64, 7)).fingerprint != features_of(one.format(3, 512, 7)).fingerprint
    for base in ("nn.Sequential", "ResNet", "Base"):
        # the architecture is in a class whose base is not spelled Module: it is compared, and told apart
        shared = "import torch.nn as nn\n\nclass Helper(nn.Module):\n    pass\n\n\n"
        first = shared + network([0, 1, 4, 7], base=base)
        second = shared + network([6, 9, 11, 2], base=base)
        assert lexical(first, second) < 0.90
        rows = [{"nn": "a", "nn_code": first}, {"nn": "b", "nn_code": second}]
        assert len(curated(rows).kept) == 2
