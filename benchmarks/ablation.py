r"""The ablation of the final CIFAR-10 design: train its variants with further seeds, print the table of all runs.

    lemur extract PreActBasic BlurPool2d DropPath SEModule EcaModule CbamModule CoordAttn simam_module \
        --source timm@1.0.30 --source ./SimAM --out blocks    # SimAM: only networks/attentions of ZjjConan/SimAM
    python -m benchmarks.ablation                                                       # the table of the records
    python -m benchmarks.ablation --seeds 12 13 --in blocks --data cifar10-jpeg --out runs    # adds to them before

Killed, it resumes. Runs of a seed are paired on one processor alone, whose differences are also printed apart.
"""

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from pathlib import Path

from scipy.stats import nct, t, ttest_1samp, ttest_ind

from lemur_core.files.markdown import table
from manifests.records import TrainingRecord
from train.ablation import FULL, interval, list_variants, mean_difference, points
from train.compose.assemble import assemble
from train.compose.candidates import open_prober
from train.data.sources import load_cifar10
from train.model.recipe import Recipe, find_recipe
from train.runs.run import Resources, TrainingRun, train_once

_DOCS = Path(__file__).parents[1] / "docs" / "ablation"
_EDITED = "post_activation"  # its file was edited by hand, its records name it: no recipe describes it
_VARIANTS = [
    f"{_EDITED}: model.name='{_EDITED}'",
    "subsample: slots.downsample='subsample'",
    "augmentation: augmentation.randaugment_ops=1, augmentation.randaugment_magnitude=4, augmentation.mixup_alpha=0.2,"
    " augmentation.cutmix_alpha=1.0, augmentation.mix_probability=0.2, augmentation.plain_fraction=0.25",
    "DropPath: slots.stochastic_depth='timm::timm.layers.drop.DropPath', model.stochastic_depth_rate=0.1",
    "SEModule: slots.attention='timm::timm.layers.squeeze_excite.SEModule'",
    "EcaModule: slots.attention='timm::timm.layers.eca.EcaModule'",
    "CbamModule: slots.attention='timm::timm.layers.cbam.CbamModule'",
    "CoordAttn: slots.attention='timm::timm.layers.coord_attn.CoordAttn'",
    "simam_module: slots.attention='SimAM::attentions.simam_module.simam_module'",
]
RECIPES = list_variants(find_recipe("design"), _VARIANTS)
TRAINED = [name for name in RECIPES if name != _EDITED]

#: Test accuracies by what pairs two runs: device with precision and torch, images, seed.
Accuracies = dict[tuple[str, str, int], float]


def run(options: argparse.Namespace) -> None:
    """Train the variants with each seed; what the folder already has is not trained again."""
    data = load_cifar10(options.data)
    with open_prober() as box:
        nets = {name: assemble(RECIPES[name], options.folder, box=box) for name in options.variants}
    for seed in options.seeds:
        for name, net in nets.items():
            training, folder = TrainingRun(net, RECIPES[name], seed, data, 0, 5000), options.out / f"{name}-seed{seed}"
            record = train_once(training, folder, resources=Resources(threads=1), library=options.folder)
            line = json.dumps(record.model_dump(mode="json"), sort_keys=True) + "\n"
            if record.status == "ok" and line not in options.records.read_text(encoding="utf-8"):
                with options.records.open("a", encoding="utf-8") as file:
                    file.write(line)


#: What recipes had when the first records were written, and the values that left it without effect.
_RETIRED = {"ema_decay": 0.0, "clip_norm": 0.0, "small_size": 24, "small_fraction": 0.0}


def read(lines: Iterable[str]) -> tuple[dict[str, Accuracies], dict[str, float]]:
    """Return the accuracies of each variant, which is known by its recipe, and its 1e12 FLOP."""
    names, flop = {recipe.to_json(): name for name, recipe in RECIPES.items()}, {}
    accuracies: dict[str, Accuracies] = defaultdict(dict)
    for record in map(TrainingRecord.model_validate_json, lines):
        stated = json.loads(record.recipe)
        for part in ("training", "augmentation"):
            stated[part] = {key: value for key, value in stated[part].items() if _RETIRED.get(key) != value}
        recipe = Recipe.model_validate(stated)
        if recipe.model.name == "ours":  # as the design was called at first
            recipe = recipe.changed(model__name="design")
        name = names[recipe.to_json()]
        assert record.test_accuracy is not None, "only complete runs are recorded"
        machine = f"{record.device}, {record.precision}, torch {record.torch}"
        accuracies[name][machine, record.data_sha256, record.seed] = record.test_accuracy
        flop[name] = (record.flop or 0) / 1e12
    return {name: accuracies[name] for name in RECIPES if name in accuracies}, flop


def report(accuracies: dict[str, Accuracies], flop: dict[str, float]) -> list[str]:
    """Return the table, how much so many pairs can show, and the differences of each processor apart."""
    base = accuracies[FULL]
    apart: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in accuracies if name != FULL}
    for name, places in apart.items():
        for key in sorted(accuracies[name].keys() & base.keys()):
            places[key[0]].append(accuracies[name][key] - base[key])
    whole = {name: list(chain(*places.values())) for name, places in apart.items()}
    corrected = correct({name: float(ttest_1samp(values, 0).pvalue) for name, values in whole.items()})
    mean, spread = points(statistics.fmean(base.values())), points(statistics.stdev(base.values()))
    rows = [[f"the design: {mean} ± {spread} %", str(len(base)), "", "", f"{flop[FULL]:.3f}", "", ""]]
    for name, values in whole.items():
        figures = [points(statistics.stdev(values)), f"{flop[name]:.3f}", f"{corrected[name]:.2g}"]
        rows.append([name, str(len(values)), _points(values), *figures, str(pairs_needed(values))])
    powers = sorted(map(power, whole.values()))
    lines = table(["", "n", "points, 95 %", "deviation", "1e12 FLOP", "p (Holm)", "n for ± 0.4"], rows)
    lines.append(f"So many pairs show half a point with a power of {powers[0]:.2f} to {powers[-1]:.2f}.\n")
    machines = sorted({place for places in apart.values() for place in places})
    rows = []
    for name, places in apart.items():
        cells = [f"{_points(places[each])}, n = {len(places[each])}" if each in places else "" for each in machines]
        p = ttest_ind(*places.values(), equal_var=False).pvalue if len(places) == 2 else math.nan
        rows.append([name, *cells, "" if math.isnan(p) else f"{p:.2f}"])
    return [*lines, *table(["", *machines, "p that they differ (Welch)"], rows)] if len(machines) > 1 else lines


def correct(ps: dict[str, float]) -> dict[str, float]:
    """Return p-values after Holm's correction. Source: Holm 1979, Scand. J. Statist. 6, 65-70."""
    order = sorted(ps, key=ps.__getitem__)
    times = accumulate((ps[name] * (len(ps) - place) for place, name in enumerate(order)), max)
    return {name: min(1.0, p) for name, p in zip(order, times, strict=True)}


def power(differences: Sequence[float]) -> float:
    """Return how probably so many pairs of this deviation show a difference of half a point at 5 %."""
    n, spread = len(differences), statistics.stdev(differences)
    limit, shift = float(t.ppf(0.975, n - 1)), 0.005 / spread * math.sqrt(n)
    return float(nct.sf(limit, n - 1, shift) + nct.cdf(-limit, n - 1, shift))


def pairs_needed(differences: Sequence[float]) -> int:
    """Return how many pairs of this deviation give an interval within 0.4 points."""
    spread = statistics.stdev(differences)
    return next(n for n in range(2, 10_000) if t.ppf(0.975, n - 1) * spread / math.sqrt(n) <= 0.004)


def _points(differences: Sequence[float]) -> str:
    against = mean_difference(dict.fromkeys(range(len(differences)), 0.0), dict(enumerate(differences)))
    return f"{points(against.mean, signed=True)} ({interval(against)})"


def main() -> None:
    """Train with the seeds, if any, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=Path, default=_DOCS / "design.jsonl")
    parser.add_argument("--seeds", type=int, nargs="*", default=[])
    parser.add_argument("--variants", nargs="+", choices=TRAINED, default=TRAINED)
    parser.add_argument("--in", dest="folder", type=Path, help="extraction folder of the blocks")
    parser.add_argument("--data", help="that of the records: the JPEG copy")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the runs")
    options = parser.parse_args()
    if options.seeds:
        run(options)
    print("\n".join(report(*read(options.records.read_text(encoding="utf-8").splitlines()))))


if __name__ == "__main__":
    main()
