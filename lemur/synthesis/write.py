"""Write the folder of a synthesis: all attempts, the accepted networks as a dataset, a report, and the manifest."""

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from curate.compute.runs import PRM
from curate.sources.folders import RECORDS
from lemur.synthesis.attempts.loop import PREFIX, Tried
from lemur.synthesis.attempts.steps import STEPS, TASK
from lemur.synthesis.report import ATTEMPTS, NETS, ModelCounts, card_text, last_answers, report_text, synthesis_page
from lemur_core.files import Json
from lemur_core.files.atomic import atomic_folder, write_text
from lemur_core.files.errors import UserError
from manifests.folders.cards import SNAPSHOT_DISCLOSURE
from manifests.folders.checks import Check, check_description, check_faults, check_files
from manifests.folders.formats import Card, FolderFormat, FolderKind, FolderLink, ListedItem, RowTrace
from manifests.folders.frame import finish
from manifests.folders.manifest import (
    Input,
    Manifest,
    Stopwatch,
    describe_parent,
    list_outputs,
    package_versions,
    read_manifest,
)
from manifests.folders.tables import write_table, write_tables
from manifests.records import SynthesisAttempt, Synthesized, arrow_schema
from train.lemur.check import CheckResult
from train.model.contract import check_contract, lemur_name

FORMAT = FolderFormat(
    "synthesis",
    "lemur synthesize",
    {
        "networks": (Synthesized, {"train": f"{RECORDS}/train-*.parquet"}),
        "attempts": (SynthesisAttempt, {"full": ATTEMPTS}),
    },
    default="networks",
    tags=("pytorch", "code", "synthetic"),
    disclosure=replace(
        SNAPSHOT_DISCLOSURE,
        uses=("Comparing language models that write networks, and training them on attempts with their outcome.",),
        limits=("A network was proved as docs/synthesis.md says, no further.", *SNAPSHOT_DISCLOSURE.limits[-1:]),
        biases=("Networks resemble what the models were trained on, and blocks are those of the library.",),
        collection="A language model wrote the networks on request; a program ran and compared each in a sandbox.",
    ),
)

#: Columns that an accepted network takes from its attempt.
_SHARED = ("model", "attempt", "round", "blocks", "parent", "originality")

#: Hyperparameters for checking and training a network.
PARAMETERS: Json = PRM | {"transform": "norm_32_flip", "batch": 64}


def _collect_accepted(
    tried: Sequence[Tried], license_: str, trained: Mapping[str, CheckResult], epochs: int | None
) -> list[Synthesized]:
    """Return the accepted networks without repeats, in the order of the attempts.

    Args: trained: the results of training, by name. epochs: the number of epochs.
    """
    rows: dict[str, Synthesized] = {}
    for attempt in tried:
        record = attempt.record
        if record.failed is not None or record.nn in rows:
            continue
        assert record.nn is not None
        assert record.code is not None
        assert attempt.candidate.graph is not None
        assert attempt.candidate.widths is not None
        result = trained.get(record.nn)
        rows[record.nn] = Synthesized(
            nn=record.nn,
            nn_code=record.code,
            task=TASK,
            dataset="cifar-10",
            metric="acc",
            epoch=epochs if result is not None and result.accuracy is not None else None,
            accuracy=result.accuracy if result else None,
            duration=result.duration if result else None,
            prm=json.dumps(PARAMETERS, sort_keys=True),
            id=hashlib.sha256(record.code.encode()).hexdigest(),
            **{name: getattr(record, name) for name in _SHARED},
            block_codes=tuple(block.spec.code_sha256 for block in attempt.candidate.attempt.requested),
            graph=attempt.candidate.graph,
            graph_widths=attempt.candidate.widths,
            license=license_,
        )
    return list(rows.values())


def write_synthesis(
    out: Path,
    tried: Sequence[Tried],
    *,
    parameters: Mapping[str, object],
    folders: Sequence[Path],
    trained: Mapping[str, CheckResult],
    epochs: int | None,
    license_: str,
    watch: Stopwatch,
    force: bool,
) -> dict[str, ModelCounts]:
    """Write the folder `out` atomically, and return the counts by model.

    Args:
        folders: the library, the folders to compare with for novelty, and the snapshot of networks to change.
        trained: the results of training, by name. epochs: the number of epochs.
    Raises: UserError if the folder cannot be written.
    """
    records = [attempt.record for attempt in tried]
    counts = count_attempts(records)
    accepted = _collect_accepted(tried, license_, trained, epochs)
    with atomic_folder(out, force=force) as folder:
        (folder / NETS).mkdir()
        for row in accepted:
            write_text(folder / NETS / f"{row.nn}.py", row.nn_code)
        write_table(folder / ATTEMPTS, arrow_schema(SynthesisAttempt), (record.model_dump() for record in records))
        row_counts = write_tables(
            folder / RECORDS, "train", Synthesized, (row.model_dump() for row in accepted), len(accepted)
        )
        rows = {ATTEMPTS: len(records)} | {f"{RECORDS}/{name}": number for name, number in row_counts.items()}
        parents = list({parent.sha256: parent for parent in map(describe_parent, folders)}.values())
        card = Card(
            name="Synthesized networks",
            description="PyTorch networks that a language model wrote from facts about blocks; each was proved.",
            licenses=[license_],
            size=len(accepted),
            text=card_text(counts, license_),
            sources=[(f"{parent.kind} {parent.name}", f"hash://sha256/{parent.sha256}") for parent in parents],
        )
        FORMAT.write_card(folder, rows, card, default="networks" if accepted else "attempts")
        write_text(folder / "report.md", report_text(records, accepted, parameters, trained))
        manifest = Manifest(
            kind=FORMAT.name,
            versions=package_versions(),
            parameters=dict(parameters),
            inputs=[
                Input(name=f"model {name}", sha256=digest, bytes=0)
                for name, digest in dict.fromkeys((record.model, record.model_digest) for record in records)
                # A model of the Hub has a commit, of 40 digits, instead of a SHA-256.
                if digest is not None and len(digest) == 64
            ],
            parents=parents,
            counts=dict(counts),
            details={"license": license_},
            outputs=list_outputs(folder, rows),
            measured=watch.measure(),
        )
        finish(folder, manifest, synthesis_page, watch)
    return counts


def count_attempts(records: Sequence[SynthesisAttempt]) -> dict[str, ModelCounts]:
    """Count attempts, answers, accepted networks, tokens and failures (by step of the last answer) for each model."""
    counts: dict[str, ModelCounts] = {}
    for model in dict.fromkeys(record.model for record in records):
        own = [record for record in records if record.model == model]
        last = last_answers(own)
        failed = [record.failed for record in last if record.failed is not None]
        counts[model] = {
            "attempts": len(last),
            "answers": sum(record.answer is not None for record in own),
            "accepted": len(last) - len(failed),
            "prompt_tokens": sum(record.prompt_tokens or 0 for record in own),
            "answer_tokens": sum(record.answer_tokens or 0 for record in own),
            "failed": {step: failed.count(step) for step in sorted(set(failed))},
        }
    return counts


# `lemur verify` and `lemur trace` for a synthesis folder. No code in it is executed.

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
