"""`lemur verify` and `lemur trace` for a synthesis folder. No code in it is executed."""

import difflib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from lemur.synthesis.attempts.loop import PREFIX
from lemur.synthesis.attempts.steps import STEPS
from lemur.synthesis.report import NETS, synthesis_page
from lemur.synthesis.write import FORMAT, count_attempts
from lemur_core.files import Json
from lemur_core.files.errors import UserError
from manifests.folders.checks import Check, check_description, check_faults, check_files
from manifests.folders.formats import FolderKind, FolderLink, ListedItem, RowTrace
from manifests.folders.manifest import read_manifest
from manifests.records import SynthesisAttempt, Synthesized
from train.model.contract import check_contract, lemur_name

_NEAR = 5


def verify(folder: Path, *, jobs: int | None = None) -> list[Check]:  # noqa: ARG001 (same signature for all verifiers)
    """Run all checks of a finished synthesis, in a fixed order. Raises: UserError if it has no valid manifest."""
    manifest = read_manifest(folder)
    checks = [check_files(folder, manifest), *FORMAT.check_tables(folder, ("attempts", "networks"))]
    if not all(check.ok for check in checks):
        return checks
    attempts, rows = list(FORMAT.rows(folder, SynthesisAttempt)), list(FORMAT.rows(folder, Synthesized))
    wrong = [] if count_attempts(attempts) == manifest.counts else ["counts are not those of the attempts"]
    return [
        *checks,
        *check_description(folder, manifest, FORMAT.tables),
        check_faults("counts", wrong, f"{len(attempts):,} answers as the manifest counts them"),
        check_faults("attempts", list(_attempt_faults(attempts)), f"{len(attempts):,} answers, each with its outcome"),
        check_faults(
            "networks",
            list(_network_faults(folder, attempts, rows)),
            f"{len(rows):,} networks: files, digests, names and contract; each passed all {len(STEPS)} steps",
        ),
    ]


def _attempt_faults(attempts: list[SynthesisAttempt]) -> Iterator[str]:
    for attempt in attempts:
        where = f"attempt {attempt.attempt}, round {attempt.round} of {attempt.model}"
        failed = attempt.failed
        passed = STEPS if failed is None else STEPS[: STEPS.index(failed)] if failed in STEPS else ()
        if attempt.passed != passed:
            yield f"{where}: passed {', '.join(attempt.passed) or 'nothing'}, failed {failed}"
        if (failed is None) != (attempt.nn is not None) or (failed is None) == (attempt.error is not None):
            yield f"{where}: is neither accepted with a name nor failed with an error"
        if attempt.code is not None and hashlib.sha256(attempt.code.encode()).hexdigest() != attempt.code_sha256:
            yield f"{where}: its code has another SHA-256"


def _network_faults(folder: Path, attempts: list[SynthesisAttempt], rows: list[Synthesized]) -> Iterator[str]:
    accepted = {attempt.nn: attempt for attempt in attempts if attempt.nn is not None}
    if {row.nn for row in rows} != accepted.keys():
        yield "the table of networks does not hold the accepted ones"
        return
    graphs = [row.graph for row in rows]
    for row in rows:
        if hashlib.sha256(row.nn_code.encode()).hexdigest() != row.id or lemur_name(row.nn_code, PREFIX) != row.nn:
            yield f"{row.nn}: its name or id is not that of its code"
        if not any(attempt.code == row.nn_code and attempt.nn == row.nn for attempt in attempts):
            yield f"{row.nn}: no attempt has its code"
        if (folder / NETS / f"{row.nn}.py").read_text(encoding="utf-8") != row.nn_code:
            yield f"{NETS}/{row.nn}.py: is not the code of the table"
        if fault := check_contract(row.nn_code):
            yield f"{row.nn}: {fault}"
        # Two models may write the same network: each must be new only compared with its own.
        if graphs.count(row.graph) > 1 and len({other.model for other in rows}) == 1:
            yield f"{row.nn}: another network computes the same"


def find(folder: Path, wanted: str) -> RowTrace:
    """Find an accepted network by its name or id. Raises: UserError, with similar names, if there is none."""
    rows = list(FORMAT.rows(folder, Synthesized))
    for row in rows:
        if wanted in (row.nn, row.id):
            return _trace_network(folder, row)
    near = difflib.get_close_matches(wanted, [row.nn for row in rows], _NEAR) or [row.nn for row in rows[:_NEAR]]
    raise UserError(f"{wanted}: no network of {folder} has that name; similar names: {', '.join(near) or 'none'}")


def find_code(folder: Path, sha256: str) -> RowTrace | None:
    """Return the accepted network with this code; None if there is none."""
    return next((_trace_network(folder, row) for row in FORMAT.rows(folder, Synthesized) if row.id == sha256), None)


def _trace_network(folder: Path, row: Synthesized) -> RowTrace:
    attempts = FORMAT.rows(folder, SynthesisAttempt)
    attempt = next(record for record in attempts if record.nn == row.nn and record.model == row.model)
    facts: Json = {
        "id": row.id,
        "model": f"{row.model}" + (f", weights {attempt.model_digest}" if attempt.model_digest else ""),
        "attempt": f"{row.attempt}, round {row.round}, seed {attempt.seed}",
        "goal": attempt.goal,
        "specs": list(row.blocks),
        "changed_from": row.parent,
        "originality": row.originality,
        "nearest": (json.loads(attempt.facts).get("nearest") or {}).get("name"),
        "license": row.license,
    }
    links = (FolderLink("network", row.nn, facts),)
    return RowTrace(links, (*row.block_codes, *([row.parent] if row.parent else [])))


def list_networks(folder: Path) -> Iterator[ListedItem]:
    """Yield the accepted networks."""
    for row in FORMAT.rows(folder, Synthesized):
        yield ListedItem((row.nn, row.id), {"id": row.id, "model": row.model, "blocks": list(row.blocks)})


KINDS = (FolderKind(FORMAT, verify, find, find_code, synthesis_page, list_networks),)
