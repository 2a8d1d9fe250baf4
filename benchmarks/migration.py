"""How often a block can be put into somebody else's network, over pairs that are drawn before any is tried.

    python -m benchmarks.migration --hosts SNAPSHOT --donors DIR... [--sources NAME...] --out FOLDER

SNAPSHOT: a curated one; its image classification networks that run are the hosts, with the hyperparameters of their
records. DIR: extraction folders. Donors are blocks that run forward and take and give one tensor of real numbers, as
the folder's own table says; the same number is drawn of each source. What became of each pair lies in
FOLDER/pairs, so that a run that is interrupted goes on, and the figures can be made anew. Intervals: Wilson, 95 %.
"""

import argparse
import hashlib
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from extract.migrate.network import PRM, MigratedNetwork, MigrationError, TargetNetwork, migrate_named, open_box
from extract.model.blocks import read_blocks
from extract.model.results import wilson
from extract.specs.make import read_arguments
from lemur_core.files.atomic import write_text
from lemur_core.files.errors import UserError
from lemur_core.files.workers import process_pool, submit
from lemur_core.sandbox.cached import CachedSandbox
from manifests.records import Block, Observed

_COLUMNS = ("block", "source", "level", "arguments", "observed")
_TENSOR = re.compile(r"float32 \d+(x\d+)+")
_TASK = "img-classification"
#: What a pair has come through, by the stage that stopped it.
_SHARES = {
    "close": ("builds", "runs", "shape", "gradients", "learns", "leads", "proved"),
    "run, with outputs of the host's shapes": ("gradients", "learns", "leads", "proved"),
    "have gradients everywhere": ("learns", "leads", "proved"),
    "learn one batch": ("leads", "proved"),
    "lead to the output: all of it proved": ("proved",),
}
_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Pair:
    """A block and a host, drawn."""

    number: int
    folder: str
    block: str
    host: str
    record: str


def donors_in(folder: Path) -> tuple[dict[str, list[str]], Counter[str]]:
    """The blocks that a network can hand one tensor to, by source without its version; and how many run forward."""
    found: dict[str, list[str]] = {}
    forward: Counter[str] = Counter()
    for row in read_blocks(folder, _COLUMNS):
        if row.level not in ("forward", "backward"):
            continue
        source = row.source.partition("@")[0]
        forward[source] += 1
        if _takes_one(row):
            found.setdefault(source, []).append(row.block)
    return {source: sorted(blocks) for source, blocks in found.items()}, forward


def _takes_one(row: Block) -> bool:
    worked = read_arguments(row.arguments)
    if worked is None or worked.forward is None or row.observed is None:
        return False
    cases = Observed.model_validate_json(row.observed).cases
    shapes = [text for case in cases[:1] for text in (*case.inputs.values(), *case.outputs)]
    alone = len(worked.forward.parts) == 1 and len(shapes) == 2
    return alone and all(_TENSOR.fullmatch(text) for text in shapes)


def hosts_in(snapshot: Path) -> dict[str, dict[str, Any]]:
    """The networks of a snapshot that can be hosts, by id."""
    columns = ["id", "nn", "nn_code", "task", "prm", "runs"]
    files = sorted((snapshot / "data" / "records").glob("*.parquet"))
    rows = [row for file in files for row in pq.read_table(file, columns=columns).to_pylist()]
    return {row["id"]: row for row in sorted(rows, key=lambda r: r["id"]) if row["runs"] and row["task"] == _TASK}


def draw(donors: Mapping[str, Sequence[tuple[str, str]]], hosts: Sequence[str], count: int, seed: int) -> list[Pair]:
    """Pairs of a donor and a host, as many of each source as of any other, the sources in turn.

    Args: donors: folder and block, by source. hosts: ids.
    """
    generator = random.Random(seed)
    orders = {source: generator.sample(blocks, len(blocks)) for source, blocks in sorted(donors.items())}
    pairs = []
    for number in range(count):
        source = sorted(orders)[number % len(orders)]
        folder, block = orders[source][number // len(orders) % len(orders[source])]
        record = hosts[generator.randrange(len(hosts))]
        pairs.append(Pair(number, folder, block, "", record))
    return pairs


def host_of(row: Mapping[str, Any], in_shape: tuple[int, ...] | None = None) -> TargetNetwork:
    """A record's network, with its hyperparameters."""
    prm = {name: value for name, value in json.loads(row["prm"] or "{}").items() if name not in ("batch", "transform")}
    return TargetNetwork(f"{row['nn']}.py", row["nn_code"], PRM | prm, in_shape)


@cache
def _box() -> CachedSandbox:
    """One sandbox for all pairs of this process; it ends with it."""
    return open_box()


def attempt(pair: Pair, *, hosts: Mapping[str, Mapping[str, Any]], out: Path) -> dict[str, Any]:
    """What became of a pair; known ones are read."""
    file = out / "pairs" / f"{pair.number:04d}.json"
    if file.is_file():
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if found["pair"] == asdict(pair):
            return found
    started = time.monotonic()
    told: dict[str, Any] = {"pair": asdict(pair)}
    try:
        moved = migrate_named(Path(pair.folder), pair.block, host_of(hosts[pair.record]), _box())
        told |= {"stage": "proved", "why": "", **_facts(moved)}
        write_text(file.with_suffix(".py"), moved.text)
    except MigrationError as error:
        told |= {"stage": error.stage, "why": str(error)}
    except UserError as error:
        told |= {"stage": "donor", "why": str(error)}
    except Exception as error:  # noqa: BLE001 (our own fault, which is to be seen)
        told |= {"stage": "fault", "why": f"{type(error).__name__}: {error}"}
    told["seconds"] = round(time.monotonic() - started, 2)
    write_text(file, json.dumps(told, indent=1, sort_keys=True))
    return told


def _facts(moved: MigratedNetwork) -> dict[str, Any]:
    assert moved.site.filling is not None
    return {
        "site": moved.site.name,
        "adapters": moved.site.filling.adapters,
        "arguments": moved.site.filling.call.text(),
        "lean": moved.source_block.lean,
        "before": len(moved.failed),
        "lines": len(moved.text.splitlines()),
    }


def main() -> None:
    """Draw, try, and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=Path, required=True, metavar="SNAPSHOT")
    parser.add_argument("--donors", type=Path, nargs="+", required=True, metavar="DIR")
    parser.add_argument("--sources", nargs="+", metavar="NAME", help="donors of these alone; default: of all")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    given = parser.parse_args()
    hosts = hosts_in(given.hosts)
    donors: dict[str, list[tuple[str, str]]] = {}
    population: dict[str, tuple[int, int]] = {}
    for folder in given.donors:
        found, forward = donors_in(folder)
        for source, blocks in found.items():
            if given.sources and source not in given.sources:
                continue
            donors.setdefault(source, []).extend((str(folder), block) for block in blocks)
            had = population.get(source, (0, 0))
            population[source] = had[0] + len(blocks), had[1] + forward[source]
    if not donors or not hosts:
        raise SystemExit("no donors or no hosts: give folders that `lemur extract` and `lemur curate` wrote")
    drawn = draw(donors, list(hosts), given.pairs, given.seed)
    pairs = [Pair(**{**asdict(pair), "host": hosts[pair.record]["nn"]}) for pair in drawn]
    (given.out / "pairs").mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(json.dumps([asdict(pair) for pair in pairs]).encode()).hexdigest()
    plan = {"seed": given.seed, "pairs": given.pairs, "sha256": digest, "population": population}
    write_text(given.out / "plan.json", json.dumps(plan, indent=1, sort_keys=True))
    needed = {pair.record for pair in pairs}
    work = partial(attempt, hosts={record: hosts[record] for record in needed}, out=given.out)
    told: list[dict[str, Any]] = []
    for one in _outcomes(work, pairs, given.jobs):
        told.append(one)
        short = one["why"][:150] or f"{one['site']} ({one['arguments'][:60]})"
        about = f"{one['stage']:<9} {one['seconds']:6.1f} s  {one['pair']['block']}: {short}"
        print(f"{len(told):4d}/{len(pairs)} {about}", flush=True)
    told.sort(key=lambda one: one["pair"]["number"])
    print("\n".join(report(told, plan)))


def _outcomes(work: Callable[[Pair], dict[str, Any]], pairs: Sequence[Pair], jobs: int) -> Iterator[dict[str, Any]]:
    """What became of the pairs, as they are done."""
    if jobs == 1:
        yield from map(work, pairs)
        return
    with process_pool(jobs) as pool:
        for done in as_completed([submit(pool, work, pair) for pair in pairs]):
            yield done.result()


def report(told: Sequence[Mapping[str, Any]], plan: Mapping[str, Any]) -> list[str]:
    """The shares, by source, and why pairs failed."""
    lines = [f"\n{len(told)} pairs, seed {plan['seed']}, SHA-256 of the draw {plan['sha256'][:16]}", ""]
    for source, (usable, forward) in sorted(plan["population"].items()):
        lines.append(f"{source}: {usable} of {forward} blocks that run forward take and give one tensor")
    sources = sorted({_source(one) for one in told})
    lines += ["", "| | all | " + " | ".join(sources) + " |", "|---|" + "---|" * (len(sources) + 1)]
    fitted = [one for one in told if one["stage"] not in ("donor", "host", "site", "fault")]
    lines.append(_row("have a site that fits", fitted, told, sources))
    for name, stages in _SHARES.items():
        lines.append(_row(name, [one for one in told if one["stage"] in stages], told, sources))
    proved = [one for one in told if one["stage"] == "proved"]
    able = [one for one in told if one["stage"] not in ("donor", "host")]
    placed = [one for one in able if one["stage"] != "site"]
    for name, some in (("whose block needs nothing but torch and whose host learns", able), ("with a site", placed)):
        low, high = wilson(len(proved), len(some))
        share = f"{100 * len(proved) / max(len(some), 1):.1f} %, {100 * low:.1f}-{100 * high:.1f}"
        lines.append(f"\nof the {len(some)} pairs {name}: {len(proved)} proved ({share})")
    if proved:
        adapted = sum(one["adapters"] > 0 for one in proved)
        second = sum(one["before"] > 0 for one in proved)
        lean = sum(one["lean"] for one in proved)
        lines += [
            "",
            f"of {len(proved)} proved: {adapted} with a layer that changes channels, {second} at a later site than"
            f" the first one tried, {lean} in the lean form",
        ]
    lines += ["", "stopped by:"]
    causes = Counter(cause_of(one) for one in told if one["stage"] != "proved")
    for cause, count in causes.most_common():
        lines.append(f"{count:4d}  {cause}")
        examples = [one for one in told if one["stage"] != "proved" and cause_of(one) == cause][:_EXAMPLES]
        lines += [f"      {one['pair']['block']} into {one['pair']['host']}: {one['why'][:200]}" for one in examples]
    return lines


def _source(one: Mapping[str, Any]) -> str:
    return str(one["pair"]["block"]).partition("@")[0]


def _row(
    name: str, some: Sequence[Mapping[str, Any]], told: Sequence[Mapping[str, Any]], sources: Sequence[str]
) -> str:
    low, high = wilson(len(some), len(told))
    share = f"{len(some)} ({100 * len(some) / max(len(told), 1):.1f} %, {100 * low:.1f}-{100 * high:.1f})"
    each = [f"{sum(_source(one) == s for one in some)} of {sum(_source(one) == s for one in told)}" for s in sources]
    return f"| {name} | {share} | {' | '.join(each)} |"


#: Kinds of causes, by what the line says.
_CAUSES = (
    (
        "site",
        r"dimensions, and the block (takes|gives)",
        "no site of the block's number of dimensions, or none that fits",
    ),
    ("site", r"its width is not fixed", "widths are drawn at random"),
    ("site", r"", "no site fits"),
    ("written", r"", "cannot share a file"),
    ("closed", r"", "a name is undefined"),
    ("builds", r"", "is not constructed"),
    ("runs", r"", "does not run"),
    ("shape", r"", "the output has another shape, or is not finite"),
    ("gradients", r"none reaches", "no gradient reaches a parameter"),
    ("gradients", r"", "no backward pass"),
    ("learns", r"", "does not learn"),
    ("leads", r"", "leads to no output"),
    ("donor", r"", "the block cannot be a donor"),
    ("host", r"", "the host does not run"),
)


def cause_of(one: Mapping[str, Any]) -> str:
    """The kind of what stopped a pair."""
    said = next((text for stage, way, text in _CAUSES if stage == one["stage"] and re.search(way, one["why"])), "")
    return f"{one['stage']}: {said or 'a fault of ours'}"


if __name__ == "__main__":
    main()
