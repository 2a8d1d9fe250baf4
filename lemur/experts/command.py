"""What the commands of `lemur experts` do, and what they print."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lemur.experts.domains.settings import GENERAL
from lemur.experts.folder import write_evaluation
from lemur.experts.models.language import plain_prompt, prompt_with
from lemur.experts.report import table_lines
from lemur.experts.stages import House
from lemur_core.files.errors import UserError
from manifests.folders.manifest import read_manifest


def make_data(house: House, *, as_json: bool = False) -> str:
    """Make the facts. Returns: what to print."""
    with house.alone():
        house.make_data()
    counts = read_manifest(house.data_folder).counts
    if as_json:
        return json.dumps(counts, indent=2)
    lines = [f"{counts['facts']:,} facts"]
    for domain, own in counts.items():
        if domain != "facts":
            told = ", ".join(
                f"{relation} {one['asked']} ({one['answers']} answers, majority {one['majority']:.1%})"
                for relation, one in own.items()
                if relation != "blocks"
            )
            lines.append(f"{domain}: {own['blocks']} blocks; {told}")
    return "\n".join([*lines, f"-> {house.data_folder}"])


def adapt(house: House, domains: Sequence[str]) -> str:
    """The base where it is made here, then the experts."""
    with house.alone():
        house.make_base()
        for domain in _chosen(house, domains):
            house.make_expert(domain)
    folders = [] if house.settings.base.model else [house.base_folder]
    return _told([*folders, *(house.domain_folder(domain, "expert") for domain in _chosen(house, domains))])


def align(house: House, domains: Sequence[str]) -> str:
    """The projectors."""
    with house.alone():
        for domain in _chosen(house, domains):
            house.make_projector(domain)
    return _told([house.domain_folder(domain, "projector") for domain in _chosen(house, domains)])


def route(house: House, domains: Sequence[str], questions: Path | None) -> str:
    """The prototypes; with questions, where each goes, and how many of those go right that say where they belong."""
    chosen = _chosen(house, domains)
    with house.alone():
        for domain in (*chosen, GENERAL):
            house.make_prototypes(domain)
        if questions is None:
            return _told([house.domain_folder(domain, "prototypes") for domain in (*chosen, GENERAL)])
        rows = _rows(questions)
        states = house.encoded(house.base(), [row["question"] for row in rows])
        routed = house.router(chosen).route(states)
    right: dict[str, list[bool]] = {}
    for row, name in zip(rows, routed, strict=True):
        if "domain" in row:
            right.setdefault(str(row["domain"]), []).append(row["domain"] == name)
    accuracy = {name: {"questions": len(own), "right": sum(own)} for name, own in sorted(right.items())}
    told = [{**row, "routed": name} for row, name in zip(rows, routed, strict=True)]
    return json.dumps({"accuracy": accuracy, "questions": told}, indent=2, ensure_ascii=False)


def evaluate(house: House, *, as_json: bool = False) -> str:
    """All ways to answer, in a folder."""
    domains = list(house.settings.data.domains)
    with house.alone():
        house.make_tuned(domains)
        folder = write_evaluation(house, domains)
    counts = read_manifest(folder).counts
    return json.dumps(counts, indent=2) if as_json else "\n".join([*table_lines(counts), f"-> {folder / 'report.md'}"])


def answer(house: House, question: str, domain: str | None, *, as_json: bool = False) -> str:
    """One question: where it goes, and the answers with and without what is injected."""
    there = [name for name in house.settings.data.domains if house.domain_folder(name, "prototypes").is_dir()]
    with house.alone():
        base = house.base()
        states = house.encoded(base, [question])
        router = house.router(there)
        cosines = {name: round(float(found[0]), 4) for name, found in router.cosines(states).items()}
        by = domain or router.route(states)[0]
        (plain,), _ = base.answers(base.asked([plain_prompt(question)]))
        told: dict[str, Any] = {"domain": by, "cosines": cosines, "answer": plain, "without": plain}
        if by != GENERAL:
            slots = house.slots(_chosen(house, [by])[0], [question], base)
            (told["answer"],), _ = base.answers(base.injected([prompt_with(question)], slots))
    if as_json:
        return json.dumps(told, indent=2, ensure_ascii=False)
    near = ", ".join(f"{name} {cosine:.3f}" for name, cosine in sorted(cosines.items(), key=lambda one: -one[1]))
    return f"{told['answer']}\n  domain   {by} ({near})\n  without  {plain}"


def _chosen(house: House, domains: Sequence[str]) -> list[str]:
    known = house.settings.data.domains
    unknown = [domain for domain in domains if domain not in known]
    if unknown:
        raise UserError(f"{unknown[0]}: no domain of the settings; there are {', '.join(known)}")
    return list(domains or known)


def _told(folders: Sequence[Path]) -> str:
    lines = []
    for folder in folders:
        counts = read_manifest(folder).counts
        told = ", ".join(f"{key} {value:,}" for key, value in counts.items() if isinstance(value, int | float))
        lines.append(f"{folder}: {told}")
    return "\n".join(lines)


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            row = json.loads(line)
            if not isinstance(row, dict) or not isinstance(row.get("question"), str) or not row["question"].strip():
                raise UserError(f"{path}: line {number} has no `question`; give JSON Lines, a question each")
            rows.append(row)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give a file of JSON Lines") from error
    except ValueError as error:
        raise UserError(f"{path}: is no JSON Lines: {error}") from error
    if not rows:
        raise UserError(f"{path}: holds no question")
    return rows
