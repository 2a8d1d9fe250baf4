"""Autograd functions with a custom gradient: their forward and their backward computation."""

from dataclasses import dataclass, replace

from lemur_core.graphs.graph import Argument, Node
from lemur_core.graphs.modes import ModeModule, ModeStep, Value
from lemur_core.rebuild.layers import values_in
from lemur_core.rebuild.operators import RebuildError


@dataclass(frozen=True, slots=True)
class Custom:
    """One autograd function.

    Args:
        takes: its arguments: the values that it computes gradients for, then other values that it reads.
        forward: computes its result from these.
        backward: computes the gradients from these and, last, the gradient of the result.
        gradients: for each argument the output of `backward` with its gradient, or None.
    """

    takes: tuple[Value, ...]
    forward: ModeModule
    backward: ModeModule
    gradients: tuple[int | None, ...]


def find_custom(module: ModeModule, index: int) -> Custom:
    """Return the function whose result a step is.

    Raises: RebuildError if it has several results, draws random numbers, or differs between the modes.
    """
    step = module.steps[index]
    arguments = step.arguments
    sources, result = arguments.get("sources", (None,)), arguments.get("input")
    if not isinstance(result, Value) or not all(isinstance(value, Value) for value in sources):
        raise RebuildError("a function with a gradient of its own that differs between the modes, or within another")
    gradient_values = [value for value in arguments["gradients"] if value is not None]
    inner = _inner(module, [result, *gradient_values], sources)
    steps = [module.steps[number] for number in inner]
    cotangents = [Value(number) for number, step in zip(inner, steps, strict=True) if step.node.op == "cotangent"]
    if len(cotangents) > 1 or any(step.node.get("number") for step in steps if step.node.op == "cotangent"):
        raise RebuildError("a function with a gradient of its own that has several results")
    if any("draw" in dict(step.node.arguments) for step in steps):
        raise RebuildError("a function with a gradient of its own that draws random numbers")
    outside = [value for step in steps for value in values_in(tuple(step.arguments.values()))]
    outside += [result, *gradient_values]
    takes = list(dict.fromkeys([*sources, *(value for value in outside if value.index not in inner)]))
    outputs = {None: None} | {value: number for number, value in enumerate(gradient_values)}
    gradient_of = dict(zip(sources, arguments["gradients"], strict=True))
    gradients = tuple(outputs[gradient_of.get(value)] for value in takes)
    forward = _part(module, inner, takes, [result])
    kind = module.steps[result.index].node.outputs[result.output]
    backward = _part(module, inner, [*takes, cotangents[0] if cotangents else None], gradient_values, kind)
    return Custom(tuple(takes), forward, backward, gradients)


def _inner(module: ModeModule, results: list[Value], sources: tuple[Value, ...]) -> list[int]:
    """Return the steps between the sources, or the result's gradient, and these results."""
    depends: dict[int, bool] = {}

    def follow(value: Value) -> bool:
        if value in sources:
            return True
        if value.index not in depends:
            step = module.steps[value.index]
            depends[value.index] = step.node.op == "cotangent"
            reached = [follow(read) for read in values_in(tuple(step.arguments.values()))]
            depends[value.index] |= any(reached)
        return depends[value.index]

    for value in results:
        follow(value)
    return sorted(index for index, inside in depends.items() if inside)


def _part(
    module: ModeModule, inner: list[int], takes: list[Value | None], results: list[Value], last: Argument = None
) -> ModeModule:
    """Return some steps as a separate module, with inputs for the values they take."""
    steps: list[ModeStep] = []
    renumbered: dict[Value, Value] = {}
    for number, value in enumerate(takes):
        kind = last if value is None else module.steps[value.index].node.outputs[value.output]
        node = Node(
            "input", (("number", number),), (kind,), "grad" if last and number == len(takes) - 1 else f"x{number}"
        )
        if value is not None:
            renumbered[value] = Value(len(steps))
        steps.append(ModeStep((node, node)))
    for index in inner:
        step = module.steps[index]
        if Value(index) in renumbered:
            continue
        arguments = {name: _renumber(argument, renumbered) for name, argument in step.arguments.items()}
        for output in range(len(step.node.outputs)):
            renumbered.setdefault(Value(index, output), Value(len(steps), output))
        steps.append(replace(step, arguments=arguments))
    return ModeModule(steps, [_renumber(value, renumbered) for value in results], [])


def _renumber(argument: Argument, renumbered: dict[Value, Value]) -> Argument:
    if isinstance(argument, Value):
        return renumbered.get(argument, argument)
    if type(argument) is tuple:
        return tuple(_renumber(item, renumbered) for item in argument)
    return argument
