"""Inside the sandbox: ways to make a package run its own models.

A driver is a definition that reaches a class whose calls are wanted, and that gives a model: a class or factory that
needs no arguments, a class that takes a configuration, or whose arguments are searched for; or it is code that the
authors wrote to be run: tests and examples.
"""

import ast
import contextlib
import doctest
import functools
import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from extract.arguments.constructing import Arguments, Constructed, Constructor
from extract.arguments.forwarding import Search
from extract.arguments.search_guest import namespace
from extract.arguments.trials import AttemptError, TimeBudget, attempt, count_elements, quiet, seed_all
from extract.arguments.values import is_variadic, list_required, read_parameters
from extract.recording.configured import list_accepted
from extract.recording.meta import LightTensors
from extract.recording.recorder import guessing

WRITTEN, GIVEN, CONFIGURED, SEARCHED = range(4)  # efforts
_SECONDS = 3.0  # of CPU time for one construction, example, or search of inputs; the numbers of attempts end most
_CONSTRUCTIONS, _FORWARDS, _PATIENCE = 30, 45, 10  # attempts with one model; most of those that run do so at once
_MAX_MODELS = 2  # out of one call
_SIDES = (64, 224)  # of images
_FRAMES = 16  # of videos
_MOST_IMAGES = 2  # that a model takes


@dataclass(frozen=True)
class Driver:
    """A way to run models.

    Args:
        run: with `True`, on the meta device. It also takes what tells whether something wanted was constructed:
            a model that holds nothing of it is not called.
        effort: `WRITTEN` for code that the authors wrote to be run; of definitions `GIVEN` if nobody guesses their
            arguments, `CONFIGURED` if only settings or other models, `SEARCHED` else.
    """

    key: str
    run: Callable[[bool, Callable[[], bool]], None]
    effort: int = WRITTEN


def drive_definition(definition: Any) -> Driver | None:
    """Return the driver of a class or function; None if it gives no model without arguments that nobody knows."""
    key = f"{definition.__module__}:{definition.__qualname__}"
    if isinstance(definition, type):
        if not issubclass(definition, nn.Module) or definition.forward is nn.Module.forward:
            return None
        accepted = list_accepted(definition)  # type: ignore[arg-type]
        required = set(list_required(read_parameters(definition)))
        effort = GIVEN if not required else CONFIGURED if {name for name, _ in accepted} >= required else SEARCHED
        return Driver(key, functools.partial(_run_class, definition, accepted), effort)
    try:
        parameters = dict(inspect.signature(definition).parameters)
    except (ValueError, TypeError):
        return None
    if list_required(parameters) or not _may_give_module(definition):
        return None
    return Driver(key, functools.partial(run_models, [definition]), GIVEN)


def drive_code(key: str, code: str, space: Mapping[str, Any]) -> Driver:
    """Return the driver that executes code of the authors in a copy of a module's namespace."""
    return Driver(key, functools.partial(_run_code, code, space))


def list_examples(definition: Any) -> list[str]:
    """Return the code of the examples in a docstring."""
    try:
        examples = doctest.DocTestParser().get_examples(inspect.getdoc(definition) or "")
    except ValueError:
        return []
    return ["".join(example.source for example in examples)] if examples else []


def _may_give_module(function: Any) -> bool:
    annotation = getattr(function, "__annotations__", {}).get("return")
    if isinstance(annotation, type):
        return issubclass(annotation, nn.Module | tuple | list)
    return annotation is None or "None" not in str(annotation)


# -- running ---------------------------------------------------------------------------------------------------------


def run_models(calls: Sequence[Callable[[], Any]], on_meta: bool, holds: Callable[[], bool]) -> None:
    """Construct a model by the first of these calls that gives one which runs, and run it forward.

    Args: holds: says whether that is of use: nothing runs if the model has none of the classes that are wanted.

    Raises: AttemptError with the last failure if none runs.
    """
    failure: AttemptError | None = None
    with LightTensors(on_meta=on_meta), torch.no_grad():
        for build in calls:
            seed_all()
            try:
                result = attempt(build, _SECONDS)
                if not holds():
                    return
                items = [result, *(result if isinstance(result, list | tuple) else ())]
                for model in [item for item in items if isinstance(item, nn.Module)][:_MAX_MODELS]:
                    _run_forward(model)
            except AttemptError as error:
                failure = error
            else:
                return
    if failure is not None:
        raise failure


def _run_class(
    cls: type[nn.Module], accepted: Sequence[tuple[str, type]], on_meta: bool, holds: Callable[[], bool]
) -> None:
    """Construct a class as it is, or with arguments that are searched for, and run it. Raises: AttemptError."""
    names = namespace(vars(sys.modules[cls.__module__]) | {kind.__name__: kind for _, kind in reversed(accepted)}, [])
    hints = {"accepted": [(name, kind.__name__) for name, kind in accepted]}
    budget = TimeBudget(_CONSTRUCTIONS, _FORWARDS, _SECONDS)
    constructor = Constructor(cls, names, hints, budget)
    failure = AttemptError(ValueError("no arguments"))
    with LightTensors(on_meta=on_meta), torch.no_grad():
        if not constructor.required:
            with contextlib.suppress(AttemptError):  # the search continues from what it lacks
                seed_all()
                model = attempt(cls, _SECONDS)
                if holds():
                    _run_forward(model)
                return
        with guessing(cls):
            for built, _ in Search(constructor, forward=False).calls():
                if not holds():
                    return
                try:
                    _run_forward(built.module, constructor, built.arguments)
                except AttemptError as error:
                    failure = error
                else:
                    return
    raise failure


def _run_forward(model: nn.Module, constructor: Constructor | None = None, arguments: Arguments | None = None) -> None:
    """Run a model forward with the first inputs that work. Raises: AttemptError if there are none."""
    cls = type(model)
    names = namespace(vars(sys.modules[cls.__module__]), [])
    budget = constructor.budget if constructor else TimeBudget(_CONSTRUCTIONS, _FORWARDS, _SECONDS)
    constructor = constructor or Constructor(cls, names, {}, budget)
    built = Constructed(arguments or Arguments(), model, count_elements(model), on_meta=False)
    hints = {"forward": list(_list_images(model))}
    search = Search(constructor, hints, built, _PATIENCE)
    if next(search.calls(), None) is None:
        raise search.best_failure[0] if search.best_failure else AttemptError(ValueError("no inputs"))


def _list_images(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield calls with images or videos of usual sizes if the first convolution takes these.

    Models of two images, such as those of optical flow, take the same one twice.
    """
    first = next((layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Conv3d)), None)
    takes = [p for p in inspect.signature(model.forward).parameters.values() if not is_variadic(p)]
    count = sum(p.default is p.empty for p in takes)
    if first is None or not 0 < count <= _MOST_IMAGES:
        return
    frames = f"{_FRAMES}, " if isinstance(first, nn.Conv3d) else ""
    for side in _SIDES:
        yield {"args": [f"torch.randn((2, {first.in_channels}, {frames}{side}, {side}))"] * count, "kwargs": []}


def _run_code(code: str, space: Mapping[str, Any], on_meta: bool, _holds: Callable[[], bool]) -> None:
    """Execute code statement by statement. Raises: AttemptError at the first that fails."""
    try:
        statements = ast.parse(code).body
    except (SyntaxError, ValueError) as error:
        raise AttemptError(error) from None
    top = str(space.get("__name__", "")).partition(".")[0]
    usual = {"torch": torch, "nn": nn, "OrderedDict": OrderedDict, top: sys.modules.get(top)}
    names = {**usual, **space, "__name__": "__main__"}
    seed_all()
    with LightTensors(on_meta=on_meta), torch.no_grad(), quiet():
        for statement in statements:
            text = compile(ast.Module([statement], []), "<example>", "exec")
            attempt(functools.partial(exec, text, names), _SECONDS)
