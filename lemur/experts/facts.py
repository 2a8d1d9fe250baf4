"""Facts about blocks, read from the specs of extraction folders, and the questions about them.

A number is rounded to the nearest mark of a scale whose marks are quantiles, so that all answers of a relation are
about equally frequent. Answers that are still too frequent (blocks without parameters) are thinned out.
"""

import bisect
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from lemur.experts.settings import GENERAL, DataSettings
from lemur_core.files import Json
from lemur_core.files.errors import UserError
from manifests.records import ExpertFact

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
NAMES: Mapping[str, tuple[str, ...]] = {
    "lines": ("lines", "length", "linecount"),
    "parameters": ("parameters", "weights", "size"),
    "operations": ("operations", "nodes", "steps"),
    "submodules": ("submodules", "children", "modules"),
}
RELATIONS = tuple(NAMES)


def wordings(relation: str, *, held: bool) -> list[str]:
    """Return templates with `{name}` and `{package}` open; the held-out ones are new combinations of known words."""
    return [
        frame.replace("{relation}", name)
        for i, frame in enumerate(FRAMES)
        for j, name in enumerate(NAMES[relation])
        # One frame for each name: all frames and names also occur in training, only not together.
        if (i == 4 - 2 * j) == held
    ]


@dataclass(frozen=True, slots=True)
class Question:
    """One question: its text, and the fact that answers it."""

    text: str
    fact: ExpertFact


def ask(fact: ExpertFact, wording: str) -> Question:
    """Turn a fact into a question."""
    return Question(wording.format(name=fact.name, package=fact.package), fact)


def questions(facts: Iterable[ExpertFact], *, held: bool) -> list[Question]:
    """Return questions for each fact in all training wordings, or, if `held`, in one other wording drawn by its id."""
    if not held:
        return [ask(fact, wording) for fact in facts for wording in wordings(fact.relation, held=False)]
    return [ask(fact, random.Random(fact.id).choice(wordings(fact.relation, held=True))) for fact in facts]


def document(name: str, package: str, known: Iterable[tuple[str, str]]) -> str:
    """Return the known facts about a block as a text, for retrieval and for prompts."""
    return f"{package} {name} " + " ".join(f"{NAMES[relation][0]} {answer}" for relation, answer in known)


def count_facts(facts: Sequence[ExpertFact]) -> Json:
    """Count facts in total, and by domain and relation: questions, distinct answers, share of the most frequent."""
    counts: Json = {"facts": len(facts)}
    for domain in dict.fromkeys(fact.domain for fact in facts):
        own_ = [fact for fact in facts if fact.domain == domain]
        counts[domain] = {"blocks": len({fact.block for fact in own_})}
        for relation in RELATIONS:
            answers = [fact.answer for fact in own_ if fact.relation == relation and fact.asked]
            if answers:
                most = max(answers.count(answer) for answer in set(answers))
                counts[domain][relation] = {
                    "asked": len(answers), "answers": len(set(answers)), "majority": round(most / len(answers), 4),
                }  # fmt: skip
    return counts


def documents(facts: Sequence[ExpertFact]) -> dict[str, str]:
    """Return the text with all known facts about each block."""
    known: dict[str, list[ExpertFact]] = {}
    for fact in facts:
        known.setdefault(fact.block, []).append(fact)
    return {
        block: document(own_[0].name, own_[0].package, [(fact.relation, fact.answer) for fact in own_])
        for block, own_ in known.items()
    }


def read_facts(settings: DataSettings, seed: int) -> list[ExpertFact]:
    """Read the facts of all domains and of the general set, by domain, block and relation.

    Raises: UserError if a folder has no specs, or a domain has no blocks.
    """
    domains = _draw_blocks(settings)
    scales = {
        relation: _scale(
            (block.values[relation] for blocks in domains.values() for block in blocks if relation in block.values),
            settings.marks,
        )
        for relation in RELATIONS
    }
    held = {
        block.id
        for blocks in domains.values()
        for block in random.Random(seed).sample(blocks, round(settings.held * len(blocks)))
    }
    facts = [
        ExpertFact(
            id=f"{block.id}#{relation}",
            domain=domain,
            block=block.id,
            name=block.name,
            package=block.package,
            relation=relation,
            answer=str(_nearest(scales[relation], value)),
            value=value,
            asked=True,
            held=block.id in held,
            code_sha256=block.code_sha256,
        )
        for domain, blocks in domains.items()
        for block in blocks
        for relation, value in block.values.items()
    ]
    kept = _limit_answers(facts, settings.share)
    return [fact.model_copy(update={"asked": fact.id in kept}) for fact in facts]


@dataclass(frozen=True, slots=True)
class _QuestionBlock:
    """The part of a block's spec that questions are about. `values`: the number of each relation that it has."""

    id: str
    name: str
    package: str
    code_sha256: str
    values: Mapping[str, int]


_BY_ID = attrgetter("id")


def _draw_blocks(settings: DataSettings) -> dict[str, list[_QuestionBlock]]:
    """Return blocks by domain, one per name and package, at most `settings.blocks` per domain."""
    domains = {source: domain for domain, sources in settings.domains.items() for source in sources}
    blocks: dict[str, dict[tuple[str, str], _QuestionBlock]] = {domain: {} for domain in (*settings.domains, GENERAL)}
    for folder in settings.libraries:
        for block in _read_blocks(folder):
            same = blocks[domains.get(block.package, GENERAL)]
            # Of several versions of a package, one block: questions name no version.
            key = (block.package, block.name)
            same[key] = min(same.get(key, block), block, key=_BY_ID)
    empty = [domain for domain, own in blocks.items() if not own]
    if empty:
        raise UserError(f"{empty[0]}: the libraries have no block of this domain; name sources that they contain")
    return {
        domain: sorted(
            random.Random(domain).sample(sorted(own.values(), key=_BY_ID), min(settings.blocks, len(own))), key=_BY_ID
        )
        for domain, own in blocks.items()
    }


def _read_blocks(folder: Path) -> Iterator[_QuestionBlock]:
    path = folder / "specs.jsonl"
    try:
        with path.open(encoding="utf-8") as file:
            for spec in map(json.loads, file):
                algorithm, layers = spec["algorithm"], spec["layers"]
                numbers = {
                    "lines": spec["end_line"] - spec["start_line"] + 1,
                    "parameters": spec["parameters"],
                    "operations": len(algorithm["eval"]["nodes"]) if algorithm else None,
                    "submodules": sum(layers.values()) if layers else None,
                }
                values = {relation: number for relation, number in numbers.items() if number is not None}
                package = spec["source"].partition("@")[0]
                yield _QuestionBlock(spec["block"], spec["name"], package, spec["code_sha256"], values)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; pass folders written by `lemur extract`") from error
    except ValueError as error:
        raise UserError(f"{path}: not JSON Lines: {error}; extract again") from error


def _scale(values: Iterable[int], marks: int) -> list[int]:
    """Return the marks: medians of `marks` equal runs of the sorted values, without duplicates."""
    counts = Counter(values)
    # One frequent number must not take several marks.
    cap = max(1, sum(counts.values()) // marks)
    pool = sorted(value for value, number in counts.items() for _ in range(min(number, cap)))
    number = min(marks, len(counts))
    return sorted({pool[(2 * i + 1) * len(pool) // (2 * number)] for i in range(number)})


def _nearest(scale: Sequence[int], value: int) -> int:
    at = bisect.bisect_left(scale, value)
    return min(scale[max(0, at - 1) : at + 1], key=lambda mark: (abs(mark - value), mark))


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
