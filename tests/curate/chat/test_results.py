"""Recorded results: whose trial gave them, and which of them a request may ask for."""

import json
from typing import Any

from curate.chat.design import is_chance, result_line
from curate.chat.network import BestResult, best_results
from tests.builders.suites import table

Row = dict[str, Any]
OWN, OTHER = {"lr": 0.1, "transform": "norm_32", "batch": 64}, {"lr": 0.2, "transform": "norm_256_flip", "batch": 128}


def row(name: str, epoch: int, accuracy: float, prm: Row = OWN, dataset: str = "cifar-10") -> Row:
    code = f"class Net:\n    {name} = '{name}'\n"
    base = {"nn": name, "nn_code": code, "task": "img-classification", "dataset": dataset, "metric": "acc"}
    return base | {"epoch": epoch, "accuracy": accuracy, "prm": json.dumps(prm), "duration": 1.0}


def test_a_result_is_reached_by_trials_with_the_same_hyperparameters(curated: Any) -> None:
    # at one epoch the first is the best of two; at two it is the worst, with other hyperparameters
    rows = [
        row("one", 1, 0.6),
        row("one", 2, 0.7, OTHER),
        row("one", 1, 0.5),
        row("one", 1, 0.99, OWN, "mnist"),
        row("two", 1, 0.1),
        row("two", 2, 0.9),
    ]
    run = curated(rows)
    codes = [run.corpus.ids.index(id_) for id_ in dict.fromkeys(run.corpus.ids)]
    found = best_results(run.corpus, codes, [0, 5])
    one = BestResult("img-classification", "cifar-10", "acc", 0.6, 1, "norm_32", 64)
    far = BestResult("img-classification", "cifar-10", "acc", 0.7, 2, "norm_256_flip", 128)
    digits = BestResult("img-classification", "mnist", "acc", 0.99, 1, "norm_32", 64)
    two = BestResult("img-classification", "cifar-10", "acc", 0.9, 2, "norm_32", 64)
    assert found == [((far, digits), (one,)), ((two,), (two,))]


@table(__file__, "results.md", "A result in words", globals())
def test_a_result_in_words(best: BestResult, line: str) -> None:
    assert result_line(best) == line


@table(__file__, "results.md", "What guessing reaches", globals())
def test_what_guessing_reaches(dataset: str, metric: str, accuracy: float, chance: bool) -> None:
    assert is_chance(BestResult("img-classification", dataset, metric, accuracy, 1, None, None)) is chance
