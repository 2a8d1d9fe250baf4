"""The search for forward's inputs: what the corpus shows, then what names and layers suggest, mended by failures."""

import heapq
import inspect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from extract.probing.budget import Budget
from extract.probing.constructing import Constructor, Made, only_on_meta
from extract.probing.repair import Situation, repairs
from extract.probing.running import Mistake, Namespace, attempt, seed_all
from extract.probing.shapes import (
    NC,
    Layers,
    graph_main,
    is_graph,
    is_loss,
    like_main,
    look_at,
    main_values,
    orders,
    required,
)
from extract.probing.tensors import Inputs, Items, Literal, Tensor, Value, change_nested, flatten, tensors_in

_TRIES = 70  # with one module
_SECONDS = 1.0  # of CPU for one attempt
_MOST_ELEMENTS = 500_000  # of all inputs together, where a repair made them
_MOST_AT_START = 8_000_000
_REPAIRS = 16  # taken from one failure


@dataclass(slots=True)
class Called:
    """A forward that came through."""

    args: tuple[str, ...]
    kwargs: tuple[tuple[str, str], ...]
    inputs: Inputs | None  # None where an example was used as it stands

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        return {"args": list(self.args), "kwargs": dict(self.kwargs)}


@dataclass(slots=True)
class Forward:
    """Searches inputs for one module; keeps the mistake that came furthest."""

    made: Made
    constructor: Constructor
    names: Namespace
    hints: Mapping[str, Any]
    budget: Budget
    worst: tuple[Mistake, str] | None = None
    parameters: dict[str, inspect.Parameter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.parameters = parameters_of(self.made.module)

    def search(self) -> Iterator[Called]:
        """Ways of calling forward that work."""
        self.made.module.eval()
        for call in self.hints.get("forward", ()):
            called = Called(tuple(call["args"]), tuple((n, t) for n, t in call["kwargs"]), None)
            if self._try(called) is None:
                yield called
        yield from self._explore()

    def _explore(self) -> Iterator[Called]:
        layers = look_at(self.made.module)
        loss = is_loss(list(self.parameters), type(self.made.module).__name__)
        counter = itertools.count()
        starts = iter(self._starts(layers, loss))
        heap: list[tuple[tuple[int, int], int, Inputs]] = []
        seen: set[Inputs] = set()
        for turn in range(_TRIES):
            if self.budget.forwards <= 0 or self.budget.late():
                return
            inputs = None
            if turn % 3 == 0 or not heap:
                inputs = next(
                    (start for start in starts if start not in seen and _is_small(start, _MOST_AT_START)), None
                )
            while inputs is None and heap:
                inputs = heapq.heappop(heap)[2]
                inputs = None if inputs in seen else inputs
            if inputs is None:
                return
            seen.add(inputs)
            called = as_call(inputs, self.parameters)
            mistake = self._try(called)
            if mistake is None:
                yield called
                continue
            situation = Situation(mistake, inputs, self.parameters, layers, loss)
            rank = (-mistake.progress[0], -mistake.progress[1])
            fresh = (item for item in repairs(situation) if item not in seen and _is_small(item))
            for item in itertools.islice(fresh, _REPAIRS):
                heapq.heappush(heap, (rank, next(counter), item))

    def _starts(self, layers: Layers, loss: bool) -> Iterator[Inputs]:
        """Inputs to begin with, one for each layout and number of channels."""
        names = required(self.parameters)
        if not names:
            first = next(iter(self.parameters), None)
            if first is None:
                yield ()
                return
            if not self._needs_input():
                yield ()
            names = [first]
        documented = {name: len(dims) for name, dims in self.hints.get("inputs", ())}
        ranks = [documented[names[0]]] if names[0] in documented else list(self.hints.get("ranks", ()))
        graph = is_graph(list(self.parameters))
        channels = layers.channels or (32, 3)
        annotation = _spelled(self.parameters.get(names[0].lstrip("*")))
        kinds = [NC] if graph else orders(layers, ranks or ([2] if loss else []), names[0])
        given = self._companions(names)
        for position, layout in enumerate(kinds):
            for size in channels[: 2 if position < 2 else 1]:
                for value in main_values(names[0], annotation, layout, size, layers):
                    main: Value = graph_main(size) if graph and isinstance(value, Tensor) else value
                    main = given.get(names[0], main)
                    tensor = next(tensors_in(main), Tensor((2, size, 16, 16)))
                    choices = [
                        [given[name]] if name in given else like_main(name, tensor, loss=loss) for name in names[1:]
                    ]
                    choices = [
                        self._documented_first(values, documented.get(name))
                        for name, values in zip(names[1:], choices, strict=True)
                    ]
                    yield (
                        (names[0], main),
                        *((name, values[0]) for name, values in zip(names[1:], choices, strict=True)),
                    )
                    if loss or len(choices) == 1:
                        for alternative in choices[0][1:3] if choices else ():
                            yield (
                                (names[0], main),
                                (names[1], alternative),
                                *((n, v[0]) for n, v in zip(names[2:], choices[1:], strict=True)),
                            )

    def _companions(self, names: Sequence[str]) -> dict[str, Value]:
        """Objects for arguments that take an instance of a class of the corpus."""
        found: dict[str, Value] = {}
        for item in self.hints.get("companions", ()):
            if item["method"] != "forward" or item["parameter"] not in names or item["name"] not in self.names.names:
                continue
            try:
                parameters = inspect.signature(self.names.names[item["name"]]).parameters
            except (ValueError, TypeError):
                continue
            main = Tensor((2, 32, 16, 16))
            texts = [f"{name}={like_main(name, main, loss=False)[0].expression()}" for name in required(parameters)]
            found[item["parameter"]] = Literal(
                f"{item['name']}({', '.join(text for text in texts if not text.startswith('*'))})"
            )
        return found

    @staticmethod
    def _documented_first(values: Sequence[Value], rank: int | None) -> list[Value]:
        if rank is None:
            return list(values)
        return sorted(values, key=lambda value: not (isinstance(value, Tensor) and len(value.shape) == rank))

    def _needs_input(self) -> bool:
        return all(p.default is None for p in self.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD)

    def _try(self, called: Called) -> Mistake | None:
        self.budget.forwards -= 1
        try:
            try:
                run(self.made.module, called, self.names, on_meta=self.made.on_meta, seconds=_SECONDS)
            except Mistake as mistake:
                if not self.made.on_meta or not only_on_meta(mistake):
                    raise
                self.made = self.constructor.make(self.made.arguments, real=True)
                self.made.module.eval()
                run(self.made.module, called, self.names, seconds=_SECONDS)
        except Mistake as mistake:
            if self.worst is None or mistake.progress > self.worst[0].progress:
                self.worst = (mistake, told_call(called))
            return mistake
        return None


def parameters_of(module: nn.Module) -> dict[str, inspect.Parameter]:
    """The arguments of forward; one `input` where it does not say."""
    try:
        return dict(inspect.signature(module.forward).parameters)
    except (ValueError, TypeError):
        return {"input": inspect.Parameter("input", inspect.Parameter.POSITIONAL_OR_KEYWORD)}


def run(module: nn.Module, called: Called, names: Namespace, *, on_meta: bool = False, seconds: float = 10.0) -> Any:
    """Call a module without gradients.

    Returns: what it returned.
    Raises: Mistake, also if there is no tensor in it.
    """
    seed_all()
    with torch.device("meta" if on_meta else "cpu"):
        args, kwargs = evaluate(called, names)
    if on_meta:
        args, kwargs = change_nested([args, kwargs], lambda tensor: tensor.to("meta"))

    def action() -> Any:
        with torch.no_grad():
            return module(*args, **kwargs)

    seed_all()
    output = attempt(action, seconds)
    if not flatten(output):
        raise Mistake(ValueError(f"no_output: forward returned {type(output).__name__} without a tensor"), 10**6)
    return output


def evaluate(called: Called, names: Namespace) -> tuple[list[Any], dict[str, Any]]:
    """The inputs of a call, made anew.

    Raises: Mistake if an expression cannot be evaluated.
    """
    try:
        args = [names.value(text) for text in called.args]
        kwargs = {name: names.value(text) for name, text in called.kwargs}
    except Exception as error:  # noqa: BLE001 - expressions come from foreign examples
        raise Mistake(error) from None
    return args, kwargs


def _is_small(inputs: Inputs, most: int = _MOST_ELEMENTS) -> bool:
    return sum(math.prod(tensor.shape) for _, value in inputs for tensor in tensors_in(value)) <= most


def as_call(inputs: Inputs, parameters: Mapping[str, inspect.Parameter] | None = None) -> Called:
    """Inputs by name as a call; `*name`, and what `parameters` has by position only, become positional."""
    args: list[str] = []
    kwargs: list[tuple[str, str]] = []
    for name, value in inputs:
        parameter = (parameters or {}).get(name)
        if name.startswith("*"):
            items = value.values if isinstance(value, Items) else (value,)
            args += [item.expression() for item in items]
        elif parameter is not None and parameter.kind is parameter.POSITIONAL_ONLY:
            args.append(value.expression())
        else:
            kwargs.append((name, value.expression()))
    return Called(tuple(args), tuple(kwargs), inputs)


def told_call(called: Called) -> str:
    """A call in one line."""
    parts = [*called.args, *(f"{name}={text}" for name, text in called.kwargs)]
    return ", ".join(parts)[:200] or "no arguments"


def _spelled(parameter: inspect.Parameter | None) -> str:
    if parameter is None or parameter.annotation is parameter.empty:
        return ""
    annotation = parameter.annotation
    return (
        annotation
        if isinstance(annotation, str)
        else getattr(annotation, "__name__", str(annotation))
        if isinstance(annotation, type)
        else str(annotation).removeprefix("typing.")
    )
