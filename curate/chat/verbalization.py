"""Facts in words, for all kinds of conversation: modules, numbers, benchmarks, results, and how a network is called."""

from curate.chat.network import Best, Child, Facts, Network
from curate.runs.contract import CAPTION_WORDS, DATASETS, TEXT_CHARACTERS
from lemur_core.files.markdown import plural

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
_MOST_FREQUENT = {  # share of the largest class in a test set where classes are not equal; a little more is no better
    "celeba-gender": 1.01 * 12_247 / 19_962,
    "mnist": 1.01 * 1_135 / 10_000,
    "svhn": 1.01 * 5_099 / 26_032,
}
_STAND_INS = {
    "img-captioning": f"A vocabulary of {CAPTION_WORDS:,} words",
    "txt-generation": f"A vocabulary of {TEXT_CHARACTERS} characters",
}

_MAX_STAGES = 40
_USES = {
    "called": "called in the forward pass; the size of its output depends on weights and inputs",
    "failed": "fails in the forward pass",
    "inside": "not called itself in the forward pass; modules in it are",
    "unused": "not called as a module in the forward pass",
    None: "whether it is called depends on weights and inputs",
}

SYSTEMS = (
    "You are an expert in PyTorch network design. Networks follow the LEMUR interface: a class `Net` that is built as"
    " `Net(in_shape, out_shape, prm, device)`, where `in_shape` is the shape of a batch.",
    "You help with PyTorch networks in the form that the LEMUR dataset uses: one file, one class `Net` with the"
    " constructor `Net(in_shape, out_shape, prm, device)`; `in_shape` includes the batch size.",
    "You write and review neural networks in PyTorch. Each network is one file whose class `Net` takes `in_shape` (with"
    " the batch size first), `out_shape`, the hyperparameters `prm` and a `device`.",
)
#: Of files without a class `Net`.
BLOCK_SYSTEMS = (
    "You are an expert in PyTorch network design, and write the building blocks of neural networks.",
    "You help with PyTorch modules: blocks, layers and the functions that they need.",
    "You write and review modules of neural networks in PyTorch. Each file is complete in itself.",
)


def task_name(task: str | None) -> str:
    """The task in words."""
    return _TASKS.get(task or "", task or "an unnamed task")


def listed(counts: dict[str, int]) -> str:
    """`Conv2d x 3, ReLU x 2`, in the order given."""
    return ", ".join(f"{name} x {number:,}" for name, number in counts.items())


def joined(names: tuple[str, ...]) -> str:
    """Names as inline code, with commas."""
    return ", ".join(f"`{name}`" for name in names)


def result_line(best: Best) -> str:
    """One recorded result, to four digits, with the trial that gave it."""
    after = "" if best.epoch is None else f" after {plural(best.epoch, 'epoch')}"
    trial = {"transform": best.transform, "batch": best.batch}
    given = " and ".join(f"{name} {value}" for name, value in trial.items() if value is not None)
    trained = f", trained with {given}" if given else ""
    number = f"{best.metric} {best.accuracy:.4g}{_SCORES.get(best.metric, '')}"
    return f"{number} on {best.dataset} ({task_name(best.task)}){after}{trained}"


def is_chance(best: Best) -> bool:
    """Whether guessing, or always the most frequent class, is about as good; not known where the classes are not."""
    images = DATASETS.get(best.dataset)
    if best.metric != "acc" or images is None:
        return False
    return best.accuracy <= max(_CHANCE / images.classes, _MOST_FREQUENT.get(best.dataset, 0))


def stand_in(network: Network) -> str:
    """What the network was built with that the dataset has otherwise, as a sentence; empty without."""
    size = _STAND_INS.get(network.task or "", "")
    return size and f"{size} stands in for that of the dataset; parameters and multiply-adds depend on its size."


def trainable(facts: Facts) -> str:
    """How many of the parameters can be trained."""
    frozen = facts.parameters - facts.trainable
    return "all trainable" if not frozen else f"{facts.trainable:,} trainable and {frozen:,} not"


def counted(facts: Facts) -> str:
    """The modules whose multiply-adds are counted."""
    more = " and the projections of attention modules" if facts.attention else ""
    return f"convolution and linear modules{more}"


def output_of(network: Network) -> str | None:
    """The shape of what the network gives; None where trained weights would give another: boxes, decoded words."""
    output = network.measured.output
    decoded = network.task == "img-captioning" and output is not None and "int64" in output
    return None if decoded or network.task == "obj-detection" else output


def call_line(network: Network) -> str:
    """How the network was built, for a request."""
    return f"It is built as `Net({network.call}, device=torch.device('cpu'))`."


def stage_lines(facts: Facts) -> list[str]:
    """The top-level modules as items of a list, in the order of their first calls."""
    lines = [f"- {_stage(child)}" for child in facts.children[:_MAX_STAGES]]
    return [*lines, f"- and {len(facts.children) - _MAX_STAGES} more"] if len(facts.children) > _MAX_STAGES else lines


def _stage(child: Child) -> str:
    """One top-level module in a line."""
    size = plural(child.parameters, "parameter") if child.parameters else "no parameters"
    use = f"gives {child.output}" if child.output is not None else _USES[child.use]
    return f"`{child.name}` ({child.kind}): {size}, {use}"
