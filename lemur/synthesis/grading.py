"""Grade single answers by the steps of a synthesis, as a reward for training or evaluating a model."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lemur.synthesis.attempts.loop import AnswerError, code_in
from lemur.synthesis.attempts.plan import Attempt, RequestedBlock
from lemur.synthesis.attempts.steps import STEPS, NetworkProposal, Prover
from lemur_core.files.atomic import PathLike
from lemur_core.files.errors import UserError
from lemur_core.files.progress import hide_progress
from manifests.records import Spec


@dataclass(frozen=True, slots=True)
class Grade:
    """The outcome of an answer.

    Attributes:
        passed: the steps that it passed, in their order.
        failed: the step that it failed; None if it is accepted.
        error: how it failed.
    """

    passed: tuple[str, ...]
    failed: str | None
    error: str | None

    @property
    def score(self) -> float:
        """Return the share of the ten steps that it passed, from 0 to 1."""
        return len(self.passed) / len(STEPS)


class Grader:
    """Grade answers to the requests of `lemur export --format verifiers`, from any thread. A context manager.

    An answer is graded alone: equal answers get equal grades. Its code runs in the sandbox only.

    Args:
        against: extractions and snapshots that a network must be new to; without any, the last step passes.
        jobs: worker processes; all cores by default.
        unsafe_no_sandbox: run the networks without the sandbox; only for code that you trust.

    Raises:
        UserError: if a request cannot be read, a folder cannot be compared with, or no sandbox is available.

    Example:
        ```python
        from lemur import Grader
        from manifests import open_folder

        request = next(iter(open_folder("requests").rows("requests")))
        with Grader(against=["blocks"], jobs=1) as grader:
            grade = grader.grade("```python\nimport torch\n```", [request])
        print(grade.score, grade.failed, grade.error)
        ```
    """

    def __init__(
        self, *, against: Sequence[PathLike] = (), jobs: int | None = None, unsafe_no_sandbox: bool = False
    ) -> None:
        # Databases of the cache belong to the thread that opens them.
        self._thread = ThreadPoolExecutor(1, "grader")
        make = partial(Prover, list(map(Path, against)), jobs=jobs, unsafe=unsafe_no_sandbox)
        self._prover = self._thread.submit(make).result()

    def __enter__(self) -> "Grader":
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.submit(self._prover.__exit__, *error).result()
        self._thread.shutdown()

    def grade(self, answer: str, requests: Sequence[Mapping[str, str]]) -> Grade:
        """Grade the answer of a model.

        Args:
            answer: its text, with the code in a fence.
            requests: the requested blocks, each with `spec` and `arguments` as JSON.
        Returns:
            The steps that it passed, and how it failed.
        """
        try:
            blocks = tuple(
                RequestedBlock(Spec.model_validate_json(row["spec"]), json.loads(row["arguments"]), "")
                for row in requests
            )
        except (KeyError, ValueError) as error:
            raise UserError(
                "request: cannot be read; pass rows that `lemur export --format verifiers` wrote"
            ) from error
        proposal = NetworkProposal(Attempt(0, blocks, None, "", 0), None)
        try:
            proposal.code = code_in(answer)
        except AnswerError as error:
            proposal.fail("answer", str(error))
        self._thread.submit(self._prove, proposal).result()
        return Grade(proposal.steps_passed, proposal.step, proposal.fault["error"] if proposal.fault else None)

    def _prove(self, proposal: NetworkProposal) -> None:
        with hide_progress():
            self._prover.prove([proposal])
            self._prover.forget()
