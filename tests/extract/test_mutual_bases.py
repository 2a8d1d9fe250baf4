"""Classes that inherit from each other: no order works, so none is reported, and the folder still verifies."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

NN = "import torch.nn as nn\n"
BODY = "    def forward(self, x):\n        return x\n\n\n"
PAIR = {
    "pair/a.py": f"{NN}from pair.b import B\n\n\nclass A(B, nn.Module):\n{BODY}",
    "pair/b.py": f"{NN}from pair.a import A\n\n\nclass B(A, nn.Module):\n{BODY}",
}
ONE_FILE = {"pair/a.py": f"{NN}\n\nclass A(nn.Module, B):\n{BODY}class B(A):\n{BODY}"}
OTHERS = {"LICENSE": "MIT", "pair/__init__.py": "", "pair/c.py": f"{NN}\n\nclass C(nn.Module):\n{BODY}"}


@pytest.mark.parametrize("files", [PAIR, ONE_FILE], ids=["two files", "one file"])
def test_classes_that_inherit_from_each_other(
    files: dict[str, str], tmp_path: Path, lemur_here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extract.folder.report.draw_figures", lambda *given: {})
    for name, code in {**files, **OTHERS}.items():
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_text(code)
    done = lemur_here("extract", "--source", "./src", "--level", "parsed", "--jobs", 1, "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in pq.read_table(tmp_path / "out" / "blocks.parquet").to_pylist()}
    assert rows["C"]["level"] == "parsed"
    mutual = [row for name, row in rows.items() if name != "C"]
    assert mutual
    for row in mutual:
        assert (row["level"], row["error_kind"]) == ("emitted", "undefined_name")
        assert row["error"].startswith("undefined in the emitted file: ")
    done = lemur_here("verify", "out", "--jobs", 1, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
