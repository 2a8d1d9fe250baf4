"""Plan the attempts: the blocks of each, drawn from a library by seed.

A block is eligible if its conformance can be checked and its facts may leave this machine: it ran with constructor
arguments that are plain values, takes and returns one tensor, has a graph, and has a permissive license.
"""

import ast
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extract.search.index import Filters, open_index, search
from lemur.synthesis.options import AttemptOptions
from lemur_core.files import Json
from lemur_core.files.errors import UserError
from manifests.folders.formats import EXTRACTION
from manifests.provenance import SPECS
from manifests.provenance.licenses import is_permissive
from manifests.records import Block, Spec

_HITS = 20  # search hits to draw from
_RUNS = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class RequestedBlock:
    """An eligible block: its spec, the arguments that it ran with, and its hidden source."""

    spec: Spec
    arguments: Mapping[str, Any]
    source: str  # never shown to a model: the originality of its answer is measured by comparison with this

    @property
    def name(self) -> str:
        """Name of the class."""
        return self.spec.name


@dataclass(frozen=True, slots=True)
class Attempt:
    """The request of one attempt; `seed` is passed to the model."""

    number: int
    requested: tuple[RequestedBlock, ...]
    goal: str
    seed: int


def draw(library: Path, options: AttemptOptions) -> tuple[list[Attempt], int]:
    """Draw the attempts; also return the number of eligible blocks. Each block is used once before any is repeated.

    Raises: UserError if the library is damaged, or no block is eligible.
    """
    pool = _list_eligible(library, options.query)
    if not pool:
        raise UserError(
            f"{library}: no block is eligible: none of the selected ones ran with plain arguments, one tensor in and"
            " one out, and has a graph and a permissive license; select others"
        )
    generator = random.Random(options.seed)

    def cycle() -> Iterator[RequestedBlock]:
        while True:
            yield from generator.sample(pool, len(pool))

    blocks, names = cycle(), {block.name for block in pool}
    attempts = []
    for number in range(options.attempts):
        selected: dict[str, RequestedBlock] = {}
        # Keyed by name: a file cannot define two classes with the same name.
        while len(selected) < min(options.blocks, len(names)):
            block = next(blocks)
            selected.setdefault(block.name, block)
        attempts.append(Attempt(number, tuple(selected.values()), options.goal, options.seed + number))
    return attempts, len(pool)


def _list_eligible(library: Path, query: str | None) -> list[RequestedBlock]:
    """Return the eligible blocks of a library that match a query, in its order. Raises: UserError if it is damaged."""
    EXTRACTION.open(library)
    wanted = None
    if query is not None:
        hits = search(open_index(library), query, Filters(all_words=True), _HITS).hits
        wanted = {hit["block"] for hit in hits}
    try:
        columns = ("block", "level", "arguments", "license", "lean_license", "code")
        rows = {
            row.block: row
            for row in EXTRACTION.rows(library, Block, columns)
            if row.level in _RUNS and (wanted is None or row.block in wanted)
        }
        with (library / SPECS).open(encoding="utf-8") as lines:
            blocks = [_make_eligible(facts, rows.get(facts["block"])) for facts in map(json.loads, lines)]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{library}: damaged: {str(error).splitlines()[0]}; run `lemur verify`, or extract it again"
        ) from error
    return [block for block in blocks if block is not None]


def _make_eligible(facts: Json, row: Block | None) -> RequestedBlock | None:
    if row is None or row.arguments is None:
        return None
    spec, arguments = Spec.model_validate(facts), json.loads(row.arguments)
    # A network can drop a block that does nothing unnoticed, and a block named Net would be taken for the network.
    if spec.algorithm is None or spec.algorithm.returns != "tensor" or spec.identity_in_eval or spec.name == "Net":
        return None
    if not is_permissive(row.lean_license or row.license) or not _has_plain_arguments(arguments):
        return None
    return RequestedBlock(spec, arguments, row.code or "")


def _has_plain_arguments(arguments: Mapping[str, Any]) -> bool:
    """Return whether the constructor arguments are literals, and the call takes one tensor."""
    init, call = arguments["init"], arguments["forward"]
    try:
        for text in (*init["args"], *init["kwargs"].values()):
            ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    inputs = (*call["args"], *call["kwargs"].values())
    return arguments.get("method", "forward") == "forward" and len(inputs) == 1 and inputs[0].startswith("torch.randn(")
