"""Under which license codes are: their own word counts, and no published table has code under a license weaker."""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.kinds import verify
from curate.model.options import CurateOptions
from curate.model.rights import Origin, Origins, Rights, is_withheld
from curate.run.pipeline import curate
from curate.sources import open_source
from lemur_core.files.errors import UserError
from lemur_core.similarity.minhash import jaccard
from lemur_core.similarity.tokens import class_texts
from manifests.folders.manifest import read_manifest
from manifests.provenance.licenses import NOASSERTION, combine_licenses, is_permissive, license_of_code
from manifests.publishing.staged import stage_files
from tests.conftest import finish
from tests.curate.conftest import MemorySource, network
from tests.manifests.publishing.test_staged import copied

GPL = "# SPDX-License-Identifier: GPL-3.0-only\n"
APACHE = '"""A network.\n\nSPDX-License-Identifier: Apache-2.0\n"""\n'

Snapshot = Callable[..., Path]


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """A snapshot of a free code, one under GPL, a copy of that, and one under Apache-2.0, by the files' own words."""
    codes = {
        "free": network([0, 1, 2, 3]),
        "copyleft": GPL + network([4, 5, 6, 7]),
        "copy": GPL + network([4, 5, 6, 7], variable="z"),
        "other": APACHE + network([8, 9, 10, 11, 0, 2]),
    }

    def make(**options: Any) -> Path:
        rows = [{"nn": nn, "nn_code": code, "task": "t", "accuracy": 0.5} for nn, code in codes.items()]
        out = tmp_path_factory.mktemp("rights") / "snapshot"
        curate(MemorySource(rows), out, CurateOptions(graph="off", **options), jobs=1)
        return out

    return make


@pytest.fixture(scope="module")
def mit(snapshot: Snapshot) -> Path:
    return snapshot(license="MIT")


def rows_of(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["nn"]: row for row in pq.read_table(folder / "networks.parquet").to_pylist()}


def test_a_code_says_its_own_licence(mit: Path) -> None:
    found = {nn: row["license"] for nn, row in rows_of(mit).items()}
    assert found == {"free": "MIT", "copyleft": "GPL-3.0-only", "copy": "GPL-3.0-only", "other": "Apache-2.0"}
    kept = {"Apache-2.0": 1, "GPL-3.0-only": 1, "MIT": 1}
    assert read_manifest(mit).counts["licenses"] == {"kept": kept, "removed": {"GPL-3.0-only": 1}}
    licenses = json.loads((mit / "croissant.json").read_text())["license"]
    assert [name.rpartition("/")[2] for name in licenses] == ["Apache-2.0", "MIT"]


def test_the_licence_of_a_row_and_of_its_head_are_one(tmp_path: Path) -> None:
    """Of several sources, whose licences differ, each code has that of its row, which its head may repeat."""

    class Mixed(MemorySource):
        def license(self, stated: str | None) -> str:
            return "Apache-2.0 AND MIT"

    codes = {"one": (APACHE + network([0, 1, 2, 3]), "Apache-2.0"), "two": (network([4, 5, 6, 7]), "MIT")}
    rows = [
        {"nn": nn, "nn_code": code, "license": word, "task": "t", "accuracy": 0.5} for nn, (code, word) in codes.items()
    ]
    curate(Mixed(rows), tmp_path / "out", CurateOptions(graph="off"), jobs=1)
    assert {nn: row["license"] for nn, row in rows_of(tmp_path / "out").items()} == {"one": "Apache-2.0", "two": "MIT"}
    assert [check for check in verify(tmp_path / "out") if not check.ok] == []


def test_what_is_published(mit: Path, tmp_path: Path) -> None:
    with stage_files(mit, page=True) as ready:
        out = copied(ready, tmp_path / "out")
    assert list(ready.withheld) == [{"source": "memory", "license": "GPL-3.0-only", "codes": 2}]
    assert read_manifest(out).details["withheld"] == list(ready.withheld)
    before, after = rows_of(mit), rows_of(out)
    for nn, row in before.items():
        assert after[nn] == (row if is_permissive(row["license"]) else {**row, "nn_code": ""})
    assert sum(not row["nn_code"] for row in after.values()) == 2
    shown = "".join(
        zlib.decompress(base64.b64decode(packed)).decode()
        for path in (out / "page").glob("*.js")
        for packed in re.findall(r'"([A-Za-z0-9+/=]+)"', path.read_text(encoding="ascii"))
    )
    assert ("MultiheadAttention" in shown, "SqueezeExcite" in shown) == (False, True)
    assert [check.name for check in verify(out) if not (check.ok and check.done)] == [
        "near duplicates, witnesses, leaks"
    ]
    with stage_files(out) as ready:
        again = copied(ready, tmp_path / "again")
    staged = [(folder / "manifest.json").read_bytes() for folder in (out, again)]
    assert staged[0] == staged[1], "of what was staged already, nothing more goes"

    (kept,) = (row for row in before.values() if row["kept"] and row["license"] == "GPL-3.0-only")
    (path,) = again.glob("data/records/train-*.parquet")
    table = pq.read_table(path)
    codes = {"nn_code": kept["nn_code"]}
    changed = [row | codes if row["license"] == "GPL-3.0-only" else row for row in table.to_pylist()]
    pq.write_table(table.from_pylist(changed, table.schema), path)
    assert {check.name for check in verify(again) if not check.ok} & {"licenses", "rows"}, "a withheld code is back"


def test_without_any_word_all_stays(snapshot: Snapshot) -> None:
    folder = snapshot()
    assert {row["license"] for row in rows_of(folder).values()} == {NOASSERTION, "GPL-3.0-only", "Apache-2.0"}
    with pytest.raises(UserError, match=r"the license of its codes \(NOASSERTION\)"):
        stage_files(folder).__enter__()


def test_rows_say_their_own_licence(mit: Path, tmp_path: Path) -> None:
    """So a snapshot that is curated again keeps what was found out, whatever is stated of the rest."""
    codes = [network([0, 1, 2, 3]), network([4, 5, 6, 7]), network([8, 9, 10, 11])]
    stated = ["AGPL-3.0 AND MIT", "mit", None]
    rows = [
        {"nn": f"n{at}", "nn_code": code, "task": "t", "license": license_}
        for at, (code, license_) in enumerate(zip([*codes, codes[1]], [*stated, "Apache-2.0"], strict=True))
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out"
    curate(open_source(str(path)), out, CurateOptions(graph="off", license="BSD-3-Clause"), jobs=1)
    found = {row["nn"]: row["license"] for row in rows_of(out).values()}
    assert found == {"n0": "AGPL-3.0 AND MIT", "n1": "Apache-2.0 AND MIT", "n2": "BSD-3-Clause"}
    assert [check.name for check in verify(out) if not check.ok] == []
    (row,) = [
        row for row in open_source(str(mit)).batches().__next__().to_pylist() if "MultiheadAttention" in row["nn_code"]
    ]
    assert row["license"] == "GPL-3.0-only"


LICENSES = st.sampled_from(["MIT", "Apache-2.0", "BSD-3-Clause", "GPL-3.0-only", "AGPL-3.0", NOASSERTION])


@given(own=st.lists(LICENSES, max_size=2), source=LICENSES, stated=st.none() | LICENSES, origin=st.none() | LICENSES)
def test_no_licence_is_weaker_than_what_is_known(
    own: list[str], source: str, stated: str | None, origin: str | None
) -> None:
    """What is not permissive by a word of its own, or by where it is from, is never told as permissive."""
    code = "".join(f"# SPDX-License-Identifier: {name}\n" for name in own) + "x = 1\n"
    told = license_of_code(code, source, stated)
    assert (told is None) == (not own)
    found = Rights(
        source, {} if told is None else {0: told}, None if origin is None else {0: Origin("a::B", 1.0, origin, "B")}
    ).get_license(0)
    known = [*own, *([origin] if origin else []), *([] if own and source in (stated, NOASSERTION) else [source])]
    assert is_permissive(found) == all(map(is_permissive, known)) == is_permissive(combine_licenses(known))
    assert is_withheld(found, "MIT") == (not is_permissive(found))


# Where codes are from: classes of extracted repositories are found again, whatever was renamed, and obeyed.


def extraction(folder: Path, blocks: Sequence[tuple[str, str, str | None]], kind: str = "extraction") -> Path:
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
    return finish(folder, kind)


HELPER = "class ConvUnit(nn.Module):\n    def forward(self, x):\n        return x\n\n\n"


@pytest.fixture
def repositories(tmp_path: Path) -> Path:
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


def test_where_a_code_is_from(repositories: Path) -> None:
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
    blocks: list[int], name: str, variable: str, width: int, text: str, indent: str
) -> None:
    """So a copy of a class under a copyleft license is never told as permissive for that."""
    original = network(blocks, name="Original", glue=False)
    copy = network(blocks, name=name, variable=variable, width=width, docstring=text, comment=text)
    copy = copy.replace("    ", indent)
    (one,), (other,) = class_texts(original, "Original"), class_texts(copy)
    assert jaccard(one.shingles, other.shingles) == 1.0


def test_a_snapshot_with_origins(repositories: Path, tmp_path: Path) -> None:
    codes = {
        "taken": network([4, 5, 6, 7]),
        "taken-again": network([4, 5, 6, 7], variable="z"),
        "shared": network([0, 1, 2, 3]),
        "own": network([11, 3, 9, 2]),
    }
    rows = [{"nn": nn, "nn_code": code, "task": "t", "accuracy": 0.5} for nn, code in codes.items()]
    options, out = CurateOptions(graph="off", license="MIT"), tmp_path / "snapshot"
    manifest = curate(MemorySource(rows), out, options, origins=[repositories], jobs=1)
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
    assert "2 kept records and 1 removed code have a class of one of them" in report
    assert "| AGPL-3.0 | 1 | 1 |" in report
    with stage_files(out) as ready:
        assert list(ready.withheld) == [{"source": "yolo@1", "license": "AGPL-3.0 AND MIT", "codes": 2}]
        for path in files:
            left = pq.read_table(ready.files[path.relative_to(out).as_posix()]).to_pylist()
            assert all(bool(row["nn_code"]) == is_permissive(row["license"]) for row in left)
    plain = curate(MemorySource(rows), tmp_path / "plain", options, jobs=1)
    assert {"origins", "licenses"} & {*plain.counts, *plain.parameters, *plain.details} == set()
