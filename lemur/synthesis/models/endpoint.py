"""A model behind an OpenAI-compatible endpoint: vLLM, llama.cpp, Ollama, TGI and the like.

Several requests run in parallel; temporary errors (busy, disconnected, invalid JSON) are retried after growing pauses.
Without a key, the client would send the user's Hub token to any endpoint, so a key is always set.

Source: https://huggingface.co/docs/huggingface_hub/guides/inference
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from lemur.synthesis.models.model import Answer, NoAnswer, Request, Sampling, Take, TokenBudget
from lemur_core.files.errors import UsageError, UserError
from lemur_core.sandbox.server.foreign import one_line

#: The key to send if none is set.
PLACEHOLDER = "none"

_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_OURS = frozenset({401, 403, 404, 405})  # retrying would not help
_LONGEST_PAUSE = 60.0  # seconds
_CHARACTERS = 300  # of an endpoint's message
_SECRET = 16  # characters; a shorter key is a placeholder, and may be a word of an answer


class _Passing(Exception):  # noqa: N818 (an outcome, not a fault)
    """A temporary error. `pause`: seconds that the endpoint requests."""

    def __init__(self, why: str, pause: float | None = None) -> None:
        super().__init__(why)
        self.pause = pause


class Endpoint:
    """A model by its name at an endpoint.

    Args:
        key_name: the environment variable with the key.
        budget: no request is sent once it is spent.
        at_once: maximum number of parallel requests.
        retries: retries after a temporary error.
        timeout: seconds for one request.
        pause: seconds before the first retry; doubles with each retry.
    Raises: UsageError if the URL is invalid.
    """

    digest: str | None = None

    def __init__(
        self,
        name: str,
        url: str,
        *,
        key_name: str,
        budget: TokenBudget,
        at_once: int = 4,
        retries: int = 5,
        timeout: float = 600.0,
        pause: float = 1.0,
    ) -> None:
        check_url(url, key_name)
        self.name, self.identity = name, f"{name}@{url.rstrip('/')}"
        self._url, self._budget = url.rstrip("/"), budget
        self._key, self._key_name = os.environ.get(key_name) or PLACEHOLDER, key_name
        self._at_once, self._retries, self._timeout, self._pause = at_once, retries, timeout, pause

    def ask(self, requests: Sequence[Request], sampling: Sampling, take: Take) -> None:
        """Hand `take` the answer to each request. Raises: UserError if the endpoint refuses them all."""
        asyncio.run(self._ask(enumerate(requests), sampling, take))

    async def _ask(self, requests: Iterator[tuple[int, Request]], sampling: Sampling, take: Take) -> None:
        from huggingface_hub import AsyncInferenceClient

        async with AsyncInferenceClient(base_url=self._url, api_key=self._key, timeout=self._timeout) as client:

            async def work() -> None:
                for place, request in requests:
                    spent = self._budget.spent()
                    take(place, NoAnswer(spent) if spent else await self._answer(client, request, sampling))

            await asyncio.gather(*(work() for _ in range(self._at_once)))

    async def _answer(self, client: Any, request: Request, sampling: Sampling) -> Answer | NoAnswer:
        for attempt in range(self._retries + 1):
            try:
                return await self._once(client, request, sampling)
            except _Passing as trouble:
                why = str(trouble)
                pause = self._pause * 2**attempt if trouble.pause is None else trouble.pause
            if attempt < self._retries:
                await asyncio.sleep(min(pause, _LONGEST_PAUSE))
        return NoAnswer(f"no answer in {self._retries + 1} requests; last error: {why}")

    async def _once(self, client: Any, request: Request, sampling: Sampling) -> Answer | NoAnswer:
        from huggingface_hub.errors import HfHubHTTPError, InferenceTimeoutError

        # The client sends {"type": "json_object", "value": schema}: all of these servers then answer with JSON, and TGI
        # follows the schema.
        form = request.schema and {
            "type": "json_schema",
            "json_schema": {"name": "plan", "schema": dict(request.schema), "strict": True},
        }
        try:
            completion = await client.chat_completion(
                messages=list(request.messages),
                model=self.name,
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                seed=request.seed,
                response_format=form,
            )
            choice = completion.choices[0]
            text = choice.message.content
            if not isinstance(text, str):
                return NoAnswer("the endpoint returned a message without text")
            text = self._without_key(text) if len(self._key) >= _SECRET else text
        except InferenceTimeoutError as error:
            raise _Passing(f"no answer within {self._timeout:g} s") from error
        except HfHubHTTPError as error:
            return self._refuse(error)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise _Passing(f"the response is not a chat completion: {self._clean_message(error)}") from error
        except Exception as error:
            if not isinstance(error, HfHubHTTPError.__bases__):  # not a transport error, such as a lost connection
                raise
            raise _Passing(self._clean_message(error)) from error
        usage = completion.usage
        if usage is None:
            return Answer(text, finish=choice.finish_reason)
        return Answer(text, usage.prompt_tokens, usage.completion_tokens, choice.finish_reason)

    def _refuse(self, error: Any) -> NoAnswer:
        """Return the failure of a refused request. Raises: UserError if retrying cannot help, _Passing if it may."""
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
        message = self._clean_message(response.text if response is not None and response.text else error)
        if status in _OURS:
            key = "is the key right? it is read from" if self._key != PLACEHOLDER else "a key would be read from"
            raise UserError(f"{self._url}: refuses with status {status}: {message}; {key} {self._key_name}") from error
        if status is None or status in _PASSING:
            raise _Passing(f"status {status}: {message}", _seconds(response)) from error
        return NoAnswer(f"status {status}: {message}")

    def _clean_message(self, error: object) -> str:
        return one_line(self._without_key(str(error) or type(error).__name__), _CHARACTERS)

    def _without_key(self, text: str) -> str:
        """Remove the key from a message: an endpoint may repeat it."""
        return text if self._key == PLACEHOLDER else text.replace(self._key, "(key)")


def check_url(url: str, key_name: str) -> None:
    """Raise UsageError unless it is the URL of an endpoint."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.username or parts.password:
        raise UsageError(f"--base-url {url}: use http://HOST:PORT/v1; set a key in the environment, {key_name}")


def _seconds(response: Any) -> float | None:
    """Return the seconds that an endpoint asks to wait."""
    try:
        return max(0.0, float(response.headers.get("Retry-After")))
    except (AttributeError, TypeError, ValueError):
        return None
