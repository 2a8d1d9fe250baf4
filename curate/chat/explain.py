"""`explain`: from the file to a description that says only what was measured on it or stands in its syntax tree."""

from curate.chat.conversation import No, Talk
from curate.chat.facts import Facts
from curate.chat.stages import stages
from curate.chat.subject import Subject
from curate.chat.text import fence
from curate.chat.wording import (
    SYSTEMS,
    batch_of,
    call_line,
    counted,
    joined,
    listed,
    output_of,
    result_line,
    stand_in,
    task_name,
    trainable,
)
from lemur_core.files.markdown import plural
from manifests.conversations.draw import Draw

_QUESTIONS = (
    "Explain this network: its stages, shapes, layers and size.",
    "What does this PyTorch file build? Describe the network and how large it is.",
    "Describe the following network for someone who has to decide whether to train it.",
    "Give me a summary of this architecture, with its parameters, multiply-adds and shapes.",
    "Go through this network stage by stage and tell me what it costs.",
)
_SHOWN = 40  # results in one answer


def explain(subject: Subject, draw: Draw) -> Talk | No:
    """A question about the record's file, answered with facts."""
    facts = subject.facts
    if facts is None:
        return No("does_not_run", subject.fault)
    user = [draw.pick(_QUESTIONS, "question"), "", fence(subject.code), "", call_line(subject)]
    if subject.results:
        user += ["", "Recorded results:", *(f"- {result_line(best)}" for best in subject.results[:_SHOWN])]
    parts = [
        *_stages(facts, draw),
        *_layers(facts, draw),
        *_size(subject, facts, draw),
        *_training(subject, facts, draw),
        *_results(subject, draw),
    ]
    answer = "\n".join([_summary(subject, facts, draw), *parts])
    return Talk("file", draw.pick(SYSTEMS, "system"), "\n".join(user), answer)


def _summary(subject: Subject, facts: Facts, draw: Draw) -> str:
    children, size = plural(len(facts.children), "top-level module"), f"{facts.parameters:,} parameters"
    return draw.pick(
        (
            f"This is a network for {task_name(subject.task)} with {children} and {size}.",
            f"`Net` has {children} and {size}; its record is for {task_name(subject.task)} on {subject.dataset}.",
            f"The file builds a network of {size} for {task_name(subject.task)}; it consists of {children}.",
        ),
        "summary",
    )


def _stages(facts: Facts, draw: Draw) -> list[str]:
    if not facts.children:
        return []
    head = draw.pick(("Stages, in the order in which they are first called:", "Its top-level modules:"), "stages")
    return ["", head, *stages(facts)]


def _layers(facts: Facts, draw: Draw) -> list[str]:
    lines = []
    if facts.layers:
        lines += [
            "",
            f"{draw.pick(('Layers', 'Layers by kind', 'What it is built of'), 'layers')}: {listed(facts.layers)}.",
        ]
    if facts.own:
        lines.append(f"Modules of classes that the file defines: {listed(facts.own)}.")
    if facts.functions:
        lines.append(f"Activations called in one forward pass: {listed(facts.functions)}.")
    return lines


def _size(subject: Subject, facts: Facts, draw: Draw) -> list[str]:
    assert subject.case is not None
    given = "x".join(str(size) for size in subject.case.in_shape)
    head = draw.pick(("Size", "Cost", "Parameters and compute"), "size")
    lines = ["", f"{head}: {facts.parameters:,} parameters, {trainable(facts)}."]
    if vocabulary := stand_in(subject):
        lines.append(vocabulary)
    if facts.multiply_adds:
        lines[1] += (
            f" Its {counted(facts)} take {facts.multiply_adds:,} multiply-adds for a batch of {batch_of(subject)}."
        )
    output = output_of(subject)
    return [*lines, f"An input of {given} gives {output}."] if output is not None else lines


def _training(subject: Subject, facts: Facts, draw: Draw) -> list[str]:
    reading = subject.reading
    lines = []
    if reading.hyperparameters is not None:
        names = joined(reading.hyperparameters) or "none"
        lines.append(f"Hyperparameters that it supports: {names}.")
    optimizers, losses = facts.optimizers or reading.optimizers, facts.losses or reading.losses
    if optimizers:
        lines.append(f"{draw.pick(('Its optimizer is', 'It trains with'), 'optimizer')} {joined(optimizers)}.")
    if losses:
        lines.append(f"Loss: {joined(losses)}.")
    if subject.pretrained:
        lines.append("It starts from trained weights, so its results say little about the architecture alone.")
    return ["", *lines] if lines else []


def _results(subject: Subject, draw: Draw) -> list[str]:
    if not subject.results:
        return []
    head = draw.pick(("Best recorded results:", "Results, the best on each benchmark:"), "results")
    return ["", head, *(f"- {result_line(best)}" for best in subject.results[:_SHOWN])]
