"""The texts about a synthesis: report and dataset card in Markdown, and the page with every answer."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from scipy.stats import binomtest

from extract.model.results import wilson
from lemur.synthesis.attempts.steps import STEPS
from lemur_core.files.markdown import code_span, count, percent, plain, plural, ratio, table
from manifests.folders.frame import Cell, Entry, EntryLibrary, Page, View, bars, code, facts, link
from manifests.folders.frame import table as page_table
from manifests.folders.manifest import Manifest
from manifests.folders.tables import read_rows
from manifests.records import SynthesisAttempt, Synthesized
from train.lemur.check import CheckResult

ATTEMPTS, NETS = "attempts.parquet", "nets"
_BLOCKS = 40
_FAULTS = 12
_CHARACTERS = 160
_COPIED = 0.5  # networks with lower originality are listed by name


def report_text(
    records: Sequence[SynthesisAttempt],
    accepted: Sequence[Synthesized],
    parameters: Mapping[str, object],
    trained: Mapping[str, CheckResult],
) -> str:
    """Return the report of a synthesis."""
    models = list(dict.fromkeys(record.model for record in records))
    lines = ["# Synthesis", ""]
    for model in models:
        own = [record for record in records if record.model == model]
        lines += _report_model(model, own)
    if len(models) == 2:
        lines += _compare_models(models, records)
    lines += _report_blocks(records)
    lines += _originality(accepted)
    if trained:
        lines += _list_trained(accepted, trained)
    lines += ["## How", "", f"`{json.dumps(dict(parameters), sort_keys=True, ensure_ascii=False)}`", ""]
    return "\n".join(lines)


class ModelCounts(TypedDict):
    """The outcomes of the attempts of one model; `failed`: how many were not repaired, by the step that they fail."""

    attempts: int
    answers: int
    accepted: int
    prompt_tokens: int
    answer_tokens: int
    failed: dict[str, int]


def last_answers(records: Sequence[SynthesisAttempt]) -> list[SynthesisAttempt]:
    """Return the last answer of each attempt of one model. Args: records: ordered by round."""
    # The later round replaces the earlier one.
    return list({record.attempt: record for record in records}.values())


def card_text(counts: Mapping[str, ModelCounts], license_: str) -> str:
    """Return the text of the dataset card about the networks."""
    sentences = [
        f"{count(numbers['accepted'])} of {plural(numbers['attempts'], 'attempt')} by {code_span(model)} were accepted."
        for model, numbers in counts.items()
    ]
    steps = ", ".join(STEPS)
    return "\n\n".join(
        [
            "PyTorch networks by LEMUR's contract, written by a language model from neutral specs of blocks (facts that"
            " were measured, never source text), each proved before it was accepted: " + steps + ".",
            "\n".join(sentences),
            f"License of the networks, as stated by the user: {license_}. `attempts.parquet` holds every prompt and"
            " answer with the outcome of each step, `nets/` the networks as files, `report.md` the figures.",
        ]
    )


def _report_model(model: str, records: Sequence[SynthesisAttempt]) -> list[str]:
    first = [record for record in records if record.round == 0]
    last = last_answers(records)
    rows = []
    for step in STEPS:
        cells = [step]
        for group in (first, last):
            came = [record for record in group if STEPS.index(step) <= len(record.passed)]
            through = sum(step in record.passed for record in came)
            cells += [f"{through} of {len(came)}", _interval(through, len(came))]
        rows.append(cells)
    solved, mended = (sum(record.failed is None for record in group) for group in (first, last))
    tokens = [sum(getattr(record, name) or 0 for record in records) for name in ("prompt_tokens", "answer_tokens")]
    digest = records[0].model_digest
    return [
        f"## {code_span(model)}",
        "",
        f"{plural(len(last), 'attempt')}, {plural(len(records), 'answer')}: **{mended} accepted**"
        f" ({percent(mended, len(last))}, {_interval(mended, len(last))});"
        f" {solved} at the first answer ({percent(solved, len(last))}, {_interval(solved, len(last))}), so repair gains"
        f" {mended - solved}. {count(tokens[0])} tokens of prompts, {count(tokens[1])} of answers."
        f" Digest of the weights: {digest[:16] if digest else 'not known'}.",
        "",
        "Through each step, of those that reached it; intervals are 95 % Wilson intervals.",
        "",
        *table(["step", "first answer", "interval", "last answer", "interval"], rows),
        *_faults(last),
    ]


def _faults(last: Sequence[SynthesisAttempt]) -> list[str]:
    counted = Counter((record.failed or "", _short(record.error or "")) for record in last if record.failed is not None)
    if not counted:
        return []
    rows = [[step, plain(error), str(number)] for (step, error), number in counted.most_common(_FAULTS)]
    return [
        "What the last answers failed for, the commonest first:",
        "",
        *table(["step", "error", "attempts"], rows, 2),
    ]


def _short(text: str) -> str:
    first = text.splitlines()[0] if text else ""
    return first if len(first) <= _CHARACTERS else f"{first[:_CHARACTERS]} …"


def _compare_models(models: Sequence[str], records: Sequence[SynthesisAttempt]) -> list[str]:
    """Return the attempts solved by one of two models, the other, both or neither, with the exact McNemar test."""
    solved: list[set[int]] = [
        {record.attempt for record in records if record.model == model and record.failed is None} for model in models
    ]
    attempts = {record.attempt for record in records}
    only = [len(solved[0] - solved[1]), len(solved[1] - solved[0])]
    both, none = len(solved[0] & solved[1]), len(attempts - solved[0] - solved[1])
    test = binomtest(only[0], sum(only)).pvalue if sum(only) else 1.0
    return [
        "## Paired",
        "",
        f"The same {plural(len(attempts), 'attempt')} for both: {both} accepted from both, {only[0]} from"
        f" {code_span(models[0])} alone, {only[1]} from {code_span(models[1])} alone, {none} from none;"
        f" exact McNemar test p = {test:.3g}.",
        "",
    ]


def _report_blocks(records: Sequence[SynthesisAttempt]) -> list[str]:
    last = {(record.model, record.attempt): record for record in records}.values()
    blocks = Counter(block for record in last for block in record.blocks)
    if not blocks:
        return []
    rows = []
    for block, number in sorted(blocks.items(), key=lambda item: (-item[1], item[0]))[:_BLOCKS]:
        through = sum(record.failed is None for record in last if block in record.blocks)
        rows.append([code_span(block), str(number), str(through), _interval(through, number)])
    more = [f"And {len(blocks) - _BLOCKS} further blocks.", ""] if len(blocks) > _BLOCKS else []
    return ["## By spec", "", *table(["block", "attempts", "accepted", "interval"], rows), *more]


def _originality(accepted: Sequence[Synthesized]) -> list[str]:
    known = [row for row in accepted if row.originality is not None]
    if not known:
        return []
    values = sorted(row.originality or 0.0 for row in known)
    near = [row for row in known if (row.originality or 0.0) < _COPIED]
    items = [
        f"- {code_span(row.nn)}: {ratio(row.originality or 0.0)}, {', '.join(map(code_span, row.blocks))}"
        for row in near
    ]
    return [
        "## Originality",
        "",
        "The minimum share of a requested class's 10-token shingles that its hidden source does not have; the model saw"
        f" neither. Median {ratio(values[len(values) // 2])}, least {ratio(values[0])};"
        f" {plural(len(near), 'network')} below {_COPIED}:" + ("" if near else " none."),
        "",
        *items,
        *([""] if items else []),
    ]


def _list_trained(accepted: Sequence[Synthesized], trained: Mapping[str, CheckResult]) -> list[str]:
    rows = []
    for row in sorted(accepted, key=lambda row: (-(row.accuracy or 0.0), row.nn)):
        result = trained.get(row.nn)
        if result is not None:
            accuracy = "–" if result.accuracy is None else percent(result.accuracy, 1)
            rows.append([code_span(row.nn), accuracy, result.status, plain(_short(result.error or ""))])
    return ["## Trained", "", *table(["network", "accuracy", "status", "why"], rows)]


def _interval(part: int, whole: int) -> str:
    if not whole:
        return "–"
    low, high = wilson(part, whole)
    return f"{100 * low:.1f} to {100 * high:.1f} %"


# -- the page --------------------------------------------


def synthesis_page(folder: Path, manifest: Manifest) -> Page:
    """Return the page of a synthesis, read from its table of attempts."""
    records = list(read_rows([folder / ATTEMPTS], SynthesisAttempt))
    accepted = sum(record.failed is None for record in records)
    models: dict[str, list[SynthesisAttempt]] = {}
    for record in records:
        models.setdefault(record.model, []).append(record)
    rows: list[Sequence[Cell]] = [
        [model, len(own), sum(row.failed is None for row in own), sum(row.answer_tokens or 0 for row in own)]
        for model, own in models.items()
    ]
    views = [page_table("Models", ["model", "answers", "accepted", "tokens"], rows), _steps(records)]
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
