"""`repair`: a fault was put into the file and seen to fail in the sandbox; the answer is the file without it."""

from curate.chat.conversation import No, Talk, no_file
from curate.chat.faults import Fault, faults
from curate.chat.lab import Answer, Lab
from curate.chat.subject import Subject
from curate.chat.text import fence
from curate.chat.wording import SYSTEMS, call_line
from manifests.conversations.draw import Draw

#: Faults that are tried on one record.
ATTEMPTS = 4

_SHOWN = frozenset({"import_failed", "construct_failed", "forward_failed", "wrong_output"})
_REQUESTS = (
    "This network fails. Find the fault and give me the corrected file.",
    "Running the file below ends with an error. Please fix it.",
    "Something is wrong in this PyTorch network; the error is shown below the code. Correct it.",
    "Debug this network and answer with the whole file, repaired.",
)
_ERRORS = ("The error:", "What I get:", "It fails with:")
_ANSWERS = (
    "{where} {right}. The corrected file:",
    "The fault: {where_low} {right}. Corrected:",
    "{where} {right}. With that put right, the network runs:",
)


def repairs(subjects: list[Subject], draws: list[Draw], lab: Lab) -> list[Talk | No]:
    """A conversation for each record that runs, by the first fault of a drawn order that fails."""
    found: list[Talk | No] = [
        no_file(subject) or No("no_fault", "no place for a fault was found") for subject in subjects
    ]
    plans = {place: _plan(subject, draws[place]) for place, subject in enumerate(subjects) if no_file(subject) is None}
    for attempt in range(ATTEMPTS):
        open_places = [place for place, plan in plans.items() if isinstance(found[place], No) and len(plan) > attempt]
        codes = [subjects[place].source.edit([plans[place][attempt].edit]) for place in open_places]
        experiments = [subjects[place].experiment(code) for place, code in zip(open_places, codes, strict=True)]
        answers = lab.make(experiments, "chat faults")
        for place, code, told in zip(open_places, codes, answers, strict=True):
            fault = plans[place][attempt]
            if told["runs"] or told["category"] not in _SHOWN:
                outcome = "it runs all the same" if told["runs"] else f"{told['category']}: {told['error']}"
                found[place] = No("no_clear_failure", f"last of {attempt + 1} tried: {fault.kind}: {outcome}")
            else:
                found[place] = _talk(subjects[place], draws[place], fault, code, told)
    return found


def _plan(subject: Subject, draw: Draw) -> list[Fault]:
    """Faults in the order in which they are tried: each of another kind while there are kinds."""
    places = faults(subject.source)
    kinds = draw.shuffled(list(places), "kinds")
    orders = {kind: draw.shuffled(places[kind], f"place {kind}") for kind in kinds}
    rounds = max((len(order) for order in orders.values()), default=0)
    plan = [orders[kind][turn] for turn in range(rounds) for kind in kinds if turn < len(orders[kind])]
    return plan[:ATTEMPTS]


def _talk(subject: Subject, draw: Draw, fault: Fault, code: str, told: Answer) -> Talk:
    error = f"{told['category']}: {told['error']}"
    user = [draw.pick(_REQUESTS, "request"), "", fence(code), "", call_line(subject), ""]
    user += [draw.pick(_ERRORS, "error"), "", _fence_text(error)]
    where = f"Line {fault.line}:"
    answer = draw.pick(_ANSWERS, "answer").format(
        where=where, where_low=where[0].lower() + where[1:], right=fault.right
    )
    return Talk(
        f"{fault.kind} line {fault.line}",
        draw.pick(SYSTEMS, "system"),
        "\n".join(user),
        f"{answer}\n\n{fence(subject.code)}",
    )


def _fence_text(line: str) -> str:
    """One line as a block of plain text."""
    marks = "```" if "```" not in line else "~~~~"
    return f"{marks}text\n{line}\n{marks}"
