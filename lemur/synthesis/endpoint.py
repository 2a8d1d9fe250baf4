"""The model: behind an OpenAI-compatible endpoint (vLLM, llama.cpp, Ollama, TGI and the like), with a cache of answers.

Several requests run in parallel; temporary errors (busy, disconnected, not a chat completion) are retried after growing
pauses. Whatever an endpoint sends costs its own attempt only: the time limit of a request includes the last byte of its
response, and a response has a maximum size, is not unpacked, and does not lead to another address.

An answer is cached as soon as it arrives, under everything that it depends on (model, prompt, sampling, seed): a killed
run resumes without repeating requests, and running it again sends none.
"""

import asyncio
import hashlib
import json
import math
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol, Self
from urllib.parse import urlsplit

import httpx2

from lemur.synthesis.options import Sampling, Service
from lemur.synthesis.request import Message
from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.progress import progress
from lemur_core.sandbox.cached import OutcomeStore
from lemur_core.sandbox.server.foreign import one_line
from lemur_core.sandbox.server.received import clean_text
from manifests.folders.tables import describe

#: Characters of an answer. The longest network of LEMUR 2.1.0 has 178,375.
MAX_ANSWER = 1 << 20
#: The key to send if none is set.
PLACEHOLDER = "none"

_MAX_TOKENS = 2**31  # of a prompt or an answer
_FINISH = re.compile(r"[a-z_]{1,40}")


@dataclass(frozen=True, slots=True)
class Request:
    """One request."""

    messages: Sequence[Message]
    seed: int


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


Take = Callable[[int, Answer | NoAnswer], None]


class Model(Protocol):
    """A language model; `identity` distinguishes it from all others."""

    name: str
    identity: str

    def ask(self, requests: Sequence[Request], sampling: Sampling, take: Take) -> None:
        """Pass `take` the answer to each request, with its index, as it arrives.

        Raises: UserError if no request can be answered.
        """


def read_answer(text: str, prompt_tokens: object = None, answer_tokens: object = None, finish: object = None) -> Answer:
    """Return an answer with what an endpoint reports about it; counts that count nothing, and reasons that are not a
    word, are left out."""
    reason = finish if isinstance(finish, str) and _FINISH.fullmatch(finish) else None
    prompt, answered = (
        number if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < _MAX_TOKENS else None
        for number in (prompt_tokens, answer_tokens)
    )
    return Answer(clean_text(text), prompt, answered, reason)


class Asker:
    """Queries a model, with a cache of answers. A context manager. Args: again: ignore cached answers."""

    def __init__(self, model: Model, sampling: Sampling, *, again: bool = False) -> None:
        self.model, self.sampling, self._again = model, sampling, again
        self.reused = 0
        self._store = OutcomeStore("synthesis")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._store.__exit__(*error)

    def ask(self, requests: Sequence[Request], what: str) -> list[Answer | NoAnswer]:
        """Return the answers in the order of the requests.

        Raises: UserError if no request can be answered, or an answer cannot be cached.
        """
        answers: dict[int, Answer | NoAnswer] = {}
        keys = [self._key(request) for request in requests]
        for index, key in enumerate(keys):
            if not self._again and (kept := self._store.recall(key)) is not None:
                answers[index] = read_answer(**json.loads(kept))
                self.reused += 1
        new = [index for index in range(len(requests)) if index not in answers]
        if new:
            with progress(f"{self.model.name}: {what}", len(new), "answers") as advance:

                def take(number: int, answer: Answer | NoAnswer) -> None:
                    if isinstance(answer, Answer):
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


# -- the endpoint ------------------------------------------------------------------------------------------------------

_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_OURS = frozenset({401, 403, 404, 405})  # retrying would not help
_LONGEST_PAUSE = 60.0  # seconds
_DOUBLINGS = 16  # of the pause; more would not matter
_CHARACTERS = 300  # of an endpoint's message
_SECRET = 16  # characters; a shorter key is a placeholder, and may be a word of an answer
_MAX_BYTES = 8 * MAX_ANSWER  # of a response: JSON escapes take up to six bytes, and what surrounds the text some more
_MAX_MESSAGE = 1 << 16  # bytes of a refusal
_DIGITS = 18  # of a number; a longer one counts nothing, and Python refuses to read very long ones


class _Passing(Exception):  # noqa: N818 (an outcome, not a fault)
    """A temporary error. `pause`: seconds that the endpoint requests."""

    def __init__(self, why: str, pause: float | None = None) -> None:
        super().__init__(why)
        self.pause = pause


class Endpoint:
    """A model by its name at an endpoint.

    Args: pause: seconds before the first retry; doubles with each retry.
    Raises: UsageError if the URL is invalid.
    """

    def __init__(self, name: str, service: Service, pause: float = 1.0) -> None:
        self._target, self._url = check_url(service.url, service.key_name), service.url.rstrip("/")
        self.name, self.identity = name, f"{name}@{self._url}"
        self._service, self._pause = service, pause
        self._key = os.environ.get(service.key_name) or PLACEHOLDER
        self._answered, self._refusal = False, ""

    def ask(self, requests: Sequence[Request], sampling: Sampling, take: Take) -> None:
        """Hand `take` the answer to each request. Raises: UserError if the endpoint refuses before its first answer."""
        asyncio.run(self._ask(enumerate(requests), sampling, take))

    async def _ask(self, requests: Iterator[tuple[int, Request]], sampling: Sampling, take: Take) -> None:
        # Its own time limits are for one read each; ours are for the whole.
        headers = {"Authorization": f"Bearer {self._key}", "Accept-Encoding": "identity", "User-Agent": "lemur-curator"}
        async with httpx2.AsyncClient(headers=headers, follow_redirects=False, timeout=None) as client:

            async def work() -> None:
                for index, request in requests:
                    if self._refusal:
                        take(index, NoAnswer(self._refusal))
                        continue
                    body = {"model": self.name, "messages": list(request.messages), "seed": request.seed}
                    answer = await self._retry(client, body | asdict(sampling))
                    self._answered |= isinstance(answer, Answer)
                    take(index, answer)

            await asyncio.gather(*(work() for _ in range(self._service.at_once)))

    async def _retry(self, client: httpx2.AsyncClient, body: dict[str, object]) -> Answer | NoAnswer:
        for attempt in range(self._service.retries + 1):
            try:
                return await self._once(client, body)
            except _Passing as trouble:
                why = str(trouble)
                pause = self._pause * 2 ** min(attempt, _DOUBLINGS) if trouble.pause is None else trouble.pause
            if attempt < self._service.retries:
                await asyncio.sleep(min(pause, _LONGEST_PAUSE))
        return NoAnswer(f"no answer in {self._service.retries + 1} requests; last error: {why}")

    async def _once(self, client: httpx2.AsyncClient, body: dict[str, object]) -> Answer | NoAnswer:
        try:
            async with (
                asyncio.timeout(self._service.timeout),
                client.stream("POST", self._target, json=body) as response,
            ):
                if not response.is_success:
                    return self._refuse(response, await _read(response, _MAX_MESSAGE))
                if (packed := response.headers.get("Content-Encoding", "identity")) != "identity":
                    return NoAnswer(self._clean_message(f"the response is packed ({packed}); only plain ones are read"))
                content = await _read(response, _MAX_BYTES)
        except TimeoutError as error:
            raise _Passing(f"no answer within {self._service.timeout:g} s") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
            raise _Passing(self._clean_message(error)) from error
        if len(content) > _MAX_BYTES:
            return NoAnswer(f"the response is longer than {_MAX_BYTES >> 20} MiB")
        return self._read_completion(content)

    def _read_completion(self, content: bytes) -> Answer | NoAnswer:
        """Return the answer in a response. Raises: _Passing if it is not a chat completion."""
        try:
            # Python refuses to read very long numbers; the answer was paid for.
            completion = json.loads(content, parse_int=lambda text: int(text) if len(text) <= _DIGITS else None)
            choice = completion["choices"][0]
            text, usage = choice["message"]["content"], completion.get("usage")
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
            raise _Passing(f"the response is not a chat completion: {self._clean_message(describe(error))}") from error
        if text is None:
            return NoAnswer("the endpoint returned a message without text")
        if not isinstance(text, str):
            raise _Passing(f"the response is not a chat completion: its content is of type {type(text).__name__}")
        if len(text) > MAX_ANSWER:
            return NoAnswer(f"the answer has {len(text):,} characters; at most {MAX_ANSWER:,} are read")
        usage = usage if isinstance(usage, dict) else {}
        text = self._without_key(text) if len(self._key) >= _SECRET else text
        return read_answer(
            text, usage.get("prompt_tokens"), usage.get("completion_tokens"), choice.get("finish_reason")
        )

    def _refuse(self, response: httpx2.Response, content: bytes) -> NoAnswer:
        """Return the failure of a refused request. Raises: UserError if retrying cannot help, _Passing if it may."""
        status = response.status_code
        if len(content) > _MAX_MESSAGE:
            content = content[: -len(self._key)]  # which may begin there
        message = (
            f"status {status}: {self._clean_message(content.decode('utf-8', 'replace') or response.reason_phrase)}"
        )
        if status in _PASSING:
            raise _Passing(message, _seconds(response))
        if response.has_redirect_location:
            elsewhere = self._clean_message(response.headers["Location"])
            self._refusal = f"status {status}: redirects to {elsewhere}; pass the final address"
        elif status in _OURS:
            key = "is the key right? it is read from" if self._key != PLACEHOLDER else "a key would be read from"
            self._refusal = f"refuses with {message}; {key} {self._service.key_name}"
        else:
            return NoAnswer(message)
        if not self._answered:
            raise UserError(f"{self._url}: {self._refusal}")
        return NoAnswer(self._refusal)  # what was answered before is worth writing; no further request is sent

    def _clean_message(self, error: object) -> str:
        return one_line(clean_text(self._without_key(str(error) or type(error).__name__)), _CHARACTERS)

    def _without_key(self, text: str) -> str:
        """Remove the key from a message: an endpoint may repeat it."""
        return text if self._key == PLACEHOLDER else text.replace(self._key, "(key)")


def check_url(url: str, key_name: str) -> str:
    """Return the address of chat completions of an endpoint, which may lack `/v1`. Raises: UsageError if it is none."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and url.isprintable()
    except ValueError:  # brackets that do not match, a port out of range
        valid = False
    if not valid or parts.username or parts.password:
        shown = url if url.isprintable() else repr(url)
        raise UsageError(f"--base-url {shown}: use http://HOST:PORT/v1; set a key in the environment, {key_name}")
    path = parts.path.rstrip("/")
    if not path.endswith("/chat/completions"):
        path = f"{path.removesuffix('/v1')}/v1/chat/completions"
    return parts._replace(path=path).geturl()


async def _read(response: httpx2.Response, limit: int) -> bytes:
    """Return the body as it was sent; one that is longer than the limit is cut off somewhere beyond it."""
    content = bytearray()
    async for part in response.aiter_raw():
        content += part
        if len(content) > limit:
            break
    return bytes(content)


def _seconds(response: httpx2.Response) -> float | None:
    """Return the seconds that an endpoint asks to wait."""
    try:
        seconds = float(response.headers["Retry-After"])
    except (KeyError, ValueError):
        return None
    return None if math.isnan(seconds) else max(0.0, seconds)
