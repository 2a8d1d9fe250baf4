"""Real releases, if pip can fetch them."""

import importlib.metadata
import time
from pathlib import Path

import pytest

from extract.sources import PackageSource, open_available, open_source
from extract.sources.contents import list_files, tree_digest
from extract.sources.package import _read_release, read_installed
from extract.sources.store import workspace
from lemur_core.files.errors import RetryableError, UserError
from lemur_core.files.pip import download
from manifests.records.corpus import load_corpus

pytestmark = pytest.mark.network


def fetched(spec: str, digest: object = None) -> PackageSource:
    try:
        return open_source(spec, digest=digest)  # type: ignore[arg-type]
    except RetryableError as error:
        pytest.skip(f"needs the package index: {error}")


def pinned(name: str) -> tuple[str, object]:
    entry = next(source for source in load_corpus("paper").sources if source.name == name)
    return entry.source, entry.digest


def test_an_sdist_that_cannot_be_built_here() -> None:
    source = fetched(*pinned("mmcv"))
    assert (source.license, source.kind) == ("Apache-2.0", "package")
    assert "mmcv.ops.deform_conv" in {file.module for file in source.files}
    assert any(text.startswith("mmengine") for text in source.requires)


def test_the_quick_corpus() -> None:
    corpus = load_corpus("quick")
    sources, unopened = open_available(corpus)
    if unopened:
        pytest.skip(f"needs the package index: {unopened}")
    assert [source.name for source in sources] == ["timm@1.0.30", "segment-anything@1.0"]
    assert [source.license for source in sources] == ["Apache-2.0", "Apache-2.0"]
    started = time.perf_counter()
    assert open_available(corpus)[0] == sources
    assert time.perf_counter() - started < 0.5
    timm = sources[0]
    scope = {file.path for file in timm.files if timm.in_scope(file.path)}
    assert "timm/layers/squeeze_excite.py" in scope
    assert all(path.startswith("timm/layers/") for path in scope)


def test_the_installed_and_the_downloaded_release_are_one(tmp_path: Path) -> None:
    version = importlib.metadata.version("torchvision")
    installed = read_installed("torchvision", version)
    if installed is None:
        pytest.skip("torchvision was not installed from an index")
    try:
        with workspace() as work:
            downloaded = _read_release(download("torchvision", f"=={version}", work))
    except UserError as error:
        pytest.skip(f"needs the package index: {error}")
    assert dict(installed.python).keys() == dict(downloaded.python).keys()
    differing = {path for path in installed.python if installed.python[path] != downloaded.python[path]}
    assert differing <= {"torchvision/version.py"}  # another build of the same release
    if not differing:
        assert tree_digest(list_files(installed.python)) == tree_digest(list_files(downloaded.python))
    assert {name for name in installed.texts if name.endswith("METADATA")} == {
        name for name in downloaded.texts if name.endswith("METADATA")
    }


def test_torch_is_not_downloaded_when_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        pytest.skip("torch was not installed from an index")

    monkeypatch.setattr("extract.sources.package.download", refuse)
    source = open_source(f"torch@{importlib.metadata.version('torch')}")
    assert "torch.nn.modules.conv" in {file.module for file in source.files}
    assert "BSD-3-Clause" in source.license
