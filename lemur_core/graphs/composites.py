"""Record composite operations as one, before torch decides how to compute them.

Attention, recurrent layers, normalization and matrix products are decomposed differently on the CPU and on the meta
device, with and without gradients, and for different memory layouts. So their Python entry points are intercepted;
all other operations are recorded in the dispatcher. Checkpoints compute without recomputation; lists by which Python
indexes become tensors. What no operation shows at all is only noticed: hooks on gradients, autocast, seeds that are set
on the way.
"""

import functools
import inspect
from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from inspect import Parameter, Signature
from typing import Any

import torch
import torch.utils.checkpoint
from numpy import ndarray
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.nn import functional
from torch.nn.modules import module
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lemur_core.graphs.graph import RANDOM
from lemur_core.graphs.memory import find_storage, tensors_in


def _signature(parameters: str) -> Signature:
    """Build a signature from these parameters, some with a literal as default."""
    signature_parameters = []
    for parameter in parameters.split():
        name, has_default, text = parameter.partition("=")
        default = literal_eval(text) if has_default else Parameter.empty
        signature_parameters.append(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default))
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
    **{f"conv{rank}d": _CONVOLUTION for rank in (1, 2, 3)},
    **{f"conv_transpose{rank}d": _TRANSPOSED for rank in (1, 2, 3)},
    "batch_norm": _signature(f"{_STATISTICS} training momentum eps cudnn_enabled"),
    "instance_norm": _signature(f"{_STATISTICS} use_input_stats momentum eps cudnn_enabled"),
    "layer_norm": _signature("input normalized_shape weight=None bias=None eps=0.00001 cudnn_enable=True"),
    "group_norm": _signature("input num_groups weight=None bias=None eps=0.00001 cudnn_enabled=True"),
    "rms_norm": _signature("input normalized_shape weight=None eps=None"),
    "scaled_dot_product_attention": _signature(
        "query key value attn_mask=None dropout_p=0.0 is_causal=False scale=None enable_gqa=False"
    ),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _RECURRENT),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), _CELL),
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"), _DROPOUT),
}

_METHODS = {"__matmul__": "matmul"}  # methods of a tensor, in addition to those of the same name
_IN_PLACE = {f"{name}_": name for name in RANDOM}
_OWNERS: tuple[Any, ...] = (torch, functional, torch._C._nn, torch._VF, Tensor)

#: Called with the name of an operation, a function that computes it, its arguments by name, and whether it changes its
#: input in place; returns the result of the operation.
Handler = Callable[[str, Callable[[], Any], dict[str, Any], bool], Any]


#: A member of a module or class to replace: its owner, its name, and what is there instead.
Replacement = tuple[Any, str, Any]


@contextmanager
def replace_members(replacements: Iterable[Replacement]) -> Iterator[None]:
    """Replace members of modules and classes while the context is open."""
    originals = []
    try:
        for owner, name, value in replacements:
            originals.append((owner, name, vars(owner).get(name)))  # as stored: a class holds its class methods unbound
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, original in reversed(originals):
            if original is None:  # inherited
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def catch(handle: Handler) -> Iterator[Replacement]:
    """Yield what routes calls of these operations through a handler."""
    for name, op in {**{name: name for name in SIGNATURES}, **_METHODS, **_IN_PLACE}.items():
        for owner in _OWNERS:
            original = getattr(owner, name, None)
            if original is not None and not inspect.isfunction(original):  # Python functions call a built-in
                yield owner, name, _wrap(op, original, handle, name in _IN_PLACE)


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


def catch_effects(note: Callable[..., None]) -> Iterator[Replacement]:
    """Yield what reports effects.

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

    for owner, name in _HOOKS:
        yield owner, name, wrap(getattr(owner, name), "a hook on a gradient")
    yield torch, "manual_seed", wrap(torch.manual_seed, "a seed of its own", True)
    yield Tensor, "register_hook", register_hook
    yield torch.autocast, "__init__", remember
    yield torch.autocast, "__enter__", enter_autocast


_CHECKPOINT = torch.utils.checkpoint.checkpoint
_CHECKPOINT_OPTIONS = frozenset(inspect.signature(_CHECKPOINT).parameters)


def compute_at_once(function: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
    """`torch.utils.checkpoint.checkpoint` without recomputation.

    The reentrant variant, the default, produces no gradient if none of its arguments requires one.
    """
    if function is None or "context_fn" in kwargs:
        return _CHECKPOINT(function, *args, **kwargs)
    reentrant = kwargs.get("use_reentrant") is not False
    stops = reentrant and not any(tensor.requires_grad for tensor in tensors_in(args))
    options = {name: value for name, value in kwargs.items() if name not in _CHECKPOINT_OPTIONS}
    with torch.set_grad_enabled(torch.is_grad_enabled() and not stops):
        return function(*args, **options)


_INDEXING = frozenset({Tensor.__getitem__, Tensor.__setitem__})


class ListIndices(TorchFunctionMode):
    """Makes tensors of the lists, ranges and arrays by which a network indexes: they are constants that it states.

    Not by another `Tensor.__getitem__`: once a class has had one, Python takes its objects for sequences.

    Args: active: whether it does so now.
    """

    def __init__(self, active: Callable[[], bool]) -> None:
        super().__init__()
        self._active = active

    def __torch_function__(self, func: Any, _types: object, args: Any = (), kwargs: Any = None) -> Any:
        if func in _INDEXING and self._active():
            items = tuple(map(_as_index, args[1])) if isinstance(args[1], tuple) else _as_index(args[1])
            args = (args[0], items, *args[2:])
        return func(*args, **(kwargs or {}))


def _as_index(item: Any) -> Any:
    if not isinstance(item, list | tuple | range | ndarray) or not len(item):
        return item
    return torch.tensor(list(item) if isinstance(item, range) else item)


def new_tensor(source: Tensor, data: Any, **kwargs: Any) -> Any:
    """`Tensor.new_tensor` by `torch.tensor`."""
    return torch.tensor(data, **({"dtype": source.dtype} | kwargs))


def normalize_on_meta(arguments: Mapping[str, Any]) -> Tensor | None:
    """Return the result of batch normalization on the meta device, which torch would split into twenty operations.

    None if it might fail: torch then raises the error.
    """
    source: Tensor = arguments["input"]
    names = ("weight", "bias", "running_mean", "running_var")
    others = [arguments[name] for name in names if arguments[name] is not None]
    if source.dim() < 2 or any(other.shape != source.shape[1:2] or other.dtype != source.dtype for other in others):
        return None
    if not arguments["training"] and arguments["running_mean"] is None:
        return None
    result = torch.empty_like(source)
    trained = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (source, *others))
    return result.requires_grad_().clone() if trained else result


class MetaResults:
    """Results on the meta device, each computed once: they are only shapes, and torch often computes them in Python.

    A layer that repeats, and the second mode, then take microseconds an operation instead of milliseconds.
    """

    def __init__(self) -> None:
        self._forms: dict[Any, tuple[type, tuple[Any, ...]]] = {}

    def compute(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Compute an operation, or build its result again from the shapes of an equal one."""
        key = (func, *map(_describe_meta, args), *((name, _describe_meta(value)) for name, value in kwargs.items()))
        fresh, in_place = _is_fresh(func), _is_in_place(func)
        try:
            kept = self._forms.get(key) if fresh or in_place else None
        except TypeError:  # something that is not a number or a text
            return func(*args, **kwargs)
        if kept is not None and in_place:
            return args[0]
        if kept is not None:
            with torch._C.DisableTorchFunction():
                tensors = [
                    None if form is None else _EMPTY(form[0], form[1], **_ON_META, dtype=form[2]) for form in kept[1]
                ]
            return tensors[0] if kept[0] is Tensor else tensors if kept[0] is list else tuple(tensors)
        result = func(*args, **kwargs)
        inputs = tensors_in([*args, *kwargs.values()])
        if in_place and result is args[0] and result.is_meta and _describe_meta(result) == key[1]:
            self._forms[key] = Tensor, ()
        if inputs and fresh and all(tensor.is_meta for tensor in inputs):
            forms = _describe_results(result, inputs)
            if forms:
                self._forms[key] = type(result), forms
        return result


class MetaShapes(TorchDispatchMode):
    """Computes what `MetaResults` can keep only once while it is active, and records nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._results = MetaResults()

    def __torch_dispatch__(
        self, func: OpOverload, _types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute one operation."""
        return self._results.compute(func, args, kwargs or {})


_EMPTY = torch.ops.aten.empty_strided.default
_ON_META = {"device": torch.device("meta")}


def _describe_meta(value: Any) -> Any:
    """Return what the result of an operation on the meta device depends on, of one argument."""
    kind = type(value)
    if kind is Tensor or kind is nn.Parameter:
        with torch._C.DisableTorchFunction():
            return (
                *(value.device, value.dtype, value.shape, value.stride(), value.storage_offset()),
                *(value.is_conj(), value.is_neg(), value.layout),
            )
    if kind is list or kind is tuple:
        return (kind, *map(_describe_meta, value))
    return [] if isinstance(value, Tensor) else (kind, value)  # unhashable: not to be kept


def _describe_results(result: Any, inputs: list[Tensor]) -> tuple[Any, ...]:
    """Return the forms of new tensors; none unless `torch.empty_strided` makes their like."""
    results = [result] if isinstance(result, Tensor) else result if type(result) in (list, tuple) else ["unknown"]
    storages = set(map(find_storage, inputs))
    forms: list[Any] = []
    for tensor in results:
        if tensor is None:
            forms.append(None)
            continue
        if type(tensor) is not Tensor or not tensor.is_meta or find_storage(tensor) in storages:
            return ()
        storages.add(find_storage(tensor))
        like = _EMPTY(tensor.shape, tensor.stride(), **_ON_META, dtype=tensor.dtype)
        if tensor.is_conj() or tensor.is_neg() or _measure(like) != _measure(tensor):
            return ()
        forms.append((tensor.shape, tensor.stride(), tensor.dtype))
    return tuple(forms)


def _measure(tensor: Tensor) -> tuple[Any, int]:
    return tensor.storage_offset(), tensor.untyped_storage().nbytes()


# --- facts of single operations ---------------------------------------------------------------------------------------

#: Operations that show values to Python: elements, or how many of them satisfy a condition.
_OF_VALUES = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


@dataclass(frozen=True, slots=True)
class RecordedParameter:
    """One parameter of an operation."""

    name: str
    is_written: bool
    is_number: bool
    default: Any


@cache
def list_parameters(func: OpOverload) -> tuple[RecordedParameter, ...]:
    """Return the parameters of an operation in order."""
    return tuple(
        RecordedParameter(
            argument.name,
            argument.alias_info is not None and argument.alias_info.is_write,
            # A number may replace a tensor.
            str(argument.real_type).removeprefix("Optional[").rstrip("]") in ("number", "Tensor"),
            argument.default_value if argument.has_default_value() else None,
        )
        for argument in func._schema.arguments
    )


def shows_values(func: OpOverload, arguments: Mapping[str, Any]) -> bool:
    """Return whether an operation gives Python elements, or a tensor whose size depends on values."""
    if _OF_VALUES.isdisjoint(func.tags):
        return False
    indices = arguments.get("indices")  # with boolean masks the size depends on values
    return indices is None or any(index.dtype in (torch.bool, torch.uint8) for index in tensors_in(indices))


@cache
def _is_fresh(func: OpOverload) -> bool:
    """Return whether the results of an operation are new tensors, which its shapes and numbers alone determine."""
    schema = func._schema
    aliases = any(item.alias_info is not None for item in (*schema.arguments, *schema.returns))
    return not aliases and torch.Tag.nondeterministic_seeded not in func.tags and _OF_VALUES.isdisjoint(func.tags)


@cache
def _is_in_place(func: OpOverload) -> bool:
    """Return whether an operation gives its first argument other values, and nothing else unless that shows."""
    aliases = [item.alias_info for item in (*func._schema.arguments, *func._schema.returns)]
    written = [alias is not None and alias.is_write for alias in aliases]
    number = len(func._schema.arguments)
    # `set_` gives it other memory.
    return func._schema.name != "aten::set_" and written == [index in (0, number) for index in range(number + 1)]


@cache
def is_view(func: OpOverload) -> bool:
    """Return whether the result of an operation shares memory with what it reads."""
    aliases = (returned.alias_info for returned in func._schema.returns)
    return any(alias is not None and not alias.is_write for alias in aliases)
