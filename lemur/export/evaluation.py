"""Held-out questions with exact answers, as a data set with the Hub's `eval.yaml`: nothing is executed to score them.

| task | from | answer |
|---|---|---|
| `choose` | an extraction's conversations `choose` | the letter of the module that fits |
| `shapes` | an extraction's conversations `shapes` | the shape of the output that was observed |
| `fault_line` | a snapshot's conversations `repair` | the number of the line with the fault |

Only the split `test` is asked. `inspect eval hf/OWNER/NAME` runs the file after `lemur publish`.

Source: inspect_ai, `HFTask` in src/inspect_ai/_eval/task/hf.py
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from lemur.export.conversations import list_conversations
from lemur.export.records import Choice, ExportContents, ExportQuestion, NetworkRequest
from lemur.synthesis.attempts.options import AttemptOptions
from lemur.synthesis.attempts.plan import draw, list_eligible
from lemur.synthesis.attempts.prompts import first_messages
from lemur_core.files import Json
from manifests.records import ChatMessage

_OPTION = re.compile(r"^([A-D])\. (.*)$", re.MULTILINE)
_SHAPE = re.compile(r"\d+(?:×\d+)+")
_LINE = re.compile(r"\A(?P<kind>\w+) line (?P<line>\d+)\Z")
#: Faults that are a missing line: no line of the file holds them.
_MISSING = ("missing_import", "missing_super", "missing_flatten")
_ANSWER = 'Reply with a last line of the form "ANSWER: $ANSWER" (without quotes), where $ANSWER is {what}.'


@dataclass(frozen=True, slots=True)
class _QuestionForm:
    """How a kind of conversation becomes a question, and how `eval.yaml` has it asked and scored."""

    kind: str
    build: Callable[[Json], ExportQuestion | None]
    solvers: tuple[Json, ...] = ({"name": "generate"},)
    scorers: tuple[Json, ...] = ({"name": "answer", "args": {"pattern": "line"}},)
    choices: bool = False

    def state(self, name: str) -> Json:
        """Return the entry of `eval.yaml`."""
        fields = {"input": "question", "target": "target", **({"choices": "choices"} if self.choices else {})}
        steps = {"solvers": list(self.solvers), "scorers": list(self.scorers)}
        return {"id": name, "config": name, "split": "test", "field_spec": {**fields}, **steps}


def _ask_choice(row: Json) -> Choice | None:
    """Return the question without its options, and the letter with which the answer begins."""
    question, answer = (message["content"] for message in row["messages"][1:])
    options = _OPTION.findall(question)
    if [letter for letter, _ in options] != list("ABCD") or answer[:1] not in "ABCD":
        return None
    head = question[: question.index("\nA. ")].strip()
    return Choice(question=head, target=answer[0], choices=tuple(text for _, text in options), **_facts(row))


def _ask_shape(row: Json) -> ExportQuestion | None:
    """Return the question about a call, if its answer states exactly one shape."""
    question, answer = (message["content"] for message in row["messages"][1:])
    shapes = _SHAPE.findall(answer)
    if len(shapes) != 1:
        return None
    what = "the shape as numbers with an x between them, such as 2x16x8x8"
    text = f"{question}\n\n{_ANSWER.format(what=what)}"
    return ExportQuestion(question=text, target=shapes[0].replace("×", "x"), **_facts(row))


def ask_line(row: Json) -> ExportQuestion | None:
    """Return the request to find a fault; none if the fault is a missing line."""
    fault = _LINE.match(row["variant"])
    if fault is None or fault["kind"] in _MISSING:
        return None
    request = row["messages"][1]["content"].partition("\n\n")[2]
    what = "the number of the line with the fault, counted from 1 at the first line of the file"
    question = (
        f"One line of the file below was changed, and it fails. Which one?\n\n{request}\n\n{_ANSWER.format(what=what)}"
    )
    return ExportQuestion(question=question, target=fault["line"], **_facts(row))


def _facts(row: Json) -> Json:
    return {name: row[name] for name in ("id", "license", "code_sha256")}


_TASKS: Mapping[str, Mapping[str, _QuestionForm]] = {
    "extraction": {
        "choose": _QuestionForm(
            "choose", _ask_choice, ({"name": "multiple_choice"},), ({"name": "choice"},), choices=True
        ),
        "shapes": _QuestionForm("shapes", _ask_shape),
    },
    "snapshot": {"fault_line": _QuestionForm("repair", ask_line)},
}


def export_evaluation(folder: Path, kind: str) -> ExportContents:
    """Return the questions that the held-out conversations of a snapshot or an extraction answer.

    Raises: UserError if it has no conversations.
    """
    held = [row for split, row in list_conversations(folder, kind) if split == "test"]
    tables: dict[str, dict[str, list[ExportQuestion]]] = {}
    skipped: Counter[str] = Counter()
    for name, task in _TASKS[kind].items():
        built = [task.build(row) for row in held if row["task"] == task.kind]
        tables[name] = {"test": [question for question in built if question is not None]}
        skipped[f"{name}: the conversation has no single exact answer"] += built.count(None)
    stated = {
        "name": "Questions about PyTorch modules and networks",
        "description": "Held-out questions whose answers were observed as code ran. Made by lemur-curator.",
        "evaluation_framework": "inspect-ai",
        "tasks": [task.state(name) for name, task in _TASKS[kind].items() if tables[name]["test"]],
    }
    about = (
        "The questions are conversations of the source folder's split `test`; none in its other splits has a Jaccard"
        " similarity of 0.90 or more with one of them. Every answer is exact, and follows from what was observed as the"
        " code ran in the sandbox.",
        "`eval.yaml` says how they are asked and scored: `inspect eval hf/OWNER/NAME --model MODEL`, or"
        " `hf/OWNER/NAME/TASK` for one of its tasks.",
    )
    return ExportContents(
        tables, +skipped, about, {"eval.yaml": yaml.safe_dump(stated, sort_keys=False, allow_unicode=True)}
    )


# Requests to write networks, as an environment of `verifiers`: the reward is the share of the ten steps that pass.
# The folder is an installable package with `load_environment()` and its data set, without source text of a block.
# Source: verifiers 0.1.14 (https://github.com/PrimeIntellect-ai/verifiers); 0.4.0 reads a `Taskset` instead

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
