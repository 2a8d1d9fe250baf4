"""The models: behind an OpenAI-compatible endpoint (vLLM, llama.cpp, Ollama, TGI and the like), or on this machine.

Endpoint: several requests run in parallel; temporary errors (busy, disconnected, not a chat completion) are retried
after growing pauses. Whatever an endpoint sends costs its own attempt only: the time limit of a request includes the
last byte of its response, and a response has a maximum size, is not unpacked, and does not lead to another address.

This machine: a model of `transformers`, queried sequentially; its own code is never run. A model with a chat template
gets the messages in it; one without continues a file that begins with the request as comments. Extra: `pip install
lemur-curator[synthesis]`.
"""

import asyncio
import json
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx2
from pydantic import BaseModel, Field, ValidationError

from lemur.experts.local_models import find_model, import_transformers, load_model, model_name
from lemur.synthesis.attempts.asking import MAX_ANSWER, Answer, NoAnswer, Request, Take, TokenBudget, read_answer
from lemur.synthesis.attempts.options import Sampling, Service
from lemur_core.files.errors import UsageError, UserError
from lemur_core.sandbox.server.foreign import one_line
from lemur_core.sandbox.server.received import clean_text

_PARTS = (".safetensors", ".json", ".model", ".txt", ".jinja")  # suffixes of the files of a model on this machine

#: The key to send if none is set.
PLACEHOLDER = "none"

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


class _Message(BaseModel):
    content: str | None


class _AnswerChoice(BaseModel):
    message: _Message
    finish_reason: object = None


class _Completion(BaseModel):
    """The part of a chat completion that is used. What is only reported may have any type here: the answer counts."""

    choices: list[_AnswerChoice] = Field(min_length=1)
    usage: object = None


class Endpoint:
    """A model by its name at an endpoint.

    Args:
        budget: no request is sent once it is spent, and its seconds end those under way.
        pause: seconds before the first retry; doubles with each retry.
    Raises: UsageError if the URL is invalid.
    """

    digest: str | None = None

    def __init__(self, name: str, url: str, service: Service, budget: TokenBudget, pause: float = 1.0) -> None:
        parts = check_url(url, service.key_name)
        self.name, self.identity = name, f"{name}@{url.rstrip('/')}"
        self._url, self._service, self._budget, self._pause = url.rstrip("/"), service, budget, pause
        self._target = parts._replace(path=_complete_path(parts.path.rstrip("/"))).geturl()
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
                    stopped = self._budget.spent() or self._refusal
                    take(index, NoAnswer(stopped) if stopped else await self._answer(client, request, sampling))

            await asyncio.gather(*(work() for _ in range(self._service.at_once)))

    async def _answer(self, client: httpx2.AsyncClient, request: Request, sampling: Sampling) -> Answer | NoAnswer:
        """Return the answer, or why there is none by the end of the time budget."""
        try:
            async with asyncio.timeout(self._budget.seconds_left):
                answer = await self._retry(client, self._body(request, sampling))
        except TimeoutError:
            return NoAnswer(self._budget.seconds_spent)
        self._answered |= isinstance(answer, Answer)
        return answer

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

    def _body(self, request: Request, sampling: Sampling) -> dict[str, object]:
        body: dict[str, object] = {
            "model": self.name,
            "messages": list(request.messages),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": request.seed,
        }
        if request.schema:
            # All of these servers then answer with JSON, and TGI follows the schema.
            body["response_format"] = {"type": "json_object", "value": dict(request.schema)}
        return body

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
            completion = _Completion.model_validate(
                json.loads(content, parse_int=lambda digits: int(digits) if len(digits) <= _DIGITS else None),
                strict=True,
            )
        except (ValueError, RecursionError) as error:
            reason: object = error
            if isinstance(error, ValidationError):
                fault = error.errors()[0]
                reason = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
            raise _Passing(f"the response is not a chat completion: {self._clean_message(reason)}") from error
        text = completion.choices[0].message.content
        if text is None:
            return NoAnswer("the endpoint returned a message without text")
        if len(text) > MAX_ANSWER:
            return NoAnswer(f"the answer has {len(text):,} characters; at most {MAX_ANSWER:,} are read")
        usage = completion.usage if isinstance(completion.usage, dict) else {}
        return read_answer(
            self._without_key(text) if len(self._key) >= _SECRET else text,
            usage.get("prompt_tokens"),
            usage.get("completion_tokens"),
            completion.choices[0].finish_reason,
        )

    def _refuse(self, response: httpx2.Response, content: bytes) -> NoAnswer:
        """Return the failure of a refused request. Raises: UserError if retrying cannot help, _Passing if it may."""
        status = response.status_code
        if len(content) > _MAX_MESSAGE:
            content = content[: -len(self._key)]  # which may begin there
        message = self._clean_message(content.decode("utf-8", "replace") or response.reason_phrase)
        if status in _PASSING:
            raise _Passing(f"status {status}: {message}", _seconds(response))
        if status not in _OURS and not response.has_redirect_location:
            return NoAnswer(f"status {status}: {message}")
        if response.has_redirect_location:
            elsewhere = self._clean_message(response.headers["Location"])
            self._refusal = f"status {status}: redirects to {elsewhere}; pass the final address"
        else:
            key = "is the key right? it is read from" if self._key != PLACEHOLDER else "a key would be read from"
            self._refusal = f"refuses with status {status}: {message}; {key} {self._service.key_name}"
        if not self._answered:
            raise UserError(f"{self._url}: {self._refusal}")
        return NoAnswer(self._refusal)  # what was answered before is worth writing; no further request is sent

    def _clean_message(self, error: object) -> str:
        return one_line(clean_text(self._without_key(str(error) or type(error).__name__)), _CHARACTERS)

    def _without_key(self, text: str) -> str:
        """Remove the key from a message: an endpoint may repeat it."""
        return text if self._key == PLACEHOLDER else text.replace(self._key, "(key)")


def check_url(url: str, key_name: str) -> SplitResult:
    """Return the parts of an endpoint's URL. Raises: UsageError unless it is one."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and url.isprintable()
    except ValueError:  # brackets that do not match, a port out of range
        valid = False
    if not valid or parts.username or parts.password:
        shown = url if url.isprintable() else repr(url)
        raise UsageError(f"--base-url {shown}: use http://HOST:PORT/v1; set a key in the environment, {key_name}")
    return parts


def _complete_path(path: str) -> str:
    """Return the path of chat completions below that of an endpoint, which may lack `/v1`."""
    if path.endswith("/chat/completions"):
        return path
    return f"{path}/chat/completions" if path.endswith("/v1") else f"{path}/v1/chat/completions"


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


# -- a model on this machine --------------------------------------------


class LocalModel:
    """A causal language model by its folder, GGUF file, package or name on the Hub.

    Raises: UserError if transformers is not installed, or the model cannot be loaded.
    """

    def __init__(self, name: str, *, budget: TokenBudget) -> None:
        transformers = import_transformers(f"--model {name}", "'lemur-curator[synthesis]', or pass --base-url")
        self._tokenizer, self._model = load_model(transformers, name, "--model", ", or --base-url URL")
        files = find_model(name, "--model")
        self.name = model_name(name)
        commit = getattr(self._model.config, "_commit_hash", None)
        self.digest = commit if files.folder is None else files.digest(*_PARTS)
        self.identity = f"{self.name}#{self.digest}"
        self._budget = budget

    def ask(self, requests: Sequence[Request], sampling: Sampling, take: Take) -> None:
        """Hand `take` the answer to each request, in their order."""
        for index, request in enumerate(requests):
            spent = self._budget.spent()
            take(index, NoAnswer(spent) if spent else self._answer(request, sampling))

    def _answer(self, request: Request, sampling: Sampling) -> Answer | NoAnswer:
        import torch

        chats = self._tokenizer.chat_template is not None
        text = request.opening
        if chats:
            messages = list(request.messages)
            text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        # A chat template writes the special tokens itself.
        ids = self._tokenizer(text, return_tensors="pt", add_special_tokens=not chats).input_ids
        room = getattr(self._model.config, "max_position_embeddings", None) or ids.shape[1] + sampling.max_tokens
        new = min(sampling.max_tokens, room - ids.shape[1])
        if new < 1:
            return NoAnswer(f"the prompt of {ids.shape[1]:,} tokens leaves no room in a context of {room:,}")
        drawn: dict[str, Any] = {"do_sample": False}
        if sampling.temperature > 0:
            drawn = {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
        torch.manual_seed(request.seed)
        end = self._tokenizer.eos_token_id
        padding = self._tokenizer.pad_token_id if self._tokenizer.pad_token_id is not None else end
        with torch.inference_mode():
            generated = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, pad_token_id=padding, **drawn
            )[0, ids.shape[1] :]
        text = self._tokenizer.decode(generated, skip_special_tokens=True)
        ended = len(generated) < new or (end is not None and int(generated[-1]) == end)
        return Answer(
            text if chats else request.opening + text, ids.shape[1], len(generated), "stop" if ended else "length"
        )
