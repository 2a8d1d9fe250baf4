"""The protocol of language models, requests and answers, and the cache of answers.

An answer is cached as soon as it arrives, under everything that it depends on (model, prompt, sampling, seed): a killed
run resumes without repeating requests, and running it again sends none.
"""

import hashlib
import json
import re
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from lemur.synthesis.attempts.options import Sampling
from lemur.synthesis.attempts.prompts import Message
from lemur_core.files.errors import UserError
from lemur_core.files.progress import progress
from lemur_core.sandbox.cached import OutcomeStore
from lemur_core.sandbox.server.received import clean_text

#: Characters of an answer. The longest network of LEMUR 2.1.0 has 178,375.
MAX_ANSWER = 1 << 20
_MAX_TOKENS = 2**31  # of a prompt or an answer
_FINISH = re.compile(r"[a-z_]{1,40}")


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


def read_answer(text: str, prompt_tokens: object = None, answer_tokens: object = None, finish: object = None) -> Answer:
    """Return an answer with what an endpoint reports about it; counts that count nothing, and reasons that are not a
    word, are left out."""
    reason = finish if isinstance(finish, str) and _FINISH.fullmatch(finish) else None
    return Answer(clean_text(text), _read_count(prompt_tokens), _read_count(answer_tokens), reason)


def _read_count(number: object) -> int | None:
    return number if type(number) is int and 0 <= number < _MAX_TOKENS else None


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
        left = self.seconds_left  # starts the clock
        if self.tokens is not None and self.used >= self.tokens:
            return f"the budget of {self.tokens:,} tokens is spent"
        return self.seconds_spent if left is not None and left <= 0 else None

    @property
    def seconds_left(self) -> float | None:
        """The rest of the seconds, which count from the first question; None if they are unlimited."""
        if self._started is None:
            self._started = time.monotonic()
        return None if self.seconds is None else self._started + self.seconds - time.monotonic()

    @property
    def seconds_spent(self) -> str:
        """The message that the seconds are over."""
        return f"the budget of {self.seconds:g} seconds is spent"

    def book(self, answer: Answer) -> None:
        """Count the tokens of an answer; if the model does not report them, a quarter of its characters."""
        # A token has about four characters.
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
        for index, key in enumerate(keys):
            kept = None if self._again else self._store.recall(key)
            if kept is not None:
                # Counted like a new one: a resumed run ends where it would have ended without the interruption.
                answers[index] = answer = read_answer(**json.loads(kept))
                self.budget.book(answer)
                self.reused += 1
        new = [index for index in range(len(requests)) if index not in answers]
        if new:
            with progress(f"{self.model.name}: {what}", len(new), "answers") as advance:

                def take(number: int, answer: Answer | NoAnswer) -> None:
                    if isinstance(answer, Answer):
                        self.budget.book(answer)
                        self._keep(keys[new[number]], answer)
                    answers[new[number]] = answer
                    advance(1)

                self.model.ask([requests[index] for index in new], self.sampling, take)
        return [answers[index] for index in range(len(requests))]

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
