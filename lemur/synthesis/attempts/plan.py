"""Plan the attempts: the blocks of each, drawn from a library by seed, and the network to change, if any.

A block is eligible if its conformance can be checked and its facts may leave this machine: it ran with constructor
arguments that are plain values, takes and returns one tensor, has a graph, and has a permissive license. Several models
share one plan, so that each attempt can be compared across models.
"""

import ast
import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extract.search.index import Filters, open_index, search
from lemur.synthesis.attempts.options import AttemptOptions
from lemur_core.files import Json
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import check_plain
from manifests.folders.formats import EXTRACTION, SNAPSHOT
from manifests.provenance import SPECS
from manifests.provenance.licenses import is_permissive
from manifests.records import Block, LemurRecord, Spec

_HITS = 20  # search hits to draw from
_PARENT_LINES = 400  # maximum length of a network to change
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
class ParentNetwork:
    """A kept network of a snapshot, shown to the model to be changed."""

    nn: str
    id: str
    code: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """The request of one attempt; `seed` is passed to the model."""

    number: int
    requested: tuple[RequestedBlock, ...]
    parent: ParentNetwork | None
    goal: str
    seed: int


def draw(library: Path, options: AttemptOptions) -> tuple[list[Attempt], int]:
    """Draw the attempts; also return the number of eligible blocks. Each block is used once before any is repeated.

    Raises: UserError if no block, or no network to change, is eligible.
    """
    pool = list_eligible(library, options) if options.blocks else []
    if options.blocks and not pool:
        raise UserError(
            f"{library}: no block is eligible: none of the selected ones ran with plain arguments, one tensor in and"
            " one out, and has a graph and a permissive license; select others, or use --blocks 0 with --goal"
        )
    networks = [] if options.parents is None else list(_list_parents(options.parents))
    if options.parents is not None and not networks:
        raise UserError(f"{options.parents}: no kept network of at most {_PARENT_LINES} lines without trained weights")
    generator = random.Random(options.seed)
    shuffled, parents = _cycle(pool, generator), _cycle(networks, generator)
    attempts = []
    for number in range(options.attempts):
        selected: dict[str, RequestedBlock] = {}
        # Keyed by name: a file cannot define two classes with the same name.
        while len(selected) < min(options.blocks, len({block.name for block in pool})):
            block = next(shuffled)
            selected.setdefault(block.name, block)
        parent = next(parents) if networks else None
        attempts.append(Attempt(number, tuple(selected.values()), parent, options.goal, options.seed + number))
    return attempts, len(pool)


def _cycle(pool: Sequence[Any], generator: random.Random) -> Iterator[Any]:
    """Yield the whole pool in random order, endlessly, in a new order each time."""
    while pool:
        yield from generator.sample(pool, len(pool))


def list_eligible(library: Path, options: AttemptOptions) -> list[RequestedBlock]:
    """Return the eligible blocks of a library, in its order. Raises: UserError if it is damaged."""
    EXTRACTION.open(library)
    wanted = None
    if options.spec is not None:
        wanted = set(read_block_names(options.spec))
    elif options.query is not None:
        wanted = {
            hit["block"] for hit in search(open_index(library), options.query, Filters(all_words=True), _HITS).hits
        }
    try:
        columns = ("block", "level", "arguments", "license", "lean_license", "code")
        rows = {row.block: row for row in EXTRACTION.rows(library, Block, columns) if row.level in _RUNS}
        with (library / SPECS).open(encoding="utf-8") as lines:
            blocks = [_make_eligible(json.loads(line), rows, wanted) for line in lines]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{library}: damaged: {str(error).splitlines()[0]}; run `lemur verify`, or extract it again"
        ) from error
    if options.spec is not None and wanted and not wanted & rows.keys():
        raise UserError(f"{options.spec}: none of its blocks is in {library}; pass specs of that library")
    return [block for block in blocks if block is not None]


def read_block_names(path: Path) -> Iterable[str]:
    """Return the names of the blocks in a file of specs: candidates written by `lemur search --spec`, or JSON Lines.

    Raises: UserError if the file is neither.
    """
    check_plain(path)
    try:
        text = path.read_text(encoding="utf-8")
        return [row["block"] for row in _parse_specs(text)]
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise UserError(
            f"{path}: cannot be read as specs: {reason}; pass a file written by `lemur search --spec`, or JSON Lines"
        ) from error


def _parse_specs(text: str) -> list[Any]:
    """Parse candidates, a list of specs, one spec, or one spec per line."""
    if not text.lstrip().startswith('{"candidates"') and "\n{" in text.strip():
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    specs = json.loads(text)
    if isinstance(specs, dict) and "candidates" in specs:
        specs = specs["candidates"]
    return specs if isinstance(specs, list) else [specs]


def _make_eligible(facts: Json, rows: Mapping[str, Block], wanted: set[str] | None) -> RequestedBlock | None:
    row = rows.get(facts["block"])
    if row is None or row.arguments is None or (wanted is not None and facts["block"] not in wanted):
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


def _list_parents(snapshot: Path) -> Iterator[ParentNetwork]:
    SNAPSHOT.open(snapshot)
    for row in SNAPSHOT.rows(snapshot, LemurRecord, ("id", "nn", "nn_code", "pretrained", "task")):
        short = row.nn_code.count("\n") < _PARENT_LINES
        if short and row.nn_code and not row.pretrained and row.task == "img-classification":
            yield ParentNetwork(row.nn, row.id, row.nn_code)


def digest_attempts(attempts: Sequence[Attempt]) -> str:
    """Return the SHA-256 of the requests."""
    rows = []
    for attempt in attempts:
        blocks, parent = [block.spec.block for block in attempt.requested], attempt.parent and attempt.parent.id
        rows.append([attempt.number, blocks, parent, attempt.goal, attempt.seed])
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
