"""What the product makes of fixed inputs, recorded: a later state is compared with it.

    python -m benchmarks.oracle run|freeze|compare WORK [PART ...] [--all]

Parts: `targets` and `sampled` (extraction of listed classes), `lemur` (curation of LEMUR 2.1.0) and `demo` (a whole
`lemur demo` on generated images). Each is a run of `lemur` on two processes; its folder and its log stay in WORK, and
what is there already is not made again. A cache of its own, in WORK, holds no outcomes: only sources, wheels and
features, which are known by their digests, come from the user's cache.

`run` ends there; `freeze` also writes to `docs/records/oracle`; `compare` prints what differs from that, and exits 1
if anything does. With `--all` the sampled classes are all that were drawn instead of every third; nothing is recorded
for the others.
"""

import argparse
import csv
import hashlib
import importlib.metadata
import json
import lzma
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.measure import make_empty_cache

RECORDS = Path(__file__).parents[1] / "docs" / "records" / "oracle"
_VERSIONS = ("torch", "torchvision", "numpy", "pyarrow")
_SHOWN = 5  # differing rows to print of each column
_RUNS = ("forward", "backward")

Rows = dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Part:
    """One run: the command without its output, and the columns of one table that are recorded row by row."""

    command: tuple[str, ...]
    table: str = ""
    key: str = ""
    columns: tuple[str, ...] = ()
    every: int = 1  # of the listed classes


_EXTRACTED = ("level", "error_kind", "arguments_from", "n_lines", "lean_lines", "code_sha256", "lean_sha256", "graph")
_CURATED = ("kept", "stage", "canonical", "split", "graph", "behavior")
PARTS = {
    "targets": Part(("extract", "--corpus", "paper"), "blocks.parquet", "block", _EXTRACTED),
    "sampled": Part(
        ("extract", "--corpus", str(RECORDS / "sampled.corpus.json")), "blocks.parquet", "block", _EXTRACTED, 3
    ),
    "lemur": Part(("curate", "lemur@2.1.0"), "networks.parquet", "id", _CURATED),
    "demo": Part(("demo", "--data", "synthetic", "--epochs", "1", "--limit", "500")),
}


def make(name: str, work: Path, whole: bool) -> None:
    """Run a part, and keep what it cost beside its folder."""
    part, out = PARTS[name], work / name
    cost = out.with_suffix(".cost.json")
    if cost.exists():
        return
    cache = work / "cache"
    environment = {**os.environ, "LEMUR_CURATOR_CACHE": str(cache)}
    if not cache.exists():
        environment = make_empty_cache(work, ("sources", "runtime", "lemur", "features"))
    command = [str(Path(sys.executable).with_name("lemur")), *part.command, "--jobs", "2", "--out", str(out), "--force"]
    listed = RECORDS / f"{name}.names.json"
    if listed.exists():
        chosen = out.with_suffix(".names.json")
        chosen.write_text(json.dumps(json.loads(listed.read_text())[:: 1 if whole else part.every]))
        command += ["--names", str(chosen)]
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with out.with_suffix(".log").open("w") as log:
        done = subprocess.run(command, env=environment, stdout=log, stderr=log, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{name}: `{' '.join(command)}` exits {done.returncode}; see {log.name}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    spent = {"cpu_seconds": round(cpu), "wall_seconds": round(time.monotonic() - started), "load": os.getloadavg()[1]}
    cost.write_text(json.dumps(spent))


def describe(folder: Path) -> dict[str, Any]:
    """Return versions, the names of all files of a folder, and the rows and a digest a column of each table."""
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    versions = {name: importlib.metadata.version(name) for name in _VERSIONS} | {"python": platform.python_version()}
    if (folder / "manifest.json").exists():
        manifest = json.loads((folder / "manifest.json").read_text())
        versions |= {f"input {item['name']}": item["sha256"][:12] for item in manifest["inputs"]}
        details = manifest["details"]
        versions |= {f"input {name}": "could not be fetched" for name in details.get("unopened", ())}
        versions |= dict(item.split("==") for item in details.get("installed_for_execution", ()))
    tables = {name: dict(_digest_columns(folder / name)) for name in files if name.endswith(".parquet")}
    return {"versions": versions, "files": files, "tables": tables}


def _digest_columns(path: Path) -> Iterator[tuple[str, str]]:
    table = pq.ParquetFile(path)
    digests = {name: hashlib.sha256() for name in table.schema_arrow.names}
    for batch in table.iter_batches():
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            digests[name].update("".join(f"{value!r}\n" for value in column.to_pylist()).encode())
    yield "(rows)", str(table.metadata.num_rows)
    yield from ((name, digest.hexdigest()[:16]) for name, digest in digests.items())


def read_rows(part: Part, folder: Path) -> Rows:
    """Return the recorded columns of a part's table by its key; digests are cut to 12 digits."""
    if not part.table:
        return {}
    table = pq.ParquetFile(folder / part.table)
    there = [name for name in part.columns if name in table.schema_arrow.names]
    rows = table.read([part.key, *there]).to_pylist()
    return {_write(row[part.key]): {name: _write(row[name]) for name in there} for row in rows}


def _write(value: object) -> str:
    text = "" if value is None else str(value)
    return text[:12] if len(text) == 64 and text.isalnum() else text


def freeze(name: str, folder: Path, cost: Mapping[str, Any]) -> None:
    """Record a part."""
    facts = {"command": f"lemur {' '.join(PARTS[name].command)}", "cost": cost, **describe(folder)}
    facts["command"] = facts["command"].replace(f"{RECORDS}/", "")
    RECORDS.mkdir(parents=True, exist_ok=True)
    (RECORDS / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    if rows := read_rows(PARTS[name], folder):
        with lzma.open(RECORDS / f"{name}.csv.xz", "wt", preset=9, newline="") as file:
            writer = csv.DictWriter(file, ["key", *next(iter(rows.values()))], lineterminator="\n")
            writer.writeheader()
            writer.writerows({"key": key, **row} for key, row in sorted(rows.items()))
    print(f"{name}: {len(rows):,} rows, {len(facts['tables'])} tables, {len(facts['files']):,} files recorded")


def compare(name: str, folder: Path) -> int:
    """Print what differs from the record of a part; return the number of differences."""
    then, now = json.loads((RECORDS / f"{name}.json").read_text()), describe(folder)
    versions = _differ(then["versions"], now["versions"])
    lines = [f"version of {key}: {old} -> {new}" for key, old, new in versions]
    lines += [f"file gone: {file}" for file in then["files"] if file not in now["files"]]
    lines += [f"file new: {file}" for file in now["files"] if file not in then["files"]]
    for table in sorted(then["tables"].keys() & now["tables"].keys()):
        for column, old, new in _differ(then["tables"][table], now["tables"][table]):
            change = "gone" if not new else "new" if not old else "differs"
            lines.append(f"{table}: {column} {change}" + (f": {old} -> {new}" if column == "(rows)" else ""))
    rows = read_rows(PARTS[name], folder)
    if rows:
        with lzma.open(RECORDS / f"{name}.csv.xz", "rt", newline="") as file:
            recorded = {row.pop("key"): row for row in csv.DictReader(file)}
        lines += _compare_rows(recorded, rows)
    print(f"{name}: {len(lines) or 'nothing'} {'differs' if len(lines) < 2 else 'differ'}")
    print("".join(f"  {line}\n" for line in lines), end="")
    return len(lines)


def _differ(then: Mapping[str, str], now: Mapping[str, str]) -> list[tuple[str, str, str]]:
    keys = dict.fromkeys((*then, *now))
    return [(key, then.get(key, ""), now.get(key, "")) for key in keys if then.get(key) != now.get(key)]


def _compare_rows(then: Rows, now: Rows) -> Iterator[str]:
    both = [key for key in then if key in now]
    for word, keys in (("gone", [key for key in then if key not in now]), ("new", [k for k in now if k not in then])):
        if keys:
            yield f"{len(keys):,} rows {word}: {', '.join(keys[:_SHOWN])}"
    if both and "level" in then[both[0]]:
        for label, rows in (("recorded", then), ("now", now)):
            run = sum(rows[key]["level"] in _RUNS for key in both)
            lean = [int(rows[key]["lean_lines"]) for key in both if rows[key]["lean_lines"]]
            print(
                f"{label}: {run} of {len(both)} run forward; {len(lean)} are minimized, to {sum(lean):,} lines,"
                f" a median of {statistics.median(lean or [0]):g}"
            )
    for column in then[both[0]] if both else ():
        changed = [key for key in both if column in now[key] and then[key][column] != now[key][column]]
        if changed:
            examples = "; ".join(f"{key}: {then[key][column]} -> {now[key][column]}" for key in changed[:_SHOWN])
            yield f"{column} of {len(changed):,} of {len(both):,} rows: {examples}"


def main(given: Sequence[str] | None = None) -> None:
    """Make what is missing, then record or compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("act", choices=("run", "freeze", "compare"))
    parser.add_argument("work", type=Path, metavar="WORK")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="PART")
    parser.add_argument("--all", action="store_true", help="all sampled classes instead of every third")
    chosen = parser.parse_args(given)
    work = chosen.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    found = 0
    for name in chosen.parts or PARTS:
        make(name, work, chosen.all)
        if chosen.act == "freeze":
            freeze(name, work / name, json.loads((work / f"{name}.cost.json").read_text()))
        elif chosen.act == "compare":
            found += compare(name, work / name)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
