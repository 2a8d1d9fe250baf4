"""What a delta costs, and what growing in steps does to the number of records.

`python -m benchmarks.against cost DIR [THERE ...]`: 100 new codes against snapshots of 10,000 and 100,000 mutated LEMUR
codes; the first delta makes the index of the snapshot, the second finds it. Claim: the second costs what is new.

`python -m benchmarks.against steps DIR [ORDER ...]`: LEMUR 2.1.0 in ten parts, each a delta to those before it, beside
one run over all of it. An order is a seed that draws the parts, or `name` for parts by name. Claim: within 2 %.

DIR keeps corpora and snapshots, so that a second run goes on from there. Graphs are off, unless `--graphs` is given.
"""

import hashlib
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.measure import measure
from benchmarks.mutations import write_corpus
from curate.sources.lemur import LemurRelease
from manifests.folders.manifest import read_manifest

_NEW = 100
_STEPS = 10
_LEMUR = str(Path(sys.executable).with_name("lemur"))


def cost(folder: Path, sizes: list[int]) -> None:
    """Measure a delta of 100 codes against snapshots of these sizes."""
    new = folder / "new.parquet"
    if not new.exists():
        write_corpus(new, _NEW, seed=1)
    for rows in sizes:
        corpus, base = folder / f"c{rows}.parquet", folder / f"base{rows}"
        if not base.exists():
            write_corpus(corpus, rows)
            subprocess.run([_LEMUR, "curate", corpus, "--graph", "off", "--out", base], check=True, stdout=sys.stderr)
        counts = read_manifest(base).counts
        print(f"{rows:>9,} codes there, {counts['rows']['kept']:,} kept", flush=True)
        for what in ("first", "second"):
            out = folder / f"delta{rows}-{what}"
            command = [
                _LEMUR,
                "curate",
                str(new),
                "--graph",
                "off",
                "--against",
                str(base),
                "--out",
                str(out),
                "--force",
            ]
            taken = measure([*command, "--jobs", "1"], os.environ)
            measured, kept = read_manifest(out).measured, read_manifest(out).counts["rows"]["kept"]
            stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in measured.stage_seconds.items())
            print(f"  {what:<7}{taken}  {kept} kept; {stages}", flush=True)


def steps(folder: Path, orders: list[str], graph: list[str]) -> None:
    """Grow LEMUR by ten deltas in each of these orders, and compare with one run."""
    one = folder / "one"
    if not one.exists():
        _curate("lemur", one, graph, [])
    whole = read_manifest(one).counts["rows"]["kept"]
    print(f"one run: {whole:,} kept", flush=True)
    for order in orders:
        made: list[Path] = []
        for place, part in enumerate(_parts(folder, order)):
            out = folder / f"{order}-{place}"
            if not out.exists():
                _curate(str(part), out, graph, made)
            made.append(out)
        rows = [read_manifest(out).counts["rows"] for out in made]
        kept, leaks = (sum(count[stage] for count in rows) for stage in ("kept", "leak"))
        shares = " + ".join(f"{count['kept']:,}" for count in rows)
        print(f"order {order}: {shares} = {kept:,} kept, {kept / whole - 1:+.1%}; {leaks} at stage leak", flush=True)


def _curate(source: str, out: Path, graph: list[str], against: list[Path]) -> None:
    given = [item for parent in against for item in ("--against", str(parent))]
    command = [_LEMUR, "curate", source, *graph, *given, "--out", str(out), "--jobs", "1"]
    subprocess.run(command, check=True, stdout=sys.stderr)


def _parts(folder: Path, order: str) -> list[Path]:
    """LEMUR's rows in ten files, all rows of a name in one."""
    paths = [folder / f"part-{order}-{place}.parquet" for place in range(_STEPS)]
    if all(path.exists() for path in paths):
        return paths
    tables: dict[int, list[pa.Table]] = defaultdict(list)
    batches = [pa.table(batch).drop_columns(["problem", "arch_uid"]) for batch in LemurRelease().batches()]
    names = sorted({name for batch in batches for name in batch["nn"].to_pylist()})
    part_of = {name: place * _STEPS // len(names) for place, name in enumerate(names)}
    if order != "name":
        part_of = {name: int(hashlib.sha256(f"{order}{name}".encode()).hexdigest()[:8], 16) % _STEPS for name in names}
    for batch in batches:
        parts = pa.array([part_of[name] for name in batch["nn"].to_pylist()])
        for place in range(_STEPS):
            tables[place].append(batch.filter(pc.equal(parts, place)))
    for place, path in enumerate(paths):
        pq.write_table(pa.concat_tables(tables[place]), path, compression="zstd")
    return paths


def main(arguments: list[str]) -> None:
    """Run one of the two."""
    graph = [] if "--graphs" in arguments else ["--graph", "off"]
    what, folder, *chosen = (text for text in arguments if text != "--graphs")
    Path(folder).mkdir(parents=True, exist_ok=True)
    if what == "cost":
        cost(Path(folder), [int(text) for text in chosen] or [10_000, 100_000])
    else:
        steps(Path(folder), chosen or ["s", "1", "name"], graph)


if __name__ == "__main__":
    main(sys.argv[1:])
