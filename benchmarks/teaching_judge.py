"""What `benchmarks.teaching_pretrained` asks of what is written: does it parse, construct, run; is it copied?

They run in the sandbox alone, as LEMUR's trainer calls a network.
"""

import ast
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.teaching_model import Tokens
from curate.compute.runs import PRM, RUN, NetFailure, build_case, open_box, read_answer
from lemur_core.sandbox import Job, Limits
from lemur_core.sandbox.stage import Retries

#: Tokens of a window that counts as copied if it was learned.
COPIED = 8

_TASK, _DATASET, _TRANSFORM = "img-classification", "cifar-10", "norm_64"

_CONSTRUCTED = ("forward_failed", "wrong_output", "not_finite")
_LIMITS = Limits(wall_seconds=120, cpu_seconds=30, memory_bytes=4 * 2**30)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


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
    case = build_case(_TASK, _DATASET, _TRANSFORM)
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
