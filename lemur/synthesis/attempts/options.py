"""The options of `lemur synthesize`, declared once for the command line and for Python."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from lemur_core.files.errors import UsageError
from manifests.options import Option

_MODEL, _REQUEST = "The model", "The request"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an answer is sampled; `max_tokens` limits its length."""

    temperature: Annotated[float, Option("0: no randomness.", metavar="T", least=0, most=2, panel=_MODEL)] = 0.7
    top_p: Annotated[float, Option("Nucleus sampling (top-p).", metavar="P", least=0.01, most=1, panel=_MODEL)] = 0.95
    max_tokens: Annotated[int, Option("Maximum tokens per answer.", metavar="N", least=16, panel=_MODEL)] = 4096


@dataclass(frozen=True, slots=True)
class Service:
    """How to reach the models. `url`: the endpoint of models given without one; None if they are on this machine."""

    url: Annotated[
        str | None,
        Option(
            "An OpenAI-compatible endpoint, like http://HOST:8000/v1.", flag="--base-url", metavar="URL", panel=_MODEL
        ),
    ] = None
    key_name: Annotated[
        str, Option("Environment variable with the endpoint's key.", flag="--key-env", metavar="NAME", panel=_MODEL)
    ] = "LEMUR_MODEL_KEY"
    at_once: Annotated[int, Option("Parallel requests.", flag="--concurrency", metavar="N", least=1, panel=_MODEL)] = 4
    retries: Annotated[int, Option("Retries after temporary errors.", metavar="N", least=0, panel=_MODEL)] = 5
    timeout: Annotated[float, Option("Per request.", metavar="SECONDS", least=1, most=86_400, panel=_MODEL)] = 600.0
    tokens: Annotated[
        int | None,
        Option("Token budget of all prompts and answers.", flag="--token-budget", metavar="N", least=1, panel=_MODEL),
    ] = None
    seconds: Annotated[
        float | None,
        Option("Time budget for requests in this run.", flag="--time-budget", metavar="SECONDS", least=1, panel=_MODEL),
    ] = None
    again: Annotated[bool, Option("Ignore cached answers of earlier runs.", flag="--ask-again", panel=_MODEL)] = False


@dataclass(frozen=True, slots=True)
class AttemptOptions:
    """The requests to the models, with blocks from a file of specs, from a search, or from the whole library.

    Raises: UsageError if both a file and a search select the blocks.
    """

    attempts: Annotated[int, Option("Number of attempts.", flag="--n", metavar="N", least=1, panel=_REQUEST)] = 8
    spec: Annotated[
        Path | None, Option("Use the blocks in this file, from lemur search --spec.", metavar="FILE", panel=_REQUEST)
    ] = None
    query: Annotated[
        str | None, Option("Use the blocks that match this query.", flag="--search", metavar="QUERY", panel=_REQUEST)
    ] = None
    goal: Annotated[str, Option("The purpose of the network.", metavar="TEXT", panel=_REQUEST)] = ""
    blocks: Annotated[int, Option("Number of blocks per network.", metavar="K", least=0, most=8, panel=_REQUEST)] = 1
    parents: Annotated[
        Path | None, Option("Let the model change networks of this snapshot.", metavar="SNAPSHOT", panel=_REQUEST)
    ] = None
    rounds: Annotated[
        int, Option("Maximum number of repair rounds.", metavar="R", least=0, most=10, panel=_REQUEST)
    ] = 2
    planned: Annotated[bool, Option("Request a plan first.", flag="--plan", panel=_REQUEST)] = False
    seed: Annotated[int, Option("Seed of blocks and answers.", metavar="N", least=0, panel=_REQUEST)] = 0

    def __post_init__(self) -> None:
        if self.spec is not None and self.query is not None:
            raise UsageError("--spec and --search: both select the blocks; omit one")


@dataclass(frozen=True, slots=True)
class ShortTraining:
    """A short training of the accepted networks. `db`: the LEMUR database to add them to."""

    data: str
    epochs: int = 1
    images: int | None = None
    db: Path | None = None
