"""Inside the sandbox: run the models of a source as its own code makes them, and record the calls of their parts.

A driver is code that the authors wrote to be run, tests and examples; or a definition that reaches a class whose calls
are wanted, and that gives a model: a class or factory that needs no arguments, a class that takes a configuration, or
whose arguments are searched for.

The same request gives the same records: attempts and steps are counted, and the clock ends only what would never end.
"""

import ast
import doctest
import importlib
import inspect
import itertools
import re
import signal
import sys
import time
import types
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from extract.arguments.constructing import Arguments, Constructed, Constructor
from extract.arguments.forwarding import Search
from extract.arguments.messages import SourceRecording
from extract.arguments.search_guest import disable_denied, namespace
from extract.arguments.trials import AttemptError, TimeBudget, attempt, count_elements, quiet, seed_all
from extract.arguments.values import is_variadic, list_required, read_parameters
from extract.recording.definitions import (
    UseGraph,
    list_accepted,
    make_type_finder,
)
from extract.recording.meta import LightTensors
from extract.recording.recorder import RecordedCall, SourceRecorder, guessing
from extract.recording.testing import ReplacedModule, find_absent, import_module, run_tests
from lemur_core.sandbox.server.foreign import one_line

#: The efforts of drivers: code that the authors wrote to be run; definitions whose arguments nobody guesses, that need
#: only settings or other models, and all others.
WRITTEN, GIVEN, CONFIGURED, SEARCHED = range(4)
_SECONDS = 3.0  # of CPU time for one construction, example, or search of inputs; the numbers of attempts end most
_CONSTRUCTIONS, _FORWARDS, _PATIENCE = 30, 45, 10  # attempts with one model; most of those that run do so at once
_MAX_MODELS = 2  # out of one call
_SIDES = (64, 224)  # of images
_FRAMES = 16  # of videos
_MOST_IMAGES = 2  # that a model takes
_MAX_STEPS = 30_000  # modules constructed and called by one driver
_MAX_WRITTEN, _MAX_TESTS = 4, 3  # drivers tried for one class
_MAX_READY = {GIVEN: 8, CONFIGURED: 4, SEARCHED: 2}  # definitions, by their effort
_FIRST = 2  # drivers that each class tries before one tries more, since the seconds are for all
#: Few classes are first seen after so many of the definitions of one class.
_ENOUGH_STEPS = 3_000
_MAX_TRIED = 400  # in all
_LAST_SECONDS = 400.0  # of CPU time: no driver starts later; the counts end ordinary runs
_LONG_SLEEP_SECONDS = 0.5
_WAIT_SECONDS, _LEAST_CPU = 10.0, 0.1  # in so many seconds, a driver that does not wait for anything uses more


class _WaitingError(BaseException):
    """A driver that waits, for a network for example; no `Exception`, which those who try again expect."""


#: Of one driver. What the sandbox denies it, a download of weights for example, is denied to no other.
_FAILURES = (AttemptError, PermissionError, MemoryError, _WaitingError)

_WORD = re.compile(r"\w+")

T = TypeVar("T")
Calls = Mapping[str, list[RecordedCall]]


class Driver(NamedTuple):
    """A way to run models.

    Attributes:
        run: with `True`, on the meta device. It also takes what tells whether something wanted was constructed:
            a model that holds nothing of it is not called.
    """

    key: str
    run: Callable[[bool, Callable[[], bool]], None]
    effort: int = WRITTEN


def record_source(request: SourceRecording) -> dict[str, Any]:
    """Return `calls`, those nearest to the defaults of each class by its key, where a driver reaches it.

    If no module of the classes can be imported, `missing` states why. `absent` is the module that one of them lacks:
    then nothing is run.
    """
    _disable_loading()
    sys.argv = sys.argv[:1]
    sys.path[:0] = request.folders
    sys.path.append(request.pytest)
    sys.modules |= {name: ReplacedModule(name) for name in request.replaced}
    own = list(dict.fromkeys(key.partition(":")[0] for key in request.classes))
    tops = {name.partition(".")[0] for name in own}
    failures: dict[str, str] = {}
    absent = None
    for name in dict.fromkeys([*own, *request.modules]):
        seed_all()  # tables of examples may be drawn
        try:
            with _ending_waits():
                import_module(name, partial(_is_compiled, folders=request.folders), [])
        except _FAILURES as failure:
            # What it would have shown stays unknown.
            failures[name] = failure.message if isinstance(failure, AttemptError) else one_line(repr(failure), 200)
            if absent is None and name in own:
                absent = find_absent(failure.cause) if isinstance(failure, AttemptError) else None
                absent = None if absent in tops else absent
    if absent in request.replaced or request.last:
        absent = None
    if absent or all(name in failures for name in own):
        return {"calls": {}, "missing": failures[next(name for name in own if name in failures)], "absent": absent}
    return {"calls": _Recording(request, frozenset(request.packages)).record(request.classes), "missing": None}


def _disable_loading() -> None:
    """Disable what the sandbox denies or takes long, and loading weights: none are there, and none are needed.

    Tables that come with the code are loaded. Whoever imported the functions gets the new code, too, which finds its
    names in the modules of torch.
    """
    disable_denied()
    time.sleep = _end_waiting  # type: ignore[assignment]
    torch.jit._state.disable()
    torch.backends.mha.set_fastpath_enabled(False)
    loading = types.FunctionType(torch.load.__code__, vars(torch.serialization), "load", torch.load.__defaults__)
    loading.__kwdefaults__ = torch.load.__kwdefaults__
    vars(torch.serialization)["_load_there"] = loading
    torch.load.__code__ = _load_there_or_nothing.__code__
    torch.hub.load_state_dict_from_url.__code__ = _load_nothing.__code__
    nn.Module.load_state_dict = _load_nothing  # type: ignore[method-assign]
    torch.ops.load_library = partial(_load_library_or_nothing, torch.ops.load_library)  # type: ignore[method-assign]


def _end_waiting(seconds: float) -> None:
    """Do not sleep: what somebody waits for, such as the next try of a download, never comes here."""
    if seconds >= _LONG_SLEEP_SECONDS:
        raise _WaitingError


def _load_nothing(*_: Any, **__: Any) -> Any:
    return {}


def _load_there_or_nothing(*args: Any, **kwargs: Any) -> Any:
    try:
        return _load_there(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821
    except Exception:  # noqa: BLE001 - a file that is absent or cannot be read holds nothing
        return {}


def _load_library_or_nothing(load: Callable[[Any], None], path: Any) -> None:
    with suppress(OSError):  # one that was built for another version of torch: its operators are missed where they run
        load(path)


def _is_compiled(absent: str, folders: Sequence[str]) -> bool:
    """Return whether a module that is lacking is a compiled one of a package that is there, such as `mmcv._ext`."""
    top, _, rest = absent.partition(".")
    return rest.rpartition(".")[2].startswith("_") and any(Path(folder, top).is_dir() for folder in folders)


def _read_tests(request: SourceRecording) -> dict[tuple[Path, str], str]:
    """Return the text of each file of tests, by the root of the project and its path there.

    Its folder is searched for modules as pytest does it. Those inside a package may lie elsewhere than the package.
    """
    texts = {}
    for path in request.tests:
        root = next(Path(folder) for folder in request.folders if Path(folder, path).exists())
        file = root / path
        if path.partition("/")[0] == "test":  # Python has a package of this name, too
            importlib.import_module("test")
        for parent in list(Path(path).parents)[-2::-1]:
            searched = getattr(sys.modules.get(".".join(parent.parts)), "__path__", None)
            if searched is not None and str(root / parent) not in searched:
                searched.append(str(root / parent))
        texts[root, path] = file.read_text("utf-8", "replace")
        if not (file.parent / "__init__.py").exists() and str(file.parent) not in sys.path:
            sys.path.append(str(file.parent))
    return texts


@contextmanager
def _ending_waits() -> Iterator[None]:
    """End what waits, since that would end the whole job. Raises: _WaitingError."""
    used = time.process_time()

    def look(*_: object) -> None:
        nonlocal used
        before, used = used, time.process_time()
        if used - before < _LEAST_CPU:
            raise _WaitingError

    previous = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _WAIT_SECONDS, _WAIT_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


# -- which drivers ---------------------------------------------------------------------------------------------------


class _Recording:
    """The drivers that ran so far, each once, with the calls that they showed."""

    def __init__(self, request: SourceRecording, packages: frozenset[str]) -> None:
        self._packages = packages
        self._graph = UseGraph(packages)
        self._find_type = make_type_finder(packages)
        self._examples = request.examples
        self._tests = {place: frozenset(_WORD.findall(text)) for place, text in _read_tests(request).items()}
        self._known: dict[str, Calls] = {}
        self._steps_of = Counter[str]()  # by driver
        self._bases: list[type[nn.Module]] = []
        self._unknown: dict[str, type[nn.Module]] = {}  # classes without a call so far
        self._drivers: dict[int, Driver | None] = {}  # by the id of a definition

    def record(self, keys: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """Return the calls of each class in the first of its drivers that shows some whose arguments nobody guessed.

        Else they are those of any of them. A class that was never called shows how it was constructed. Each class has
        its own list of drivers, whatever else is wanted, and these end by the steps that they took, whoever ran them.
        """
        classes = {key: cls for key in keys if (cls := _find_class(key)) is not None}
        self._bases = [cls for cls in classes.values() if cls.__subclasses__()]
        waiting = {key: self._choose(cls) for key, cls in classes.items()}
        self._unknown = dict(classes)
        shown: dict[str, tuple[str, list[RecordedCall]]] = {}
        ran: dict[str, list[tuple[str, list[RecordedCall]]]] = {key: [] for key in waiting}
        steps = Counter[str]()  # of definitions
        for tries in (_FIRST, None):
            for key in [key for key in waiting if key not in shown]:
                for driver in islice(waiting[key], tries):
                    if driver.effort > WRITTEN and steps[key] > _ENOUGH_STEPS:
                        break
                    calls = self._run(driver).get(key, [])
                    ran[key] += [(driver.key, calls)] * bool(calls)
                    steps[key] += self._steps_of[driver.key] * (driver.effort > WRITTEN)
                    if _has_forward(calls) and calls[0].way == "recorded":
                        shown[key] = driver.key, calls
                        del self._unknown[key]
                        break
        for key, found in ran.items():
            if found and key not in shown:
                shown[key] = max(found, key=lambda item: ("forward" in item[1][0].calls, item[1][0].way == "recorded"))
        return {
            key: [{**call.calls, "names": call.names, "way": call.way, "driver": driver} for call in calls]
            for key, (driver, calls) in shown.items()
        }

    def _choose(self, cls: type[nn.Module]) -> Iterator[Driver]:
        """Yield the drivers of a class: what its authors wrote to be run, then what needs no arguments, then guesses.

        Each runs before the next one is asked for.
        """
        reaching = self._graph.list_reaching(cls)
        yield from islice(self._list_written(cls, reaching), _MAX_WRITTEN)
        # Files of tests that name the class itself come first, then those that name what is nearest to it.
        names = list(dict.fromkeys(item.__name__ for item in (cls, *reaching)))
        naming = (place for name in names for place, words in self._tests.items() if name in words)
        yield from map(_drive_tests, islice(dict.fromkeys(naming), _MAX_TESTS))
        ready = self._list_ready(cls, reaching)
        for effort, most in _MAX_READY.items():
            yield from [driver for driver in ready if driver.effort == effort][:most]

    def _list_written(self, cls: type[nn.Module], reaching: list[Any]) -> Iterator[Driver]:
        for item in (cls, *reaching):
            for number, code in enumerate(list_examples(item)):
                key, space = f"{item.__module__}:{item.__qualname__}", vars(sys.modules[item.__module__])
                yield Driver(f"{key} example {number}", partial(_run_code, code, space))
        names = {item.__name__ for item in (cls, *reaching)}
        for number, code in enumerate(self._examples):
            if any(name in code for name in names):
                yield Driver(f"example {number}", partial(_run_code, code, {}))

    def _list_ready(self, cls: type[nn.Module], reaching: list[Any]) -> list[Driver]:
        """Return the drivers of definitions: of each module one, then of each another one.

        Several functions of one module mostly make the same model in several sizes, which may not use the class.
        """
        by_module: dict[str, list[Driver]] = {}
        # The search for arguments has tried the class itself, but for configurations.
        own: list[Any] = [cls] if list_accepted(cls) else []  # type: ignore[arg-type]
        for item in [*own, *reaching]:
            if id(item) not in self._drivers:
                self._drivers[id(item)] = _drive_definition(item)
            driver = self._drivers[id(item)]
            if driver is not None:
                by_module.setdefault(item.__module__, []).append(driver)
        turns = itertools.zip_longest(*map(spread, by_module.values()))
        return [driver for turn in turns for driver in turn if driver is not None]

    def _run(self, driver: Driver) -> Calls:
        """Return the calls that a driver shows; run on the meta device, or on the CPU if it fails there."""
        if driver.key in self._known:
            return self._known[driver.key]
        if len(self._known) >= _MAX_TRIED or time.process_time() > _LAST_SECONDS:
            return {}
        known: dict[str, list[RecordedCall]] = {}
        for on_meta in (True, False):
            recorder = SourceRecorder(self._packages, _MAX_STEPS, self._find_type, self._bases, self._unknown.keys())
            ends = True
            try:
                with _ending_waits(), recorder:
                    driver.run(on_meta, partial(recorder.holds, self._unknown.values()))
            except (Exception, _WaitingError) as failure:  # noqa: BLE001 (what is foreign raises anything, outside of attempts, too)
                worked = recorder.ran and "meta" not in str(failure)
                ends = worked or isinstance(getattr(failure, "cause", failure), _WaitingError)
            self._steps_of[driver.key] += recorder.steps
            recorder.forget()
            torch.set_default_dtype(torch.float32)
            known = recorder.calls | {key: calls for key, calls in known.items() if _has_forward(calls)}
            if ends:
                break
        self._known[driver.key] = known
        return known


def _find_class(key: str) -> type[nn.Module] | None:
    module, _, name = key.partition(":")
    cls = vars(sys.modules.get(module, object)).get(name)
    # Records are kept by the name of the class itself.
    known = isinstance(cls, type) and issubclass(cls, nn.Module) and f"{cls.__module__}:{cls.__qualname__}" == key
    return cls if known else None


def _has_forward(calls: Sequence[RecordedCall]) -> bool:
    return any("forward" in call.calls and call.worked for call in calls)


def spread(items: Sequence[T]) -> list[T]:
    """Return items in an order that is spread evenly from its start on: neighbors make one model in two sizes.

    Args: items: of one module, in the order of its text; the first stays the first.
    Returns: of eight those at 0, 4, 2, 6, 1, 5, 3, 7.
    """
    bits = max(1, (len(items) - 1).bit_length())
    return [items[place] for place in sorted(range(len(items)), key=lambda place: f"{place:0{bits}b}"[::-1])]


def list_examples(definition: Any) -> list[str]:
    """Return the code of the examples in a docstring."""
    try:
        examples = doctest.DocTestParser().get_examples(inspect.getdoc(definition) or "")
    except ValueError:
        return []
    return ["".join(example.source for example in examples)] if examples else []


def _drive_tests(place: tuple[Path, str]) -> Driver:
    return Driver(f"{place[1]} tests", lambda *_: run_tests(*place))


def _drive_definition(definition: Any) -> Driver | None:
    """Return the driver of a class or function; None if it gives no model without arguments that nobody knows."""
    key = f"{definition.__module__}:{definition.__qualname__}"
    if isinstance(definition, type):
        if not issubclass(definition, nn.Module) or definition.forward is nn.Module.forward:
            return None
        accepted = list_accepted(definition)  # type: ignore[arg-type]
        required = set(list_required(read_parameters(definition)))
        effort = GIVEN if not required else CONFIGURED if {name for name, _ in accepted} >= required else SEARCHED
        return Driver(key, partial(_run_class, definition, accepted), effort)
    try:
        parameters = dict(inspect.signature(definition).parameters)
    except (ValueError, TypeError):
        return None
    returned = getattr(definition, "__annotations__", {}).get("return")
    if list_required(parameters) or (
        not issubclass(returned, nn.Module | tuple | list)
        if isinstance(returned, type)
        else "None" in str(returned or "")
    ):
        return None
    return Driver(key, partial(run_models, [definition]), GIVEN)


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
    constructor = Constructor(cls, names, hints, TimeBudget(_CONSTRUCTIONS, _FORWARDS, _SECONDS))
    if not constructor.required:
        with suppress(AttemptError):  # the search continues from what it lacks
            run_models([cls], on_meta, holds)
            return
    failure = AttemptError(ValueError("no arguments"))
    with LightTensors(on_meta=on_meta), torch.no_grad(), guessing(cls):
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
    if constructor is None:
        names = namespace(vars(sys.modules[type(model).__module__]), [])
        constructor = Constructor(type(model), names, {}, TimeBudget(_CONSTRUCTIONS, _FORWARDS, _SECONDS))
    built = Constructed(arguments or Arguments(), model, count_elements(model), on_meta=False)
    search = Search(constructor, {"forward": list(_list_images(model))}, built, _PATIENCE)
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
    """Execute code of the authors, statement by statement, in a copy of a module's namespace.

    Raises: AttemptError at the first statement that fails.
    """
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
            attempt(partial(exec, text, names), _SECONDS)
