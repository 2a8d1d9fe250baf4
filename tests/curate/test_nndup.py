"""The profile nn-dup against the released package, and the quirks of that package one by one.

The package runs untouched in a process of its own; only its supplier of rows is replaced.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from datasketch import MinHash

from curate.compat.code import NnDupFeatures, get_family, nndup_features
from curate.compat.profile import NnDupResult, curate_nndup
from curate.compat.stages import SKETCH_OPTIONS, SKETCH_SCHEME
from curate.model.options import CurateOptions
from curate.sources.rows import RecordSource
from tests.builders.suites import read_files, read_table, table

TEXTS = read_files(__file__, "nndup.md")
PEER = TEXTS["PEER"]
ARGUMENT_OF = read_table(__file__, "nndup.md", "Argument of", globals())
CONSTANT_OF = {
    "lexical_threshold": "JACCARD_THRESH_LEX",
    "structural_threshold": "JACCARD_THRESH_STRUCT",
    "seed": "RANDOM_SEED",
}
STAGE_OF = read_table(__file__, "nndup.md", "Stage of", globals())
_options = functools.partial(CurateOptions, profile="nn-dup")
RUNS = read_table(__file__, "nndup.md", "Runs", globals())


class Row(NamedTuple):
    """One input row."""

    name: str
    code: str
    accuracy: float | None


def run_ours(rows: list[Row], options: CurateOptions) -> NnDupResult:
    codes = list(dict.fromkeys(row.code for row in rows))
    index = [codes.index(row.code) if row.code.strip() else -1 for row in rows]
    digests = [hashlib.sha256(code.encode()).hexdigest() for code in codes]
    features = [nndup_features(code) for code in codes]
    return curate_nndup([row.name for row in rows], index, [row.accuracy for row in rows], features, digests, options)


def run_peer(rows: list[Row], runs: dict[str, CurateOptions], folder: Path) -> None:
    """Run nn-dup once with each of the options; its output is then in folders of these names."""
    for package, bound in (("nn-dup", None), ("tqdm", None), ("pandas", 3)):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{package} is not installed")
        if (package == "nn-dup" and version != "2.2.4") or (bound and int(version.split(".")[0]) >= bound):
            pytest.skip(f"{package} {version} is installed; nn-dup 2.2.4 and pandas below 3 are needed")
    calls = {}
    for name, options in runs.items():
        values = {key: value for key, value in dataclasses.asdict(options).items() if value not in ((), None)}
        arguments = {ARGUMENT_OF[key]: value for key, value in values.items() if key in ARGUMENT_OF}
        calls[name] = arguments, {CONSTANT_OF[key]: value for key, value in values.items() if key in CONSTANT_OF}
    (folder / "rows.json").write_text(json.dumps(rows))
    (folder / "runs.json").write_text(json.dumps(calls))
    done = subprocess.run([sys.executable, "-P", "-c", PEER, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def assert_same(rows: list[Row], ours: NnDupResult, peer: Path) -> None:
    """Same rows kept, same stage for each removed one, same splits and families; and our own witnesses are sound."""

    def read(file: str) -> Any:
        return json.loads((peer / file).read_text()) if (peer / file).exists() else {}

    def number(record: str) -> int:
        digest, _, row = record.rpartition("_")
        assert digest == hashlib.sha256(rows[int(row)].code.encode()).hexdigest()
        return int(row)

    families = {number(record["id"]): record["family_tag"] for record in read("kept_records.json")}
    stages = {number(record): STAGE_OF[tomb["reason"]] for record, tomb in read("tombstones.json").items()}
    expected = {row: None if row in families else stages.get(row) for row in range(len(rows))}
    found = {
        row: None if decision.stage in ("filter", "invalid") else decision.stage
        for row, decision in enumerate(ours.decisions)
    }
    assert {row: (found[row], stage) for row, stage in expected.items() if found[row] != stage} == {}
    assert ours.families == families
    assert ours.splits == {
        number(record): {"dev": "validation"}.get(split, split) for record, split in read("splits.json").items()
    }
    for row, decision in enumerate(ours.decisions):
        assert (decision.stage is None) == (row in families)
        assert (decision.rescued is not None) == (row in families and row in stages)
        if decision.stage is None:
            assert decision.canonical == row
        elif decision.stage in ("filter", "invalid"):
            assert (decision.canonical, row in stages) == (None, False)
        else:
            assert decision.canonical in families
            assert decision.similarity is not None
            assert 0.0 <= decision.similarity <= 1.0


# Networks written for these tests.

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
TAIL = """
def train_setup(model, prm):
    model.optimizer = torch.optim.SGD(model.parameters(), lr=prm["lr"])
"""


def plain_net(rng: random.Random) -> str:
    depth, act = rng.randrange(2, 7), rng.choice(["relu", "gelu", "silu"])
    sizes = [(rng.choice([3, 16, 32]), rng.choice([16, 32, 64]), rng.choice([1, 3, 5])) for _ in range(depth)]
    layers = "".join(
        f"        self.conv{i} = nn.Conv2d({a}, {b}, kernel_size={k})\n" for i, (a, b, k) in enumerate(sizes)
    )
    calls = "".join(f"        x = F.{act}(self.conv{i}(x))\n" for i in range(depth))
    pool = rng.choice(["", "        x = F.max_pool2d(x, 2)\n", "        x = nn.AvgPool2d(2, stride=2)(x)\n"])
    return (
        f'{HEAD}class Net(nn.Module):\n    """A stack of {depth} convolutions."""\n\n    def __init__(self):\n'
        f"        super().__init__()\n{layers}        self.head = nn.Linear(64, 10)\n\n    def forward(self, x):\n"
        f"{calls}{pool}        return self.head(x.mean((2, 3)))\n{TAIL}"
    )


def residual_net(rng: random.Random) -> str:
    extra = rng.choice(["", "        y = self.norm(y)\n", "        y = self.drop(self.norm(y))\n", "        y = -y\n"])
    norm = rng.choice(["BatchNorm2d", "GroupNorm", "InstanceNorm2d"])
    return f"""{HEAD}def scaled(x, s={rng.random():.3f}):
    # residual scaling
    return x * s


class Block(nn.Module):
    def __init__(self, dim, stride=1):
        super(Block, self).__init__()
        self.conv = nn.Conv2d(dim, dim, 3, padding=1, stride=stride, groups={rng.choice([1, 2, 4])})
        self.norm = nn.{norm}({rng.choice([8, 16])})
        self.drop = nn.Dropout(0.{rng.randrange(1, 9)})

    def forward(self, x):
        y = self.conv(x)
{extra}        return F.relu(x + scaled(y))


class Net(nn.Module):
    def __init__(self, depth={rng.randrange(2, 9)}):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, kernel_size={rng.choice(["3", "(3, 3)", "7"])}, stride=2, padding=1)
        self.blocks = nn.Sequential(*[Block(dim=32) for _ in range(depth)])
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))
{TAIL}"""


def fractal_net(rng: random.Random) -> str:
    join = rng.choice(["sum(parts) / len(parts)", "torch.stack(parts).mean(0)", "torch.stack(parts).max(0)[0]"])
    steps = rng.choice(["self.deep", "self.wide"])
    return f"""{HEAD}class FractalBlock(nn.Module):
    def __init__(self, n, dim):
        super().__init__()
        self.flat = nn.Conv2d(dim, dim, kernel_size={rng.choice([1, 3])}, padding={rng.choice([0, 1])})
        self.deep = nn.Sequential(FractalBlock(n - 1, dim), FractalBlock(n - 1, dim)) if n > 1 else None
        self.wide = nn.ModuleList([nn.Conv2d(dim, dim, 1) for _ in range({rng.randrange(1, 5)})])

    def forward(self, x):
        parts = [self.flat(x)]
        if {steps} is not None:
            parts.append(self.deep(x))
        return {join}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, {rng.choice([16, 24])}, 3), FractalBlock({rng.randrange(2, 5)}, 16))

    def forward(self, x):
        return self.body(x)
{TAIL}"""


def attention_net(rng: random.Random) -> str:
    mix = rng.choice(["x + a", "x + self.mlp(a)", "self.norm(x + a)", "x * torch.sigmoid(a) + x"])
    width, act = rng.choice([64, 128]), rng.choice(["GELU", "ReLU"])
    return f"""{HEAD}class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.att = nn.MultiheadAttention(embed_dim={width}, num_heads={rng.choice([2, 4, 8])}, batch_first=True)
        self.norm = nn.LayerNorm({width})
        self.mlp = nn.Sequential(nn.Linear({width}, {2 * width}), nn.{act}(), nn.Linear({2 * width}, {width}))

    def forward(self, x):
        a, _ = self.att(x, x, x)
        return {mix}
{TAIL}"""


def edited(code: str, rng: random.Random) -> str:
    """The code changed in one of the ways that networks of a corpus differ from each other."""
    lines = code.split("\n")
    at = rng.randrange(len(lines))
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    insert = [
        '"a bare string"',
        '"""several\n   lines"""',
        '"""doc""" .strip()',
        "# a comment",
        "x = 1; y = 0x1F + 1_0.5e3j",
        'print(f"{x} {3:>{y}}" "more")',
        "x = [1,\n  'two',\n   3]",
        "pass  # done",
    ]
    kind = rng.randrange(14)
    if kind < 4:
        return "\n".join([*lines[:at], indent + rng.choice(insert), *lines[at:]])
    if kind == 4:
        return code.replace("    ", "\t")
    if kind == 5:
        return code.replace("    ", "\t", rng.randrange(1, 8))
    if kind == 6:
        return code.replace(" = ", rng.choice([" = \\\n", " = \\\n        "]), rng.randrange(1, 4))
    if kind == 7:
        return code.replace("\n", "\r\n")
    if kind == 8:
        return code.replace(rng.choice(["(", ")", '"', ":"]), "", 1)
    if kind == 9:
        return code.replace("nn.Module", rng.choice(["Module", "nn.Modul", "torch.nn.Module"]))
    if kind == 10:
        return code.replace("self.", f"self.{rng.choice(['_', 'my', 'K'])}", rng.randrange(2, 20))
    if kind == 11:
        return code.replace("\n\n", rng.choice(["\n", "\n\f\n", "\n    # é\n", "\n\x0b\n", "\n'é'\n"]), 2)
    if kind == 12:
        return code + rng.choice(["    ", "# end", "\\", "x = '", "$", "\n\nclass Other(Net):\n    pass"])
    return "\n".join(lines[:at])


def layers_net(layers: list[str]) -> str:
    return f"{HEAD}class Net(nn.Module):\n    def __init__(self):\n" + "".join(f"        Layer{x}()\n" for x in layers)


def sweep_rows(rng: random.Random) -> list[Row]:
    """Networks that differ in the order of their layers and in a few of them; two are equal in all that ranks them."""

    def net(*swapped: str) -> str:
        layers = [
            swap if (swap := dict(zip("AB", swapped, strict=False)).get(x)) else x for x in "ABCDEFGHIJKLMNOPQRST"
        ]
        return layers_net(rng.sample(layers, len(layers)))

    ranked = [("b", net(), 0.5), ("a", net("X"), 0.9), ("c", net("A", "Y"), 0.1), ("c", net("A", "Z"), 0.1)]
    return [Row(f"ga-sweep-{name}", code, accuracy) for name, code, accuracy in ranked]


def written_rows(codes: int) -> list[Row]:
    """Rows of generated networks: several a network, codes under two names, blanks, unknown accuracies.

    Accuracies tie between networks, and in `sweep_rows` only also within one: there the peer does not need hash order.
    """
    rng = random.Random(20)
    rows, older = sweep_rows(rng), [plain_net(rng)]
    kept_order = list(rows)
    for count in range(codes):
        make = rng.choice([plain_net, residual_net, fractal_net, attention_net])
        code = edited(rng.choice(older), rng) if rng.random() < 0.5 else make(rng)
        older.append(code)
        prefixes = rng.sample(["rag", "ast", "alt", "alt", "FractalNet", "ga", "ResNet", "GPT", "RA_G"], 2)
        for prefix in prefixes[: 1 + (rng.random() < 0.3)]:
            accuracies = rng.sample([None, *(tenth / 10 for tenth in range(10))], rng.randrange(1, 4))
            texts = (rng.choice(["", " \n\t"]) if rng.random() > 0.97 else code for _ in accuracies)
            rows += map(Row, [f"{prefix}-{count:03d}"] * len(accuracies), texts, accuracies)
    rng.shuffle(rows)
    return [*kept_order, *(row for row in rows if row not in kept_order)]


def sampled_rows(source: RecordSource, networks: int) -> list[Row]:
    """The rows of a sample of real networks, at most three of each and none that tie with another of the network."""
    table = pa.Table.from_batches(list(source.batches())).select(["nn", "nn_code", "accuracy"])
    names = table["nn"].to_pylist()
    chosen = set(random.Random(3).sample(sorted(set(names)), networks))
    places = [place for place, name in enumerate(names) if name in chosen]
    rows = [Row(row["nn"], row["nn_code"], row["accuracy"]) for row in table.take(places).to_pylist()]
    accuracies: dict[str, list[float | None]] = {row.name: [] for row in rows}
    for row in rows:
        if row.accuracy not in accuracies[row.name]:
            accuracies[row.name].append(row.accuracy)
    once = {(row.name, row.accuracy): row for row in rows if row.accuracy in accuracies[row.name][:3]}
    return list(once.values())


@pytest.mark.slow
def test_decides_like_the_released_package(tmp_path: Path) -> None:
    rows = written_rows(80)
    run_peer(rows, RUNS, tmp_path)
    for name, options in RUNS.items():
        assert_same(rows, run_ours(rows, options), tmp_path / name)


def test_the_written_rows_reach_every_outcome() -> None:
    rows = written_rows(80)
    outcomes = Counter(
        (decision.stage, decision.rescued) for run in RUNS.values() for decision in run_ours(rows, run).decisions
    )
    stages = ["filter", "invalid", "exact", "lexical", "structural", None]
    assert {(stage, None) for stage in stages} | {(None, "prefix"), (None, "topup")} == outcomes.keys()


def test_sketches_are_those_that_their_scheme_names() -> None:
    """The default of datasketch changed once and may again; what is compared has the name that the manifest states."""
    [made] = MinHash.generator([[b"a b", b"c"]], **SKETCH_OPTIONS)
    default = MinHash(num_perm=256)
    default.update_batch([b"a b", b"c"])
    assert made.hashvalues.tolist() == default.hashvalues.tolist()  # what nn-dup has with the installed release
    digest = hashlib.sha256(made.hashvalues.astype("<u8").tobytes()).hexdigest()[:16]
    assert digest == {"affine32": "ceca396a3d5c7d6c", "legacy": "fe1e0575ae2def86"}[SKETCH_SCHEME]


@pytest.mark.slow
@pytest.mark.network
def test_decides_like_the_released_package_on_real_networks(real_rows: RecordSource, tmp_path: Path) -> None:
    rows = sampled_rows(real_rows, 60)
    runs = {name: RUNS[name] for name in ("defaults", "included", "thresholds")}  # the peer's rescue takes hours
    run_peer(rows, runs, tmp_path)
    for name, options in runs.items():
        assert_same(rows, run_ours(rows, options), tmp_path / name)


# The quirks, one by one.

BODY = "class Net(Module):\n    def forward(self, x):\n"


@table(__file__, "nndup.md", "Tokens of a method", globals())
def test_tokens_of_a_method(body: str, tokens: str | None) -> None:
    found = nndup_features(f"{BODY}        {body}\n").tokens
    assert found == ("" if tokens is None else f"class Net ( Module ) : def forward ( ID , ID ) : {tokens}")


@table(__file__, "nndup.md", "Tokens of a file", globals())
def test_tokens_of_a_file(code: str, tokens: str) -> None:
    assert nndup_features(code).tokens == tokens


def test_fingerprint() -> None:
    arguments = "kernel_size=3, stride=(2, s, 0.1)), padding=-1, groups=0, width=1e999, dim=True, other=3"
    features = nndup_features(f"f(Conv(1, {arguments})\n(lambda: 0)()\n")
    assert features.layer_sequence == ("f", "Conv")
    assert features.layer_bag == (("Conv", 1), ("f", 1))
    assert features.hyperparameters == (("dim", "1"), ("groups", "0"), ("kernel_size", "4"), ("stride", "(2,X,0)"))
    assert nndup_features("f(\n").layer_sequence == ()
    assert len(nndup_features("f()\n" * 300).layer_sequence) == 256


@table(__file__, "nndup.md", "Family", globals())
def test_family(name: str, code: str, family: str) -> None:
    assert get_family(name, nndup_features(code)) == family


def test_the_witness_is_kept_and_carries_the_similarity_of_the_stage() -> None:
    rows = [
        Row("alt-1", BODY + "        return relu(x)\n", 0.5),
        Row("alt-2", BODY + "        return gelu(x)\n", 0.9),
        Row("alt-1", BODY + "        return relu(x)\n", math.nan),
    ]
    decisions = run_ours(rows, _options(keep_per_family=1)).decisions
    assert [(d.stage, d.canonical, d.similarity) for d in decisions] == [
        ("lexical", 1, 1.0),
        (None, 1, None),
        ("exact", 1, 1.0),
    ]


def test_features_of_unusual_text() -> None:
    odd = ["\0", "x = " + "+".join("1" * 5_000), "(" * 500, "f" + "()" * 2_000, "\ufeffx = 1\n", '"\\d"\n']
    assert [isinstance(nndup_features(code), NnDupFeatures) for code in odd] == [True] * len(odd)
