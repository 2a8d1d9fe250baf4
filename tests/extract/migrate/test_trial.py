"""The copy of a project holds its code and what that may read, and nothing that is large or secret."""

import runpy
from pathlib import Path
from types import SimpleNamespace

from extract.migrate.project.layout import read_project
from extract.migrate.project.trial import MAX_FILE_BYTES, trial
from extract.migrate.project.writing import Donated
from extract.specs.make import worked_of

made = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "fixtures" / "extract" / "results.py")))
some = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("projects.py"))))

KEPT = {"words/list.txt": "", "src/proj/layers/words/list.txt": "", "setup.cfg": ""}
LEFT_OUT = {".env": "", ".git/config": "", "data/images/a.txt": "", "venv/pyvenv.cfg": "", "venv/lib/a.py": ""}


def test_what_is_copied(tmp_path: Path) -> None:
    root = some.make(tmp_path / "p", {**some.SRC, **KEPT, **LEFT_OUT, "words/read.py": ""})
    with (root / "src/proj/large.bin").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    worked = worked_of(some.ARGUMENTS)
    assert worked is not None
    donated = Donated(made.block(made.source(tmp_path), "Residual", "backward"), some.BLOCK, False, (), worked)
    with trial(donated, read_project(root)) as bench:
        copy = bench.copy
        found = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
        assert found == {*some.SRC, *KEPT, "words/read.py"}
    assert not copy.exists()
