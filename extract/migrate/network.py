"""Insert a block into a LEMUR network: observe the network, try its insertion points, write the new file, verify it.

All foreign code runs in the sandbox, and only results that were verified there are returned.
"""

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from extract.migrate.codemod import NET, expand_stars, insert_block
from extract.migrate.insertion_points import (
    InsertionPoint,
    apply_answer,
    best_first,
    build_query,
    format_shape,
    list_insertion_points,
)
from extract.migrate.messages import (
    BlockToFit,
    BrokenNetwork,
    Case,
    Fit,
    MigrationStep,
    NetworkProof,
    NetworkToObserve,
    NetworkToProve,
    NoFit,
    ObservedNetwork,
    PointToTry,
    Shape,
)
from extract.migrate.source_block import SourceBlock, load_source_block, read_header
from extract.minimize.cuts import LEFT_OUT
from lemur_core.files.errors import UserError
from lemur_core.files.python import read_python_file
from lemur_core.sandbox import Limits
from lemur_core.sandbox.cached import CachedSandbox, is_transient
from lemur_core.sandbox.stage import Retries, SandboxOptions, SandboxStage, open_sandbox
from lemur_core.source.quality import drop_unevaluated, find_undefined_names
from lemur_core.source.text import parse_code
from manifests.provenance import provenance_lines
from manifests.provenance.licenses import is_permissive

#: CPU time and memory are the effective limits, so outcomes do not depend on machine load.
LIMITS = Limits(wall_seconds=900, cpu_seconds=120, memory_bytes=6 * 2**30)

#: Usual values of the hyperparameters that most LEMUR networks take, plus those that its trainer adds.
PRM: dict[str, Any] = {"lr": 0.01, "momentum": 0.9, "dropout": 0.2, "batch": 4, "epoch": 1, "transform": "norm_64"}
CLASSES = 10
_SIZES = (64, 32, 224, 299)  # image sizes, in the order in which they are tried
_OTHER_SIZES = (96, 256, 331, 64, 32)
_BATCHES = (2, 3)
_PIXELS = (-2.0, 2.0)
_TRIED = 4  # maximum number of insertion points to try if none is requested
_NAMED = 8  # maximum number of insertion points in a message
_MAX_ERROR = 200  # characters of a message about a failed job


@dataclass(frozen=True, slots=True)
class TargetNetwork:
    """A network to insert a block into, and the inputs for running it."""

    name: str
    text: str
    prm: Mapping[str, Any]  # hyperparameters
    # Shape of a batch of images; None to use the first of the usual shapes that the network runs with.
    in_shape: Shape | None = None
    classes: int = CLASSES

    @property
    def sha256(self) -> str:
        """Digest of its text, UTF-8."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def cases(self) -> list[list[Case]]:
        """Return two lists of inputs, of each of which the first that works is used.

        The second list has another batch size and, if possible, another image size.
        """
        first, second = _BATCHES
        if self.in_shape is None:
            shapes: list[list[Shape]] = [
                [(first, 3, size, size) for size in _SIZES],
                [(second, 3, size, size) for size in _OTHER_SIZES],
            ]
        else:
            batch, channels, *sides = self.in_shape
            # A second size shows which dimensions depend on that of the image.
            larger = [side + max(32, side // 2) for side in sides]
            shapes = [[(batch, channels, *sides)], [(batch + 1, channels, *larger), (batch + 1, channels, *sides)]]
        return [[self._case(shape) for shape in group] for group in shapes]

    def _case(self, shape: Sequence[int]) -> Case:
        output = [shape[0], self.classes]
        case = {"in_shape": list(shape), "out_shape": [self.classes], "output": output}
        return case | {"dtype": "float32", "values": _PIXELS, "words": 0}


def read_target_network(
    path: Path, prm: Mapping[str, Any], in_shape: Shape | None = None, classes: int = CLASSES
) -> TargetNetwork:
    """Read the network in a file. Raises: UserError if the file cannot be read, or defines no class Net."""
    text = read_python_file(path, "give a Python file with class Net")
    try:
        tree = parse_code(text)
    except SyntaxError as error:
        raise UserError(f"{path}: is not Python: {error}; give a Python file with class Net") from error
    if not any(isinstance(node, ast.ClassDef) and node.name == NET for node in tree.body):
        raise UserError(f"{path}: defines no class Net; give a network that follows LEMUR's contract")
    return TargetNetwork(path.name, text, PRM | dict(prm), in_shape, classes)


OBSERVE = SandboxStage[ObservedNetwork | BrokenNetwork](
    "extract.migrate.network_guest:observe", ObservedNetwork | BrokenNetwork, LIMITS, Retries.NONE
)
FIT = SandboxStage[tuple[Fit | NoFit, ...]](
    "extract.migrate.fitting:fit", tuple[Fit | NoFit, ...], LIMITS, Retries.NONE
)
PROVE = SandboxStage[NetworkProof]("extract.migrate.network_guest:prove", NetworkProof, LIMITS, Retries.NONE)


class MigrationError(UserError):
    """A failed migration and the step that failed; `cut`: because the minimized form lacks code that is needed."""

    def __init__(self, stage: MigrationStep, message: str, *, cut: bool = False) -> None:
        super().__init__(message)
        self.stage = stage
        self.cut = cut or LEFT_OUT in message


@dataclass(frozen=True, slots=True)
class MigratedNetwork:
    """A verified network with an inserted block."""

    source_block: SourceBlock
    site: InsertionPoint
    text: str  # text of the file
    name: str  # name of the block's class in it
    proof: NetworkProof
    observed: ObservedNetwork
    # The insertion points that were tried before, each with the reason for its failure.
    failed: tuple[tuple[InsertionPoint, str], ...]


def open_box(*, unsafe: bool = False) -> CachedSandbox:
    """Return a caching sandbox for migrations, as a context manager; it starts with the first job."""
    options: SandboxOptions = {"jobs": 1, "unsafe": unsafe}
    return open_sandbox(None, [OBSERVE, FIT, PROVE], options, usable=lambda _job, outcome: not is_transient(outcome))


def observe(target_network: TargetNetwork, box: CachedSandbox) -> ObservedNetwork:
    """Run a target network and observe the inputs and outputs of its submodules.

    Raises: MigrationError if it does not run.
    """
    request = NetworkToObserve(target_network.text, dict(target_network.prm), target_network.cases())
    (reply,) = OBSERVE.run(box, {"": request})
    if isinstance(reply.answer, ObservedNetwork):
        return reply.answer
    error = f"{reply.answer.category}: {reply.answer.error}" if reply.answer else reply.ending(_MAX_ERROR)
    raise MigrationError(
        "host", f"{target_network.name}: does not run or learn as it is: {error}; see --prm and --in-shape"
    )


def candidates(source_block: SourceBlock, observed: ObservedNetwork, box: CachedSandbox) -> list[InsertionPoint]:
    """Return all insertion points of a network, in the order of its forward pass, with how the block fits or why not.

    If the channel dimension of a block is uncertain and it fits nowhere, the other dimension is tried.
    """
    points = _fit_all(source_block, observed, box)
    if source_block.otherwise is not None and not any(point.filling for point in points):
        others = _fit_all(source_block.otherwise, observed, box)
        return others if any(point.filling for point in others) else points
    return points


def _fit_all(source_block: SourceBlock, observed: ObservedNetwork, box: CachedSandbox) -> list[InsertionPoint]:
    points = list_insertion_points(observed.places, source_block)
    queries = {point.name: build_query(point, source_block) for point in points if not point.reason}
    # Most points of a network have the same shapes as another point: the block is tried once for each.
    distinct_queries = list({_query_key(query): query for query in queries.values()}.values())
    answers: dict[str, Fit | NoFit] = {}
    if distinct_queries:
        (reply,) = FIT.run(box, {"": BlockToFit(source_block.code, source_block.name, distinct_queries)})
        replies = reply.answer or ()
        if len(replies) != len(distinct_queries):
            replies = (NoFit(reply.ending(_MAX_ERROR)),) * len(distinct_queries)
        answers = {_query_key(query): answer for query, answer in zip(distinct_queries, replies, strict=True)}
    return [
        point if point.reason else apply_answer(point, source_block, answers[_query_key(queries[point.name])])
        for point in points
    ]


def _query_key(query: PointToTry) -> str:
    return f"{query['before']} {query['after']} {query['axis']}"


def migrate_named(
    folder: Path, block: str, target_network: TargetNetwork, box: CachedSandbox, *, site: str | None = None
) -> MigratedNetwork:
    """Insert a block of an extraction folder into a network: its minimized form, or the full one if that lacks code.

    Args: block: its name, as for `lemur show`. site: as for `migrate`.
    Raises: MigrationError and UserError, as `migrate` and `load_source_block` do.
    """
    source_block = load_source_block(folder, block)
    try:
        return migrate(source_block, target_network, box, site=site)
    except MigrationError as error:
        # The full form has everything, but is several times longer.
        if not (source_block.lean and error.cut):
            raise
        return migrate(load_source_block(folder, block, lean=False), target_network, box, site=site)


def migrate(
    source_block: SourceBlock, target_network: TargetNetwork, box: CachedSandbox, *, site: str | None = None
) -> MigratedNetwork:
    """Insert a block into a network.

    Args:
        site: `after:PATH`, `replace:PATH`, or only a path; None for the best point that can be verified.

    Raises: MigrationError if the network does not run, or the block fits at no insertion point, or cannot be verified
        at any, with the latest stage and all errors; UserError if no sandbox is available.
    """
    observed = observe(target_network, box)
    points = candidates(source_block, observed, box)
    chosen = _choose_points(points, source_block, site)
    failures: list[tuple[InsertionPoint, MigrationError]] = []
    for point in chosen[: _TRIED if site is None else len(chosen)]:
        try:
            failed = tuple((tried, str(error)) for tried, error in failures)
            return _insert(source_block, target_network, observed, point, failed, box)
        except MigrationError as error:
            failures.append((point, error))
    stage = max((error.stage for _, error in failures), key=_STAGES.index)
    errors = "; ".join(f"{point.name}: {error}" for point, error in failures)
    raise MigrationError(stage, f"{target_network.name}: {source_block.name} could not be inserted: {errors}")


_STAGES: tuple[MigrationStep, ...] = get_args(MigrationStep)


def _choose_points(
    points: Sequence[InsertionPoint], source_block: SourceBlock, site: str | None
) -> list[InsertionPoint]:
    """Return the insertion points to try, in order. Raises: MigrationError if there are none."""
    parameters = source_block.parameters
    if site is None:
        fitting = best_first(points, source_block, parameters)
        if not fitting:
            cut = any(LEFT_OUT in point.reason for point in points)
            raise MigrationError("site", f"{source_block.row.block}: fits nowhere: {_list_misfits(points)}", cut=cut)
        return fitting
    matching = [point for point in points if site in (point.name, point.place.path)]
    if not matching:
        paths = ", ".join(dict.fromkeys(point.place.path for point in points[:_NAMED]))
        raise MigrationError(
            "site", f"--site {site}: no such insertion point; `--list` shows all, the first are {paths}"
        )
    fitting = best_first(matching, source_block, parameters)
    if not fitting:
        reasons = "; ".join(f"{point.name}: {point.reason}" for point in matching)
        raise MigrationError("site", f"--site {site}: {source_block.name} does not fit: {reasons}")
    return fitting


def _list_misfits(points: Sequence[InsertionPoint]) -> str:
    """Describe the most common reasons why a block fits nowhere."""
    if not points:
        return "the network calls no submodule"
    counts = Counter(point.reason for point in sorted(points, key=lambda point: point.reason))
    return "; ".join(f"{reason} ({count} of {len(points)} sites)" for reason, count in counts.most_common(3))


def _insert(
    source_block: SourceBlock,
    target_network: TargetNetwork,
    observed: ObservedNetwork,
    point: InsertionPoint,
    failed: tuple[tuple[InsertionPoint, str], ...],
    box: CachedSandbox,
) -> MigratedNetwork:
    """Insert the block at one point and verify it. Raises: MigrationError if either fails."""
    where = f"after {point.place.path}"
    if point.how == "replace":
        where = f"in place of {point.place.path}, a {point.place.kind}"
    note = f"{source_block.name} of {source_block.row.source} {where}"
    top = [
        f"{target_network.name} with {note}, by `lemur migrate`.",
        f"Host:    {target_network.name}, SHA-256 {target_network.sha256}",
    ]
    notice = list(_list_notice_lines(source_block, point))
    try:
        written = insert_block(
            target_network.text, point, source_block.name, source_block.code, notice, top, note, observed.stars
        )
    except UserError as error:
        raise MigrationError("written", str(error)) from error
    if missing := _find_undefined(written.text, target_network.text, observed.stars):
        raise MigrationError("closed", f"{missing} is not defined in the new file")
    request = NetworkToProve(
        written.text, dict(target_network.prm), observed.cases, observed.outputs, written.name, point.place.path
    )
    (reply,) = PROVE.run(box, {"": request})
    proof = reply.answer
    if proof is None:
        raise MigrationError("builds", reply.ending(_MAX_ERROR))
    if proof.failed:
        raise MigrationError(proof.failed, f"{proof.failed}: {proof.why}")
    return MigratedNetwork(source_block, point, written.text, written.name, proof, observed, failed)


def _find_undefined(text: str, target_network: str, stars: Mapping[str, Sequence[str]]) -> str:
    """Return the first name that is undefined in the new text and not in the original; empty if there is none."""
    names: list[Mapping[str, str]] = []
    for code in (text, target_network):
        tree = ast.parse(expand_stars(code, stars))
        drop_unevaluated(tree)
        # A name that the original lacks, too, is in a branch that never runs.
        names.append(find_undefined_names(tree))
    return next(iter(sorted(names[0].keys() - names[1].keys())), "")


# -- comments in the file --------------------------------------------------------------------------------------------

_REPEATED_LINES = ("Block:", "File:", "SWHID:", "Licence:")


def _list_notice_lines(source_block: SourceBlock, point: InsertionPoint) -> Iterator[str]:
    """Yield the comments above the block's definitions: their origin, license and changes."""
    facts = source_block.row.model_dump() | {"code_sha256": source_block.sha256, "license": source_block.license}
    yield from provenance_lines(point.place.path, source_block.name, facts)
    if source_block.license != "NOASSERTION":
        yield f"SPDX-License-Identifier: {source_block.license}"
    if not is_permissive(source_block.license):
        yield "The license is not known to permit redistribution of changed copies: for local use."
    for line in read_header(source_block.code)[1:]:
        if line and not line.startswith(_REPEATED_LINES):
            yield line


def describe_proof(migrated: MigratedNetwork) -> str:
    """Describe the verified properties in one line."""
    proof, cases = migrated.proof, migrated.observed.cases
    sizes = " and ".join(format_shape(case["in_shape"]) for case in cases)
    outputs = " and ".join(format_shape(shape) for shape in migrated.observed.outputs)
    learned = f", {proof.moved} of its {proof.parameters} parameters change" if proof.parameters else ""
    reached = f"gradients reach all {proof.parameters} parameters of it" if proof.parameters else "gradients pass it"
    leads = f"its graph is not known ({proof.graph})" if proof.graph else "its operations lead to the output"
    return (
        f"no undefined names; builds; runs at {sizes} with the network's outputs, {outputs}; {reached}; "
        f"learns one batch by train_setup and learn{learned}; {leads}"
    )
