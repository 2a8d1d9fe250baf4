"""Several sources in one curation, and an extraction folder as one of them."""

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.rows import InputFile, Source
from curate.sources import join_sources, open_source, open_sources
from curate.sources.provenance import source_license
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError

made = runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "extract" / "results.py"))


def rows_of(source: Source) -> list[dict[str, Any]]:
    return [row for batch in source.batches() for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Blocks under MIT, GPL and an unknown licence; one of the MIT source has a part from the GPL source."""
    root = tmp_path_factory.mktemp("made")
    sources = [made["source"](root, name) for name in ("alpha@1.0", "beta@1.0", "gamma@1.0")]
    results = made["results"](sources)
    first = results[1]
    results[1] = type(first)(first.row, (*first.closure_files, ("beta@1.0", "beta/parts.py")))
    made["write"](root / "blocks", results, sources)
    return root / "blocks"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    lines = [{"nn": "ga-1", "nn_code": "a = 1\n"}, {"nn": "ga-2", "nn_code": "b = 2\n"}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_blocks_are_records_named_by_their_id(blocks: Path) -> None:
    rows = rows_of(open_source(str(blocks)))
    codes = pq.read_table(blocks / "blocks.parquet", columns=["block", "code"]).to_pylist()
    assert [row["nn"] for row in rows] == [f"block-{block['block']}" for block in codes]
    handed = {row["nn"]: row["nn_code"] for row in rows if row["nn_code"] is not None}
    assert list(handed) == ["block-alpha@1.0::alpha.blocks.Attention", "block-alpha@1.0::alpha.blocks.Einops"]
    assert handed["block-alpha@1.0::alpha.blocks.Attention"] == codes[0]["code"]


def test_a_block_that_hands_over_no_code_says_why(blocks: Path) -> None:
    problems = {row["nn"].rpartition("::")[2]: row["problem"] for row in rows_of(open_source(str(blocks)))}
    barred = "the licence of the block does not let its code be passed on: "
    assert problems == {
        "alpha.blocks.Attention": None,
        "alpha.blocks.Scale": f"{barred}GPL-3.0-only",  # of one of its parts
        "alpha.blocks.Native": "the block came to discovered only: native_op",
        "alpha.blocks.Broken": "the block came to compiled only: runtime_error",
        "alpha.blocks.Einops": None,
        "beta.blocks.Attention": f"{barred}GPL-3.0-only",
        "beta.blocks.Scale": f"{barred}GPL-3.0-only",
        "beta.blocks.Native": "the block came to discovered only: native_op",
        "beta.blocks.Broken": "the block came to compiled only: runtime_error",
        "beta.blocks.Einops": f"{barred}GPL-3.0-only",
        "gamma.blocks.Attention": f"{barred}NOASSERTION",
        "gamma.blocks.Scale": f"{barred}NOASSERTION",
        "gamma.blocks.Native": "the block came to discovered only: native_op",
        "gamma.blocks.Broken": "the block came to compiled only: runtime_error",
        "gamma.blocks.Einops": f"{barred}NOASSERTION",
    }


def test_blocks_state_what_was_read(blocks: Path) -> None:
    source = open_source(str(blocks))
    assert source.name == "blocks"
    assert [(item.name, item.sha256) for item in source.inputs()] == [
        (f"blocks/{name}", sha256_file(blocks / name)) for name in ("blocks.parquet", "required_repos.json")
    ]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("required_repos.json", "{", r"required_repos\.json: cannot be read: .*; extract it again"),
        ("required_repos.json", '{"sources": {}, "blocks": []}', r"cannot be read as blocks: .*; extract it again"),
        ("blocks.parquet", "PAR1", r"blocks\.parquet: cannot be read as blocks: .*; extract it again"),
    ],
)
def test_a_damaged_extraction_is_one_line(blocks: Path, tmp_path: Path, name: str, text: str, said: str) -> None:
    harmed = Path(shutil.copytree(blocks, tmp_path / "harmed"))
    (harmed / name).write_text(text)
    with pytest.raises(UserError, match=said) as caught:
        rows_of(open_source(str(harmed)))
    assert "\n" not in str(caught.value)


def test_rows_of_several_stand_in_the_order_of_the_sources(blocks: Path, table: Path) -> None:
    one, two = open_source(str(table)), open_source(str(blocks))
    both = open_sources([str(table), str(blocks)])
    assert both.name == "rows.jsonl + blocks"
    assert rows_of(both) == rows_of(both) == [*rows_of(one), *rows_of(two)]
    assert both.inputs() == [*one.inputs(), *two.inputs()]


def test_one_source_stays_itself(table: Path) -> None:
    assert type(open_sources([str(table)])) is type(open_source(str(table)))


def test_sources_of_one_name_are_refused(table: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(table, other / table.name)
    with pytest.raises(UserError, match=r"^rows\.jsonl: two sources have this name; leave one out"):
        open_sources([str(table), str(other / table.name)])
    with pytest.raises(UserError, match="no SOURCE is given"):
        open_sources([])


@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=5), batch=st.integers(1, 3))
def test_no_row_is_lost_or_moved(memory_source: Any, sizes: list[int], batch: int) -> None:
    parts = []
    for place, size in enumerate(sizes):
        rows = [{"nn": f"{place}-{number}", "nn_code": f"x = {number}\n"} for number in range(size)]
        part = memory_source(rows, batch)
        part.name = f"part {place}"
        part.inputs = lambda place=place: [InputFile(f"part {place}", "0" * 64, place)]
        parts.append(part)
    joined = join_sources(parts)
    assert [row["nn"] for row in rows_of(joined)] == [
        f"{place}-{n}" for place, size in enumerate(sizes) for n in range(size)
    ]
    assert [item.bytes for item in joined.inputs()] == list(range(len(sizes)))


def test_the_licence_is_that_of_all_the_code_that_is_handed_over(blocks: Path, table: Path) -> None:
    found = open_source(str(blocks))
    assert source_license(found) == "MIT"
    with_unknown = join_sources([found, open_source(str(table))])
    assert source_license(with_unknown) == "NOASSERTION"
    assert source_license(with_unknown, "ISC") == "ISC AND MIT", "what a user states is of those that state nothing"
    assert source_license(found, "GPL-3.0-only") == "MIT"
