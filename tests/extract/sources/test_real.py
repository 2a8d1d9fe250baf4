"""Real releases, if pip can fetch them."""

import time

import pytest

from extract.sources import PackageSource, open_available, open_source
from lemur_core.files.errors import RetryableError
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
