"""The loop: a model is asked for all attempts, what it wrote is proved, and what failed goes back as an error.

It goes in rounds, so that the sandbox and the comparisons work on many codes at once: all attempts are asked, proved,
and those that failed are asked again with their error, at most so many times. Which of two equal networks is the new
one is told by round, then by number.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lemur.synthesis.models.model import Answer, Asker, NoAnswer, Request
from lemur.synthesis.prompting.plan import Attempt
from lemur.synthesis.prompting.prompts import (
    PLAN_SCHEMA,
    Message,
    first_messages,
    opening,
    plan_messages,
    repair_messages,
)
from lemur.synthesis.proving.answers import AnswerError, changed, code_in
from lemur.synthesis.proving.steps import Candidate, Prover
from lemur_core.files.progress import note
from manifests.records import SynthesisAttempt
from train.model.contract import lemur_name

PREFIX = "syn"


@dataclass(frozen=True, slots=True)
class Tried:
    """One answer and how far it came."""

    record: SynthesisAttempt
    candidate: Candidate


def synthesize(attempts: Sequence[Attempt], asker: Asker, prover: Prover, *, rounds: int, planned: bool) -> list[Tried]:
    """All answers of one model, by attempt, then round.

    Args:
        rounds: answers to errors, for each attempt at most.
        planned: ask for a plan first.
    Raises: UserError if the model cannot be asked, or nothing can be proved.
    """
    plans = _plans(attempts, asker) if planned else {}
    waiting: list[tuple[Attempt, list[Message]]] = [
        (one, first_messages(one, plans.get(one.number))) for one in attempts
    ]
    found: list[Tried] = []
    for number in range(rounds + 1):
        requests = [Request(messages, one.seed, opening(one)) for one, messages in waiting]
        answers = asker.ask(requests, f"round {number}" if number else "code")
        candidates = [_candidate(one, answer) for (one, _), answer in zip(waiting, answers, strict=True)]
        prover.prove(candidates)
        tried = [
            Tried(_record(asker, number, messages, answer, candidate, plans.get(one.number)), candidate)
            for (one, messages), answer, candidate in zip(waiting, answers, candidates, strict=True)
        ]
        found += tried
        accepted = sum(one.record.failed is None for one in tried)
        note(f"{asker.model.name}: round {number}: {accepted} of {len(tried)} accepted")
        waiting = [
            (
                one.candidate.attempt,
                repair_messages(
                    messages, answer.text, one.candidate.fault, delta=one.candidate.attempt.parent is not None
                ),
            )
            for one, (_, messages), answer in zip(tried, waiting, answers, strict=True)
            if one.candidate.fault is not None and isinstance(answer, Answer)
        ]
        if not waiting:
            break
    return sorted(found, key=lambda one: (one.record.attempt, one.record.round))


def _plans(attempts: Sequence[Attempt], asker: Asker) -> dict[int, str]:
    """The plans that a model makes, by attempt; what is no JSON object is left out."""
    answers = asker.ask([Request(plan_messages(one), one.seed, schema=PLAN_SCHEMA) for one in attempts], "plans")
    found = {}
    for one, answer in zip(attempts, answers, strict=True):
        if isinstance(answer, Answer) and (plan := _json_in(answer.text)) is not None:
            found[one.number] = json.dumps(plan, ensure_ascii=False, indent=1)
    note(f"{asker.model.name}: {len(found)} of {len(attempts)} plans")
    return found


def _json_in(text: str) -> dict[str, Any] | None:
    start, end = text.find("{"), text.rfind("}")
    try:
        found = json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _candidate(attempt: Attempt, answer: Answer | NoAnswer) -> Candidate:
    made = Candidate(attempt, None)
    if isinstance(answer, NoAnswer):
        made.fail("answer", answer.why)
        return made
    try:
        made.code = code_in(answer.text) if attempt.parent is None else changed(attempt.parent.code, answer.text)
    except AnswerError as error:
        cut = "; the answer was cut off at its limit of tokens" if answer.finish == "length" else ""
        made.fail("answer", f"{error}{cut}")
    return made


def _record(
    asker: Asker,
    number: int,
    messages: Sequence[Message],
    answer: Answer | NoAnswer,
    candidate: Candidate,
    plan: str | None,
) -> SynthesisAttempt:
    attempt, given = candidate.attempt, answer if isinstance(answer, Answer) else None
    code = candidate.code
    return SynthesisAttempt(
        model=asker.model.name,
        model_digest=asker.model.digest,
        attempt=attempt.number,
        round=number,
        form="code" if attempt.parent is None else "delta",
        blocks=tuple(one.spec.block for one in attempt.asked),
        parent=None if attempt.parent is None else attempt.parent.id,
        goal=attempt.goal,
        prompt=json.dumps(list(messages), ensure_ascii=False),
        plan=plan,
        answer=given.text if given else None,
        finish=given.finish if given else None,
        prompt_tokens=given.prompt_tokens if given else None,
        answer_tokens=given.answer_tokens if given else None,
        sampling=json.dumps(asdict(asker.sampling)),
        seed=attempt.seed,
        passed=candidate.passed,
        failed=candidate.step,
        error=_said(candidate.fault) if candidate.fault else None,
        facts=json.dumps(candidate.facts, ensure_ascii=False),
        originality=candidate.originality,
        code=code,
        code_sha256=None if code is None else hashlib.sha256(code.encode()).hexdigest(),
        nn=lemur_name(code, PREFIX) if code is not None and candidate.step is None else None,
    )


def _said(fault: dict[str, Any]) -> str:
    where = f"line {fault['line']}: " if "line" in fault else ""
    return f"{where}{fault['error']}"
