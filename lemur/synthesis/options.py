"""The options of `lemur synthesize`, declared once for the command line and for Python."""

from dataclasses import dataclass
from typing import Annotated

from manifests.options import Option

_MODEL, _REQUEST = "The model", "The request"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an answer is sampled; `max_tokens` limits its length."""

    temperature: Annotated[float, Option("0: no randomness.", metavar="T", least=0, most=2, panel=_MODEL)] = 0.7
    max_tokens: Annotated[int, Option("Maximum tokens per answer.", metavar="N", least=16, panel=_MODEL)] = 4096


@dataclass(frozen=True, slots=True)
class Service:
    """An OpenAI-compatible endpoint, its key, and requests to it; `timeout` in seconds, of one request."""

    url: Annotated[str, Option("An OpenAI-compatible endpoint.", flag="--base-url", metavar="URL", panel=_MODEL)] = (
        "http://localhost:8000/v1"
    )
    key_name: Annotated[
        str, Option("Environment variable with the endpoint's key.", flag="--key-env", metavar="NAME", panel=_MODEL)
    ] = "LEMUR_MODEL_KEY"
    at_once: Annotated[int, Option("Parallel requests.", flag="--concurrency", metavar="N", least=1, panel=_MODEL)] = 4
    retries: int = 5  # after temporary errors, with growing pauses
    timeout: Annotated[float, Option("Per request.", metavar="SECONDS", least=1, most=86_400, panel=_MODEL)] = 600.0


@dataclass(frozen=True, slots=True)
class AttemptOptions:
    """The requests to the model, with blocks from a search or from the whole library."""

    attempts: Annotated[int, Option("Number of attempts.", flag="--n", metavar="N", least=1, panel=_REQUEST)] = 8
    query: Annotated[
        str | None, Option("Use the blocks that match this query.", flag="--search", metavar="QUERY", panel=_REQUEST)
    ] = None
    goal: Annotated[str, Option("The purpose of the network.", metavar="TEXT", panel=_REQUEST)] = ""
    seed: Annotated[int, Option("Seed of blocks and answers.", metavar="N", least=0, panel=_REQUEST)] = 0
