"""Bundling of real blocks: random triples of an extraction folder compute what their own files compute.

LEMUR_BLOCKS=FOLDER [LEMUR_TRIPLES=300] pytest -s tests/lemur_core/source/test_bundle_blocks.py
"""

import ast
import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lemur_core.files.errors import UserError
from lemur_core.sandbox import Job, Sandbox
from lemur_core.source.bundle import Part, bundle
from lemur_core.source.quality import find_undefined_names

pytestmark = pytest.mark.slow
SIGN = "extract.proofs.equivalence_guest:sign_block"  # the names of the state, and digests of it and of outputs, eval and train


@pytest.fixture(scope="module")
def blocks() -> dict[str, dict[str, Any]]:
    """The blocks of LEMUR_BLOCKS that run without packages of their own."""
    folder = os.environ.get("LEMUR_BLOCKS")
    if not folder:
        pytest.skip("set LEMUR_BLOCKS to an extraction folder to try its blocks")
    columns = ["block", "name", "code", "level", "requires", "license", "arguments"]
    rows = pq.read_table(Path(folder) / "blocks.parquet", columns=columns).to_pylist()
    runs = [row for row in rows if row["level"] in {"forward", "backward"} and not row["requires"]]
    return {row["block"]: row for row in runs if not _named_in_arguments(row)}


def _named_in_arguments(row: dict[str, Any]) -> set[str]:
    """Definitions of the file that its arguments name: they may have another name in the bundle."""
    return set(re.findall(r"\w+", row["arguments"])) & set(
        re.findall(r"^(?:class|def) (\w+)", row["code"], re.MULTILINE)
    )


def test_triples_compute_what_their_own_files_compute(blocks: dict[str, dict[str, Any]]) -> None:
    dice = random.Random(2)
    triples = [dice.sample(sorted(blocks), 3) for _ in range(int(os.environ.get("LEMUR_TRIPLES", "12")))]
    jobs: dict[str, Job] = {}
    refused: list[str] = []
    for number, triple in enumerate(triples):
        parts = [Part(key, blocks[key]["name"], blocks[key]["code"], (key,)) for key in triple]
        try:
            found = bundle(parts)
        except UserError as error:
            refused.append(str(error))
            continue
        assert found == bundle(parts)
        assert set(find_undefined_names(ast.parse(found.text))) <= set().union(
            *(find_undefined_names(ast.parse(part.code)) for part in parts)
        )
        for key in triple:
            for place, code, name, given in (
                (key, blocks[key]["code"], blocks[key]["name"], blocks[key]["arguments"]),
                (f"{number} {key}", found.text, found.names[key], blocks[key]["arguments"]),
            ):
                payload = {"code": code, "name": name, "folders": [], "origin": [], "companions": []}
                jobs.setdefault(place, Job(place, SIGN, payload | {"arguments": json.loads(given)}))
    with Sandbox(workers=2, entries=[SIGN]) as box:
        signatures = {outcome.key: outcome.value for outcome in box.run(jobs.values())}
    pairs = [(signatures[key.partition(" ")[2]], signatures[key], key) for key in jobs if key[0].isdigit()]
    compared = [pair for pair in pairs if isinstance(pair[0], dict) and "error" not in pair[0]]
    other = [(key, new) for old, new, key in compared if old != new]
    print(
        f"{len(triples)} triples, {len(refused)} refused; {len(pairs)} blocks, {len(compared)} run, {len(other)} differ"
    )
    for line in [*refused, *(f"{key}: {str(value)[:300]}" for key, value in other)]:
        print(line)
    assert other == []
    assert len(refused) <= 0.05 * len(triples)
    assert len(compared) >= 0.9 * len(pairs)
