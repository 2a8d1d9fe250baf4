"""CPU seconds of one class: with an empty cache, of another class of the same package, and of the same once more.

    python -m benchmarks.one_class [PACKAGE FIRST SECOND] [--rounds 1]

Each number is user and system time of the whole process tree. Downloads, unpacking and the index count in the first.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import measure

STEPS = ("cold", "another", "again")


def main() -> None:
    """Measure, and print one line a round."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("classes", nargs="*", default=["timm@1.0.30", "SEModule", "CbamModule"])
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    package, first, second = arguments.classes
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "LEMUR_CURATOR_CACHE": str(Path(folder, "cache"))}
            environment.pop("PYTHONDONTWRITEBYTECODE", None)  # it compiles our own modules in each process
            command = [str(Path(sys.executable).with_name("lemur")), "extract", "--source", package, "--force"]
            out = ["--out", str(Path(folder, "blocks"))]
            costs = [measure([*command, name, *out], environment) for name in (first, second, first)]
        load = os.getloadavg()[0]
        text = ", ".join(f"{step} {cost.cpu:.1f}" for step, cost in zip(STEPS, costs, strict=True))
        print(f"{package} {first}, {second}: {text} CPU s (load {load:.1f})", flush=True)


if __name__ == "__main__":
    main()
