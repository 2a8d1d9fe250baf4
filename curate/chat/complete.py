"""`complete`: a file with a gap, and the part that is missing there."""

from curate.chat.conversation import No, Talk
from curate.chat.gap import MARK, gaps
from curate.chat.subject import Subject
from curate.chat.text import fence
from curate.chat.wording import SYSTEMS
from manifests.draw import Draw

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
_ANSWERS = ("", "The missing part is:\n\n", "This belongs there:\n\n")


def complete(subject: Subject, draw: Draw) -> Talk | No:
    """A request to fill a gap; the answer, put back, gives the record's file exactly. Nothing is run for it."""
    found = gaps(subject.source)
    if not found:
        return No("no_part", "no body of three lines or more and no further class can be cut out and put back exactly")
    telling = [gap for gap in found if gap.name.rpartition(".")[2] not in _ALIKE]
    gap = draw.pick(telling or found, "gap")
    request = draw.pick(_REQUESTS, "request").format(what=gap.what, mark=MARK)
    request = request[0].upper() + request[1:]
    user = f"{request}\n\n{fence(gap.text)}\n\n{_RULE}"
    return Talk(gap.name, draw.pick(SYSTEMS, "system"), user, draw.pick(_ANSWERS, "answer") + fence(gap.part))
