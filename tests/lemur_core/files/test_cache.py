"""The cache folder: what it holds is the user's alone."""

import os
from pathlib import Path

import pytest

from lemur_core.files.atomic import atomic_file
from lemur_core.files.cache import cache_folder, open_database


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("before", [None, 0o755, 0o777])
def test_only_the_user_can_enter_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int | None) -> None:
    root = tmp_path / "home" / "cache"
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(root))
    if before is not None:
        root.mkdir(parents=True)
        root.chmod(before)
    umask = os.umask(0)
    try:
        folder = cache_folder("sandbox", "v1/x")
        open_database(folder / "outcomes.sqlite", "cache", ["t (x)"]).close()
        for path in (folder / "table", tmp_path / "output"):
            with atomic_file(path) as part:
                part.write_text("x")
    finally:
        os.umask(umask)
    assert {mode(each) for each in (root, root / "sandbox", root / "sandbox" / "v1", folder)} == {0o700}
    assert {mode(each) for each in folder.iterdir()} == {0o600}
    assert mode(tmp_path / "output") == 0o666


def test_a_folder_that_all_share_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /tmp is: where everybody may write, but only remove their own."""
    tmp_path.chmod(0o1777)
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path))
    assert mode(cache_folder("sandbox")) == 0o700
    assert mode(tmp_path) == 0o777
