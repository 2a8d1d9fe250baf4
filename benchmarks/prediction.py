"""Can the accuracy of a network be predicted from its code? `python -m benchmarks.prediction --out DIR`.

On networks of LEMUR with results on CIFAR-10: from nothing, hyperparameters, tokens, costs, graphs, zero-cost proxies
and the first epoch, for codes that are held out at random, by the beginnings of their names, by split groups, or far
from all that trains. Each cell is the mean of ten draws, then the lowest and the highest.
"""

import argparse
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.stats import kendalltau, spearmanr
from threadpoolctl import threadpool_limits

from benchmarks.prediction_costs import GRAPHS, PROXIES, Sample, measure_sample
from benchmarks.prediction_data import (
    FIRST,
    LATER,
    SPLITS,
    Networks,
    Numbers,
    nearest_similarity,
    read_networks,
)
from benchmarks.prediction_models import Predictor, boosting, hash_tokens, nearest, predict_mean, ridge
from lemur_core.files import Json
from lemur_core.files.atomic import write_text
from lemur_core.files.figures import BLUE, FAINT, INK, ORANGE, save_figure
from lemur_core.files.markdown import count, table
from lemur_core.files.progress import note

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DRAWS = 10
MEASURES = ("spearman", "within", "kendall", "r2")
_LEAST = 30  # codes of a study
_FEW = 10  # codes of a prefix that are ranked among themselves
#: The least similarities of bands in which the gap is shown; 1 is an equal token set.
BANDS = (1.0, 0.95, 0.85, 0.70, 0.0)


@dataclass(frozen=True, slots=True)
class Result:
    """One predictor on one draw of one split. `within`: Spearman among codes of one prefix, by number of codes."""

    target: str
    predictor: str
    split: str
    draw: int
    train: int
    tested: int
    spearman: float
    within: float
    kendall: float
    r2: float


@dataclass(frozen=True, slots=True)
class Tested:
    """The tested codes of one draw: similarity to the nearest that trains, prediction and result."""

    similarity: Numbers
    predicted: Numbers
    actual: Numbers


@dataclass(frozen=True, slots=True)
class Study:
    """What is predicted: the target by code, NaN where unknown, and its predictors by name."""

    name: str
    target: Numbers
    predictors: Mapping[str, Predictor]


def main() -> None:
    """Evaluate all predictors on all splits, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="lemur", help="as for lemur curate (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="the folder of results; a study that is there stays")
    parser.add_argument("--draws", type=int, default=_DRAWS, help="draws of each split (default: %(default)s)")
    parser.add_argument("--graphs", type=int, default=GRAPHS, help="networks to trace (default: %(default)s)")
    parser.add_argument(
        "--proxies", type=int, default=PROXIES, help="networks to run for proxies (default: %(default)s)"
    )
    options = parser.parse_args()
    networks = read_networks(options.source)
    known = networks.known(networks.accuracy[FIRST])
    sample = measure_sample(networks, known[: options.graphs], known[: options.proxies])
    options.out.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    bands: list[list[str]] = []
    with threadpool_limits(1):  # small fits: more threads wait for each other
        for study in _studies(networks, sample):
            if len(networks.known(study.target)) < _LEAST:
                note(f"{study.name}: fewer than {_LEAST} codes")
                continue
            path = options.out / f"{re.sub(r'[^a-z0-9]+', '-', study.name)}.json"
            if not path.is_file():
                write_text(path, json.dumps(_run(networks, study, options.draws), indent=1))
            stored = json.loads(path.read_text(encoding="utf-8"))
            results += [Result(**result) for result in stored["results"]]
            bands += stored["bands"]
            note(f"{study.name}: done")
    lines = [*report(results), "", *report_proxies(networks, sample), "", _BANDS_TITLE, ""]
    lines += table(["target", "predictor", "similarity, at least", "codes", "Spearman", "mean error"], bands, left=2)
    write_text(options.out / "results.md", "\n".join(lines))
    draw_figure(options.out / "prediction.png", [result for result in results if result.target == results[-1].target])
    print("\n".join(lines))


def _run(networks: Networks, study: Study, draws: int) -> Json:
    """Return the results of a study, and rows of `report_bands`."""
    results: list[Result] = []
    tested: dict[str, list[Tested]] = {}
    for split, draw in itertools.product(SPLITS, range(draws)):
        for result, codes in _evaluate(networks, study, split, draw):
            results.append(result)
            if split == "random":
                tested.setdefault(result.predictor, []).append(codes)
    return {"results": [asdict(result) for result in results], "bands": report_bands(study.name, tested)}


#: The targets, in the order of the tables.
STUDIES = (
    f"accuracy after epoch {FIRST}",
    f"accuracy after epoch {LATER}",
    "score",
    f"accuracy after epoch {FIRST}, of the traced",
)
_BANDS_TITLE = "Random splits, by similarity to the nearest code that trains:"


def _studies(networks: Networks, sample: Sample) -> list[Study]:
    tokens = hash_tokens(networks.codes)
    first, later = networks.accuracy[FIRST], networks.accuracy[LATER]

    def by_code(epoch: int) -> dict[str, Predictor]:
        return {
            "mean": predict_mean,
            "hyperparameters, boosting": boosting(networks.hyperparameters[epoch]),
            "nearest code": nearest(tokens),
            "tokens, ridge": ridge(tokens),
        }

    plain = {"mean": predict_mean, "tokens, ridge": ridge(tokens)}
    graphs = np.column_stack([sample.costs, sample.labels])
    traced = by_code(FIRST) | {
        "parameters, multiply-adds, boosting": boosting(sample.costs),
        "graph, boosting": boosting(sample.labels),
        "graph, costs, hyperparameters, boosting": boosting(np.column_stack([graphs, networks.hyperparameters[FIRST]])),
    }
    predictors = (
        by_code(FIRST),
        by_code(LATER) | {"first epoch, boosting": boosting(first[:, None])},
        plain,
        traced,
    )
    targets = (first, later, networks.score, np.where(np.isfinite(sample.costs[:, 0]), first, np.nan))
    return [Study(*parts) for parts in zip(STUDIES, targets, predictors, strict=True)]


def _evaluate(networks: Networks, study: Study, split: str, draw: int) -> Iterator[tuple[Result, Tested]]:
    train, tested = SPLITS[split](networks, networks.known(study.target), draw)
    if min(len(train), len(tested)) < 2:  # a small corpus may have nothing far from it
        return
    actual, similarity = study.target[tested], nearest_similarity(networks, train, tested)
    prefixes = np.array(networks.prefixes)[tested]
    for name, predictor in study.predictors.items():
        predicted = predictor(train, tested, study.target)
        yield (
            Result(
                study.name,
                name,
                split,
                draw,
                len(train),
                len(tested),
                spearman=correlate(spearmanr, predicted, actual),
                within=_within(prefixes, predicted, actual),
                kendall=correlate(kendalltau, predicted, actual),
                r2=float(1 - np.square(predicted - actual).sum() / np.square(actual - actual.mean()).sum()),
            ),
            Tested(similarity, predicted, actual),
        )


def correlate(measure: Callable[..., Any], predicted: Numbers, actual: Numbers) -> float:
    """Return a rank correlation; 0 where nothing is ranked."""
    if len(actual) < 2 or not (np.ptp(predicted) and np.ptp(actual)):
        return 0.0
    return float(measure(predicted, actual)[0])


def _within(prefixes: npt.NDArray[np.str_], predicted: Numbers, actual: Numbers) -> float:
    """Return the mean Spearman correlation among codes of one prefix, weighted by their numbers."""
    names, counts = np.unique(prefixes, return_counts=True)
    chosen = [(prefixes == name, count) for name, count in zip(names, counts, strict=True) if count >= _FEW]
    if not chosen:
        return float("nan")
    parts = [correlate(spearmanr, predicted[rows], actual[rows]) for rows, _ in chosen]
    return float(np.average(parts, weights=[count for _, count in chosen]))


def report(results: Sequence[Result]) -> list[str]:
    """Return a table for each target, as Markdown: Spearman by predictor and split."""
    lines = []
    for target in dict.fromkeys(result.target for result in results):
        chosen = [result for result in results if result.target == target]
        sizes = {split: [r for r in chosen if r.split == split] for split in SPLITS}
        lines += ["", f"**{target}**", ""]
        head = [
            f"{split} ({_mean([r.train for r in of])} / {_mean([r.tested for r in of])})" for split, of in sizes.items()
        ]
        rows = []
        for name in dict.fromkeys(result.predictor for result in chosen):
            for measure in MEASURES:
                cells = [[getattr(r, measure) for r in of if r.predictor == name] for of in sizes.values()]
                rows.append([name, measure, *map(_cell, cells)])
        lines += table(["predictor", "measure", *head], rows, left=2)
    return lines


def report_bands(target: str, tested: Mapping[str, Sequence[Tested]]) -> list[list[str]]:
    """Return how well codes of random splits are predicted, by their similarity to the nearest code that trains."""
    rows = []
    for predictor, parts in tested.items():
        similarity, predicted, actual = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("similarity", "predicted", "actual")
        )
        for upper, least in itertools.pairwise((2.0, *BANDS)):
            band = (similarity >= least) & (similarity < upper)
            error = float(np.abs(predicted - actual)[band].mean()) if band.any() else float("nan")
            rank = correlate(spearmanr, predicted[band], actual[band])
            rows.append([target, predictor, f"{least:.2f}", count(int(band.sum())), f"{rank:.2f}", f"{error:.3f}"])
    return rows


def report_proxies(networks: Networks, sample: Sample) -> list[str]:
    """Return how what is known without training ranks networks; the interval is that of 1,000 resamples, 95 %."""
    actual, prefixes = networks.accuracy[FIRST], np.array(networks.prefixes)
    rows = []
    columns = zip(
        ("parameters", "multiply-adds", "naswot", "synflow"), np.hstack([sample.costs, sample.proxies]).T, strict=True
    )
    for name, values in columns:
        chosen = np.flatnonzero(np.isfinite(values) & np.isfinite(sample.proxies).all(axis=1))
        if len(chosen) < _FEW:
            continue
        draws = np.random.default_rng(0).integers(0, len(chosen), (1_000, len(chosen)))
        spread = [correlate(spearmanr, values[chosen[draw]], actual[chosen[draw]]) for draw in draws]
        low, high = np.quantile(spread, (0.025, 0.975))
        within = _within(prefixes[chosen], values[chosen], actual[chosen])
        rank = correlate(spearmanr, values[chosen], actual[chosen])
        rows.append([name, count(len(chosen)), f"{rank:.2f} ({low:.2f} to {high:.2f})", f"{within:.2f}"])
    graphs, proxies = (
        f"{seconds:,.0f} CPU seconds for {tried:,} networks"
        for seconds, tried in zip(sample.seconds, sample.tried, strict=True)
    )
    title = f"Without training, against the accuracy after epoch {FIRST} (graphs {graphs}, proxies {proxies}):"
    return [title, "", *table(["", "networks", "Spearman", "within prefixes"], rows)]


def draw_figure(path: Path, results: Sequence[Result]) -> None:
    """Draw the rank correlation of each predictor on each split: the mean of the draws, and their range."""

    def draw(figure: "Figure") -> None:
        figure.set_size_inches(8, 4.4)
        axes = figure.subplots()
        names = [name for name in dict.fromkeys(result.predictor for result in results) if name != "mean"]
        colors = dict(zip(SPLITS, (BLUE, ORANGE, "#009E73", INK, FAINT), strict=True))
        for row, split in itertools.product(range(len(names)), SPLITS):
            own = [r.spearman for r in results if r.predictor == names[row] and r.split == split]
            if not own:
                continue
            height = row + (list(SPLITS).index(split) - 2) * 0.15
            axes.plot([min(own), max(own)], [height, height], color=colors[split], linewidth=1.5)
            axes.plot(np.mean(own), height, "o", color=colors[split], label=split if row == 0 else None)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.grid(axis="x")
        axes.set_xlabel("Spearman correlation with the accuracy after the first epoch")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))

    save_figure(path, draw)


def _mean(values: Sequence[int]) -> str:
    return count(round(float(np.mean(values)))) if values else "–"


def _cell(values: Sequence[float]) -> str:
    known = [value for value in values if np.isfinite(value)]
    return f"{np.mean(known):.2f} ({min(known):.2f} to {max(known):.2f})" if known else "–"


if __name__ == "__main__":
    main()
