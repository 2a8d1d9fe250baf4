"""Language models that are asked: a protocol, what is asked and answered, and answers that are kept.

An answer is kept as soon as it is there, under everything that it depends on (model, prompt, sampling, seed), so that a
run that was killed goes on without asking twice, and the same run again asks nothing.
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
    """How an answer is drawn; `max_tokens` bounds it."""

    temperature: float = 0.7
    top_p: float = 0.95
    max_tokens: int = 4096


@dataclass(frozen=True, slots=True)
class Request:
    """One question. `opening`: what a model without a chat form continues; `schema`: of the JSON to answer with."""

    messages: Sequence[Message]
    seed: int
    opening: str = ""
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; tokens as the model counts them, None where it does not say. `finish`: why it ended."""

    text: str
    prompt_tokens: int | None = None
    answer_tokens: int | None = None
    finish: str | None = None


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Why there is none."""

    why: str


class Model(Protocol):
    """A language model."""

    name: str
    #: Of its weights; None where they are not at hand.
    digest: str | None
    #: All that tells it from others.
    identity: str

    def ask(self, requests: Sequence[Request], sampling: Sampling, take: "Take") -> None:
        """Hand `take` the answer to each request, by its place, as it comes.

        Raises: UserError if no request can be answered.
        """


Take = Callable[[int, Answer | NoAnswer], None]


@dataclass(slots=True)
class Budget:
    """What may be spent on answers: tokens, kept answers included, and seconds of this run; None is no bound."""

    tokens: int | None = None
    seconds: float | None = None
    used: int = 0
    _started: float | None = None

    def spent(self) -> str | None:
        """What is used up, if anything is."""
        if self._started is None:
            self._started = time.monotonic()
        if self.tokens is not None and self.used >= self.tokens:
            return f"the budget of {self.tokens:,} tokens is spent"
        if self.seconds is not None and time.monotonic() - self._started >= self.seconds:
            return f"the budget of {self.seconds:g} seconds is spent"
        return None

    def book(self, answer: Answer) -> None:
        """Count the tokens of an answer; of a model that does not count them, its characters by four."""
        self.used += (answer.prompt_tokens or 0) + (answer.answer_tokens or len(answer.text) // 4)


class Asker:
    """Asks a model what is not known yet. A context manager.

    Args: again: ask even where an answer is kept.
    """

    def __init__(self, model: Model, sampling: Sampling, budget: Budget, *, again: bool = False) -> None:
        self.model, self.sampling, self.budget, self._again = model, sampling, budget, again
        self.reused = 0
        self._store = OutcomeStore("synthesis")

    def __enter__(self) -> "Asker":
        return self

    def __exit__(self, *error: object) -> None:
        self._store.__exit__(*error)

    def ask(self, requests: Sequence[Request], what: str) -> list[Answer | NoAnswer]:
        """The answers, in the order of the requests; what the budget leaves no room for has none.

        Raises: UserError if no request can be answered, or an answer cannot be kept.
        """
        found: dict[int, Answer | NoAnswer] = {}
        keys = [self._key(request) for request in requests]
        for place, key in enumerate(keys):
            kept = None if self._again else self._store.remembered(key)
            if kept is not None:
                found[place] = answer = Answer(**json.loads(kept))
                self.budget.book(answer)
                self.reused += 1
        new = [place for place in range(len(requests)) if place not in found]
        if new:
            with progress(f"{self.model.name}: {what}", len(new), "answers") as advance:

                def take(number: int, answer: Answer | NoAnswer) -> None:
                    if isinstance(answer, Answer):  # a lone surrogate is no text
                        answer = replace(answer, text=answer.text.encode("utf-8", "replace").decode())
                        self.budget.book(answer)
                        self._keep(keys[new[number]], answer)
                    found[new[number]] = answer
                    advance(1)

                self.model.ask([requests[place] for place in new], self.sampling, take)
        return [found[place] for place in range(len(requests))]

    def _key(self, request: Request) -> str:
        told = [self.model.identity, asdict(self.sampling), asdict(request)]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def _keep(self, key: str, answer: Answer) -> None:
        try:
            self._store.remember(key, json.dumps(asdict(answer)).encode())
        except sqlite3.Error as error:
            raise UserError(
                f"an answer cannot be kept: {error}; free space, or set LEMUR_CURATOR_CACHE to another folder, and run"
                " again: answers up to here are kept"
            ) from error
