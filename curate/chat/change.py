"""`change`: one ingredient becomes another; the new file was run, and measured to differ there."""

from curate.chat.changes import changes
from curate.chat.conversation import No, Talk, no_file
from curate.chat.facts import Facts, read_facts
from curate.chat.lab import Lab, Method
from curate.chat.subject import Subject
from curate.chat.text import fence
from curate.chat.way import Change
from curate.chat.wording import SYSTEMS, call_line, joined
from lemur_core.files.markdown import plural
from manifests.conversations.draw import Draw

#: Changes that are tried on one record.
ATTEMPTS = 3

_METHODS: tuple[Method, ...] = ("measure", "train_step")
_REQUESTS = {
    "activation": (
        "Replace every {old} in this network by {new}.",
        "I want to try {new} instead of {old} everywhere in this file.",
        "Swap the activation {old} for {new}; leave everything else as it is.",
    ),
    "optimizer": (
        "Train this network with {new} instead of {old}.",
        "Change the optimizer from {old} to {new}, and nothing else.",
        "Use {new} where this file uses the optimizer {old}; arguments that {new} does not take go.",
    ),
    "dropout": (
        "Set every dropout rate of this network to {new}.",
        "Change the dropout from {old} to {new} everywhere.",
        "I want a dropout of {new} in place of {old}. Give me the changed file.",
    ),
    "layer": (
        "Replace every {old} of this network by {new}{one_group}.",
        "What does the file look like with {new}{one_group} instead of {old}?",
        "Swap all {old} layers for {new}{one_group}, with the arguments that they have.",
    ),
}
_ANSWERS = ("Done.", "Here is the changed file.", "This is the file with {new}.")


def change_all(subjects: list[Subject], draws: list[Draw], lab: Lab) -> list[Talk | No]:
    """A conversation for each record that runs, by the first change of a drawn order whose network measures up."""
    found: list[Talk | No] = [
        no_file(subject)
        or No("no_ingredient", "no activation, optimizer, dropout, pooling or norm that can be changed everywhere")
        for subject in subjects
    ]
    plans = {place: _plan(subject, draws[place]) for place, subject in enumerate(subjects) if no_file(subject) is None}
    for attempt in range(ATTEMPTS):
        for method in _METHODS:
            open_places = [
                place
                for place, plan in plans.items()
                if isinstance(found[place], No) and len(plan) > attempt and plan[attempt].method == method
            ]
            codes = [subjects[place].source.edit(plans[place][attempt].edits) for place in open_places]
            experiments = [subjects[place].experiment(code) for place, code in zip(open_places, codes, strict=True)]
            for place, code, told in zip(
                open_places, codes, lab.make(experiments, "chat changes", method), strict=True
            ):
                way = plans[place][attempt]
                what = f"last of {attempt + 1} tried: {way.old} to {way.new}"
                if not told["runs"]:
                    found[place] = No("change_fails", f"{what}: {told['category']}: {told['error']}")
                elif not _measures_up(subjects[place], way, read_facts(told)):
                    found[place] = No("change_not_seen", f"{what}: the measurements are not those of the change")
                else:
                    found[place] = _talk(subjects[place], draws[place], way, code, read_facts(told))
    return found


def _plan(subject: Subject, draw: Draw) -> list[Change]:
    """Changes in the order in which they are tried: each of another kind while there are kinds."""
    ways = changes(subject.source)
    if subject.case is None or subject.case.output is None:
        ways.pop("optimizer", None)  # a training step needs labels, which only a classification fixes
    kinds = draw.shuffled(list(ways), "kinds")
    orders = {kind: draw.shuffled(ways[kind], f"way {kind}") for kind in kinds}
    rounds = max((len(order) for order in orders.values()), default=0)
    plan = [orders[kind][turn] for turn in range(rounds) for kind in kinds if turn < len(orders[kind])]
    return plan[:ATTEMPTS]


def _measures_up(subject: Subject, way: Change, after: Facts) -> bool:
    """The ingredient changed as asked, and parameters and output did not."""
    before = subject.facts
    assert before is not None
    same = (before.parameters, before.output) == (after.parameters, after.output)
    return same and way.test(before, after)


def _talk(subject: Subject, draw: Draw, way: Change, code: str, after: Facts) -> Talk:
    names = {"old": way.old, "new": way.new, "one_group": " of one group" if way.new == "GroupNorm" else ""}
    user = [draw.pick(_REQUESTS[way.kind], "request").format(**names), "", fence(subject.code), "", call_line(subject)]
    source = subject.source
    spans = (range(source.line_of(edit.start), source.line_of(edit.end) + 1) for edit in way.edits)
    lines = sorted({line for span in spans for line in span})
    places = f"{'Line' if len(lines) == 1 else 'Lines'} {', '.join(map(str, lines))} of your file changed."
    answer = f"{draw.pick(_ANSWERS, 'answer').format(**names)} {places} {_measured(subject, way, after)}"
    variant = f"{way.kind} {way.old} to {way.new}"
    return Talk(variant, draw.pick(SYSTEMS, "system"), "\n".join(user), f"{answer}\n\n{fence(code)}")


def _measured(subject: Subject, way: Change, after: Facts) -> str:
    """What was seen of the change."""
    before = subject.facts
    assert before is not None
    size = f"Parameters: {before.parameters:,} before, {after.parameters:,} after."
    if way.kind == "optimizer":
        told = f"The optimizer was {joined(before.optimizers)} and is {joined(after.optimizers)}."
        return " ".join([told, *way.notes, size])
    if way.kind == "dropout":
        return f"Dropout rates were {way.old} and are {way.new}. {size}"
    if way.kind == "layer":
        number = after.layers[way.new] - before.layers.get(way.new, 0)
        return f"The network has {number:,} {way.new} where it had {number:,} {way.old}. {size}"
    name = way.new.lower()
    number = after.functions[name] - before.functions.get(name, 0)
    return f"One forward pass calls {way.new} {plural(number, 'time')} where it called {way.old}. {size}"
