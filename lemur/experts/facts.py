"""What domain experts are asked and how answers count: settings, facts about blocks, questions, scores, folders.

A number is rounded to the nearest mark of a scale whose marks are quantiles, so that all answers of a relation are
about equally frequent. Answers that are still too frequent (blocks without parameters) are thinned out.
Nothing here imports torch: `lemur verify` reads finished folders with it.
"""

import json
import random
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from extract.model.results import wilson
from lemur_core.files import Json
from lemur_core.files.atomic import write_text
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import check_plain
from lemur_core.files.markdown import percent, table
from manifests.folders.kinds import DECLARED, Check, Folder, check_faults
from manifests.folders.tables import READ_ERRORS, describe, reading
from manifests.records import ExpertAnswer, ExpertFact

GENERAL = "general"

# -- settings ----------------------------------------------------------------------------------------------------------

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataSettings(_Settings):
    """The blocks of each domain, and how their numbers become answers."""

    libraries: tuple[Path, ...] = Field(min_length=1)  # extraction folders
    domains: dict[Name, tuple[str, ...]] = Field(min_length=1)  # names of sources; all others are the general set
    blocks: int = Field(default=120, ge=8)  # of a domain, at most
    marks: int = Field(default=20, ge=2)  # on the scale of each number
    share: float = Field(default=0.08, gt=0, le=1)  # of one answer in a domain's relation, at most
    held: float = Field(default=0.25, gt=0, lt=1)  # of the blocks: the evaluation's, which no prototype sees


class Training(_Settings):
    """A training with AdamW: warm-up over 5 % of the steps, then a cosine to zero."""

    steps: int = Field(default=1000, ge=0)
    rank: int = Field(default=0, ge=0)  # of LoRA's matrices, merged at the end; 0 trains all weights
    batch: Count = 64
    rate: Positive = 1e-3
    decay: float = Field(default=0.01, ge=0)


class BaseSettings(_Settings):
    """The frozen model: a folder, a GGUF file, `package:NAME` or a name on the Hub."""

    model: str
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    shots: int = Field(default=4, ge=0)  # general questions with answers before each


class ExpertSettings(_Settings):
    """Stage I. Without `model`, an expert starts from the base."""

    model: str | None = None
    training: Training = Training(steps=1500)


class CodebookSettings(_Settings):
    """Stage II: a vector for each number, which makes the frozen base say it."""

    training: Training = Training(steps=150, batch=32, rate=0.1, decay=0)


class RouterSettings(_Settings):
    """Prototypes a domain. To general goes a question whose largest cosine is below `least`."""

    prototypes: Count = 128
    least: float = Field(default=-1.0, ge=-1, le=1)


class Settings(_Settings):
    """All settings. `out` is the folder of the stages."""

    seed: int = Field(default=0, ge=0)
    out: Path
    data: DataSettings
    base: BaseSettings
    expert: ExpertSettings = ExpertSettings()
    codebook: CodebookSettings = CodebookSettings()
    router: RouterSettings = RouterSettings()


def load_settings(path: Path) -> Settings:
    """Load settings, TOML; folders in the file are relative to it.

    Raises: UserError if it cannot be read, or has an unknown key or a value out of range.
    """
    check_plain(path)
    try:
        settings = Settings.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:  # the latter of TOML, UTF-8 and values
        raise UserError(f"{path}: {describe(error)}; pass a TOML file like the one in docs/experts.md") from error
    if GENERAL in settings.data.domains:
        raise UserError(f"{path}: data.domains: {GENERAL} is reserved for blocks without a domain; choose another name")
    root = path.absolute().parent
    changes: dict[str, object] = {
        "data": settings.data.model_copy(update={"libraries": tuple(root / one for one in settings.data.libraries)})
    }
    for key, part in (("base", settings.base), ("expert", settings.expert)):
        if part.model is not None and (root / part.model).exists():
            changes[key] = part.model_copy(update={"model": str(root / part.model)})
    return settings.model_copy(update={"out": root / settings.out, **changes})


# -- questions ---------------------------------------------------------------------------------------------------------

#: Question templates; a wording combines one of them with one name of a relation.
FRAMES = (
    "The {relation} of {package} {name} ?",
    "{package} {name} : {relation} ?",
    "What {relation} has {name} in {package} ?",
    "In {package} , {name} has what {relation} ?",
    "Tell {name} {relation} in {package} .",
    "{name} from {package} , its {relation} ?",
)
#: Relations between a block and a number, with the names that questions use for each.
NAMES = {
    "lines": ("lines", "length", "linecount"),
    "parameters": ("parameters", "weights", "size"),
    "operations": ("operations", "nodes", "steps"),
    "submodules": ("submodules", "children", "modules"),
}
#: Questions that no domain is about.
ELSEWHERE = (
    "What is the capital of France ?", "Who wrote Hamlet ?", "How many legs has a spider ?", "When did Rome fall ?",
    "What is the boiling point of water ?", "Translate good morning into Spanish .", "Name a prime above 50 .",
    "Which planet is the largest ?", "How do I boil an egg ?", "What causes the tides ?", "Who painted the Mona Lisa ?",
    "What is 17 times 4 ?", "Give me a word that rhymes with tree .", "How tall is Mount Everest ?",
    "What do bees eat ?", "Write a haiku about rain .", "What is a contract ?", "How many days has February ?",
    "Why is the sky blue ?", "Which language is spoken in Brazil ?", "What is inflation ?", "Who was Ada Lovelace ?",
    "How do vaccines work ?", "Is a tomato a fruit ?",
)  # fmt: skip


def ask(fact: ExpertFact, rng: random.Random, *, held: bool = False) -> str:
    """Return a question that a fact answers, in one of the training wordings or, if `held`, in one of the others.

    The held-out wordings are new combinations of known words: all frames and names also occur in training.
    """
    return rng.choice(wordings(fact, held=held))


def wordings(fact: ExpertFact, *, held: bool) -> list[str]:
    """Return the questions that a fact answers, in all training wordings or in all held-out ones."""
    return [
        frame.format(relation=name, name=fact.name, package=fact.package)
        for i, frame in enumerate(FRAMES)
        for j, name in enumerate(NAMES[fact.relation])
        if (i == 4 - 2 * j) == held  # one frame for each name
    ]


def documents(facts: Iterable[ExpertFact]) -> dict[str, str]:
    """Return a text with all known facts about each block."""
    texts: dict[str, str] = {}
    for fact in facts:
        text = texts.setdefault(fact.block, f"{fact.package} {fact.name}")
        texts[fact.block] = f"{text} {NAMES[fact.relation][0]} {fact.answer}"
    return texts


def read_questions(path: Path) -> list[Json]:
    """Read questions, JSON Lines with `question` and, where it is known, `domain`. Raises: UserError if it is not."""
    check_plain(path)
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        asked = [row["question"] for row in rows]
        wrong = [at for at, text in enumerate(asked, start=1) if not isinstance(text, str) or not text.strip()]
    except (*READ_ERRORS, TypeError) as error:
        raise UserError(f"{path}: {describe(error)}; pass JSON Lines with a `question` each") from error
    if wrong or not rows:
        raise UserError(f"{path}: has no question{f' in line {wrong[0]}' if wrong else ''}")
    return rows


# -- facts -------------------------------------------------------------------------------------------------------------


def read_facts(settings: DataSettings, seed: int) -> list[ExpertFact]:
    """Read the facts of all domains and of the general set, by domain, block and relation.

    Raises: UserError if a folder has no specs, or a domain has no blocks.
    """
    domain_of = {source: domain for domain, sources in settings.domains.items() for source in sources}
    found: dict[tuple[str, str, str], Json] = {}
    for block in sorted((block for folder in settings.libraries for block in _read_blocks(folder)), key=_by_id):
        # Of several versions of a package, one block: questions name no version.
        found.setdefault((domain_of.get(block["package"], GENERAL), block["package"], block["name"]), block)
    drawn: list[tuple[str, Json]] = []
    for domain in (*settings.domains, GENERAL):
        pool = [block for (own, *_), block in found.items() if own == domain]
        if not pool:
            raise UserError(f"{domain}: the libraries have no block of this domain; name sources that they contain")
        chosen = sorted(random.Random(domain).sample(pool, min(settings.blocks, len(pool))), key=_by_id)
        held = random.Random(seed).sample(chosen, round(settings.held * len(chosen)))
        drawn += [(domain, block | {"held": block in held}) for block in chosen]
    scales = {}
    for relation in NAMES:
        values = [block["values"][relation] for _, block in drawn if relation in block["values"]]
        scales[relation] = _scale(values, settings.marks)
    facts = [
        ExpertFact(
            **{name: block[name] for name in ("block", "name", "package", "code_sha256", "held")},
            id=f"{block['block']}#{relation}",
            domain=domain,
            relation=relation,
            answer=str(min(scales[relation], key=lambda mark: (abs(mark - value), mark))),
            value=value,
            asked=True,
        )
        for domain, block in drawn
        for relation, value in block["values"].items()
    ]
    kept = _limit_answers(facts, settings.share)
    return [fact.model_copy(update={"asked": fact.id in kept}) for fact in facts]


def _by_id(block: Json) -> str:
    return str(block["block"])


def _read_blocks(folder: Path) -> Iterator[Json]:
    """Yield the blocks of a library, each with the number of each relation that it has."""
    with reading(folder, "extraction"), (folder / "specs.jsonl").open(encoding="utf-8") as file:
        for spec in map(json.loads, file):
            algorithm, layers = spec["algorithm"], spec["layers"]
            values = {
                "lines": spec["end_line"] - spec["start_line"] + 1,
                "parameters": spec["parameters"],
                "operations": len(algorithm["eval"]["nodes"]) if algorithm else None,
                "submodules": sum(layers.values()) if layers else None,
            }
            yield {name: spec[name] for name in ("block", "name", "code_sha256")} | {
                "package": spec["source"].partition("@")[0],
                "values": {relation: value for relation, value in values.items() if value is not None},
            }


def _scale(values: Sequence[int], marks: int) -> list[int]:
    """Return the marks: medians of `marks` equal runs of the sorted values, without duplicates."""
    # One frequent number must not take several marks.
    cap, counts = max(1, len(values) // marks), Counter(values)
    pool = sorted(value for value, number in counts.items() for _ in range(min(number, cap)))
    number = min(marks, len(counts))
    return sorted({pool[(2 * i + 1) * len(pool) // (2 * number)] for i in range(number)})


def _limit_answers(facts: Sequence[ExpertFact], share: float) -> set[str]:
    """Return the ids of the facts used in questions: no answer exceeds its share within a domain's relation."""
    groups: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for fact in facts:
        groups[fact.domain, fact.relation][fact.answer].append(fact.id)
    kept: set[str] = set()
    for answers in groups.values():
        sizes = [len(ids) for ids in answers.values()]
        # Thinning out one answer raises the shares of the others, so the cap is searched for.
        cap = max((n for n in range(1, max(sizes) + 1) if n <= share * sum(min(n, size) for size in sizes)), default=0)
        if sum(min(cap, size) for size in sizes) * share < 1:
            continue  # too few for any answer to be rare
        for answer, ids in answers.items():
            kept.update(random.Random(answer).sample(ids, min(cap, len(ids))))
    return kept


# -- the folders of facts and of an evaluation -------------------------------------------------------------------------

DATA, EXPERT, CODEBOOK, PROTOTYPES, EVALUATION = (
    DECLARED[f"experts-{name}"] for name in ("data", "expert", "codebook", "prototypes", "evaluation")
)


def facts_in(folder: Path) -> list[ExpertFact]:
    """Read the facts in a folder. Raises: UserError if it is not finished."""
    DATA.open(folder)
    with DATA.reading(folder):
        return list(DATA.rows(folder, ExpertFact))


def count_facts(facts: Sequence[ExpertFact]) -> Json:
    """Return the number of facts, and the blocks and questions of each domain."""
    counts: Json = {"facts": len(facts)}
    for domain in dict.fromkeys(fact.domain for fact in facts):
        some = [fact for fact in facts if fact.domain == domain]
        counts[domain] = {"blocks": len({fact.block for fact in some}), "asked": sum(fact.asked for fact in some)}
    return counts


#: The ways in which the evaluation has questions answered.
ARMS = {
    "closed": "the base alone, nothing injected",
    "oracle": "the token of the question's own domain",
    "shuffled": "the token that another question of the same domain would get",
    "routed": "the token of the domain that the router picks; nothing for general",
    "told": "the right document, as text: the most that any retriever could bring",
    "expert": "the expert of the domain alone",
    "expert as text": "the expert's answer, as text: what the injected token has to beat at its cost",
}


def read_number(answer: str) -> str:
    """Return the first number in an answer, so that no method loses by the words around it; empty without one."""
    match = re.search(r"\d[\d,]*", answer)
    return match[0].replace(",", "") if match else ""


def write_scores(folder: Path, answers: Sequence[ExpertAnswer], found: Json) -> Json:
    """Write the report of an evaluation, and return its counts.

    By arm and domain (`all` without the general set): questions, correct answers, mean tokens. By domain: the questions
    that are routed there, of its own. And the accuracy of always giving the commonest answer of a domain's relation.

    Args: found: further facts, of questions of no domain and of the base.
    """
    groups: dict[str, dict[str, list[ExpertAnswer]]] = defaultdict(lambda: defaultdict(list))
    expected: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for answer in answers:
        for domain in (answer.domain, "all") if answer.domain != GENERAL else (GENERAL,):
            groups[answer.arm][domain].append(answer)
        if answer.arm == "closed" and answer.domain != GENERAL:
            expected[answer.domain, answer.relation][answer.expected] += 1
    scores = {
        arm: {
            domain: {
                "questions": len(some),
                "correct": sum(answer.correct for answer in some),
                "tokens": round(sum(answer.tokens for answer in some) / len(some), 2),
            }
            for domain, some in own.items()
        }
        for arm, own in groups.items()
    }
    routing = {
        domain: [sum((answer.routed or GENERAL) == domain for answer in some), len(some)]
        for domain, some in groups["routed"].items()
        if domain != "all"
    }
    number = sum(counts.total() for counts in expected.values())
    majority = round(sum(max(counts.values()) for counts in expected.values()) / max(1, number), 6)
    counts = {"scores": scores, "majority": majority, "found": found | {"routing": routing}}
    write_text(folder / "report.md", _report(counts))
    return counts


def table_lines(counts: Json) -> list[str]:
    """Return one table: accuracy by arm and domain, with 95 % Wilson intervals over all, and token counts."""
    scores = counts["scores"]
    domains = [*(domain for domain in scores["closed"] if domain not in ("all", GENERAL)), GENERAL]
    rows = []
    for arm, own in scores.items():
        right, number = own["all"]["correct"], own["all"]["questions"]
        low, high = wilson(right, number)
        shares = (percent(own[name]["correct"], own[name]["questions"]) if name in own else "" for name in domains)
        rows.append([arm, percent(right, number), f"{low:.1%} to {high:.1%}", *shares, f"{own['all']['tokens']:.1f}"])
    return table(["answered by", "all domains", "95 %", *domains, "tokens"], rows)


def _report(counts: Json) -> str:
    found = counts["found"]
    shares = ", ".join(f"{name} {percent(right, number)}" for name, (right, number) in found["routing"].items())
    return "\n".join(
        [
            "# Domain experts",
            "",
            "Questions about blocks that no prototype saw, in wordings that no training saw; the expert of a domain was"
            " trained on the facts of all its blocks. The commonest answers of the relations would be right on"
            f" {counts['majority']:.1%}. The general set: blocks of no domain, by no expert.",
            "",
            *table_lines(counts),
            *(f"- {arm}: {text}" for arm, text in ARMS.items()),
            "",
            f"Routed right: {shares}. Of {len(ELSEWHERE)} questions about nothing of the kind, {found['elsewhere']} are"
            " routed to general.",
            "",
            "One input vector is injected a question, however large a domain is; the weights of the base afterwards:"
            f" {'the same, bit for bit' if found['base_unchanged'] else 'CHANGED'}.",
            "",
        ]
    )


def check_facts(verified: Folder) -> Check:
    """Check that each fact is there once, and that a block is held out whole."""
    facts = facts_in(verified.path)
    held = {fact.block for fact in facts if fact.held}
    wrong = [f"{fact.id}: not held out, but its block is" for fact in facts if fact.block in held and not fact.held]
    wrong += [] if len({fact.id for fact in facts}) == len(facts) else ["a fact occurs twice"]
    return check_faults("facts", wrong, "each once; a block is held out whole")


def check_answers(verified: Folder) -> list[Check]:
    """Check what the rows of an evaluation say of themselves, and that injection changed nothing in the base."""
    wrong = [
        f"{answer.id}: recorded correctness is wrong"
        for answer in EVALUATION.rows(verified.path, ExpertAnswer)
        if answer.correct != (read_number(answer.answer) == answer.expected)
    ]
    changed = [] if verified.manifest.counts["found"]["base_unchanged"] else ["its weights changed"]
    return [
        check_faults("answers", wrong, "correct where they are what was expected"),
        check_faults("base", changed, "the same weights before and after"),
    ]


def _derive_scores(verified: Folder, made: Path) -> Json:
    answers = list(EVALUATION.rows(verified.path, ExpertAnswer))
    return {"counts": write_scores(made, answers, verified.manifest.counts["found"])}


KINDS = (
    *(EXPERT, CODEBOOK, PROTOTYPES),
    replace(DATA, derive=lambda verified, _: {"counts": count_facts(facts_in(verified.path))}, laws=(check_facts,)),
    replace(EVALUATION, derive=_derive_scores, laws=(check_answers,)),
)
