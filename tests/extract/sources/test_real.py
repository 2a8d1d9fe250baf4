"""Real releases, if pip can fetch them."""

import pytest

from extract.sources import open_available, open_source
from lemur_core.files.errors import RetryableError
from manifests.records.corpus import load_corpus

pytestmark = pytest.mark.network


def test_an_sdist_that_cannot_be_built_here() -> None:
    entry = next(source for source in load_corpus("paper").sources if source.name == "mmcv")
    try:
        source = open_source(entry.source, digest=entry.digest)
    except RetryableError as error:
        pytest.skip(f"needs the package index: {error}")
    assert (source.license, source.kind) == ("Apache-2.0", "package")
    assert "mmcv.ops.deform_conv" in {file.module for file in source.files}
    assert any(text.startswith("mmengine") for text in source.requires)


def test_the_quick_corpus() -> None:
    sources, unopened = open_available(load_corpus("quick"))
    if unopened:
        pytest.skip(f"needs the package index: {unopened}")
    assert [source.name for source in sources] == ["timm@1.0.30", "segment-anything@1.0"]
    assert [source.license for source in sources] == ["Apache-2.0", "Apache-2.0"]
    scope = {file.path for file in sources[0].files if sources[0].in_scope(file.path)}
    assert "timm/layers/squeeze_excite.py" in scope
    assert all(path.startswith("timm/layers/") for path in scope)
