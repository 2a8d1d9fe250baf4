"""A block moved into a LEMUR network: the host observed, its sites tried, the new file written, and proved.

Everything foreign runs in the sandbox; nothing is returned that was not proved there.
"""

import ast
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from extract.migrate.codemod import NET, put_in, spelled_out
from extract.migrate.insertion_points import Place, Site, answered, best_first, question, sites_of, sized
from extract.migrate.source_block import Donor, donor_of
from extract.minimize.cuts import LEFT_OUT
from lemur_core.files.errors import UserError
from lemur_core.sandbox import META_PRELOAD, Job, Limits
from lemur_core.sandbox.cached import PASSING, CachedSandbox, answer_of
from lemur_core.source.undefined import drop_unevaluated, undefined_names
from manifests.provenance import header_lines, provenance_lines
from manifests.provenance.licenses import is_permissive

OBSERVE, FIT, PROVE = (f"extract.migrate.{name}" for name in ("observing:observe", "fitting:fit", "proving:prove"))

#: CPU seconds and memory decide, so that a busy machine changes nothing.
LIMITS = Limits(wall_seconds=900, cpu_seconds=120, memory_bytes=6 * 2**30)

#: Hyperparameters that most networks of LEMUR take, at usual values, and what its trainer adds.
PRM: dict[str, Any] = {"lr": 0.01, "momentum": 0.9, "dropout": 0.2, "batch": 4, "epoch": 1, "transform": "norm_64"}
CLASSES = 10
_SIZES = (64, 32, 224, 299)  # of images, in the order in which they are tried
_OTHER_SIZES = (96, 256, 331, 64, 32)
_BATCHES = (2, 3)
_PIXELS = (-2.0, 2.0)
_TRIED = 4  # sites, where none is given
_NAMED = 8
Shape = tuple[int, ...]
#: How far a migration came: what stopped it. `closed` and what follows are steps of the proof, in their order.
Stage = Literal[
    "host", "site", "written", "closed", "builds", "runs", "shape", "gradients", "learns", "leads", "proved"
]


@dataclass(frozen=True, slots=True)
class Host:
    """A network to put a block into: its text, and what it is given when it is run.

    Attributes:
        prm: hyperparameters.
        in_shape: of a batch of images; None: usual ones, of which the first that the network runs with counts.
    """

    name: str
    text: str
    prm: Mapping[str, Any]
    in_shape: Shape | None = None
    classes: int = CLASSES

    @property
    def sha256(self) -> str:
        """Of its text, UTF-8."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def cases(self) -> list[list[dict[str, Any]]]:
        """What it is run with: of each list the first that works. The second has another batch and, if it can, size."""
        first, second = _BATCHES
        if self.in_shape is None:
            shapes: list[list[Shape]] = [
                [(first, 3, size, size) for size in _SIZES],
                [(second, 3, size, size) for size in _OTHER_SIZES],
            ]
        else:
            batch, channels, *sides = self.in_shape
            larger = [side + max(32, side // 2) for side in sides]
            shapes = [[(batch, channels, *sides)], [(batch + 1, channels, *larger), (batch + 1, channels, *sides)]]
        return [[self._case(shape) for shape in ones] for ones in shapes]

    def _case(self, shape: Sequence[int]) -> dict[str, Any]:
        output = [shape[0], self.classes]
        given = {"in_shape": list(shape), "out_shape": [self.classes], "output": output}
        return given | {"dtype": "float32", "values": _PIXELS, "words": 0}


def read_host(path: Path, prm: Mapping[str, Any], in_shape: Shape | None = None, classes: int = CLASSES) -> Host:
    """The network of a file. Raises: UserError if it cannot be read, or defines no class Net."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; give a Python file with class Net") from error
    except (SyntaxError, ValueError) as error:  # UnicodeDecodeError is a ValueError
        raise UserError(f"{path}: is not Python: {error}; give a Python file with class Net") from error
    if not any(isinstance(node, ast.ClassDef) and node.name == NET for node in tree.body):
        raise UserError(f"{path}: defines no class Net; give a network by LEMUR's contract")
    return Host(path.name, text, PRM | dict(prm), in_shape, classes)


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen of a host.

    Attributes:
        cases: that it ran with.
        outputs: shapes of what came out, by case.
        stars: the names that star imports bind, by module.
    """

    cases: tuple[Mapping[str, Any], ...]
    outputs: tuple[Shape, ...]
    places: tuple[Place, ...]
    stars: Mapping[str, Sequence[str]]


class MigrationError(UserError):
    """A block that could not be moved, and what stopped it; `cut`: something met what its lean form leaves out."""

    def __init__(self, stage: Stage, message: str, *, cut: bool = False) -> None:
        super().__init__(message)
        self.stage = stage
        self.cut = cut or LEFT_OUT in message


@dataclass(frozen=True, slots=True)
class Migrated:
    """A network with a block in it, proved.

    Attributes:
        text: of the file.
        name: of the block's class in it.
        proof: the answer of `extract.migrate.network.proving.prove`.
        failed: sites that were tried before, each with why it was given up.
    """

    donor: Donor
    site: Site
    text: str
    name: str
    proof: Mapping[str, Any]
    observed: Observed
    failed: tuple[tuple[Site, str], ...]


def open_box(*, unsafe: bool = False, workers: int = 1) -> CachedSandbox:
    """A sandbox for migrations, which keeps what it was told; it starts with the first job. A context manager."""
    return CachedSandbox(
        entries=[OBSERVE, FIT, PROVE],
        workers=workers,
        limits=LIMITS,
        unsafe=unsafe,
        preload=META_PRELOAD,
        attempts=1,
        usable=lambda _job, outcome: outcome.status not in PASSING,
    )


def observe(host: Host, box: CachedSandbox) -> Observed:
    """Run a host, and see what its submodules are given and give.

    Raises: MigrationError if it does not run.
    """
    told = _ask(box, OBSERVE, {"code": host.text, "prm": dict(host.prm), "cases": host.cases()})
    if "error" in told:
        category = f"{told['category']}: " if told.get("category") else ""
        raise MigrationError(
            "host", f"{host.name}: does not run or learn as it is: {category}{told['error']}; see --prm and --in-shape"
        )
    outputs = tuple(tuple(shape) for shape in told["outputs"])
    return Observed(tuple(told["cases"]), outputs, tuple(map(Place.read, told["places"])), told["stars"])


def _ask(box: CachedSandbox, entry: str, payload: dict[str, Any]) -> dict[str, Any]:
    """The answer of one job; `error` where it gave none."""
    (outcome,) = box.run([Job("", entry, payload)])
    return answer_of(outcome, 200)


def candidates(donor: Donor, observed: Observed, box: CachedSandbox) -> list[Site]:
    """All sites of a host, in the order of its forward pass, each with how the block fits or why it does not.

    A block of which it is not known where it has its channels is tried with them in the other place if it fits nowhere.
    """
    sites = _candidates(donor, observed, box)
    if donor.otherwise is not None and not any(one.filling for one in sites):
        others = _candidates(donor.otherwise, observed, box)
        return others if any(one.filling for one in others) else sites
    return sites


def _candidates(donor: Donor, observed: Observed, box: CachedSandbox) -> list[Site]:
    sites = sites_of(observed.places, donor)
    asked = {site.name: question(site, donor) for site in sites if not site.reason}
    distinct = list({_key(one): one for one in asked.values()}.values())
    answers: dict[str, Any] = {}
    if distinct:
        told = _ask(box, FIT, {"code": donor.code, "name": donor.name, "sites": distinct})
        failed = {"fits": False, "reason": told.get("error", "")}
        found = told.get("answers") or [failed] * len(distinct)
        answers = {_key(one): answer for one, answer in zip(distinct, found, strict=True)}
    return [site if site.reason else answered(site, donor, answers[_key(asked[site.name])]) for site in sites]


def _key(asked: Mapping[str, Any]) -> str:
    return f"{asked['before']} {asked['after']} {asked['axis']}"


def migrate_named(folder: Path, block: str, host: Host, box: CachedSandbox, *, site: str | None = None) -> Migrated:
    """Move a block of an extraction folder into a network: its lean form, else, where that met a cut, its full one.

    Args: block: what names it for `lemur show`. site: as for `migrate`.
    Raises: MigrationError and UserError, as `migrate` and `donor_of` do.
    """
    donor = donor_of(folder, block)
    try:
        return migrate(donor, host, box, site=site)
    except MigrationError as error:
        if not (donor.lean and error.cut):
            raise
        return migrate(donor_of(folder, block, lean=False), host, box, site=site)


def migrate(donor: Donor, host: Host, box: CachedSandbox, *, site: str | None = None) -> Migrated:
    """Move a block into a network.

    Args:
        site: `after:PATH`, `replace:PATH`, or a path alone; None: the best one, or the next that can be proved.

    Raises: MigrationError if the host does not run, no site fits, or none can be proved: then with what stopped the
        one that came furthest, or all of them; UserError if no sandbox can be had.
    """
    observed = observe(host, box)
    sites = candidates(donor, observed, box)
    chosen = _chosen(sites, donor, site)
    failures: list[tuple[Site, MigrationError]] = []
    for one in chosen[: _TRIED if site is None else len(chosen)]:
        try:
            failed = tuple((tried, str(error)) for tried, error in failures)
            return _moved(donor, host, observed, one, failed, box)
        except MigrationError as error:
            failures.append((one, error))
    came = max((error.stage for _, error in failures), key=_STAGES.index)
    told = "; ".join(f"{one.name}: {error}" for one, error in failures)
    raise MigrationError(came, f"{host.name}: {donor.name} cannot be put there: {told}")


_STAGES: tuple[Stage, ...] = Stage.__args__  # type: ignore[attr-defined]


def _chosen(sites: Sequence[Site], donor: Donor, wanted: str | None) -> list[Site]:
    """The sites to try, in turn. Raises: MigrationError if there are none."""
    parameters = donor.parameters
    if wanted is None:
        found = best_first(sites, donor, parameters)
        if not found:
            cut = any(LEFT_OUT in one.reason for one in sites)
            raise MigrationError("site", f"{donor.row.block}: fits nowhere: {_why_nowhere(sites)}", cut=cut)
        return found
    named = [one for one in sites if wanted in (one.name, one.place.path)]
    if not named:
        paths = ", ".join(dict.fromkeys(one.place.path for one in sites[:_NAMED]))
        raise MigrationError("site", f"--site {wanted}: no such site; `--list` shows all, the first are {paths}")
    found = best_first(named, donor, parameters)
    if not found:
        told = "; ".join(f"{one.name}: {one.reason}" for one in named)
        raise MigrationError("site", f"--site {wanted}: {donor.name} does not fit: {told}")
    return found


def _why_nowhere(sites: Sequence[Site]) -> str:
    """The commonest reasons."""
    if not sites:
        return "the network calls no submodule"
    counts: dict[str, int] = {}
    for one in sites:
        counts[one.reason] = counts.get(one.reason, 0) + 1
    first = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:3]
    return "; ".join(f"{reason} ({count} of {len(sites)} sites)" for reason, count in first)


def _moved(
    donor: Donor, host: Host, observed: Observed, site: Site, failed: tuple[tuple[Site, str], ...], box: CachedSandbox
) -> Migrated:
    """The network with the block at one site. Raises: MigrationError if it cannot be written or proved."""
    try:
        written = put_in(
            host.text,
            site,
            donor.name,
            donor.code,
            list(_notice(donor, site)),
            list(_top(donor, host, site)),
            f"{donor.name} of {donor.row.source} {_where(site)}",
            observed.stars,
        )
    except UserError as error:
        raise MigrationError("written", str(error)) from error
    if missing := _undefined(written.text, host.text, observed.stars):
        raise MigrationError("closed", f"{missing} is not defined in the new file")
    payload = {
        "code": written.text,
        "prm": dict(host.prm),
        "cases": list(observed.cases),
        "outputs": [list(shape) for shape in observed.outputs],
        "name": written.name,
        "path": site.place.path,
    }
    proof = _ask(box, PROVE, payload)
    if "error" in proof:
        raise MigrationError("builds", proof["error"])
    if proof["failed"]:
        raise MigrationError(proof["failed"], f"{proof['failed']}: {proof['why']}")
    return Migrated(donor, site, written.text, written.name, proof, observed, failed)


def _where(site: Site) -> str:
    """What a comment says of a site."""
    return f"after {site.place.path}" if site.how == "after" else f"in place of {site.place.path}, a {site.place.kind}"


def _undefined(text: str, host: str, stars: Mapping[str, Sequence[str]]) -> str:
    """The first name that the new text reads, nothing defines, and the host did not leave undefined before."""
    names: list[Mapping[str, str]] = []
    for code in (text, host):
        tree = ast.parse(spelled_out(code, stars))
        drop_unevaluated(tree)
        names.append(undefined_names(tree))
    return next(iter(sorted(names[0].keys() - names[1].keys())), "")


# -- what the file says of itself ------------------------------------------------------------------------------------

_SAID_ABOVE = ("Block:", "File:", "SWHID:", "Licence:")


def _top(donor: Donor, host: Host, site: Site) -> Iterator[str]:
    """The lines at the top of the file."""
    yield f"{host.name} with {donor.name} of {donor.row.source} {_where(site)}, by `lemur migrate`."
    yield f"Host:    {host.name}, SHA-256 {host.sha256}"


def _notice(donor: Donor, site: Site) -> Iterator[str]:
    """The lines above the block's definitions: where they are from, under which licence, what was changed."""
    facts = donor.row.model_dump() | {"code_sha256": donor.sha256, "license": donor.license}
    yield from provenance_lines(site.place.path, donor.name, facts)
    if donor.license != "NOASSERTION":
        yield f"SPDX-License-Identifier: {donor.license}"
    if not is_permissive(donor.license):
        yield "The licence is not known to let changed copies be passed on: for local use."
    for line in _header_of(donor.code)[1:]:
        if line and not line.startswith(_SAID_ABOVE):
            yield line


def _header_of(code: str) -> list[str]:
    """The comment lines at the top of a closed file."""
    return [line.removeprefix("#").removeprefix(" ") for line in header_lines(code)]


def proved_text(migrated: Migrated) -> str:
    """What was proved, in a line."""
    proof, cases = migrated.proof, migrated.observed.cases
    sizes = " and ".join(sized(case["in_shape"]) for case in cases)
    outputs = " and ".join(sized(shape) for shape in migrated.observed.outputs)
    learned = f", {proof['moved']} of its {proof['parameters']} parameters change" if proof["parameters"] else ""
    reached = (
        f"gradients reach all {proof['parameters']} parameters of it" if proof["parameters"] else "gradients pass it"
    )
    leads = f"its graph is not known ({proof['graph']})" if proof["graph"] else "its operations lead to the output"
    return (
        f"no undefined names; builds; runs at {sizes} with the host's outputs, {outputs}; {reached}; "
        f"learns one batch by train_setup and learn{learned}; {leads}"
    )
