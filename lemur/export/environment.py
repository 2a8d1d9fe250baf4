"""Requests to write networks, as an environment of `verifiers`: the reward is the share of the ten steps that pass.

The folder is an installable package with `load_environment()` and its data set, without source text of a block.

Source: verifiers 0.1.14 (https://github.com/PrimeIntellect-ai/verifiers); 0.4.0 reads a `Taskset` instead
"""

import json
from collections import Counter
from pathlib import Path

from lemur.export.records import ExportContents, NetworkRequest
from lemur.synthesis.attempts.options import AttemptOptions
from lemur.synthesis.attempts.plan import draw, list_eligible
from lemur.synthesis.attempts.prompts import first_messages
from manifests.records import ChatMessage

#: Name of the package, as `vf-eval` takes it.
PACKAGE = "lemur_networks"

_MODULE = '''"""Write PyTorch networks with measured blocks. Needs lemur-curator, and Linux for its sandbox."""

import asyncio
from pathlib import Path

import verifiers as vf
from datasets import Dataset

from lemur import Grader

_HERE = Path(__file__).parent


def load_environment(against=(), jobs=1, max_examples=None):
    """Return the environment.

    Args:
        against: folders of extractions and snapshots whose networks are no novelty; none by default, then the last of
            the ten steps passes.
        jobs: processes that check one answer.
        max_examples: the number of requests; all by default.
    """
    folder = next(path for path in (_HERE / "data", _HERE.parent / "data") if path.is_dir())
    rows = Dataset.from_parquet([str(path) for path in sorted(folder.glob("requests/*.parquet"))])
    rows = rows.select(range(min(len(rows), max_examples or len(rows))))
    info = [{"block": row["block"], "spec": row["spec"], "arguments": row["arguments"]} for row in rows]
    data = Dataset.from_dict({"prompt": rows["prompt"], "info": info, "answer": [""] * len(rows)})
    grader = Grader(against=against, jobs=jobs)

    async def steps_passed(completion, info, state):
        text = completion if isinstance(completion, str) else str(dict(completion[-1]).get("content") or "")
        grade = state["grade"] = await asyncio.to_thread(grader.grade, text, [info])
        return grade.score

    async def accepted(state):
        return float(state["grade"].failed is None)

    return vf.SingleTurnEnv(dataset=data, rubric=vf.Rubric(funcs=[steps_passed, accepted], weights=[1.0, 0.0]))
'''

_PROJECT = f"""\
[project]
name = "{PACKAGE.replace("_", "-")}"
version = "1"
requires-python = ">=3.11"
dependencies = ["lemur-curator", "verifiers>=0.1.14,<0.2"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["{PACKAGE}"]

[tool.hatch.build.targets.wheel.force-include]
data = "{PACKAGE}/data"
"""


def export_environment(library: Path) -> ExportContents:
    """Return one request for each block of a library that `lemur synthesize` could ask for, as a package.

    Raises: UserError if no block is eligible, or the library is damaged.
    """
    options = AttemptOptions(attempts=len(list_eligible(library, AttemptOptions())))
    rows = []
    for attempt in sorted(draw(library, options)[0], key=lambda attempt: attempt.requested[0].spec.block):
        (block,) = attempt.requested
        rows.append(
            NetworkRequest(
                prompt=tuple(map(ChatMessage.model_validate, first_messages(attempt))),
                block=block.spec.block,
                spec=block.spec.model_dump_json(),
                arguments=json.dumps(block.arguments),
                license=block.spec.license,
                code_sha256=block.spec.code_sha256,
            )
        )
    about = (
        "Each row asks for a network that uses one block, from measured facts about it. An answer is graded by the ten"
        " steps of `lemur synthesize`: the reward is the share of them that it passes before the first failure.",
        f"The folder is an environment for [verifiers](https://pypi.org/project/verifiers/) 0.1: `pip install .` in it,"
        f" then `vf-eval {PACKAGE.replace('_', '-')}`, or `load_environment()` in `{PACKAGE}`. Answers run in the"
        " sandbox of lemur-curator. There is no held-out split.",
    )
    files = {f"{PACKAGE}/__init__.py": _MODULE, "pyproject.toml": _PROJECT}
    return ExportContents({"requests": {"train": rows}}, Counter(), about, files)
