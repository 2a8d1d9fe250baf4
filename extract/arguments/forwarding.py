"""Search for inputs of forward: recorded calls, then guesses from names and layers, repaired after failures."""

import heapq
import inspect
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from extract.arguments.constructing import META_SHAPES, Constructed, Constructor, fails_only_on_meta
from extract.arguments.messages import join_arguments
from extract.arguments.repairs import is_module_fault, repairs
from extract.arguments.resizing import FailedCall
from extract.arguments.settings import is_unlike_module
from extract.arguments.trials import SEED, AttemptError, BlockNamespace, TimeBudget, attempt, counting_work, seed_all
from extract.arguments.values.compared import Compared, read_compared
from extract.arguments.values.inputs import (
    RECORD,
    Inputs,
    Layers,
    ListOfValues,
    Literal,
    Tensor,
    Value,
    change_nested,
    flatten,
    graph_main,
    is_graph,
    is_loss,
    layouts,
    list_required,
    main_values,
    meaning,
    propose_like_main,
    read_layers,
    tensors_in,
    values_from_annotation,
)
from extract.arguments.values.names import annotation_text

_MAX_TRIES = 70  # for one module
_SECONDS = 1.0  # of CPU time for one attempt
_MAX_ELEMENTS = 500_000  # in all inputs together, after a repair
_MAX_AT_START = 8_000_000
_MAX_REPAIRS = 16  # taken from one failure
_RAN = 10**6  # progress of a call that ended, and whose output shows nothing
#: Of a class or decorator whose call names the arguments of forward otherwise.
_OTHER_NAMES = re.compile(r"multiple values for argument|__call__\(\) (?:missing|got an unexpected)")
_MAX_STUCK = 4  # failures that no input can repair, before another module is tried


@dataclass(slots=True)
class ForwardCall:
    """A call of forward that works."""

    args: tuple[str, ...]
    kwargs: tuple[tuple[str, str], ...]
    guessed: bool = True  # by the search; False for a call that somebody wrote or ran

    def as_json(self) -> dict[str, Any]:
        """Return the call as JSON values."""
        return {"args": list(self.args), "kwargs": dict(self.kwargs)}


@dataclass(slots=True)
class Forward:
    """Search for inputs of one module; keeps the failure with the most progress."""

    built: Constructed
    constructor: Constructor
    names: BlockNamespace
    hints: Mapping[str, Any]
    budget: TimeBudget
    best_failure: tuple[AttemptError, str] | None = None
    parameters: dict[str, inspect.Parameter] = field(default_factory=dict)
    work: int = 0  # multiply-adds of the last call that worked
    rejected: str | None = None  # why that call counts for nothing, once whoever asked for it knows
    by_position: bool = False  # once names are refused
    patience: int = _MAX_TRIES  # tries in a row that get no further, after which the search ends

    def __post_init__(self) -> None:
        self.parameters = forward_parameters(self.built.module)

    def search(self) -> Iterator[ForwardCall]:
        """Yield calls of forward that work."""
        try:
            attempt(self.built.module.eval)  # it may compute
        except AttemptError as failure:
            self.best_failure = (failure, "no arguments")
            return
        own = self.built.arguments.as_json()
        # A recorded call of the same module first.
        for call in sorted(self.hints.get("forward", ()), key=lambda call: call.get("init") != own):
            called = ForwardCall(*name_inputs(call["args"], call["kwargs"], self.parameters), guessed=False)
            if self._try(called) is None:
                yield called
        yield from self._explore()

    def _explore(self) -> Iterator[ForwardCall]:
        layers = read_layers(self.built.module)
        loss = is_loss(list(self.parameters), type(self.built.module).__name__)
        # Of equal ranks, the earliest is tried first; inputs themselves are never compared.
        counter = itertools.count()
        graph = is_graph(list(self.parameters))
        starts = self._initial_inputs(layers, loss, graph=graph)
        # What has the names of a graph may take something else; this is tried once nothing is left to repair.
        others = self._initial_inputs(layers, loss, graph=False) if graph else iter(())
        heap: list[tuple[tuple[int, ...], int, Inputs]] = []
        seen: set[Inputs] = set()

        def is_new(start: Inputs) -> bool:
            return start not in seen and _is_small(start, _MAX_AT_START)

        stuck = idle = 0
        for turn in range(self.built.tries or _MAX_TRIES):
            if self.budget.forwards <= 0 or self.budget.late():
                return
            inputs = None
            # Every third try is a new start, so that repairs of a bad one cannot use up all tries.
            if turn % 3 == 0 or not heap:
                inputs = next(filter(is_new, starts), None)
            while inputs is None and heap:
                inputs = heapq.heappop(heap)[2]
                inputs = None if inputs in seen else inputs
            if inputs is None:
                inputs = next(filter(is_new, others), None)
            if inputs is None:
                return
            seen.add(inputs)
            called = as_call(inputs, self.parameters, by_position=self.by_position)
            failure = self._try(called)
            if failure is not None and not self.by_position and _OTHER_NAMES.search(str(failure)):
                self.by_position = True
                called = as_call(inputs, self.parameters, by_position=True)
                failure = self._try(called)
            if failure is None:
                self.rejected = None
                yield called
                if self.rejected is None:
                    continue
                failure = AttemptError(ValueError(self.rejected), _RAN)
            idle = 0 if self.best_failure is not None and self.best_failure[0] is failure else idle + 1
            failed = FailedCall(failure, inputs, self.parameters, layers, loss)
            stuck += _MAX_STUCK if is_unlike_module(failure) else is_module_fault(failed)
            if stuck >= _MAX_STUCK or idle == self.patience:
                return
            fresh = (item for item in repairs(failed) if item not in seen and _is_small(item))
            for item in itertools.islice(fresh, _MAX_REPAIRS):
                heapq.heappush(heap, (failure.rank, next(counter), item))

    def _initial_inputs(self, layers: Layers, loss: bool, *, graph: bool) -> Iterator[Inputs]:
        """Yield initial inputs, one for each layout and number of channels; of a graph, one for each number."""
        # A forward of `*inputs` alone has no required parameter, but takes at least one input.
        names = list_required(self.parameters) or [
            f"*{name}" for name, parameter in self.parameters.items() if parameter.kind is parameter.VAR_POSITIONAL
        ]
        if not names:
            first = next(iter(self.parameters), None)
            if first is None:
                yield ()
                return
            if not self._needs_input():
                yield ()
            names = [first]
        shapes_by_name = {name: tuple(dims) for name, dims in self.hints.get("inputs", ())}
        documented = {name: len(dims) for name, dims in shapes_by_name.items()}
        ranks = [documented[names[0]]] if names[0] in documented else []
        channels = layers.channels or (32, 3)
        parameter = self.parameters.get(names[0].lstrip("*"))
        annotation = annotation_text(parameter.annotation) if parameter is not None else ""
        shapes = layouts(layers, [2] if graph else ranks or ([2] if loss else []), names[0])
        for position, layout in enumerate(shapes[:1] if graph else shapes):
            for size in channels[: 2 if position < 2 else 1]:
                values = main_values(names[0], annotation, layout(size), size, layers)
                for value in itertools.chain(map(Literal, self._companions(names[0])), values):
                    main: Value = graph_main(size) if graph and isinstance(value, Tensor) else value
                    tensor = next(tensors_in(main), Tensor((2, size, 16, 16)))
                    choices = [
                        self._as_documented(
                            self._values(name, tensor, loss=loss),
                            shapes_by_name.get(name),
                            shapes_by_name.get(names[0], ()),
                            tensor,
                        )
                        for name in names[1:]
                    ]
                    likeliest = [(name, values[0]) for name, values in zip(names[1:], choices, strict=True)]
                    yield ((names[0], main), *likeliest)
                    if loss or len(choices) == 1:
                        for alternative in choices[0][1:3] if choices else ():
                            yield ((names[0], main), (names[1], alternative), *likeliest[1:])

    def _companions(self, name: str) -> Sequence[str]:
        """Return expressions for an argument that takes an instance of a class of the corpus."""
        return self.constructor.companions().get(name, ())

    def _values(self, name: str, main: Tensor, *, loss: bool) -> list[Value]:
        """Return values for a further argument, from its annotation and its name."""
        parameter = self.parameters.get(name)
        annotation = annotation_text(parameter.annotation) if parameter is not None else ""
        compared = read_compared(type(self.built.module).__module__).get(name, Compared())
        constants = [Literal(text) for text in (*self._companions(name), *compared.list_fitting(annotation))]
        by_annotation = values_from_annotation(annotation, main)
        by_name = [*constants, *propose_like_main(name, main, loss=loss)]
        if re.search(r"\bNone\b|Optional\[", annotation) and "Tensor" not in annotation:
            by_annotation.insert(0, Literal("None"))
        plain = meaning(name) is None or annotation in ("int", "Optional[int]", "typing.Optional[int]")
        return [*by_annotation, *by_name] if plain else [*by_name, *by_annotation]

    @staticmethod
    def _as_documented(
        values: Sequence[Value], dims: Sequence[str] | None, main_dims: Sequence[str], main: Tensor
    ) -> list[Value]:
        """Return the values with those of the documented rank first, or with one that is made for it.

        Args: dims, main_dims: the documented names of the dimensions, of this argument and of the main one.
        """
        if dims is None:
            return list(values)
        ranked = sorted(values, key=lambda value: not (isinstance(value, Tensor) and len(value.shape) == len(dims)))
        first = ranked[0]
        sizes = dict(zip(main_dims, main.shape, strict=False)) if len(main_dims) == len(main.shape) else {}
        shape = [main.shape[0] if dims == ("?",) else sizes.get(dim, 0) for dim in dims]
        if isinstance(first, Tensor) and len(first.shape) != len(dims) and all(shape):
            return [first.with_shape(tuple(shape)), *ranked]
        return ranked

    def _needs_input(self) -> bool:
        return all(p.default is None for p in self.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD)

    def _try(self, called: ForwardCall) -> AttemptError | None:
        self.budget.forwards -= 1
        try:
            try:
                with counting_work() as counted:
                    run(self.built.module, called, self.names, on_meta=self.built.on_meta, seconds=_SECONDS)
            except AttemptError as failure:
                if not self.built.on_meta or not (fails_only_on_meta(failure) or _VAGUE in str(failure)):
                    raise
                # Real tensors: the failure is due to meta tensors and not to the call, or its message lacks the sizes.
                self.built = self.constructor.make(self.built.arguments, real=True)
                self.built.module.eval()
                with counting_work() as counted:
                    run(self.built.module, called, self.names, seconds=_SECONDS)
        except AttemptError as failure:
            if self.best_failure is None or failure.progress > self.best_failure[0].progress:
                self.best_failure = (failure, call_text(called))
            return failure
        self.work = counted[0]
        return None


#: A convolution of other channels, on meta tensors. Its message on the CPU says how many channels it expects.
_VAGUE = "Invalid channel dimensions"


def forward_parameters(module: nn.Module) -> dict[str, inspect.Parameter]:
    """Return the parameters of forward, or a single `input` if its signature is unavailable."""
    try:
        parameters = dict(inspect.signature(module.forward).parameters)
    except (ValueError, TypeError):
        return {"input": inspect.Parameter("input", inspect.Parameter.POSITIONAL_OR_KEYWORD)}
    # A method of TorchScript is bound without saying so.
    parameters.pop("self", None)
    return parameters


def name_inputs(
    args: Sequence[str], kwargs: Iterable[tuple[str, str]], parameters: Mapping[str, inspect.Parameter]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the arguments of a call with the names of their parameters; as they are if some have none."""
    named = list(zip(parameters, args, strict=False))
    kinds = {parameter.kind for parameter in list(parameters.values())[: len(args)]}
    if len(named) < len(args) or kinds - {inspect.Parameter.POSITIONAL_OR_KEYWORD}:
        return tuple(args), tuple((name, text) for name, text in kwargs)
    return (), (*named, *((name, text) for name, text in kwargs))


def run(
    module: nn.Module,
    called: ForwardCall,
    names: BlockNamespace,
    *,
    on_meta: bool = False,
    seconds: float = 10.0,
    seed: int = SEED,
    draws: int | None = None,
) -> Any:
    """Call a module without gradients, unless it computes some, with inputs and draws of one seed.

    Args: draws: another seed for what forward draws, which else repeats the numbers of its inputs.
    Returns: the output of forward.
    Raises: AttemptError if it fails, or if the output contains no tensor.
    """
    seed_all(seed)
    with torch.device("meta" if on_meta else "cpu"):
        args, kwargs = evaluate(called, names)
    if on_meta:
        # Expressions such as `torch.tensor(...)` ignore the default device.
        args, kwargs = change_nested([args, kwargs], lambda tensor: tensor.to("meta"))

    def action(*, live: bool = False) -> Any:
        with torch.set_grad_enabled(live), META_SHAPES if on_meta else nullcontext():
            return module(*args, **kwargs)

    seed_all(seed if draws is None else draws)
    try:
        output = attempt(action, seconds)
    except AttemptError as failure:
        if "does not require grad" not in str(failure):
            raise
        # It computes gradients itself, such as forces from an energy.
        seed_all(seed)
        output = attempt(partial(action, live=True), seconds)
    if not attempt(partial(flatten, output), seconds):
        raise AttemptError(ValueError(f"no_output: forward returned {type(output).__name__} without a tensor"), _RAN)
    return output


def evaluate(called: ForwardCall, names: BlockNamespace) -> tuple[list[Any], dict[str, Any]]:
    """Build the inputs of a call.

    Raises: AttemptError if an expression cannot be evaluated.
    """
    try:
        args = [names.value(text) for text in called.args]
        kwargs = {name: names.value(text) for name, text in called.kwargs}
    except Exception as error:  # noqa: BLE001 - expressions come from foreign examples
        raise AttemptError(error) from None
    return args, kwargs


def _is_small(inputs: Inputs, limit: int = _MAX_ELEMENTS) -> bool:
    return sum(math.prod(tensor.shape) for _, value in inputs for tensor in tensors_in(value)) <= limit


def as_call(
    inputs: Inputs, parameters: Mapping[str, inspect.Parameter] | None = None, *, by_position: bool = False
) -> ForwardCall:
    """Return inputs by name as a call; `*name` and positional-only parameters are passed by position.

    Args: by_position: pass the first ones by position, too, as long as none is left out.
    """
    pairs = zip(parameters or (), inputs, strict=False) if by_position else ()
    leading = {name for name, _ in itertools.takewhile(lambda pair: pair[0] == pair[1][0], pairs)}
    args: list[str] = []
    kwargs: list[tuple[str, str]] = []
    for name, value in inputs:
        parameter = (parameters or {}).get(name)
        if name.startswith("*"):
            items = value.values if isinstance(value, ListOfValues) else (value,)
            args += [item.expression() for item in items]
        elif name in leading or (parameter is not None and parameter.kind is parameter.POSITIONAL_ONLY):
            args.append(value.expression())
        else:
            kwargs.append((name, value.expression()))
    return ForwardCall(tuple(args), tuple(kwargs))


def call_text(called: ForwardCall) -> str:
    """Return the arguments of a call in one line."""
    return join_arguments(called.args, dict(called.kwargs)).replace(RECORD, "Record")[:200] or "no arguments"
