"""Benchmarks that need neither a GPU nor a folder, in turn: `make bench`. The documents have figures of others, too.

A comparison takes about half an hour, growth to a million records an hour.
"""

import subprocess
import sys

COMMANDS = (
    ["benchmarks.quality"],
    ["benchmarks.versus_nndup"],
    ["benchmarks.graphs"],
    ["benchmarks.growth"],
    ["benchmarks.sandbox"],
    ["benchmarks.training"],
    ["benchmarks.finetune"],
)

if __name__ == "__main__":
    for command in COMMANDS:
        print(f"== python -m {' '.join(command)}", flush=True)
        subprocess.run([sys.executable, "-m", *command], check=True)
