"""`design`: from requirements, all of them measured on the answer, to the whole file."""

from curate.chat.conversation import No, Talk, no_file
from curate.chat.subject import Subject
from curate.chat.text import fence
from curate.chat.wording import (
    SYSTEMS,
    batch_of,
    counted,
    is_chance,
    joined,
    listed,
    output_of,
    result_line,
    stand_in,
    task_name,
    trainable,
)
from manifests.conversations.draw import Draw

_OPENINGS = (
    "Design a PyTorch network for {task} on {dataset} that meets these requirements.",
    "I need a network for {dataset} ({task}). Write the complete file. What it has to be:",
    "Write a `Net` for {task} with the dataset {dataset}. Requirements:",
    "Please implement a neural network, as one Python file, for {task} on {dataset}:",
    "Propose an architecture for {dataset}, a dataset for {task}, and give its code. Constraints:",
)
_ANSWERS = (
    "",
    "Here is the complete file:\n\n",
    "This file meets the requirements:\n\n",
    "The network as one file:\n\n",
)


def design(subject: Subject, draw: Draw) -> Talk | No:
    """A request for a network of these measures; the answer is the record's file, which has them."""
    if (refused := no_file(subject)) is not None:
        return refused
    opening = draw.pick(_OPENINGS, "opening").format(task=task_name(subject.task), dataset=subject.dataset)
    lines = [f"- {line}" for line in _requirements(subject, draw)]
    answer = draw.pick(_ANSWERS, "answer") + fence(subject.code)
    return Talk("file", draw.pick(SYSTEMS, "system"), "\n".join([opening, "", *lines]), answer)


def _requirements(subject: Subject, draw: Draw) -> list[str]:
    facts, reading, batch = subject.facts, subject.reading, batch_of(subject)
    assert facts is not None
    kinds, vocabulary = trainable(facts), stand_in(subject)
    lines = [
        f"It is built with `{subject.call}`; the batch size there is {batch}.",
        *([vocabulary] if vocabulary else []),
        *([f"For such a batch `forward` returns {output}."] if (output := output_of(subject)) is not None else []),
        draw.pick(
            (
                f"Parameter budget: {facts.parameters:,}, {kinds}.",
                f"At most {facts.parameters:,} parameters, {kinds}.",
                f"It has {facts.parameters:,} parameters, {kinds}.",
            ),
            "budget",
        ),
    ]
    if facts.multiply_adds:
        lines.append(
            f"{counted(facts).capitalize()} take at most {facts.multiply_adds:,} multiply-adds for this batch"
            f" ({2 * facts.multiply_adds:,} FLOPs, biases not counted)."
        )
    if facts.layers:
        lines.append(f"Layers: {listed(facts.layers)}.")
    if facts.own:
        lines.append(f"Blocks of its own: {listed(facts.own)}.")
    wanted = [name for name in ("train_setup", "learn") if name in reading.methods]
    if wanted:
        lines.append(f"Methods beside `forward`: {', '.join(f'`{name}`' for name in wanted)}.")
    if facts.optimizers:
        losses = f" and the loss {joined(facts.losses)}" if facts.losses else ""
        lines.append(f"`train_setup(prm)` makes the optimizer {joined(facts.optimizers)}{losses}.")
    if reading.hyperparameters:
        lines.append(f"`supported_hyperparameters()` returns {joined(reading.hyperparameters)}.")
    if subject.pretrained:
        lines.append("It loads trained weights.")
    if not vocabulary:  # with another one the trained network had other sizes
        lines += [f"Recorded result to reach: {result_line(best)}." for best in subject.reached if not is_chance(best)]
    return lines
