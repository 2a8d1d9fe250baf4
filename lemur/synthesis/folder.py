"""The folder of a synthesis: all attempts, the accepted networks as a dataset, a report; and `lemur verify` for it.

No code of the networks is executed here.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from curate.compute.runs import PRM
from curate.sources.folders import RECORDS
from extract.model.results import wilson
from lemur_core.files import Json
from lemur_core.files.atomic import write_text
from lemur_core.files.markdown import code_span, count, plural
from manifests.folders.cards import CODE_RISK, Card, Disclosure
from manifests.folders.frame import Cell, Page, settings, table
from manifests.folders.kinds import SYNTHESIS, Check, Folder, check_faults
from manifests.folders.manifest import Manifest
from manifests.folders.tables import write_table, write_tables
from manifests.provenance.licenses import NOASSERTION
from manifests.records import SynthesisAttempt, Synthesized, arrow_schema
from train.model.contract import check_contract, lemur_name

#: What code must pass, in order; the module `steps` says how.
STEPS = ("answer", "syntax", "policy", "closed", "contract", "runs", "used", "learns", "conforms", "novel")
TASK = "img-classification"
#: Hyperparameters of the proof.
PARAMETERS: Json = PRM | {"transform": "norm_32_flip", "batch": 64}

_ATTEMPTS, _NETS = "attempts.parquet", "nets"
_FAULTS = 12  # in the report


def write_contents(folder: Path, attempts: Sequence[SynthesisAttempt], networks: Sequence[Synthesized]) -> None:
    """Write the tables and the files of the networks."""
    (folder / _NETS).mkdir(parents=True)
    for network in networks:
        write_text(folder / _NETS / f"{network.nn}.py", network.nn_code)
    write_table(folder / _ATTEMPTS, arrow_schema(SynthesisAttempt), (attempt.model_dump() for attempt in attempts))
    rows = [network.model_dump() for network in networks]
    write_tables(folder / RECORDS, "train", Synthesized, rows, len(rows))


def derive_columns(code: str | None, failed: str | None) -> Json:
    """Return the columns of an attempt that follow from its code and the step that it failed."""
    return {
        "passed": STEPS if failed is None else STEPS[: STEPS.index(failed)],
        "code_sha256": None if code is None else hashlib.sha256(code.encode()).hexdigest(),
        "nn": lemur_name(code or "", "syn") if failed is None else None,
    }


def make_row(attempt: SynthesisAttempt, block_code: str, graph: str, widths: str, license_: str) -> Synthesized:
    """Return the row of an accepted network. No two are the same: the step `novel` compares them."""
    assert attempt.code is not None
    assert attempt.code_sha256 is not None
    return Synthesized(
        **{name: getattr(attempt, name) for name in ("nn", "model", "attempt", "round", "block")},
        nn_code=attempt.code,
        task=TASK,
        dataset="cifar-10",
        metric="acc",
        epoch=None,
        accuracy=None,
        duration=None,
        prm=json.dumps(PARAMETERS, sort_keys=True),
        id=attempt.code_sha256,
        block_code=block_code,
        graph=graph,
        graph_widths=widths,
        license=license_,
    )


def count_attempts(attempts: Sequence[SynthesisAttempt]) -> Json:
    """Count attempts, answers, accepted networks, tokens, and failures by the step of the last answer."""
    last = _last_answers(attempts)
    failed = Counter(attempt.failed for attempt in last if attempt.failed is not None)
    return {
        "attempts": len(last),
        "answers": sum(attempt.answer is not None for attempt in attempts),
        "accepted": len(last) - failed.total(),
        "prompt_tokens": sum(attempt.prompt_tokens or 0 for attempt in attempts),
        "answer_tokens": sum(attempt.answer_tokens or 0 for attempt in attempts),
        "failed": dict(sorted(failed.items())),
    }


def _last_answers(attempts: Sequence[SynthesisAttempt]) -> list[SynthesisAttempt]:
    """Return the last answer of each attempt. Args: attempts: ordered by round."""
    return list({attempt.attempt: attempt for attempt in attempts}.values())


def _overview(folder: Path, manifest: Manifest) -> Page:
    """Return the report: the answers that pass each step, at first and after repair, and the commonest faults."""
    attempts = list(KIND.rows(folder, SynthesisAttempt))
    groups = [attempt for attempt in attempts if attempt.round == 0], _last_answers(attempts)
    rows: list[Sequence[Cell]] = []
    for number, step in enumerate(STEPS):
        reached = [[attempt for attempt in group if number <= len(attempt.passed)] for group in groups]
        rows.append([step, *(f"{sum(step in one.passed for one in group)} of {len(group)}" for group in reached)])
    solved, mended = (sum(attempt.failed is None for attempt in group) for group in groups)
    low, high = wilson(mended, len(groups[1]))
    counts = manifest.counts
    faults = Counter((one.failed, (one.error or "").partition("\n")[0]) for one in groups[1] if one.failed is not None)
    lead = (
        f"{plural(counts['attempts'], 'attempt')}, {plural(len(attempts), 'answer')}: {mended} accepted ({low:.1%} to"
        f" {high:.1%}, a 95 % Wilson interval); {solved} at the first answer, so repair gains {mended - solved}."
        f" {count(counts['prompt_tokens'])} tokens of prompts, {count(counts['answer_tokens'])} of answers."
    )
    views = [
        table("Through each step, of those that reached it", ["step", "first answer", "last answer"], rows),
        table("The commonest faults of the last answers", ["step", "error", "attempts"],
              [[step, error, of] for (step, error), of in faults.most_common(_FAULTS)]),
        settings(manifest.parameters),
    ]  # fmt: skip
    return Page(f"Synthesis by {manifest.parameters['model']}", "synthesis", lead, views)


_DISCLOSURE = Disclosure(
    uses=("Measuring language models that write networks, and training them on attempts with their outcome.",),
    limits=("A network was proved as docs/synthesis.md says, no further.", CODE_RISK),
    biases=("Networks resemble what the models were trained on, and blocks are those of the library.",),
    collection="A language model wrote the networks on request; a program ran and compared each in a sandbox.",
)


def _card(_: Path, manifest: Manifest) -> Card:
    counts, license_ = manifest.counts, manifest.details["license"]
    return Card(
        name="Synthesized networks",
        description="PyTorch networks that a language model wrote from neutral specs of blocks (facts that were"
        f" measured, never source text); each was proved before it was accepted: {', '.join(STEPS)}.",
        licenses=[license_],
        text=f"{count(counts['accepted'])} of {plural(counts['attempts'], 'attempt')} by"
        f" {code_span(manifest.parameters['model'])} were"
        f" accepted.\n\nLicense of the networks, as stated by the user: {license_}. `attempts.parquet` holds every"
        " prompt and answer with the outcome of each step, `nets/` the networks as files, `report.md` the figures.",
        disclosure=_DISCLOSURE,
        sources=[(f"{parent.kind} {parent.name}", f"hash://sha256/{parent.sha256}") for parent in manifest.parents],
    )


def _derive(folder: Folder, made: Path) -> Json:
    """Write again what follows from the attempts; see `Derive`."""
    stored = {row.nn: row for row in KIND.rows(folder.path, Synthesized)}
    attempts = [
        attempt.model_copy(update=derive_columns(attempt.code, attempt.failed))
        for attempt in KIND.rows(folder.path, SynthesisAttempt)
    ]
    license_ = folder.manifest.details.get("license") or NOASSERTION
    networks = [
        make_row(attempt, row.block_code, row.graph, row.graph_widths, license_)
        for attempt in attempts
        if (row := stored.get(attempt.nn or "")) is not None
    ]
    write_contents(made, attempts, networks)
    return {"counts": count_attempts(attempts)}


def _check_networks(folder: Folder) -> Check:
    """Check that the accepted networks are there, each once, and meet the contract."""
    attempts, networks = list(KIND.rows(folder.path, SynthesisAttempt)), list(KIND.rows(folder.path, Synthesized))
    wrong = [f"{row.nn}: {fault}" for row in networks if (fault := check_contract(row.nn_code))]
    if sorted(row.nn for row in networks) != sorted(attempt.nn for attempt in attempts if attempt.nn is not None):
        wrong.append("the table of networks does not hold the accepted ones")
    if len({row.graph for row in networks}) != len(networks):
        wrong.append("two networks compute the same")
    text = f"{plural(len(networks), 'network')}: names and contract; each passed all {len(STEPS)} steps"
    return check_faults("networks", wrong, text)


KIND = replace(SYNTHESIS, overview=_overview, card=_card, derive=_derive, laws=(_check_networks,))
KINDS = (KIND,)
