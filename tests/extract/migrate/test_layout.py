"""Where a block goes in a project, how its file is called, where the project's tests are, and what its copy holds."""

from pathlib import Path

import pytest

from extract.migrate.project.layout import choose_place, choose_test, read_project
from extract.migrate.project.trial import trial
from extract.migrate.project.writing import SourceModule
from extract.model.categories import to_snake_case
from extract.sources.contents import MAX_FILE_BYTES
from extract.specs.make import read_arguments
from tests.builders import extractions, projects

MODULE = "from torch import nn\n\n\nclass NAME(nn.Module):\n    def forward(self, x):\n        return x\n"


def modules(*names: str) -> str:
    return "\n\n".join(MODULE.replace("NAME", name) for name in names)


@pytest.mark.parametrize(
    ("name", "snake"),
    [
        ("SEModule", "se_module"),
        ("ConvNeXtBlock", "conv_next_block"),
        ("LayerNorm2d", "layer_norm2d"),
        ("DropPath", "drop_path"),
        ("C3", "c3"),
        ("block", "block"),
        ("RoIAlign", "roi_align"),
    ],
)
def test_words_of_a_name(name: str, snake: str) -> None:
    assert to_snake_case(name) == snake


@pytest.mark.parametrize(
    ("files", "path", "module"),
    [
        (projects.SRC, "src/proj/layers/edge_attention.py", "proj.layers.edge_attention"),
        (projects.FLAT, "flatnet/EdgeAttention.py", "flatnet.EdgeAttention"),
        ({"net.py": modules("Net")}, "edge_attention.py", "edge_attention"),
        ({"models/long_net.py": modules("LongNet")}, "models/edge_attention.py", "models.edge_attention"),
        ({"p/__init__.py": "", "p/longnet.py": modules("LongNet")}, "p/edgeattention.py", "p.edgeattention"),
        (
            {"p/__init__.py": "", "p/a/x.py": modules("A", "B", "C"), "p/b/y.py": modules("SelfAttention")},
            "p/b/edge_attention.py",
            "p.b.edge_attention",
        ),
        (
            {"p/__init__.py": "from p.x import edge_attention\n", "p/x.py": modules("A") + "\nedge_attention = A\n"},
            "p/edge_attention_2.py",
            "p.edge_attention_2",
        ),
        ({"p/__init__.py": "", "p/edge_attention/z.py": "", "p/x.py": modules("A")}, "p/edge_attention_2.py", None),
    ],
    ids=["src", "flat", "no package", "namespace", "joined", "kind", "name that the package has", "folder in the way"],
)
def test_where_a_block_goes(tmp_path: Path, files: dict[str, str], path: str, module: str | None) -> None:
    place = choose_place(read_project(projects.make(tmp_path, files)), "EdgeAttention", "Attention")
    assert (place.path, place.module) == (path, module or place.module)


@pytest.mark.parametrize(
    ("out", "module"),
    [
        ("src/proj/new.py", "proj.new"),
        ("src/proj/layers/deep/er/new.py", "proj.layers.deep.er.new"),
        ("elsewhere/new.py", "elsewhere.new"),
        ("new.py", "new"),
    ],
)
def test_a_place_that_is_given(tmp_path: Path, out: str, module: str) -> None:
    project = read_project(projects.make(tmp_path, projects.SRC))
    place = choose_place(project, "Edge", "Other", tmp_path / out)
    assert (place.path, place.module) == (out, module)


@pytest.mark.parametrize(
    ("tests", "path", "style"),
    [
        ({}, "tests/test_edge.py", "functions"),
        ({"tests/test_a.py": "def test_a():\n    pass\n"}, "tests/test_edge.py", "functions"),
        ({"p/tests/a_test.py": "def test_a():\n    pass\n"}, "p/tests/edge_test.py", "functions"),
        (
            {"test/test_a.py": "import unittest as u\nclass A(u.TestCase):\n    pass\n", "test/test_edge.py": ""},
            "test/test_edge_2.py",
            "functions",
        ),
        ({"test/test_a.py": "import unittest as u\nclass A(u.TestCase):\n    pass\n"}, "test/test_edge.py", "unittest"),
        (
            {"tests/test_z.py": "", "tests/test_y.py": "", "tests/layers/test_a.py": "import p.layers.x\n"},
            "tests/layers/test_edge.py",
            "functions",
        ),
    ],
    ids=["none", "pytest", "suffix", "taken", "unittest", "nearest"],
)
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
