"""Runs a command and measures it as a whole: wall seconds, CPU seconds and peak memory of its process tree."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from lemur_core.files.cache import cache_folder

_SAMPLE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Cost:
    """What a command took. `peak_mib` sums the resident sets of all its processes, sampled ten times a second."""

    wall: float
    cpu: float
    peak_mib: float

    def __str__(self) -> str:
        return f"{self.wall:8.1f} s wall  {self.cpu:8.1f} s CPU  {self.peak_mib:8,.0f} MiB peak"


def make_empty_cache(work: Path, kept: Sequence[str] = ("sources", "runtime")) -> dict[str, str]:
    """Return an environment in which nothing is cached but some rooms: the sources and the runtime of blocks.

    Args: work: a folder, in which the cache is made.
    """
    cache = work / "cache"
    cache.mkdir()
    for part in kept:
        (cache / part).symlink_to(cache_folder(part), target_is_directory=True)
    return {**os.environ, "LEMUR_CURATOR_CACHE": str(cache)}


def measure(command: Sequence[str], env: Mapping[str, str]) -> Cost:
    """Run to the end; its output goes to stderr. Exits when the command fails."""
    started = time.monotonic()
    before = children_cpu()
    process = psutil.Popen(command, env=dict(env), stdout=sys.stderr)
    peak = 0
    while process.poll() is None:
        peak = max(peak, _tree_memory(process))
        time.sleep(_SAMPLE_SECONDS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Cost(time.monotonic() - started, children_cpu() - before, peak / 2**20)


def _tree_memory(process: psutil.Popen) -> int:
    total = 0
    try:
        for member in (process, *process.children(recursive=True)):
            total += member.memory_info().rss
    except psutil.Error:  # it ended while it was looked at
        return 0
    return total


def children_cpu() -> float:
    """Return the CPU seconds of all processes that this one started and that ended."""
    times = psutil.Process().cpu_times()
    return float(times.children_user + times.children_system)
