"""Every figure of README and docs/measured.md, measured on one state: `make measure`.

    python -m benchmarks.all [NAME ...] [--seed HEX] [--names FILE] [--paritybench CHECKOUT] [--work FOLDER] [--list]

Each step is a command whose record is written to `docs/records/NAME.json`: command, commit, versions, processor, CPU
and wall seconds, and what was printed. The commit is the newest that changed the product, its benchmarks or what is
installed. A step that has a record of it is not run again, so the same command goes on after an interruption; what
steps make for each other lies in FOLDER. The minutes are estimates for two idle cores: about three hours in all.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.measure import children_cpu, make_empty_cache
from lemur_core.files.atomic import write_text
from lemur_core.files.progress import note

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs" / "records"
#: What a record is of: files elsewhere change no figure.
_PACKAGES = ("lemur", "extract", "curate", "train", "manifests", "lemur_core")
_MEASURED = (*_PACKAGES, "benchmarks", "constraints.txt", "pyproject.toml")
_VERSIONS = ("lemur-curator", "torch", "torchvision", "numpy", "scipy", "pyarrow", "datasketch", "nn-dup")
_TRANSFORMERS = "transformers==5.24.0"


@dataclass(frozen=True, slots=True)
class Step:
    """A command in words, as a reader would type it in FOLDER; `{}` stands for what was given.

    minutes: about so long on two idle cores. cold: without any cache but those rooms; None: the user's cache.
    before: what makes the input, not measured. needs: options without which the step cannot run.
    """

    name: str
    command: str
    minutes: int
    cold: tuple[str, ...] | None = None
    before: tuple[str, ...] = ()
    needs: str = ""


#: In this order, since later ones read what earlier ones wrote.
STEPS = (
    Step("first-block", "lemur extract SEModule --source timm@1.0.30 --out blocks --force", 1, cold=()),
    Step("first-snapshot", "lemur curate lemur --include rl --graph off --out rl --force", 1, cold=()),
    Step("snapshot", "lemur curate lemur --out snapshot --force", 10, cold=("lemur",)),
    Step("novelty", "python -m benchmarks.novelty snapshot", 2),
    Step("gate", "python -m benchmarks.gate --against lemur lemur@2.0.4", 3),
    Step("twins", "python -m benchmarks.twins snapshot", 8),
    Step("removals", "python -m benchmarks.twins snapshot --removals", 2),
    Step("versus_nndup", "python -m benchmarks.versus_nndup snapshot", 45),
    Step(
        "targets",
        "lemur extract --corpus paper --names {names} --out targets --force",
        45,
        cold=("sources", "runtime"),
        needs="names",
    ),
    Step("search", "python -m benchmarks.search targets", 3),
    Step("facts", "python -m benchmarks.facts targets --blocks 200", 5),
    Step("calls-run", "lemur verify targets", 8),
    Step("ablation", "python -m benchmarks.ablation", 1),
    Step("frontier", "python -m benchmarks.frontier table {docs}/frontier/results.jsonl", 1),
    Step("pages", "python -m benchmarks.pages snapshot targets", 1),
    Step("draw", "python -m benchmarks.draw {seed} --pool {pool}", 8, needs="seed"),
    Step("versus_plain", "python -m benchmarks.versus_plain", 6),
    Step("versus_paritybench", "python -m benchmarks.versus_paritybench {paritybench}", 10, needs="paritybench"),
    Step(
        "search_modular",
        "python -m benchmarks.search_modular unpacked/transformers",
        1,
        before=(
            f"python -m pip download -q --no-deps {_TRANSFORMERS} -d wheels",
            "python -m zipfile -e wheels/*.whl unpacked",
        ),
    ),
    Step("oracle", "python -m benchmarks.oracle compare oracle sampled demo; test $? -le 1", 12),
)


def main() -> None:
    """Run the steps that have no record of this state."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--seed", metavar="HEX", help="of the blind draw, which is not made without")
    parser.add_argument("--pool", type=Path, default=ROOT.parent / "shared" / "pool.txt", help="packages to draw from")
    parser.add_argument("--names", type=Path, help="JSON list of NN-RAG's 1,287 target names")
    parser.add_argument("--paritybench", type=Path, metavar="CHECKOUT", help="a clone of its repository")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "measure", metavar="FOLDER")
    parser.add_argument("--list", action="store_true", help="print the steps and their minutes")
    given = parser.parse_args()
    unknown = set(given.steps) - {step.name for step in STEPS}
    if unknown:
        parser.error(f"no step {', '.join(sorted(unknown))}; there are {', '.join(step.name for step in STEPS)}")
    steps = [step for step in STEPS if not given.steps or step.name in given.steps]
    if given.list:
        print("".join(f"{step.minutes:4} min  {step.name:20} {step.command}\n" for step in steps), end="")
        print(f"{sum(step.minutes for step in steps):4} min  in all")
        return
    default = ROOT.parent / "shared" / "data" / "paper-targets.json"
    given.names = given.names or (default if default.exists() else None)
    commit = measured_commit()
    failed = [step.name for step in steps if not run_step(step, given, commit)]
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


def measured_commit() -> str:
    """Return the newest commit that changed what is measured. Raises: SystemExit if there are further changes."""
    changed = _git("status", "--porcelain", "--", *_MEASURED)
    if changed:
        sys.exit(f"commit these changes first, so that a record can name its state:\n{changed}")
    return _git("log", "-1", "--format=%H", "--", *_MEASURED)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def run_step(step: Step, given: argparse.Namespace, commit: str) -> bool:
    """Measure a step, unless that is done, and return whether there is a record of this state."""
    path = RECORDS / f"{step.name}.json"
    if path.exists() and json.loads(path.read_text(encoding="utf-8")).get("commit") == commit:
        note(f"{step.name}: measured already")
        return True
    if step.needs and not getattr(given, step.needs):
        note(f"{step.name}: needs --{step.needs}")
        return False
    note(f"{step.name}: about {step.minutes} minutes")
    given.work.mkdir(parents=True, exist_ok=True)
    path_of = {"docs": ROOT / "docs"}
    path_of |= {
        name: getattr(given, name).resolve() for name in ("names", "pool", "paritybench") if getattr(given, name)
    }
    for command in step.before:
        _shell(command, given.work, os.environ, subprocess.DEVNULL)
    env = dict(os.environ)
    if step.cold is not None:
        place = given.work / "caches" / step.name
        shutil.rmtree(place, ignore_errors=True)  # an interrupted run left it half full
        place.mkdir(parents=True)
        env = make_empty_cache(place, step.cold)
    started, before = time.monotonic(), children_cpu()
    done = _shell(step.command.format(seed=given.seed, **path_of), given.work, env, subprocess.PIPE)
    result = read_result(done.stdout)
    if done.returncode or not result:
        note(f"{step.name}: exit {done.returncode}")
        return False
    record = {
        "command": step.command.format(seed=given.seed, **{name: path.name for name, path in path_of.items()}),
        "commit": commit,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _VERSIONS},
        "processor": processor(),
        "load": round(os.getloadavg()[2], 1),
        "cpu_seconds": round(children_cpu() - before),
        "wall_seconds": round(time.monotonic() - started),
        "result": result,
    }
    write_text(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return True


def _shell(command: str, work: Path, env: Any, stdout: int) -> subprocess.CompletedProcess[str]:
    """Run a command with this interpreter's programs and this checkout's benchmarks."""
    words = f'export PYTHONPATH={ROOT} PATH={Path(sys.executable).parent}:"$PATH"; {command}'
    return subprocess.run(["bash", "-c", words], cwd=work, env=env, stdout=stdout, text=True, check=False)


def read_result(printed: str) -> Any:
    """Return what a command printed: its JSON, or its lines."""
    try:
        return json.loads(printed)
    except json.JSONDecodeError:
        return [line.rstrip() for line in printed.splitlines() if line.strip()]


def processor() -> str:
    """Return the name of the processor and how many cores may be used."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return f"{(names or [platform.machine()])[0]}, {len(os.sched_getaffinity(0))} cores"


if __name__ == "__main__":
    main()
