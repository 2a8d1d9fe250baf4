"""kill -9 at counted moments, of the command and all its processes at once: the rerun writes the same, and no litter."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("datatrove", reason="needs the extra cluster")

from tests.builders.killing import Rerun, choose_moments
from tests.builders.kills import PROBE
from tests.curate.test_cluster import tables

pytestmark = pytest.mark.slow

MOMENTS, SHARES = 8, 2

LOCAL = "curate rows.jsonl --graph off --out out --executor local --tasks 2 --workers 1"
AGAINST = "curate rows.jsonl --graph off --out out --against base --jobs 1"


@pytest.fixture(scope="module")
def prepare(network: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], None]:
    """Put rows into a folder, and a snapshot of other rows, to which some are near."""
    codes = [network([place, *range(size)]) for size in (5, 9) for place in (0, 7, 11)]
    base = tmp_path_factory.mktemp("base")
    parts = {"rows.jsonl": codes[1:], "older.jsonl": codes[:3]}

    def write(folder: Path) -> None:
        folder.mkdir()
        for name, part in parts.items():
            rows = ({"nn": f"ga-{place}", "nn_code": code, "accuracy": 0.5} for place, code in enumerate(part))
            (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        if (base / "snapshot").exists():
            (folder / "base").symlink_to(base / "snapshot")

    write(base / "first")
    done = Rerun(
        base / "first", ["curate", "older.jsonl", "--graph", "off", "--out", "../snapshot", "--jobs", "1"]
    ).run()
    assert done[0] == 0, done[1]
    return write


def list_names(folder: Path) -> set[str]:
    """List what lies in a folder, but for the file by which Python finds out whether TMPDIR can be written to."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    return {name for name in names if not re.fullmatch(rf"tmp/{PROBE.pattern}", name)}


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("words", [LOCAL, AGAINST], ids=["local", "against"])
def test_killed_at_any_moment_the_rerun_is_the_same(
    words: str, share: int, prepare: Callable[[Path], None], tmp_path: Path
) -> None:
    prepare(tmp_path / "whole")
    code, told, changes = Rerun(tmp_path / "whole", words.split()).run()
    assert code == 0, told
    expected, names = tables(tmp_path / "whole" / "out"), list_names(tmp_path / "whole")
    for moment in choose_moments(changes, MOMENTS, share=share, shares=SHARES):
        prepare(tmp_path / f"at {moment}")
        run = Rerun(tmp_path / f"at {moment}", words.split())
        code, told, _ = run.run(at=moment)
        assert code == -9, told
        if (run.folder / "out").exists():  # put in place by the last rename
            assert tables(run.folder / "out") == expected
            continue
        code, told, _ = run.run()
        assert code == 0, told
        assert tables(run.folder / "out") == expected
        assert run.list_litter() == []
        assert list_names(run.folder) <= names  # nothing that a run without a kill does not leave
