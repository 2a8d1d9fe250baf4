"""The peers of `benchmarks.sandbox`, without any confinement: `python -m benchmarks.sandbox_entry ROUNDS`.

One process imports what a server imports. It traces a small network again and again, forks children that end at once,
and children that trace the network. Prints the CPU milliseconds of each, of parent and child, as JSON.
"""

import gc
import importlib
import json
import os
import resource
import statistics
import sys
from collections.abc import Callable
from typing import Any

from lemur_core.sandbox import META_PRELOAD

ENTRY = "lemur_core.graphs.networks.trace:trace_network"
_CODE = """
from torch import nn

class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__()
        self.conv = nn.Conv2d(in_shape[1], 8, 3)
        self.head = nn.Linear(8, out_shape[0])

    def forward(self, x):
        return self.head(self.conv(x).relu().mean((2, 3)))
"""
_CASE = {"in_shape": [1, 3, 16, 16], "out_shape": [10], "dtype": "float32", "values": [0, 1], "words": 0}
NETWORK: dict[str, Any] = {"code": _CODE, "prm": {}, "cases": [_CASE | {"output": [1, 10]}]}


def answer_nothing(_payload: dict[str, object]) -> None:
    """Return at once: what is left of a job is the sandbox."""


def measure(call: Callable[[], object], rounds: int) -> float:
    """Return the median of the CPU milliseconds of a call, of its children, too."""
    costs = []
    for _ in range(rounds):
        before = _read_seconds()
        call()
        costs.append(1000 * (_read_seconds() - before))
    return statistics.median(costs)


def _read_seconds() -> float:
    usages = [resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _fork(call: Callable[[], object]) -> None:
    child = os.fork()
    if child == 0:
        call()
        os._exit(0)
    os.waitpid(child, 0)


def main(rounds: int) -> None:
    """Measure and print."""
    for name in META_PRELOAD:
        importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    module, _, function = ENTRY.partition(":")
    trace = getattr(importlib.import_module(module), function)
    gc.collect()
    gc.freeze()
    costs = {
        "an empty fork": measure(lambda: _fork(lambda: None), rounds),
        "the trace in a fork": measure(lambda: _fork(lambda: trace(NETWORK)), rounds),
    }
    trace(NETWORK)
    costs["the trace in a warm process"] = measure(lambda: trace(NETWORK), rounds)
    print(json.dumps(costs))


if __name__ == "__main__":
    main(int(sys.argv[1]))
