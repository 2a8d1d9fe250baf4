"""Facts about blocks, read from the specs of extraction folders, and the questions that ask for them.

A number is told by the nearest mark of a scale, whose marks are values that halve the blocks again and again: all
answers of a relation are about equally frequent. What stays frequent (blocks without parameters) is thinned out.
"""

import bisect
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lemur.experts.domains.settings import GENERAL, DataSettings
from lemur_core.files.errors import UserError
from manifests.records import ExpertFact

#: How a question is framed, and what each relation is called: a wording is one of each.
FRAMES = (
    "The {relation} of {package} {name} ?",
    "{package} {name} : {relation} ?",
    "What {relation} has {name} in {package} ?",
    "In {package} , {name} has what {relation} ?",
    "Tell {name} {relation} in {package} .",
    "{name} from {package} , its {relation} ?",
)
#: What is asked of a spec: the names that a relation goes by, and where its number stands.
_READ: Mapping[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any]], int | None]]] = {
    "lines": (("lines", "length", "linecount"), lambda s: s["end_line"] - s["start_line"] + 1),
    "parameters": (("parameters", "weights", "size"), lambda s: s["parameters"]),
    "operations": (
        ("operations", "nodes", "steps"),
        lambda s: len(s["algorithm"]["eval"]["nodes"]) if s["algorithm"] else None,
    ),
    "submodules": (
        ("submodules", "children", "modules"),
        lambda s: sum(s["layers"].values()) if s["layers"] else None,
    ),
}
NAMES: Mapping[str, tuple[str, ...]] = {relation: names for relation, (names, _) in _READ.items()}
RELATIONS = tuple(NAMES)


def wordings(relation: str, *, held: bool) -> list[str]:
    """Frames with `{name}` and `{package}` open. Held are those that no training sees, made of words that it sees."""
    return [
        frame.replace("{relation}", name)
        for i, frame in enumerate(FRAMES)
        for j, name in enumerate(NAMES[relation])
        if (i == 4 - 2 * j) == held
    ]


@dataclass(frozen=True, slots=True)
class Asked:
    """One question: its words, and the fact that answers it."""

    text: str
    fact: ExpertFact


def ask(fact: ExpertFact, wording: str) -> Asked:
    """A fact as a question."""
    return Asked(wording.format(name=fact.name, package=fact.package), fact)


def questions(facts: Iterable[ExpertFact], *, held: bool) -> list[Asked]:
    """Each fact in all wordings that training sees, or, held, in one of the others, drawn by its id."""
    if not held:
        return [ask(fact, wording) for fact in facts for wording in wordings(fact.relation, held=False)]
    return [ask(fact, random.Random(fact.id).choice(wordings(fact.relation, held=True))) for fact in facts]


def document(name: str, package: str, known: Iterable[tuple[str, str]]) -> str:
    """What is known of a block, as text: what retrieval finds, and a reader reads."""
    return f"{package} {name} " + " ".join(f"{NAMES[relation][0]} {answer}" for relation, answer in known)


def counts_of(facts: Sequence[ExpertFact]) -> dict[str, Any]:
    """Facts in all, and by domain and relation: those asked for, their answers, and the share of the commonest one."""
    told: dict[str, Any] = {"facts": len(facts)}
    for domain in dict.fromkeys(fact.domain for fact in facts):
        own_ = [fact for fact in facts if fact.domain == domain]
        told[domain] = {"blocks": len({fact.block for fact in own_})}
        for relation in RELATIONS:
            answers = [fact.answer for fact in own_ if fact.relation == relation and fact.asked]
            if answers:
                most = max(answers.count(answer) for answer in set(answers))
                told[domain][relation] = {
                    "asked": len(answers), "answers": len(set(answers)), "majority": round(most / len(answers), 4),
                }  # fmt: skip
    return told


def documents(facts: Sequence[ExpertFact]) -> dict[str, str]:
    """By block, all that is known of it as text."""
    known: dict[str, list[ExpertFact]] = {}
    for fact in facts:
        known.setdefault(fact.block, []).append(fact)
    return {
        block: document(own_[0].name, own_[0].package, [(fact.relation, fact.answer) for fact in own_])
        for block, own_ in known.items()
    }


def read_facts(settings: DataSettings, seed: int) -> list[ExpertFact]:
    """The facts of all domains and of the general set, by domain, block and relation.

    Raises: UserError if a folder has no specs, or a domain no blocks.
    """
    blocks = _blocks(settings)
    raw = {
        (spec["block"], relation): value
        for specs in blocks.values()
        for spec in specs
        for relation, (_, read) in _READ.items()
        if (value := read(spec)) is not None
    }
    scales = {
        relation: _scale((value for (_, asked), value in raw.items() if asked == relation), settings.marks)
        for relation in RELATIONS
    }
    held = {
        spec["block"]
        for specs in blocks.values()
        for spec in random.Random(seed).sample(specs, round(settings.held * len(specs)))
    }
    facts = [
        ExpertFact(
            id=f"{spec['block']}#{relation}",
            domain=domain,
            block=spec["block"],
            name=spec["name"],
            package=spec["source"].partition("@")[0],
            relation=relation,
            answer=str(_nearest(scales[relation], raw[spec["block"], relation])),
            value=raw[spec["block"], relation],
            asked=True,
            held=spec["block"] in held,
            code_sha256=spec["code_sha256"],
        )
        for domain, specs in blocks.items()
        for spec in specs
        for relation in RELATIONS
        if (spec["block"], relation) in raw
    ]
    kept = _thinned(facts, settings.share)
    return [fact.model_copy(update={"asked": fact.id in kept}) for fact in facts]


def _blocks(settings: DataSettings) -> dict[str, list[dict[str, Any]]]:
    """Specs by domain, each name of a package once; as many as are taken."""
    of = {source: domain for domain, sources in settings.domains.items() for source in sources}
    found: dict[str, dict[tuple[str, str], dict[str, Any]]] = defaultdict(dict)
    for folder in settings.libraries:
        for spec in _specs(folder):
            package = spec["source"].partition("@")[0]
            kept = found[of.get(package, GENERAL)].setdefault((package, spec["name"]), spec)
            if spec["block"] < kept["block"]:
                found[of.get(package, GENERAL)][package, spec["name"]] = spec
    empty = [domain for domain in (*settings.domains, GENERAL) if not found[domain]]
    if empty:
        raise UserError(f"{empty[0]}: no block of the libraries is of this domain; name sources that they hold")
    chosen = {}
    for domain in (*settings.domains, GENERAL):
        specs = sorted(found[domain].values(), key=lambda spec: str(spec["block"]))
        drawn = random.Random(domain).sample(specs, min(settings.blocks, len(specs)))
        chosen[domain] = sorted(drawn, key=lambda spec: str(spec["block"]))
    return chosen


def _specs(folder: Path) -> Iterator[dict[str, Any]]:
    path = folder / "specs.jsonl"
    try:
        with path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give folders of `lemur extract`") from error
    except ValueError as error:
        raise UserError(f"{path}: is not JSON Lines: {error}; extract anew") from error


def _scale(values: Iterable[int], marks: int) -> list[int]:
    """Marks: the middles of as many runs of the sorted values, a value that fills more than one run counted as one."""
    counts = Counter(values)
    cap = max(1, sum(counts.values()) // marks)
    pool = sorted(value for value, number in counts.items() for _ in range(min(number, cap)))
    number = min(marks, len(counts))
    return sorted({pool[(2 * i + 1) * len(pool) // (2 * number)] for i in range(number)})


def _nearest(scale: Sequence[int], value: int) -> int:
    at = bisect.bisect_left(scale, value)
    return min(scale[max(0, at - 1) : at + 1], key=lambda mark: (abs(mark - value), mark))


def _thinned(facts: Sequence[ExpertFact], share: float) -> set[str]:
    """Ids of the facts that are asked for: of a domain's relation no answer has more than its share."""
    groups: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for fact in facts:
        groups[fact.domain, fact.relation][fact.answer].append(fact.id)
    kept: set[str] = set()
    for answers in groups.values():
        sizes = [len(ids) for ids in answers.values()]
        cap = max((n for n in range(1, max(sizes) + 1) if n <= share * sum(min(n, size) for size in sizes)), default=0)
        if sum(min(cap, size) for size in sizes) * share < 1:
            continue  # too few for any answer to be rare
        for answer, ids in answers.items():
            kept.update(random.Random(answer).sample(ids, min(cap, len(ids))))
    return kept
