"""One run of a module as a graph."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lemur_core.graphs.canonical import canonical
from lemur_core.graphs.graph import Graph
from lemur_core.graphs.recorder import Recorder


def run(
    recorder: Recorder, module: nn.Module, inputs: Sequence[Any], named: Mapping[str, Any] | None = None, *, train: bool
) -> Graph:
    """Run a module while a recorder is recording.

    Args:
        inputs: what `forward` is given; tensors in it are the inputs of the graph, in the order in which
            `torch.utils._pytree` finds them.
        named: what it is given by name, after these.

    Returns: what was recorded, before it is canonical. Names of parameters and buffers stand as their scopes.
    Raises: whatever the module raises.
    """
    module.train(train)
    for name, tensor in module.named_parameters():
        recorder.leaf("parameter", tensor, name, trained=tensor.requires_grad)
    buffers = [(recorder.leaf("buffer", tensor, name), tensor) for name, tensor in module.named_buffers()]
    for number, leaf in enumerate(tree_leaves([*inputs, *(named or {}).values()])):
        if isinstance(leaf, Tensor):
            live = {"trained": True} if leaf.requires_grad else {}  # its gradient counts, too
            recorder.leaf("input", leaf, "", number=number, **live)
    with recorder.scopes(module):
        output = module(*inputs, **(named or {}))
    return recorder.graph_of(output, buffers)


def trace(
    build: Callable[[], nn.Module], inputs: Callable[[], Sequence[Any]], *, device: str = "meta", train: bool = False
) -> Graph:
    """The canonical graph of one run.

    Args:
        build: makes the module; it is called while recording, so that what it computes on the way is known.
        inputs: makes what `forward` is given.
        device: "meta", where nothing is computed, or "cpu".

    Raises: whatever the module raises; on the meta device also where values are needed.
    """
    recorder = Recorder(device)
    with recorder.recording():
        module = build()
        with recorder.pause():
            given = inputs()
        return canonical(run(recorder, module, given, train=train))
