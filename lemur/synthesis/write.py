"""Write the folder of a synthesis: all attempts, the accepted networks as a dataset, a report, and the manifest."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from curate.compute.arguments import PRM
from curate.sources import RECORDS
from lemur.synthesis.attempts.loop import Tried
from lemur.synthesis.attempts.steps import TASK
from lemur.synthesis.report import ATTEMPTS, NETS, ModelCounts, card_text, last_answers, report_text, synthesis_page
from lemur_core.files import Json
from lemur_core.files.atomic import atomic_folder, write_text
from manifests.folders.cards import SNAPSHOT_DISCLOSURE
from manifests.folders.formats import Card, FolderFormat
from manifests.folders.frame import finish
from manifests.folders.manifest import (
    Input,
    Manifest,
    Stopwatch,
    describe_parent,
    list_outputs,
    package_versions,
)
from manifests.folders.tables import write_table, write_tables
from manifests.records import SynthesisAttempt, Synthesized, arrow_schema
from train.lemur.check import CheckResult

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
