"""The page of a synthesis: how many answers passed each step, and every answer with its code and outcome."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lemur.synthesis.proving.steps import STEPS
from lemur_core.files.markdown import count, percent, plural
from manifests.folders.frame import Cell, Entry, EntryLibrary, Page, View, bars, code, facts, link, table
from manifests.folders.manifest import Manifest
from manifests.folders.tables import read_rows
from manifests.records import SynthesisAttempt

ATTEMPTS, NETS = "attempts.parquet", "nets"


def synthesis_page(folder: Path, manifest: Manifest) -> Page:
    """Return the page of a synthesis, read from its table of attempts."""
    records = list(read_rows([folder / ATTEMPTS], SynthesisAttempt))
    accepted = sum(record.failed is None for record in records)
    models: dict[str, list[SynthesisAttempt]] = {}
    for record in records:
        models.setdefault(record.model, []).append(record)
    rows: list[Sequence[Cell]] = [
        [model, len(own), sum(one.failed is None for one in own), sum(one.answer_tokens or 0 for one in own)]
        for model, own in models.items()
    ]
    views = [table("Models", ["model", "answers", "accepted", "tokens"], rows), _steps(records)]
    library = EntryLibrary(
        title="Answers",
        noun="answers",
        facets=("outcome", "model", "form"),
        numbers=("round", "originality"),
        entries=[_entry(record) for record in records],
        views=map(_views, records),
        total=len(records),
        elsewhere=ATTEMPTS,
        by="from the spec of",
    )
    lead = (
        f"{plural(len(records), 'answer')} of {plural(len(models), 'model')}, {count(accepted)} accepted by all steps."
    )
    return Page("Synthesized networks", manifest.kind, lead, [view for view in views if view["rows"]], library)


def _steps(records: Sequence[SynthesisAttempt]) -> View:
    passed = Counter(step for record in records for step in record.passed)
    number = float(len(records))
    rows = [
        (step, float(passed[step]), number, f"{count(passed[step])}  {percent(passed[step], number)}") for step in STEPS
    ]
    return bars("Step by step", rows, "Answers that passed each step.")


def _entry(record: SynthesisAttempt) -> Entry:
    return Entry(
        name=record.nn or f"attempt {record.attempt}, round {record.round}",
        note=record.goal,
        facets=("accepted" if record.failed is None else f"fails at {record.failed}", record.model, record.form),
        numbers=(record.round, record.originality),
        further=record.blocks,
    )


def _views(record: SynthesisAttempt) -> list[View]:
    files = [link(f"{NETS}/{record.nn}.py", f"{NETS}/{record.nn}.py")] if record.nn else []
    rows: list[tuple[str, Cell | Sequence[Cell]]] = [
        ("outcome", "accepted" if record.failed is None else f"fails at {record.failed}"),
        ("error", (record.error or "").splitlines()),
        ("goal", record.goal),
        ("specs", list(record.blocks)),
        ("model", f"{record.model}, seed {record.seed}"),
        ("originality", record.originality),
        ("what is known", record.facts),
        ("file", files),
    ]
    prompt = json.dumps(json.loads(record.prompt), indent=1, ensure_ascii=False).replace("\\n", "\n")
    texts = [("Code", record.code), ("Plan", record.plan), ("Whole answer", record.answer), ("Prompt", prompt)]
    return [facts("Answer", rows), *(code(title, text) for title, text in texts if text)]
