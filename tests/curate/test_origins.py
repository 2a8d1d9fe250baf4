"""Where codes are from: classes of extracted repositories are found again, whatever was renamed, and obeyed."""

import hashlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.folder.verify import verify
from curate.model.options import CurateOptions
from curate.model.rights import LEAST_SHINGLES, THRESHOLD, Origins
from curate.run.pipeline import curate
from lemur_core.files.errors import UserError
from lemur_core.similarity.minhash import jaccard
from lemur_core.similarity.tokens import ClassIndex, class_texts
from manifests.folders.manifest import Manifest, Measured, list_outputs, write_manifest
from manifests.provenance.licenses import is_permissive
from manifests.publish.staged import stage_files

Write = Callable[..., Path]


def extraction(folder: Path, blocks: Sequence[tuple[str, str, str | None]], kind: str = "extraction") -> Path:
    """A folder of blocks: id, license, closed file."""
    folder.mkdir()
    rows = [
        {
            "block": block,
            "name": block.rpartition(".")[2],
            "license": license_,
            "code": code,
            "code_sha256": hashlib.sha256((code or "").encode()).hexdigest(),
        }
        for block, license_, code in blocks
    ]
    schema = pa.schema([(name, pa.string()) for name in ("block", "name", "license", "code", "code_sha256")])
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / "blocks.parquet")
    measured = Measured(seconds=0, stage_seconds={}, peak_memory_bytes=0, platform="")
    said: dict[str, Any] = {"versions": {}, "parameters": {}, "inputs": [], "counts": {}, "details": {}}
    write_manifest(folder, Manifest(kind=kind, **said, outputs=list_outputs(folder, {}), measured=measured))
    return folder


HELPER = "class ConvUnit(nn.Module):\n    def forward(self, x):\n        return x\n\n\n"


@pytest.fixture
def repositories(tmp_path: Path, network: Callable[..., str]) -> Path:
    """A class under AGPL, one that two projects have, and one under MIT."""
    return extraction(
        tmp_path / "repositories",
        [
            ("yolo@1::yolo.Gate", "AGPL-3.0", HELPER + network([4, 5, 6, 7], name="Gate", glue=False)),
            ("yolo@1::yolo.Shared", "AGPL-3.0", network([0, 1, 2, 3], name="Shared", glue=False)),
            ("timm@1::timm.Shared", "Apache-2.0", network([0, 1, 2, 3], name="Shared", glue=False)),
            ("timm@1::timm.Pool", "MIT", network([8, 9, 10], name="Pool", glue=False)),
            ("timm@1::timm.Tiny", "GPL-3.0-only", HELPER.replace("ConvUnit", "Tiny")),
            ("timm@1::timm.Lost", "MIT", None),
        ],
    )


def test_where_a_code_is_from(repositories: Path, network: Callable[..., str]) -> None:
    library = Origins([repositories], jobs=1)
    assert library.blocks == 4, "one is too short, one has no code"

    def of(code: str) -> tuple[str, float, str] | None:
        found = library.find_origin(class_texts(code))
        return found and (found.block, found.similarity, found.license)

    assert of(network([4, 5, 6, 7], variable="z", width=8, docstring="Mine.", comment="new")) == (
        *("yolo@1::yolo.Gate", 1.0, "AGPL-3.0"),
    ), "its glue, names, numbers and comments are no part of a class"
    assert of(network([0, 1, 2, 3])) == ("timm@1::timm.Shared", 1.0, "Apache-2.0"), "of equals the permissive one"
    both = network([8, 9, 10]) + "\n\n" + network([4, 5, 6, 7, 7], name="Other").partition("\n\n")[2]
    found = of(both)
    assert found is not None
    assert (found[0], found[1] < 1.0) == ("yolo@1::yolo.Gate", True), "the class that limits most"
    assert of(network([11, 3, 9, 2])) is None
    assert of(HELPER) is None
    assert of("def (") is None


def test_what_is_no_library(repositories: Path, tmp_path: Path) -> None:
    for folder, told in (
        ([extraction(tmp_path / "bare", [("a@1::a.B", "MIT", None)])], "holds no code of blocks; extract with --level"),
        ([extraction(tmp_path / "run", [], "run")], "holds a run, not an extraction"),
        ([repositories, repositories], "is the same extraction as one before"),
        ([tmp_path / "none"], "no such folder"),
    ):
        with pytest.raises(UserError, match=told):
            Origins(folder)


NAMES = st.from_regex(r"[a-z][a-z_]{0,8}[0-9]?", fullmatch=True)
CLASS_NAMES = st.from_regex(r"[A-Z][A-Za-z]{1,10}", fullmatch=True)


@given(
    blocks=st.lists(st.integers(0, 11), min_size=3, max_size=6, unique=True),
    name=CLASS_NAMES,
    variable=st.sampled_from(["x", "z", "inputs", "hidden_state"]),
    width=st.integers(1, 512),
    text=st.text(st.characters(codec="ascii", exclude_characters='\\"\r\n\0'), max_size=30),
    indent=st.sampled_from([" ", "  ", "        "]),
)
def test_renaming_and_layout_do_not_hide_an_origin(
    network: Callable[..., str], blocks: list[int], name: str, variable: str, width: int, text: str, indent: str
) -> None:
    """So a copy of a class under a copyleft license is never told as permissive for that."""
    original = network(blocks, name="Original", glue=False)
    copy = network(blocks, name=name, variable=variable, width=width, docstring=text, comment=text)
    copy = copy.replace("    ", indent)
    (one,), (other,) = class_texts(original, "Original"), class_texts(copy)
    index = ClassIndex([one.shingles], THRESHOLD)
    assert jaccard(one.shingles, other.shingles) == 1.0
    assert index.nearest(other.shingles) == (0, 1.0)


@given(data=st.data())
def test_the_nearest_is_that_of_all_pairs(data: st.DataObject) -> None:
    pools = st.sets(st.integers(0, 60), min_size=20, max_size=60).map(sorted)
    sets = [np.array(data.draw(pools), np.uint64) * np.uint64(0x9E3779B97F4A7C15) for _ in range(4)]
    *there, asked = [np.sort(one) for one in sets]
    every = [jaccard(asked, one) for one in there]
    found = ClassIndex(there, THRESHOLD).nearest(asked)
    assert found == ((every.index(max(every)), max(every)) if max(every) >= THRESHOLD else None)


def test_a_snapshot_with_origins(
    repositories: Path, tmp_path: Path, memory_source: Any, warm: Callable[..., None], network: Callable[..., str]
) -> None:
    codes = {
        "taken": network([4, 5, 6, 7]),
        "taken-again": network([4, 5, 6, 7], variable="z"),
        "shared": network([0, 1, 2, 3]),
        "own": network([11, 3, 9, 2]),
    }
    warm(codes.values())
    rows = [{"nn": nn, "nn_code": code, "task": "t", "accuracy": 0.5} for nn, code in codes.items()]
    options, out = CurateOptions(graph="off", license="MIT"), tmp_path / "snapshot"
    manifest = curate(memory_source(rows), out, options, origins=[repositories], jobs=1)
    files = [*out.glob("data/records/*.parquet"), out / "networks.parquet"]
    found = {row["nn"]: row for path in files for row in pq.read_table(path).to_pylist()}
    assert {nn: (row["origin"], row["origin_license"], row["license"]) for nn, row in found.items()} == {
        **dict.fromkeys(("taken", "taken-again"), ("yolo@1::yolo.Gate", "AGPL-3.0", "AGPL-3.0 AND MIT")),
        "shared": ("timm@1::timm.Shared", "Apache-2.0", "Apache-2.0 AND MIT"),
        "own": (None, None, "MIT"),
    }
    assert manifest.counts["origins"]["kept"] == {
        "codes": 2,
        "licenses": {"AGPL-3.0": 1, "Apache-2.0": 1},
        "sources": {"timm@1": 1, "yolo@1": 1},
    }
    assert [parent.kind for parent in manifest.parents] == ["extraction"]
    assert manifest.parameters["origins"] == [manifest.parents[0].sha256]
    assert [check for check in verify(out) if not check.ok] == []
    report = (out / "report.md").read_text()
    assert "2 kept records of 3 and 1 removed code have a class of one of them" in report
    assert "| `yolo@1::yolo.Gate` | `AGPL-3.0` | 1.000 |" in report
    with stage_files(out) as ready:
        assert [item.entry for item in ready.withheld] == [
            {"source": "yolo@1", "license": "AGPL-3.0 AND MIT", "codes": 2}
        ]
        for path in files:
            left = pq.read_table(ready.files[path.relative_to(out).as_posix()]).to_pylist()
            assert all(bool(row["nn_code"]) == is_permissive(row["license"]) for row in left)
    plain = curate(memory_source(rows), tmp_path / "plain", options, jobs=1)
    assert {"origins", "licenses"} & {*plain.counts, *plain.parameters, *plain.details} == set()
    (path,) = (out / "data" / "records").glob("train-*")
    table = pq.read_table(path)
    wrong = [row | {"origin_similarity": 0.5} for row in table.to_pylist()]
    copy = Path(shutil.copytree(out, tmp_path / "copy"))
    pq.write_table(pa.Table.from_pylist(wrong, table.schema), copy / path.relative_to(out))
    assert not next(check for check in verify(copy) if check.name == "licenses").ok


def test_a_class_says_too_little_below_so_many_shingles(network: Callable[..., str]) -> None:
    assert len(class_texts(HELPER)[0].shingles) < LEAST_SHINGLES < len(class_texts(network([0, 1]))[0].shingles)
