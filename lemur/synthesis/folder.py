"""The folder of a synthesis: all attempts, the accepted networks as a dataset, a report; and `lemur verify` for it.

No code of the networks is executed here.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

from curate.compute.runs import PRM
from curate.sources.folders import RECORDS
from extract.model.results import wilson
from lemur.synthesis.steps import STEPS, TASK, NetworkProposal
from lemur_core.files import Json
from lemur_core.files.atomic import atomic_folder, write_text
from lemur_core.files.errors import missing_name
from lemur_core.files.markdown import code_span, count, plain, plural, ratio, table
from manifests.folders.cards import SNAPSHOT_DISCLOSURE
from manifests.folders.checks import Check, check_faults
from manifests.folders.kinds import Card, Folder, FolderLink, FoundItem, Kind, ListedItem
from manifests.folders.manifest import (
    Manifest,
    Stopwatch,
    describe_parent,
    list_outputs,
    package_versions,
    write_manifest,
)
from manifests.folders.tables import write_table, write_tables
from manifests.records import SynthesisAttempt, Synthesized, arrow_schema
from train.model.contract import check_contract, lemur_name

ATTEMPTS, NETS, PREFIX = "attempts.parquet", "nets", "syn"
_FAULTS = 12
_CHARACTERS = 160
_COPIED = 0.5  # networks with lower originality are listed by name

FORMAT = Kind(
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
        uses=("Measuring language models that write networks, and training them on attempts with their outcome.",),
        limits=("A network was proved as docs/synthesis.md says, no further.", *SNAPSHOT_DISCLOSURE.limits[-1:]),
        biases=("Networks resemble what the models were trained on, and blocks are those of the library.",),
        collection="A language model wrote the networks on request; a program ran and compared each in a sandbox.",
    ),
)

#: What each network is written for; the columns that it shares with its attempt.
_BENCHMARK: Json = {"task": TASK, "dataset": "cifar-10", "metric": "acc"}
_OF_ATTEMPT = ("model", "attempt", "round", "blocks", "originality")

#: Hyperparameters for checking a network.
PARAMETERS: Json = PRM | {"transform": "norm_32_flip", "batch": 64}


@dataclass(frozen=True, slots=True)
class Tried:
    """One answer and its outcome."""

    record: SynthesisAttempt
    candidate: NetworkProposal


class ModelCounts(TypedDict):
    """The outcomes of the attempts; `failed`: how many were not repaired, by the step that they fail."""

    attempts: int
    answers: int
    accepted: int
    prompt_tokens: int
    answer_tokens: int
    failed: dict[str, int]


def last_answers(records: Sequence[SynthesisAttempt]) -> list[SynthesisAttempt]:
    """Return the last answer of each attempt. Args: records: ordered by round."""
    return list({record.attempt: record for record in records}.values())


def count_attempts(records: Sequence[SynthesisAttempt]) -> ModelCounts:
    """Count attempts, answers, accepted networks, tokens, and failures by the step of the last answer."""
    last = last_answers(records)
    failed = Counter(record.failed for record in last if record.failed is not None)
    return {
        "attempts": len(last),
        "answers": sum(record.answer is not None for record in records),
        "accepted": len(last) - failed.total(),
        "prompt_tokens": sum(record.prompt_tokens or 0 for record in records),
        "answer_tokens": sum(record.answer_tokens or 0 for record in records),
        "failed": dict(sorted(failed.items())),
    }


def write_synthesis(
    out: Path,
    tried: Sequence[Tried],
    parameters: Mapping[str, object],
    folders: Sequence[Path],
    *,
    license_: str,
    watch: Stopwatch,
    force: bool,
) -> ModelCounts:
    """Write the folder `out` atomically, and return its counts.

    Args: folders: the folders to compare with for novelty, among them the library.
    Raises: UserError if the folder cannot be written.
    """
    records = [attempt.record for attempt in tried]
    counts = count_attempts(records)
    accepted = [_make_row(attempt, license_) for attempt in tried if attempt.record.failed is None]
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
            text=_card_text(records[0].model, counts, license_),
            sources=[(f"{parent.kind} {parent.name}", f"hash://sha256/{parent.sha256}") for parent in parents],
        )
        FORMAT.write_card(folder, rows, card, default="networks" if accepted else "attempts")
        write_text(folder / "report.md", report_text(records, accepted, parameters))
        manifest = Manifest(
            kind=FORMAT.name,
            versions=package_versions(),
            parameters=dict(parameters),
            inputs=[],
            parents=parents,
            counts={records[0].model: counts},
            details={"license": license_},
            outputs=list_outputs(folder, rows),
            measured=watch.measure(),
        )
        write_manifest(folder, manifest)
    return counts


def _make_row(attempt: Tried, license_: str) -> Synthesized:
    """Return the row of an accepted network. No two are the same: the step `novel` compares them."""
    record, candidate = attempt.record, attempt.candidate
    assert record.nn is not None
    assert record.code is not None
    assert candidate.graph is not None
    assert candidate.widths is not None
    return Synthesized(
        nn=record.nn,
        nn_code=record.code,
        **_BENCHMARK,
        epoch=None,
        accuracy=None,
        duration=None,
        prm=json.dumps(PARAMETERS, sort_keys=True),
        id=hashlib.sha256(record.code.encode()).hexdigest(),
        **{name: getattr(record, name) for name in _OF_ATTEMPT},
        block_codes=tuple(block.spec.code_sha256 for block in candidate.attempt.requested),
        graph=candidate.graph,
        graph_widths=candidate.widths,
        license=license_,
    )


# -- the texts ---------------------------------------------------------------------------------------------------------


def _card_text(model: str, counts: ModelCounts, license_: str) -> str:
    """Return the text of the dataset card about the networks."""
    return "\n\n".join(
        [
            "PyTorch networks by LEMUR's contract, written by a language model from neutral specs of blocks (facts that"
            f" were measured, never source text), each proved before it was accepted: {', '.join(STEPS)}.",
            f"{count(counts['accepted'])} of {plural(counts['attempts'], 'attempt')} by {code_span(model)} were"
            " accepted.",
            f"License of the networks, as stated by the user: {license_}. `attempts.parquet` holds every prompt and"
            " answer with the outcome of each step, `nets/` the networks as files, `report.md` the figures.",
        ]
    )


def report_text(
    records: Sequence[SynthesisAttempt], accepted: Sequence[Synthesized], parameters: Mapping[str, object]
) -> str:
    """Return the report of a synthesis."""
    first, last = [record for record in records if record.round == 0], last_answers(records)
    rows = []
    for step in STEPS:
        cells = [step]
        for group in (first, last):
            came = [record for record in group if STEPS.index(step) <= len(record.passed)]
            through = sum(step in record.passed for record in came)
            cells += [f"{through} of {len(came)}", _interval(through, len(came))]
        rows.append(cells)
    solved, mended = (sum(record.failed is None for record in group) for group in (first, last))
    counts = count_attempts(records)
    lines = [
        f"# Synthesis by {code_span(records[0].model)}",
        "",
        f"{plural(len(last), 'attempt')}, {plural(len(records), 'answer')}: **{mended} accepted**"
        f" ({_interval(mended, len(last))}); {solved} at the first answer, so repair gains {mended - solved}."
        f" {count(counts['prompt_tokens'])} tokens of prompts, {count(counts['answer_tokens'])} of answers.",
        "",
        "Through each step, of those that reached it; intervals are 95 % Wilson intervals.",
        "",
        *table(["step", "first answer", "interval", "last answer", "interval"], rows),
    ]
    faults = Counter((record.failed, _short(record.error or "")) for record in last if record.failed is not None)
    if faults:
        cells_of = [[step or "", plain(error), str(number)] for (step, error), number in faults.most_common(_FAULTS)]
        lines += ["The commonest faults of the last answers:", "", *table(["step", "error", "attempts"], cells_of, 2)]
    if copied := [row for row in accepted if row.originality is not None and row.originality < _COPIED]:
        lines += [
            "Networks most of whose 10-token shingles of a requested class are in its hidden source, which the model"
            " did not see (the share that are not):",
            "",
            *(f"- {code_span(row.nn)}: {ratio(row.originality or 0.0)}" for row in copied),
            "",
        ]
    return "\n".join([*lines, f"`{json.dumps(dict(parameters), sort_keys=True, ensure_ascii=False)}`", ""])


def _short(text: str) -> str:
    first = text.splitlines()[0] if text else ""
    return first if len(first) <= _CHARACTERS else f"{first[:_CHARACTERS]} …"


def _interval(part: int, whole: int) -> str:
    if not whole:
        return "–"
    low, high = wilson(part, whole)
    return f"{100 * low:.1f} to {100 * high:.1f} %"


# -- verify ------------------------------------------------------------------------------------------------------------


def derive(folder: Folder, made: Path) -> Json:
    """Write again what follows from the attempts; see `Derive`."""
    attempts, stored = list(FORMAT.rows(folder.path, SynthesisAttempt)), list(FORMAT.rows(folder.path, Synthesized))
    attempts = [
        attempt.model_copy(
            update={
                "code_sha256": None if attempt.code is None else hashlib.sha256(attempt.code.encode()).hexdigest(),
                "nn": None if attempt.failed is not None else lemur_name(attempt.code or "", PREFIX),
            }
        )
        for attempt in attempts
    ]
    write_table(made / ATTEMPTS, arrow_schema(SynthesisAttempt), (record.model_dump() for record in attempts))
    accepted = {record.nn: record for record in reversed(attempts) if record.nn is not None}
    license_ = folder.manifest.details.get("license")
    rows = [_derive_row(row, accepted.get(row.nn), license_) for row in stored]
    (made / NETS).mkdir()
    for row in rows:
        write_text(made / NETS / f"{row.nn}.py", row.nn_code)
    write_tables(made / RECORDS, "train", Synthesized, (row.model_dump() for row in rows), len(rows))
    return {"counts": {attempt.model: count_attempts(attempts) for attempt in attempts[:1]}}


def _derive_row(row: Synthesized, attempt: SynthesisAttempt | None, license_: str | None) -> Synthesized:
    """Return the row of a network with all that follows from its attempt and from the stated license."""
    if attempt is None:
        return row
    code = attempt.code or ""
    changed = {"nn_code": code, "id": hashlib.sha256(code.encode()).hexdigest(), "license": license_ or row.license}
    return row.model_copy(update={**changed, **_BENCHMARK, **{name: getattr(attempt, name) for name in _OF_ATTEMPT}})


def check_synthesis(folder: Folder) -> list[Check]:
    """Check the outcome of each attempt, and each accepted network."""
    attempts, rows = list(FORMAT.rows(folder.path, SynthesisAttempt)), list(FORMAT.rows(folder.path, Synthesized))
    networks = f"{len(rows):,} networks: names and contract; each passed all {len(STEPS)} steps"
    return [
        check_faults("attempts", list(_attempt_faults(attempts)), f"{len(attempts):,} answers, each with its outcome"),
        check_faults("networks", list(_network_faults(attempts, rows)), networks),
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


def _network_faults(attempts: list[SynthesisAttempt], rows: list[Synthesized]) -> Iterator[str]:
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
        if fault := check_contract(row.nn_code):
            yield f"{row.nn}: {fault}"
        if graphs.count(row.graph) > 1:
            yield f"{row.nn}: another network computes the same"


def find(folder: Path, wanted: str) -> FoundItem:
    """Find an accepted network by its name or id. Raises: UserError, with similar names, if there is none."""
    rows = list(FORMAT.rows(folder, Synthesized))
    for row in rows:
        if wanted in (row.nn, row.id):
            return _trace_network(folder, row)
    raise missing_name(f"{wanted}: no network of {folder} has that name", wanted, [row.nn for row in rows])


def find_code(folder: Path, sha256: str) -> FoundItem | None:
    """Return the accepted network with this code; None if there is none."""
    return next((_trace_network(folder, row) for row in FORMAT.rows(folder, Synthesized) if row.id == sha256), None)


def _trace_network(folder: Path, row: Synthesized) -> FoundItem:
    attempts = FORMAT.rows(folder, SynthesisAttempt)
    attempt = next(record for record in attempts if record.nn == row.nn)
    facts: Json = {
        "id": row.id,
        "model": row.model,
        "attempt": f"{row.attempt}, round {row.round}, seed {attempt.seed}",
        "goal": attempt.goal,
        "specs": list(row.blocks),
        "originality": row.originality,
        "nearest": (json.loads(attempt.facts).get("nearest") or {}).get("name"),
        "license": row.license,
    }
    links = (FolderLink("network", row.nn, facts),)
    return FoundItem(links, row.block_codes)


def list_networks(folder: Path) -> Iterator[ListedItem]:
    """Yield the accepted networks."""
    for row in FORMAT.rows(folder, Synthesized):
        yield ListedItem((row.nn, row.id), {"id": row.id, "model": row.model, "blocks": list(row.blocks)})


KINDS = (replace(FORMAT, derive=derive, laws=(check_synthesis,), items=list_networks, find=find, find_code=find_code),)
