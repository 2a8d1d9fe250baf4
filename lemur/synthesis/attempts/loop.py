"""The loop: request all attempts from a model, read the code in the answers, check it, send errors back for repair.

It works in rounds, so that the sandbox and the comparisons process many codes at once: all attempts are requested and
checked; those that failed are requested again with their error, for a limited number of rounds. Of two equal networks,
the one of the earlier round, then with the lower number, is accepted.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from textwrap import dedent

from lemur.synthesis.attempts.asking import Answer, Asker, NoAnswer, Request
from lemur.synthesis.attempts.plan import Attempt
from lemur.synthesis.attempts.prompts import (
    PLAN_SCHEMA,
    Message,
    first_messages,
    opening,
    plan_messages,
    repair_messages,
)
from lemur.synthesis.attempts.steps import NetworkProposal, Prover
from lemur_core.files import Json
from lemur_core.files.progress import note
from manifests.records import SynthesisAttempt
from train.model.contract import lemur_name

PREFIX = "syn"

_CUT = "; the answer was cut off at its limit of tokens"  # whatever the fault is: a part of a file is often valid


@dataclass(frozen=True, slots=True)
class Tried:
    """One answer and its outcome."""

    record: SynthesisAttempt
    candidate: NetworkProposal


def synthesize(attempts: Sequence[Attempt], asker: Asker, prover: Prover, *, rounds: int, planned: bool) -> list[Tried]:
    """Return all answers of one model, by attempt, then round.

    Args: rounds: maximum number of repairs per attempt. planned: request a plan first.
    Raises: UserError if the model cannot be queried, or nothing can be checked.
    """
    plans = _plans(attempts, asker) if planned else {}
    waiting: list[tuple[Attempt, list[Message]]] = [
        (attempt, first_messages(attempt, plans.get(attempt.number))) for attempt in attempts
    ]
    results: list[Tried] = []
    for number in range(rounds + 1):
        requests = [Request(messages, attempt.seed, opening(attempt)) for attempt, messages in waiting]
        answers = asker.ask(requests, f"round {number}" if number else "code")
        candidates = [_candidate(attempt, answer) for (attempt, _), answer in zip(waiting, answers, strict=True)]
        prover.prove(candidates)
        for answer, candidate in zip(answers, candidates, strict=True):
            if candidate.fault is not None and isinstance(answer, Answer) and answer.finish == "length":
                candidate.fault["error"] += _CUT
        tried = [
            Tried(_record(asker, number, messages, answer, candidate, plans.get(attempt.number)), candidate)
            for (attempt, messages), answer, candidate in zip(waiting, answers, candidates, strict=True)
        ]
        results += tried
        accepted = sum(result.record.failed is None for result in tried)
        note(f"{asker.model.name}: round {number}: {accepted} of {len(tried)} accepted")
        waiting = [
            (attempt, repair_messages(messages, answer.text, candidate.fault, delta=attempt.parent is not None))
            for (attempt, messages), answer, candidate in zip(waiting, answers, candidates, strict=True)
            if candidate.fault is not None and isinstance(answer, Answer)
        ]
        if not waiting:
            break
    return sorted(results, key=lambda result: (result.record.attempt, result.record.round))


def _plans(attempts: Sequence[Attempt], asker: Asker) -> dict[int, str]:
    """Request plans and return them by attempt; answers without a JSON object are left out."""
    requests = [Request(plan_messages(attempt), attempt.seed, schema=PLAN_SCHEMA) for attempt in attempts]
    answers = asker.ask(requests, "plans")
    plans = {}
    for attempt, answer in zip(attempts, answers, strict=True):
        if isinstance(answer, Answer) and (plan := _json_in(answer.text)) is not None:
            plans[attempt.number] = json.dumps(plan, ensure_ascii=False, indent=1)
    note(f"{asker.model.name}: {len(plans)} of {len(attempts)} plans")
    return plans


def _json_in(text: str) -> Json | None:
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
        candidate.fail("answer", str(error))
    return candidate


def _record(
    asker: Asker,
    number: int,
    messages: Sequence[Message],
    answer: Answer | NoAnswer,
    candidate: NetworkProposal,
    plan: str | None,
) -> SynthesisAttempt:
    attempt, code, fault = candidate.attempt, candidate.code, candidate.fault
    return SynthesisAttempt(
        model=asker.model.name,
        model_digest=asker.model.digest,
        attempt=attempt.number,
        round=number,
        form="code" if attempt.parent is None else "delta",
        blocks=tuple(block.spec.block for block in attempt.requested),
        parent=None if attempt.parent is None else attempt.parent.id,
        goal=attempt.goal,
        prompt=json.dumps(list(messages), ensure_ascii=False),
        plan=plan,
        answer=getattr(answer, "text", None),  # like the rest, of an answer; not of a reason for having none
        **{name: getattr(answer, name, None) for name in ("finish", "prompt_tokens", "answer_tokens")},
        sampling=json.dumps(asdict(asker.sampling)),
        seed=attempt.seed,
        passed=candidate.steps_passed,
        failed=candidate.step,
        error=(f"line {fault['line']}: " if "line" in fault else "") + fault["error"] if fault else None,
        facts=json.dumps(candidate.facts, ensure_ascii=False),
        originality=candidate.originality,
        code=code,
        code_sha256=None if code is None else hashlib.sha256(code.encode()).hexdigest(),
        nn=lemur_name(code, PREFIX) if code is not None and candidate.step is None else None,
    )


# -- the code in an answer: a fenced file, or changes to the network that the model was shown ----------------------

_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([\w+-]*)")
_SEARCH, _CHANGED, _REPLACE = (
    re.compile(pattern) for pattern in (r"<{5,9} ?SEARCH[ \t]*", r"={5,9}[ \t]*", r">{5,9} ?REPLACE[ \t]*")
)
_THOUGHT_ENDS = re.compile(r"</think(?:ing)?>")  # many chat templates open the thought themselves
_THOUGHT_BEGINS = re.compile(r"\s*<think(?:ing)?>")


_STATEMENT = re.compile(
    r"^[ \t]*(?:import \w|from [.\w]+ import\b|(?:async )?def \w|class \w+ *[(:]|@\w|\w[\w.]* = )", re.MULTILINE
)  # prose has none: a refusal, for example
_MAX_CODE = 1 << 18  # characters; the longest network of LEMUR 2.1.0 has 178,375


class AnswerError(Exception):
    """The reason why an answer has no code."""


def code_in(answer: str) -> str:
    """Return the file in an answer: the longest Python fence, or the whole answer if there is none.

    Raises: AnswerError if it is empty, or prose.
    """
    text = _without_thoughts(answer)
    fences = [body for language, body in _fences(text) if language.lower() in ("", "py", "python", "python3")]
    # Models often show parts before or after the whole file.
    code = max(fences, key=lambda body: ("class Net" in body, len(body)), default=text)
    if not code.strip() or (not fences and _STATEMENT.search(code) is None):
        raise AnswerError("the answer holds no code; answer with one fence ```python … ```")
    if len(code) > _MAX_CODE:
        raise AnswerError(f"the file has {len(code):,} characters; at most {_MAX_CODE:,} are read")
    return code.strip("\n") + "\n"


def apply_changes(parent: str, answer: str) -> str:
    """Apply the changes of an answer to a network; each must match exactly once; lines end with `\\n`.

    Raises: AnswerError if there are no changes, or one does not match.
    """
    changes = list(_changes(_without_thoughts(answer)))
    if not changes:
        raise AnswerError("the answer holds no change; write <<<<<<< SEARCH … ======= … >>>>>>> REPLACE")
    original = text = _lines(parent).rstrip("\n") + "\n"
    for number, (old, new) in enumerate(changes, start=1):
        count = _count(old, text) if old else 0
        if count != 1:
            first = next((line.strip() for line in old.splitlines() if line.strip()), "nothing")
            fault = "is not in the file" if count == 0 else f"stands {count} times in the file"
            raise AnswerError(f"change {number}: its SEARCH text, which begins {first[:80]!r}, {fault}")
        text = text.replace(old, new)
    if text == original:
        raise AnswerError("the changes leave the file as it is")
    return text


# Both read line by line: one regular expression for a block takes hours for an answer of nothing but its first signs.


def _fences(text: str) -> Iterator[tuple[str, str]]:
    """Yield the language and the body of each fence; the end of the text closes the last one."""
    lines = iter(text.split("\n"))
    for line in lines:
        if opened := _FENCE.match(line):
            code = ""
            for inner in lines:
                if inner.strip(" \t") == opened[2]:
                    break
                code += f"{inner}\n"
            yield opened[3], dedent(code) if opened[1] else code


def _changes(text: str) -> Iterator[tuple[str, str]]:
    """Yield the old and the new lines of each complete change."""
    parts: list[list[str]] = []
    for line in text.split("\n"):
        if not parts:
            parts = [[]] if _SEARCH.fullmatch(line) else []
        elif len(parts) == 1 and _CHANGED.fullmatch(line):
            parts.append([])
        elif len(parts) == 2 and _REPLACE.fullmatch(line):
            old, new = ("".join(f"{line}\n" for line in lines) for lines in parts)
            yield old, new
            parts = []
        else:
            parts[-1].append(line)


def _count(part: str, text: str) -> int:
    """Count the places where a part begins, also those that overlap."""
    count, index = 0, text.find(part)
    while index >= 0:
        count, index = count + 1, text.find(part, index + 1)
    return count


def _without_thoughts(answer: str) -> str:
    final = _THOUGHT_ENDS.split(_lines(answer))[-1]
    return "" if _THOUGHT_BEGINS.match(final) else final


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
