"""Manifests: what is written comes back, what differs from them is named, and what may stand in them as a parent."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError
from manifests.folders.checks import check_files
from manifests.folders.manifest import Input, Parent, describe_parent, list_outputs, read_manifest, write_manifest
from tests.builders.suites import table

Finished = Callable[..., Path]
DIGEST = "0" * 64


def test_what_is_written_comes_back(tmp_path: Path, finished: Finished) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").touch()
    stated = {"versions": {"python": "3.11.0"}, "parameters": {"seed": 42}, "counts": {"rows": {"input": 1}}}
    inputs = [Input(name="rows.jsonl", sha256=DIGEST, bytes=3)]
    finished(tmp_path, "snapshot", inputs=inputs, outputs=list_outputs(tmp_path, {"data/file": 7}), **stated)
    found = read_manifest(tmp_path)
    assert [(item.path, item.rows) for item in found.outputs] == [("data/file", 7)]  # itself is not listed
    assert (found.kind, found.inputs, found.parameters, found.counts) == (
        "snapshot", inputs, stated["parameters"], stated["counts"]
    )  # fmt: skip
    assert check_files(tmp_path, found).ok
    before = (tmp_path / "manifest.json").read_bytes()
    write_manifest(tmp_path, found)
    assert (tmp_path / "manifest.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "manifest.json"]


def test_changed_files_are_named(tmp_path: Path, finished: Finished) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    finished(tmp_path)
    (tmp_path / "a").unlink()
    (tmp_path / "b").write_text("B")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "d").touch()
    check = check_files(tmp_path, read_manifest(tmp_path))
    assert not check.ok
    assert check.detail == "a is missing; new/d is not in the manifest; b differs from its digest"


@table(__file__, "manifest.md", "What is no manifest", globals())
def test_what_is_no_manifest(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError) as caught:
        read_manifest(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_finished_folder(tmp_path: Path, finished: Finished) -> None:
    where = tmp_path / "whole"
    finished(where / "blocks"), finished(where / "run")
    (tmp_path / "file").touch()
    for path, message in (
        (where, f"not a finished lemur folder; in it are {where}/blocks, {where}/run"),
        (tmp_path / "nowhere", "no such folder"),
        (tmp_path / "file", "is a file"),
    ):
        with pytest.raises(UserError) as caught:
            read_manifest(path)
        assert message in str(caught.value)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(path))


SPECIAL: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a socket": make_socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("name", ["manifest.json", "decisions.parquet", "data/deep/x.parquet"])
@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_not_a_file_is_not_waited_for(
    tmp_path: Path, finished: Finished, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    folder = finished(tmp_path / "pp")
    monkeypatch.chdir(folder)  # the name of a socket is short
    Path(name).unlink(missing_ok=True)
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    SPECIAL[kind](Path(name))
    with pytest.raises(UserError, match=f"{name}: is a pipe, a socket or a device, not a file; name a file"):
        read_manifest(folder)


@pytest.mark.parametrize("name", ["/pp", "a/../b", "..", "C:\\pp", "\\\\host\\pp", ""])
def test_no_path_of_a_machine_is_the_name_of_a_parent(name: str) -> None:
    with pytest.raises(ValidationError):
        Parent(kind="extraction", name=name, sha256=DIGEST)


def test_a_manifest_from_before_parents_is_read(tmp_path: Path, finished: Finished) -> None:
    older = json.loads((finished(tmp_path) / "manifest.json").read_text())
    assert older.pop("parents") == []
    (tmp_path / "manifest.json").write_text(json.dumps(older))
    assert read_manifest(tmp_path).parents == []


def test_a_folder_as_a_parent(tmp_path: Path, finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = finished(tmp_path / "pp", "extraction")
    wanted = Parent(kind="extraction", name="pp", sha256=sha256_file(folder / "manifest.json"))
    assert describe_parent(folder) == wanted
    monkeypatch.chdir(folder)
    assert describe_parent(Path()) == wanted, "the name is the folder's, however it is written"
