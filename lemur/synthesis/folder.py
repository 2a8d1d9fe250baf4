"""The folder of a synthesis: all attempts, the accepted networks as a dataset, a report; and `lemur verify` for it.

No code of the networks is executed here.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from curate.compute.runs import PRM
from curate.sources.folders import RECORDS
from extract.model.results import wilson
from lemur.synthesis.steps import STEPS, TASK, NetworkProposal
from lemur_core.files import Json
from lemur_core.files.atomic import atomic_folder, write_text
from lemur_core.files.markdown import code_span, count, plain, plural, table
from manifests.folders.cards import SNAPSHOT_DISCLOSURE, Card
from manifests.folders.kinds import Check, Folder, FolderLink, FoundItem, Kind, ListedItem, check_faults
from manifests.folders.manifest import (
    Manifest,
    Stopwatch,
    describe_parent,
)
from manifests.folders.tables import write_table, write_tables
from manifests.provenance.licenses import NOASSERTION
from manifests.records import SynthesisAttempt, Synthesized, arrow_schema
from train.model.contract import check_contract, lemur_name

ATTEMPTS, NETS, PREFIX = "attempts.parquet", "nets", "syn"
_FAULTS = 12
_CHARACTERS = 160

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

#: Hyperparameters for checking a network.
PARAMETERS: Json = PRM | {"transform": "norm_32_flip", "batch": 64}


#: One answer and its outcome, and the network that it holds.
Tried = tuple[SynthesisAttempt, NetworkProposal]


def last_answers(records: Sequence[SynthesisAttempt]) -> list[SynthesisAttempt]:
    """Return the last answer of each attempt. Args: records: ordered by round."""
    return list({record.attempt: record for record in records}.values())


def count_attempts(records: Sequence[SynthesisAttempt]) -> Json:
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
) -> Json:
    """Write the folder `out` atomically, and return its counts.

    Args: folders: the folders to compare with for novelty, among them the library.
    Raises: UserError if the folder cannot be written.
    """
    records = [record for record, _ in tried]
    counts = count_attempts(records)
    accepted = [
        make_row(record, candidate.attempt.block.spec.code_sha256, candidate.graph, candidate.widths, license_)
        for record, candidate in tried
        if record.failed is None
    ]
    with atomic_folder(out, force=force) as folder:
        rows = write_contents(folder, records, accepted, parameters)
        parents = list({parent.sha256: parent for parent in map(describe_parent, folders)}.values())
        FACED.finish(
            folder,
            rows,
            watch,
            parameters=dict(parameters),
            parents=parents,
            counts={records[0].model: counts},
            details={"license": license_},
        )
    return counts


def write_contents(
    folder: Path,
    records: Sequence[SynthesisAttempt],
    accepted: Sequence[Synthesized],
    parameters: Mapping[str, object],
) -> dict[str, int]:
    """Write tables, networks and report of a synthesis. Returns: rows by path."""
    (folder / NETS).mkdir(parents=True)
    for row in accepted:
        write_text(folder / NETS / f"{row.nn}.py", row.nn_code)
    write_table(folder / ATTEMPTS, arrow_schema(SynthesisAttempt), (record.model_dump() for record in records))
    written = write_tables(
        folder / RECORDS, "train", Synthesized, (row.model_dump() for row in accepted), len(accepted)
    )
    write_text(folder / "report.md", report_text(records, parameters))
    return {ATTEMPTS: len(records)} | {f"{RECORDS}/{name}": number for name, number in written.items()}


def make_row(
    attempt: SynthesisAttempt, block_code: str, graph: str | None, widths: str | None, license_: str
) -> Synthesized:
    """Return the row of an accepted network. No two are the same: the step `novel` compares them."""
    assert attempt.code is not None
    assert graph is not None
    assert widths is not None
    return Synthesized(
        nn=lemur_name(attempt.code, PREFIX),
        nn_code=attempt.code,
        task=TASK,
        dataset="cifar-10",
        metric="acc",
        epoch=None,
        accuracy=None,
        duration=None,
        prm=json.dumps(PARAMETERS, sort_keys=True),
        id=hashlib.sha256(attempt.code.encode()).hexdigest(),
        **{name: getattr(attempt, name) for name in ("model", "attempt", "round", "block")},
        block_code=block_code,
        graph=graph,
        graph_widths=widths,
        license=license_,
    )


# -- the texts ---------------------------------------------------------------------------------------------------------


def _card(_: Path, manifest: Manifest) -> Card:
    ((model, counts),), license_ = manifest.counts.items(), manifest.details["license"]
    return Card(
        name="Synthesized networks",
        description="PyTorch networks that a language model wrote from neutral specs of blocks (facts that were"
        f" measured, never source text); each was proved before it was accepted: {', '.join(STEPS)}.",
        licenses=[license_],
        text=f"{count(counts['accepted'])} of {plural(counts['attempts'], 'attempt')} by {code_span(model)} were"
        f" accepted.\n\nLicense of the networks, as stated by the user: {license_}. `attempts.parquet` holds every"
        " prompt and answer with the outcome of each step, `nets/` the networks as files, `report.md` the figures.",
        sources=[(f"{parent.kind} {parent.name}", f"hash://sha256/{parent.sha256}") for parent in manifest.parents],
    )


FACED = replace(FORMAT, card=_card)


def report_text(records: Sequence[SynthesisAttempt], parameters: Mapping[str, object]) -> str:
    """Return the report of a synthesis."""
    first, last = [record for record in records if record.round == 0], last_answers(records)
    rows = []
    for number, step in enumerate(STEPS):
        cells = [step]
        for group in (first, last):
            came = [record for record in group if number <= len(record.passed)]
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
    stored = {row.nn: row for row in FORMAT.rows(folder.path, Synthesized)}
    attempts = [
        attempt.model_copy(
            update={
                "code_sha256": None if attempt.code is None else hashlib.sha256(attempt.code.encode()).hexdigest(),
                "nn": None if attempt.failed is not None else lemur_name(attempt.code or "", PREFIX),
            }
        )
        for attempt in FORMAT.rows(folder.path, SynthesisAttempt)
    ]
    license_ = folder.manifest.details.get("license") or NOASSERTION
    rows = [
        make_row(attempt, row.block_code, row.graph, row.graph_widths, license_)
        for attempt in attempts
        if (row := stored.get(attempt.nn or "")) is not None
    ]
    write_contents(made, attempts, rows, folder.manifest.parameters)
    return {"counts": {attempt.model: count_attempts(attempts) for attempt in attempts[:1]}}


def check_synthesis(folder: Folder) -> list[Check]:
    """Check the outcome of each attempt, and each accepted network."""
    attempts, rows = list(FORMAT.rows(folder.path, SynthesisAttempt)), list(FORMAT.rows(folder.path, Synthesized))
    wrong = []
    for attempt in attempts:
        where = f"attempt {attempt.attempt}, round {attempt.round} of {attempt.model}"
        failed = attempt.failed
        passed = STEPS if failed is None else STEPS[: STEPS.index(failed)] if failed in STEPS else ()
        if attempt.passed != passed:
            wrong.append(f"{where}: passed {', '.join(attempt.passed) or 'nothing'}, failed {failed}")
        if (failed is None) != (attempt.nn is not None) or (failed is None) == (attempt.error is not None):
            wrong.append(f"{where}: is neither accepted with a name nor failed with an error")
    faults = [f"{row.nn}: {fault}" for row in rows if (fault := check_contract(row.nn_code))]
    if sorted(row.nn for row in rows) != sorted(attempt.nn for attempt in attempts if attempt.nn is not None):
        faults.append("the table of networks does not hold the accepted ones")
    if len({row.graph for row in rows}) != len(rows):
        faults.append("two networks compute the same")
    networks = f"{plural(len(rows), 'network')}: names and contract; each passed all {len(STEPS)} steps"
    return [
        check_faults("attempts", wrong, f"{plural(len(attempts), 'answer')}, each with its outcome"),
        check_faults("networks", faults, networks),
    ]


def list_networks(folder: Path) -> Iterator[ListedItem]:
    """Yield the accepted networks."""
    rows = {row.nn: row for row in FORMAT.rows(folder, Synthesized)}
    for attempt in FORMAT.rows(folder, SynthesisAttempt):
        if (row := rows.get(attempt.nn or "")) is not None:
            facts = {"id": row.id, "model": row.model, "block": row.block}
            yield ListedItem((row.nn, row.id), facts, (row.id,), partial(_show_network, row, attempt))


def _show_network(row: Synthesized, attempt: SynthesisAttempt) -> FoundItem:
    facts: Json = {
        "id": row.id,
        "model": row.model,
        "attempt": f"{row.attempt}, round {row.round}, seed {attempt.seed}",
        "goal": attempt.goal,
        "spec": row.block,
        "nearest": (json.loads(attempt.facts).get("nearest") or {}).get("name"),
        "license": row.license,
    }
    return FoundItem((FolderLink("network", row.nn, facts),), (row.block_code,))


KINDS = (replace(FACED, derive=derive, laws=(check_synthesis,), items=list_networks),)
