"""Chains from rows of snapshots and extractions: what each link says, how parents are followed, what is unknown."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate.model.options import CurateOptions
from curate.run.pipeline import curate
from curate.sources import open_source
from lemur.folders import show
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError
from manifests.folders.kinds import FolderLink
from manifests.folders.manifest import Input, Parent, describe_parent, read_manifest, write_manifest
from manifests.folders.tables import write_tables
from manifests.provenance.swhid import content_swhid
from manifests.records import CHAT_ROLES, ChatMessage, ChatRow, SpecChatRow
from tests.builders import extractions

ATTENTION = "alpha@1.0::alpha.blocks.Attention"
OTHER = "alpha@1.0::alpha.blocks.Native"
WHEEL = Input(name="nn_dataset-2.1.0-py3-none-any.whl", sha256="5" * 64, bytes=9)
CHAT = "c" * 64


def trace(wanted: str, folders: Sequence[Path]) -> list[FolderLink]:
    return list(show(wanted, folders).links)


def digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


@pytest.fixture(scope="module")
def extraction(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("trace")
    source = extractions.source(base)
    extractions.write(base / "blocks", extractions.results([source]), [source])
    return base / "blocks"


def code_of(extraction: Path, block: str) -> str:
    rows = pq.read_table(extraction / "blocks.parquet", columns=["block", "code"]).to_pylist()
    code: str = next(row["code"] for row in rows if row["block"] == block)
    return code


def network(of: str) -> str:
    return f"import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return {of}\n"


FIRST, SECOND = network("torch.relu(x) + x.mean(1)"), network("[x.view(y) for y in self.parts if y]")


def snapshot(folder: Path, first: dict[str, str], source: str, inputs: list[Input], parents: list[Parent]) -> Path:
    """A snapshot of one code, another one, and the first again with a comment, which was removed for it."""
    ((nn, code),) = first.items()
    rows = [{"nn": nn, "nn_code": code}, {"nn": "net-b", "nn_code": SECOND}, {"nn": "net-c", "nn_code": f"# c\n{code}"}]
    path = folder.with_suffix(".jsonl")
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    curate(open_source(str(path)), folder, CurateOptions(graph="off", license="MIT"), jobs=1)
    turns = tuple(ChatMessage(role=role, content="x") for role in CHAT_ROLES)
    chat = ChatRow(
        messages=turns, id=CHAT, task="design", variant="file", nn=nn, record=digest(code), license="MIT", n_tokens=3
    )
    write_tables(folder / "data" / "chat", "train", ChatRow, [chat.model_dump()], 1)
    manifest = read_manifest(folder)
    stated = {"parameters": {**manifest.parameters, "source": source}, "inputs": inputs, "parents": parents}
    write_manifest(folder, manifest.model_copy(update=stated))
    return folder


@pytest.fixture
def lemur(tmp_path: Path) -> Path:
    return snapshot(tmp_path / "snap", {"net-a": FIRST}, "lemur@2.1.0", [WHEEL], [])


def named(links: list[FolderLink], what: str) -> list[str]:
    return [link.name for link in links if link.what == what]


def fact(links: list[FolderLink], what: str, key: str) -> Any:
    return next(link.facts[key] for link in links if link.what == what)


def test_records_removed_ones_and_conversations_are_followed(lemur: Path) -> None:
    links = trace("net-a", [lemur])
    assert [(link.what, link.name) for link in links] == [
        ("record", "net-a"),
        ("release", WHEEL.name),
        ("source", "ab/nn/nn/net-a.py"),
        ("manifest", str(lemur / "manifest.json")),
    ]
    assert str(fact(links, "record", "outcome")).startswith("kept, split ")
    assert (fact(links, "release", "sha256"), fact(links, "release", "license")) == (WHEEL.sha256, "MIT")
    assert fact(links, "source", "lines") == "1-6"
    assert fact(links, "source", "swhid") == content_swhid(FIRST.encode())
    assert fact(links, "manifest", "sha256") == sha256_file(lemur / "manifest.json")
    assert trace(digest(FIRST)[:8], [lemur]) == links
    links = trace("net-c", [lemur])
    assert fact(links, "record", "outcome") == (
        "removed at stage exact: same code as net-a but for comments, docstrings and layout"
    )
    assert fact(links, "record", "stands_for_it") == f"net-a {digest(FIRST)}"
    assert named(links, "source") == ["ab/nn/nn/net-c.py"]
    assert fact(links, "source", "swhid") == content_swhid(f"# c\n{FIRST}".encode())
    links = trace(CHAT, [lemur])
    assert [link.what for link in links] == ["chat row", "record", "release", "source", "manifest"]
    assert named(links, "record") == ["net-a"]
    assert links[1:] == trace("net-a", [lemur])


def test_a_conversation_of_specs_is_followed_to_its_block(extraction: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(extraction, tmp_path / "blocks"))
    turns = tuple(ChatMessage(role=role, content="x") for role in CHAT_ROLES)
    place = {"source": "alpha@1.0", "path": "alpha/blocks.py", "start_line": 1, "end_line": 2, "swhid": "x"}
    about = {"task": "describe", "block": ATTENTION, "license": "MIT", "notice": "of its authors", "n_tokens": 3}
    rows = [SpecChatRow(messages=turns, id=number * 64, **place, **about).model_dump() for number in "ce"]
    rows.append({**rows[0], "id": CHAT[:10] + "0" * 54})
    write_tables(folder / "data" / "chat", "train", SpecChatRow, rows, len(rows))
    links = trace(CHAT, [folder])
    assert links[0] == FolderLink("chat row", CHAT, {"task": "describe", "about": ATTENTION})
    assert links[1:-1] == trace(ATTENTION, [extraction])[:-1]
    assert trace("e" * 6, [folder])[1:] == links[1:]
    with pytest.raises(UserError, match="'cccccccccc' begins 2 ids of conversations; give more digits"):
        trace(CHAT[:10], [folder])
    (folder / "data" / "chat" / "train-00000-of-00001.parquet").write_bytes(b"x")
    with pytest.raises(UserError, match="damaged extraction"):
        trace(CHAT, [folder])


@pytest.mark.parametrize("text", ["[]", "1", "{]"])
def test_a_damaged_extraction_is_told(extraction: Path, tmp_path: Path, text: str) -> None:
    folder = Path(shutil.copytree(extraction, tmp_path / "blocks"))
    (folder / "required_repos.json").write_text(text)
    with pytest.raises(UserError, match=r"damaged extraction|required_repos\.json"):
        trace(ATTENTION, [folder])


def test_a_block_is_followed_to_the_lines_of_its_release(extraction: Path) -> None:
    links = trace("Attention", [extraction])
    assert [link.what for link in links] == ["block", "release", "source", "with", "manifest"]
    assert named(links, "block") == [ATTENTION]
    assert (fact(links, "release", "version"), fact(links, "release", "origin")) == ("1.0", "pkg:pypi/alpha@1.0")
    assert fact(links, "release", "sha256") == digest("alpha@1.0")
    assert fact(links, "release", "license") == "MIT"
    assert str(fact(links, "source", "swhid")).endswith(
        f";path=/alpha/blocks.py;lines={fact(links, 'source', 'lines')}"
    )
    assert named(links, "with") == ["alpha@1.0 alpha/parts.py"]
    assert str(fact(links, "with", "swhid")).startswith("swh:1:cnt:")
    links = trace("Native", [extraction])
    assert fact(links, "block", "code") is None
    assert named(links, "source") == ["alpha@1.0 alpha/blocks.py"]


@pytest.fixture
def of_blocks(extraction: Path, tmp_path: Path) -> Path:
    """A snapshot of an extraction's blocks and of codes from the release."""
    first = {f"block-{ATTENTION}": code_of(extraction, ATTENTION)}
    files = ("blocks.parquet", "required_repos.json")
    inputs = [Input(name=f"blocks/{name}", sha256=sha256_file(extraction / name), bytes=1) for name in files]
    return snapshot(tmp_path / "s", first, "lemur@2.1.0 + blocks", [WHEEL, *inputs], [describe_parent(extraction)])


def test_a_parent_among_the_folders_is_followed_by_its_digest_alone(
    of_blocks: Path, extraction: Path, tmp_path: Path
) -> None:
    links = trace(f"block-{ATTENTION}", [of_blocks, extraction])
    assert [link.what for link in links if link.depth == 0] == ["record", "input", "input", "block", "manifest"]
    assert links[3].name == ATTENTION
    assert links[5].what == "parent"
    assert links[5].facts["followed"] == f"{extraction}: 1 of 1 codes are in it"
    below = trace(ATTENTION, [extraction])
    assert [(link.what, link.name, link.facts) for link in links[6:]] == [(b.what, b.name, b.facts) for b in below]
    assert {link.depth for link in links[5:]} == {1}
    links = trace("net-b", [of_blocks, extraction])
    assert named(links, "source") == ["ab/nn/nn/net-b.py"]
    assert named(links, "release") == [WHEEL.name]
    assert links[-1].facts["followed"] == f"{extraction}: 0 of 1 codes are in it"
    wanted = f"block-{ATTENTION}"
    other = Path(shutil.copytree(extraction, tmp_path / "other" / "blocks"))
    renamed = Path(shutil.copytree(extraction, tmp_path / "renamed"))
    write_manifest(other, read_manifest(other).model_copy(update={"versions": {}}))
    for folders in ([of_blocks], [of_blocks, other]):
        links = trace(wanted, folders)
        assert str(links[-1].facts["followed"]).startswith("no: none of the folders has this manifest")
    assert named(trace(wanted, [of_blocks, other, renamed]), "block") == [ATTENTION, ATTENTION]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("net-aa", "near names: net-a, net-"),
        ("Atention", "no block of this folder has this name; near names: Attention"),
    ],
)
def test_what_is_not_there(lemur: Path, extraction: Path, wanted: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        trace(wanted, [extraction if "block" in message else lemur])
    assert "\n" not in str(caught.value)


def test_rows_of_a_file_and_folders_without_rows_or_manifest(lemur: Path, tmp_path: Path) -> None:
    text = (lemur / "manifest.json").read_text().replace('"snapshot"', '"sensitivity"')
    (lemur / "manifest.json").write_text(text)
    with pytest.raises(UserError, match="contains a sensitivity, which has no items; pass one of ablation, "):
        trace("net-a", [lemur])
    with pytest.raises(UserError, match=r"no manifest\.json; not a finished lemur folder"):
        trace("net-a", [tmp_path])
    rows = Input(name="rows.jsonl", sha256="7" * 64, bytes=1)
    folder = snapshot(tmp_path / "s", {"a": FIRST}, "rows.jsonl", [rows], [])
    links = trace("net-b", [folder])
    assert named(links, "input") == ["rows.jsonl"]
    assert named(links, "source") == ["row 1 of rows.jsonl"]


def test_the_command(lemur: Path, lemur_here: Any) -> None:
    lines, as_json = (lemur_here("show", "net-a", "--in", lemur, *more, cwd=lemur).stdout for more in ([], ["--json"]))
    found = show("net-a", [lemur])
    assert lines.splitlines() == [*found.lines, "", *(line for link in found.links[1:] for line in link.lines())]
    assert json.loads(as_json) == {**found.facts, "chain": [link.to_json() for link in found.links]}
    assert f"  {'sha256':<13} {WHEEL.sha256}" in lines.splitlines()
