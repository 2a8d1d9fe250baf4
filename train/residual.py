"""What is asked of a residual block: an identity shortcut, nothing after the addition, a child that ends the branch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from train.trial import BATCH, SQUARES, Make, Misfit, signed, stirred, told, trial

MOST_CHILDREN = 48  # of a block, whose outputs are zeroed one after another
_RATE = 0.2

_AFTER_ADDITION: dict[str, Callable[[Tensor], Tensor]] = {
    "ReLU": functional.relu,
    "LeakyReLU, slope 0.1": lambda x: functional.leaky_relu(x, 0.1),
    "LeakyReLU": functional.leaky_relu,
    "ReLU6": functional.relu6,
    "GELU": functional.gelu,
    "SiLU": functional.silu,
    "Mish": functional.mish,
    "Hardswish": functional.hardswish,
}


def check_residual(make: Make, values: Mapping[str, int]) -> dict[str, Any]:
    """Keeps the shape, and one child ends its branch: zeros in place of that child's output make it the identity.

    So the shortcut is the identity and nothing follows the addition: the pre-activation form.
    Source: He et al. 2016, arXiv:1603.05027
    """
    channels = values["channels"]
    for height, width in SQUARES:
        trial(make, (BATCH, channels, height, width))
    if "rate" in getattr(make, "names", ()):
        trial(lambda: make(rate=_RATE), (BATCH, channels, *SQUARES[0]))
    module = stirred(make())
    inputs = signed((2, channels, 8, 8))
    ran = _children_run(module, inputs)
    after: str | None = None
    for name in reversed(ran[-MOST_CHILDREN:]):
        output = _without(module, [name], inputs)
        if output is not None and torch.equal(output, inputs):
            _attachable(make(), name, inputs)
            return {"branch_end": name, "empty_end": type(module.get_submodule(name)) is nn.Identity}
        if output is not None and after is None:
            after = next((kind for kind, act in _AFTER_ADDITION.items() if torch.equal(output, act(inputs))), None)
    if after:
        raise Misfit(3, f"an activation after the addition ({after}): the shortcut is not the identity")
    silent = _without(module, ran, inputs)
    if silent is not None and torch.equal(silent, inputs):
        raise Misfit(3, "no child ends the branch: it takes zeros of several at once to make the block the identity")
    raise Misfit(3, "keeps no identity: its input does not come back when zeros stand for the outputs of its children")


def _children_run(module: nn.Module, inputs: Tensor) -> list[str]:
    """Names of the children that ran once and gave a tensor of the input's shape, in the order in which they ended."""
    ended: list[str] = []
    fits: dict[str, bool] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _arguments: object, output: object) -> None:
            ended.append(name)
            fits[name] = isinstance(output, Tensor) and output.shape == inputs.shape

        return hook

    hooks = [child.register_forward_hook(note(name)) for name, child in module.named_modules() if name]
    try:
        with torch.no_grad():
            module(inputs.clone())
    finally:
        for hook in hooks:
            hook.remove()
    return [name for name in ended if fits[name] and ended.count(name) == 1]


def _without(module: nn.Module, names: Sequence[str], inputs: Tensor) -> Tensor | None:
    """The output with zeros in place of those of some children; None if it cannot run so."""
    hooks = [module.get_submodule(name).register_forward_hook(_zeros) for name in names]
    try:
        with torch.no_grad():
            output = module(inputs.clone())
    except Exception:  # noqa: BLE001 (foreign code: these children do not end the branch)
        return None
    finally:
        for hook in hooks:
            hook.remove()
    return output if isinstance(output, Tensor) else None


def _zeros(_module: nn.Module, _arguments: object, output: Tensor) -> Tensor:
    return torch.zeros_like(output)


def _attachable(module: nn.Module, name: str, inputs: Tensor) -> None:
    """Something can follow the end of the branch. Raises: Misfit."""
    module.eval()
    end = module.get_submodule(name)
    with torch.no_grad():
        before = module(inputs.clone())
        module.set_submodule(name, nn.Sequential(end, nn.Identity()))
        try:
            same = torch.equal(module(inputs.clone()), before)
        except Exception as error:
            raise Misfit(3, f"nothing can follow its branch's end {name}: {told(error)}") from error
    if not same:
        raise Misfit(3, f"nothing can follow its branch's end {name}: the output changes")
