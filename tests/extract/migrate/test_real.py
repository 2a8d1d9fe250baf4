"""A block of one released package becomes a module of another one, as that lies in its sdist."""

import difflib
import json
import shutil
from pathlib import Path

import pytest

from extract.extractor import extract_to
from extract.migrate.project.project import migrate_into_project
from extract.model.options import MigrateOptions
from extract.model.results import Options as ExtractOptions
from extract.resolve.discover import Selection
from extract.sources import open_source
from lemur_core.files.errors import RetryableError

pytestmark = [pytest.mark.network, pytest.mark.slow]

DONOR, HOST = "efficientnet-pytorch@0.7.1", "pytorch-tcn@1.2.3"


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An extraction of the donor, and a copy of the host."""
    folder = tmp_path_factory.mktemp("real")
    try:
        host = open_source(HOST)
        open_source(DONOR)
    except RetryableError as error:
        pytest.skip(f"the package index cannot be reached: {error}")
    shutil.copytree(host.root, folder / "host")
    names = Selection(names=("Conv2dStaticSamePadding", "MemoryEfficientSwish"))
    extract_to(folder / "blocks", ExtractOptions(sources=(DONOR,), selection=names, jobs=1))
    return folder / "blocks", folder / "host"


def test_a_block_of_one_package_in_another(released: tuple[Path, Path]) -> None:
    blocks, host = released
    before = {path: path.read_text(encoding="utf-8") for path in host.rglob("*.py")}
    for name in ("Conv2dStaticSamePadding", "MemoryEfficientSwish"):
        facts = json.loads(migrate_into_project(blocks, name, host, MigrateOptions(as_json=True)))
        assert facts["proof"]["tests"] == 1
        assert facts["proof"]["steps"] >= 8
        assert facts["license"] == "Apache-2.0"
        (module,) = [path for path in facts["files"] if path.startswith("pytorch_tcn/") and "__init__" not in path]
        assert f"class {name}(" in (host / module).read_text(encoding="utf-8")
        assert (host / facts["files"][-1]).read_text(encoding="utf-8").count("import torch") >= 1
    for path, text in before.items():
        now = path.read_text(encoding="utf-8")
        changes = [line for line in difflib.ndiff(text.splitlines(), now.splitlines()) if line[0] in "-?"]
        assert changes == [], path
