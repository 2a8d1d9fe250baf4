"""The report's comparison of LEMUR's arch_uid with our graphs and decisions: who calls what the same."""

from dataclasses import replace
from typing import Any

import pytest

from curate.compute.graphs import GraphTrace
from curate.folder.report.records import arch_uid_section
from curate.folder.report.sections import gather_facts

CODE = "import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x{}{}\n"
LAYERS = ("Conv2d(3, 8, 3)", "Linear(4, 4)", "LSTM(2, 2)", "GRU(2, 2)", "Embedding(5, 5)", "MultiheadAttention(4, 2)")


def rows(uids: list[str | None]) -> list[dict[str, Any]]:
    """Networks without a likeness, but for the last two, which are one but for a comment."""
    found = []
    for place, uid in enumerate(uids):
        layer = LAYERS[min(place, len(uids) - 2)]
        comment = "  # again" if place == len(uids) - 1 else ""
        code = CODE.format(f" + torch.nn.{layer}(x)" * 3, comment)
        found.append({"nn": f"n{place}", "nn_code": code, "accuracy": 0.9 - place / 10, "arch_uid": uid})
    return found


def section(curated: Any, uids: list[str | None], graphs: list[tuple[str, str] | None] | None = None) -> str:
    found = curated(rows(uids))
    outcome = found.outcome
    if graphs is not None:
        answers = [{"error": "x: y"} if g is None else {"graph": g[0], "graph_widths": g[1]} for g in graphs]
        outcome = replace(
            outcome,
            graphs={found.number(row["nn_code"]): GraphTrace(a) for row, a in zip(found.rows, answers, strict=True)},
        )
    facts = gather_facts(found.corpus, outcome)
    return "\n".join(arch_uid_section(facts, found.corpus, outcome))


def test_nothing_to_tell(curated: Any) -> None:
    assert section(curated, [None] * 4) == ""


def test_who_merges_what(curated: Any) -> None:
    graphs = [("g", "w"), ("g", "w"), ("h", "v"), ("i", "v"), None, None]
    text = section(curated, ["a", "b", "c", "c", "d", "e"], graphs)
    assert "6 codes have one, 5 different; 1 code shares that of another." in text
    assert "Of 4 codes with both a graph and an arch_uid:" in text
    assert "| both call it the same as another | 0 |  |" in text
    assert "| only the graph does | 1 | `n0` and `n1` |" in text
    assert "| only arch_uid does | 1 | `n2` and `n3` |" in text
    assert "Of the last, 1 differ in widths alone." in text
    kept = "1 kept record has the arch_uid of another kept one (by their graphs 1 equal up to widths), for example `n2` and `n3`."
    assert kept in text
    assert "| exact | 0 | 1 | `n4` and `n5` |" in text  # curation merges what arch_uid keeps apart


def test_agreement(curated: Any) -> None:
    text = section(curated, ["a", "b", "c", "d", "d"], [("g", "g"), ("h", "h"), ("i", "i"), ("j", "j"), ("j", "j")])
    assert "| both call it the same as another | 1 |  |" in text
    assert "| only the graph does | 0 |  |" in text
    assert "0 kept records have the arch_uid of another kept one." in text
    assert "| exact | 1 | 0 |  |" in text


@pytest.mark.parametrize("graphs", [None, [None] * 4])
def test_without_graphs_the_decisions_are_told(curated: Any, graphs: Any) -> None:
    text = section(curated, ["a", "a", "b", None], graphs)
    assert "1 kept record has the arch_uid of another kept one, for example `n0` and `n1`." in text.replace(
        " (by their graphs 1 not known)", ""
    )
    assert "with both a graph" not in text
    assert "| exact |" not in text  # one of the two states none
