"""The copy of a project holds its code and what that may read, and nothing that is large or secret."""

from pathlib import Path

from extract.migrate.project.layout import read_project
from extract.migrate.project.trial import MAX_FILE_BYTES, trial
from extract.migrate.project.writing import SourceModule
from extract.specs.make import read_arguments
from tests.builders import extractions, projects

KEPT = {"words/list.txt": "", "src/proj/layers/words/list.txt": "", "setup.cfg": ""}
LEFT_OUT = {".env": "", ".git/config": "", "data/images/a.txt": "", "venv/pyvenv.cfg": "", "venv/lib/a.py": ""}


def test_what_is_copied(tmp_path: Path) -> None:
    root = projects.make(tmp_path / "p", {**projects.SRC, **KEPT, **LEFT_OUT, "words/read.py": ""})
    with (root / "src/proj/large.bin").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    worked = read_arguments(projects.ARGUMENTS)
    assert worked is not None
    donated = SourceModule(
        extractions.block(extractions.source(tmp_path), "Residual", "backward"), projects.BLOCK, False, (), worked
    )
    with trial(donated, read_project(root)) as bench:
        copy = bench.copy
        found = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
        assert found == {*projects.SRC, *KEPT, "words/read.py"}
    assert not copy.exists()
