"""Record composite operations as one, before torch decides how to compute them.

Attention, recurrent layers, normalization and matrix products are decomposed differently on the CPU and on the meta
device, with and without gradients, and for different memory layouts. So their Python entry points are intercepted;
all other operations are recorded in the dispatcher. What no operation shows at all is only noticed: hooks on gradients,
autocast, seeds that are set on the way.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from inspect import Parameter, Signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module

from lemur_core.graphs.graph import RANDOM


def _signature(parameters: str) -> Signature:
    """Build a signature from these parameters, some with the default None, a number or a boolean."""
    signature_parameters = []
    for parameter in parameters.split():
        name, has_default, text = parameter.partition("=")
        values: dict[str, Any] = {"None": None, "True": True, "False": False}
        default = values[text] if text in values else (float(text) if "." in text else int(text)) if text else None
        signature_parameters.append(
            Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default if has_default else Parameter.empty)
        )
    return Signature(signature_parameters)


_CONVOLUTION = _signature("input weight bias=None stride=1 padding=0 dilation=1 groups=1")
_TRANSPOSED = _signature("input weight bias=None stride=1 padding=0 output_padding=0 groups=1 dilation=1")
_STATISTICS = "input weight bias running_mean running_var"
_RECURRENT = _signature("input hx params has_biases num_layers dropout train bidirectional batch_first")
_PACKED = _signature("input batch_sizes hx params has_biases num_layers dropout train bidirectional")
_CELL = _signature("input hx w_ih w_hh b_ih=None b_hh=None")
_DROPOUT = _signature("input p train")

SIGNATURES = {
    "linear": _signature("input weight bias=None"),
    "matmul": _signature("input other"),
    "conv1d": _CONVOLUTION,
    "conv2d": _CONVOLUTION,
    "conv3d": _CONVOLUTION,
    "conv_transpose1d": _TRANSPOSED,
    "conv_transpose2d": _TRANSPOSED,
    "conv_transpose3d": _TRANSPOSED,
    "batch_norm": _signature(f"{_STATISTICS} training momentum eps cudnn_enabled"),
    "instance_norm": _signature(f"{_STATISTICS} use_input_stats momentum eps cudnn_enabled"),
    "layer_norm": _signature("input normalized_shape weight=None bias=None eps=0.00001 cudnn_enable=True"),
    "group_norm": _signature("input num_groups weight=None bias=None eps=0.00001 cudnn_enabled=True"),
    "rms_norm": _signature("input normalized_shape weight=None eps=None"),
    "scaled_dot_product_attention": _signature(
        "query key value attn_mask=None dropout_p=0.0 is_causal=False scale=None enable_gqa=False"
    ),
    "lstm": _RECURRENT,
    "gru": _RECURRENT,
    "rnn_tanh": _RECURRENT,
    "rnn_relu": _RECURRENT,
    "lstm_cell": _CELL,
    "gru_cell": _CELL,
    "rnn_tanh_cell": _CELL,
    "rnn_relu_cell": _CELL,
    "dropout": _DROPOUT,
    "feature_dropout": _DROPOUT,
    "alpha_dropout": _DROPOUT,
    "feature_alpha_dropout": _DROPOUT,
}

_METHODS = {"__matmul__": "matmul"}  # methods of a tensor, in addition to those of the same name
_IN_PLACE = {f"{name}_": name for name in RANDOM}
_OWNERS: tuple[Any, ...] = (torch, functional, torch._C._nn, torch._VF, Tensor)

#: Called with the name of an operation, a function that computes it, its arguments by name, and whether it changes its
#: input in place; returns the result of the operation.
Handler = Callable[[str, Callable[[], Any], dict[str, Any], bool], Any]


@contextmanager
def catch(handle: Handler) -> Iterator[None]:
    """Route calls of these operations through a handler while the context is open."""
    with ExitStack() as undo:
        for name, op in {**{name: name for name in SIGNATURES}, **_METHODS, **_IN_PLACE}.items():
            for owner in _OWNERS:
                original = getattr(owner, name, None)
                if original is not None and not inspect.isfunction(original):  # Python functions call a built-in
                    undo.enter_context(replace_member(owner, name, _wrap(op, original, handle, name in _IN_PLACE)))
        yield


@contextmanager
def replace_member(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace a member of a module or class while the context is open."""
    original = vars(owner).get(name)  # as stored: a class holds its class methods unbound
    setattr(owner, name, value)
    try:
        yield
    finally:
        if original is None:  # inherited
            delattr(owner, name)
        else:
            setattr(owner, name, original)


def _wrap(op: str, original: Callable[..., Any], handle: Handler, in_place: bool) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        packed = SIGNATURES[op] is _RECURRENT and len(args) > 3 and isinstance(args[3], list | tuple)
        try:
            bound = (_PACKED if packed else SIGNATURES[op]).bind(*args, **kwargs)
        except TypeError:  # an unknown or wrong signature: leave it to the dispatcher
            return original(*args, **kwargs)
        bound.apply_defaults()
        arguments = {name: value for name, value in bound.arguments.items() if not name.startswith("cudnn_enable")}
        return handle(op, lambda: original(*args, **kwargs), arguments, in_place)

    return call


#: Functions that register a hook on gradients, by owner.
_HOOKS: tuple[tuple[Any, str], ...] = (
    (Tensor, "register_post_accumulate_grad_hook"),
    (nn.Module, "register_full_backward_hook"),
    (nn.Module, "register_full_backward_pre_hook"),
    (nn.Module, "register_backward_hook"),
    (module, "register_module_backward_hook"),
    (module, "register_module_full_backward_hook"),
    (module, "register_module_full_backward_pre_hook"),
    (torch.autograd.graph, "register_multi_grad_hook"),
)


@contextmanager
def catch_effects(note: Callable[..., None]) -> Iterator[None]:
    """Report effects while the context is open.

    Args: note: takes a short description of one, and `in_forward=True` if it counts only there.
    """

    def wrap(original: Callable[..., Any], mark: str, in_forward: bool = False) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            note(mark, in_forward=in_forward)
            return original(*args, **kwargs)

        return call

    register = Tensor.register_hook

    @functools.wraps(register)
    def register_hook(tensor: Tensor, hook: Callable[[Tensor], Any]) -> Any:
        try:
            changes = hook(torch.ones_like(tensor)) is not None  # one that only looks has no effect
        except Exception:  # noqa: BLE001 (foreign code raises anything)
            changes = True
        if changes:
            note("a hook on a gradient")
        return register(tensor, hook)  # type: ignore[no-untyped-call]

    enter = torch.autocast.__enter__
    start = torch.autocast.__init__

    @functools.wraps(start)
    def remember(autocast: Any, device_type: str, dtype: Any = None, enabled: bool = True, **kwargs: Any) -> None:
        start(autocast, device_type, dtype, enabled, **kwargs)
        autocast.wanted = enabled  # torch turns it off where there is no such device

    @functools.wraps(enter)
    def enter_autocast(autocast: Any) -> Any:
        if getattr(autocast, "wanted", True):
            note("autocast")
        return enter(autocast)  # type: ignore[no-untyped-call]

    with ExitStack() as undo:
        for owner, name in _HOOKS:
            undo.enter_context(replace_member(owner, name, wrap(getattr(owner, name), "a hook on a gradient")))
        undo.enter_context(replace_member(torch, "manual_seed", wrap(torch.manual_seed, "a seed of its own", True)))
        undo.enter_context(replace_member(Tensor, "register_hook", register_hook))
        undo.enter_context(replace_member(torch.autocast, "__init__", remember))
        undo.enter_context(replace_member(torch.autocast, "__enter__", enter_autocast))
        yield
