"""Does a block help the network that it was put into? Trained on CIFAR-10, beside the host and a random block.

    python -m benchmarks.migration_training --proved FOLDER --hosts SNAPSHOT --data SOURCE --out FOLDER

--proved: what `python -m benchmarks.migration` wrote. Of its proved pairs some are drawn; each is migrated anew for
images of 32x32, and the first of the other donors of that draw, in an order that the seed decides, that can be proved
at the same site is the random block. All three networks of a pair learn the same images once, by their own
`train_setup` and `learn` with the hyperparameters of the host's record: as many as the slowest learns in --seconds.
Differences are paired by host; intervals of their means: Student's t, 95 %. Each run lies in a file of its own: a study
that is interrupted goes on.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.migration import host_of, hosts_in
from extract.migrate.network import MigratedNetwork, TargetNetwork, migrate_named, open_box
from lemur_core.files.atomic import write_text
from lemur_core.files.errors import UserError
from lemur_core.sandbox import Job, Limits, Sandbox, Status
from lemur_core.sandbox.cached import CachedSandbox, describe_failure
from train.data import Cifar10, load_cifar10
from train.studies.ablation import Difference, interval, mean_difference, points

ENTRY = "benchmarks.migration_training_entry:learn_for"
VARIANTS = ("host", "migrated", "random")
_IN_SHAPE = (4, 3, 32, 32)
_TRIED = 12  # donors for the random block
_BATCH, _TRANSFORM = 64, "norm_32_flip"
_MEASURED = 4 * _BATCH  # images, to tell how fast a network learns
_SLACK = 0.8  # of the seconds, for a machine that is busy at times
_EVALUATION = 240.0  # seconds that the sandbox gives beside


def main() -> None:
    """Prepare the pairs, train what is not trained yet, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proved", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--hosts", type=Path, required=True, metavar="SNAPSHOT")
    parser.add_argument("--data", required=True, help="CIFAR-10, as for lemur train")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60, help="of training, a run at most")
    parser.add_argument("--images", type=int, default=10_000, help="to learn, at most")
    parser.add_argument("--tested", type=int, default=2_000, help="test images")
    parser.add_argument("--seed", type=int, default=0, help="draws pairs and random blocks")
    given = parser.parse_args()
    data = load_cifar10(given.data)
    limits = Limits(
        wall_seconds=given.seconds + _EVALUATION, cpu_seconds=given.seconds + _EVALUATION, memory_bytes=6 * 2**30
    )
    made: list[dict[str, Any]] = []
    with Sandbox(entries=[ENTRY], readable=[data.folder], workers=1, limits=limits) as box:
        for pair in prepared(given, hosts_in(given.hosts)):
            pair["images"] = images_of(pair, given, data, box)
            made.append(pair)
            print(
                f"pair {len(made)}: {pair['block']} {pair['site']} of {pair['host']}, {pair['images']} images",
                flush=True,
            )
        runs = [(seed, pair, variant) for seed in range(given.seeds) for pair in made for variant in VARIANTS]
        found: dict[tuple[int, str, int], dict[str, Any]] = {}
        for seed, pair, variant in runs:  # seeds in turn: an interrupted study has all pairs
            found[pair["number"], variant, seed] = trained(pair, variant, seed, given, data, box)
            print(
                f"{len(found):4d}/{len(runs)} pair {pair['number']} {variant} seed {seed}: "
                f"{_told(found[pair['number'], variant, seed])}",
                flush=True,
            )
    print("\n".join(report(made, found, given, data.label)))


# -- pairs -----------------------------------------------------------------------------------------------------------


def prepared(given: argparse.Namespace, hosts: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The pairs with their three networks; known ones are read, the others made."""
    outcomes = [json.loads(file.read_text()) for file in sorted((given.proved / "pairs").glob("*.json"))]
    donors = sorted({(one["pair"]["folder"], one["pair"]["block"]) for one in outcomes})
    proved = [one["pair"] for one in outcomes if one["stage"] == "proved"]
    count = 0
    with open_box() as box:
        for pair in random.Random(given.seed).sample(proved, len(proved)):
            if count >= given.pairs:
                return
            folder = given.out / "pairs" / f"{pair['number']:04d}"
            file = folder / "pair.json"
            if file.is_file():
                told = json.loads(file.read_text(encoding="utf-8"))
            else:
                told = _made(pair, hosts[pair["record"]], donors, folder, given.seed, box)
                folder.mkdir(parents=True, exist_ok=True)
                write_text(file, json.dumps(told, indent=1, sort_keys=True))
            if told["why"]:
                print(f"left out: {pair['block']} and {pair['host']}: {told['why'][:200]}", flush=True)
                continue
            count += 1
            yield told | {"folder": folder}


def _made(
    pair: Mapping[str, Any],
    row: Mapping[str, Any],
    donors: Sequence[tuple[str, str]],
    folder: Path,
    seed: int,
    box: CachedSandbox,
) -> dict[str, Any]:
    """A pair's three networks, written; or why there are none."""
    host = host_of(row, _IN_SHAPE)
    told: dict[str, Any] = {"number": pair["number"], "block": pair["block"], "host": pair["host"], "prm": _prm(host)}
    try:
        moved = migrate_named(Path(pair["folder"]), pair["block"], host, box)
    except UserError as error:
        return told | {"why": f"at 32x32: {error}"}
    others = [one for one in donors if one[1] != pair["block"]]
    order = random.Random(f"{seed} {pair['number']}").sample(others, len(others))
    for tried, (place, block) in enumerate(order):
        if tried >= _TRIED * 4:
            break
        other = _other(Path(place), block, host, moved, box)
        if other is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in zip(VARIANTS, (host.text, moved.text, other.text), strict=True):
                write_text(folder / f"{name}.py", text)
            return told | {"why": "", "site": moved.site.name, "other": block, "tried": tried + 1}
    return told | {"why": f"no other block is proved at {moved.site.name}"}


def _other(
    folder: Path, block: str, host: TargetNetwork, moved: MigratedNetwork, box: CachedSandbox
) -> MigratedNetwork | None:
    try:
        return migrate_named(folder, block, host, box, site=moved.site.name)
    except UserError:
        return None


def _prm(host: TargetNetwork) -> dict[str, Any]:
    return {**host.prm, "batch": _BATCH, "transform": _TRANSFORM, "epoch": 1}


# -- runs ------------------------------------------------------------------------------------------------------------


def images_of(pair: Mapping[str, Any], given: argparse.Namespace, data: Cifar10, box: Sandbox) -> int:
    """How many images all three networks of a pair learn: what the slowest manages in the time, whole batches."""
    file = pair["folder"] / f"images-{given.seconds:g}-{given.images}.json"
    if file.is_file():
        return int(json.loads(file.read_text()))
    rates = []
    for variant in VARIANTS:
        told = _learn(pair, variant, 0, _MEASURED, 0, given.seconds, data, box)
        rates.append(told["learned"] / max(told["seconds"], 1e-3) if "learned" in told else float("inf"))
    count: int = max(_BATCH, min(given.images, int(_SLACK * given.seconds * min(rates)) // _BATCH * _BATCH))
    write_text(file, json.dumps(count))
    return count


def _learn(
    pair: Mapping[str, Any],
    variant: str,
    seed: int,
    images: int,
    tested: int,
    seconds: float,
    data: Cifar10,
    box: Sandbox,
) -> dict[str, Any]:
    code = (pair["folder"] / f"{variant}.py").read_text(encoding="utf-8")
    asked = {"images": images, "tested": tested, "seed": seed, "seconds": seconds}
    payload = {"code": code, "prm": pair["prm"], "data": str(data.folder), **asked}
    (outcome,) = box.run([Job("", ENTRY, payload)])
    if outcome.status is Status.OK and isinstance(outcome.value, dict):
        return outcome.value
    return {"error": f"{outcome.status.value}: {describe_failure(outcome, 200)}"}


def trained(
    pair: Mapping[str, Any], variant: str, seed: int, given: argparse.Namespace, data: Cifar10, box: Sandbox
) -> dict[str, Any]:
    """One run; a known one is read."""
    folder = given.out / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{pair['number']:04d}-{variant}-{seed}-{pair['images']}-{given.tested}.json"
    if file.is_file():
        known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return known
    started = time.monotonic()
    told = _learn(pair, variant, seed, pair["images"], given.tested, given.seconds, data, box)
    told["whole_seconds"] = round(time.monotonic() - started, 2)
    write_text(file, json.dumps(told, sort_keys=True))
    return told


def _told(run: Mapping[str, Any]) -> str:
    if "error" in run:
        return str(run["error"])[:160]
    return f"{100 * run['accuracy']:.2f} % after {run['learned']:,} images, {run['seconds']:.1f} s"


# -- the table -------------------------------------------------------------------------------------------------------


def report(
    made: Sequence[Mapping[str, Any]],
    found: Mapping[tuple[int, str, int], Mapping[str, Any]],
    given: argparse.Namespace,
    label: str,
) -> list[str]:
    """Means by pair and variant, and the paired differences."""
    means: dict[str, dict[int, float]] = {variant: {} for variant in VARIANTS}
    lines = [
        f"\n{len(made)} pairs, {given.seeds} seeds, {label}, first {given.tested:,} test images, at most"
        f" {given.seconds:g} s and {given.images:,} images a run, seed {given.seed}",
        "",
        "| block | host | site | images | host, % | migrated | random block | migrated - host | migrated - random |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    short = failed = 0
    for pair in made:
        by_seed: dict[str, dict[int, float]] = {}
        for variant in VARIANTS:
            runs = {seed: found[pair["number"], variant, seed] for seed in range(given.seeds)}
            failed += sum("error" in run for run in runs.values())
            short += sum("error" not in run and run["learned"] < pair["images"] for run in runs.values())
            by_seed[variant] = {seed: run["accuracy"] for seed, run in runs.items() if "error" not in run}
            if by_seed[variant]:
                means[variant][pair["number"]] = statistics.fmean(by_seed[variant].values())
        cells = [points(means[variant].get(pair["number"])) for variant in VARIANTS]
        against = [mean_difference(by_seed[base], by_seed["migrated"]) for base in ("host", "random")]
        name, host = pair["block"].rpartition(".")[2], pair["host"][:20]
        lines.append(
            f"| {name} | {host} | {pair['site']} | {pair['images']:,} | {' | '.join(cells)} |"
            f" {' | '.join(points(one.mean, signed=True) for one in against)} |"
        )
    lines += ["", f"runs that failed: {failed}; that the time cut short: {short}"]
    for base, other in (("host", "migrated"), ("random", "migrated"), ("host", "random")):
        lines.append(f"{other} - {base}: {_difference(mean_difference(means[base], means[other]))}")
        pairs = [(means[base][n], means[other][n]) for n in means[base].keys() & means[other].keys()]
        lines[-1] += f"; better in {sum(b > a for a, b in pairs)} of {len(pairs)} pairs"
    return lines


def _difference(found: Difference) -> str:
    return f"{points(found.mean, signed=True)} points (95 % {interval(found)}, n = {found.n} pairs)"


if __name__ == "__main__":
    main()
