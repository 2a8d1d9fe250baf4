"""What the oracle says of a folder that another state has written."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import oracle

ROWS = [
    {"block": "a", "level": "forward", "lean_lines": 10, "code_sha256": "0" * 64, "path": "a.py"},
    {"block": "b", "level": "backward", "lean_lines": 20, "code_sha256": "1" * 64, "path": "b.py"},
]


def test_each_difference_is_a_line_with_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(oracle, "RECORDS", tmp_path / "records")
    folder = tmp_path / "targets"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "blocks.parquet")
    (folder / "report.md").write_text("a report")
    oracle.freeze("targets", folder, {})
    assert oracle.compare("targets", folder) == 0
    assert capsys.readouterr().out.endswith(
        "recorded: 2 of 2 run forward; 2 are minimized, to 30 lines, a median of 15\n"
        "now: 2 of 2 run forward; 2 are minimized, to 30 lines, a median of 15\n"
        "targets: nothing differs\n"
    )
    other = {"block": "b", "level": "executed", "lean_lines": None, "code_sha256": "1" * 64, "lines": 7}
    pq.write_table(pa.Table.from_pylist([{**ROWS[0], "lines": 7}, other]).drop("path"), folder / "blocks.parquet")
    (folder / "report.md").rename(folder / "page.html")
    assert oracle.compare("targets", folder) == 8
    printed = capsys.readouterr().out
    assert "now: 1 of 2 run forward; 1 are minimized, to 10 lines, a median of 10\n" in printed
    assert printed.partition("targets: ")[2].splitlines() == [
        "8 differ",
        "  file gone: report.md",
        "  file new: page.html",
        "  blocks.parquet: level differs",
        "  blocks.parquet: lean_lines differs",
        "  blocks.parquet: path gone",
        "  blocks.parquet: lines new",
        "  level of 1 of 2 rows: b: backward -> executed",
        "  lean_lines of 1 of 2 rows: b: 20 -> ",
    ]
