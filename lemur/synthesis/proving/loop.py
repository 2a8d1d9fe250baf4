"""The loop: request all attempts from a model, check the answers, and send errors back for repair.

It works in rounds, so that the sandbox and the comparisons process many codes at once: all attempts are requested and
checked; those that failed are requested again with their error, for a limited number of rounds. Of two equal networks,
the one of the earlier round, then with the lower number, is accepted.
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
from lemur.synthesis.proving.answers import AnswerError, apply_changes, code_in
from lemur.synthesis.proving.steps import NetworkProposal, Prover
from lemur_core.files.progress import note
from manifests.records import SynthesisAttempt
from train.model.contract import lemur_name

PREFIX = "syn"


@dataclass(frozen=True, slots=True)
class Tried:
    """One answer and its outcome."""

    record: SynthesisAttempt
    candidate: NetworkProposal


def synthesize(attempts: Sequence[Attempt], asker: Asker, prover: Prover, *, rounds: int, planned: bool) -> list[Tried]:
    """Return all answers of one model, by attempt, then round.

    Args:
        rounds: maximum number of repairs per attempt.
        planned: request a plan first.
    Raises: UserError if the model cannot be queried, or nothing can be checked.
    """
    plans = _plans(attempts, asker) if planned else {}
    waiting: list[tuple[Attempt, list[Message]]] = [
        (one, first_messages(one, plans.get(one.number))) for one in attempts
    ]
    results: list[Tried] = []
    for number in range(rounds + 1):
        requests = [Request(messages, one.seed, opening(one)) for one, messages in waiting]
        answers = asker.ask(requests, f"round {number}" if number else "code")
        candidates = [_candidate(one, answer) for (one, _), answer in zip(waiting, answers, strict=True)]
        prover.prove(candidates)
        tried = [
            Tried(_record(asker, number, messages, answer, candidate, plans.get(one.number)), candidate)
            for (one, messages), answer, candidate in zip(waiting, answers, candidates, strict=True)
        ]
        results += tried
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
    return sorted(results, key=lambda one: (one.record.attempt, one.record.round))


def _plans(attempts: Sequence[Attempt], asker: Asker) -> dict[int, str]:
    """Request plans and return them by attempt; answers without a JSON object are left out."""
    answers = asker.ask([Request(plan_messages(one), one.seed, schema=PLAN_SCHEMA) for one in attempts], "plans")
    plans = {}
    for one, answer in zip(attempts, answers, strict=True):
        if isinstance(answer, Answer) and (plan := _json_in(answer.text)) is not None:
            plans[one.number] = json.dumps(plan, ensure_ascii=False, indent=1)
    note(f"{asker.model.name}: {len(plans)} of {len(attempts)} plans")
    return plans


def _json_in(text: str) -> dict[str, Any] | None:
    start, end = text.find("{"), text.rfind("}")
    try:
        value = json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _candidate(attempt: Attempt, answer: Answer | NoAnswer) -> NetworkProposal:
    candidate = NetworkProposal(attempt, None)
    if isinstance(answer, NoAnswer):
        candidate.fail("answer", answer.why)
        return candidate
    try:
        candidate.code = (
            code_in(answer.text) if attempt.parent is None else apply_changes(attempt.parent.code, answer.text)
        )
    except AnswerError as error:
        cut = "; the answer was cut off at its limit of tokens" if answer.finish == "length" else ""
        candidate.fail("answer", f"{error}{cut}")
    return candidate


def _record(
    asker: Asker,
    number: int,
    messages: Sequence[Message],
    answer: Answer | NoAnswer,
    candidate: NetworkProposal,
    plan: str | None,
) -> SynthesisAttempt:
    attempt, reply = candidate.attempt, answer if isinstance(answer, Answer) else None
    code = candidate.code
    return SynthesisAttempt(
        model=asker.model.name,
        model_digest=asker.model.digest,
        attempt=attempt.number,
        round=number,
        form="code" if attempt.parent is None else "delta",
        blocks=tuple(one.spec.block for one in attempt.requested),
        parent=None if attempt.parent is None else attempt.parent.id,
        goal=attempt.goal,
        prompt=json.dumps(list(messages), ensure_ascii=False),
        plan=plan,
        answer=reply.text if reply else None,
        finish=reply.finish if reply else None,
        prompt_tokens=reply.prompt_tokens if reply else None,
        answer_tokens=reply.answer_tokens if reply else None,
        sampling=json.dumps(asdict(asker.sampling)),
        seed=attempt.seed,
        passed=candidate.steps_passed,
        failed=candidate.step,
        error=_format_fault(candidate.fault) if candidate.fault else None,
        facts=json.dumps(candidate.facts, ensure_ascii=False),
        originality=candidate.originality,
        code=code,
        code_sha256=None if code is None else hashlib.sha256(code.encode()).hexdigest(),
        nn=lemur_name(code, PREFIX) if code is not None and candidate.step is None else None,
    )


def _format_fault(fault: dict[str, Any]) -> str:
    where = f"line {fault['line']}: " if "line" in fault else ""
    return f"{where}{fault['error']}"
