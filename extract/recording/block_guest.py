"""Inside the sandbox: run a block, and record how it constructs and calls the other classes of its file.

What a working model passes to its parts are true arguments: widths that fit each other, tensors of the rank that the
author means, classes and functions where a name says nothing.

    class Stage(nn.Module):                     # the file of `Stage` has `Gate`, too
        def __init__(self, dim=32):
            self.gate = Gate(dim, act=nn.SiLU)
        def forward(self, x):
            return self.gate(x, x.mean((2, 3)))

Running `Stage()` on an image records of `Gate` the constructor call `(32, act=nn.SiLU)` and the forward call
`(torch.randn((2, 32, 16, 16)), torch.randn((2, 32)))`, as expressions.
"""

import functools
from typing import Any

import torch

from extract.arguments.target import Target, prepare
from extract.arguments.trials import attempt
from extract.recording.messages import BlockRecording
from extract.recording.recorder import ArgumentRecorder

_SECONDS = 30.0  # of CPU time


def record_calls(request: BlockRecording) -> dict[str, list[dict[str, Any]]]:
    """Return the constructor and forward calls of each class, in the order of the calls.

    Raises: AttemptError if the block does not run.
    """
    prepare(request.folders, request.origin)
    target = Target(request)
    recorder = ArgumentRecorder(vars(target.file), frozenset(request.classes))
    with recorder:
        module = target.build()
        module.eval()
        args, kwargs = target.inputs()
        with torch.no_grad():
            attempt(functools.partial(module, *args, **kwargs), _SECONDS)
    return recorder.calls
