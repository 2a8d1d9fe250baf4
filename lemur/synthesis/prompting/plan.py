"""What is asked for: the blocks of each attempt, drawn from a library by seed, and the network that a delta changes.

A block can be asked for if its conformance can be judged and its facts may leave this machine: it ran with constructor
arguments that are plain values, takes one tensor and gives one, its graph is known and its licence is permissive.
One plan serves several models, so that their attempts are pairs.
"""

import ast
import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from curate.published.delta_check import record_files
from extract.search.index import open_index
from extract.search.ranking import Filters, search
from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.markdown import article
from manifests.folders.manifest import read_manifest
from manifests.provenance import SPECS, TABLE
from manifests.provenance.licenses import is_permissive
from manifests.records import Spec

_HITS = 20  # of a search, to draw from
_PARENT_LINES = 400  # of a network that is shown to be changed
_RUNS = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class Asked:
    """A block that can be asked for: its spec, the arguments that it ran with, and its hidden text."""

    spec: Spec
    arguments: Mapping[str, Any]
    source: str  # never shown to a model: originality is measured against it

    @property
    def name(self) -> str:
        """Of the class."""
        return self.spec.name


@dataclass(frozen=True, slots=True)
class Parent:
    """A kept network of a snapshot, which a delta changes. It is shown to the model."""

    nn: str
    id: str
    code: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One of N: what it asks for. `seed` is handed to the model."""

    number: int
    asked: tuple[Asked, ...]
    parent: Parent | None
    goal: str
    seed: int


@dataclass(frozen=True, slots=True)
class Choice:
    """What blocks to draw from: those of a file of specs, of a search, or all of a library, `count` an attempt."""

    spec: Path | None = None
    query: str | None = None
    count: int = 1

    def __post_init__(self) -> None:
        if self.spec is not None and self.query is not None:
            raise UsageError("--spec and --search: both name the blocks; leave one out")


def draw(
    library: Path, choice: Choice, *, goal: str, parents: Path | None, attempts: int, seed: int
) -> tuple[list[Attempt], int]:
    """The attempts, and how many blocks they were drawn from. Blocks come round before one comes twice.

    Raises: UserError if no block can be asked for, or there is no parent.
    """
    pool = _pool(library, choice) if choice.count else []
    if choice.count and not pool:
        raise UserError(
            f"{library}: no block can be asked for: none of those chosen ran with plain arguments, one tensor in and"
            " one out, has a graph and a permissive licence; choose others, or --blocks 0 with --goal"
        )
    networks = [] if parents is None else list(_parents(parents))
    if parents is not None and not networks:
        raise UserError(f"{parents}: no kept network of at most {_PARENT_LINES} lines without trained weights")
    generator = random.Random(seed)
    blocks, changed = _rounds(pool, generator), _rounds(networks, generator)
    made = []
    for number in range(attempts):
        asked: dict[str, Asked] = {}
        while len(asked) < min(choice.count, len({one.name for one in pool})):
            one = next(blocks)
            asked.setdefault(one.name, one)
        parent = next(changed) if networks else None
        made.append(Attempt(number, tuple(asked.values()), parent, goal, seed + number))
    return made, len(pool)


def _rounds(pool: Sequence[Any], generator: random.Random) -> Iterator[Any]:
    """All of them in an order that is drawn, then all again in another."""
    while pool:
        yield from generator.sample(pool, len(pool))


def _pool(library: Path, choice: Choice) -> list[Asked]:
    manifest = read_manifest(library)
    if manifest.kind != "extraction":
        raise UserError(f"{library}: holds {article(manifest.kind)}; give a folder that `lemur extract` wrote")
    wanted = None
    if choice.spec is not None:
        wanted = set(named_in(choice.spec))
    elif choice.query is not None:
        wanted = {hit["block"] for hit in search(open_index(library), choice.query, Filters(), _HITS).hits}
    try:
        known = _rows(library)
        with (library / SPECS).open(encoding="utf-8") as lines:
            found = [one for line in lines if (one := _asked(json.loads(line), known, wanted)) is not None]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{library}: damaged: {str(error).splitlines()[0]}; run `lemur verify`, or make it anew"
        ) from error
    if choice.spec is not None and wanted and not wanted & known.keys():
        raise UserError(f"{choice.spec}: none of its blocks is in {library}; give specs of that library")
    return found


def named_in(path: Path) -> Iterable[str]:
    """The blocks that a file of specs names: candidates, as `lemur search --spec` writes them, or lines.

    Raises: UserError if it is neither.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return [row["block"] for row in _rows_of(text)]
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        said = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise UserError(
            f"{path}: cannot be read as specs: {said}; give a file that `lemur search --spec` wrote, or lines of specs"
        ) from error


def _rows_of(text: str) -> list[Any]:
    """Candidates, a list of specs, one spec, or a line for each."""
    if not text.lstrip().startswith('{"candidates"') and "\n{" in text.strip():
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    found = json.loads(text)
    if isinstance(found, dict) and "candidates" in found:
        found = found["candidates"]
    return found if isinstance(found, list) else [found]


def _rows(library: Path) -> dict[str, dict[str, Any]]:
    columns = ["block", "arguments", "license", "lean_license", "code"]
    table = pq.read_table(library / TABLE, columns=columns, filters=[("level", "in", _RUNS)])
    return {row["block"]: row for row in table.to_pylist()}


def _asked(facts: dict[str, Any], known: Mapping[str, dict[str, Any]], wanted: set[str] | None) -> Asked | None:
    row = known.get(facts["block"])
    if row is None or row["arguments"] is None or (wanted is not None and facts["block"] not in wanted):
        return None
    spec, arguments = Spec.model_validate(facts), json.loads(row["arguments"])
    if spec.algorithm is None or spec.algorithm.returns != "tensor" or spec.identity_in_eval or spec.name == "Net":
        return None
    if not is_permissive(row["lean_license"] or row["license"]) or not _plain(arguments):
        return None
    return Asked(spec, arguments, row["code"])


def _plain(arguments: Mapping[str, Any]) -> bool:
    """Whether anybody can make these arguments: constructor arguments are literals, the call is given one tensor."""
    init, call = arguments["init"], arguments["forward"]
    try:
        for text in (*init["args"], *init["kwargs"].values()):
            ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    given = (*call["args"], *call["kwargs"].values())
    return arguments.get("method", "forward") == "forward" and len(given) == 1 and given[0].startswith("torch.randn(")


def _parents(snapshot: Path) -> Iterator[Parent]:
    if read_manifest(snapshot).kind != "snapshot":
        raise UserError(f"{snapshot}: is no snapshot; --parents takes a folder that `lemur curate` wrote")
    columns = ["id", "nn", "nn_code", "pretrained", "task"]
    for path in record_files(snapshot):
        for row in pq.read_table(path, columns=columns).to_pylist():
            few = row["nn_code"].count("\n") < _PARENT_LINES
            if few and row["nn_code"] and not row["pretrained"] and row["task"] == "img-classification":
                yield Parent(row["nn"], row["id"], row["nn_code"])


def digest_of(attempts: Sequence[Attempt]) -> str:
    """SHA-256 of what is asked for."""
    told = [
        [one.number, [asked.spec.block for asked in one.asked], one.parent and one.parent.id, one.goal, one.seed]
        for one in attempts
    ]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()
