"""Synthesis of new networks: a language model writes them from specs; only those that pass every step are kept.

The options of `lemur synthesize` are declared here once, for the command line and for Python.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from manifests.options import Option

_model, _request, _resources = (
    partial(Option, panel=panel) for panel in ("The model", "The request", "Resources and sandbox")
)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an answer is sampled; `max_tokens` limits its length."""

    temperature: Annotated[float, _model("0: no randomness.", metavar="T", least=0, most=2)] = 0.7
    max_tokens: Annotated[int, _model("Maximum tokens per answer.", metavar="N", least=16)] = 4096


@dataclass(frozen=True, slots=True)
class Service:
    """An OpenAI-compatible endpoint, its key, and requests to it; `timeout` in seconds, of one request."""

    url: Annotated[str, _model("An OpenAI-compatible endpoint.", flag="--base-url", metavar="URL")] = (
        "http://localhost:8000/v1"
    )
    key_name: Annotated[
        str, _model("Environment variable with the endpoint's key.", flag="--key-env", metavar="NAME")
    ] = "LEMUR_MODEL_KEY"
    at_once: Annotated[int, _model("Parallel requests.", flag="--concurrency", metavar="N", least=1)] = 4
    retries: int = 5  # after temporary errors, with growing pauses
    timeout: Annotated[float, _model("Per request.", metavar="SECONDS", least=1, most=86_400)] = 600.0


@dataclass(frozen=True, slots=True)
class AttemptOptions:
    """The requests to the model, with blocks from a search or from the whole library, and how answers are checked."""

    attempts: Annotated[int, _request("Number of attempts.", flag="--n", metavar="N", least=1)] = 8
    query: Annotated[
        str | None, _request("Draw from the 20 best hits of lemur search.", flag="--search", metavar="QUERY")
    ] = None
    seed: Annotated[int, _request("Seed of blocks and answers.", metavar="N", least=0)] = 0
    against: Annotated[
        tuple[Path, ...],
        _request("Networks must be new compared with this folder, too (repeatable).", metavar="DIR", read=Path),
    ] = ()
    license: Annotated[str, Option("License of the networks, stated by you.", metavar="SPDX")] = "NOASSERTION"
    jobs: Annotated[int | None, _resources("Worker processes (default: CPU count).", metavar="N", least=1)] = None
    unsafe: Annotated[
        bool,
        _resources("Run foreign code without the sandbox: only code that you trust.", flag="--unsafe-no-sandbox"),
    ] = False
