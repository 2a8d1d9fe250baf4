"""Where a block goes in a project, how its file is called, where the project's tests are, and what its copy holds."""

from pathlib import Path

from extract.migrate.project.layout import choose_place, choose_test, read_project
from extract.migrate.project.trial import trial
from extract.migrate.project.writing import SourceModule
from extract.model.categories import to_snake_case
from extract.sources.contents import MAX_FILE_BYTES
from extract.specs.make import read_arguments
from tests.builders import extractions, projects
from tests.builders.suites import table

MODULE = "from torch import nn\n\n\nclass NAME(nn.Module):\n    def forward(self, x):\n        return x\n"


def modules(*names: str) -> str:
    return "\n\n".join(MODULE.replace("NAME", name) for name in names)


@table(__file__, "layout.md", "Words of a name", globals())
def test_words_of_a_name(name: str, snake: str) -> None:
    assert to_snake_case(name) == snake


@table(__file__, "layout.md", "Where a block goes", globals())
def test_where_a_block_goes(tmp_path: Path, files: dict[str, str], path: str, module: str | None) -> None:
    place = choose_place(read_project(projects.make(tmp_path, files)), "EdgeAttention", "Attention")
    assert (place.path, place.module) == (path, module or place.module)


@table(__file__, "layout.md", "A place that is given", globals())
def test_a_place_that_is_given(tmp_path: Path, out: str, module: str) -> None:
    project = read_project(projects.make(tmp_path, projects.SRC))
    place = choose_place(project, "Edge", "Other", tmp_path / out)
    assert (place.path, place.module) == (out, module)


@table(__file__, "layout.md", "Where its test goes", globals())
def test_where_its_test_goes(tmp_path: Path, tests: dict[str, str], path: str, style: str) -> None:
    files = {"p/__init__.py": "", "p/layers/__init__.py": "", "p/layers/x.py": modules("A"), **tests}
    project = read_project(projects.make(tmp_path, files))
    test = choose_test(project, choose_place(project, "Edge", "Other"))
    assert (test.path, test.style) == (path, style)


# --- the copy of a project --------------------------------------------------------------------------------------------


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
