"""The model: behind an OpenAI-compatible endpoint (vLLM, llama.cpp, Ollama, TGI and the like), with a cache of answers.

Several requests run in parallel; temporary errors (busy, disconnected, not a chat completion) are retried after growing
pauses. Whatever an endpoint sends costs its own attempt only: the time limit of a request includes the last byte of its
response, and a response has a maximum number of bytes and parts, is not unpacked, and does not lead to another address.

An answer is cached as soon as it arrives, under everything that it depends on (model, prompt, sampling, seed): a killed
run resumes without repeating requests, and running it again sends none.
"""

import asyncio
import hashlib
import json
import os
import re
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol
from urllib.parse import urlsplit

import httpx2

from lemur.synthesis import Sampling, Service
from lemur_core.files import Json
from lemur_core.files.errors import RetryableError, UsageError, UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import note, progress
from lemur_core.sandbox.cached import OutcomeStore
from lemur_core.sandbox.server.foreign import one_line
from lemur_core.sandbox.server.received import clean_text
from manifests.folders.tables import describe

Message = dict[str, str]

_MAX_TOKENS = 2**31  # of a prompt or an answer
_FINISH = re.compile(r"[a-z_]{1,40}")
_MAX_BYTES = 1 << 21  # of a response; the longest network of LEMUR 2.1.0 has 178,375 characters, of up to six bytes
_MAX_PARTS = 1 << 14  # that a response comes in
_MAX_MESSAGE = 1 << 16  # bytes of a refusal
_CHARACTERS = 300  # of an endpoint's message
_DIGITS = 18  # of a number; a longer one counts nothing, and Python refuses to read very long ones
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_OURS = frozenset({401, 403, 404, 405})  # retrying would not help
_LONGEST_PAUSE = 60.0  # seconds
_SECRET = 16  # characters; a shorter key is a placeholder, and may be a word of an answer


@dataclass(frozen=True, slots=True)
class Request:
    """One request: the messages, and the seed of the answer."""

    messages: Sequence[Message]
    seed: int


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, or `why` there is none. The model's own counts are None if not reported; `finish`: why it ended."""

    text: str | None = None
    prompt_tokens: int | None = None
    answer_tokens: int | None = None
    finish: str | None = None
    why: str = ""


class Model(Protocol):
    """A language model."""

    name: str

    def ask(self, requests: Sequence[Request], sampling: Sampling, label: str) -> list[Answer]:
        """Return the answers in the order of the requests. Raises: UserError if none can be answered."""


class Endpoint:
    """A model by its name at an endpoint.

    Args: pause: seconds before the first retry; doubles with each retry. again: ignore cached answers.
    Raises: UsageError if the URL is invalid.
    """

    def __init__(self, name: str, service: Service, pause: float = 1.0, *, again: bool = False) -> None:
        self._target, self._url = find_address(service), service.url.rstrip("/")
        self.name, self._service, self._pause, self._again = name, service, pause, again
        self._key = os.environ.get(service.key_name) or ""

    def ask(self, requests: Sequence[Request], sampling: Sampling, label: str) -> list[Answer]:
        """Return the answers in the order of the requests, cached ones first.

        Raises: UserError if the endpoint refuses us, or an answer cannot be cached.
        """
        parts = ([f"{self.name}@{self._url}", asdict(sampling), asdict(request)] for request in requests)
        keys = [hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest() for part in parts]
        answers: dict[int, Answer] = {}
        with OutcomeStore("synthesis") as store:
            for index, key in enumerate(keys):
                if not self._again and (kept := store.recall(key)) is not None:
                    answers[index] = _read_answer(*json.loads(kept))
            if answers:
                note(f"{self.name}: {plural(len(answers), 'answer')} from an earlier run")
            waiting = [index for index in range(len(requests)) if index not in answers]
            left = iter(waiting)

            async def work(client: httpx2.AsyncClient) -> None:
                for index in left:
                    request = requests[index]
                    body = {"model": self.name, "messages": list(request.messages), "seed": request.seed}
                    answer = answers[index] = await self._retry(client, body | asdict(sampling))
                    if answer.text is not None:
                        facts = [answer.text, answer.prompt_tokens, answer.answer_tokens, answer.finish]
                        store.remember(keys[index], json.dumps(facts).encode())
                    advance(1)

            async def work_in_parallel() -> None:
                agent = {"Accept-Encoding": "identity", "User-Agent": "lemur-curator"}
                headers = {"Authorization": f"Bearer {self._key or 'none'}"} | agent
                # The client's own time limits are for one read each; ours is for the whole.
                async with httpx2.AsyncClient(headers=headers, follow_redirects=False, timeout=None) as client:
                    await asyncio.gather(*(work(client) for _ in range(self._service.at_once)))

            if waiting:
                with progress(f"{self.name}: {label}", len(waiting), "answers") as advance:
                    try:
                        asyncio.run(work_in_parallel())
                    except sqlite3.Error as error:
                        raise UserError(
                            f"an answer cannot be cached: {error}; free space, or set LEMUR_CURATOR_CACHE to another"
                            " folder, and run again: earlier answers are kept"
                        ) from error
        return [answers[index] for index in range(len(requests))]

    async def _retry(self, client: httpx2.AsyncClient, body: Json) -> Answer:
        pause = self._pause
        for attempt in range(self._service.retries + 1):
            try:
                return await self._post(client, body)
            except RetryableError as trouble:
                why = str(trouble)
            if attempt < self._service.retries:
                await asyncio.sleep(min(pause, _LONGEST_PAUSE))
                pause = min(2 * pause, _LONGEST_PAUSE)
        return Answer(why=f"no answer in {self._service.retries + 1} requests; last error: {why}")

    async def _post(self, client: httpx2.AsyncClient, body: Json) -> Answer:
        """Return the answer in the response to one request. Raises: UserError, RetryableError if retrying may help."""
        try:
            async with (
                asyncio.timeout(self._service.timeout),
                client.stream("POST", self._target, json=body) as response,
            ):
                if not response.is_success:
                    return self._refuse(response, await _read(response, _MAX_MESSAGE))
                content = await _read(response, _MAX_BYTES)
        except TimeoutError as error:
            raise RetryableError(f"no answer within {self._service.timeout:g} s") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
            raise RetryableError(self._clean(error)) from error
        if content is None:
            return Answer(why=f"the response is longer than {_MAX_BYTES >> 20} MiB, or in more than {_MAX_PARTS} parts")
        try:
            # Python refuses to read very long numbers; the answer was paid for.
            completion = json.loads(content, parse_int=lambda text: int(text) if len(text) <= _DIGITS else None)
            choice = completion["choices"][0]
            text, usage = choice["message"]["content"], completion.get("usage")
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
            raise RetryableError(f"the response is not a chat completion: {self._clean(describe(error))}") from error
        if text is None:
            return Answer(why="the endpoint returned a message without text")
        if not isinstance(text, str):
            raise RetryableError(f"the response is not a chat completion: its content is of type {type(text).__name__}")
        usage = usage if isinstance(usage, dict) else {}
        text = self._without_key(text) if len(self._key) >= _SECRET else text
        counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
        return _read_answer(text, *counts, choice.get("finish_reason"))

    def _refuse(self, response: httpx2.Response, content: bytes | None) -> Answer:
        """Return the failure of a refused request. Raises: UserError if no retry can help; RetryableError."""
        status = response.status_code
        said = "a long message" if content is None else content.decode("utf-8", "replace") or response.reason_phrase
        if response.has_redirect_location:
            said = f"redirects to {response.headers['Location']}; pass the final address"
        message = f"status {status}: {self._clean(said)}"
        if status in _PASSING:
            raise RetryableError(message)
        if status in _OURS or response.has_redirect_location:
            key = "is the key right? it is read from" if self._key else "a key would be read from"
            kept = "what it answered before is cached"
            raise UserError(f"{self._url}: refuses with {message}; {key} {self._service.key_name}; {kept}")
        return Answer(why=message)

    def _clean(self, error: object) -> str:
        return one_line(clean_text(self._without_key(str(error) or type(error).__name__)), _CHARACTERS)

    def _without_key(self, text: str) -> str:
        """Remove the key from a message: an endpoint may repeat it."""
        return text.replace(self._key, "(key)") if self._key else text


def _read_answer(text: str, prompt_tokens: object, answer_tokens: object, finish: object) -> Answer:
    """Return an answer with what an endpoint reports about it; counts that count nothing, and reasons that are not a
    word, are left out."""
    prompt, answered = (
        number if type(number) is int and 0 <= number < _MAX_TOKENS else None
        for number in (prompt_tokens, answer_tokens)
    )
    reason = finish if isinstance(finish, str) and _FINISH.fullmatch(finish) else None
    return Answer(clean_text(text), prompt, answered, reason)


def find_address(service: Service) -> str:
    """Return the address of chat completions of an endpoint, which may lack `/v1`. Raises: UsageError if it is none."""
    url = service.url
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and url.isprintable()
    except ValueError:  # brackets that do not match, a port out of range
        valid = False
    if not valid or parts.username or parts.password:
        shown = url if url.isprintable() else repr(url)
        raise UsageError(
            f"--base-url {shown}: use http://HOST:PORT/v1; set a key in the environment, {service.key_name}"
        )
    path = parts.path.rstrip("/")
    if not path.endswith("/chat/completions"):
        path = f"{path.removesuffix('/v1')}/v1/chat/completions"
    return parts._replace(path=path).geturl()


async def _read(response: httpx2.Response, limit: int) -> bytes | None:
    """Return the body as it was sent; None if it is longer than the limit of bytes, or of more parts than are read."""
    content, parts = bytearray(), 0
    async for part in response.aiter_raw():
        content += part
        parts += 1
        if len(content) > limit or parts > _MAX_PARTS:
            return None
    return bytes(content)
