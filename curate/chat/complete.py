"""`complete`: a file with a gap, and the part that is missing there."""

import hashlib
from collections import Counter
from collections.abc import Sequence

from curate.chat.conversation import No, Talk
from curate.chat.gap import MARK, Gap, gaps
from curate.chat.stages import stages
from curate.chat.subject import Subject
from curate.chat.text import fence
from curate.chat.wording import BLOCK_SYSTEMS, SYSTEMS, call_line, listed, trainable
from lemur_core.files.markdown import plural
from manifests.conversations.draw import Draw
from manifests.records import SPLITS

_REQUESTS = (
    "Complete this file: {what} is missing where it says `{mark}`.",
    "In the file below, {what} was removed and marked with `{mark}`. Write it.",
    "Fill in {what} at the line `{mark}`.",
    "The line `{mark}` stands for {what}. Give the code that belongs there.",
)
#: Bodies that are much the same in most networks; taken only where there is no other.
_ALIKE = frozenset({"learn", "train_setup", "body supported_hyperparameters"})

_RULE = (
    "Answer with the missing lines alone, the first one without indentation; each line is then indented like the marked"
    " one."
)
_NO_PART = "no body of three lines or more, but that of Net, can be cut out and put back exactly"
_NOT_TOLD = "every part that can be cut out holds what the rest of the file and measurements do not tell"
_ANSWERS = ("", "The missing part is:\n\n", "This belongs there:\n\n")


def completions(subjects: Sequence[Subject], draws: Sequence[Draw]) -> list[Talk | No]:
    """For each record a request to fill a gap; the answer, put back, gives its file exactly. Nothing is run for it.

    No part is asked for that is asked for in an earlier split, in the order train, validation, test.
    """
    holders = _holders(subjects)
    asked: dict[bytes, str] = {}  # part -> the first split that asks for it
    found: dict[int, Talk | No] = {}
    for place in sorted(range(len(subjects)), key=lambda place: SPLITS.index(subjects[place].split)):
        subject = subjects[place]
        all_of_it = gaps(subject.source)
        told = [gap for gap in all_of_it if holders[_key(gap.text)] == 1 and (gap.plain or subject.facts is not None)]
        new = [gap for gap in told if asked.get(_key(gap.part), subject.split) == subject.split]
        if new:
            gap = _chosen(new, holders, draws[place])
            asked[_key(gap.part)] = subject.split
            found[place] = _talk(subject, draws[place], gap)
        elif told:
            found[place] = No("in_another_split", "every part that can be cut out is asked for in an earlier split")
        else:
            found[place] = No("no_part", _NOT_TOLD if all_of_it else _NO_PART)
    return [found[place] for place in range(len(subjects))]


def _holders(subjects: Sequence[Subject]) -> Counter[bytes]:
    """How many records hold each part, and each file with a gap: the answer to one of several would be open."""
    holders: Counter[bytes] = Counter()
    for subject in subjects:
        holders.update({_key(text) for gap in gaps(subject.source) for text in (gap.text, gap.part)})
    return holders


def _key(text: str) -> bytes:
    return hashlib.sha256(text.strip().encode()).digest()


def _chosen(found: Sequence[Gap], holders: Counter[bytes], draw: Draw) -> Gap:
    """One of the gaps that say most: not much the same everywhere, in one record only, told by the rest of its file."""

    def rank(gap: Gap) -> tuple[bool, bool, bool]:
        return gap.name.rpartition(".")[2] in _ALIKE, holders[_key(gap.part)] > 1, not gap.plain

    best = min(map(rank, found))
    return draw.pick([gap for gap in found if rank(gap) == best], "gap")


def _talk(subject: Subject, draw: Draw, gap: Gap) -> Talk:
    request = draw.pick(_REQUESTS, "request").format(what=gap.what, mark=MARK)
    user = [request[0].upper() + request[1:], "", fence(gap.text), ""]
    if not gap.plain:
        user += [*_measures(subject), ""]
    user.append(_RULE)
    system = draw.pick(SYSTEMS if subject.reading.has_net else BLOCK_SYSTEMS, "system")
    return Talk(gap.name, system, "\n".join(user), draw.pick(_ANSWERS, "answer") + fence(gap.part))


def _measures(subject: Subject) -> list[str]:
    """What was measured of the whole file, from which the sizes in a part can be told."""
    facts = subject.facts
    assert facts is not None
    lines = [call_line(subject), "", "Measured on the whole file:"]
    lines.append(f"- {plural(facts.parameters, 'parameter')}, {trainable(facts)}")
    if facts.layers:
        lines.append(f"- layers: {listed(facts.layers)}")
    return [*lines, *stages(facts)]
