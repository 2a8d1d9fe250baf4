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
from typing import Any

import torch
import torch.utils.checkpoint
from numpy import ndarray
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.nn import functional
from torch.nn.modules import module
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

from lemur_core.graphs.graph import RANDOM
from lemur_core.graphs.memory import find_storage, read_facts, tensors_in

_MISSING = object()


def _signature(parameters: str) -> Mapping[str, Any]:
    """Return the defaults of these parameters, `_MISSING` if there is none."""
    split = (parameter.partition("=") for parameter in parameters.split())
    return {name: literal_eval(text) if has_default else _MISSING for name, has_default, text in split}


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
        defaults = _PACKED if packed else SIGNATURES[op]
        passed = dict(zip(defaults, args, strict=False)) | kwargs
        bound = {**defaults, **passed}
        missing = len(passed) < len(args) + len(kwargs) or any(value is _MISSING for value in bound.values())
        if missing or len(bound) > len(defaults):  # an unknown or wrong signature: leave it to the dispatcher
            return original(*args, **kwargs)
        arguments = {name: value for name, value in bound.items() if not name.startswith("cudnn_enable")}
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


class MetaDevice(DeviceContext):
    """Creates tensors on the meta device, and makes tensors of the lists, ranges and arrays by which a network indexes.

    These are constants that it states. One mode, since each takes microseconds of every call. Not by another
    `Tensor.__getitem__`: once a class has had one, Python takes its objects for sequences.

    Args: active: whether it looks at indices now.
    """

    def __init__(self, active: Callable[[], bool]) -> None:
        super().__init__(_META)
        self._active, self._creating = active, frozenset(_device_constructors())

    def __torch_function__(self, func: Any, _types: object, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._creating:
            if kwargs.get("device") is None:
                kwargs["device"] = self.device
        elif func in _INDEXING and self._active():
            items = tuple(map(_as_index, args[1])) if isinstance(args[1], tuple) else _as_index(args[1])
            args = (args[0], items, *args[2:])
        return func(*args, **kwargs)


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

    A layer that repeats, and the second mode, then take microseconds an operation instead of milliseconds. To be called
    where functions of torch go through no mode, which would take microseconds for each property of a tensor.
    """

    def __init__(self) -> None:
        self._forms: dict[Any, tuple[type, tuple[Any, ...]]] = {}

    def compute(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Compute an operation, or build its result again from the shapes of an equal one."""
        facts = read_facts(func)
        if not (facts.is_fresh or facts.is_in_place):
            return _call(func, args, kwargs)
        if facts.name in _INITIALIZERS and args[0].is_meta and args[0].is_floating_point():
            return args[0]
        key = (func, *map(_describe_meta, args), *((name, _describe_meta(value)) for name, value in kwargs.items()))
        try:
            kept = self._forms.get(key)
        except TypeError:  # something that is not a number or a text
            return _call(func, args, kwargs)
        if kept is not None:
            return args[0] if facts.is_in_place else _create(*kept)
        result = _call(func, args, kwargs)
        if facts.is_in_place and result is args[0] and result.is_meta and _describe_meta(result) == key[1]:
            self._forms[key] = Tensor, ()
        inputs = tensors_in([*args, *kwargs.values()]) if facts.is_fresh else []
        if inputs and all(tensor.is_meta for tensor in inputs):
            forms = _describe_results(result, inputs)
            if forms:
                self._forms[key] = type(result), forms
        return result


class PlainDispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that is called directly: torch would else wrap it for a compiler, which nothing here is for."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class MetaShapes(PlainDispatchMode):  # type: ignore[no-untyped-call]
    """Computes what `MetaResults` can keep only once while it is active, and records nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._results = MetaResults()

    def __torch_dispatch__(
        self, func: OpOverload, _types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute one operation."""
        with torch._C.DisableTorchFunction():
            return self._results.compute(func, args, kwargs or {})


#: Operations that always fill a tensor in place.
_INITIALIZERS = frozenset({"zero_", "uniform_", "normal_"})
_META = torch.device("meta")


def _describe_meta(value: Any) -> Any:
    """Return what the result of an operation on the meta device depends on, of one argument."""
    kind = type(value)
    if kind is Tensor or kind is nn.Parameter:
        return (
            *(value.device, value.dtype, value.shape, value.stride(), value.storage_offset()),
            *(value.is_conj(), value.is_neg(), value.layout),
        )
    if kind is list or kind is tuple:
        return (kind, *map(_describe_meta, value))
    return [] if isinstance(value, Tensor) else (kind, value)  # unhashable: not to be kept


def _call(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Compute an operation, perhaps in Python, where functions of torch go through the modes again."""
    with torch._C._EnableTorchFunction():
        return func(*args, **kwargs)


def _create(kind: type, forms: tuple[Any, ...]) -> Any:
    """Return tensors of these forms, as a value of this type."""
    tensors = [
        None if form is None else torch.empty_strided(form[0], form[1], device=_META, dtype=form[2]) for form in forms
    ]
    return tensors[0] if kind is Tensor else tensors if kind is list else tuple(tensors)


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
        like = torch.empty_strided(tensor.shape, tensor.stride(), device=_META, dtype=tensor.dtype)
        if tensor.is_conj() or tensor.is_neg() or _measure(like) != _measure(tensor):
            return ()
        forms.append((tensor.shape, tensor.stride(), tensor.dtype))
    return tuple(forms)


def _measure(tensor: Tensor) -> tuple[Any, int]:
    return tensor.storage_offset(), tensor.untyped_storage().nbytes()
