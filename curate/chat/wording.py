"""Words that all kinds share: numbers, benchmarks, results, and how a network is called."""

from curate.chat.facts import Facts
from curate.chat.subject import Best, Subject
from manifests.markdown import plural

_TASKS = {
    "img-classification": "image classification",
    "img-segmentation": "image segmentation",
    "img-captioning": "image captioning",
    "obj-detection": "object detection",
    "txt-generation": "text generation",
    "txt-image": "text-to-image generation",
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
    """The task in words."""
    return _TASKS.get(task or "", task or "an unnamed task")


def listed(counts: dict[str, int]) -> str:
    """`Conv2d x 3, ReLU x 2`, in the order given."""
    return ", ".join(f"{name} x {number:,}" for name, number in counts.items())


def joined(names: tuple[str, ...]) -> str:
    """Names as inline code, with commas."""
    return ", ".join(f"`{name}`" for name in names)


def result_line(best: Best) -> str:
    """One recorded result, its number as it was recorded."""
    after = "" if best.epoch is None else f" after {plural(best.epoch, 'epoch')}"
    return f"{best.metric} {best.accuracy!r} on {best.dataset} ({task_name(best.task)}){after}"


def trainable(facts: Facts) -> str:
    """How many of the parameters can be trained."""
    frozen = facts.parameters - facts.trainable
    return "all trainable" if not frozen else f"{facts.trainable:,} trainable and {frozen:,} not"


def counted(facts: Facts) -> str:
    """The modules whose multiply-adds are counted."""
    more = " and the projections of attention modules" if facts.attention else ""
    return f"convolution and linear modules{more}"


def batch_of(subject: Subject) -> int:
    """Samples in the batch that the network was run on."""
    assert subject.case is not None
    return subject.case.in_shape[0]


def call_line(subject: Subject) -> str:
    """How the network was built, for a request."""
    return f"It is built as `Net({subject.call}, device=torch.device('cpu'))`."
