"""Exported blocks in KernelBench's own harness: `python -m benchmarks.kernelbench PROBLEMS KERNELBENCH`.

PROBLEMS is a folder of `lemur export --format kernelbench`, KERNELBENCH a clone of its repository, also a bare one.
Each problem is read by the harness's `LocalKernelBenchDataset`, and its own `Model`, renamed `ModelNew`, is the kernel.
With CUDA, `eval_kernel_against_ref` judges as for any kernel (five trials). Without, that function refuses; its parts
do the same on the CPU: `load_original_model_and_inputs`, `load_custom_model` and `run_and_check_correctness`, whose
calls of `torch.cuda.synchronize` do nothing then. A case beyond the first is judged in the same way, as if it were the
only one. The packages that the harness imports are installed into an environment in the cache. Each problem runs in a
process of its own, as this user: only for sources that you trust.
"""

import argparse
import contextlib
import importlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.environment import make_environment

_PACKAGES = ("python-dotenv", "openai", "litellm")
_SECONDS = 300
_TRIALS = 5
_ALONE = "--alone"


def main() -> None:
    """Judge every problem, and print the outcomes."""
    if sys.argv[1] == _ALONE:
        print(json.dumps(judge(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", type=Path)
    parser.add_argument("repository", type=Path, help="a clone of KernelBench, or a bare one")
    parser.add_argument("--limit", type=int, default=40)
    options = parser.parse_args()
    outcomes: dict[str, list[str]] = {}
    python = make_environment("kernelbench", [_PACKAGES], ", ".join(_PACKAGES))
    with tempfile.TemporaryDirectory() as scratch:
        harness = unpack(options.repository, Path(scratch))
        numbers = sorted(int(path.name.partition("_")[0]) for path in (options.problems / "level1").glob("*_*.py"))
        for number in numbers[: options.limit]:
            name, results = run_alone(python, harness, options.problems, number)
            outcomes[name] = results
            print(f"{name}: {'; '.join(results)}", flush=True)
    print_summary(outcomes)


def unpack(repository: Path, scratch: Path) -> Path:
    """Copy the harness's files out of the repository without its package file, which needs all its requirements."""
    git = ["git", "-C", str(repository), "archive", "HEAD", "src/kernelbench"]
    packed = subprocess.run(git, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(scratch, filter="data")
    return scratch / "src"


def run_alone(python: Path, harness: Path, problems: Path, number: int) -> tuple[str, list[str]]:
    """Return the name of a problem, and the outcome of each of its cases."""
    command = [str(python), "-P", "-m", "benchmarks.kernelbench", _ALONE, str(harness), str(problems), str(number)]
    # litellm waits for a list of prices from the network otherwise.
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False, env=here)
    except subprocess.TimeoutExpired:
        return str(number), [f"more than {_SECONDS} s"]
    if done.returncode:
        return str(number), [
            f"process: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode}"
        ]
    answer = json.loads(done.stdout.splitlines()[-1])
    return answer["name"], answer["results"]


def judge(harness: Path, problems: Path, number: int) -> dict[str, Any]:
    """Return the harness's judgment of each case of a problem with its own model as the kernel."""
    sys.path.insert(0, str(harness))
    dataset: Any = importlib.import_module("kernelbench.dataset")
    evaluation: Any = importlib.import_module("kernelbench.eval")

    problem = dataset.LocalKernelBenchDataset(1, base_path=str(problems)).get_problem_by_id(number)
    cases = int(match[1]) if (match := re.search(r"for case in range\((\d+)\)\.$", problem.code, re.MULTILINE)) else 1
    results = []
    for case in range(cases):
        source = problem.code.replace("def get_inputs(case=0):", f"def get_inputs(case={case}):")
        with contextlib.redirect_stdout(io.StringIO()):
            results.append(
                _judge_case(evaluation, source, source.replace("class Model(nn.Module):", "class ModelNew(nn.Module):"))
            )
    return {"name": problem.name, "results": results}


def _judge_case(evaluation: Any, source: str, kernel: str) -> str:
    import torch

    try:
        if torch.cuda.is_available():
            result = evaluation.eval_kernel_against_ref(source, kernel, num_correct_trials=_TRIALS, device=0)
        else:
            result = _judge_on_cpu(evaluation, torch, source, kernel)
    except Exception as error:  # noqa: BLE001 (foreign code may raise anything; it is the outcome)
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if result is not None and result.correctness:
        return "passed"
    facts = {} if result is None else result.metadata
    told = facts.get("correctness_issue") or facts.get("runtime_error") or facts.get("compilation_error") or "no result"
    return str(told).splitlines()[0]


def _judge_on_cpu(evaluation: Any, torch: Any, source: str, kernel: str) -> Any:
    """Do what `eval_kernel_against_ref` does, on the CPU: the same seeds, types and comparison."""
    torch.cuda.synchronize = lambda *_, **__: None
    context: dict[str, Any] = {}
    model, get_init_inputs, get_inputs = evaluation.load_original_model_and_inputs(source, context)
    evaluation.set_seed(42)
    init = [evaluation._process_input_tensor(value, "cpu") for value in get_init_inputs()]
    with torch.no_grad():
        evaluation.set_seed(42)
        original = model(*init)
        new = evaluation.load_custom_model(kernel, context)
        evaluation.set_seed(42)
        custom = new(*init)
    return evaluation.run_and_check_correctness(
        original, custom, get_inputs, {}, num_correct_trials=_TRIALS, seed=42, device=torch.device("cpu")
    )


def print_summary(outcomes: dict[str, list[str]]) -> None:
    """Print how many problems pass with their first case and with all, and why the others do not."""
    first = sum(results[0] == "passed" for results in outcomes.values())
    every = sum(all(result == "passed" for result in results) for results in outcomes.values())
    cases = sum(map(len, outcomes.values()))
    print(f"{len(outcomes)} problems: {first} pass, {every} in every one of their {cases} cases")
    refused = Counter(results[0].partition(":")[0] for results in outcomes.values() if results[0] != "passed")
    for reason, number in refused.most_common():
        print(f"  {number}  {reason}")


if __name__ == "__main__":
    main()
