"""Fidelity: closed files compared with the originals of small packages, and of the installed torch and torchvision."""

import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from extract.extractor import BlockExtractor
from extract.proofs.equivalence import (
    BlockWithOriginal,
    EquivalenceResult,
    MissingOriginal,
    compare,
    compare_all,
)
from extract.proofs.runtime import original_folders
from extract.proofs.visit import Signed
from extract.proofs.visit_guest import digest
from extract.resolve.index import FactsIndex
from extract.sources import open_source
from lemur_core.files.errors import UserError
from lemur_core.sandbox import Failure, cached
from tests.builders.suites import read_table, table, write_files

IMPORTS = "import torch\nfrom torch import nn\n\n\n"
GATE = (
    IMPORTS
    + """class Gate(nn.Module):
    def __init__(self, dim=4):
        super().__init__()
        self.fc = nn.Linear(dim, dim)
        self.scale = nn.Parameter(torch.ones(dim))
        self.lost = nn.Parameter(torch.empty(dim))
        self.norm = nn.BatchNorm1d(dim, momentum=0.1)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.norm(self.fc(x))) * self.scale + self.lost
"""
)
DIES = IMPORTS + "import os\n\n\nclass Dies(nn.Module):\n    def forward(self, x):\n        os.abort()\n"
QUIET = DIES.replace("os.abort()", "return x")
FUSSY = IMPORTS + "class Fussy(nn.Module):\n    def __init__(self):\n        raise ValueError('not here')\n"
EASY = IMPORTS + "class Fussy(nn.Module):\n    def forward(self, x):\n        return x\n"
COUNTED = (
    IMPORTS
    + """COUNT = [0]


class One(nn.Module):
    def __init__(self):
        super().__init__()
        COUNT[0] += 1
        self.register_buffer("number", torch.tensor(COUNT[0]))

    def forward(self, x):
        return x


class Two(One):
    pass
"""
)
NAMED = IMPORTS + "class Named(nn.Module):\n    __module__ = 'lib'\n\n    def forward(self, x):\n        return x\n"

PACKAGES = {
    "lib/__init__.py": "",
    "lib/gates.py": GATE,
    "lib/dies.py": DIES,
    "lib/fussy.py": FUSSY,
    "lib/counted.py": COUNTED,
    "lib/named.py": NAMED,
    "lib/broken.py": "import no_such_package\n",
    "lib/ends.py": "raise SystemExit(2)\n",
    "other/__init__.py": "from torch import nn\n\n\nclass Gate(nn.Identity):\n    pass\n",
}


def swapped(old: str, new: str) -> str:
    assert GATE.count(old) == 1
    return GATE.replace(old, new)


#: The copy, its class and module, then what comes of it and a part of what is said.
CASES: dict[str, tuple[str, str, str, str | None, str]] = read_table(__file__, "fidelity.md", "Cases", globals())

ARGUMENTS = {"init": {"args": [], "kwargs": {}}, "forward": {"args": ["torch.randn((3, 4))"], "kwargs": {}}}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("site"), PACKAGES)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FactsIndex]:
    with FactsIndex(tmp_path_factory.mktemp("index") / "facts.sqlite") as opened:
        yield opened


def pair(site: Path, case: str) -> BlockWithOriginal:
    code, name, module, _, _ = CASES[case]
    return BlockWithOriginal(case, name, code, module, ("lib", "other"), (site,), ARGUMENTS)


@pytest.fixture(scope="module")
def compared(site: Path, index: FactsIndex) -> dict[str, EquivalenceResult]:
    found = list(compare_all([pair(site, case) for case in CASES], index, jobs=1))
    assert sorted(comparison.block for comparison in found) == sorted(CASES)
    return {comparison.block: comparison for comparison in found}


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES))
def test_a_copy_against_its_original(compared: Mapping[str, EquivalenceResult], case: str) -> None:
    _, _, _, expected, said = CASES[case]
    assert compared[case].fidelity == expected, compared[case].detail
    assert said in compared[case].detail
    assert "\n" not in compared[case].detail
    assert (compared[case].detail == "") == (expected == "match")


@pytest.mark.slow
def test_what_was_compared_is_not_compared_again(
    compared: Mapping[str, EquivalenceResult], site: Path, index: FactsIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise AssertionError("a sandbox was started")

    monkeypatch.setattr(cached, "Sandbox", refuse)
    again = list(compare_all([pair(site, case) for case in CASES], index, jobs=1))
    assert {comparison.block: comparison for comparison in again} == compared
    with pytest.raises(AssertionError, match="was started"):
        list(compare_all([replace(pair(site, "the same"), code=GATE + "\n")], index, jobs=1))


@pytest.mark.slow
def test_originals_do_not_disturb_each_other(site: Path, tmp_path: Path) -> None:
    pairs = [
        BlockWithOriginal(name, name, COUNTED, "lib.counted", ("lib",), (site,), ARGUMENTS) for name in ("One", "Two")
    ]
    with FactsIndex(tmp_path / "facts.sqlite") as empty:
        found = {comparison.block: comparison.fidelity for comparison in compare_all(pairs, empty, jobs=1)}
    assert found == {"One": "match", "Two": "match"}


SIGNED = Signed({"state": "1" * 64, "repr": "2" * 64, "eval": "3" * 64}, {})


def signed(error: str | None = None, **steps: str) -> Signed:
    return Signed({**SIGNED.steps, **steps}, {} if error is None else dict.fromkeys(steps, error))


@table(__file__, "fidelity.md", "Compare", globals() | {"Failure": Failure, "MissingOriginal": MissingOriginal})
def test_compare(ours: Any, theirs: Any, expected: Any, detail: str) -> None:
    assert compare("b", ours, theirs) == EquivalenceResult("b", expected, detail)


X = torch.tensor([1.0, 2.0])


@table(__file__, "fidelity.md", "Digests", globals())
def test_digests(one: object, other: object, equal: bool) -> None:
    assert (digest(one) == digest(other)) == equal


@pytest.mark.slow
def test_an_original_that_is_mended_is_compared_again(tmp_path: Path, index: FactsIndex) -> None:
    """The cache key of an outcome includes the source of the original."""
    found = []
    for text in ("import no_such_package\n", "X = 1\n"):
        (tmp_path / "lib").mkdir(exist_ok=True)
        (tmp_path / "lib" / "__init__.py").write_text(text)
        (tmp_path / "lib" / "gates.py").write_text(GATE)
        source = open_source(f"{tmp_path / 'lib'}")
        mended = BlockWithOriginal("b", "Gate", GATE, "lib.gates", ("lib",), (tmp_path,), ARGUMENTS, source.digest)
        found += [comparison.fidelity for comparison in compare_all([mended], index, jobs=1)]
    assert found == [None, "match"]


REAL = {
    "torchvision": (["torchvision/ops", "torchvision/models/resnet.py"], ["SqueezeExcitation", "FrozenBatchNorm2d", "BasicBlock"]),
    "torch": (["torch/nn/modules"], ["LayerNorm", "GLU", "BatchNorm2d"]),
}  # fmt: skip


def test_of_a_local_project_only_what_imports_need_is_shown(tmp_path: Path) -> None:
    root = tmp_path / "project"
    shown = {
        "lib/__init__.py": "",
        "lib/token.py": GATE,
        "lib/configs/tokenizer.json": "{}",
        "lib/anchors.bin": "\0\1",
        "train.py": QUIET,
        "configs/small.yaml": "width: 8",
    }
    names = "lib/.env lib/.ssh/config lib/id_rsa lib/id_ed25519.pub lib/deploy.PEM lib/credentials.json lib/prod.env"
    hidden = (*names.split(), ".env", ".netrc", "notes.txt", "data/rows.csv", "lib/secrets.yaml", "id_rsa", "key.pem")
    write_files(root, shown | dict.fromkeys(hidden, "decoy of the user"))
    (tmp_path / "outside.txt").write_text("decoy of the user")
    (root / "lib" / "linked.txt").symlink_to(tmp_path / "outside.txt")
    (folder,) = original_folders(open_source(str(root)))
    files = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert files == shown
    assert not any(path.is_symlink() for path in folder.rglob("*"))
    assert original_folders(open_source(str(root))) == (folder,)
    (root / "lib" / "anchors.bin").write_text("\2")
    (other,) = original_folders(open_source(str(root)))
    assert other != folder


@pytest.mark.slow
def test_real_classes_are_faithful(tmp_path: Path) -> None:
    sources = [
        {"name": name, "source": f"{name}@{importlib.metadata.version(name).partition('+')[0]}", "paths": paths}
        for name, (paths, _) in REAL.items()
    ]
    corpus = tmp_path / "corpus.json"
    corpus.write_text(json.dumps({"name": "real", "sources": sources}))
    names = sorted(name for _, chosen in REAL.values() for name in chosen)
    try:
        extractor = BlockExtractor(str(corpus), level="backward", fidelity=True, jobs=1)
    except UserError as error:
        pytest.skip(f"needs the releases that are installed: {error}")
    with extractor:
        if extractor.facts.unopened:
            pytest.skip(f"needs the releases that are installed: {extractor.facts.unopened}")
        rows = [result.row for result in extractor.extract_multiple_blocks(names)]
    assert sorted(row.name for row in rows) == names
    assert {row.name: (row.level, row.error) for row in rows if row.level != "backward"} == {}
    assert {row.name: row.fidelity for row in rows} == dict.fromkeys(names, "match"), extractor.facts.notes
