"""Why a network is kept or removed: one snapshot with a network for every fate, asked about each of them."""

import hashlib
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from curate.folder.explain import draw_graph, explain
from curate.model.options import CurateOptions
from curate.run.pipeline import curate
from lemur_core.files.errors import UserError
from manifests.folders.kinds import FoundItem
from tests.builders.graphs import trace
from tests.curate.conftest import MemorySource, network

ALL = tuple(range(12))
UNUSED = """
    def unused(self, a, b):
        while a < b and not b == 3:
            a, b = b - a * 2, [a, b][a] if b else {a: b}
            for i in a:
                b = b | a ^ i
        return a if b else (a, b)
"""


def digest_of(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def twins(code: str, digits: int) -> tuple[str, str]:
    """Two variants of a code, equal but for a comment, whose ids begin alike."""
    seen: dict[str, str] = {}
    variants = (f"{code}# {number}\n" for number in itertools.count())
    return next((first, one) for one in variants if (first := seen.setdefault(digest_of(one)[:digits], one)) != one)


@pytest.fixture(scope="module")
def codes() -> dict[str, str]:
    base = network(ALL)
    first, second = twins(network((7, 3, 9, 5, 10)), 6)
    return {
        "base": base,
        "comment": network(ALL, comment="say \x1b[31m red"),
        "lexical": network(ALL, name="Other").rstrip("\n"),
        "least": network((*ALL, 0)),
        "structural": network(ALL, extra=UNUSED),
        "far": network((6, 8, 4)),
        "one": network((2, 11, 0)),
        "two": network((9, 9, 10, 3)),
        "twin": first,
        "other twin": second,
        "broken": "def broken(:\n",
    }


@pytest.fixture(scope="module")
def snapshot(codes: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    def row(name: str, code: str | None, accuracy: float | None, epoch: int = 1) -> dict[str, Any]:
        code = codes.get(code, code) if code is not None else None
        benchmark = {"task": "img-classification", "dataset": "cifar-10", "metric": "acc", "epoch": epoch}
        problem = "nn_code is missing" if code is None else None
        return {"nn": name, "nn_code": code, **benchmark, "accuracy": accuracy, "prm": "{}", "problem": problem}

    rows = [
        row("base-net", "base", 0.7, 2),
        row("base-net", "base", 0.9),
        row("base-net", "base", 0.8, 3),
        row("copy-net", "base", 0.5),
        row("comment-net", "comment", 0.4),
        row("lexical-net", "lexical", 0.3),
        row("lexical-net", "lexical", 0.3, 2),
        row("alias-net", "lexical", 0.2),
        row("least-net", "least", 0.2),
        row("structural-net", "structural", 0.1),
        row("far-net", "far", None),
        row("ambiguous-net", "one", 0.3),
        row("ambiguous-net", "two", 0.3),
        row("twin-net", "twin", 0.2),
        row("other-twin-net", "other twin", 0.1),
        row("broken-net", "broken", 0.1),
        row("empty-net", None, 0.1),
        row("far-net", None, 0.1),
        {**row("elsewhere-net", "far", 0.99), "dataset": "mnist"},
        row("empty-net", None, 0.2),
    ]
    out = tmp_path_factory.mktemp("explain") / "out"
    curate(MemorySource(rows), out, CurateOptions(dataset=("cifar-10",), graph="off"), jobs=1)
    return out


def said(explanation: FoundItem) -> dict[str, str]:
    return {line[:12].strip(): line[12:] for line in explanation.lines if line[:1].strip()}


def error_of(folder: Path, wanted: str) -> str:
    with pytest.raises(UserError) as caught:
        explain(folder, wanted)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_kept(snapshot: Path, codes: dict[str, str]) -> None:
    told = explain(snapshot, "base-net")
    facts, labels = told.facts, said(told)
    assert (facts["kept"], facts["stage"], facts["canonical"], facts["diff"]) == (True, None, None, None)
    assert facts["id"] == digest_of(codes["base"]) == labels["id"]
    record = facts["record"]
    expected = {"outcome": "kept", "row": "1", "split": record["split"], "cluster": record["cluster"]}
    expected |= {"score": f"{record['score']:.4g}", "dataset": "cifar-10", "accuracy": "0.9", "epoch": "1"}
    expected["also named"] = "copy-net: removed at stage exact"
    assert {name: labels[name] for name in expected} == expected
    assert "best accuracy 0.9" in told.lines
    stands = facts["stands_for"]
    assert stands["networks"] == 6
    assert stands["by_stage"] == {"exact": 2, "lexical": 3, "structural": 1, "graph": 0}
    names = [entry["name"] for entry in stands["nearest"]]
    assert names == ["comment-net", "copy-net", "structural-net", "alias-net", "lexical-net"]
    similarities = [entry["similarity"] for entry in stands["nearest"]]
    assert similarities[:3] == [1.0, 1.0, 1.0]
    assert 1 > similarities[3] == similarities[4] >= 0.9
    assert "stands for  6 removed networks: 2 exact, 3 lexical, 1 structural" in told.lines
    assert [line.split()[-2] for line in told.lines[-5:]] == names


@pytest.mark.parametrize(
    ("name", "stage", "similarity", "threshold"),
    [
        ("comment-net", "exact", "1.000", None),
        ("lexical-net", "lexical", "0.9", 0.9),
        ("structural-net", "structural", "1.000", 0.95),
    ],
)
def test_removed_for_another_code(
    snapshot: Path, codes: dict[str, str], name: str, stage: str, similarity: str, threshold: float | None
) -> None:
    told = explain(snapshot, name)
    facts, labels = told.facts, said(told)
    assert (facts["kept"], facts["stage"], facts["threshold"]) == (False, stage, threshold)
    assert labels["outcome"] == f"removed at stage {stage}"
    assert (facts["canonical"]["id"], facts["canonical"]["name"]) == (digest_of(codes["base"]), "base-net")
    assert labels["canonical"].startswith(f"base-net (kept, {facts['canonical']['split']}, score ")
    assert labels["similarity"].startswith(similarity)
    assert labels["similarity"].endswith("1.000" if threshold is None else f"the threshold is {threshold:g})")
    assert facts["reason"] == labels["reason"] != "kept"
    assert facts["record"] is None
    start = told.lines.index(f"--- base-net {digest_of(codes['base'])[:16]}")
    assert told.lines[start - 1] == ""
    assert told.lines[start + 1] == f"+++ {name} {digest_of(codes[name.removesuffix('-net')])[:16]}"
    assert len(told.lines) == start + len(facts["diff"])


def test_diff_of_foreign_control_characters_is_harmless(snapshot: Path) -> None:
    told = explain(snapshot, "comment-net")
    assert any("\x1b[31m" in line for line in told.facts["diff"])
    assert not any("\x1b" in line for line in told.lines)
    assert "+# say \\x1b[31m red" in told.lines


def test_same_code_under_another_name(snapshot: Path, codes: dict[str, str]) -> None:
    told = explain(snapshot, "copy-net")
    facts = told.facts
    assert (facts["stage"], facts["similarity"], facts["threshold"], facts["diff"]) == ("exact", 1.0, None, None)
    assert facts["canonical"]["id"] == facts["id"] == digest_of(codes["base"])
    assert facts["canonical"]["name"] == "base-net"
    assert facts["reason"] == "same code as base-net"
    assert "            the same code, character for character" in told.lines
    assert said(told)["also named"] == "base-net: kept"


def test_left_out(snapshot: Path) -> None:
    for name, stage, outcome, reason in (
        ("broken-net", "invalid", "it cannot be used", "line 1"),
        ("empty-net", "invalid", "it cannot be used", "nn_code is missing"),
        ("elsewhere-net", "filter", "an option of the run left it out", "--dataset"),
    ):
        told = explain(snapshot, name)
        labels = said(told)
        assert (told.facts["stage"], told.facts["canonical"], told.facts["diff"]) == (stage, None, None)
        assert labels["outcome"] == f"removed at stage {stage}: {outcome}"
        assert reason in labels["reason"]
        assert (labels["id"] == "none: the row has no usable code") == (name == "empty-net")
        assert (told.facts["id"] is None) == (name == "empty-net")


def test_kept_without_accuracy_and_with_a_row_of_no_use(snapshot: Path) -> None:
    labels = said(explain(snapshot, "far-net"))
    assert "score" not in labels
    assert (labels["outcome"], labels["stands for"], labels["row"]) == ("kept", "itself alone", "10")


def test_facts_are_json_and_lines_are_single(snapshot: Path) -> None:
    for name in set(pq.read_table(snapshot / "decisions.parquet").column("nn").to_pylist()) - {"ambiguous-net"}:
        told = explain(snapshot, name)
        assert json.loads(json.dumps(told.facts, allow_nan=False))["name"] == name
        assert not any("\n" in line for line in told.lines)
        assert told == explain(snapshot, name)


def test_rescued(tmp_path: Path) -> None:
    found = {"strong-1": network(ALL), "strong-2": network((6, 8, 4)), "weak-1": network((*ALL, 0))}
    rows = [{"nn": name, "nn_code": code} for name, code in found.items()]
    curate(MemorySource(rows), tmp_path / "out", CurateOptions(graph="off", min_per_prefix=1), jobs=1)
    told = explain(tmp_path / "out", "weak-1")
    assert (told.facts["rescued"], said(told)["outcome"]) == ("prefix", "kept (for the support of its prefix)")
    assert explain(tmp_path / "out", "strong-1").facts["canonical"]["name"] == "weak-1"


def test_by_id(snapshot: Path, codes: dict[str, str]) -> None:
    for name in ("structural", "base"):  # of the base there are several names: the kept one tells
        digest, told = digest_of(codes[name]), explain(snapshot, f"{name}-net")
        assert [explain(snapshot, part) == told for part in (digest, digest[:7], digest[:20].upper())] == [True] * 3


def test_what_names_several_codes_names_none(snapshot: Path, codes: dict[str, str]) -> None:
    first, second = digest_of(codes["twin"]), digest_of(codes["other twin"])
    message = error_of(snapshot, first[:6])
    assert message.startswith(f"'{first[:6]}' begins the ids of 2 codes: ")
    assert f"{first[:16]} twin-net (kept)" in message
    assert f"{second[:16]} other-twin-net" in message
    assert explain(snapshot, first[:16]).facts["id"] == first
    message = error_of(snapshot, "ambiguous-net")
    assert message.startswith("'ambiguous-net' is the name of 2 codes: ")
    for code in ("one", "two"):
        assert f"{digest_of(codes[code])[:16]} ambiguous-net (kept)" in message


def test_unknown_name_lists_near_ones(snapshot: Path) -> None:
    for wanted, nearest in {
        "base-nett": "base-net",
        "BASE-NET": "base-net",
        "structural": "structural-net",
        "brokne-net": "broken-net",
    }.items():
        message, _, near = error_of(snapshot, wanted).partition("; near names: ")
        assert message.startswith(f"{wanted!r}: no network of this snapshot has this name")
        assert near.split(", ")[0] == nearest
        assert len(near.split(", ")) <= 5


def test_nothing_near(snapshot: Path, codes: dict[str, str]) -> None:
    for wanted in ("", "zzzzzz", "0" * 64, "0" * 65):
        assert error_of(snapshot, wanted).endswith("decisions.parquet lists all, `lemur list` the kept")
    assert "6 or more digits" in error_of(snapshot, digest_of(codes["far"])[:5])


@pytest.mark.parametrize("damage", ["missing", "cut"])
@pytest.mark.parametrize("file", ["decisions.parquet", "networks.parquet"])
def test_damaged(snapshot: Path, tmp_path: Path, file: str, damage: str) -> None:
    copy = Path(shutil.copytree(snapshot, tmp_path / "copy"))
    if damage == "missing":
        (copy / file).unlink()
    else:
        (copy / file).write_bytes((copy / file).read_bytes()[:-9])
    message = error_of(copy, "lexical-net")
    assert message.startswith(f"{copy}: damaged snapshot: ")
    assert "lemur verify" in message


def test_the_graph_is_drawn_or_said_why_not(tmp_path: Path) -> None:
    traced = trace(lambda: nn.Conv2d(3, 8, 3), lambda: [torch.rand(2, 3, 8, 8)]).to_json()
    other = {"form": 1, "torch": "1.0", "nodes": [], "outputs": [], "writes": []}
    good = {"graph": "0" * 64, "error": None, "eval": json.dumps(traced)}
    for row, name, said in (
        (good, "net.png", r"net\.png: pictures of graphs are SVG; give a name that ends in \.svg"),
        (None, "net.svg", "net abababababababab: was not traced, so there is no graph to draw"),
        (
            {"graph": None, "error": "no_net: none"},
            "net.svg",
            "net abababababababab: has no graph to draw: no_net: none",
        ),
        (good | {"eval": json.dumps(other)}, "net.svg", "net abababababababab: its graph cannot be read: form 1 of"),
    ):
        with pytest.raises(UserError, match=said):
            draw_graph({"name": "net", "id": "ab" * 32, "graph": row}, tmp_path / name)
    assert not list(tmp_path.iterdir())
    drawn = draw_graph({"name": "net", "id": "ab" * 32, "graph": good}, tmp_path / "net.svg")
    assert drawn == f"{tmp_path / 'net.svg'}: 3 boxes, what it computes in eval mode"
    assert (tmp_path / "net.svg").read_text().startswith("<?xml")
