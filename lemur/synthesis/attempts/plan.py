"""Plan the attempts: the blocks of each, drawn from a library by seed, and the network that a delta changes.

A block is eligible if its conformance can be checked and its facts may leave this machine: it ran with constructor
arguments that are plain values, takes and returns one tensor, has a graph, and has a permissive license. Several models
share one plan, so that their attempts are paired.
"""

import ast
import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extract.search.index import open_index
from extract.search.ranking import Filters, search
from lemur.synthesis.attempts.options import Ask
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
    source: str  # never shown to a model: originality is measured against it

    @property
    def name(self) -> str:
        """Name of the class."""
        return self.spec.name


@dataclass(frozen=True, slots=True)
class ParentNetwork:
    """A kept network of a snapshot that a delta changes. It is shown to the model."""

    nn: str
    id: str
    code: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """The request of one of N attempts. `seed` is passed to the model."""

    number: int
    requested: tuple[RequestedBlock, ...]
    parent: ParentNetwork | None
    goal: str
    seed: int


def draw(library: Path, ask: Ask) -> tuple[list[Attempt], int]:
    """Draw the attempts; also return the number of eligible blocks. Each block is used once before any is repeated.

    Raises: UserError if no block is eligible, or there is no parent.
    """
    pool = _pool(library, ask) if ask.blocks else []
    if ask.blocks and not pool:
        raise UserError(
            f"{library}: no block is eligible: none of the selected ones ran with plain arguments, one tensor in and"
            " one out, and has a graph and a permissive licence; select others, or use --blocks 0 with --goal"
        )
    networks = [] if ask.parents is None else list(_parents(ask.parents))
    if ask.parents is not None and not networks:
        raise UserError(f"{ask.parents}: no kept network of at most {_PARENT_LINES} lines without trained weights")
    generator = random.Random(ask.seed)
    blocks, changed = _rounds(pool, generator), _rounds(networks, generator)
    drawn = []
    for number in range(ask.attempts):
        selected: dict[str, RequestedBlock] = {}
        # By name: one file cannot define two classes of the same name.
        while len(selected) < min(ask.blocks, len({one.name for one in pool})):
            one = next(blocks)
            selected.setdefault(one.name, one)
        parent = next(changed) if networks else None
        drawn.append(Attempt(number, tuple(selected.values()), parent, ask.goal, ask.seed + number))
    return drawn, len(pool)


def _rounds(pool: Sequence[Any], generator: random.Random) -> Iterator[Any]:
    """Yield all of them in a random order, then all again in another, endlessly."""
    while pool:
        yield from generator.sample(pool, len(pool))


def _pool(library: Path, ask: Ask) -> list[RequestedBlock]:
    EXTRACTION.open(library)
    wanted = None
    if ask.spec is not None:
        wanted = set(read_block_names(ask.spec))
    elif ask.query is not None:
        wanted = {hit["block"] for hit in search(open_index(library), ask.query, Filters(), _HITS).hits}
    try:
        known = _rows(library)
        with (library / SPECS).open(encoding="utf-8") as lines:
            pool = [one for line in lines if (one := _make_eligible(json.loads(line), known, wanted)) is not None]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{library}: damaged: {str(error).splitlines()[0]}; run `lemur verify`, or extract it again"
        ) from error
    if ask.spec is not None and wanted and not wanted & known.keys():
        raise UserError(f"{ask.spec}: none of its blocks is in {library}; pass specs of that library")
    return pool


def read_block_names(path: Path) -> Iterable[str]:
    """Return the blocks that a file of specs names: candidates written by `lemur search --spec`, or JSON Lines.

    Raises: UserError if it is neither.
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


def _rows(library: Path) -> dict[str, Block]:
    rows = EXTRACTION.rows(library, Block, ("block", "level", "arguments", "license", "lean_license", "code"))
    return {row.block: row for row in rows if row.level in _RUNS}


def _make_eligible(facts: Json, known: Mapping[str, Block], wanted: set[str] | None) -> RequestedBlock | None:
    row = known.get(facts["block"])
    if row is None or row.arguments is None or (wanted is not None and facts["block"] not in wanted):
        return None
    spec, arguments = Spec.model_validate(facts), json.loads(row.arguments)
    # A block that does nothing cannot be missed, and a class named Net would be the network.
    if spec.algorithm is None or spec.algorithm.returns != "tensor" or spec.identity_in_eval or spec.name == "Net":
        return None
    if not is_permissive(row.lean_license or row.license) or not _plain(arguments):
        return None
    return RequestedBlock(spec, arguments, row.code or "")


def _plain(arguments: Mapping[str, Any]) -> bool:
    """Return whether the constructor arguments are literals, and the call takes one tensor."""
    init, call = arguments["init"], arguments["forward"]
    try:
        for text in (*init["args"], *init["kwargs"].values()):
            ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    inputs = (*call["args"], *call["kwargs"].values())
    return arguments.get("method", "forward") == "forward" and len(inputs) == 1 and inputs[0].startswith("torch.randn(")


def _parents(snapshot: Path) -> Iterator[ParentNetwork]:
    SNAPSHOT.open(snapshot)
    for row in SNAPSHOT.rows(snapshot, LemurRecord, ("id", "nn", "nn_code", "pretrained", "task")):
        few = row.nn_code.count("\n") < _PARENT_LINES
        if few and row.nn_code and not row.pretrained and row.task == "img-classification":
            yield ParentNetwork(row.nn, row.id, row.nn_code)


def digest_attempts(attempts: Sequence[Attempt]) -> str:
    """Return SHA-256 of the requests."""
    rows = [
        [one.number, [block.spec.block for block in one.requested], one.parent and one.parent.id, one.goal, one.seed]
        for one in attempts
    ]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
