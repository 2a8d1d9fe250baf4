"""Inside the sandbox: what a block computes, run with the arguments that the search found."""

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from extract.probe import MODULE_NAME, hide
from extract.probing.attempts import AttemptError, attempt, fill_unset, seed_all
from extract.probing.entry import compile_nothing, define, namespace
from extract.probing.forwarding import ForwardCall, evaluate
from extract.probing.inputs import flatten, has_shape
from lemur_core.graphs.graph import Graph
from lemur_core.graphs.recorder import Recorder
from lemur_core.graphs.trace import ROUTES, Traced, both_modes, initial_values, run

_SECONDS = 60.0  # of CPU, for one step; the sandbox has the last word


def trace_block(payload: dict[str, Any]) -> dict[str, Any]:
    """Trace one block in eval and in train mode.

    Args:
        payload: `code`, `name`, `folders`, `origin`, `arguments` and `companions`, as for
            `extract.probing.fidelity.sign_block`.

    Returns: `{"traced": false, "error"}`, of the last route, or `{"traced": true}` with what
        `lemur_core.graphs.trace.Traced.answer` tells, and `returns`: what forward returns, "tensor", null for anything
        else, a list of these, or an object, of which `items` holds the keys and values.
    """
    compile_nothing()
    torch.jit._state.disable()
    sys.path += payload["folders"]
    hide(payload["origin"])
    error = ""
    for route in ROUTES:
        try:
            return {"traced": True, **_trace(payload, route)}
        except AttemptError as failure:
            error = f"{failure.kind}: {failure.message}"
    return {"traced": False, "error": error}


def _trace(payload: Mapping[str, Any], route: str) -> dict[str, Any]:
    init, forward = payload["arguments"]["init"], payload["arguments"]["forward"]
    called = ForwardCall(tuple(forward["args"]), tuple(forward["kwargs"].items()), None)
    recorder = Recorder(route)
    with recorder.recording():
        seed_all()
        cls, stopped = define(dict(payload))
        if cls is None:
            raise AttemptError(RuntimeError(stopped["error"]))
        file = sys.modules[MODULE_NAME]
        names = namespace(vars(file), payload["companions"])

        def construct() -> nn.Module:
            args = [names.value(text) for text in init["args"]]
            kwargs = {name: names.value(text) for name, text in init["kwargs"].items()}
            seed_all()
            return cls(*args, **kwargs)

        module: nn.Module = attempt(construct, _SECONDS)
        returned: list[Any] = []
        module.register_forward_hook(lambda _module, _inputs, output: returned.append(_structure(output)))
        with recorder.pause():
            fill_unset(module)
            if not all(has_shape(tensor) for tensor in (*module.parameters(), *module.buffers())):
                args, kwargs = evaluate(called, names)
                attempt(partial(module.eval(), *args, **kwargs), _SECONDS)  # lazy modules take their shapes
        initial = initial_values(recorder, module)

        def go(train: bool) -> Graph:
            with recorder.pause():
                seed_all()
                args, kwargs = evaluate(called, names)
            seed_all()
            record = partial(run, recorder, module, args, kwargs, train=train, find=flatten)
            graph: Graph = attempt(record, _SECONDS)
            if not graph.outputs:
                raise AttemptError(ValueError("forward returned no tensor"))
            return graph

        graphs, error = both_modes(go, AttemptError, route=route)
    train_error = None if error is None else f"{error.kind}: {error.message}"
    return {**Traced(file, module, recorder, graphs, initial, route, train_error).answer(), "returns": returned[0]}


def _structure(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, Mapping):
        return {"items": [[str(name), _structure(item)] for name, item in value.items()]}
    return [_structure(item) for item in value] if isinstance(value, list | tuple) else None
