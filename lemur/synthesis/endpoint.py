"""The model: behind any OpenAI-compatible endpoint (vLLM, llama.cpp, Ollama and the like), with a cache of its answers.

Several requests run in parallel; temporary errors (busy, disconnected, not a chat completion) are retried after growing
pauses. Whatever an endpoint sends costs its own attempt only: the time limit of a request includes the last byte of its
response, and a response has a maximum number of bytes and parts, is not unpacked, and does not lead to another address.

An answer is cached as soon as it arrives, under everything that it depends on (address, model, prompt, sampling, seed):
a killed run resumes without repeating requests, and running it again sends none.
"""

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx2

from lemur.synthesis import Sampling, Service
from lemur_core.files import Json
from lemur_core.files.errors import RetryableError, UsageError, UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import note, progress
from lemur_core.sandbox.cached import OutcomeStore
from lemur_core.sandbox.server.foreign import one_line
from lemur_core.sandbox.server.received import clean_text, read_json
from manifests.folders.tables import describe

Message = dict[str, str]

_MAX_BYTES = 1 << 21  # of a response; the longest network of LEMUR 2.1.0 has 178,375 characters, of up to six bytes
_MAX_PARTS = 1 << 14  # that a response comes in
_MAX_MESSAGE = 1 << 16  # bytes of a refusal
_CHARACTERS = 300  # of an endpoint's message
_MAX_TOKENS = 2**31  # of a prompt or an answer
_FINISH = re.compile(r"[a-z_]{1,40}")
_TEMPORARY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_REFUSED = frozenset({401, 403, 404, 405})  # the next request would be refused, too
_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds, before the first retry and at most; each is twice the one before
_SECRET = 16  # characters; a shorter key is a placeholder, and may be a word of an answer


class Request(NamedTuple):
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


class Endpoint:
    """A model by its name at an endpoint. Raises: UsageError if the address is invalid."""

    def __init__(self, model: str, service: Service, sampling: Sampling) -> None:
        self._address = find_address(service)
        self._body: Json = {"model": model, **asdict(sampling)}
        self._service = service
        self._key = os.environ.get(service.key_name) or ""

    def ask(self, requests: Sequence[Request]) -> list[Answer]:
        """Return the answers in the order of the requests, cached ones first. Raises: UserError if it refuses us."""
        bodies = [self._body | {"messages": list(messages), "seed": seed} for messages, seed in requests]
        texts = (json.dumps([self._address, body], sort_keys=True) for body in bodies)
        keys = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        with OutcomeStore("synthesis") as store:
            known = {index: kept for index, key in enumerate(keys) if (kept := store.recall(key)) is not None}
            answers = {index: Answer(**json.loads(kept)) for index, kept in known.items()}
            waiting = [index for index in range(len(bodies)) if index not in answers]
            left = iter(waiting)

            async def work(client: httpx2.AsyncClient) -> None:
                for index in left:
                    answer = answers[index] = await self._ask(client, bodies[index])
                    if answer.text is not None:
                        store.remember(keys[index], json.dumps(asdict(answer)).encode())
                    advance(1)

            async def work_in_parallel() -> None:
                headers = {"Authorization": f"Bearer {self._key or 'none'}", "User-Agent": "lemur-curator"}
                headers["Accept-Encoding"] = "identity"
                # The client's own time limits are for one read each; ours is for the whole.
                async with httpx2.AsyncClient(headers=headers, follow_redirects=False, timeout=None) as client:
                    await asyncio.gather(*(work(client) for _ in range(self._service.at_once)))

            if known:
                note(f"{self._body['model']}: {plural(len(known), 'answer')} from an earlier run")
            if waiting:
                with progress(self._body["model"], len(waiting), "answers") as advance:
                    asyncio.run(work_in_parallel())
        return [answers[index] for index in range(len(bodies))]

    async def _ask(self, client: httpx2.AsyncClient, body: Json) -> Answer:
        """Return the answer to one request, which is repeated while that may help."""
        pause = _PAUSE
        for retries_left in reversed(range(self._service.retries + 1)):
            try:
                return await self._post(client, body)
            except RetryableError as error:
                why = str(error)
            if retries_left:
                await asyncio.sleep(min(pause, _LONGEST_PAUSE))
                pause *= 2
        return Answer(why=f"no answer in {self._service.retries + 1} requests; last error: {why}")

    async def _post(self, client: httpx2.AsyncClient, body: Json) -> Answer:
        """Return the answer in the response to one request. Raises: UserError; RetryableError if retrying may help."""
        try:
            async with (
                asyncio.timeout(self._service.timeout),
                client.stream("POST", self._address, json=body) as response,
            ):
                content = await _read(response, _MAX_BYTES if response.is_success else _MAX_MESSAGE)
        except TimeoutError as error:
            raise RetryableError(f"no answer within {self._service.timeout:g} s") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
            raise RetryableError(self._quote(str(error) or type(error).__name__)) from error
        if not response.is_success:
            return self._refuse(response, content)
        if content is None:
            return Answer(why=f"the response is longer than {_MAX_BYTES >> 20} MiB, or in more than {_MAX_PARTS} parts")
        try:
            return self._read_completion(read_json(content))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise RetryableError(f"the response is not a chat completion: {self._quote(describe(error))}") from error

    def _read_completion(self, completion: Json) -> Answer:
        """Return the answer in a chat completion. Raises: as its parts do that are missing, or something else."""
        choice = completion["choices"][0]
        text, finish, usage = choice["message"]["content"], choice.get("finish_reason"), completion.get("usage")
        if text is None:
            return Answer(why="the endpoint returned a message without text")
        if not isinstance(text, str):
            raise TypeError(f"its content is of type {type(text).__name__}")
        # Counts that count nothing, and a reason that is not a word, are as if not reported: the answer was paid for.
        stated = usage if isinstance(usage, dict) else {}
        prompt_tokens, answer_tokens = (
            number if type(number := stated.get(name)) is int and 0 <= number < _MAX_TOKENS else None
            for name in ("prompt_tokens", "completion_tokens")
        )
        finish = finish if isinstance(finish, str) and _FINISH.fullmatch(finish) else None
        text = text.replace(self._key, "(key)") if len(self._key) >= _SECRET else text
        return Answer(text, prompt_tokens, answer_tokens, finish)

    def _refuse(self, response: httpx2.Response, content: bytes | None) -> Answer:
        """Return the failure of a refused request. Raises: UserError if no request can help; RetryableError."""
        status = response.status_code
        said = "a long message" if content is None else content.decode("utf-8", "replace") or response.reason_phrase
        if response.has_redirect_location:
            said = f"redirects to {response.headers['Location']}; pass the final address"
        message = f"status {status}: {self._quote(said)}"
        if status in _TEMPORARY:
            raise RetryableError(message)
        if status in _REFUSED or response.has_redirect_location:
            key = "is the key right? it is read from" if self._key else "a key would be read from"
            kept = "what it answered before is cached"
            raise UserError(f"{self._service.url}: refuses with {message}; {key} {self._service.key_name}; {kept}")
        return Answer(why=message)

    def _quote(self, message: str) -> str:
        """Return an endpoint's message, which may repeat the key, as one short line without it."""
        said = message.replace(self._key, "(key)") if self._key else message
        return one_line(clean_text(said), _CHARACTERS)


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
