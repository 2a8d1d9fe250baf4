"""Inside the sandbox: the graph of a network in eval mode, which `benchmarks.generated` counts."""

from collections.abc import Mapping
from typing import Any

from lemur_core.graphs.canonical import canonical
from lemur_core.graphs.identity import compute_identities
from lemur_core.graphs.recorder import Recorder
from lemur_core.graphs.trace import run
from lemur_core.sandbox.net import NetError, construct, execute, make_inputs, seed_all, step, stub_weights, tuples


def measure_graph(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Trace one network in eval mode on the meta device.

    Args:
        payload: `code`; `prm`; `case`, as for `lemur_core.sandbox.net.run_network`.

    Returns: `{"runs": false, "category", "error"}`, or `{"runs": true, "graph", "widths"}`: what it computes, exactly
        and up to widths.
    """
    stub_weights()
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
                graph = canonical(run(recorder, net, [inputs], train=False))
    except NetError as error:
        return error.answer()
    identities = compute_identities({"eval": graph})
    return {"runs": True, "graph": identities["graph"], "widths": identities["graph_widths"]}
