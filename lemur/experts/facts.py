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
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo

from extract.model.results import wilson
from lemur_core.files import Json
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import check_plain
from lemur_core.files.markdown import percent
from manifests.folders.frame import Page, table
from manifests.folders.kinds import DECLARED, Check, Folder, Kind, check_faults
from manifests.folders.manifest import Manifest
from manifests.folders.tables import READ_ERRORS, describe, reading
from manifests.records import ExpertAnswer, ExpertFact

GENERAL = "general"

# -- settings ----------------------------------------------------------------------------------------------------------


def _resolve(path: Path, info: ValidationInfo) -> Path:
    """Return a path of the settings, which is relative to the folder of their file."""
    return Path(info.context or "", path)


def _resolve_model(name: str, info: ValidationInfo) -> str:
    """Return the name of a model, as a path if there is such a file or folder."""
    path = Path(info.context or "", name)
    return str(path) if path.exists() else name


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
FromSettings = Annotated[Path, AfterValidator(_resolve)]
ModelName = Annotated[str, AfterValidator(_resolve_model)]  # a folder, a GGUF file, `package:NAME`, a name on the Hub


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataSettings(_Settings):
    """The blocks of each domain, and how their numbers become answers."""

    libraries: tuple[FromSettings, ...] = Field(min_length=1)  # extraction folders
    domains: dict[Name, tuple[str, ...]] = Field(min_length=1)  # names of sources; all others are the general set
    blocks: int = Field(default=120, ge=8)  # of a domain, at most
    marks: int = Field(default=20, ge=2)  # on the scale of each number
    share: float = Field(default=0.08, gt=0, le=1)  # of one answer in a domain's relation, at most
    held: float = Field(default=0.25, gt=0, lt=1)  # of the blocks: the evaluation's, which no prototype sees


class Training(_Settings):
    """A training with AdamW: warm-up over 5 % of the steps, then a cosine to zero. By default, that of an expert."""

    steps: int = Field(default=1500, ge=0)
    batch: Count = 64
    rate: Positive = 1e-3
    decay: float = Field(default=0.01, ge=0)


class CodebookTraining(Training):
    """The same, with the defaults of a codebook."""

    steps: int = Field(default=150, ge=0)
    batch: Count = 32
    rate: Positive = 0.1
    decay: float = Field(default=0, ge=0)


class BaseSettings(_Settings):
    """The frozen model."""

    model: ModelName
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    shots: int = Field(default=4, ge=0)  # general questions with answers before each


class ExpertSettings(_Settings):
    """Stage I. Without `model`, an expert starts from the base."""

    model: ModelName | None = None
    rank: int = Field(default=0, ge=0)  # of LoRA's matrices, which are merged at the end; 0 trains all weights
    training: Training = Training()


class CodebookSettings(_Settings):
    """Stage II: a vector for each number, which makes the frozen base say it."""

    training: CodebookTraining = CodebookTraining()


class RouterSettings(_Settings):
    """Prototypes a domain. To general goes a question whose largest cosine is below `least`."""

    prototypes: Count = 128
    least: float = Field(default=-1.0, ge=-1, le=1)


class Settings(_Settings):
    """All settings. `out` is the folder of the stages."""

    seed: int = Field(default=0, ge=0)
    out: FromSettings
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
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        settings = Settings.model_validate(values, context=path.absolute().parent)
    except (OSError, ValueError) as error:  # the latter of TOML, UTF-8 and values
        raise UserError(f"{path}: {describe(error, path)}; pass a TOML file like the one in docs/experts.md") from error
    if GENERAL in settings.data.domains:
        raise UserError(f"{path}: data.domains: {GENERAL} is reserved for blocks without a domain; choose another name")
    return settings


# -- questions ---------------------------------------------------------------------------------------------------------

#: Question templates; a wording combines one of them with one name of a relation.
TEMPLATES = (
    "The {relation} of {package} {name} ?",
    "{package} {name} : {relation} ?",
    "What {relation} has {name} in {package} ?",
    "In {package} , {name} has what {relation} ?",
    "Tell {name} {relation} in {package} .",
    "{name} from {package} , its {relation} ?",
)
#: Relations between a block and a number, with the names that questions use for each.
RELATIONS = {
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


def list_questions(fact: ExpertFact, *, held: bool) -> list[str]:
    """Return the questions that a fact answers, in all training wordings or in all held-out ones.

    The held-out wordings are new combinations of known words: all templates and names also occur in training.
    """
    return [
        template.format(relation=name, name=fact.name, package=fact.package)
        for i, template in enumerate(TEMPLATES)
        for j, name in enumerate(RELATIONS[fact.relation])
        if (i == 4 - 2 * j) == held  # one template for each name
    ]


def held_question(fact: ExpertFact) -> str:
    """Return the question about a fact that the evaluation asks: one of the held-out wordings, always the same."""
    return random.Random(fact.id).choice(list_questions(fact, held=True))


def write_documents(facts: Iterable[ExpertFact]) -> dict[str, str]:
    """Return a text with all known facts about each block."""
    texts: dict[str, str] = {}
    for fact in facts:
        text = texts.setdefault(fact.block, f"{fact.package} {fact.name}")
        texts[fact.block] = f"{text} {RELATIONS[fact.relation][0]} {fact.answer}"
    return texts


def read_questions(path: Path) -> list[Json]:
    """Read questions, JSON Lines with `question` and, where it is known, `domain`. Raises: UserError if it is not."""
    check_plain(path)
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        asked = [row["question"] for row in rows]
        wrong = [at for at, text in enumerate(asked, start=1) if not isinstance(text, str) or not text.strip()]
    except (*READ_ERRORS, TypeError) as error:
        raise UserError(f"{path}: {describe(error, path)}; pass JSON Lines with a `question` each") from error
    if wrong or not rows:
        raise UserError(f"{path}: has no question{f' in line {wrong[0]}' if wrong else ''}")
    return rows


# -- facts -------------------------------------------------------------------------------------------------------------


def read_facts(settings: DataSettings, seed: int) -> list[ExpertFact]:
    """Read the facts of all domains and of the general set, by domain, block and relation.

    Raises: UserError if a folder has no specs, or a domain has no blocks, or no question to train or to evaluate with.
    """
    domain_of = {source: domain for domain, sources in settings.domains.items() for source in sources}
    pools: dict[str, dict[tuple[str, str], Json]] = {domain: {} for domain in (*settings.domains, GENERAL)}
    by_id = itemgetter("block")
    for block in sorted((block for folder in settings.libraries for block in _read_blocks(folder)), key=by_id):
        # Of several versions of a package, one block: questions name no version.
        pools[domain_of.get(block["package"], GENERAL)].setdefault((block["package"], block["name"]), block)
    rows: list[Json] = []
    for domain, pool in pools.items():
        if not pool:
            raise UserError(f"{domain}: the libraries have no block of this domain; name sources that they contain")
        blocks = list(pool.values())
        chosen = sorted(random.Random(domain).sample(blocks, min(settings.blocks, len(blocks))), key=by_id)
        held = random.Random(seed).sample(chosen, round(settings.held * len(chosen)))
        for block in chosen:
            shared = {name: block[name] for name in ("block", "name", "package", "code_sha256")}
            shared |= {"domain": domain, "held": block in held}
            rows += [shared | {"relation": name, "value": value} for name, value in block["values"].items()]
    scales = {
        name: _scale([row["value"] for row in rows if row["relation"] == name], settings.marks) for name in RELATIONS
    }
    for row in rows:
        row["id"] = f"{row['block']}#{row['relation']}"
        row["answer"] = _round(row["value"], scales[row["relation"]])
    rare = _limit_answers(rows, settings.share)
    facts = [ExpertFact(**row, asked=row["id"] in rare) for row in rows]
    for domain in pools:
        for is_held, name in ((False, "not held out"), (True, "held out")):
            if not any(fact.asked and fact.held == is_held for fact in facts if fact.domain == domain):
                raise UserError(
                    f"{domain}: no question about a block that is {name}; add blocks, or change held or share"
                )
    return facts


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


def _round(value: int, marks: Sequence[int]) -> str:
    """Return the mark that is nearest to a value; of two, the smaller one."""
    return str(min(marks, key=lambda mark: (abs(mark - value), mark)))


def _limit_answers(facts: Sequence[Json], share: float) -> set[str]:
    """Return the ids of the facts used in questions: no answer exceeds its share within a domain's relation."""
    groups: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for fact in facts:
        groups[fact["domain"], fact["relation"]][fact["answer"]].append(fact["id"])
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


# -- the evaluation ----------------------------------------------------------------------------------------------------

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


def score_answers(answers: Iterable[ExpertAnswer]) -> Json:
    """Return the scores of an evaluation, by arm and domain (`all` without the general set), and its routing.

    Scores are questions, correct answers and mean input tokens; routing is, by domain, the questions that are routed
    there, of its own.
    """
    groups: dict[tuple[str, str], list[ExpertAnswer]] = defaultdict(list)
    for answer in answers:
        groups[answer.arm, answer.domain].append(answer)
        if answer.domain != GENERAL:
            groups[answer.arm, "all"].append(answer)
    scores: dict[str, Json] = defaultdict(dict)
    routing: dict[str, tuple[int, int]] = {}
    for (arm, domain), some in groups.items():
        scores[arm][domain] = {
            "questions": len(some),
            "correct": sum(answer.correct for answer in some),
            "tokens": round(sum(answer.tokens for answer in some) / len(some), 2),
        }
        if arm == "routed" and domain != "all":
            routing[domain] = (sum((answer.routed or GENERAL) == domain for answer in some), len(some))
    return {"scores": dict(scores), "routing": routing}


def _overview(_: Path, manifest: Manifest) -> Page:
    """Return the report of an evaluation: accuracy by arm and domain, with 95 % Wilson intervals, and the router's."""
    scores, routing = manifest.counts["scores"], dict(manifest.counts["routing"])
    head = ["answered by", "all domains", "95 %", *routing, "tokens"]
    rows = []
    for arm, by_domain in scores.items():
        right, number = by_domain["all"]["correct"], by_domain["all"]["questions"]
        low, high = wilson(right, number)
        shares = [
            percent(by_domain[domain]["correct"], by_domain[domain]["questions"]) if domain in by_domain else ""
            for domain in routing
        ]
        tokens = f"{by_domain['all']['tokens']:.1f}"
        rows.append([arm, percent(right, number), f"{low:.1%} to {high:.1%}", *shares, tokens])
    routing["nothing of the kind"] = (manifest.counts["elsewhere"], len(ELSEWHERE))
    lead = (
        "Questions about blocks that no prototype saw, in wordings that no training saw; the expert of a domain was"
        " trained on the facts of all its blocks. The general set: blocks of no domain, by no expert. What is about"
        " nothing of the kind belongs to it, too."
    )
    views = [
        table("Accuracy", head, rows),
        table("Answered by", ["", "what that is"], list(ARMS.items())),
        table("Router", ["questions about", "routed right", "of"], [[name, *pair] for name, pair in routing.items()]),
    ]
    return Page("Domain experts", "experts", lead, views)


# -- the folders -------------------------------------------------------------------------------------------------------


def count_facts(facts: Sequence[ExpertFact]) -> Json:
    """Return the number of facts, and the blocks and questions of each domain."""
    counts: Json = {"facts": len(facts)}
    for domain in dict.fromkeys(fact.domain for fact in facts):
        some = [fact for fact in facts if fact.domain == domain]
        counts[domain] = {"blocks": len({fact.block for fact in some}), "asked": sum(fact.asked for fact in some)}
    return counts


def check_facts(folder: Folder) -> Check:
    """Check that each fact is there once, and that a block is held out whole."""
    rows = list(DATA.rows(folder.path, ExpertFact))
    held = {row.block for row in rows if row.held}
    wrong = [f"{row.id}: not held out, but its block is" for row in rows if row.block in held and not row.held]
    wrong += [f"{name}: occurs twice" for name, number in Counter(row.id for row in rows).items() if number > 1]
    return check_faults("facts", wrong, "each once; a block is held out whole")


def check_answers(folder: Folder) -> Check:
    """Check that answers are correct where they are what was expected."""
    wrong = [
        f"{row.id}: recorded correctness is wrong"
        for row in EVALUATION.rows(folder.path, ExpertAnswer)
        if row.correct != (read_number(row.answer) == row.expected)
    ]
    return check_faults("answers", wrong, "correct where they are what was expected")


DATA: Kind = replace(
    DECLARED["experts-data"],
    derive=lambda folder, _: {"counts": count_facts(list(DATA.rows(folder.path, ExpertFact)))},
    laws=(check_facts,),
)
EVALUATION: Kind = replace(
    DECLARED["experts-evaluation"],
    derive=lambda folder, _: {"counts": score_answers(EVALUATION.rows(folder.path, ExpertAnswer))},
    laws=(check_answers,),
    overview=_overview,
)
EXPERT, CODEBOOK, PROTOTYPES = (DECLARED[f"experts-{name}"] for name in ("expert", "codebook", "prototypes"))
KINDS = (EXPERT, CODEBOOK, PROTOTYPES, DATA, EVALUATION)
