"""The folder of an evaluation with its report, and `lemur verify` and `lemur trace` for it and all earlier stages."""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path

from extract.model.results import wilson
from lemur.experts.evaluate import ARMS, ModelEvaluator, compute_majority, compute_scores
from lemur.experts.facts import count_facts
from lemur.experts.settings import GENERAL
from lemur.experts.stages import ALIGNED, BASE, DATA, EXPERT, FACTS, ROUTED, TUNED, Workspace, facts_in
from lemur_core.files import Json
from lemur_core.files.atomic import write_text
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import percent, table
from manifests.folders.checks import Check, check_faults, check_files, check_table
from manifests.folders.formats import FolderFormat, FolderKind, FolderLink, RowTrace
from manifests.folders.manifest import read_manifest
from manifests.folders.tables import read_rows, write_table
from manifests.records import ExpertAnswer, ExpertFact, arrow_schema

ANSWERS, EVALUATED = "answers.parquet", "experts-evaluation"
_NEAR = 5


def write_evaluation(workspace: Workspace, domains: list[str]) -> Path:
    """Evaluate all methods and write `out/evaluation`. Raises: UserError if a stage has not been built."""
    stages = [("domains", domain, stage) for domain in domains for stage in ("expert", "projector", "prototypes")]
    parents = [*workspace.ground, workspace.folder("tuned"), *(workspace.folder(*stage) for stage in stages)]
    parents.append(workspace.folder("domains", GENERAL, "prototypes"))

    def fill(folder: Path, _key: str) -> Json:
        answers, findings = ModelEvaluator(workspace, domains).run()
        write_table(folder / ANSWERS, arrow_schema(ExpertAnswer), (answer.model_dump() for answer in answers))
        counts = {
            "scores": compute_scores(answers),
            "majority": round(compute_majority(answers), 6),
            "found": findings,
        }
        write_text(folder / "report.md", report_text(counts))
        return counts

    parameters = {"domains": domains, "seed": workspace.settings.seed, "margin": workspace.settings.router.margin}
    out = workspace.folder("evaluation")
    workspace.make(out, EVALUATED, parameters, parents, fill)
    return out


def verify(folder: Path, *, jobs: int | None = None) -> list[Check]:  # noqa: ARG001 (same signature for all verifiers)
    """Run all checks of a finished stage, in a fixed order. Raises: UserError if it has no valid manifest."""
    manifest = read_manifest(folder)
    checks = [check_files(folder, manifest)]
    if manifest.kind == DATA:
        checks.append(check_table(folder, FACTS, ExpertFact))
        if all(check.ok for check in checks):
            facts = facts_in(folder)
            wrong = [] if count_facts(facts) == manifest.counts else ["counts are not those of the facts"]
            checks.append(check_faults("counts", wrong, f"{len(facts):,} facts as the manifest counts them"))
            checks.append(check_faults("facts", list(_fact_faults(facts)), "each once; a block is held out whole"))
    if manifest.kind == EVALUATED:
        checks.append(check_table(folder, ANSWERS, ExpertAnswer))
        if all(check.ok for check in checks):
            answers = _answers(folder)
            counted = {"scores": compute_scores(answers), "majority": round(compute_majority(answers), 6)}
            wrong = [
                f"{key} are not those of the answers" for key, value in counted.items() if manifest.counts[key] != value
            ]
            wrong += [
                f"{answer.id}: recorded correctness is wrong"
                for answer in answers
                if answer.correct != (answer.answer == answer.expected)
            ]
            checks.append(check_faults("answers", wrong, f"{len(answers):,} answers as the manifest counts them"))
            kept = [] if manifest.counts["found"]["general_exact"] else ["the base or its plain answers changed"]
            checks.append(check_faults("general", kept, "base and plain answers were the same before and after"))
    return checks


def _fact_faults(facts: list[ExpertFact]) -> Iterator[str]:
    if len({fact.id for fact in facts}) != len(facts):
        yield "a fact occurs twice"
    held = {fact.block for fact in facts if fact.held}
    yield from (f"{fact.id}: not held out, but its block is" for fact in facts if fact.block in held and not fact.held)


def _answers(folder: Path) -> list[ExpertAnswer]:
    return list(read_rows([folder / ANSWERS], ExpertAnswer))


def find(folder: Path, wanted: str) -> RowTrace:
    """Find a fact or an answer by its id, all of a block by the block's id, or a model by its domain.

    Raises: UserError, with similar names, if nothing has that name.
    """
    manifest = read_manifest(folder)
    if manifest.kind not in (DATA, EVALUATED):
        domain = str(manifest.parameters.get("domain", manifest.kind.removeprefix("experts-")))
        if wanted != domain:
            raise UserError(f"{wanted}: {folder} belongs to {domain}; use that name")
        return RowTrace((FolderLink(manifest.kind.removeprefix("experts-"), domain, manifest.counts),), ())
    all_rows: Sequence[ExpertFact | ExpertAnswer] = facts_in(folder) if manifest.kind == DATA else _answers(folder)
    rows = [row for row in all_rows if wanted in (row.id, row.block)]
    if not rows:
        names = sorted({row.id for row in all_rows})
        near = ", ".join(difflib.get_close_matches(wanted, names, _NEAR) or names[:_NEAR])
        raise UserError(f"{wanted}: no fact of {folder} has that name; similar names: {near}")
    return _trace_rows(rows)


def find_code(folder: Path, sha256: str) -> RowTrace | None:
    """Return the facts about the block with this code; None if there are none."""
    if read_manifest(folder).kind != DATA:
        return None
    rows = [fact for fact in facts_in(folder) if fact.code_sha256 == sha256]
    return _trace_rows(rows) if rows else None


def _trace_rows(rows: Sequence[ExpertFact | ExpertAnswer]) -> RowTrace:
    links = []
    for row in rows:
        if isinstance(row, ExpertFact):
            facts: Json = {"domain": row.domain, "value": row.value, "asked_as": row.answer, "held": row.held}
            links.append(FolderLink("fact", row.id, facts | {"code": row.code_sha256}))
        else:
            facts = {"question": row.question, "way": row.arm, "token_of": row.routed, "answer": row.answer}
            links.append(FolderLink("answer", row.id, facts | {"right": row.expected}))
    return RowTrace(tuple(links), tuple(dict.fromkeys(row.code_sha256 for row in rows)))


KINDS = tuple(
    FolderKind(FolderFormat(kind, "lemur experts"), verify, find, find_code)
    for kind in (DATA, BASE, EXPERT, ALIGNED, ROUTED, TUNED, EVALUATED)
)


def table_lines(counts: Json) -> list[str]:
    """Return one table: accuracy by method and domain, with 95 % Wilson intervals over all, and token counts."""
    scores = counts["scores"]
    domains = [*dict.fromkeys(domain for own in scores.values() for domain in own if domain not in ("all", GENERAL))]
    head = ["answered by", "all domains", "95 %", *domains, GENERAL, "tokens"]
    rows = []
    for arm, own in scores.items():
        total = own.get("all")
        low, high = wilson(total["correct"], total["questions"]) if total else (0.0, 1.0)
        rows.append(
            [
                arm,
                percent(total["correct"], total["questions"]) if total else "",
                f"{low:.1%} to {high:.1%}" if total else "",
                *(percent(own[d]["correct"], own[d]["questions"]) if d in own else "" for d in (*domains, GENERAL)),
                f"{total['tokens']:.1f}" if total else "",
            ]
        )
    return table(head, rows)


def report_text(counts: Json) -> str:
    """Return the report of one evaluation."""
    findings = counts["found"]
    names = list(findings["routing"])
    routing = [["question as asked", *(f"{findings['routing'][name]:.1%}" for name in names)]]
    routing += [["class name alone", *(f"{findings['routing_by_name_alone'][name]:.1%}" for name in names)]]
    growth = [
        [
            step["added"],
            *(f"{step['accuracy'][name]:.1%}" if name in step["accuracy"] else "" for name in names),
            str(step["rerouted"]),
            "bit-equal" if step["oracle_equal"] else "changed",
        ]
        for step in findings["growth"]
    ]
    exact = "the same, bit for bit" if findings["general_exact"] else "CHANGED"
    lines = [
        "# Domain experts: what no projector saw",
        "",
        "Questions about held-out blocks in wordings that no training saw; the commonest answers of the relations"
        f" would be right on {counts['majority']:.1%}. The general set: facts that the base was trained on, in those"
        " other wordings.",
        "",
        *table_lines(counts),
        *(f"- {arm}: {text}" for arm, text in ARMS.items() if arm in counts["scores"]),
        "",
        "## Routing",
        "",
        *table(["routed right", *names], routing),
        "Domains added one by one; rerouted are questions of those before, and of the general set:",
        "",
        *table(["added", *names, "rerouted", "oracle answers of those before"], growth),
        "## Unchanged",
        "",
        f"Weights of the base, and its scores on the general set without injection: {exact}."
        f" Injected are {findings['slots']} of its input vectors a question, however large a domain is.",
    ]
    return "\n".join(lines) + "\n"
