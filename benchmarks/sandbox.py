"""What the walls cost: opening a sandbox and running a job in it, against an interpreter of its own for each job.

    python -m benchmarks.sandbox [JOBS]

Both import torch, torchvision and NumPy and call one small module. The peer is plain `python -c`, without any walls.
Then, in CPU milliseconds, a job that traces a small network and one that does nothing, against forks without walls of a
process that has imported the same, and the same trace in a warm process (`benchmarks.sandbox_entry`).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping

import psutil

from benchmarks.sandbox_entry import ENTRY, NETWORK
from lemur_core.sandbox import META_PRELOAD, Job, Sandbox, Status

_ENTRY = "extract.arguments.search_guest:search_arguments"
_CODE = """
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return self.conv(x)
"""
_PLAIN = f"import torch, torchvision, numpy\n{_CODE}\nBlock()(torch.randn(2, 3, 16, 16)).sum().backward()\n"
_OPENINGS = 3
_EMPTY = "benchmarks.sandbox_entry:answer_nothing"
_SETTLED = 50  # jobs after which a server's memory is as it stays


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("jobs", nargs="?", type=int, default=40)
    count = arguments.parse_args().jobs
    openings, each, plain = [], [], []
    for _ in range(_OPENINGS):
        started = time.perf_counter()
        with Sandbox(entries=[_ENTRY], workers=1) as box:
            openings.append(time.perf_counter() - started)
            started = time.perf_counter()
            payload: dict[str, object] = {"code": _CODE, "name": "Block", "goal": "backward"}
            outcomes = list(box.run(Job(str(number), _ENTRY, payload) for number in range(count)))
            each.append((time.perf_counter() - started) / count)
        assert all(outcome.status is Status.OK for outcome in outcomes)
        started = time.perf_counter()
        subprocess.run([sys.executable, "-P", "-c", _PLAIN], check=True)
        plain.append(time.perf_counter() - started)
    opening, job, alone = map(statistics.median, (openings, each, plain))
    print(f"opening a sandbox   {opening:7.2f} s")
    print(f"a job in it         {1000 * job:7.0f} ms, its search for arguments included")
    print(f"a plain interpreter {alone:7.2f} s: {alone / opening:.1f} times an opening, {alone / job:.0f} times a job")
    _print_cpu(count)


def _print_cpu(count: int) -> None:
    """Print the CPU time of jobs and of their peers."""
    known = {process.pid for process in psutil.Process().children()}
    with Sandbox(preload=META_PRELOAD, entries=[ENTRY, _EMPTY], workers=1) as box:
        server = next(process for process in psutil.Process().children() if process.pid not in known)
        print(f"{'starting a server':28} {_read_cpu(server):7.0f} ms CPU")
        kinds: dict[str, tuple[str, Mapping[str, object]]] = {
            "a job that traces": (ENTRY, NETWORK),
            "a job that does nothing": (_EMPTY, {}),
        }
        costs = {f"{name}, the first {_SETTLED}": _run(box, server, *kinds[name], _SETTLED) for name in list(kinds)[:1]}
        costs |= {name: _run(box, server, *kind, count) for name, kind in kinds.items()}
    command = [sys.executable, "-P", "-m", "benchmarks.sandbox_entry", str(count)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
    with tempfile.TemporaryDirectory() as scratch:  # the trace writes its network there
        run = subprocess.run(command, check=True, capture_output=True, text=True, cwd=scratch, env=environment)
    costs |= json.loads(run.stdout)
    for name, cost in costs.items():
        print(f"{name:32} {cost:7.1f} ms CPU  {cost / costs['an empty fork']:5.1f} empty forks")


def _run(box: Sandbox, server: psutil.Process, entry: str, payload: Mapping[str, object], count: int) -> float:
    """Return the mean of the CPU milliseconds of equal jobs."""
    before = _read_cpu(server)
    outcomes = list(box.run(Job(str(number), entry, dict(payload)) for number in range(count)))
    assert all(outcome.status is Status.OK for outcome in outcomes)
    return (_read_cpu(server) - before) / count


def _read_cpu(server: psutil.Process) -> float:
    """Return the CPU milliseconds of a server and of the jobs that have ended."""
    return 1000.0 * sum(server.cpu_times()[:4])


if __name__ == "__main__":
    main()
