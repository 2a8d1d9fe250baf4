"""Run the commands of `lemur experts` and format their output."""

import json
from collections.abc import Sequence
from pathlib import Path

from extract.model.results import wilson
from lemur.experts.evaluate import ModelEvaluator
from lemur.experts.folder import ANSWERS, ARMS, EVALUATED, compute_majority, compute_scores
from lemur.experts.settings import GENERAL, load_settings
from lemur.experts.stages import Workspace
from lemur_core.files import Json
from lemur_core.files.atomic import write_text
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import check_plain
from lemur_core.files.markdown import percent, table
from manifests.folders.manifest import read_manifest
from manifests.folders.tables import write_table
from manifests.records import ExpertAnswer, arrow_schema


def open_workspace(
    file: Path, out: Path | None, seed: int | None, base: str | None, expert: str | None, force: bool
) -> Workspace:
    """Open the workspace of a settings file; arguments that are not None replace its values.

    Raises: UserError if the file cannot be read, or a value is invalid.
    """
    settings = load_settings(file, seed=seed, base__model=base, expert__model=expert)
    return Workspace(settings if out is None else settings.model_copy(update={"out": out}), force)


def make_data(workspace: Workspace, *, as_json: bool = False) -> str:
    """Build the facts. Returns: the text to print."""
    with workspace.alone():
        workspace.make_data()
    counts = read_manifest(workspace.folder("data")).counts
    if as_json:
        return json.dumps(counts, indent=2)
    lines = [f"{counts['facts']:,} facts"]
    for domain, own in counts.items():
        if domain != "facts":
            relations = ", ".join(
                f"{relation} {numbers['asked']} ({numbers['answers']} answers, majority {numbers['majority']:.1%})"
                for relation, numbers in own.items()
                if relation != "blocks"
            )
            lines.append(f"{domain}: {own['blocks']} blocks; {relations}")
    return "\n".join([*lines, f"-> {workspace.folder('data')}"])


def adapt(workspace: Workspace, domains: Sequence[str], *, as_json: bool = False) -> str:
    """Train the tiny base if it is needed, then the experts."""
    domains = _check_domains(workspace, domains)
    with workspace.alone():
        workspace.make_base()
        for domain in domains:
            workspace.make_expert(domain)
    folders = [] if workspace.settings.base.model else [workspace.folder("base")]
    return _summarize_folders(
        [*folders, *(workspace.folder("domains", domain, "expert") for domain in domains)], as_json
    )


def align(workspace: Workspace, *, as_json: bool = False) -> str:
    """Train the vectors of the numbers."""
    with workspace.alone():
        workspace.make_codebook()
    return _summarize_folders([workspace.folder("codebook")], as_json)


def route(workspace: Workspace, domains: Sequence[str], questions: Path | None, *, as_json: bool = False) -> str:
    """Build the prototypes; if there are questions, route them and report the accuracy on those with a known domain."""
    domains = _check_domains(workspace, domains)
    with workspace.alone():
        for domain in (*domains, GENERAL):
            workspace.make_prototypes(domain)
        if questions is None:
            return _summarize_folders(
                [workspace.folder("domains", domain, "prototypes") for domain in (*domains, GENERAL)], as_json
            )
        rows = _read_questions(questions)
        states = workspace.encode(workspace.base(), [row["question"] for row in rows])
        routed = workspace.router(domains).route(states)
    right: dict[str, list[bool]] = {}
    for row, name in zip(rows, routed, strict=True):
        if "domain" in row:
            right.setdefault(str(row["domain"]), []).append(row["domain"] == name)
    accuracy = {name: {"questions": len(own), "right": sum(own)} for name, own in sorted(right.items())}
    answers = [{**row, "routed": name} for row, name in zip(rows, routed, strict=True)]
    return json.dumps({"accuracy": accuracy, "questions": answers}, indent=2, ensure_ascii=False)


def evaluate(workspace: Workspace, domains: Sequence[str], *, as_json: bool = False) -> str:
    """Evaluate all methods and write the folder of results."""
    domains = _check_domains(workspace, domains)
    with workspace.alone():
        folder = write_evaluation(workspace, domains)
    counts = read_manifest(folder).counts
    return json.dumps(counts, indent=2) if as_json else "\n".join([*table_lines(counts), f"-> {folder / 'report.md'}"])


def answer(workspace: Workspace, question: str, domain: str | None, *, as_json: bool = False) -> str:
    """Route and answer one question, with and without the injected token."""
    domains = [
        name for name in workspace.settings.data.domains if workspace.folder("domains", name, "prototypes").is_dir()
    ]
    with workspace.alone():
        base, frame = workspace.base(), workspace.frame()
        states = workspace.encode(base, [question])
        router = workspace.router(domains)
        cosines = {name: round(float(values[0]), 4) for name, values in router.cosines(states).items()}
        routed = domain or router.route(states)[0]
        (plain,), _ = base.answers(base.embed_prompts([frame.plain(question)]))
        result: Json = {"domain": routed, "cosines": cosines, "answer": plain, "without": plain}
        if routed != GENERAL:
            slots = workspace.slots(_check_domains(workspace, [routed])[0], [question], base)
            (result["answer"],), _ = base.answers(base.embed_injected([frame.with_answer(question)], slots))
    if as_json:
        return json.dumps(result, indent=2, ensure_ascii=False)
    near = ", ".join(f"{name} {cosine:.3f}" for name, cosine in sorted(cosines.items(), key=lambda item: -item[1]))
    return f"{result['answer']}\n  domain   {routed} ({near})\n  without  {plain}"


def _check_domains(workspace: Workspace, domains: Sequence[str]) -> list[str]:
    known = workspace.settings.data.domains
    unknown = [domain for domain in domains if domain not in known]
    if unknown:
        raise UserError(f"{unknown[0]}: not a domain of the settings; choose from {', '.join(known)}")
    return list(domains or known)


def _summarize_folders(folders: Sequence[Path], as_json: bool) -> str:
    counts = {str(folder): read_manifest(folder).counts for folder in folders}
    if as_json:
        return json.dumps(counts, indent=2)
    return "\n".join(
        f"{folder}: "
        + ", ".join(f"{key} {value:,}" for key, value in numbers.items() if isinstance(value, int | float))
        for folder, numbers in counts.items()
    )


def _read_questions(path: Path) -> list[Json]:
    rows = []
    check_plain(path)
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            row = json.loads(line)
            if not isinstance(row, dict) or not isinstance(row.get("question"), str) or not row["question"].strip():
                raise UserError(f"{path}: line {number} has no `question`; use JSON Lines with one question each")
            rows.append(row)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; pass a JSON Lines file") from error
    except ValueError as error:
        raise UserError(f"{path}: not JSON Lines: {error}") from error
    if not rows:
        raise UserError(f"{path}: contains no question")
    return rows


def write_evaluation(workspace: Workspace, domains: list[str]) -> Path:
    """Evaluate all methods and write `out/evaluation`. Raises: UserError if a stage has not been built."""
    stages: list[tuple[str, ...]] = [
        ("domains", domain, stage) for domain in domains for stage in ("expert", "prototypes")
    ]
    stages += [("codebook",), ("domains", GENERAL, "prototypes")]
    parents = [*workspace.ground, *(workspace.folder(*stage) for stage in stages)]

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

    settings = workspace.settings
    router = {"margin": settings.router.margin, "least": settings.router.least}
    parameters = {"domains": domains, "seed": settings.seed, **router}
    out = workspace.folder("evaluation")
    workspace.make(out, EVALUATED, parameters, parents, fill)
    return out


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
        "# Domain experts: held-out blocks",
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
