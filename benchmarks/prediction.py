"""Can the accuracy of a network be predicted from its code? `python -m benchmarks.prediction [SOURCE] [--draws N]`.

On networks of LEMUR with results on CIFAR-10: from hyperparameters, tokens and the first epoch, for codes that are held
out at random, by the beginnings of their names, by split groups, or far from all that trains. One row is one code, with
its accuracy after an epoch and the hyperparameters of that trial; of several trials the best one counts. Each cell is
the mean of the draws, then the lowest and the highest. scikit-learn learns.
"""

import argparse
import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import scipy.sparse as sp
from scipy.stats import spearmanr
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor
from threadpoolctl import threadpool_limits

from curate.model.corpus import CodeFile, read_corpus
from curate.model.options import LEAK_THRESHOLD, CurateOptions, get_prefix
from curate.model.records import build_records
from curate.model.splits import group_kept
from curate.sources import open_sources
from lemur_core.files import Json
from lemur_core.files.markdown import count, percent, table
from lemur_core.similarity.join import ExactPairs, exact_pairs

Numbers = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
#: Draws the codes that train and those that are tested, as positions in the codes.
Split = Callable[["Networks", Indices, int], tuple[Indices, Indices]]
#: From the codes that train, those that are tested, and the target of all codes, to predictions of the tested ones.
Predictor = Callable[[Indices, Indices, Numbers], Numbers]

#: The benchmark that most networks of LEMUR have, and two epochs: every network has the first, most have five.
BENCHMARK = {"task": "img-classification", "dataset": "cifar-10", "metric": "acc"}
FIRST, LATER = 1, 5

_LEAST_NEAR = 0.3  # similarity of token sets that is told apart from none
_HELD_OUT = 0.1  # of the codes that have the result
_LARGEST = 0.15  # units with more than this share always train: one would be nearly all that is tested
_FAR = 100  # codes that `far` tests: the more, the fewer are left that are far from all of them


@dataclass(frozen=True, slots=True)
class Networks:
    """Codes with their results; all sequences are by code."""

    codes: Sequence[str]
    prefixes: npt.NDArray[np.str_]
    groups: Indices
    structures: Indices  # equal for equal structures
    sets: Indices  # numbers of token sets
    pairs: ExactPairs  # of token sets
    accuracy: Mapping[int, Numbers]  # by epoch; NaN without a result
    hyperparameters: Mapping[int, Numbers]  # by epoch: lr, momentum, dropout, batch, size of the images, flipped
    score: Numbers  # of all results of a code, also on other data sets


def read_networks(source: str) -> Networks:
    """Return all codes of a source of `lemur curate` that have features, by id."""
    with tempfile.TemporaryDirectory() as folder, CodeFile(Path(folder) / "codes") as file:
        corpus = read_corpus(open_sources([source]), file, 1)
        records = build_records(corpus, CurateOptions())
        usable = sorted(records.representatives, key=corpus.ids.__getitem__)
        position = {code: at for at, code in enumerate(usable)}
        fits = corpus.code_of_row >= 0
        for column, value in BENCHMARK.items():
            fits &= pc.fill_null(pc.equal(corpus.rows[column], value), False).to_numpy()
        rows = np.flatnonzero(fits)
        accuracy = {epoch: np.full(len(usable), np.nan) for epoch in (FIRST, LATER)}
        hyperparameters = {epoch: np.full((len(usable), 6), np.nan) for epoch in accuracy}
        columns = corpus.rows.select(["epoch", "accuracy", "prm"]).take(rows).to_pylist()
        for code, row in zip(corpus.code_of_row[rows].tolist(), columns, strict=True):
            at, epoch, value = position.get(code), row["epoch"], row["accuracy"]
            if at is None or epoch not in accuracy or value is None or value <= np.nan_to_num(accuracy[epoch][at]):
                continue
            accuracy[epoch][at] = value
            hyperparameters[epoch][at] = _read_hyperparameters(json.loads(row["prm"] or "{}"))
        sets = corpus.features.shingle_set[usable]
        groups = group_kept(usable, corpus.features)
        return Networks(
            codes=[corpus.codes[code] for code in usable],
            prefixes=np.array([get_prefix(records.names[code]) for code in usable]),
            groups=np.array([groups.root(code_index) for code_index in usable]),
            structures=corpus.features.fingerprint[usable],
            sets=sets,
            pairs=exact_pairs(corpus.features, np.unique(sets), _LEAST_NEAR),
            accuracy=accuracy,
            hyperparameters=hyperparameters,
            score=np.array([records.scores.get(code, np.nan) for code in usable]),
        )


def _read_hyperparameters(prm: Json) -> list[float]:
    values = [prm.get(name) for name in ("lr", "momentum", "dropout", "batch")]
    size = re.search(r"\d+", transform := str(prm.get("transform", "")))
    known = [float(value) if isinstance(value, int | float) else np.nan for value in values]
    return [*known, float(size[0]) if size else np.nan, float("flip" in transform)]


def split_random(_: Networks, codes: Indices, seed: int) -> tuple[Indices, Indices]:
    """Hold out a tenth of the codes."""
    order = np.random.default_rng(seed).permutation(codes)
    held = round(_HELD_OUT * len(codes))
    return np.sort(order[held:]), np.sort(order[:held])


def split_by_prefix(networks: Networks, codes: Indices, seed: int) -> tuple[Indices, Indices]:
    """Hold out whole families by the beginnings of names, as LEMUR's own lists of families do."""
    _, numbers = np.unique(networks.prefixes, return_inverse=True)
    return _hold_out_units(numbers.astype(np.int64), codes, seed)


def split_by_group(networks: Networks, codes: Indices, seed: int) -> tuple[Indices, Indices]:
    """Hold out whole split groups of `lemur curate`: no tested code is near to one that trains, through any others."""
    return _hold_out_units(networks.groups, codes, seed)


def split_far(networks: Networks, codes: Indices, seed: int) -> tuple[Indices, Indices]:
    """Hold out random codes of any group, and leave out of training all that are near to one of them."""
    _, held = split_random(networks, codes, seed)
    held = np.sort(np.random.default_rng(seed).permutation(held)[:_FAR])
    close = nearest_similarity(networks, held, codes) >= LEAK_THRESHOLD
    return codes[~close & ~np.isin(networks.structures[codes], networks.structures[held])], held


def split_few(networks: Networks, codes: Indices, seed: int) -> tuple[Indices, Indices]:
    """Hold out the codes of `split_far`, and train with as many as it does, drawn from all others: its control."""
    train, held = split_far(networks, codes, seed)
    others = codes[~np.isin(codes, held)]
    return np.sort(np.random.default_rng(seed).permutation(others)[: len(train)]), held


def _hold_out_units(units: Indices, codes: Indices, seed: int) -> tuple[Indices, Indices]:
    """Hold out whole units in random order until they have enough of the codes."""
    sizes = np.bincount(units[codes])
    small = np.flatnonzero((sizes > 0) & (sizes <= _LARGEST * len(codes)))
    drawn = np.random.default_rng(seed).permutation(small)
    before = np.cumsum(sizes[drawn]) - sizes[drawn]
    held = drawn[before < min(_HELD_OUT * len(codes), sizes[small].sum() / 2)]
    tested = np.isin(units[codes], held)
    return codes[~tested], codes[tested]


SPLITS: Mapping[str, Split] = {
    "random": split_random,
    "by prefix": split_by_prefix,
    "by group": split_by_group,
    "far": split_far,
    "as few": split_few,
}


def nearest_similarity(networks: Networks, train: Indices, tested: Indices) -> Numbers:
    """Return the Jaccard of each tested code to the nearest code that trains; 0 if it is below 0.3."""
    pairs = networks.pairs
    there = np.isin(np.arange(networks.sets.max() + 1), networks.sets[train])
    best = np.where(there, 1.0, 0.0)
    for one, other in ((pairs.a, pairs.b), (pairs.b, pairs.a)):
        usable = there[other]
        np.maximum.at(best, one[usable], pairs.jaccard[usable])
    nearest: Numbers = best[networks.sets[tested]]
    return nearest


def hash_tokens(codes: Sequence[str]) -> sp.csr_array:
    """Return hashed counts of tokens and of pairs of neighboring tokens, each row of length 1."""
    options = {"token_pattern": r"\w+|[^\w\s]", "ngram_range": (1, 2), "n_features": 2**16, "lowercase": False}
    return sp.csr_array(HashingVectorizer(**options, norm="l2", dtype=np.float32).transform(codes))


def ridge(matrix: sp.csr_array) -> Predictor:
    """Return ridge regression on the rows of a sparse matrix; its penalty was chosen among 0.1 and 1."""

    def predict(train: Indices, tested: Indices, target: Numbers) -> Numbers:
        model = Ridge(alpha=0.1, solver="lsqr", tol=1e-4, max_iter=300)
        predictions: Numbers = model.fit(matrix[train], target[train]).predict(matrix[tested])
        return predictions

    return predict


def nearest(matrix: sp.csr_array) -> Predictor:
    """Return the result of the training code with the most similar tokens, by cosine."""

    def predict(train: Indices, tested: Indices, target: Numbers) -> Numbers:
        model = KNeighborsRegressor(n_neighbors=1, metric="cosine", algorithm="brute")
        predictions: Numbers = model.fit(matrix[train], target[train]).predict(matrix[tested])
        return predictions

    return predict


def boosting(columns: Numbers) -> Predictor:
    """Return gradient boosting on the rows of a table; NaN is a value of its own."""

    def predict(train: Indices, tested: Indices, target: Numbers) -> Numbers:
        model = HistGradientBoostingRegressor(max_iter=60, random_state=0, early_stopping=False)
        known = np.flatnonzero(np.isfinite(columns[train]).any(axis=0))  # scikit-learn takes no empty column
        predictions: Numbers = model.fit(columns[np.ix_(train, known)], target[train]).predict(
            columns[np.ix_(tested, known)]
        )
        return predictions

    return predict


def correlate(predicted: Numbers, actual: Numbers) -> float:
    """Return the rank correlation; 0 where nothing is ranked."""
    ranked = len(actual) > 1 and np.ptp(predicted) and np.ptp(actual)
    return float(spearmanr(predicted, actual)[0]) if ranked else 0.0


def main() -> None:
    """Evaluate all predictors on all splits, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", default="lemur", help="as for lemur curate (default: %(default)s)")
    parser.add_argument("--draws", type=int, default=10, help="draws of each split (default: %(default)s)")
    given = parser.parse_args()
    networks = read_networks(given.source)
    tokens = hash_tokens(networks.codes)
    by_tokens = {"nearest code": nearest(tokens), "tokens, ridge": ridge(tokens)}
    first, later = networks.accuracy[FIRST], networks.accuracy[LATER]
    of_first, of_later = ({"hyperparameters": boosting(networks.hyperparameters[at])} for at in (FIRST, LATER))
    studies: dict[str, tuple[Numbers, Mapping[str, Predictor]]] = {
        f"accuracy after epoch {FIRST}": (first, of_first | by_tokens),
        f"accuracy after epoch {LATER}": (later, of_later | by_tokens | {"first epoch": boosting(first[:, None])}),
        "score": (networks.score, {"tokens, ridge": ridge(tokens)}),
    }
    with threadpool_limits(1):  # small fits: more threads wait for each other
        for name, (target, predictors) in studies.items():
            print(f"\n**{name}**\n")
            print("\n".join(tabulate(networks, target, predictors, given.draws)), flush=True)
    codes = np.flatnonzero(np.isfinite(first))
    drawn = [split_random(networks, codes, draw) for draw in range(given.draws)]
    near = np.concatenate([nearest_similarity(networks, *both) for both in drawn])
    same, close = (percent(int((near >= least).sum()), len(near)) for least in (1.0, LEAK_THRESHOLD))
    print(f"Random splits: {same} of the tested codes have the token set of one that trains, {close} are near to one.")


def tabulate(networks: Networks, target: Numbers, predictors: Mapping[str, Predictor], draws: int) -> list[str]:
    """Return the rank correlations by predictor and split, as a Markdown table; the head has the numbers of codes."""
    codes = np.flatnonzero(np.isfinite(target))
    head, cells = [""], {name: [name] for name in predictors}
    for split, draw_codes in SPLITS.items():
        drawn = [draw_codes(networks, codes, draw) for draw in range(draws)]
        drawn = [both for both in drawn if min(map(len, both)) > 1]  # a small corpus may have nothing far from it
        sizes = [count(round(float(np.mean([len(part) for part in parts])))) for parts in zip(*drawn, strict=True)]
        head.append(f"{split} ({' / '.join(sizes) or '–'})")
        for name, predict in predictors.items():
            found = [correlate(predict(train, tested, target), target[tested]) for train, tested in drawn]
            text = f"{np.mean(found):.2f} ({min(found):.2f} to {max(found):.2f})" if found else "–"
            cells[name].append(text)
    return table(head, list(cells.values()))


if __name__ == "__main__":
    main()
