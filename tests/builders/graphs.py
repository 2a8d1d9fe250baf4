"""The canonical graph of a module that is built here, without the sandbox."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from lemur_core.graphs.canonical import canonical
from lemur_core.graphs.graph import Graph
from lemur_core.graphs.recorder import Recorder
from lemur_core.graphs.trace import run


def trace(
    build: Callable[[], nn.Module], inputs: Callable[[], Sequence[Any]], *, device: str = "meta", train: bool = False
) -> Graph:
    """Return the canonical graph of one run.

    Args:
        build: builds the module; it is called while recording, so that its computations are known.
        inputs: builds the arguments of `forward`.
        device: "meta", where no values are computed, or "cpu".

    Raises: whatever the module raises; on the meta device also where values are needed.
    """
    recorder = Recorder(device)
    with recorder.recording():
        module = build()
        with recorder.pause():
            arguments = inputs()
        return canonical(run(recorder, module, arguments, train=train))
