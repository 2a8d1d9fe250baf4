"""Write the results of a corpus as a data set for prediction of accuracies: `lemur curate --predict`.

One row is one result of a code, without the code, which the table of networks holds by id. Splits are those of the
whole corpus, so that no tested code is near to one that trains; a code without a split has no rows here.

The card states baselines: the mean of what trains, and ridge regression on the hashed elements of a code's structure,
which need nothing that curation has not computed.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import scipy.sparse as sp

from curate.model.corpus import LoadedRecords
from curate.model.options import SPLIT_RATIOS, get_prefix
from curate.published.outcome import CurationOutcome
from lemur_core.files import Json
from lemur_core.files.markdown import count, plain, table
from manifests.folders.tables import write_tables
from manifests.records import Prediction

Numbers = npt.NDArray[np.float64]

_BENCHMARK = ("task", "dataset", "metric", "epoch")
_COLUMNS = ("nn", *_BENCHMARK, "accuracy", "prm")
_BUCKETS = 4_096
_DAMP = 1.0  # of the ridge
_STEPS = 300
_SHOWN = 4  # benchmarks in the card
_FEW = 10  # tested codes of a benchmark that are ranked


@dataclass(frozen=True, slots=True)
class Results:
    """The rows of a corpus to predict from: their numbers by split, in the order in which they are written."""

    rows: dict[str, list[int]]

    def __len__(self) -> int:
        return sum(map(len, self.rows.values()))


def choose_results(corpus: LoadedRecords, outcome: CurationOutcome) -> Results:
    """Return the rows with an accuracy and an epoch whose code has a split; their order is that of their content."""
    columns = corpus.rows.select(_COLUMNS).to_pydict()
    keyed = []
    for row, code in enumerate(corpus.code_of_row.tolist()):
        known = columns["accuracy"][row] is not None and columns["epoch"][row] is not None
        if known and np.isfinite(columns["accuracy"][row]) and code in outcome.whole.splits:
            facts = [columns[name][row] for name in _COLUMNS]
            keyed.append(([corpus.ids[code], *((fact is None, fact or 0) for fact in facts)], row, code))
    rows: dict[str, list[int]] = {split: [] for split in SPLIT_RATIOS}
    for _, row, code in sorted(keyed):
        rows[outcome.whole.splits[code]].append(row)
    return Results(rows)


def write_prediction(folder: Path, corpus: LoadedRecords, outcome: CurationOutcome, results: Results) -> dict[str, int]:
    """Write the table. Returns: the number of rows by path below `folder`."""
    rows: dict[str, int] = {}
    for split, chosen in results.rows.items():
        written = write_tables(
            folder / "data" / "prediction", split, Prediction, _prediction_rows(corpus, outcome, chosen), len(chosen)
        )
        rows |= {f"data/prediction/{name}": number for name, number in written.items()}
    return rows


def _prediction_rows(corpus: LoadedRecords, outcome: CurationOutcome, rows: Sequence[int]) -> Iterator[Json]:
    for row, shown in zip(rows, corpus.rows.take(pa.array(rows, pa.int64())).select(_COLUMNS).to_pylist(), strict=True):
        code = int(corpus.code_of_row[row])
        name = shown["nn"] or ""
        yield {
            **shown,
            "nn": name,
            "id": corpus.ids[code],
            "prefix": get_prefix(name),
            "family": outcome.families.get(code, corpus.features.family[code]),
            "split_group": outcome.whole.groups[code],
            "split": outcome.whole.splits[code],
        }


def prediction_card(corpus: LoadedRecords, outcome: CurationOutcome, results: Results) -> str:
    """Return the section of the card, with baselines for the benchmarks that most tested codes have."""
    return "\n".join(
        [
            "",
            "## Prediction of accuracies",
            "",
            f"`prediction` holds {count(len(results))} results: the `id` of a code, hyperparameters (`prm`), benchmark",
            "(`task`, `dataset`, `metric`, `epoch`) and `accuracy`. No code is near to one of another split",
            "(`split_group`), so that splits are made of whole groups of similar codes:",
            "",
            *_describe_splits(corpus, outcome, results),
            "The code is in `networks`:",
            "",
            "```python",
            'results = load_dataset("path/to/this/folder", "prediction")       # train, validation, test',
            'codes = load_dataset("path/to/this/folder", "networks")["full"]',
            'code_of = dict(zip(codes["id"], codes["nn_code"]))',
            "```",
            "",
            *_baselines(corpus, results),
        ]
    )


def _describe_splits(corpus: LoadedRecords, outcome: CurationOutcome, results: Results) -> Iterator[str]:
    """Yield a table of what each split is made of, and a sentence on each that is mostly of one kind."""
    names = corpus.rows.column("nn")
    rows, notes = [], []
    for split, chosen in results.rows.items():
        prefix_of = {int(corpus.code_of_row[row]): get_prefix(names[row].as_py() or "") for row in chosen}
        groups = Counter(outcome.whole.groups[code] for code in prefix_of)
        prefixes = Counter(prefix_of.values())
        shown = [f"{plain(name)} {count(number)}" for name, number in prefixes.most_common(_SHOWN)]
        sizes = (len(chosen), len(prefix_of), len(groups), max(groups.values(), default=0))
        rows.append([split, *map(count, sizes), ", ".join(shown)])
        name, number = next(iter(prefixes.most_common(1)), ("", 0))
        if len(prefixes) > 1 and 2 * number > len(prefix_of):
            part = f"Of the {count(len(prefix_of))} codes of `{split}`, {count(number)} are {plain(name)}"
            notes += [f"{part}: what holds on average there need not hold for others.", ""]
    yield from table(["split", "results", "codes", "groups", "codes of the largest", "most codes are of"], rows)
    yield from notes


def _baselines(corpus: LoadedRecords, results: Results) -> Iterator[str]:
    best = {split: _best_results(corpus, rows) for split, rows in results.rows.items()}
    tested = Counter(benchmark for benchmark, _ in best["test"])
    trained = Counter(benchmark for benchmark, _ in best["train"])
    ranked = [key for key in tested if min(tested[key], trained[key]) >= _FEW]
    rows = []
    for benchmark in sorted(ranked, key=lambda key: (-tested[key], key))[:_SHOWN]:
        train, test = (
            {code: value for (key, code), value in best[s].items() if key == benchmark} for s in ("train", "test")
        )
        actual, known = np.array(list(test.values())), np.array(list(train.values()))
        predicted = _ridge(_structures(corpus, [*train, *test]), known)
        for name, values in (("mean", np.full(len(actual), known.mean())), ("structure, ridge", predicted)):
            rows.append([_title(benchmark), count(len(train)), count(len(test)), name, *_rate(values, actual)])
    if rows:
        yield "Baselines, trained on `train`, on `test`, with the best result of each code:"
        yield ""
        yield from table(["benchmark", "train", "test", "predictor", "Spearman", "R2", "mean error"], rows)
    else:
        yield "No benchmark has enough results in `train` and `test` for a baseline."


def _title(benchmark: tuple[str, ...]) -> str:
    task, dataset, metric, epoch = benchmark
    return f"{plain(dataset)}, {plain(metric)} ({plain(task)}), epoch {int(epoch)}"


def _best_results(corpus: LoadedRecords, rows: Sequence[int]) -> dict[tuple[tuple[str, ...], int], float]:
    """Return the best accuracy by benchmark and code, in the order of the rows."""
    best: dict[tuple[tuple[str, ...], int], float] = {}
    for row, shown in zip(
        rows, corpus.rows.take(pa.array(rows, pa.int64())).select((*_BENCHMARK, "accuracy")).to_pylist(), strict=True
    ):
        # With leading zeros, so that epochs are in order as texts.
        benchmark = (*(str(shown[name] or "") for name in _BENCHMARK[:3]), f"{shown['epoch']:09d}")
        key = benchmark, int(corpus.code_of_row[row])
        best[key] = max(best.get(key, -np.inf), shown["accuracy"])
    return best


def _structures(corpus: LoadedRecords, codes: Sequence[int]) -> sp.csr_array:
    """Return a row for each code, of length 1: which buckets the elements of its structure are in."""
    elements = [corpus.features.elements[int(corpus.features.fingerprint[code])] for code in codes]
    buckets = [np.unique(own % np.uint64(_BUCKETS)).astype(np.int64) for own in elements]
    ends = np.concatenate([[0], np.cumsum([len(own) for own in buckets])])
    values = np.concatenate([np.full(len(own), len(own) ** -0.5) for own in buckets])
    return sp.csr_array((values, np.concatenate(buckets), ends), shape=(len(codes), _BUCKETS))


def _ridge(matrix: sp.csr_array, known: Numbers) -> Numbers:
    """Return predictions for the rows of a matrix behind those with known results."""
    mean = known.mean()
    weights = sp.linalg.lsqr(matrix[: len(known)], known - mean, damp=_DAMP, iter_lim=_STEPS)[0]
    predicted: Numbers = matrix[len(known) :] @ weights + mean
    return predicted


def _rate(predicted: Numbers, actual: Numbers) -> list[str]:
    from scipy.stats import spearmanr  # 0.4 s, which curations without --predict do not need

    ranked = np.ptp(predicted) > 0 and np.ptp(actual) > 0
    rank = f"{spearmanr(predicted, actual)[0]:.2f}" if ranked else "–"
    spread = float(np.square(actual - actual.mean()).sum())
    explained = f"{1 - float(np.square(predicted - actual).sum()) / spread:.2f}" if spread else "–"
    return [rank, explained, f"{float(np.abs(predicted - actual).mean()):.3f}"]
