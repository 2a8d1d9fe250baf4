"""The predictors of `benchmarks.prediction`: what each one sees of a network, and how it learns. scikit-learn learns.

A predictor is a function: from the codes that train and those that are tested, as positions, and the target of all
codes, to the predictions of the tested ones.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import scipy.sparse as sp
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor

from benchmarks.prediction_data import Indices, Numbers

Predictor = Callable[[Indices, Indices, Numbers], Numbers]

#: A name or number, or one other character.
_TOKEN = r"\w+|[^\w\s]"
_BUCKETS = 2**16
#: Chosen among 0.1 and 1, on four draws of test codes.
_ALPHA = 0.1
#: Small data and few columns: the defaults of scikit-learn, with half of its steps.
_STEPS = 60


def hash_tokens(codes: Sequence[str]) -> sp.csr_array:
    """Return hashed counts of tokens and of pairs of neighboring tokens, each row of length 1."""
    vectorizer = HashingVectorizer(
        token_pattern=_TOKEN, ngram_range=(1, 2), n_features=_BUCKETS, lowercase=False, norm="l2", dtype=np.float32
    )
    return sp.csr_array(vectorizer.transform(codes))


def hash_labels(counts: Sequence[Mapping[str, int]], buckets: int) -> Numbers:
    """Return hashed logarithmic counts of the Weisfeiler-Lehman labels (hexadecimal) of each graph."""
    table = np.zeros((len(counts), buckets))
    for row, labels in enumerate(counts):
        for label, count in labels.items():
            table[row, int(label[:8], 16) % buckets] += count
    return np.log1p(table)


def predict_mean(train: Indices, tested: Indices, target: Numbers) -> Numbers:
    """Predict the mean of what trains."""
    return np.full(len(tested), target[train].mean())


def ridge(matrix: sp.csr_array) -> Predictor:
    """Return ridge regression on the rows of a sparse matrix."""

    def predict(train: Indices, tested: Indices, target: Numbers) -> Numbers:
        model = Ridge(alpha=_ALPHA, solver="lsqr", tol=1e-4, max_iter=300)
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
        model = HistGradientBoostingRegressor(max_iter=_STEPS, random_state=0, early_stopping=False)
        known = np.flatnonzero(np.isfinite(columns[train]).any(axis=0))  # scikit-learn takes no empty column
        model.fit(columns[np.ix_(train, known)], target[train])
        predictions: Numbers = model.predict(columns[np.ix_(tested, known)])
        return predictions

    return predict


def add(*predictors: Predictor) -> Predictor:
    """Return a sum: each predictor learns what those before it leave."""

    def predict(train: Indices, tested: Indices, target: Numbers) -> Numbers:
        rest, total = target.copy(), np.zeros(len(tested))
        for predictor in predictors:
            both = predictor(train, np.concatenate([train, tested]), rest)
            rest[train] -= both[: len(train)]
            total += both[len(train) :]
        return total

    return predict
