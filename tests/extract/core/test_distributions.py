"""Which distribution an imported package is taken from, and that a project's own folders are never looked up elsewhere."""

import json
from pathlib import Path
from typing import Any

import pytest

from extract.emit.emit import Emitted
from extract.extractor import extract_to
from extract.folder.verify import verify
from extract.model.results import Options
from extract.resolve.distributions import find_requirement, is_required, read_confirmed
from lemur_core.files.errors import UsageError
from manifests.provenance import is_guess
from tests.builders.suites import table, write_files

STATED = (
    "torch",
    "quack-kernels>=0.3.4",
    "flash-linear-attention",
    "nvidia-cutlass-dsl",
    "opencv-python-headless",
    "taming-transformers ; extra == 'all'",
    "clip @ git+https://example.org/clip.git",
    "one-tiny",
    "two-tiny",
    "not a requirement",
)


@table(__file__, "distributions.md", "Metadata comes first and a guess is called one", globals())
def test_metadata_comes_first_and_a_guess_is_called_one(package: str, requirement: str) -> None:
    assert find_requirement(package, STATED) == requirement
    assert is_guess(requirement) == ("guess" in requirement)


def test_a_known_bound_holds_where_the_metadata_states_another_and_the_user_has_the_last_word() -> None:
    """The newest setuptools has no `pkg_resources`; names keep the spelling of the metadata."""
    assert find_requirement("pkg_resources", ["setuptools>=65.5.1"]) == "setuptools<81"
    assert find_requirement("yaml", ["PyYAML>=5"]) == "PyYAML"
    required = [is_required(STATED, package) for package in ("fla", "cv2.gapi", "taming")]
    assert required == [True, True, False], "a hard requirement may have a similar name"
    confirmed = read_confirmed(["tiny=two-tiny", "cv2=my-opencv>=2"])
    assert find_requirement("tiny.sub", STATED, confirmed) == "two-tiny"
    assert find_requirement("cv2", STATED, confirmed) == "my-opencv>=2"


def test_a_wrong_pair_is_refused() -> None:
    for text in ("hydra", "=hydra", "hydra=", "a.b=c", "hydra=not a name", "a=b; extra == 'c'"):
        with pytest.raises(UsageError, match="not of the form IMPORT=NAME"):
            read_confirmed([text])


def test_folders_of_the_project_are_its_own(corpus: Any) -> None:
    """Below a folder that is not a package, as setuptools' `where` has it (PEP 420), and beside the importing file."""
    made = corpus(
        {
            "python/acme/core/act.py": "from torch import nn\nclass Act(nn.Module):\n    def forward(self, x): return x\n",
            "python/acme/vision.py": "from torch import nn\nfrom acme.core.act import Act\nimport acme.absent\n"
            "class Net(Act):\n    pass\nclass Bad(nn.Module):\n    def forward(self, x): return acme.absent.f(x)\n",
            "tools/layers.py": "SIZE = 3\n",
            "tools/net.py": "from torch import nn\nfrom layers import SIZE\n"
            "class Tool(nn.Module):\n    def forward(self, x): return x * SIZE\n",
            "x/datasets/one.py": "",
            "x/load.py": "from torch import nn\nfrom datasets import load_dataset\n"
            "class Data(nn.Module):\n    def forward(self, x): return load_dataset(x)\n",
        },
        bare=True,
    )
    for name in ("Net", "Tool"):
        outcome = made.emit(name)
        assert isinstance(outcome, Emitted)
        assert outcome.requires == ()
    assert "acme" in made.emit("Bad").detail
    data = made.emit("Data")
    assert data.requires == ('datasets; extra == "guess"',)  # the project may mean its own folder


@pytest.mark.parametrize(
    "statement", ["from acme.data.sets import load", "from acme import data", "import acme.data.sets as data"]
)
def test_distributions_may_share_a_namespace(corpus: Any, statement: str) -> None:
    """The part that another distribution has is imported from that, as any other requirement."""
    used = "load(x)" if "load" in statement else "data.load(x)"
    files = {
        "pyproject.toml": "[project]\nname='acme-nets'\ndependencies=['acme-data>=2', 'acme-core']",
        "acme/nets/__init__.py": "",
        "acme/nets/width.py": "def widen(x): return x",
        "acme/nets/net.py": f"from torch import nn\nfrom acme.nets.width import widen\nimport acme.nets.gone\n{statement}\n"
        f"class Net(nn.Module):\n    def forward(self, x): return widen({used})\n"
        "class Bad(nn.Module):\n    def forward(self, x): return acme.nets.gone.f(x)\n",
    }
    made = corpus(files, bare=True)
    emitted = made.emit("acme.nets.net.Net")
    assert emitted.packages == {"acme.data": "acme-data"}
    assert "def widen" in emitted.code
    assert "no module acme.nets.gone" in made.emit("Bad").detail
    assert made.library.list_packages(made.sources[0]) == ("acme.nets",)


def test_a_block_that_imports_another_part_of_its_namespace_is_whole(tmp_path: Path) -> None:
    """Its own imports say which part is the source's own, and `verify` lets the others be imported."""
    files = {
        "pyproject.toml": "[project]\nname='acme-nets'\ndependencies=['acme-data>=2', 'acme-core']",
        "acme/nets/__init__.py": "from acme.nets.net import Net\n",
        "acme/nets/net.py": "from torch import nn\nfrom acme.data.sets import load\n"
        "class Net(nn.Module):\n    def forward(self, x): return load(x)\n",
    }
    write_files(tmp_path / "mine", files)
    extract_to(tmp_path / "out", Options(sources=(str(tmp_path / "mine"),), level="emitted", jobs=1))
    needs = json.loads((tmp_path / "out/required_repos.json").read_text())
    assert needs["sources"]["mine"]["packages"] == ["acme.nets"]
    assert all(check.ok for check in verify(tmp_path / "out", jobs=1))
