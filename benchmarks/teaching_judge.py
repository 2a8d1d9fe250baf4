"""What `benchmarks.teaching` asks of samples: do they parse, construct, run; are they new, are they copied?

They run in the sandbox alone, as LEMUR's trainer calls a network.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.teaching_corpus import Corpus, Text
from benchmarks.teaching_model import Tokens
from curate.compute.runs import PRM, RUN, NetFailure, build_case, open_box, read_answer
from curate.model.features import code_features
from curate.model.options import CurateOptions
from lemur_core.sandbox import Job, Limits
from lemur_core.sandbox.stage import Retries
from lemur_core.similarity.minhash import jaccard

#: Tokens of a window that counts as copied if it was learned.
COPIED = 8

#: As a prompt: what a file says before its first class or function.
TASK, _DATASET, _TRANSFORM = "img-classification", "cifar-10", "norm_64"

_CONSTRUCTED = ("forward_failed", "wrong_output", "not_finite")
_LIMITS = Limits(wall_seconds=120, cpu_seconds=30, memory_bytes=4 * 2**30)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def header_of(code: str) -> str | None:
    """The lines before the first class or function, which a sample goes on from; None where there are none."""
    first = min(
        (
            min([node.lineno, *(one.lineno for one in node.decorator_list)])
            for node in ast.parse(code).body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ),
        default=1,
    )
    return "".join(code.splitlines(keepends=True)[: first - 1]).strip() or None


def parses(code: str) -> bool:
    """Whether it is Python."""
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def run_all(codes: Sequence[str]) -> list[dict[str, Any]]:
    """Of each sample: `parses`, `constructs`, `runs`, and `error`, a category.

    Returns: in the order of the samples. What the sandbox ended is not counted as constructed.
    """
    case = build_case(TASK, _DATASET, _TRANSFORM)
    assert not isinstance(case, str)
    payload = {"case": asdict(case), "prm": PRM | {"batch": case.in_shape[0], "transform": _TRANSFORM}}
    found: list[dict[str, Any]] = [
        {"parses": parses(code), "constructs": False, "runs": False, "error": "no_python"} for code in codes
    ]
    jobs = [
        Job(str(place), RUN.guest, payload | {"code": code}, _LIMITS)
        for place, code in enumerate(codes)
        if found[place]["parses"]
    ]
    stage = replace(RUN, limits=_LIMITS, retries=Retries.NONE)
    with open_box([stage], jobs=1, unsafe=False) as box:
        for reply in stage.run_jobs(box, jobs):
            told = read_answer(reply)
            error = told.category if isinstance(told, NetFailure) else ""
            found[int(reply.key)] |= {
                "constructs": told.runs or error in _CONSTRUCTED,
                "runs": told.runs,
                "error": error,
            }
    return found


class Learned:
    """The texts of an arm, which samples are compared with."""

    def __init__(self, corpus: Corpus, texts: Sequence[Text]) -> None:
        self._sets = [corpus.features.shingles(number) for number in corpus.shingle_sets(texts)]
        trees = corpus.features.digests("tree")
        self._trees = {trees[corpus.features.tree[corpus.place[text.id]]] for text in texts}

    def nearest(self, code: str) -> float | None:
        """The greatest Jaccard to a text of the arm, 1 for the same tree; None for what has no features."""
        features = code_features(code)
        if isinstance(features, str):
            return None
        if features.tree in self._trees:
            return 1.0
        return max((jaccard(features.shingles, one) for one in self._sets), default=0.0)


def is_novel(nearest: float | None) -> bool:
    """Whether curation would keep it beside the arm's texts, by the code and its tokens."""
    return nearest is not None and nearest < CurateOptions().lexical_threshold


def windows(tokens: Tokens | Sequence[int]) -> npt.NDArray[np.uint64]:
    """A hash of each `COPIED` tokens in a row; of tokens of shape (..., n), flat."""
    values = np.asarray(tokens).astype(np.uint64)
    count = values.shape[-1] - COPIED + 1
    if count < 1:
        return np.empty(0, np.uint64)
    mixed = np.zeros((*values.shape[:-1], count), np.uint64)
    for place in range(COPIED):
        mixed = (mixed ^ (values[..., place : place + count] + np.uint64(1))) * _FACTOR
        mixed ^= mixed >> np.uint64(29)
    return mixed.ravel()


def copied(texts: Sequence[Sequence[int]], learned: npt.NDArray[np.uint64]) -> tuple[int, int]:
    """Of the windows of some texts how many were learned (`learned`: distinct ones, sorted), and how many there are."""
    hashes = [windows(text) for text in texts]
    flat = np.concatenate([*hashes, np.empty(0, np.uint64)])
    return int(np.isin(flat, learned).sum()), len(flat)


def counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many samples parse, construct, run, and are novel of those that parse."""
    return {
        **{name: sum(bool(row[name]) for row in rows) for name in ("parses", "constructs", "runs")},
        "novel": sum(row["parses"] and is_novel(row["nearest"]) for row in rows),
        "samples": len(rows),
    }
