"""The search for a call of a class: constructor and forward together, edited after failures; and one such call."""

import heapq
import inspect
import itertools
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from extract.arguments.constructing import META_SHAPES, Arguments, Constructed, Constructor, fails_only_on_meta
from extract.arguments.edits import FailedCall, list_edits
from extract.arguments.messages import RECORD, join_arguments
from extract.arguments.trials import SEED, AttemptError, BlockNamespace, attempt, counting_work, seed_all
from extract.arguments.values import (
    Inputs,
    change_nested,
    flatten,
    is_loss,
    list_compared,
    list_first_inputs,
    tensors_in,
)

_MAX_TRIES = 70  # from one start
_OTHER_TURNS = 4  # of so many tries, one has another module where inputs may be wrong, too
_SECONDS = 1.0  # of CPU time for one attempt
_MAX_ELEMENTS = 500_000  # in all inputs together, after a repair
_MAX_AT_START = 8_000_000
_MAX_EDITS = 16  # of the arguments, and of the inputs, after one failure
_RAN = 10**6  # progress of a call that ended, and whose output shows nothing


@dataclass(frozen=True)
class ForwardCall(Arguments):
    """A call of forward that works."""

    guessed: bool = True  # by the search; False for a call that somebody wrote or ran


class State(NamedTuple):
    """A call to try, and the edits that led to it.

    Args: inputs: of forward; None: construct the module, a ForwardCall: try it as it is.
    """

    arguments: Arguments
    inputs: Inputs | ForwardCall | None
    way: tuple[str, ...]


class Search:
    """The search for a call: constructor and forward together, the attempt with the most progress first.

    Args:
        hints: recorded calls of forward.
        only: the module to run, if no other is constructed.
        patience: tries in a row that get no further, after which another start is taken.
        forward: run forward; else any module that can be constructed is yielded, with a call without arguments.
    """

    def __init__(
        self,
        constructor: Constructor,
        hints: Mapping[str, Any] | None = None,
        only: Constructed | None = None,
        patience: int = _MAX_TRIES,
        *,
        forward: bool = True,
    ) -> None:
        self.constructor = constructor
        self.hints = constructor.hints if hints is None else hints
        self.best: Constructed | None = None  # that got furthest
        self.best_failure: tuple[AttemptError, str] | None = None
        self.rejected: str | None = None  # why the last call counts for nothing, once whoever asked for it knows
        self.work = 0  # multiply-adds of the last call that worked
        self.way: tuple[str, ...] = ()  # to the last call that worked
        self._only = only
        self._patience = patience
        self._forward = forward
        self._built = {only.arguments: only} if only is not None else {}
        self._refused: dict[Arguments, AttemptError] = {}
        self._furthest: tuple[int, ...] | None = None
        self._seen: set[tuple[Arguments, Inputs | ForwardCall | None]] = set()

    def calls(self) -> Iterator[tuple[Constructed, ForwardCall]]:
        """Yield modules with calls of forward that work."""
        starts = self.constructor.starts()
        if self._only is not None:
            starts = iter([("", self._only.arguments)])
            try:
                attempt(self._only.module.eval)  # it may compute
            except AttemptError as failure:
                self.best_failure = (failure, "no arguments")
                return
        for name, arguments in starts:
            yield from self._explore(State(arguments, None, (name,)))
            if self.constructor.budget.late():
                return

    def _explore(self, start: State) -> Iterator[tuple[Constructed, ForwardCall]]:
        # Of equal ranks, the earliest is tried first; states themselves are never compared.
        counter = itertools.count()
        heap: list[tuple[tuple[int, ...], int, State]] = [((0,), next(counter), start)]
        others: list[tuple[tuple[int, ...], int, State]] = []
        fresh: Iterator[State] = iter(())  # first inputs of the module that got furthest
        current: Arguments | None = None
        idle = 0
        for turn in range(_MAX_TRIES):
            # Every third try is a new start, so that edits of a bad one cannot use up all tries.
            state = next(fresh, None) if turn % 3 == 0 or not heap else None
            queue = others if others and (not heap or turn % _OTHER_TURNS == 1) else heap
            state = heapq.heappop(queue)[2] if state is None and queue else state
            budget = self.constructor.budget
            if state is None or idle > self._patience or min(budget.forwards, budget.constructions) <= 0:
                return
            if budget.late():
                return
            if state[:2] in self._seen:
                continue
            self._seen.add(state[:2])
            failure, called = self._try(state)
            if failure is None and called is not None:
                self.rejected, self.way = None, state.way
                yield self._built[state.arguments], called
                if self.rejected is None:
                    continue
                failure = AttemptError(ValueError(self.rejected), _RAN)
            if failure is None and not self._forward:
                yield self._built[state.arguments], ForwardCall((), ())
                return
            if failure is None:  # constructed
                fresh, current, idle = self._list_starts(state), state.arguments, 0
                continue
            built = self._built.get(state.arguments)
            rank = (built is None, *failure.rank)
            further = self._furthest is None or rank < self._furthest
            idle = 0 if further else idle + 1
            if further:
                self._furthest, self.best = rank, built or self.best
                init = join_arguments(state.arguments.args, dict(state.arguments.kwargs)).replace(RECORD, "Record")
                self.best_failure = failure, call_text(called) if called is not None else init[:160]
                if built is not None and state.arguments != current:
                    fresh, current = self._list_starts(state), state.arguments
            for item in self._edit(state, failure, built):
                constructs = built is not None and item.arguments != state.arguments
                heapq.heappush(others if constructs else heap, (rank, next(counter), item))

    def _edit(self, state: State, failure: AttemptError, built: Constructed | None) -> Iterator[State]:
        """Yield other calls to try after a failure."""
        inputs = state.inputs if isinstance(state.inputs, tuple) else ()
        parameters = forward_parameters(built.module) if built is not None else {}
        loss = is_loss(parameters, self.constructor.cls.__name__)
        at = FailedCall(failure, self.constructor, state.arguments, inputs, parameters, loss)
        counts = Counter[type]()
        for name, item in dict.fromkeys(list_edits(at)):
            if counts[type(item)] < _MAX_EDITS and (self._only is None or not isinstance(item, Arguments)):
                if isinstance(item, Arguments):
                    fresh = State(item, state.inputs, (*state.way, name))
                elif _is_small(item):
                    fresh = State(state.arguments, item, (*state.way, name))
                else:
                    continue
                counts[type(item)] += fresh[:2] not in self._seen
                yield fresh

    def _list_starts(self, state: State) -> Iterator[State]:
        """Yield the recorded calls of a module, one of the same arguments first, then those that are guessed."""
        built = self._built[state.arguments]
        own, parameters = built.arguments.as_json(), forward_parameters(built.module)
        for call in sorted(self.hints.get("forward", ()), key=lambda call: call.get("init") != own):
            named = name_inputs(call["args"], call["kwargs"], parameters)
            yield State(state.arguments, ForwardCall(*named, guessed=False), (*state.way, "recorded"))
        compared = partial(list_compared, self.constructor.cls.__module__)
        for inputs in list_first_inputs(built.module, parameters, compared):
            if _is_small(inputs, _MAX_AT_START):
                yield State(state.arguments, inputs, (*state.way, "inputs"))

    def _try(self, state: State) -> tuple[AttemptError | None, ForwardCall | None]:
        """Try a call. Returns: why it failed, or None; and the call of forward, unless there is none."""
        called = None
        try:
            built = self._construct(state.arguments)
            given = state.inputs
            if given is not None:
                called = given if isinstance(given, ForwardCall) else as_call(given, forward_parameters(built.module))
                self._run(built, called)
        except AttemptError as failure:
            return failure, called
        return None, called

    def _construct(self, arguments: Arguments) -> Constructed:
        if arguments in self._refused:
            raise self._refused[arguments]
        if arguments not in self._built:
            budget, started = self.constructor.budget, time.process_time()
            try:
                built = self.constructor.make(arguments, limited=not self.constructor.is_stated(arguments))
                attempt(built.module.eval)  # it may compute
            except AttemptError as failure:
                self._refused[arguments] = failure
                raise
            self._built[arguments] = built
            if self.best is None:
                self.best = built
                # What a slow constructor takes is not missing for forward.
                budget.seconds += min(time.process_time() - started, budget.seconds)
        return self._built[arguments]

    def _run(self, built: Constructed, called: ForwardCall) -> None:
        self.constructor.budget.forwards -= 1
        names = self.constructor.names
        with counting_work() as counted:
            try:
                run(built.module, called, names, on_meta=built.on_meta, seconds=_SECONDS)
            except AttemptError as failure:
                if not built.on_meta or not (fails_only_on_meta(failure) or _VAGUE in str(failure)):
                    raise
                # Real tensors: the failure is due to meta tensors and not to the call, or its message lacks the sizes.
                built = self._built[built.arguments] = self.constructor.make(built.arguments, real=True)
                built.module.eval()
                counted[0] = 0
                run(built.module, called, names, seconds=_SECONDS)
        self.work = counted[0]


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


def evaluate(called: Arguments, names: BlockNamespace) -> tuple[list[Any], dict[str, Any]]:
    """Build the arguments of a call.

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


def as_call(inputs: Inputs, parameters: Mapping[str, inspect.Parameter] | None = None) -> ForwardCall:
    """Return inputs by name as a call; `*name` and positional-only parameters are passed by position."""
    args: list[str] = []
    kwargs: list[tuple[str, str]] = []
    for name, value in inputs:
        parameter = (parameters or {}).get(name)
        if name.startswith("*") or (parameter is not None and parameter.kind is parameter.POSITIONAL_ONLY):
            args.append(value.expression())
        else:
            kwargs.append((name, value.expression()))
    return ForwardCall(tuple(args), tuple(kwargs))


def call_text(called: ForwardCall) -> str:
    """Return the arguments of a call in one line."""
    return join_arguments(called.args, dict(called.kwargs)).replace(RECORD, "Record")[:200] or "no arguments"
