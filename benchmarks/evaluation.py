"""An exported evaluation in its own runner: `python -m benchmarks.evaluation DIR`.

DIR is a folder of `lemur export --format eval`. It is put on a small server that speaks the Hub's protocol (that of the
tests), and `inspect_ai` runs `hf/OWNER/NAME` from there, with its own reading of `eval.yaml`, its own solvers and
scorers, and models of its kind `mockllm` instead of a language model: one that knows the answers, and one that always
gives the first. inspect-ai is installed into an environment in the cache.

Claims, each asserted: the model that knows gets 1.0 in every task, the other one as many as have that answer.
"""

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.environment import make_environment
from lemur_core.files.cache import cache_folder

_HERE, _REPO = "LEMUR_EVALUATION_HERE", "owner/questions"


def main() -> None:
    """Serve the folder, and run the evaluation in the environment."""
    folder = Path(sys.argv[1])
    if _HERE in os.environ:
        run_tasks(folder)
        return
    from tests.builders.hub_server import LFS, File, HubServer

    python = make_environment("evaluation", [("inspect-ai",)], "inspect-ai")
    hub = HubServer()
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    tree = {name: File(path.read_bytes(), lfs=name.endswith(LFS)) for name, path in files.items()}
    with hub.serve(), tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
        hub.make(_REPO).commit("main", tree)
        here = {_HERE: "1", "HF_ENDPOINT": hub.endpoint, "HF_HOME": scratch, "HF_HUB_DISABLE_XET": "1"}
        here |= {"INSPECT_LOG_DIR": f"{scratch}/logs", "PYTHONPATH": str(Path(__file__).parents[1])}
        command = [str(python), "-P", "-m", "benchmarks.evaluation", str(folder)]
        sys.exit(subprocess.run(command, env={**os.environ, **here}, check=False).returncode)


def run_tasks(folder: Path) -> None:
    """Run every task with both models, and print what each gets."""
    inspect_ai: Any = importlib.import_module("inspect_ai")
    tiktoken: Any = importlib.import_module("tiktoken")
    # It counts tokens for its log by a table from the network.
    tiktoken.get_encoding = _Words
    rows = [row for path in sorted(folder.glob("data/*/test-*.parquet")) for row in pq.read_table(path).to_pylist()]
    first = {"choices" in row: row["target"] for row in reversed(rows)}
    models: dict[str, Callable[[dict[str, Any]], str]]
    models = {"knows": lambda row: row["target"], "constant": lambda row: first["choices" in row]}
    for name, answer in models.items():
        for log in inspect_ai.eval(f"hf/{_REPO}", model=_model(rows, answer), display="none"):
            assert log.status == "success", log.error
            (score,) = log.results.scores
            accuracy = score.metrics["accuracy"].value
            task = log.eval.task.rpartition("/")[2]
            own = [row for path in folder.glob(f"data/{task}/*.parquet") for row in pq.read_table(path).to_pylist()]
            expected = sum(answer(row) == row["target"] for row in own) / len(own)
            print(f"inspect-ai {inspect_ai.__version__}, {task}, {score.name}: {name}: {accuracy:.3f} of {len(own)}")
            assert abs(accuracy - expected) < 1e-9, (accuracy, expected)


class _Words:
    """Counts words instead of tokens."""

    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self, text: str, **_: Any) -> list[str]:
        return text.split()


def _model(rows: list[dict[str, Any]], answer: Callable[[dict[str, Any]], str]) -> Any:
    """A model that answers each question as it is told to."""
    models: Any = importlib.import_module("inspect_ai.model")

    def respond(messages: Any, *_: Any) -> Any:
        asked = messages[-1].text
        row = next(row for row in rows if row["question"] in asked and all(o in asked for o in row.get("choices", ())))
        return models.ModelOutput.from_content("mockllm/model", f"I looked at it.\n\nANSWER: {answer(row)}")

    return models.get_model("mockllm/model", custom_outputs=respond, memoize=False)


if __name__ == "__main__":
    main()
