"""`design` and its inverse `explain`: between the whole file and what was measured on it or its syntax tree says."""

from curate.chat.network import Facts, Network
from curate.chat.verbalization import (
    SYSTEMS,
    call_line,
    counted,
    is_chance,
    joined,
    listed,
    output_of,
    result_line,
    stage_lines,
    stand_in,
    task_name,
    trainable,
)
from lemur_core.files.markdown import plural
from manifests.conversations.conversation import Draft, Skipped, fence
from manifests.conversations.sampling import Sampler

_OPENINGS = (
    "Design a PyTorch network for {task} on {dataset} that meets these requirements.",
    "I need a network for {dataset} ({task}). Write the complete file. What it has to be:",
    "Write a `Net` for {task} with the dataset {dataset}. Requirements:",
    "Please implement a neural network, as one Python file, for {task} on {dataset}:",
    "Propose an architecture for {dataset}, a dataset for {task}, and give its code. Constraints:",
)
_DESIGNS = (
    "",
    "Here is the complete file:\n\n",
    "This file meets the requirements:\n\n",
    "The network as one file:\n\n",
)
_QUESTIONS = (
    "Explain this network: its stages, shapes, layers and size.",
    "What does this PyTorch file build? Describe the network and how large it is.",
    "Describe the following network for someone who has to decide whether to train it.",
    "Give me a summary of this architecture, with its parameters, multiply-adds and shapes.",
    "Go through this network stage by stage and tell me what it costs.",
)
_MAX_RESULTS = 40  # in one answer


def skip_file(network: Network) -> Skipped | None:
    """Why no answer may be the whole file of a record, or the file with a change; None where one may be."""
    if network.facts is None:
        return Skipped("does_not_run", network.fault)
    if network.reading.residue is not None:
        return Skipped("residue", f"its file holds the line: {network.reading.residue}")
    return None


def design(network: Network, sampler: Sampler) -> Draft | Skipped:
    """A request for a network of these measures; the answer is the record's file, which has them."""
    if (skipped := skip_file(network)) is not None:
        return skipped
    opening = sampler.choice(_OPENINGS, "opening").format(task=task_name(network.task), dataset=network.dataset)
    lines = [f"- {line}" for line in _requirements(network, sampler)]
    answer = sampler.choice(_DESIGNS, "answer") + fence(network.code)
    return Draft(sampler.choice(SYSTEMS, "system"), "\n".join([opening, "", *lines]), answer, "file")


def _requirements(network: Network, sampler: Sampler) -> list[str]:
    facts, reading = network.measured, network.reading
    kinds, vocabulary = trainable(facts), stand_in(network)
    lines = [f"It is built with `{network.call}`; the batch size there is {network.batch}."]
    if vocabulary:
        lines.append(vocabulary)
    if (output := output_of(network)) is not None:
        lines.append(f"For such a batch `forward` returns {output}.")
    budgets = (
        f"Parameter budget: {facts.parameters:,}, {kinds}.",
        f"At most {facts.parameters:,} parameters, {kinds}.",
        f"It has {facts.parameters:,} parameters, {kinds}.",
    )
    lines.append(sampler.choice(budgets, "budget"))
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
    if network.pretrained:
        lines.append("It loads trained weights.")
    if not vocabulary:  # with another one the trained network had other sizes
        lines += [f"Recorded result to reach: {result_line(best)}." for best in network.reached if not is_chance(best)]
    return lines


def explain(network: Network, sampler: Sampler) -> Draft | Skipped:
    """A question about the record's file, answered with facts."""
    facts = network.facts
    if facts is None:
        return Skipped("does_not_run", network.fault)
    results = [f"- {result_line(best)}" for best in network.results[:_MAX_RESULTS]]
    user = [sampler.choice(_QUESTIONS, "question"), "", fence(network.code), "", call_line(network)]
    answer = [_summary(network, facts, sampler)]
    if facts.children:
        heads = ("Stages, in the order in which they are first called:", "Its top-level modules:")
        answer += ["", sampler.choice(heads, "stages"), *stage_lines(facts)]
    answer += _layers(facts, sampler)
    answer += _size(network, facts, sampler)
    answer += _training(network, facts, sampler)
    if results:
        user += ["", "Recorded results:", *results]
        heads = ("Best recorded results:", "Results, the best on each benchmark:")
        answer += ["", sampler.choice(heads, "results"), *results]
    return Draft(sampler.choice(SYSTEMS, "system"), "\n".join(user), "\n".join(answer), "file")


def _summary(network: Network, facts: Facts, sampler: Sampler) -> str:
    children, size = plural(len(facts.children), "top-level module"), f"{facts.parameters:,} parameters"
    task = task_name(network.task)
    summaries = (
        f"This is a network for {task} with {children} and {size}.",
        f"`Net` has {children} and {size}; its record is for {task} on {network.dataset}.",
        f"The file builds a network of {size} for {task}; it consists of {children}.",
    )
    return sampler.choice(summaries, "summary")


def _layers(facts: Facts, sampler: Sampler) -> list[str]:
    lines = []
    if facts.layers:
        head = sampler.choice(("Layers", "Layers by kind", "What it is built of"), "layers")
        lines += ["", f"{head}: {listed(facts.layers)}."]
    if facts.own:
        lines.append(f"Modules of classes that the file defines: {listed(facts.own)}.")
    if facts.functions:
        lines.append(f"Activations called in one forward pass: {listed(facts.functions)}.")
    return lines


def _size(network: Network, facts: Facts, sampler: Sampler) -> list[str]:
    assert network.case is not None
    head = sampler.choice(("Size", "Cost", "Parameters and compute"), "size")
    lines = ["", f"{head}: {facts.parameters:,} parameters, {trainable(facts)}."]
    if vocabulary := stand_in(network):
        lines.append(vocabulary)
    if facts.multiply_adds:
        cost = f"{facts.multiply_adds:,} multiply-adds for a batch of {network.batch}"
        lines[1] += f" Its {counted(facts)} take {cost}."
    if (output := output_of(network)) is not None:
        lines.append(f"An input of {'x'.join(map(str, network.case.in_shape))} gives {output}.")
    return lines


def _training(network: Network, facts: Facts, sampler: Sampler) -> list[str]:
    reading = network.reading
    lines = []
    if reading.hyperparameters is not None:
        names = joined(reading.hyperparameters) or "none"
        lines.append(f"Hyperparameters that it supports: {names}.")
    optimizers, losses = facts.optimizers or reading.optimizers, facts.losses or reading.losses
    if optimizers:
        lines.append(f"{sampler.choice(('Its optimizer is', 'It trains with'), 'optimizer')} {joined(optimizers)}.")
    if losses:
        lines.append(f"Loss: {joined(losses)}.")
    if network.pretrained:
        lines.append("It starts from trained weights, so its results say little about the architecture alone.")
    return ["", *lines] if lines else []
