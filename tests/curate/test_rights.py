"""Under which license codes are: their own word counts, and no published table has code under a license weaker."""

import base64
import json
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.folder.verify import verify
from curate.model.options import CurateOptions
from curate.model.rights import Origin, Rights, is_withheld
from curate.run.pipeline import curate
from curate.sources import open_source
from lemur_core.files.errors import UserError
from manifests.folders.manifest import list_outputs, read_manifest, write_manifest
from manifests.provenance.heads import license_of_code
from manifests.provenance.licenses import NOASSERTION, combine_licenses, is_permissive
from manifests.publish.staged import Staged, stage_files

GPL = "# SPDX-License-Identifier: GPL-3.0-only\n"
APACHE = '"""A network.\n\nSPDX-License-Identifier: Apache-2.0\n"""\n'

Snapshot = Callable[..., Path]


@pytest.fixture(scope="module")
def snapshot(
    tmp_path_factory: pytest.TempPathFactory, memory_source: Any, warm: Callable[..., None], network: Callable[..., str]
) -> Snapshot:
    """A snapshot of a free code, one under GPL, a copy of that, and one under Apache-2.0, by the files' own words."""
    codes = {
        "free": network([0, 1, 2, 3]),
        "copyleft": GPL + network([4, 5, 6, 7]),
        "copy": GPL + network([4, 5, 6, 7], variable="z"),
        "other": APACHE + network([8, 9, 10, 11, 0, 2]),
    }
    warm(codes.values())

    def make(**options: Any) -> Path:
        rows = [{"nn": nn, "nn_code": code, "task": "t", "accuracy": 0.5} for nn, code in codes.items()]
        out = tmp_path_factory.mktemp("rights") / "snapshot"
        curate(memory_source(rows), out, CurateOptions(graph="off", **options), jobs=1)
        return out

    return make


@pytest.fixture(scope="module")
def mit(snapshot: Snapshot) -> Path:
    return snapshot(license="MIT")


def rows_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Kept and removed rows by name."""
    return {row["nn"]: row for row in pq.read_table(folder / "networks.parquet").to_pylist()}


def copied(ready: Staged, out: Path) -> Path:
    for name, path in ready.files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, out / name)
    return out


def test_a_code_says_its_own_licence(mit: Path) -> None:
    found = {nn: row["license"] for nn, row in rows_of(mit).items()}
    assert found == {"free": "MIT", "copyleft": "GPL-3.0-only", "copy": "GPL-3.0-only", "other": "Apache-2.0"}
    kept = {"Apache-2.0": 1, "GPL-3.0-only": 1, "MIT": 1}
    assert read_manifest(mit).counts["licenses"] == {"kept": kept, "removed": {"GPL-3.0-only": 1}}
    licenses = json.loads((mit / "croissant.json").read_text())["license"]
    assert [name.rpartition("/")[2] for name in licenses] == ["Apache-2.0", "MIT"]


def test_the_licence_of_a_row_and_of_its_head_are_one(
    memory_source: Any, warm: Callable[..., None], network: Callable[..., str], tmp_path: Path
) -> None:
    """Of several sources, whose licences differ, each code has that of its row, which its head may repeat."""

    class Mixed(memory_source):  # type: ignore[misc]
        def license(self, stated: str | None) -> str:
            return "Apache-2.0 AND MIT"

    codes = {"one": (APACHE + network([0, 1, 2, 3]), "Apache-2.0"), "two": (network([4, 5, 6, 7]), "MIT")}
    warm(code for code, _ in codes.values())
    rows = [
        {"nn": nn, "nn_code": code, "license": word, "task": "t", "accuracy": 0.5} for nn, (code, word) in codes.items()
    ]
    curate(Mixed(rows), tmp_path / "out", CurateOptions(graph="off"), jobs=1)
    assert {nn: row["license"] for nn, row in rows_of(tmp_path / "out").items()} == {"one": "Apache-2.0", "two": "MIT"}
    assert [check for check in verify(tmp_path / "out") if not check.ok] == []


def test_what_is_published(mit: Path, tmp_path: Path) -> None:
    with stage_files(mit, page=True) as ready:
        out = copied(ready, tmp_path / "out")
    assert [item.entry for item in ready.withheld] == [{"source": "memory", "license": "GPL-3.0-only", "codes": 2}]
    assert read_manifest(out).details["withheld"] == [item.entry for item in ready.withheld]
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
    assert [check.name for check in verify(out) if not check.ok] == []
    with stage_files(out) as again:
        assert (
            copied(again, tmp_path / "again").joinpath("manifest.json").read_bytes()
            == (out / "manifest.json").read_bytes()
        ), "of what was staged already, nothing more goes"


def test_verify_sees_what_is_wrong(mit: Path, tmp_path: Path) -> None:
    with stage_files(mit) as ready:
        published = copied(ready, tmp_path / "published")
    (kept,) = (row for row in rows_of(mit).values() if row["kept"] and row["license"] == "GPL-3.0-only")
    for folder, faults in (
        (mit, {"license": "MIT"}),
        (mit, {"origin": "a@1::a.B"}),
        (published, {"nn_code": kept["nn_code"]}),
    ):
        copy = Path(shutil.copytree(folder, tmp_path / "copy"))
        (path,) = copy.glob("data/records/train-*.parquet")
        table = pq.read_table(path)
        changed = [row | faults if row["license"] == "GPL-3.0-only" else row for row in table.to_pylist()]
        pq.write_table(table.from_pylist(changed, table.schema), path)
        manifest = read_manifest(copy)
        rows = {item.path: item.rows for item in manifest.outputs if item.rows is not None}
        write_manifest(copy, manifest.model_copy(update={"outputs": list_outputs(copy, rows)}))
        assert {check.name for check in verify(copy) if not check.ok} & {"licenses", "ids"}, faults
        shutil.rmtree(copy)


def test_without_any_word_all_stays(snapshot: Snapshot) -> None:
    folder = snapshot()
    assert {row["license"] for row in rows_of(folder).values()} == {NOASSERTION, "GPL-3.0-only", "Apache-2.0"}
    with pytest.raises(UserError, match=r"the license of its codes \(NOASSERTION\)"):
        stage_files(folder).__enter__()


def test_rows_say_their_own_licence(
    mit: Path, tmp_path: Path, memory_source: Any, network: Callable[..., str], warm: Callable[..., None]
) -> None:
    """So a snapshot that is curated again keeps what was found out, whatever is stated of the rest."""
    codes = [network([0, 1, 2, 3]), network([4, 5, 6, 7]), network([8, 9, 10, 11])]
    warm(codes)
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
