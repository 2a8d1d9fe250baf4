"""The networks and results that `benchmarks.prediction` predicts, and the splits by which it holds networks out.

One row is one network code, with its accuracy on CIFAR-10 after each epoch and the hyperparameters of that trial; of
several trials of one code and epoch the best one counts. A draw holds out codes, never single results of a code.
"""

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from curate.model.corpus import CodeFile, read_corpus
from curate.model.features import FeatureTable
from curate.model.options import LEAK_THRESHOLD, CurateOptions, get_prefix
from curate.model.records import build_records
from curate.model.splits import split_groups
from curate.sources import open_sources
from lemur_core.files import Json
from lemur_core.files.errors import UserError
from lemur_core.similarity.join import exact_pairs

Numbers = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

#: The benchmark of which accuracies are predicted: the one that most networks of LEMUR have.
TASK, DATASET, METRIC = "img-classification", "cifar-10", "acc"
#: The epochs that are predicted: every network has the first, most have five.
FIRST, LATER = 1, 5

_SIZE = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Networks:
    """Codes with their results; all sequences are by code."""

    ids: Sequence[str]
    codes: Sequence[str]
    prefixes: Sequence[str]
    groups: Indices
    structures: Indices  # equal for equal structures
    sets: Indices  # numbers of token sets
    pairs: "SetPairs"
    accuracy: Mapping[int, Numbers]  # by epoch; NaN without a result
    hyperparameters: Mapping[int, Numbers]  # by epoch: lr, momentum, dropout, batch, size of the images, flipped
    score: Numbers  # of all results of a code, also on other data sets

    def __len__(self) -> int:
        return len(self.ids)

    def known(self, target: Numbers) -> Indices:
        """Return the codes with a result."""
        return np.flatnonzero(np.isfinite(target))


def read_networks(source: str) -> Networks:
    """Return all codes of a source of `lemur curate` that have features, by id.

    Raises: UserError if none has a result on CIFAR-10.
    """
    with tempfile.TemporaryDirectory() as folder, CodeFile(Path(folder) / "codes") as file:
        corpus = read_corpus(open_sources([source]), file, "abstract", 1)
        records = build_records(corpus, CurateOptions())
        usable = sorted(records.representatives, key=corpus.ids.__getitem__)
        position = {code: at for at, code in enumerate(usable)}
        groups = split_groups(usable, corpus.features)
        fits = pc.and_(pc.equal(corpus.rows["task"], TASK), pc.equal(corpus.rows["dataset"], DATASET))
        fits = pc.and_(fits, pc.equal(corpus.rows["metric"], METRIC)).to_numpy()
        rows = np.flatnonzero(fits & (corpus.code_of_row >= 0))
        columns = corpus.rows.select(["epoch", "accuracy", "prm"]).take(rows).to_pylist()
        accuracy = {epoch: np.full(len(usable), np.nan) for epoch in range(FIRST, LATER + 1)}
        hyperparameters = {epoch: np.full((len(usable), 6), np.nan) for epoch in accuracy}
        for code, row in zip(corpus.code_of_row[rows].tolist(), columns, strict=True):
            at, epoch, value = position.get(code), row["epoch"], row["accuracy"]
            if at is None or epoch not in accuracy or value is None or value <= np.nan_to_num(accuracy[epoch][at]):
                continue
            accuracy[epoch][at] = value
            hyperparameters[epoch][at] = _read_hyperparameters(json.loads(row["prm"] or "{}"))
        if not np.isfinite(accuracy[FIRST]).any():
            raise UserError(f"{source}: no network has an {METRIC} on {DATASET}")
        score = np.array([records.scores.get(code, np.nan) for code in usable])
        sets = corpus.features.shingle_set[usable]
        return Networks(
            ids=[corpus.ids[code] for code in usable],
            codes=[corpus.codes[code] for code in usable],
            prefixes=[get_prefix(records.names[code]) for code in usable],
            groups=np.array(groups),
            structures=corpus.features.fingerprint[usable],
            sets=sets,
            pairs=_find_pairs(corpus.features, sets),
            accuracy=accuracy,
            hyperparameters=hyperparameters,
            score=score,
        )


@dataclass(frozen=True, slots=True)
class SetPairs:
    """All pairs of distinct token sets with a Jaccard of at least `LEAST`; `count` is the number of sets."""

    a: Indices
    b: Indices
    jaccard: Numbers
    count: int


#: The least similarity of token sets that is told apart from none.
LEAST = 0.3


def _find_pairs(features: FeatureTable, sets: Indices) -> SetPairs:
    pairs = exact_pairs(features, np.unique(sets), LEAST)
    return SetPairs(pairs.a, pairs.b, pairs.jaccard, len(features.set_sizes))


def _read_hyperparameters(prm: Json) -> list[float]:
    """Return lr, momentum, dropout and batch, and the size and flipping of the images, which the transform names."""
    values = [_number(prm.get(name)) for name in ("lr", "momentum", "dropout", "batch")]
    transform = str(prm.get("transform", ""))
    size = _SIZE.search(transform)
    return [*values, float(size[1]) if size else np.nan, float("flip" in transform)]


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else np.nan


# --- splits -----------------------------------------------------------------------------------------------------------

#: Held out of the codes that have the result: at least this share, but no more than half of what small units have.
HELD_OUT = 0.1
#: Units with more than this share of the codes always train: one of them would be nearly all that is tested.
_LARGEST = 0.15
#: Codes that `far` tests: the more there are, the fewer are left that are far from all of them.
_FAR = 100

#: Draws the codes that are tested and those that train, as positions in the codes.
Split = Callable[[Networks, Indices, int], tuple[Indices, Indices]]


def split_random(_networks: Networks, codes: Indices, seed: int) -> tuple[Indices, Indices]:
    """Hold out a tenth of the codes."""
    order = np.random.default_rng(seed).permutation(codes)
    held = round(HELD_OUT * len(codes))
    return np.sort(order[held:]), np.sort(order[:held])


def split_by_prefix(networks: Networks, codes: Indices, seed: int) -> tuple[Indices, Indices]:
    """Hold out whole families by the beginnings of names, as LEMUR's own lists of families do."""
    _, numbers = np.unique(np.array(networks.prefixes), return_inverse=True)
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
    held = drawn[before < min(HELD_OUT * len(codes), sizes[small].sum() / 2)]
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
    """Return the lexical Jaccard of each tested code to the nearest code that trains; 0 if it is below `LEAST`."""
    pairs = networks.pairs
    there = np.isin(np.arange(pairs.count), networks.sets[train])
    best = np.where(there, 1.0, 0.0)
    for one, other in ((pairs.a, pairs.b), (pairs.b, pairs.a)):
        usable = there[other]
        np.maximum.at(best, one[usable], pairs.jaccard[usable])
    nearest: Numbers = best[networks.sets[tested]]
    return nearest
