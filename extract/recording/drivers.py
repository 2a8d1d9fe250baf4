"""Inside the sandbox: ways to make a package run its own models.

A driver is a definition that reaches a class whose calls are wanted, and that gives a model: a class or factory that
needs no arguments, a class that the search for arguments constructs; or it is code that the authors wrote to be run:
examples, tests, `if __name__ == "__main__":`.
"""

import ast
import contextlib
import doctest
import functools
import inspect
import re
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from extract.arguments.constructing import Arguments, Constructed, Constructor
from extract.arguments.forwarding import Forward
from extract.arguments.search_guest import namespace
from extract.arguments.trials import AttemptError, TimeBudget, attempt, count_elements, quiet, seed_all
from extract.arguments.values.inputs import is_variadic, list_required
from extract.arguments.values.names import read_parameters
from extract.recording.configured import ConfigurationFile, list_accepted
from extract.recording.meta import LightTensors
from extract.recording.recorder import guessing
from extract.recording.testing import run_tests

CONFIGURED, WRITTEN, TESTS = -3, -2, -1  # efforts
_SECONDS = 3.0  # of CPU time for one construction, example, or search of inputs; the numbers of attempts end most
_CONSTRUCTIONS, _FORWARDS, _PATIENCE = 30, 45, 10  # attempts with one model; most of those that run do so at once
_LEAST_SHARED = 2  # parameters that a table of no class in particular states
_MAX_ROWS = 4
_MAX_MODELS = 2  # out of one call
_SIDES = (64, 224)  # of images
_FRAMES = 16  # of videos
_MOST_IMAGES = 2  # that a model takes
_SHAPES = ("input_shape", "input_size", "in_shape")
_INPUT_SIZE = re.compile(r"(img|image|input)_?(size|shape|resolution)")


@dataclass(frozen=True)
class Driver:
    """A way to run models.

    Args:
        run: with `True`, on the meta device.
        effort: drivers with less come first.
        informed: it passes what the search for arguments does not know.
    """

    key: str
    effort: int
    run: Callable[[bool], None]
    informed: bool = False


class Tables:
    """The tables at module level of some packages that state arguments of classes.

    For example, `DEFAULTS = {"n_chans": 22, "n_times": 1000}` states arguments of every class with these parameters,
    and `MODELS = [("ATCNet", ["n_times"], {"n_times": 1125})]` those of one class.

    Args: packages: the top-level packages; only what is imported counts.
    """

    def __init__(self, packages: frozenset[str]) -> None:
        self._shared: list[Mapping[str, Any]] = []
        self._rows: dict[str, list[Mapping[str, Any]]] = {}
        for name in sorted(name for name in sys.modules if name.partition(".")[0] in packages):
            for value in list(getattr(sys.modules[name], "__dict__", {}).values()):
                self._add(value)

    def _add(self, table: Any) -> None:
        rows: Sequence[Any] = []
        if isinstance(table, Mapping) and type(table).__module__ in ("builtins", "collections"):
            if table and all(isinstance(key, str) for key in table):
                self._shared.append(table)
            rows = [(key, value) for key, value in table.items() if isinstance(value, dict)]
        elif isinstance(table, list | tuple):
            rows = [row for row in table if isinstance(row, tuple | list) and row]
        for row in rows:
            if isinstance(row[0], str):
                self._rows.setdefault(row[0], []).extend(item for item in row[1:] if isinstance(item, dict))

    def list_arguments(self, cls: type[nn.Module]) -> list[dict[str, Any]]:
        """Return arguments of a class by name, the most particular first."""
        parameters = [name for name in read_parameters(cls) if name not in ("self", "args", "kwargs")]

        def restrict(table: Mapping[str, Any]) -> dict[str, Any]:
            return {name: table[name] for name in parameters if name in table}

        own = [row for table in self._rows.get(cls.__name__, ()) if (row := restrict(table))]
        shared = [row for table in self._shared if len(row := restrict(table)) >= max(_LEAST_SHARED, len(table) // 2)]
        shared.sort(key=len, reverse=True)
        arguments = [*({**base, **row} for row in own for base in shared[:1]), *own, *shared]
        return [row for index, row in enumerate(arguments) if row not in arguments[:index]][:_MAX_ROWS]


def drive_definition(definition: Any, tables: Tables) -> list[Driver]:
    """Return the drivers of a class or function; none if it gives no model without arguments that nobody knows."""
    key = f"{definition.__module__}:{definition.__qualname__}"
    try:
        parameters = dict(inspect.signature(definition).parameters)
    except (ValueError, TypeError):
        return []
    required = list_required(parameters)
    if isinstance(definition, type):
        if not issubclass(definition, nn.Module) or definition.forward is nn.Module.forward:
            return []
        rows = tables.list_arguments(definition)
        calls = [functools.partial(definition, **row) for row in rows if set(required) <= row.keys()]
        stated = [Driver(f"{key} as a table states", 0, functools.partial(_run_models, calls), True)] if calls else []
        accepted = list_accepted(definition)  # type: ignore[arg-type]
        effort = 0 if {name for name, _ in accepted} >= set(required) else 1
        return [*stated, Driver(key, effort, functools.partial(_run_class, definition, accepted), bool(accepted))]
    if required or not _may_give_module(definition):
        return []
    return [Driver(key, 0, functools.partial(_run_models, [definition]))]


def drive_file(definition: Any, parameter: str, file: ConfigurationFile) -> Driver:
    """Return the driver of a class or function with a configuration file. Args: parameter: the one that takes it."""
    key = f"{definition.__module__}:{definition.__qualname__} with {file.path}"
    return Driver(key, CONFIGURED, lambda on_meta: _run_models(file.list_calls(definition, parameter), on_meta))


def drive_code(key: str, code: str, space: Mapping[str, Any]) -> Driver:
    """Return the driver that executes code of the authors in a copy of a module's namespace."""
    return Driver(key, WRITTEN, functools.partial(_run_code, code, space))


def drive_tests(root: Path, path: str) -> Driver:
    """Return the driver that runs the tests in a file. Args: root: of the project. path: relative to it."""
    return Driver(f"{path} tests", TESTS, lambda _: run_tests(root, path))


def list_examples(definition: Any) -> list[str]:
    """Return the code of the examples in a docstring."""
    text = inspect.getdoc(definition) or ""
    try:
        examples = doctest.DocTestParser().get_examples(text)
    except ValueError:
        return []
    return ["".join(example.source for example in examples)] if examples else []


@functools.cache
def find_main(module: types.ModuleType) -> str:
    """Return the code under `if __name__ == "__main__":`; "" if there is none."""
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError, ValueError):
        return ""
    bodies = [node.body for node in tree.body if isinstance(node, ast.If) and _asks_for_main(node.test)]
    return "\n".join(ast.unparse(statement) for body in bodies for statement in body)


def _asks_for_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and ast.unparse(test).replace('"', "'") == "__name__ == '__main__'"


def _may_give_module(function: Any) -> bool:
    annotation = getattr(function, "__annotations__", {}).get("return")
    if isinstance(annotation, type):
        return issubclass(annotation, nn.Module | tuple | list)
    return annotation is None or "None" not in str(annotation)


# -- running ---------------------------------------------------------------------------------------------------------


def _run_models(calls: Sequence[Callable[[], Any]], on_meta: bool) -> None:
    """Construct each model, and run it forward. Raises: AttemptError with the last failure if none runs."""
    failure: AttemptError | None = None
    with LightTensors(on_meta=on_meta), torch.no_grad():
        for build in calls:
            seed_all()
            try:
                for model in _list_models(attempt(build, _SECONDS))[:_MAX_MODELS]:
                    run_forward(model, Arguments())
                    failure = None
            except AttemptError as error:
                failure = error
            else:
                break
    if failure is not None:
        raise failure


def _list_models(result: Any) -> list[nn.Module]:
    items = [result, *(result if isinstance(result, list | tuple) else ())]
    return [item for item in items if isinstance(item, nn.Module)]


def _run_class(cls: type[nn.Module], accepted: Sequence[tuple[str, type]], on_meta: bool) -> None:
    """Construct a class as it is, or with arguments that are searched for, and run it. Raises: AttemptError."""
    budget = TimeBudget(_CONSTRUCTIONS, _FORWARDS, _SECONDS)
    names = namespace(vars(sys.modules[cls.__module__]) | {kind.__name__: kind for _, kind in reversed(accepted)}, [])
    companions = [{"parameter": name, "name": kind.__name__, "wants_class": False} for name, kind in accepted]
    constructor = Constructor(cls, names, {"companions": companions}, budget, ())
    failure = AttemptError(ValueError("no arguments"))
    with LightTensors(on_meta=on_meta), torch.no_grad():
        if not constructor.required:
            seed_all()
            with contextlib.suppress(AttemptError):  # the search continues from what it lacks
                model = attempt(cls, _SECONDS)
                run_forward(model, Arguments())
                return
        with guessing(cls):
            for built in constructor.plans():
                try:
                    run_forward(built.module, built.arguments, constructor)
                except AttemptError as error:
                    failure = error
                else:
                    return
    raise failure


def run_forward(model: nn.Module, arguments: Arguments, constructor: Constructor | None = None) -> None:
    """Run a model forward with the first inputs that work. Raises: AttemptError if there are none."""
    cls = type(model)
    budget = constructor.budget if constructor else TimeBudget(_CONSTRUCTIONS, _FORWARDS, _SECONDS)
    names = namespace(vars(sys.modules[cls.__module__]), [])
    constructor = constructor or Constructor(cls, names, {"companions": ()}, budget, ())
    built = Constructed(arguments, model, count_elements(model), on_meta=False)
    hints = {"companions": (), "forward": [*_list_stated(model), *_list_images(model)]}
    forward = Forward(built, constructor, names, hints, budget, patience=_PATIENCE)
    if next(forward.search(), None) is None:
        raise forward.best_failure[0] if forward.best_failure else AttemptError(ValueError("no inputs"))


def _list_stated(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield the call with an input of the shape that the model states."""
    for name in _SHAPES:
        try:
            shape = getattr(model, name, None)
        except Exception:  # noqa: BLE001, S112 (a property may compute what it cannot)
            continue
        if isinstance(shape, tuple | list) and all(isinstance(size, int) and size > 0 for size in shape) and shape:
            batched = (2, *shape[1:]) if shape[0] == 1 else (2, *shape)
            yield {"args": [f"torch.randn({batched})"], "kwargs": []}


def _list_images(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield calls with images or videos if the first convolution takes these: as large as the model says, or usual.

    Models of two images, such as those of optical flow, take the same one twice.
    """
    first = next((layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Conv3d)), None)
    takes = [p for p in inspect.signature(model.forward).parameters.values() if not is_variadic(p)]
    count = sum(p.default is p.empty for p in takes)
    if first is None or not 0 < count <= _MOST_IMAGES:
        return
    stated = [value for name, value in _list_settings(model) if _INPUT_SIZE.fullmatch(name)]
    sides = [value if isinstance(value, int) else value[-1] for value in stated if _is_size(value)]
    frames = f"{_FRAMES}, " if isinstance(first, nn.Conv3d) else ""
    for side in dict.fromkeys((*sides[:2], *_SIDES)):
        yield {"args": [f"torch.randn((2, {first.in_channels}, {frames}{side}, {side}))"] * count, "kwargs": []}


def _list_settings(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a model and of its parts, and the items of those that are tables."""
    for layer in [model, *model.children()]:
        for name, value in list(vars(layer).items()):
            yield name, value
            if isinstance(value, Mapping):
                yield from ((key, item) for key, item in value.items() if isinstance(key, str))


def _is_size(value: Any) -> bool:
    last = value[-1] if isinstance(value, tuple | list) and value else value
    return isinstance(last, int) and not isinstance(last, bool) and 0 < last <= 1024


def _run_code(code: str, space: Mapping[str, Any], on_meta: bool) -> None:
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
