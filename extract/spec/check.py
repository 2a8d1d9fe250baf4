"""`lemur verify` of the tables of specs: they are the lines, each once, and no group is in two splits."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from extract.spec.groups import Place, place_specs
from extract.spec.table import TABLES, spec_row
from manifests.checks import Check, check_table, found_check
from manifests.manifest import Manifest
from manifests.records import Spec, SpecRow
from manifests.tables import rows_by_split


def check_spec_tables(
    folder: Path, manifest: Manifest, specs: Sequence[Spec], codes: Sequence[str | None]
) -> tuple[list[Check], dict[str, str]]:
    """The checks, and the split of each spec by block.

    Args:
        specs: of `specs.jsonl`, in order.
        codes: of the same blocks; groups are worked out again where none was withheld.
    """
    table = check_table(folder, f"{TABLES}/*.parquet", SpecRow)
    if not table.ok:
        return [table], {}
    listed = list(rows_by_split(folder, TABLES))
    rows = {row["block"]: (split, row) for split, row in listed}
    wrong: list[str] = []
    if len(listed) != len(specs) or rows.keys() != {spec.block for spec in specs}:
        wrong.append(f"{len(listed):,} rows of {len(rows):,} blocks, {len(specs):,} lines")
    clusters: dict[str, str] = {}
    for spec in specs:
        split, row = rows.get(spec.block, ("", {}))
        if not row:
            continue
        if row != spec_row(spec, Place(row["cluster"], row["split"])):
            wrong.append(f"{spec.block}: its row does not state what its line states")
        if row["split"] != split:
            wrong.append(f"{spec.block}: stands in {split}, but states {row['split']}")
        if clusters.setdefault(row["cluster"], split) != split:
            wrong.append(f"{spec.block}: its group is in {split} and in {clusters[row['cluster']]}")
    again = "" if None in codes else ", worked out again"
    if not wrong and again:
        wrong += _misplaced(manifest, specs, [code or "" for code in codes], rows)
    fine = f"{len(specs):,} specs as their lines, {len(clusters):,} groups{again}, each in one split"
    return [table, found_check("spec splits", wrong, fine)], {block: split for block, (split, _) in rows.items()}


def _misplaced(
    manifest: Manifest, specs: Sequence[Spec], codes: Sequence[str], rows: Mapping[str, tuple[str, Mapping[str, Any]]]
) -> list[str]:
    seed = manifest.parameters.get("seed")
    if not isinstance(seed, int):
        return ["the manifest states no seed"]
    places = zip(specs, place_specs(specs, codes, seed), strict=True)
    return [
        f"{spec.block}: belongs to {place.cluster} in {place.split}"
        for spec, place in places
        if (rows[spec.block][1]["cluster"], rows[spec.block][0]) != (place.cluster, place.split)
    ]
