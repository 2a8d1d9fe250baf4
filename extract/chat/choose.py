"""`choose`: from a requirement and four short descriptions to the one that fits, and why the others do not."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from extract.chat.demand import Demand, demands_of
from extract.chat.result import No, Subject, Talk
from extract.chat.specify import about
from extract.chat.wording import and_list, layer_words, mode_words, parameter_words, shape_words
from manifests.conversations.draw import Draw
from manifests.records import Spec

_LETTERS = "ABCD"
_MOST = 3  # demands
_TRIED = 400  # blocks that are looked at for the other three

_ASKED = (
    "Which of these modules {demands}?",
    "I need a module that {demands}. Which of the four fits, and why?",
    "Choose the one module that {demands}, and say what rules out the others.",
    "One of the following {demands}. Which one? Give reasons.",
)


@dataclass(frozen=True, slots=True)
class Shelf:
    """The blocks that may stand beside another: those of its split that ran, by category."""

    by_category: dict[tuple[str, str], list[Subject]]
    by_split: dict[str, list[Subject]]

    @staticmethod
    def of(subjects: Sequence[Subject]) -> "Shelf":
        """A shelf of the blocks that ran, mixed, so that neighbours do not come from one file."""
        shelf = Shelf({}, {})
        for subject in sorted(subjects, key=lambda item: hashlib.sha256(item.spec.block.encode()).digest()):
            if subject.spec.cases:
                split = subject.place.split
                shelf.by_category.setdefault((split, subject.spec.category), []).append(subject)
                shelf.by_split.setdefault(split, []).append(subject)
        return shelf

    def beside(self, subject: Subject, draw: Draw) -> list[Subject]:
        """Blocks of other groups in a drawn order, those of the same category first."""
        split = subject.place.split
        near = _from(self.by_category.get((split, subject.spec.category), []), draw.number("near"))
        far = _from(self.by_split.get(split, []), draw.number("far"))
        found = {item.spec.block: item for item in (*near, *far)}
        return [item for item in found.values() if item.place.cluster != subject.place.cluster]


def _from(items: list[Subject], number: int) -> list[Subject]:
    """So many of the items, in their order, from a drawn one on."""
    start = number % len(items) if items else 0
    return [*items[start:], *items[:start]][:_TRIED]


def choose(subject: Subject, draw: Draw, shelf: Shelf) -> Talk | No:
    """Four descriptions and demands that only one of them meets, answered with the measured facts that decide."""
    spec = subject.spec
    if not spec.cases:
        return No("not_run", f"it came to the rung {spec.level}")
    demands = draw.sample(list(demands_of(spec)), _MOST, "demands")
    others = _others(subject, demands, shelf.beside(subject, draw)) if demands else []
    if len(others) < len(_LETTERS) - 1:
        return No("no_others", "no three blocks of its split break a demand that it meets")
    four = draw.shuffled([subject, *others], "order")
    phrase = and_list([demand.text for demand in demands])
    user = [draw.pick(_ASKED, "question").format(demands=phrase), ""]
    user += [f"{letter}. {description(item.spec)}" for letter, item in zip(_LETTERS, four, strict=True)]
    letter = _LETTERS[four.index(subject)]
    reasons = and_list(list(dict.fromkeys(demand.because(spec) for demand in demands)))
    answer = [f"{letter}, `{spec.name}`: {reasons}.", ""]
    for letter, item in zip(_LETTERS, four, strict=True):
        if item is not subject:
            answer.append(f"{letter} does not fit: {_against(item.spec, demands)}.")
    return Talk("\n".join(user), "\n".join(answer), tuple(others))


def description(spec: Spec) -> str:
    """A block in a few short sentences."""
    told = [f"{about(spec)}."]
    if phrases := shape_words(spec):
        told.append(f"It {and_list(phrases)}.")
    if words := parameter_words(spec):
        told.append(f"It {words}.")
    if words := layer_words(spec):
        told.append(words)
    return " ".join([*told, *mode_words(spec)])


def _others(subject: Subject, demands: Sequence[Demand], beside: Sequence[Subject]) -> list[Subject]:
    """Three blocks of different names and groups, each of which breaks a demand; first those that also meet one."""
    taken = {subject.spec.name}
    groups: set[str] = set()
    found: list[Subject] = []
    for close in (True, False):
        for item in beside:
            met = [demand.met(item.spec) for demand in demands]
            if (True in met or not close) and item.spec.name not in taken:
                if item.place.cluster in groups or not _against(item.spec, demands):
                    continue
                taken.add(item.spec.name)
                groups.add(item.place.cluster)
                found.append(item)
                if len(found) == len(_LETTERS) - 1:
                    return found
    return found


def _against(spec: Spec, demands: Sequence[Demand]) -> str:
    """What is wrong with a block."""
    told = [words for demand in demands if demand.met(spec) is False and (words := demand.because(spec))]
    return and_list(list(dict.fromkeys(told)))
