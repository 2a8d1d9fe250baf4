"""`required_repos.json`: requirements that pip understands, identifiers that can be computed again, one line a block."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

from extract.folder.write import list_runtime_imports, requirements_text, runtime_versions
from extract.model.results import code_columns
from extract.resolve.distributions import add_versions
from extract.resolve.standins import SOURCE_NAME, replacement_source
from manifests.provenance.swhid import content_swhid, directory_swhid
from tests.builders import extractions
from tests.builders.suites import table


@pytest.fixture
def sources(tmp_path: Path) -> Sequence[Any]:
    return [extractions.source(tmp_path, name) for name in ("alpha@1.0", "beta@2.0")]


def needs(results: Sequence[Any], sources: Sequence[Any]) -> dict[str, Any]:
    text = requirements_text([r.row for r in results], {r.row.block: r.closure_files for r in results}, sources)
    found: dict[str, Any] = json.loads(text)
    entries = [line for line in text.split("\n") if line.startswith('  {"block": ')]
    assert [json.loads(line.removesuffix(",")) for line in entries] == found["blocks"]
    return found


def test_each_block_with_code_has_an_entry(sources: Sequence[Any]) -> None:
    results = extractions.results(sources)
    found = needs(results, sources)
    assert [entry["block"] for entry in found["blocks"]] == [r.row.block for r in results if r.row.code is not None]
    first, einops = found["blocks"][0], found["blocks"][3]
    assert first["requires"] == ["torch"]
    assert einops["requires"] == ["torch", "einops>=0.6"]
    assert first["origin"] == "pkg:pypi/alpha@1.0"
    assert first["license"] == "MIT"
    assert first["source_swhid"] == sources[0].swhid
    assert first["made_from"] == {"alpha@1.0": ["alpha/blocks.py", "alpha/parts.py"]}
    for entry in found["blocks"]:
        assert all(Requirement(text) for text in entry["requires"])
    assert found["runtime"] == runtime_versions()


def test_identifiers_can_be_computed_from_the_files(sources: Sequence[Any]) -> None:
    found = needs(extractions.results(sources), sources)
    for source in sources:
        for path, swhid in found["files"][source.name].items():
            assert swhid == content_swhid((source.root / path).read_bytes())
        assert found["sources"][source.name]["swhid"] == directory_swhid((f.path, f.blob) for f in source.files)
    beta = found["sources"]["beta@2.0"]
    assert (found["sources"]["alpha@1.0"]["permissive"], beta["permissive"]) == (True, False)
    assert (beta["packages"], beta["digest"]) == (["beta"], sources[1].digest)
    context = f"origin=pkg:pypi/alpha@1.0;anchor={sources[0].swhid};path=/alpha/blocks.py;lines=3-9"
    assert found["blocks"][0]["swhid"] == f"swh:1:cnt:{sources[0].files[0].blob};{context}"


def test_only_what_blocks_were_made_from_is_listed(sources: Sequence[Any]) -> None:
    result = extractions.results(sources[:1])[1]
    found = needs([result], sources)
    assert found["files"] == {"alpha@1.0": {"alpha/blocks.py": f"swh:1:cnt:{sources[0].files[0].blob}"}}
    assert list(found["sources"]) == ["alpha@1.0"]
    assert needs([], sources) == {"format": 1, "runtime": runtime_versions(), "sources": {}, "files": {}, "blocks": []}


def test_code_of_other_sources_and_of_ours(sources: Sequence[Any]) -> None:
    row = extractions.block(sources[0], "Mixed", requires=("einops", "timm"))
    ours = replacement_source().files[0].path
    files = (("alpha@1.0", "alpha/blocks.py"), ("beta@2.0", "beta/parts.py"), (SOURCE_NAME, ours))
    found = needs([SimpleNamespace(row=row, closure_files=files)], sources)
    assert found["blocks"][0]["made_from"] == {
        "alpha@1.0": ["alpha/blocks.py"],
        "beta@2.0": ["beta/parts.py"],
        SOURCE_NAME: [ours],
    }
    assert found["sources"][SOURCE_NAME]["license"] == "MIT"
    assert found["sources"][SOURCE_NAME]["origin"] is None
    assert found["sources"][SOURCE_NAME]["swhid"].startswith("swh:1:dir:")
    assert found["blocks"][0]["requires"] == ["torch", "einops>=0.6", "timm"]


def test_a_local_folder_has_no_origin(tmp_path: Path) -> None:
    source = extractions.source(tmp_path, "gamma", origin="", version="", kind="folder")
    row = extractions.block(source, "Scale", start_line=4, end_line=4)
    (entry,) = needs([SimpleNamespace(row=row, closure_files=())], [source])["blocks"]
    assert entry["swhid"] == f"swh:1:cnt:{source.files[0].blob};anchor={source.swhid};path=/gamma/blocks.py;lines=4"
    assert entry["origin"] is None


@table(__file__, "requirements.md", "Versions are those that the sources ask for", globals())
def test_versions_are_those_that_the_sources_ask_for(
    tmp_path: Path, requires: list[str], stated: list[list[str]], expected: list[str]
) -> None:
    sources = [extractions.source(tmp_path, f"s{n}", requires=tuple(lines)) for n, lines in enumerate(stated)]
    found = add_versions(requires, sources)
    assert list(found) == expected
    assert add_versions(found, sources) == found


@table(__file__, "requirements.md", "The runtime that code imports", globals())
def test_the_runtime_that_code_imports(code: str, expected: set[str]) -> None:
    assert list_runtime_imports(code) == expected


def test_the_runtime_is_required_as_the_source_states_it(tmp_path: Path, sources: Sequence[Any]) -> None:
    code = extractions.code_of("x", "MIT", "import numpy\nimport torchvision\n")
    row = extractions.block(sources[0], "Scale", **code_columns(code))
    entry = needs([SimpleNamespace(row=row, closure_files=())], sources)["blocks"][0]
    assert entry["requires"] == ["numpy", "torch", "torchvision"]
    (stated,) = [extractions.source(tmp_path, "stated@1.0", requires=("torch>=1.5,<3", "Torchvision"))]
    row = extractions.block(stated, "Scale", **code_columns(code))
    entry = needs([SimpleNamespace(row=row, closure_files=())], [stated])["blocks"][0]
    assert entry["requires"] == ["numpy", "torch<3,>=1.5", "torchvision"]
