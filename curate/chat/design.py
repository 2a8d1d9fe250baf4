"""`design`: from measurements of a network to its file; and facts in words, for both kinds."""

from curate.chat.network import BestResult, ChatNetwork, NetworkFacts
from curate.compute.runs import CAPTION_WORDS, DATASETS, TEXT_CHARACTERS
from lemur_core.files.markdown import plural
from manifests.conversations.conversation import Draft, Sampler, Skipped, fence

_TASKS = {
    "img-classification": "image classification",
    "img-segmentation": "image segmentation",
    "img-captioning": "image captioning",
    "obj-detection": "object detection",
    "txt-generation": "text generation",
    "txt-image": "text-to-image generation",
}

_SCORES = {"ppl": " (a score from 0 to 1 that LEMUR makes of the perplexity, higher is better)"}
_CHANCE = 1.2  # times the share of one class among equal ones
_MOST_FREQUENT = {  # share of the largest class in an unbalanced test set; slightly above is guessing too
    "celeba-gender": 1.01 * 12_247 / 19_962,
    "mnist": 1.01 * 1_135 / 10_000,
    "svhn": 1.01 * 5_099 / 26_032,
}
_PLACEHOLDERS = {
    "img-captioning": f"A vocabulary of {CAPTION_WORDS:,} words",
    "txt-generation": f"A vocabulary of {TEXT_CHARACTERS} characters",
}

SYSTEMS = (
    "You are an expert in PyTorch network design. Networks follow the LEMUR interface: a class `Net` that is built as"
    " `Net(in_shape, out_shape, prm, device)`, where `in_shape` is the shape of a batch.",
    "You help with PyTorch networks in the form that the LEMUR dataset uses: one file, one class `Net` with the"
    " constructor `Net(in_shape, out_shape, prm, device)`; `in_shape` includes the batch size.",
    "You write and review neural networks in PyTorch. Each network is one file whose class `Net` takes `in_shape` (with"
    " the batch size first), `out_shape`, the hyperparameters `prm` and a `device`.",
)


def task_name(task: str | None) -> str:
    """Return the task in words."""
    return _TASKS.get(task or "", task or "an unnamed task")


def round_count(number: int) -> str:
    """Return a count as people would say it: `about 11.7 million`, `about 5,500`; exact below 1,000."""
    for size, word in ((10**9, "billion"), (10**6, "million")):
        if number >= size:
            return f"about {number / size:.3g} {word}"
    if number >= 10**3:
        return f"about {round(number, -3 if number >= 10**4 else -2):,}"
    return f"{number:,}"


def list_counts(counts: dict[str, int]) -> str:
    """Format counts as `Conv2d x 3, ReLU x 2`, in input order."""
    return ", ".join(f"{name} x {number:,}" for name, number in counts.items())


def join_names(names: tuple[str, ...]) -> str:
    """Format names as inline code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def result_line(best: BestResult) -> str:
    """Describe one recorded result, to three digits, with its trial."""
    after = "" if best.epoch is None else f" after {plural(best.epoch, 'epoch')}"
    trial = {"transform": best.transform, "batch": best.batch}
    settings = " and ".join(f"{name} {value}" for name, value in trial.items() if value is not None)
    trained = f", trained with {settings}" if settings else ""
    number = f"{best.metric} {best.accuracy:.3g}{_SCORES.get(best.metric, '')}"
    return f"{number} on {best.dataset} ({task_name(best.task)}){after}{trained}"


def is_chance(best: BestResult) -> bool:
    """Return True if guessing, or always the most frequent class, is known to be about as good."""
    images = DATASETS.get(best.dataset)
    if best.metric != "acc" or images is None:
        return False
    return best.accuracy <= max(_CHANCE / images.classes, _MOST_FREQUENT.get(best.dataset, 0))


def describe_placeholder(network: ChatNetwork) -> str:
    """Describe the network's arguments that differ from the dataset's defaults, as a sentence; empty if none do."""
    size = _PLACEHOLDERS.get(network.task or "", "")
    return size and f"{size} stands in for that of the dataset; parameters and multiply-adds depend on its size."


def describe_counted(facts: NetworkFacts) -> str:
    """Name the modules whose multiply-adds are counted."""
    more = " and the projections of attention modules" if facts.attention else ""
    return f"convolution and linear modules{more}"


def describe_output(network: ChatNetwork) -> str | None:
    """Return the network's output shape; None if trained weights would change it: boxes, decoded words."""
    output = network.measurements.output
    decoded = network.task == "img-captioning" and output is not None and "int64" in output
    return None if decoded or network.task == "obj-detection" else output


def call_line(network: ChatNetwork) -> str:
    """Describe how the network was built, for a request."""
    return f"It is built as `Net({network.call}, device=torch.device('cpu'))`."


_OPENINGS = (
    "Design a PyTorch network for {task} on {dataset} that meets these requirements.",
    "I need a network for {dataset} ({task}). Write the complete file. What it has to be:",
    "Write a `Net` for {task} with the dataset {dataset}. Requirements:",
    "Please implement a neural network, as one Python file, for {task} on {dataset}:",
    "Propose an architecture for {dataset}, a dataset for {task}, and give its code. Constraints:",
)
_FREE = ("What is not stated here is up to you.", "Everything else is your choice.", "The rest is yours to decide.")
_DESIGNS = (
    "",
    "Here is the complete file:\n\n",
    "This file meets the requirements:\n\n",
    "The network as one file:\n\n",
)


def skip_file(network: ChatNetwork) -> Skipped | None:
    """Return why no answer may be a record's file; None if one may be."""
    return Skipped("does_not_run", network.fault) if network.facts is None else None


def design(network: ChatNetwork, sampler: Sampler) -> Draft | Skipped:
    """Draft a request for a network with these measurements; the answer is the record's file."""
    if (skipped := skip_file(network)) is not None:
        return skipped
    opening = sampler.choice(_OPENINGS, "opening").format(task=task_name(network.task), dataset=network.dataset)
    lines = [f"- {line}" for line in _requirements(network, sampler)]
    answer = sampler.choice(_DESIGNS, "answer") + fence(network.code)
    user = "\n".join([opening, "", *lines, "", sampler.choice(_FREE, "free")])
    return Draft(sampler.choice(SYSTEMS, "system"), user, answer, "file")


def _requirements(network: ChatNetwork, sampler: Sampler) -> list[str]:
    facts, reading = network.measurements, network.reading
    kinds = "all trainable" if facts.trainable == facts.parameters else f"{round_count(facts.trainable)} trainable"
    vocabulary = describe_placeholder(network)
    lines = [f"It is built with `{network.call}`; the batch size there is {network.batch}."]
    if vocabulary:
        lines.append(vocabulary)
    if (output := describe_output(network)) is not None:
        lines.append(f"For such a batch `forward` returns {output}.")
    size = f"{round_count(facts.parameters)} parameters"
    budgets = (f"Parameter budget: {size}, {kinds}.", f"It has {size}, {kinds}.")
    lines.append(sampler.choice(budgets, "budget"))
    if facts.multiply_adds:
        cost = f"{round_count(facts.multiply_adds)} multiply-adds"
        lines.append(f"{describe_counted(facts).capitalize()} take {cost} for this batch.")
    if facts.layers:
        lines.append(f"Layers: {list_counts(facts.layers)}.")
    if facts.own:
        lines.append(f"Blocks of its own: {list_counts(facts.own)}.")
    wanted = [name for name in ("train_setup", "learn") if name in reading.methods]
    if wanted:
        lines.append(f"Methods besides `forward`: {', '.join(f'`{name}`' for name in wanted)}.")
    if facts.optimizers:
        losses = f" and the loss {join_names(facts.losses)}" if facts.losses else ""
        lines.append(f"`train_setup(prm)` makes the optimizer {join_names(facts.optimizers)}{losses}.")
    if reading.hyperparameters:
        lines.append(f"`supported_hyperparameters()` returns {join_names(reading.hyperparameters)}.")
    if network.pretrained:
        lines.append("It loads trained weights.")
    if not vocabulary:  # another vocabulary would give the trained network other sizes
        lines += [f"Recorded result to reach: {result_line(best)}." for best in network.reached if not is_chance(best)]
    return lines
