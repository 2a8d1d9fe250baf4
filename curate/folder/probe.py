"""Code that runs inside the sandbox: run a network as LEMUR does, and count what it is made of.

Source: `FlopCounterMode`, https://docs.pytorch.org/docs/stable/generated/torch.utils.flop_counter.FlopCounterMode.html
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import FlopCounterMode

from lemur_core.files import Json
from lemur_core.sandbox.net import NetError, construct, execute, make_inputs, run_network, seed_all, step, tuples

#: The parts of `torch.nn.modules` whose classes are no layers.
_NOT_LAYERS = frozenset({"container", "loss", "module"})


def measure(payload: Json) -> Json:
    """Run a network; if it runs, count what it is made of, with two seeds.

    Args:
        payload: as for `lemur_core.sandbox.net.run_network`.

    Returns: its answer; if `runs` is true also the fields of `curate.folder.chat.NetworkFacts`. The category is
        `not_measured` if chance decides the architecture.
    """
    answer = run_network(payload)
    if not answer["runs"]:
        return answer
    torch.backends.mha.set_fastpath_enabled(False)  # its fused calls are not counted
    try:
        (facts, multiply_adds), (other, again) = (_measure_once(payload, seed) for seed in (0, 1))
    except NetError as error:
        return error.answer()
    if facts != other:
        what = f"chance decides its architecture: {facts} with one seed, {other} with another"
        return {"runs": False, "category": "not_measured", "error": what, "missing": ""}
    return answer | facts | {"multiply_adds": multiply_adds if multiply_adds == again else 0}


def _measure_once(payload: Json, seed: int) -> tuple[Json, int]:
    """Return the architecture, and the multiply-adds of one forward pass. Raises: NetError."""
    seed_all(seed)
    case = payload["case"]
    shapes = tuples(case["in_shape"]), tuples(case["out_shape"])
    net = construct(execute(payload["code"]), *shapes, payload["prm"]).eval()
    with step("not_measured"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        net(make_inputs(case))
    sizes = [(item.numel(), item.requires_grad) for item in net.parameters() if not is_lazy(item)]
    layers = Counter(type(layer).__name__ for layer in _list_layers(net, set()))
    facts = {
        "parameters": sum(size for size, _ in sizes),
        "trainable": sum(size for size, trained in sizes if trained),
        "layers": dict(sorted(layers.items(), key=lambda item: (-item[1], item[0]))),
        "methods": [name for name in ("train_setup", "learn") if callable(getattr(net, name, None))],
    }
    return facts, counter.get_total_flops() // 2


def _list_layers(module: torch.nn.Module, seen: set[Any]) -> Iterator[torch.nn.Module]:
    """Yield the layers of torch.nn inside a module, each once, without those inside of one."""
    for child in module.children():
        if child in seen:
            continue
        seen.add(child)
        package, _, part = type(child).__module__.rpartition(".")
        if package == "torch.nn.modules" and part not in _NOT_LAYERS:
            yield child
        else:
            yield from _list_layers(child, seen)
