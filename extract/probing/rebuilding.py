"""Inside the sandbox: one block traced, written anew from its graph alone, and compared with the original."""

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from extract.probe import MODULE_NAME, hide
from extract.probing.attempts import AttemptError, Namespace, attempt, fill_unset, seed_all, unset_is_nan
from extract.probing.entry import compile_nothing, define, namespace
from lemur_core.graphs.expressions import RebuildError
from lemur_core.graphs.proof import Difference, compare
from lemur_core.graphs.rebuild import Rebuilt, rebuild
from lemur_core.graphs.sizes import Inputs, Shape, Sized, resized, trace_sizes
from lemur_core.graphs.trace import ROUTES
from lemur_core.sandbox.foreign import load as load_module

_SECONDS = 40.0


def rebuild_block(payload: dict[str, Any]) -> dict[str, Any]:
    """Rebuild one block and prove it.

    Args:
        payload: `code`, `name`, `folders`, `origin` as for `extract.probing.entry.climb`; `arguments` that worked;
            `companions` that they name; `header` of the file.

    Returns: `step` that it came to (`defined`, `traced`, `rebuilt`, `equal`); `cause`, why no further, in a line;
        from `rebuilt` on, `source`, `mapping`, `fixed`, `free`, `shapes`, `error`, of the values, and `bits`.
    """
    compile_nothing()
    torch.jit._state.disable()
    sys.path += payload.get("folders", [])
    hide(payload.get("origin", []))
    torch.backends.mha.set_fastpath_enabled(False)
    cls, stopped = define(payload)
    if cls is None:
        return {"step": "failed", "cause": stopped["error"]}
    names = namespace(vars(sys.modules[MODULE_NAME]), list(payload.get("companions", ())))
    block = _Block(cls, payload["arguments"], names)
    try:
        sized = _traced(block)
    except AttemptError as failure:
        return {"step": "defined", "cause": failure.message}
    first: dict[str, Any] = {}
    for tried in (sized, sized.single):
        if tried is not None:
            found = _rebuilt(block, tried, payload)
            first = first or found
            if found["step"] == "equal":
                return found | ({} if found is first else {"sizes_differ": first["cause"]})
    return first


def _rebuilt(block: "_Block", sized: Sized, payload: dict[str, Any]) -> dict[str, Any]:
    """What comes of one way to see it: at several sizes, or at its own."""
    header = payload["header"] + "\n" + _sizes(block, sized)
    try:
        made = rebuild(sized.evaluated, sized.trained, name=payload["name"], inputs=block.input_names(), header=header)
    except RebuildError as error:
        return {"step": "traced", "cause": str(error)}
    found: dict[str, Any] = {"source": made.source, "mapping": dict(made.mapping), "fixed": list(made.fixed)}
    found |= {"free": [list(one) for one in sized.free], "shapes": [list(map(list, one)) for one in sized.shapes]}
    return found | _proved(block, sized, made, payload["name"])


def _sizes(block: "_Block", sized: Sized) -> str:
    """A line that says for which inputs it is written."""
    names = block.input_names()
    free = set(sized.free)
    told = [
        f"{name} {'×'.join('n' if (number, dim) in free else str(size) for dim, size in enumerate(shape)) or 'scalar'}"
        for number, (name, shape) in enumerate(zip(names, (sized.single or sized).shapes[0], strict=True))
    ]
    return f"Inputs:  {', '.join(told)}"


class _Block:
    def __init__(self, cls: type[nn.Module], arguments: Mapping[str, Any], names: Namespace) -> None:
        self.cls, self.arguments, self.names = cls, arguments, names

    def build(self) -> nn.Module:
        init = self.arguments["init"]
        seed_all()
        args = [self.names.value(text) for text in init["args"]]
        kwargs = {name: self.names.value(text) for name, text in init["kwargs"].items()}
        seed_all()
        module = self.cls(*args, **kwargs)
        assert isinstance(module, nn.Module)
        return module

    def inputs(self) -> Inputs:
        called = self.arguments["forward"]
        seed_all()
        args = [self.names.value(text) for text in called["args"]]
        return args, {name: self.names.value(text) for name, text in called["kwargs"].items()}

    def input_names(self) -> list[str]:
        """A name for each tensor that forward is given."""
        args, kwargs = self.inputs()
        try:
            parameters = list(inspect.signature(self.cls.forward).parameters.values())[1:]
        except (ValueError, TypeError):
            parameters = []
        plain = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        names = [plain[place] if place < len(plain) else f"x{place}" for place in range(len(args))]
        found: list[str] = []
        for name, value in [*zip(names, args, strict=True), *kwargs.items()]:
            count = sum(isinstance(leaf, Tensor) for leaf in tree_leaves(value))
            found += [name] if isinstance(value, Tensor) else [f"{name}_{number}" for number in range(count)]
        return found


def _traced(block: _Block) -> Sized:
    for route in ROUTES:
        try:
            found: Sized = attempt(functools.partial(trace_sizes, block.build, block.inputs, route), _SECONDS)
            if found.trained is None and route == "meta":
                continue
            if found.evaluated.outputs:
                return found
            failure = AttemptError(ValueError("forward gives no tensor"))
        except AttemptError as error:
            failure = error
    raise failure


def _proved(block: _Block, sized: Sized, made: Rebuilt, name: str) -> dict[str, Any]:
    try:
        kind = getattr(load_module(made.source, "rebuilt"), name)
        rebuilt = kind()
        with unset_is_nan():
            original = attempt(block.build, _SECONDS)
        fill_unset(original)
        missing = _hand_over(original, rebuilt, made.mapping)
    except Exception as error:  # noqa: BLE001
        return {
            "step": "rebuilt",
            "cause": f"construction: {type(error).__name__}: {' '.join(str(error).split())[:200]}",
        }
    found: dict[str, Any] = {"outside_state": missing}
    worst, sizes = 0.0, [None, *([sized.shapes[-1], sized.further] if sized.further else [])]
    for shapes in sizes:
        for train in (False, True) if sized.trained is not None else (False,):
            where = f"in {'train' if train else 'eval'} mode{f' at {shapes}' if shapes else ''}"
            try:
                difference = _compared(block, original, rebuilt, made, shapes, train)
            except AttemptError as failure:
                return found | {"step": "rebuilt", "cause": f"{where}: {failure.message}"}
            if difference.what:
                return found | {"step": "rebuilt", "cause": f"{where}: {difference.what}"}
            worst = max(worst, difference.error)
    return found | {"step": "equal", "cause": "", "error": worst, "bits": worst == 0.0}


def _compared(
    block: _Block, original: nn.Module, rebuilt: nn.Module, made: Rebuilt, shapes: Sequence[Shape] | None, train: bool
) -> Difference:
    def inputs() -> Inputs:
        given = block.inputs()
        return resized(given, shapes) if shapes else given

    def compared(gradients: bool) -> Difference:
        one, other = copy.deepcopy(original), copy.deepcopy(rebuilt)
        action = functools.partial(
            compare, one, other, made.mapping, inputs, seed_all, train=train, gradients=gradients
        )
        found: Difference = attempt(action, _SECONDS)
        return found

    try:
        return compared(True)
    except AttemptError:
        if _runs(copy.deepcopy(original), inputs, train):
            raise
        return compared(False)  # the original gives no gradients itself


def _runs(original: nn.Module, inputs: Callable[[], Inputs], train: bool) -> bool:
    """Whether the original gives gradients at all."""

    def action() -> Difference:
        return compare(original, original, {}, inputs, seed_all, train=train)

    try:
        attempt(action, _SECONDS)
    except AttemptError:
        return False
    return True


def _hand_over(original: nn.Module, rebuilt: nn.Module, mapping: Mapping[str, str]) -> list[str]:
    """Load the original's state by the file's own function. Returns: buffers that no state dict holds."""
    state = {name: value for name, value in original.state_dict().items() if isinstance(value, Tensor)}
    missing = sorted(set(mapping.values()) - state.keys())
    state |= {name: value for name, value in original.named_buffers() if name in missing}
    state |= {name: value for name, value in original.named_parameters() if name in missing}
    renamed = getattr(sys.modules["rebuilt"], "renamed", None)
    taken = renamed(state, rebuilt) if renamed else {name: state[old] for name, old in mapping.items()}
    for name, value in rebuilt.state_dict().items():
        taken.setdefault(name, value)
    rebuilt.load_state_dict(taken)
    for name, old in mapping.items():
        if not torch.equal(rebuilt.state_dict()[name], state[old].detach()):
            raise ValueError(f"{name} does not hold the original's {old}")
    return missing
