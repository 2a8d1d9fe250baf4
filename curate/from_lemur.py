"""`curate_from_lemur`: curation for programs that call nn-dup's function of this name, with its output files.

The folder gets a file for each kept code in `accepted_code`, `kept_records.json`, `tombstones.json`, `splits.json`,
`dedup_report.md`, `sampling_weights.csv` if `upweights` are provided, and the folder `snapshot`, the whole snapshot,
which states the outcome of every row.

Source: `ab/dup/preprocessing.py` of nn-dup 2.2.4, and its caller `ab/gpt/act/iterative/finetune.py` of nn-gpt.
"""

import csv
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from curate.model.options import CurateOptions, Profile
from curate.run.pipeline import curate
from curate.sources import open_sources
from lemur_core.files import Json
from lemur_core.files.atomic import write_text
from lemur_core.files.errors import UserError
from manifests.folders.formats import SNAPSHOT

Texts = str | Sequence[str]

_SNAPSHOT = "snapshot"
_REASONS = {"lexical": "lexical_near_duplicate", "graph": "graph_duplicate"}
_SIMILARITIES = {"lexical": "jaccard", "structural": "struct_jaccard"}
_WRITTEN = re.compile(r".*__[0-9a-f]{12}\.py")


def curate_from_lemur(
    out_dir: Path | str = Path("./curation_output"),
    includes: Sequence[str] | None = None,
    prefer_order: Sequence[str] | None = None,
    min_per_prefix: int = 1,
    keep_per_family: int = 5,
    lex_thresh_fractal: float = 0.97,
    topup_prefixes: Sequence[str] | None = None,
    topup_per_prefix: int = 10,
    topup_lex_max: float = 0.85,
    topup_struct_max: float = 0.60,
    dump_code_subdir: str = "accepted_code",
    upweights: Sequence[tuple[str, float]] | None = None,
    logger: logging.Logger | None = None,
    *,
    dataset: Texts | None = None,
    nn_prefixes: Texts | None = None,
    task: Texts | None = None,
    metric: Texts | None = None,
    source: Texts = "lemur",
    profile: Profile = "nn-dup",
    jobs: int | None = None,
) -> None:
    """Curate LEMUR into `out_dir`. The first thirteen parameters are those of nn-dup 2.2.4, with its defaults.

    A later call replaces these files, and removes the codes that are no longer kept; other files of the folder stay.

    Args:
        includes: beginnings of names, compared as in nn-dup: only letters and digits, so that `ga-` includes GAN.
        dataset: only rows of this data set, or of these; likewise `task` and `metric`.
        nn_prefixes: whole prefixes of names: `ga-` is not GAN. Also used as `includes` if that is empty.
        source: one or more values of `lemur curate`'s SOURCE.
        profile: `nn-dup` decides the remaining rows as nn-dup 2.2.4 does; `strict` decides by the guarantees, and
            supports neither `keep_per_family` nor the thresholds.

    Returns: nothing, like nn-dup's.
    Raises: UserError, with one line, for a value that no row has, an unreadable source or an unwritable folder.

    Example:
        ```python
        from pathlib import Path

        from curate import curate_from_lemur

        curate_from_lemur("curation_output", source="networks.jsonl", keep_per_family=1)
        print(sorted(path.name for path in Path("curation_output/accepted_code").iterdir()))
        ```
    """
    prefixes = _texts(nn_prefixes)
    options = CurateOptions(
        profile=profile,
        task=_texts(task),
        dataset=_texts(dataset),
        metric=_texts(metric),
        include=tuple(includes or prefixes),
        nn_prefixes=prefixes,
        prefer=tuple(prefer_order or ()),
        min_per_prefix=min_per_prefix,
        keep_per_family=keep_per_family,
        fractal_threshold=lex_thresh_fractal,
        topup_prefix=tuple(topup_prefixes or ()),
        topup_per_prefix=topup_per_prefix,
        topup_lexical_max=topup_lex_max,
        topup_structural_max=topup_struct_max,
        upweight=tuple((prefix, float(factor)) for prefix, factor in upweights or ()),
    )
    folder = Path(out_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        rows = open_sources(_texts(source), options.of_files)
        manifest = curate(rows, folder / _SNAPSHOT, options, jobs=jobs, force=True)
        records, decisions = _read(folder / _SNAPSHOT)
        _write_codes(folder / dump_code_subdir, records)
        _write_facts(folder, records, decisions, weights=bool(options.upweight))
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror or error}; choose another out_dir") from error
    counts, log = manifest.counts["rows"], logger or logging.getLogger(__name__)
    log.info(f"{counts['input']} rows of {manifest.parameters['source']}, {counts['filter']} left out by the options")
    log.info(f"kept {len(records)} codes: {dict(Counter(record['split'] for record in records))}; see {folder}")


def _texts(values: Texts | None) -> tuple[str, ...]:
    return (values,) if isinstance(values, str) else tuple(values or ())


def _read(snapshot: Path) -> tuple[list[Json], list[Json]]:
    """Return the kept records by id, and all decisions; `rid` is nn-dup's id of a row: its code's and its number."""
    decisions = pq.read_table(snapshot / "decisions.parquet").to_pylist()
    for decision in decisions:
        decision["rid"] = f"{decision['id']}_{decision['row']}"
    rid = {decision["id"]: decision["rid"] for decision in decisions if decision["kept"]}
    columns = ["id", "nn", "nn_code", "accuracy", "family", "split", "weight"]
    tables = [pq.read_table(path, columns=columns) for path in SNAPSHOT.files(snapshot, "records")]
    records = [
        record | {"rid": rid[record["id"]]} for table in tables for record in table.to_pylist() if record["nn_code"]
    ]
    return sorted(records, key=lambda record: str(record["rid"])), decisions


def _write_codes(folder: Path, records: Sequence[Json]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stems = [re.sub(r"[^a-zA-Z0-9._-]+", "", record["nn"].strip().replace(" ", "_")) or "model" for record in records]
    named = zip(stems, records, strict=True)
    names = {f"{stem}__{record['id'][:12]}.py": record["nn_code"] for stem, record in named}
    for name, code in names.items():
        write_text(folder / name, code)
    for path in folder.iterdir():
        if path.name not in names and _WRITTEN.fullmatch(path.name):
            path.unlink()


def _write_facts(folder: Path, records: Sequence[Json], decisions: Sequence[Json], *, weights: bool) -> None:
    kept = [
        {"id": record["rid"], "name": record["nn"], "accuracy": record["accuracy"], "family_tag": record["family"]}
        for record in records
    ]
    splits = {record["rid"]: {"validation": "dev"}.get(record["split"], record["split"]) for record in records}
    tombstones = dict(_tombstones(decisions, {record["id"]: record for record in records}))
    for name, value in (("kept_records", kept), ("tombstones", tombstones), ("splits", splits)):
        write_text(folder / f"{name}.json", json.dumps(value, indent=2))
    report = (folder / _SNAPSHOT / "report.md").read_text(encoding="utf-8")
    write_text(folder / "dedup_report.md", report.replace("](figures/", f"]({_SNAPSHOT}/figures/"))
    table = folder / "sampling_weights.csv"
    table.unlink(missing_ok=True)
    if weights:
        with table.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["id", "name", "weight"])
            writer.writerows([record["rid"], record["nn"], record["weight"]] for record in records)


def _tombstones(decisions: Sequence[Json], kept: dict[str, Json]) -> Iterator[tuple[str, Json]]:
    for decision in decisions:
        stage, canonical = decision["stage"], kept.get(decision["canonical"])
        if decision["kept"] or canonical is None:
            continue
        near = "exact" if decision["similarity"] == 1.0 else "near"
        reason = _REASONS.get(stage) or (f"structural_duplicate_{near}" if stage == "structural" else "exact_duplicate")
        facts = {"reason": reason, "canonical": canonical["rid"]}
        if stage in _SIMILARITIES:
            facts[_SIMILARITIES[stage]] = round(decision["similarity"], 3)
        yield decision["rid"], {**facts, "name": decision["nn"], "canonical_name": canonical["nn"]}
