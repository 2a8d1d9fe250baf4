"""`lemur verify` and `lemur trace` for the folders of an evaluation and of all earlier stages; no torch is needed."""

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from lemur.experts.facts import count_facts
from lemur.experts.settings import GENERAL
from lemur_core.files import Json
from lemur_core.files.errors import UserError
from manifests.folders.checks import Check, check_faults, check_files, check_table
from manifests.folders.formats import FolderFormat, FolderKind, FolderLink, RowTrace
from manifests.folders.manifest import read_manifest
from manifests.folders.reading import reading
from manifests.folders.tables import read_rows
from manifests.records import ExpertAnswer, ExpertFact

FACTS, ANSWERS = "facts.parquet", "answers.parquet"
DATA, BASE, EXPERT, CODEBOOK, ROUTED, EVALUATED = (
    *("experts-data", "experts-base", "experts-expert", "experts-codebook", "experts-prototypes"),
    "experts-evaluation",
)
#: The methods, with a description of each.
ARMS = {
    "closed": "nothing injected",
    "oracle": "the token of the question's own domain",
    "routed": "the token of the domain that the router picks; nothing for general",
    "shuffled": "the token that another question of the same domain would get",
    "shuffled in relation": "the token of another question of the domain about the same relation",
    "other domain": "the token that another domain makes of the question",
    "retrieved": "the document that BM25 finds, as text",
    "told": "the right document, as text",
    "expert": "the expert of the domain alone",
    "expert as text": "the expert's answer, as text: what the injected token has to beat at its cost",
}
_NEAR = 5


def facts_in(folder: Path) -> list[ExpertFact]:
    """Read the facts in a folder. Raises: UserError if it is not finished."""
    read_manifest(folder)
    with reading(folder, DATA):
        return list(read_rows([folder / FACTS], ExpertFact))


def read_number(answer: str) -> str:
    """Return the first number in an answer, so that no method loses by the words around it; empty without one."""
    match = re.search(r"\d[\d,]*", answer)
    return match[0].replace(",", "") if match else ""


def compute_scores(answers: Sequence[ExpertAnswer]) -> dict[str, dict[str, dict[str, float]]]:
    """Return questions, correct answers and mean tokens by method and domain; `all` excludes the general set."""
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for arm in ARMS:
        own = [answer for answer in answers if answer.arm == arm]
        groups = {
            domain: [answer for answer in own if answer.domain == domain]
            for domain in dict.fromkeys(o.domain for o in own)
        }
        groups["all"] = [answer for answer in own if answer.domain != GENERAL]
        scores[arm] = {
            domain: {
                "questions": len(some),
                "correct": sum(answer.correct for answer in some),
                "tokens": round(sum(answer.tokens for answer in some) / len(some), 2),
            }
            for domain, some in groups.items()
            if some
        }
    return {arm: groups for arm, groups in scores.items() if groups}


def compute_majority(answers: Sequence[ExpertAnswer]) -> float:
    """Return the accuracy of always giving the most frequent answer of each domain's relation."""
    own = [answer for answer in answers if answer.arm == "closed" and answer.domain != GENERAL]
    counted: dict[tuple[str, str], Counter[str]] = {}
    for answer in own:
        counted.setdefault((answer.domain, answer.relation), Counter())[answer.expected] += 1
    return sum(max(counts.values()) for counts in counted.values()) / max(1, len(own))


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
                if answer.correct != (read_number(answer.answer) == answer.expected)
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
    for kind in (DATA, BASE, EXPERT, CODEBOOK, ROUTED, EVALUATED)
)
