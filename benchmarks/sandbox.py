"""What the walls cost: opening a sandbox and running a job in it, against an interpreter of its own for each job.

    python -m benchmarks.sandbox [JOBS]

Both import torch, torchvision and NumPy and call one small module. The peer is plain `python -c`, without any walls.
"""

import argparse
import statistics
import subprocess
import sys
import time

from lemur_core.sandbox import Job, Sandbox, Status

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


if __name__ == "__main__":
    main()
