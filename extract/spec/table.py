"""Specs as a table of fixed columns, split by split: what `datasets.load_dataset(DIR, "specs")` opens."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from extract.spec.groups import Place
from manifests.records import SPLITS, Spec, SpecRow
from manifests.tables import write_tables

#: Where the tables lie below the folder.
TABLES = "data/specs"


def write_spec_tables(folder: Path, specs: Sequence[Spec], places: Sequence[Place]) -> dict[str, int]:
    """Write the specs, each in its split, in their order. Returns: rows by path below `folder`."""
    rows: dict[str, int] = {}
    for split in SPLITS:
        chosen = [(spec, place) for spec, place in zip(specs, places, strict=True) if place.split == split]
        made: Iterator[dict[str, object]] = (spec_row(spec, place) for spec, place in chosen)
        written = write_tables(folder / TABLES, split, SpecRow, made, len(chosen))
        rows |= {f"{TABLES}/{name}": count for name, count in written.items()}
    return rows


def spec_row(spec: Spec, place: Place) -> dict[str, Any]:
    """One row: the fields of the spec's line, its mappings as lists by name."""
    facts = spec.model_dump(mode="json")
    worked = facts.pop("arguments") or {"init": None, "forward": None, "method": None}
    facts["cases"] = [{"inputs": _values(case["inputs"]), "outputs": case["outputs"]} for case in facts["cases"]]
    facts["layers"] = None if facts["layers"] is None else _counts(facts["layers"])
    facts["builds"] = _counts(facts["builds"])
    facts["dependencies"] = _values(facts["dependencies"])
    facts |= {name: None if worked[key] is None else _values(worked[key]) for name, key in _CALLS}
    facts |= {"method": worked["method"], "split": place.split, "cluster": place.cluster}
    return {name: facts[name] for name in SpecRow.model_fields}


_CALLS = (("init", "init"), ("call", "forward"))


def _values(items: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in sorted(items.items())]


def _counts(items: Mapping[str, int]) -> list[dict[str, object]]:
    return [{"name": name, "count": number} for name, number in sorted(items.items())]
