"""Files of networks, as people and models write them: which compute the same, which do not, which but for widths.

Each is traced in eval and in train mode as curation traces it, all of them in one process of their own.
"""

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from textwrap import indent

import pytest

from tests.builders.servers import make_once
from tests.builders.suites import Case, read_suite

pytestmark = pytest.mark.slow

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n"
CHAIN = """class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Linear(8, out_shape[0])
{init}
    def forward(self, x):
        x = self.stem(x)
{forward}
        return self.head(x.mean((2, 3)))
"""
SHAPES = {"in_shape": [2, 3, 16, 16], "out_shape": [5], "output": [2, 5]}
CASE = {**SHAPES, "dtype": "float32", "values": [0.0, 1.0], "words": 0}
PRM = {"lr": 0.01, "momentum": 0.9, "dropout": 0.2, "batch": 2, "width": 8}
TWO = "self.a = nn.Conv2d(8, 8, 3, padding=1); self.b = nn.Conv2d(8, 8, 3, padding=1)"
PAGES = ("networks.md", "spellings.md", "values.md", "widths.md")
CASES = {
    f"{page}: {case.title}": case for page in PAGES for case in read_suite(Path(__file__).with_name(page), ("same",))
}
_TRACE = """
import json, sys
import torch
from lemur_core.graphs.networks.behavior import measure_behavior
from lemur_core.graphs.networks.trace import trace_network
torch.set_num_threads(1)
given = json.load(sys.stdin)
answers = [trace_network({"code": code, "prm": given["prm"], "cases": [given["case"]]}) for code in given["codes"]]
for code, answer in zip(given["codes"], answers, strict=True):
    if code in given["measured"]:
        answer |= measure_behavior({**answer, "code": code, "prm": given["prm"], "cases": [given["case"]]})
names = ("graph", "graph_widths", "error", "behavior")
json.dump([{name: answer.get(name) for name in names} for answer in answers], sys.stdout)
"""


def file_of(text: str) -> str:
    init, is_chain, forward = text.partition("# forward\n")
    if is_chain:
        text = CHAIN.format(init=indent(init, " " * 8), forward=indent(forward, " " * 8))
    return text if re.search(r"^(import|from) torch", text, re.M) else HEAD + text


def pair(case: Case) -> tuple[str, str]:
    if "from" in case.files:
        one = case.files.get("one") or case.files["plain"]
        before, after = (case.files[name].rstrip("\n") for name in ("from", "to"))
        assert one.count(before) == 1
        return file_of(one), file_of(one.replace(before, after))
    if "one" not in case.files:
        return file_of(case.files["plain"]), file_of(case.code)
    one, other = (case.files[name] for name in ("one", "other"))
    if one.count("\n") == 1:  # a row of a table
        rows = (text if "→" in text else f"{TWO} → {text}" for text in (one, other))
        one, other = (re.sub(" ?→ ", "\n# forward\n", row) for row in rows)
    return file_of(one), file_of(other)


@pytest.fixture(scope="module")
def traced(curator_cache: Path) -> dict[str, dict[str, str]]:
    """What each file of the page computes, by its text."""
    codes = list(dict.fromkeys(code for case in CASES.values() for code in pair(case)))
    measured = [code for case in CASES.values() if case.one("same") == "numbers" for code in pair(case)]
    given = json.dumps({"codes": codes, "measured": measured, "prm": PRM, "case": CASE}).encode()
    run = partial(subprocess.check_output, [sys.executable, "-c", _TRACE], input=given, cwd=curator_cache)
    answers = make_once(curator_cache / "networks.json", run)
    return dict(zip(codes, json.loads(answers), strict=True))


@pytest.mark.parametrize("title", CASES)
def test_what_is_the_same(title: str, traced: dict[str, dict[str, str]]) -> None:
    codes = pair(CASES[title])
    assert codes[0] != codes[1]
    one, other = (traced[code] for code in codes)
    assert one["error"] is other["error"] is None
    same = CASES[title].one("same")
    if same == "numbers":  # whatever their graphs say
        assert one["behavior"] == other["behavior"] is not None
        return
    assert same in {"graph", "graph up to widths", "nothing"}
    assert (one["graph"] == other["graph"]) == (same == "graph")
    assert (one["graph_widths"] == other["graph_widths"]) == (same != "nothing")
