"""The section of a curation report about networks that were run."""

from collections import Counter
from typing import Any

from curate.corpus import Corpus
from curate.outcome import Outcome
from curate.report.facts import Facts
from curate.report.records import WHOLE_TABLE
from curate.report.sections import LONG_TABLE
from curate.runs.check import RunResult
from lemur_core.files.markdown import code_span, count, percent, plain, plural, table

_MEANING = {
    "missing_dependency": "it imports a module that is not installed here",
    "import_failed": "the file raises when it is executed",
    "no_net": "it defines no class Net that is a module",
    "construct_failed": "Net(in_shape, out_shape, prm, device) raises",
    "forward_failed": "forward raises",
    "wrong_output": "forward gives another shape than samples x classes",
    "not_finite": "forward gives infinite values or NaN",
    "denied": "it asks for something that the sandbox refuses",
    "timeout": "it takes too long",
    "out_of_memory": "it takes too much memory",
    "over_limit": "it takes too much scratch space or too many threads",
    "crashed": "it ends the process",
    "error": "the trial itself failed",
    "unknown_input": "not tried: what LEMUR hands it cannot be told",
}


def runs(facts: Facts, corpus: Corpus, outcome: Outcome, counts: dict[str, Any]) -> list[str]:
    """How many of the kept networks run, why others do not, and each of those; nothing when runs were not checked."""
    if outcome.runs is None:
        return []
    found = counts["runs"]
    lines = [
        "## Networks that run",
        "",
        f"{plural(found['runs'], 'kept network')} of {count(len(outcome.kept))} ran:"
        " constructed as `Net(in_shape, out_shape, prm, device)` and run forward on two samples of the size that the"
        " record's transform gives, on a CPU, in eval mode, without trained weights (column `runs`)."
        f" {count(found['fails'])} do not run, {count(found['not_tried'])} could not be tried.",
        "",
    ]
    if found["errors"]:
        lines += _by_task(corpus, outcome)
        lines += _categories(found["errors"], "kept networks")
        lines += _failures(facts, outcome.runs)
    if found["left_out"]:
        lines += ["Left out because they do not run or could not be tried (`--require-runs`):", ""]
        lines += _categories(found["left_out"], "codes")
    return lines


def _by_task(corpus: Corpus, outcome: Outcome) -> list[str]:
    assert outcome.runs is not None
    tasks = corpus.rows.column("task").take([outcome.shown[code] for code in outcome.kept]).to_pylist()
    counted: dict[str, Counter[bool | None]] = {}
    for code, task in zip(outcome.kept, tasks, strict=True):
        counted.setdefault(task or "", Counter())[outcome.runs[code].runs] += 1
    ranked = sorted(counted.items(), key=lambda item: (-item[1].total(), item[0]))
    rows = [
        [code_span(task, 40), count(c.total()), count(c[True]), count(c[False]), count(c[None])]
        for task, c in ranked[:LONG_TABLE]
    ]
    return table(["task", "kept", "run", "do not", "not tried"], rows)


def _categories(errors: dict[str, int], unit: str) -> list[str]:
    ranked = sorted(errors.items(), key=lambda item: (-item[1], item[0]))
    whole = sum(errors.values())
    rows = [[f"`{name}`", _MEANING.get(name, ""), count(number), percent(number, whole)] for name, number in ranked]
    return table(["category", "meaning", unit, "%"], rows, 2)


def _failures(facts: Facts, results: dict[int, RunResult]) -> list[str]:
    failed = [code for code, result in results.items() if result.error is not None]
    failed.sort(key=lambda code: (str(results[code].category), facts.fates[code].name, facts.ids[code]))
    rows = [
        [code_span(facts.fates[code].name), f"`{facts.ids[code][:12]}`", plain(results[code].error or "")]
        for code in failed[:WHOLE_TABLE]
    ]
    if len(failed) > WHOLE_TABLE:
        rows.append([f"{count(len(failed) - WHOLE_TABLE)} others", "", ""])
    return table(["name", "id", "error"], rows, 3)
