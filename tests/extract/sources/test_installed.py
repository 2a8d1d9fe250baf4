"""The installed copy of a release: taken only when it is the released one, and then with the same result."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from extract.sources import open_source
from extract.sources.installed import read_installed

Make = Callable[..., Path]

FILES = {"pkg/__init__.py": "", "pkg/layers/se.py": "import torch\n", "tests/test_all.py": "", "pkg/weights.pth": "x"}
METADATA = "License: MIT\nRequires-Dist: torch>=2\n"


def test_the_same_source_both_ways(make_wheel: Make, install: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel("pkg", "1.0", FILES, METADATA)
    downloaded = open_source("pkg@1.0")
    other = downloaded.root.parents[4] / "other"
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(other))
    monkeypatch.setenv("PIP_FIND_LINKS", "/dev/null")
    install("pkg", "1.0", FILES, METADATA)
    installed = open_source("pkg@1.0")
    assert installed.root.is_relative_to(other)
    assert replace(installed, root=downloaded.root) == downloaded
    assert [installed.read(file) for file in installed.files] == [downloaded.read(file) for file in downloaded.files]


def test_the_copy_in_the_cache_outlives_the_installed_one(install: Make) -> None:
    site = install("pkg", "1.0", FILES, METADATA)
    source = open_source("pkg@1.0")
    (site / "pkg/layers/se.py").write_text("changed\n")
    assert source.read(source.files[1]) == b"import torch\n"


def test_a_released_copy(install: Make) -> None:
    install("pkg", "1.0", FILES, METADATA, INSTALLER="pip\n")
    contents = read_installed("pkg", "1.0.0")
    assert contents is not None
    assert list(contents.python) == ["pkg/__init__.py", "pkg/layers/se.py"]
    assert list(contents.texts) == ["pkg-1.0.dist-info/METADATA"]


@pytest.mark.parametrize(
    ("extra", "version"),
    [
        ({}, "1.1"),
        ({"direct_url_JSON": '{"url": "file:///src/pkg", "dir_info": {"editable": true}}'}, "1.0"),
        ({"INSTALLER": "conda\n"}, "1.0"),
    ],
)
def test_another_version_or_a_copy_that_is_not_the_released_one(
    install: Make, extra: dict[str, str], version: str
) -> None:
    install("pkg", "1.0", FILES, METADATA, **extra)
    assert read_installed("pkg", version) is None


@pytest.mark.parametrize("damage", ["edited", "gone", "no hash", "no record"])
def test_a_copy_that_differs_from_its_record(install: Make, damage: str) -> None:
    site = install("pkg", "1.0", FILES, METADATA)
    record = site / "pkg-1.0.dist-info/RECORD"
    assert read_installed("pkg", "1.0") is not None
    if damage == "edited":
        (site / "pkg/layers/se.py").write_text("import torch \n")
    elif damage == "gone":
        (site / "pkg/layers/se.py").unlink()
    elif damage == "no hash":
        lines = record.read_text().splitlines()
        record.write_text(
            "".join(("pkg/__init__.py,,\n" if line.startswith("pkg/__init__") else line + "\n") for line in lines)
        )
    else:
        record.unlink()
    assert read_installed("pkg", "1.0") is None


def test_a_file_beside_the_package_is_not_the_package(install: Make) -> None:
    site = install("pkg", "1.0", FILES, METADATA)
    (site / "pkg/added.py").write_text("")
    contents = read_installed("pkg", "1.0")
    assert contents is not None
    assert "pkg/added.py" not in contents.python


def test_an_edited_copy_is_fetched_instead(install: Make, make_wheel: Make) -> None:
    site = install("pkg", "1.0", FILES, METADATA)
    (site / "pkg/layers/se.py").write_text("changed\n")
    make_wheel("pkg", "1.0", FILES, METADATA)
    source = open_source("pkg@1.0")
    assert source.read(source.files[1]) == b"import torch\n"


def test_another_build_than_the_pinned_one_is_fetched_instead(install: Make, make_wheel: Make, cache: Path) -> None:
    make_wheel("pkg", "1.0", FILES, METADATA)
    pinned = open_source("pkg@1.0").digest
    for path in cache.rglob("*.json"):
        path.unlink()
    install("pkg", "1.0", {**FILES, "pkg/version.py": "cuda = '12'\n"}, METADATA)
    for tree in cache.rglob("trees/*"):
        tree.rename(tree.with_name("gone"))
    assert open_source("pkg@1.0", digest=pinned).digest == pinned


def test_nothing_installed() -> None:
    assert read_installed("no-such-package-here", "1.0") is None
