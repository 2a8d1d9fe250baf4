"""The protocol of language models, requests and answers, and the cache of answers.

An answer is cached as soon as it arrives, under everything that it depends on (model, prompt, sampling, seed): a killed
run resumes without repeating requests, and running it again sends none.
"""

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from lemur.synthesis.prompting.prompts import Message
from lemur_core.files.errors import UserError
from lemur_core.files.progress import progress
from lemur_core.sandbox.cached import OutcomeStore


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an answer is sampled; `max_tokens` limits its length."""

    temperature: float = 0.7
    top_p: float = 0.95
    max_tokens: int = 4096


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `opening`: the text that a model without a chat template continues; `schema`: of the JSON answer."""

    messages: Sequence[Message]
    seed: int
    opening: str = ""
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, with the model's own token counts, None if not reported. `finish`: the reason why it ended."""

    text: str
    prompt_tokens: int | None = None
    answer_tokens: int | None = None
    finish: str | None = None


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The reason for a missing answer."""

    why: str


class Model(Protocol):
    """A language model."""

    name: str
    #: Digest of its weights; None if they are not accessible.
    digest: str | None
    #: Everything that distinguishes it from other models.
    identity: str

    def ask(self, requests: Sequence[Request], sampling: Sampling, take: "Take") -> None:
        """Pass `take` the answer to each request, with its index, as it arrives.

        Raises: UserError if no request can be answered.
        """


Take = Callable[[int, Answer | NoAnswer], None]


@dataclass(slots=True)
class TokenBudget:
    """The budget for answers: tokens, including cached answers, and seconds of this run; None is unlimited."""

    tokens: int | None = None
    seconds: float | None = None
    used: int = 0
    _started: float | None = None

    def spent(self) -> str | None:
        """Describe the exhausted limit; None if the budget is not spent."""
        if self._started is None:
            self._started = time.monotonic()
        if self.tokens is not None and self.used >= self.tokens:
            return f"the budget of {self.tokens:,} tokens is spent"
        if self.seconds is not None and time.monotonic() - self._started >= self.seconds:
            return f"the budget of {self.seconds:g} seconds is spent"
        return None

    def book(self, answer: Answer) -> None:
        """Count the tokens of an answer; if the model does not report them, a quarter of its characters."""
        self.used += (answer.prompt_tokens or 0) + (answer.answer_tokens or len(answer.text) // 4)


class Asker:
    """Queries a model, with a cache of answers. A context manager.

    Args: again: ignore cached answers.
    """

    def __init__(self, model: Model, sampling: Sampling, budget: TokenBudget, *, again: bool = False) -> None:
        self.model, self.sampling, self.budget, self._again = model, sampling, budget, again
        self.reused = 0
        self._store = OutcomeStore("synthesis")

    def __enter__(self) -> "Asker":
        return self

    def __exit__(self, *error: object) -> None:
        self._store.__exit__(*error)

    def ask(self, requests: Sequence[Request], what: str) -> list[Answer | NoAnswer]:
        """Return the answers in the order of the requests; requests beyond the budget have none.

        Raises: UserError if no request can be answered, or an answer cannot be cached.
        """
        answers: dict[int, Answer | NoAnswer] = {}
        keys = [self._key(request) for request in requests]
        for place, key in enumerate(keys):
            kept = None if self._again else self._store.remembered(key)
            if kept is not None:
                answers[place] = answer = Answer(**json.loads(kept))
                self.budget.book(answer)
                self.reused += 1
        new = [place for place in range(len(requests)) if place not in answers]
        if new:
            with progress(f"{self.model.name}: {what}", len(new), "answers") as advance:

                def take(number: int, answer: Answer | NoAnswer) -> None:
                    if isinstance(answer, Answer):  # a lone surrogate is not valid text
                        answer = replace(answer, text=answer.text.encode("utf-8", "replace").decode())
                        self.budget.book(answer)
                        self._keep(keys[new[number]], answer)
                    answers[new[number]] = answer
                    advance(1)

                self.model.ask([requests[place] for place in new], self.sampling, take)
        return [answers[place] for place in range(len(requests))]

    def _key(self, request: Request) -> str:
        identity = [self.model.identity, asdict(self.sampling), asdict(request)]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def _keep(self, key: str, answer: Answer) -> None:
        try:
            self._store.remember(key, json.dumps(asdict(answer)).encode())
        except sqlite3.Error as error:
            raise UserError(
                f"an answer cannot be cached: {error}; free space, or set LEMUR_CURATOR_CACHE to another folder, and"
                " run again: earlier answers are kept"
            ) from error
