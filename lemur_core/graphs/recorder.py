"""Record what torch computes, operation by operation.

A dispatch mode below autograd sees every operation; those of `composites` are intercepted above it. Two more things are
recorded. A value that a gradient could reach, but that is used where none is recorded (`detach`, `.data`, `no_grad`),
gets a `stop_gradient`. A `torch.autograd.Function` becomes a `custom_gradient` of the result of its forward and the
result of its own backward for a `cotangent`, which represents any gradient.

What no operation shows is noted in `marks`: hooks on gradients, autocast, generators of the network's own, tensors that
share memory in a way that strides alone tell. On the meta device, small tensors that depend on no input and no
parameter are also computed on the CPU, so that Python can read them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from math import inf, prod
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map

from lemur_core.graphs.composites import (
    MetaDevice,
    MetaResults,
    PlainDispatchMode,
    Replacement,
    catch,
    catch_effects,
    compute_at_once,
    new_tensor,
    normalize_on_meta,
    replace_members,
)
from lemur_core.graphs.graph import CONSTRUCTOR, RANDOM, Argument, Graph, Node, Ref, TensorType
from lemur_core.graphs.memory import (
    Arguments,
    Memory,
    describe_constant,
    describe_strides,
    describe_type,
    read_facts,
    shows_values,
    tensors_in,
)

#: Arguments that say how and where an operation is computed, not what.
_IGNORED = frozenset(
    {"layout", "device", "pin_memory", "memory_format", "generator", "non_blocking", "implicit", "copy"}
)
#: In-place operations that do not read the previous value.
_FILLS = frozenset({"zero", "fill"})
_DRAWS = frozenset({"uniform", "normal", "bernoulli", "exponential", "geometric", "cauchy", "log_normal", "random"})
_COPY = torch.ops.aten._to_copy.default
#: The largest tensor without inputs and parameters whose values are computed on the meta device, too.
_KNOWN_ELEMENTS = 4096
#: Operations whose results have no values of their own.
_UNSET = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"})
_ITEM = torch.ops.aten._local_scalar_dense.default
_DETACH = torch.ops.aten.detach.default


class TooManyOperationsError(BaseException):
    """More operations than a recorder takes: no network is to catch it."""


class Recorder(PlainDispatchMode):  # type: ignore[no-untyped-call]
    """Records inside `recording()`; the values of tensors remain known from one run to the next.

    Args:
        device: "meta": tensors have shapes and no values; "cpu".
        most: how many operations a run may take; one more ends it with a TooManyOperationsError.
    """

    def __init__(self, device: str = "meta", most: float = inf) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = torch.device(device)
        self._most, self._end = most, inf  # of a run, and the number of nodes at which it ends
        self.nodes: list[Node] = []
        self.reads_values = False  # whether Python saw a value: another value might lead to another branch
        self.reads: list[Ref] = []  # the values that Python saw
        self.marks: set[str] = set()  # what the nodes do not say about the computation
        self.log: list[tuple[Any, ...]] | None = None  # of the operations so far, if it is wanted
        self._known: dict[Ref, Tensor] = {}  # on the meta device: values that depend on no input and no parameter
        self._results = MetaResults() if device == "meta" else None
        self._light = False
        self._memory = Memory(self._append, self.nodes)
        self._live: set[Ref] = set()  # values that a gradient could reach
        self._stopped: dict[Ref, Ref] = {}
        self._scopes: list[tuple[str, type]] = []
        self._outermost = CONSTRUCTOR  # the scope outside of all modules: until one runs, it is built
        self._paused = 0
        self._in_function = 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what torch computes, under settings for which all routes agree.

        Gradients are recorded, the inference fast paths are off, attention is plain arithmetic.
        """
        fastpath = torch.backends.mha.get_fastpath_enabled()
        with ExitStack() as undo:
            undo.callback(torch.backends.mha.set_fastpath_enabled, fastpath)
            torch.backends.mha.set_fastpath_enabled(False)
            undo.enter_context(torch.enable_grad())
            undo.enter_context(sdpa_kernel(SDPBackend.MATH))
            undo.enter_context(replace_members(self._replacements()))
            on_meta = self.device.type == "meta"
            undo.enter_context(MetaDevice(lambda: not self._paused) if on_meta else self.device)
            undo.enter_context(self)
            yield

    def _replacements(self) -> Iterator[Replacement]:
        yield from catch(self._composite)
        yield torch.autograd.Function, "apply", self._wrap_apply(torch.autograd.Function.__dict__["apply"])
        for name in ("tolist", "numpy", "__array__"):
            yield Tensor, name, self._wrap_read(getattr(Tensor, name))
        yield torch.utils.checkpoint, "checkpoint", compute_at_once
        yield from catch_effects(self.note)
        if self.device.type == "meta":
            for name in ("tensor", "as_tensor", "asarray", "from_numpy"):
                yield torch, name, self._wrap_constructor(getattr(torch, name))
            yield Tensor, "new_tensor", new_tensor

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Record nothing while the context is open."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def note(self, mark: str, *, in_forward: bool = False) -> None:
        """Note something that the nodes do not say about the computation.

        Args: in_forward: it counts only while a module runs forward.
        """
        if not self._paused and (self._scopes or not in_forward):
            self.marks.add(mark)

    @contextmanager
    def logging(self, *, light: bool = False) -> Iterator[list[tuple[Any, ...]]]:
        """List the operations with their numbers while the context is open; a light run is not recorded otherwise."""
        self.log, self._light = [], light
        try:
            yield self.log
        finally:
            self.log, self._light = None, False

    @contextmanager
    def scopes(self, net: nn.Module) -> Iterator[None]:
        """Annotate each operation with the module of this network in which it runs."""
        names = {id(module): name for name, module in net.named_modules()}
        self._end = len(self.nodes) + self._most
        self._outermost = ""

        def enter(module: nn.Module, _inputs: object) -> None:
            self._scopes.append((names.get(id(module), self._scope), type(module)))

        def leave(_module: nn.Module, _inputs: object, _output: object) -> None:
            self._scopes.pop()

        before = nn.modules.module.register_module_forward_pre_hook(enter)
        after = nn.modules.module.register_module_forward_hook(leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()
            self._scopes.clear()

    @property
    def _scope(self) -> str:
        return self._scopes[-1][0] if self._scopes else self._outermost

    def leaf(self, op: str, tensor: Tensor, name: str = "", **notes: Argument) -> Ref:
        """Register a tensor as a leaf, whatever computed it before; its name becomes its scope."""
        (ref,) = self._append(op, tuple(notes.items()), (describe_type(tensor),), name)
        self._memory.hold(tensor, ref)
        if op in ("parameter", "input") and tensor.requires_grad:
            self._live.add(ref)
        return ref

    def value_of(self, tensor: Tensor) -> Ref:
        """Return the current value of a tensor."""
        self._paused += 1  # a tensor that is met for the first time is looked at, and the network does not do that
        try:
            return self._memory.read(tensor)
        finally:
            self._paused -= 1

    def forget(self) -> None:
        """Free the tensors of a run that has ended: two modes of one network need not fit into memory together."""
        self._memory.forget()

    def graph_of(self, results: Sequence[Tensor], buffers: Sequence[tuple[Ref, Tensor]], reads: Sequence[Ref]) -> Graph:
        """Return the graph of results, of the buffers whose values have changed, and of values that Python read."""
        outputs = tuple(map(self._read, results))
        writes = tuple((before, value) for before, tensor in buffers if (value := self.value_of(tensor)) != before)
        return Graph(tuple(self.nodes), outputs, writes, tuple(reads))

    def __torch_dispatch__(
        self, func: OpOverload, _types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Record one operation and compute it."""
        with torch._C.DisableTorchFunction():  # a mode would take microseconds for each property of a tensor
            compute = self._compute if self._paused else self._record
            return compute(func, args, dict(kwargs or {}))

    def _record(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        facts = read_facts(func)
        parameters = facts.parameters
        if self.log is not None:
            # A number that an operation computes with is not a size: it may not grow with the batch.
            pairs = zip(parameters, args, strict=False)
            numbers = [float(value) if p.is_number and type(value) is int else value for p, value in pairs]
            if func is not _DETACH:  # autograd itself calls it, not at the same places in each run
                self.log.append((func, *_numbers_in([*numbers, *kwargs.values()])))
            if self._light:
                return self._compute(func, args, kwargs)
        bound = {
            parameter.name: args[index] if index < len(args) else kwargs.get(parameter.name, parameter.default)
            for index, parameter in enumerate(parameters)
        }
        tensors = tensors_in(list(bound.values()))
        if any(map(is_lazy, tensors)):
            return self._compute(func, args, kwargs)  # it has no shape yet
        integers = [p.name for p in parameters if p.is_number and type(bound[p.name]) is int]
        if integers and any(tensor.is_floating_point() for tensor in tensors):  # a number as the operation receives it
            bound |= {name: float(bound[name]) for name in integers}
        op = facts.name
        arguments = {name: self._argument(value) for name, value in bound.items() if name not in _IGNORED}
        targets = {name: bound[name] for name in facts.written}
        if bound.get("generator") is not None:
            self.note("a generator of its own", in_forward=True)
        if op == "as_strided":
            arguments["source"] = describe_strides(args[0])
            if args[0].untyped_storage().nbytes() != args[0].numel() * args[0].element_size():
                self.note("a view by strides of memory that it does not show")
        known = self._compute_known(func, args, kwargs, tensors) if self._results else None
        if func is _ITEM and isinstance(known, Tensor):
            return known.item()
        if shows_values(func, bound):
            self.reads_values = True
            self.reads += [self.value_of(tensor) for tensor in tensors]
        result = self._compute(func, args, kwargs)
        results = tensors_in(result)
        if op == "set_" or not results:
            return result
        if targets:
            self._write(op, arguments, targets, results)
        elif facts.is_view and isinstance(args[0], Tensor):
            self._memory.look(op, tuple(arguments.items()), args[0], results)
        else:
            for tensor, ref in zip(results, self._add(op, arguments, results, facts.is_random), strict=True):
                self._memory.hold(tensor, ref)
        for tensor, value in zip(results, tensors_in(known), strict=False):
            self._known[self.value_of(tensor)] = value
        return result

    def _compute_known(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Sequence[Tensor]
    ) -> Any:
        """Compute small values that depend on no input and no parameter; None for all others."""
        facts = read_facts(func)
        if facts.is_random or facts.name in _UNSET:
            return None
        values: dict[int, Tensor] = {}
        for tensor in tensors:
            value = self._known.get(self.value_of(tensor))
            if value is None:
                return None
            # An in-place operation must not change the value before it.
            values[id(tensor)] = value.clone() if func._schema.is_mutable else value
        size = args[0] if args and not values and isinstance(args[0], list | tuple) else ()
        if prod(item for item in size if isinstance(item, int)) > _KNOWN_ELEMENTS:
            return None

        def take(item: Any) -> Any:
            return values[id(item)] if isinstance(item, Tensor) else item

        options = {name: take(value) for name, value in kwargs.items()}
        if options.get("device") is not None:
            options["device"] = torch.device("cpu")
        try:
            with self.pause(), torch.no_grad():
                result = func(*tree_map(take, args), **options)
        except (NotImplementedError, RuntimeError, TypeError, IndexError):
            return None
        if func is _ITEM:
            return next(iter(values.values()))
        small = all(tensor.numel() <= _KNOWN_ELEMENTS and not tensor.is_meta for tensor in tensors_in(result))
        return result if small else None

    def _compute(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute an operation; a tensor without values does not get any when the network moves it to the CPU."""
        inputs = partial(tensors_in, [*args, *kwargs.values()])
        try:
            result = self._results.compute(func, args, kwargs) if self._results else func(*args, **kwargs)
        except (NotImplementedError, RuntimeError):
            if not any(tensor.is_meta for tensor in inputs()):
                raise
            if func is _COPY and kwargs.get("device") == torch.device("cpu"):
                return func(*args, **(kwargs | {"device": self.device}))
            if all(tensor.is_meta for tensor in inputs()) or read_facts(func).written:
                raise
            return func(*tree_map(_without_values, args), **tree_map(_without_values, kwargs))
        if isinstance(result, Tensor) and not result.is_meta and any(tensor.is_meta for tensor in inputs()):
            return _without_values(result)  # the values were never computed
        return result

    def _write(
        self, op: str, arguments: dict[str, Argument], targets: dict[str, Any], results: Sequence[Tensor]
    ) -> None:
        """Record an in-place operation, or one with `out=`: its targets get new values."""
        written = [tensor for target in targets.values() for tensor in tensors_in(target)]
        created = [tensor for tensor in results if not any(tensor is other for other in written)]
        # `add_` is `add` in place, but `__iand__` is a name of its own.
        function = op if op.startswith("__") else op.rstrip("_")
        fresh = function in _FILLS | _DRAWS
        if fresh or function == op:  # the previous value is not read
            arguments = {name: value for name, value in arguments.items() if name not in targets}
        if fresh:
            arguments = {"size": describe_type(written[0]).shape} | arguments
        refs = self._add(function, arguments, [*created, *written], function in _DRAWS)
        for tensor, ref in zip(created, refs, strict=False):
            self._memory.hold(tensor, ref)
        for tensor, ref in zip(written, refs[len(created) :], strict=True):
            self._memory.write(tensor, ref)

    def _composite(self, op: str, compute: Callable[[], Any], bound: dict[str, Any], in_place: bool) -> Any:
        """Record one operation of `composites` and compute it."""
        if self._paused or not any(isinstance(value, Tensor) for value in bound.values()):
            return compute()
        if self.log is not None:
            self.log.append((op, *_numbers_in(list(bound.values()))))
        arguments = {} if self._light else {name: self._argument(value) for name, value in bound.items()}
        skips_compute = op == "batch_norm" and self.device.type == "meta" and not self._in_function
        with self.pause():
            result = normalize_on_meta(bound) if skips_compute else None
            result = compute() if result is None else result
        if self._light:
            return result
        results = tensors_in(result)
        trains = bound.get("training") or bound.get("use_input_stats")
        updated = tensors_in([bound.get("running_mean"), bound.get("running_var")]) if trains else []
        random = bool(bound.get("dropout_p") or (op in RANDOM and bound["train"]))
        refs = self._add(op, arguments, [*results, *updated], random)
        for tensor, ref in zip([*results, *updated], refs, strict=True):
            if in_place or any(tensor is other for other in updated):
                self._memory.write(tensor, ref)
            else:
                self._memory.hold(tensor, ref)
        return result

    def _argument(self, value: Any) -> Argument:
        if isinstance(value, Tensor):
            return self._read(value)
        if isinstance(value, list | tuple):
            return tuple(self._argument(item) for item in value)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        return str(value).removeprefix("torch.")

    def _read(self, tensor: Tensor) -> Ref:
        """Return the value of a tensor at its use, wrapped in `stop_gradient` where a gradient ends."""
        ref = self.value_of(tensor)
        continues = tensor.requires_grad or ref not in self._live or not tensor.dtype.is_floating_point
        if continues or self._in_function or not torch.is_grad_enabled():  # without gradients: where the result is used
            return ref
        if ref not in self._stopped:
            (self._stopped[ref],) = self._append("stop_gradient", (("input", ref),), (describe_type(tensor),))
            self._live.discard(self._stopped[ref])
        return self._stopped[ref]

    def _add(self, op: str, arguments: dict[str, Argument], outputs: Sequence[Tensor], random: bool) -> list[Ref]:
        with_draw = arguments | ({"draw": len(self.nodes)} if random else {})
        return self._append(op, tuple(with_draw.items()), [describe_type(tensor) for tensor in outputs])

    def _append(
        self, op: str, arguments: Arguments, outputs: Sequence[TensorType], scope: str | None = None
    ) -> list[Ref]:
        if len(self.nodes) >= self._end:
            raise TooManyOperationsError
        own = self._scope if scope is None else scope
        node = Node(op, arguments, tuple(outputs), own, tuple([kind for _, kind in self._scopes]))
        self.nodes.append(node)
        refs = [Ref(len(self.nodes) - 1, output) for output in range(len(outputs))]
        if not self._live.isdisjoint(node.inputs):
            self._live.update(ref for ref, kind in zip(refs, outputs, strict=True) if "float" in kind.dtype)
        return refs

    def _wrap_apply(self, original: Any) -> Any:
        def apply(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
            self._scopes.append((self._scope, cls))
            try:
                return self._function(lambda: original.__get__(None, cls)(*args, **kwargs), args)
            finally:
                self._scopes.pop()

        return classmethod(apply)

    def _function(self, compute: Callable[[], Any], args: tuple[Any, ...]) -> Any:
        """Record a function with a custom gradient, whose backward runs once."""
        if self._paused or self._light:
            return compute()
        sources = [tensor for tensor in tensors_in(args) if tensor.requires_grad]
        self._in_function += 1
        try:
            result = compute()
            outputs = [tensor for tensor in tensors_in(result) if tensor.grad_fn is not None]
            if not sources or not outputs or not torch.is_grad_enabled():
                return result
            values = [self.value_of(tensor) for tensor in outputs]
            with self.pause():
                gradients = [torch.ones_like(tensor) for tensor in outputs]
            for number, gradient in enumerate(gradients):
                self.leaf("cotangent", gradient, number=number)
            input_gradients = _differentiate(outputs, sources, gradients, args)
            backward = tuple(None if tensor is None else self.value_of(tensor) for tensor in input_gradients)
            inputs = tuple(self.value_of(tensor) for tensor in sources)
        finally:
            self._in_function -= 1
        for tensor, value in zip(outputs, values, strict=True):
            arguments = (("input", value), ("sources", inputs), ("gradients", backward))
            (ref,) = self._append("custom_gradient", arguments, (describe_type(tensor),))
            self._live.add(ref)
            self._memory.hold_apart(tensor, ref)  # it may share memory with its sources
        return result

    def _wrap_read(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Notice that Python takes the values of a tensor without an operation; give those that are known."""

        def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._paused or self._light:
                return original(tensor, *args, **kwargs)
            ref = self.value_of(tensor)
            with self.pause():
                if tensor.is_meta and ref in self._known:
                    return original(self._known[ref], *args, **kwargs)
                result = original(tensor, *args, **kwargs)
            self.reads_values = True
            self.reads.append(ref)
            return result

        return call

    def _wrap_constructor(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Register the values of a tensor built from Python data, which the meta device would lose."""
        where = {} if original is torch.from_numpy else {"device": "cpu"}

        def call(data: Any, *args: Any, **kwargs: Any) -> Any:
            if self._paused or isinstance(data, Tensor):
                return original(data, *args, **kwargs)
            # The network may ask for its own device; all tensors here are on the recorder's.
            kwargs.pop("device", None)
            needs_gradient = kwargs.pop("requires_grad", False)
            with self.pause():
                real = original(data, *args, **kwargs, **where)
                tensor = real.to(self.device).requires_grad_(needs_gradient)
                (ref,) = self._append("constant", (("value", describe_constant(real)),), (describe_type(tensor),))
                self._memory.hold(tensor, ref)
                if real.numel() <= _KNOWN_ELEMENTS:
                    self._known[ref] = real.detach()
            return tensor

        return call


def _differentiate(
    outputs: Sequence[Tensor], sources: Sequence[Tensor], gradients: Sequence[Tensor], args: tuple[Any, ...]
) -> Sequence[Tensor | None]:
    """Return the gradients that the backward of a function gives for its sources.

    Autograd adds what reaches a source through another one; a hook sees them before.
    """
    given: list[tuple[Tensor | None, ...]] = []
    function: Any = outputs[0].grad_fn
    hook = function.register_hook(lambda found, _: given.append(found))
    try:
        total = torch.autograd.grad(outputs, sources, gradients, retain_graph=True, allow_unused=True)
    finally:
        hook.remove()
    own = [tensor for tensor in args if isinstance(tensor, Tensor)]
    if len(given) != 1 or len(given[0]) != len(own):
        return total
    pairs = [(tensor, found) for tensor, found in zip(own, given[0], strict=True) if tensor.requires_grad]
    fits = len(pairs) == len(sources) and all(found is None or found.shape == tensor.shape for tensor, found in pairs)
    return [found for _, found in pairs] if fits else total


def _numbers_in(values: Sequence[Any]) -> Iterator[Any]:
    """Yield the numbers, texts and parameters among arguments, those in lists, too; a parameter as its identity."""
    for value in values:
        kind = type(value)
        if kind is int or kind is float or kind is bool or kind is str:
            yield value
        elif kind is nn.Parameter:
            yield str(id(value))
        elif kind is list or kind is tuple:
            yield from _numbers_in(value)


def _without_values(value: Any) -> Any:
    return value.to("meta") if isinstance(value, Tensor) else value
