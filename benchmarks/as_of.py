"""What old releases gain from packages of their day: each extracted with today's, and with `--as-of` the day.

    python -m benchmarks.as_of FILE.json [N]

Of the newest release of the day of each package, eight random classes that import other packages; of all packages, or
of the first N. The list, in random order, was made before any of them was looked at. CPU seconds hold fetching and
unpacking. Local folders of wheels, which state no upload times, must be out of pip's settings.
"""

import json
import os
import platform
import random
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from extract.model.blocks import read_blocks
from lemur_core.files.atomic import write_text
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
_CLASSES = 8


def _run(*command: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run a command, and return its CPU seconds, too."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def compare(package: str, day: str) -> dict[str, Any]:
    """Extract classes of a release that import other packages in both ways, once it is fetched and indexed."""
    done, _ = _run(sys.executable, "-m", "pip", "index", "versions", package, "--uploaded-prior-to", f"{day}T00:00:00Z")
    version = done.stdout.partition("(")[2].partition(")")[0]
    result: dict[str, Any] = {"release": f"{package}@{version}", "day": day}
    chosen: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        ways = {"index": ("emitted",), "today": ("forward",), "as_of": ("forward", "--as-of", day)}
        for way, level in ways.items():
            about = ("--source", result["release"], "--out", f"{scratch}/{way}", "--level", *level)
            done, seconds = _run(_LEMUR, "extract", *chosen, *about, "--jobs", "1", "--json")
            if done.returncode:
                return result | {"error": done.stderr.strip().splitlines()[-1]}
            if way == "index":
                rows = read_blocks(Path(scratch, way), ("block", "requires"))
                importing = sorted(row.block for row in rows if row.requires)
                chosen = random.Random(0).sample(importing, min(_CLASSES, len(importing)))
                if not chosen:
                    return result | {"error": "no class imports another package"}
                continue
            manifest = json.loads(done.stdout)
            counts, details = manifest["counts"]["reached"], manifest["details"]
            result[way] = {name: counts[name] for name in ("emitted", "executed", "forward")}
            result[way] |= {"cpu_seconds": seconds, "releases": details["days"] or details["installed_for_execution"]}
    return result


def main() -> None:
    """Write the record, anew after each package."""
    path, count = Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else len(DAYS)
    cpu = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    record: dict[str, Any] = {
        "command": f"python -m benchmarks.as_of FILE {count}",
        "commit": subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip(),
        "versions": {name: find_runtime().versions[name] for name in ("torch", "torchvision", "numpy")},
        "python": platform.python_version(),
        "processor": f"{cpu[1] if cpu else platform.machine()}, {os.cpu_count()} cores",
        "results": [],
    }
    for package, day in list(DAYS.items())[:count]:
        record["results"].append(compare(package, day))
        compared = [result for result in record["results"] if result.get("today", {}).get("emitted")]
        record["totals"] = {"releases": len(compared), "classes": sum(one["today"]["emitted"] for one in compared)} | {
            f"forward {way}": sum(one[way]["forward"] for one in compared) for way in ("today", "as_of")
        }
        write_text(path, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
