"""Inside the sandbox: what `benchmarks.prediction` knows of a network that was not trained.

Its graph in eval mode, traced once on the meta device, gives labels and costs. Two zero-cost proxies are computed on
small images: the scores are comparable among networks, since inputs, seeds and initial values are drawn alike.

Source: synflow: Tanaka et al. 2020, arXiv:2006.05467; naswot: Mellor et al. 2021, arXiv:2006.04647; both as zero-cost
proxies: Abdelfattah et al. 2021, arXiv:2101.08134
"""

import math
from collections.abc import Mapping
from copy import deepcopy
from time import process_time
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lemur_core.describe.cost import count_multiply_adds, count_parameters
from lemur_core.graphs.canonical import canonical
from lemur_core.graphs.identity import compute_identities, subtrees
from lemur_core.graphs.networks.spellings import unify
from lemur_core.graphs.recorder import Recorder
from lemur_core.graphs.trace import run
from lemur_core.sandbox.net import NetError, construct, execute, make_inputs, seed_all, step, stub_weights, tuples

#: Operations whose results are on or off, in the sense of naswot: rectifiers and their smooth kin.
_RECTIFIERS = frozenset({"relu", "hardtanh", "leaky_relu", "elu", "gelu", "silu", "hardswish", "mish", "prelu", "celu"})


class _Patterns(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up, for each pair of inputs of a batch, the rectified values that are on in both or off in both."""

    def __init__(self, batch: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernel = torch.zeros(batch, batch, dtype=torch.float64)

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket.__name__).rstrip("_")
        if name in _RECTIFIERS and isinstance(result, Tensor) and result.shape[:1] == self.kernel.shape[:1]:
            on = (result > 0).reshape(len(result), -1).float()
            both = on @ on.T + (1 - on) @ (1 - on).T
            self.kernel += both.double()
        return result


def measure_graph(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Trace one network in eval mode.

    Args:
        payload: `code`; `prm`; `case`, as for `lemur_core.sandbox.net.run_network`.

    Returns: `{"runs": false, "category", "error"}`, or `{"runs": true, "graph", "widths", "labels", "parameters",
        "multiply_adds", "seconds"}`: what it computes, exactly and up to widths; labels by their counts; CPU seconds.
    """
    stub_weights()
    started = process_time()
    case = payload["case"]
    seed_all(0)
    recorder = Recorder("meta")
    try:
        with recorder.recording():
            module = execute(payload["code"])
            shapes = tuples(case["in_shape"]), tuples(case["out_shape"])
            net = construct(module, *shapes, payload["prm"], recorder.device)
            with recorder.pause():
                inputs = make_inputs(case)
            with step("forward_failed"):
                graph = unify(canonical(run(recorder, net, [inputs], train=False)))
    except NetError as error:
        return error.answer()
    identities = compute_identities({"eval": graph})
    return {
        "runs": True,
        "graph": identities["graph"],
        "widths": identities["graph_widths"],
        "labels": dict(subtrees(graph)),
        "parameters": count_parameters(graph),
        "multiply_adds": count_multiply_adds(graph),
        "seconds": round(process_time() - started, 2),
    }


def measure_proxies(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Compute zero-cost proxies of one network.

    Args:
        payload: as for `measure_graph`; its images are small.

    Returns: `{"runs": false, "category", "error"}`, or `{"runs": true, "naswot", "synflow", "seconds"}`: natural
        logarithms, null where they are not finite, and CPU seconds.
    """
    stub_weights()
    started = process_time()
    case = payload["case"]
    seed_all(0)
    try:
        net = construct(execute(payload["code"]), tuples(case["in_shape"]), tuples(case["out_shape"]), payload["prm"])
        inputs = make_inputs(case)
        proxies = {"naswot": _naswot(deepcopy(net), inputs), "synflow": _synflow(net, inputs)}
    except NetError as error:
        return error.answer()
    finite = {name: value if math.isfinite(value) else None for name, value in proxies.items()}
    return {"runs": True, **finite, "seconds": round(process_time() - started, 2)}


def _naswot(net: Any, inputs: Tensor) -> float:
    """Return the logarithm of the determinant of how much the patterns of rectifiers of a batch agree."""
    patterns = _Patterns(len(inputs))
    with step("forward_failed"), torch.no_grad(), patterns:
        net.train()(inputs)
    return float(torch.linalg.slogdet(patterns.kernel).logabsdet)


def _synflow(net: Any, inputs: Tensor) -> float:
    """Return the logarithm of the sum over parameters of value times gradient, with all values made positive."""
    with step("forward_failed"):
        net.double().eval()
        with torch.no_grad():
            for value in net.state_dict().values():
                if value.is_floating_point():
                    value.abs_()
        net(torch.ones_like(inputs[:1], dtype=torch.float64)).sum().backward()
    total = sum(float((value * value.grad).sum()) for value in net.parameters() if value.grad is not None)
    return math.log(total) if total > 0 else math.nan
