"""What old releases gain from packages of their day: each extracted with today's, and with `--as-of` the day.

    python -m benchmarks.as_of [N] > docs/records/as_of.json

A package is taken in its newest release of the day, and the first N packages of the list, all of them by default. The
list, in random order, was made before any of them was looked at. CPU seconds hold fetching and unpacking. Local folders
of wheels, which state no upload times, must be out of pip's settings.
"""

import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lemur_core.sandbox.runtime import find_runtime

DAYS = {
    "pytorchvideo": "2021-12-01", "segmentation-models-pytorch": "2020-09-01", "asteroid": "2020-12-01",
    "monai": "2021-12-01", "speechbrain": "2022-06-01", "lightning-bolts": "2021-06-01",
    "x-transformers": "2020-12-01", "fairseq": "2019-09-01", "mmcls": "2021-12-01", "flair": "2020-06-01",
    "performer-pytorch": "2021-03-01", "dalle-pytorch": "2021-09-01", "basicsr": "2022-09-01",
    "pytorch-tabular": "2021-03-01", "tsai": "2022-06-01", "anomalib": "2023-03-01",
    "sentence-transformers": "2020-12-01", "torch-geometric": "2019-12-01", "vit-pytorch": "2021-06-01",
    "pytorch-forecasting": "2021-09-01",
}  # fmt: skip
_LEMUR = str(Path(sys.executable).with_name("lemur"))
_OPTIONS = ("--limit", "8", "--jobs", "1", "--json")


def _run(*command: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run a command, and return its CPU seconds, too."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def compare(package: str, day: str) -> dict[str, Any]:
    """Extract a release in both ways, once it is fetched and indexed."""
    done, _ = _run(sys.executable, "-m", "pip", "index", "versions", package, "--uploaded-prior-to", f"{day}T00:00:00Z")
    version = done.stdout.partition("(")[2].partition(")")[0]
    result: dict[str, Any] = {"release": f"{package}@{version}", "day": day}
    with tempfile.TemporaryDirectory() as scratch:
        ways = {"index": ("discovered",), "today": ("forward",), "as_of": ("forward", "--as-of", day)}
        for way, level in ways.items():
            about = ("--source", result["release"], "--out", str(Path(scratch, way)), "--level", *level)
            done, result[f"{way}_seconds"] = _run(_LEMUR, "extract", *about, *_OPTIONS)
            if done.returncode:
                return result | {"error": done.stderr.strip().splitlines()[-1]}
            manifest = json.loads(done.stdout)
            counts, details = manifest["counts"]["reached"], manifest["details"]
            result[way] = {name: counts[name] for name in ("discovered", "executed", "forward")}
            result[f"{way}_releases"] = details.get("days") or details.get("installed_for_execution")
    return result


def main() -> None:
    """Write the record, and on standard error what there is so far."""
    count = int(sys.argv[1]) if sys.argv[1:] else len(DAYS)
    results = []
    for package, day in list(DAYS.items())[:count]:
        results.append(compare(package, day))
        print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    cpu = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    about = {
        "command": f"python -m benchmarks.as_of {count}",
        "commit": subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip(),
        "versions": {name: find_runtime().versions[name] for name in ("torch", "torchvision", "numpy")},
        "python": platform.python_version(),
        "processor": f"{cpu[1] if cpu else platform.machine()}, {os.cpu_count()} cores",
    }
    print(json.dumps(about | {"results": results}, indent=1))


if __name__ == "__main__":
    main()
