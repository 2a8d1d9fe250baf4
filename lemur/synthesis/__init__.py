"""Synthesis of new networks: a language model writes them from specs; only those that pass every step are kept.

The options of `lemur synthesize` are declared here once, for the command line and for Python.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from manifests.options import Option

_MODEL, _REQUEST, _RESOURCES = "The model", "The request", "Resources and sandbox"


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
    """The requests to the model, with blocks from a search or from the whole library, and how answers are checked."""

    attempts: Annotated[int, Option("Number of attempts.", flag="--n", metavar="N", least=1, panel=_REQUEST)] = 8
    query: Annotated[
        str | None, Option("Use the blocks that match this query.", flag="--search", metavar="QUERY", panel=_REQUEST)
    ] = None
    goal: Annotated[str, Option("The purpose of the network.", metavar="TEXT", panel=_REQUEST)] = ""
    seed: Annotated[int, Option("Seed of blocks and answers.", metavar="N", least=0, panel=_REQUEST)] = 0
    against: Annotated[
        tuple[Path, ...],
        Option(
            "Networks must be new compared with this folder, too (repeatable).",
            metavar="DIR",
            panel=_REQUEST,
            read=Path,
        ),
    ] = ()
    license: Annotated[str, Option("License of the networks, stated by you.", metavar="SPDX")] = "NOASSERTION"
    jobs: Annotated[
        int | None, Option("Worker processes (default: CPU count).", metavar="N", least=1, panel=_RESOURCES)
    ] = None
    unsafe: Annotated[
        bool,
        Option(
            "Run foreign code without the sandbox: only code that you trust.",
            flag="--unsafe-no-sandbox",
            panel=_RESOURCES,
        ),
    ] = False
