"""`lemur synthesize`: request networks from a model, read the code in its answers, check it, have it repaired once.

It works in rounds, so that the sandbox and the comparisons process many codes at once: all attempts are requested and
checked; those that failed are requested again with their error. Of two equal networks, the one of the earlier round,
then with the lower number, is accepted.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import dedent

from curate.folder.reference_corpus import check_graphs
from lemur.synthesis.endpoint import Answer, Asker, Endpoint, NoAnswer, Request
from lemur.synthesis.folder import PREFIX, Tried, write_synthesis
from lemur.synthesis.options import AttemptOptions, Sampling, Service
from lemur.synthesis.request import Attempt, Message, draw, first_messages, repair_messages
from lemur.synthesis.steps import NetworkProposal, Prover
from lemur_core.files import Json
from lemur_core.files.atomic import check_free
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import note
from manifests.folders.manifest import Stopwatch
from manifests.records import SynthesisAttempt
from train.model.contract import lemur_name

_CUT = "; the answer was cut off at its limit of tokens"  # whatever the fault is: a part of a file is often valid


def run_synthesis(
    library: Path,
    model: str,
    out: Path,
    options: AttemptOptions,
    service: Service,
    *,
    sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
    against: Sequence[Path] = (),
    license_: str = "NOASSERTION",
    jobs: int | None = None,
    unsafe: bool = False,
    force: bool = False,
) -> Json:
    """Let a model write networks from specs, and keep those that pass every step.

    Args: against: snapshots and extractions that a network must differ from, in addition to the library.
    Raises: UserError if a file or the model is not accessible; UsageError if the URL is invalid.
    """
    # Everything that can be refused, before the first request costs anything.
    endpoint = Endpoint(model, service)
    check_free(out, force=force)
    watch = Stopwatch()
    attempts, pool = draw(library, options)
    blocks = {attempt.block.spec.block for attempt in attempts}
    note(f"{plural(len(attempts), 'attempt')} with {len(blocks)} of {plural(pool, 'eligible block')}")
    references = list(dict.fromkeys([*against, library]))
    for folder in references:
        check_graphs(folder)
    with (
        Prover(references, jobs=jobs, unsafe=unsafe) as prover,
        Asker(endpoint, sampling) as asker,
    ):
        tried = synthesize(attempts, asker, prover)
        if all(record.answer is None for record, _ in tried):
            raise UserError(f"{model}: returned no answer at all: {tried[-1][0].error}; nothing was written")
        if asker.reused:
            note(f"{model}: {plural(asker.reused, 'answer')} from an earlier run")
        parameters = {"model": model, **asdict(options), "sampling": asdict(sampling)}
        return write_synthesis(out, tried, parameters, references, license_=license_, watch=watch, force=force)


def synthesize(attempts: Sequence[Attempt], asker: Asker, prover: Prover, *, repairs: int = 1) -> list[Tried]:
    """Return all answers of a model, by attempt, then round.

    Args: repairs: how often a failed attempt is requested again, with its error.
    Raises: UserError if the model cannot be queried, or nothing can be checked.
    """
    waiting = [(attempt, first_messages(attempt)) for attempt in attempts]
    results: list[Tried] = []
    for number in range(repairs + 1):
        requests = [Request(messages, attempt.seed) for attempt, messages in waiting]
        answers = asker.ask(requests, f"repair {number}" if number else "code")
        candidates = [_read(attempt, answer) for (attempt, _), answer in zip(waiting, answers, strict=True)]
        prover.prove(candidates)
        failed: list[tuple[Attempt, list[Message]]] = []
        for (attempt, messages), answer, candidate in zip(waiting, answers, candidates, strict=True):
            if candidate.fault is not None and isinstance(answer, Answer):
                if answer.finish == "length":
                    candidate.fault["error"] += _CUT
                failed.append((attempt, repair_messages(messages, answer.text, candidate.fault)))
            results.append((_record(asker, number, messages, answer, candidate), candidate))
        accepted = sum(candidate.step is None for candidate in candidates)
        note(f"{asker.model.name}: round {number}: {accepted} of {len(candidates)} accepted")
        waiting = failed
        if not waiting:
            break
    return sorted(results, key=lambda result: (result[0].attempt, result[0].round))


def _read(attempt: Attempt, answer: Answer | NoAnswer) -> NetworkProposal:
    candidate = NetworkProposal(attempt, None)
    try:
        if isinstance(answer, NoAnswer):
            raise AnswerError(answer.why)
        candidate.code = code_in(answer.text)
    except AnswerError as error:
        candidate.fail("answer", str(error))
    return candidate


def _record(
    asker: Asker, number: int, messages: Sequence[Message], answer: Answer | NoAnswer, candidate: NetworkProposal
) -> SynthesisAttempt:
    attempt, code, fault = candidate.attempt, candidate.code, candidate.fault
    return SynthesisAttempt(
        model=asker.model.name,
        attempt=attempt.number,
        round=number,
        block=attempt.block.spec.block,
        goal=attempt.goal,
        prompt=json.dumps(list(messages), ensure_ascii=False),
        answer=getattr(answer, "text", None),  # like the rest, of an answer; not of a reason for having none
        **{name: getattr(answer, name, None) for name in ("finish", "prompt_tokens", "answer_tokens")},
        sampling=json.dumps(asdict(asker.sampling)),
        seed=attempt.seed,
        passed=candidate.steps_passed,
        failed=candidate.step,
        error=(f"line {fault['line']}: " if "line" in fault else "") + fault["error"] if fault else None,
        facts=json.dumps(candidate.facts, ensure_ascii=False),
        code=code,
        code_sha256=None if code is None else hashlib.sha256(code.encode()).hexdigest(),
        nn=lemur_name(code, PREFIX) if code is not None and candidate.step is None else None,
    )


# -- the code in an answer ---------------------------------------------------------------------------------------------

_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([\w+-]*)")
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
    text = _THOUGHT_ENDS.split(answer.replace("\r\n", "\n").replace("\r", "\n"))[-1]
    if _THOUGHT_BEGINS.match(text):
        text = ""
    fences = [body for language, body in _fences(text) if language.lower() in ("", "py", "python", "python3")]
    # Models often show parts before or after the whole file.
    code = max(fences, key=lambda body: ("class Net" in body, len(body)), default=text)
    if not code.strip() or (not fences and _STATEMENT.search(code) is None):
        raise AnswerError("the answer holds no code; answer with one fence ```python … ```")
    if len(code) > _MAX_CODE:
        raise AnswerError(f"the file has {len(code):,} characters; at most {_MAX_CODE:,} are read")
    return code.strip("\n") + "\n"


def _fences(text: str) -> Iterator[tuple[str, str]]:
    """Yield the language and the body of each fence; the end of the text closes the last one.

    Line by line: one regular expression for a block takes hours for an answer of nothing but its first signs.
    """
    lines = iter(text.split("\n"))
    for line in lines:
        if opened := _FENCE.match(line):
            code = ""
            for inner in lines:
                if inner.strip(" \t") == opened[2]:
                    break
                code += f"{inner}\n"
            yield opened[3], dedent(code) if opened[1] else code
