"""Inside the sandbox: run the models of a source as its own code makes them, and record the calls of their parts.

The same request gives the same records: attempts and steps are counted, and the clock ends only what would never end.
"""

import importlib
import itertools
import re
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from extract.arguments.search_guest import disable_denied
from extract.arguments.trials import AttemptError, attempt, seed_all
from extract.arguments.values.names import read_parameters
from extract.recording.configured import (
    ConfigurationFile,
    Registries,
    find_file_parameter,
    read_configurations,
)
from extract.recording.drivers import (
    CONFIGURED,
    TESTS,
    WRITTEN,
    Driver,
    Tables,
    drive_code,
    drive_definition,
    drive_file,
    drive_tests,
    find_main,
    list_examples,
)
from extract.recording.messages import MOST_CALLS, SourceRecording
from extract.recording.recorder import RecordedCall, SourceRecorder
from extract.recording.testing import ReplacedModule, find_absent
from extract.recording.users import UseGraph, is_of
from extract.standins.neighbours import radius_graph
from extract.standins.sparse import SparseTensor, torch_sparse
from lemur_core.sandbox.server.foreign import one_line

#: "MMCV==2.1.0 is used but incompatible. Please install mmcv>=2.0.0rc4, <2.1.0."
_REQUIRED = re.compile(r"(?i)\b(?:install|require[sd]?) ([\w-]+(?:,? ?[<>=!~]=?=? ?\d(?:[\w.]*\w)?)+)")
_IMPORT_SECONDS = 120.0
_MAX_STEPS = 30_000  # modules constructed and called by one driver
_MAX_ALL_STEPS = 2_000_000
_MAX_DRIVERS = {CONFIGURED: 3, WRITTEN: 4, TESTS: 3, 0: 8, 1: 2}  # tried for one class, by effort
_ROUNDS = (2, sum(_MAX_DRIVERS.values()))  # drivers that each class tries
_ENOUGH_STEPS = 3_000  # of its drivers, after the first round: few classes are first seen after more
_NEAR = 24  # definitions that reach a class; tests that name others hardly show it, and tests of models take seconds
_MAX_TRIED = 400  # in all
_MOST_ON_CPU = 2_000_000  # elements of a model that runs there after it failed on the meta device
_LAST_SECONDS = 400.0  # of CPU time: no driver starts later; the counts end ordinary runs
_MOST_SLEPT = 60.0  # seconds, by one driver
_SLEEP_SECONDS, _LEAST_CPU = 10.0, 0.1  # in so many seconds, a driver that does not wait for anything uses more


class _WaitingError(BaseException):
    """A driver that waits, for a network for example; no `Exception`, which those who try again expect."""


#: Of one driver. What the sandbox denies it, a download of weights for example, is denied to no other.
_FAILURES = (AttemptError, PermissionError, MemoryError, _WaitingError)

T = TypeVar("T")
Calls = Mapping[str, list[RecordedCall]]


def record_source(request: SourceRecording) -> dict[str, Any]:
    """Return `calls`, those nearest to the defaults of each class by its key, where a driver reaches it.

    If no module of the classes can be imported, `missing` states why. `absent` is the module that one of them lacks, or
    the requirement that the package there does not meet: then nothing is run.
    """
    disable_denied()
    torch.jit._state.disable()
    torch.backends.mha.set_fastpath_enabled(False)
    # No weights are there, and none are needed; tables that come with the code are. Whoever imported the functions gets
    # the new code, too, which finds its names in the modules of torch.
    loading = types.FunctionType(torch.load.__code__, vars(torch.serialization), "load", torch.load.__defaults__)
    loading.__kwdefaults__ = torch.load.__kwdefaults__
    vars(torch.serialization)["_load_there"] = loading
    torch.load.__code__ = _load_there_or_nothing.__code__
    torch.hub.load_state_dict_from_url.__code__ = _load_nothing.__code__
    nn.Module.load_state_dict = _load_nothing  # type: ignore[method-assign]
    torch.ops.load_library = partial(_load_library_or_nothing, torch.ops.load_library)  # type: ignore[method-assign]
    sys.argv = sys.argv[:1]
    time.sleep = _SLEEP
    sys.path[:0] = request.folders
    sys.path.append(request.pytest)
    sys.modules |= {name: ReplacedModule(name) for name in request.replaced}
    own = list(dict.fromkeys(key.partition(":")[0] for key in request.classes))
    failures: dict[str, str] = {}
    absent = None
    for name in dict.fromkeys([*own, *request.modules]):
        seed_all()  # tables of examples may be drawn
        try:
            with _ending_waits():
                attempt(partial(_import_module, name, request.folders), _IMPORT_SECONDS)
        except _FAILURES as failure:
            # What it would have shown stays unknown.
            failures[name] = failure.message if isinstance(failure, AttemptError) else one_line(repr(failure), 200)
            if absent is None and name in own:
                absent = _find_lacking(failure, failures[name], {module.partition(".")[0] for module in own})
    if absent in request.replaced or request.last:
        absent = None
    if absent or all(name in failures for name in own):
        return {"calls": {}, "missing": failures[next(name for name in own if name in failures)], "absent": absent}
    packages = frozenset(name.partition(".")[0] for name in own)
    _stand_in(packages)
    files = read_configurations(request.configurations)
    scripts = _read_scripts(request, packages)
    recording = _Recording(packages, request.examples, scripts, _read_tests(request), files)
    return {"calls": recording.record(request.classes), "missing": None}


def _stand_in(packages: frozenset[str]) -> None:
    """Put what blocks have for operators of compiled packages into the modules that define or import them."""
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] in packages]
    replacements: tuple[Any, ...] = (radius_graph, SparseTensor, torch_sparse)
    for module, ours in itertools.product(modules, replacements):
        theirs = vars(module).get(ours.__name__)
        if isinstance(theirs, type(ours)) and is_of(theirs, packages) and _list_parts(theirs) <= _list_parts(ours):
            setattr(module, ours.__name__, ours)


def _list_parts(item: Any) -> set[str]:
    """Return the parameters of a function, or the public attributes of a class."""
    return {name for name in dir(item) if name[0] != "_"} if isinstance(item, type) else set(read_parameters(item))


def _find_lacking(failure: BaseException, message: str, own: Collection[str]) -> str | None:
    """Return the module that an import lacks, or the requirement that its message states; None if it is neither.

    Args: own: the top-level packages of the source.
    """
    required = _REQUIRED.search(message)
    absent = find_absent(failure.cause) if isinstance(failure, AttemptError) else None
    if absent is not None and "." not in absent and absent in own:
        return None  # its own compiled parts
    return absent or (required[1] if required else None)


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


def _import_module(name: str, folders: Sequence[str]) -> None:
    """Import a module; the compiled modules that its packages lack, such as `mmcv._ext`, are replaced.

    So are those that were compiled for another version of numpy.
    """
    while True:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            top, _, rest = (error.name or "").partition(".")
            known = any(Path(folder, top).is_dir() for folder in folders)
            if not known or not rest.rpartition(".")[2].startswith("_") or error.name in sys.modules:
                raise
            sys.modules[f"{top}.{rest}"] = ReplacedModule(f"{top}.{rest}")
        except ValueError as error:
            # Cython names the frame of a module's initialization `init xtcocotools._mask`.
            frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            compiled = next((frame.removeprefix("init ") for frame in frames if frame.startswith("init ")), "")
            if not compiled or isinstance(sys.modules.get(compiled), ReplacedModule):
                raise
            sys.modules[compiled] = ReplacedModule(compiled)
        else:
            return


def _read_scripts(request: SourceRecording, packages: Collection[str]) -> dict[str, str]:
    """Return the text of each file beside the packages that names classes: nobody imports it, it may be run."""
    texts = {}
    for name in request.modules:
        files = (Path(folder, *name.split(".")).with_suffix(".py") for folder in request.folders)
        file = next(filter(Path.is_file, files), None)
        if file is not None and name.partition(".")[0] not in packages:
            texts[name] = file.read_text("utf-8", "replace")
    return texts


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


class _Sleep:
    """A `time.sleep` that does not wait: a denied download that is tried again is soon given up."""

    slept = 0.0

    def __call__(self, seconds: Any) -> None:
        self.slept += float(seconds)
        if self.slept > _MOST_SLEPT:
            raise _WaitingError


_SLEEP = _Sleep()


@contextmanager
def _ending_waits() -> Iterator[None]:
    """End what waits, since that would end the whole job. Raises: _WaitingError."""
    _SLEEP.slept = 0.0
    used = time.process_time()

    def look(*_: object) -> None:
        nonlocal used
        before, used = used, time.process_time()
        if used - before < _LEAST_CPU:
            raise _WaitingError

    previous = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _SLEEP_SECONDS, _SLEEP_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


class _Recording:
    """The drivers that ran so far, each once, with the calls that they showed."""

    def __init__(
        self,
        packages: frozenset[str],
        examples: Sequence[str],
        scripts: Mapping[str, str],
        tests: Mapping[tuple[Path, str], str],
        files: Sequence[ConfigurationFile],
    ) -> None:
        self._packages = packages
        self._graph = UseGraph(packages)
        self._tables = Tables(packages)
        self._texts = {f"example {number}": code for number, code in enumerate(examples)}
        self._texts |= {f"{name} script": code for name, code in scripts.items()}
        self._tests = tests
        self._files = files
        self._registries = Registries(packages)
        takers = ((item, find_file_parameter(item)) for item in self._graph.definitions if files)
        self._takers = {id(item): (item, name) for item, name in takers if name is not None}
        self._known: dict[str, Calls] = {}
        self._steps_of: dict[str, int] = {}  # by driver
        self._drivers: dict[int, list[Driver]] = {}  # by the id of a definition
        self._bases: list[type[nn.Module]] = []

    def record(self, keys: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """Return the calls of each class in the first of its drivers that shows some, or else in any that ran.

        A class that was never called shows how it was constructed.

        Each class has its own list of drivers, whatever else is wanted, and ends by their steps, whoever ran them. All
        classes try the first ones before one tries many, since the seconds are for all of them.
        """
        classes = {key: cls for key in keys if (cls := self._find(key)) is not None}
        self._bases = [cls for cls in classes.values() if cls.__subclasses__()]
        waiting = {key: self._choose_some(cls) for key, cls in classes.items()}
        shown: dict[str, list[RecordedCall]] = {}
        for tries in _ROUNDS:
            for key, drivers in list(waiting.items()):
                tried = (self._run(driver).get(key, []) for driver in islice(drivers, tries))
                calls = next((calls for calls in tried if _has_forward(calls)), None)
                if calls is not None:
                    shown[key] = calls
                    del waiting[key]
        for key in waiting:
            ran = [calls for calls_of in self._known.values() if (calls := calls_of.get(key))]
            if ran:
                shown[key] = max(ran, key=lambda calls: any("forward" in call.calls for call in calls))
        return {
            key: [{**call.calls, "names": call.names, "way": call.way} for call in shown[key][:MOST_CALLS]]
            for key in keys
            if key in shown
        }

    @staticmethod
    def _find(key: str) -> type[nn.Module] | None:
        module, _, name = key.partition(":")
        cls = vars(sys.modules.get(module, object)).get(name)
        # Records are kept by the name of the class itself.
        known = isinstance(cls, type) and issubclass(cls, nn.Module) and f"{cls.__module__}:{cls.__qualname__}" == key
        return cls if known else None

    def _choose_some(self, cls: type[nn.Module]) -> Iterator[Driver]:
        """Yield the drivers of a class, each run before the next one, until they were enough."""
        steps = 0
        for number, driver in enumerate(self._choose(cls)):
            if number >= _ROUNDS[0] and steps > _ENOUGH_STEPS:
                break
            yield driver
            steps += self._steps_of.get(driver.key, 0)

    def _choose(self, cls: type[nn.Module]) -> Iterator[Driver]:
        """Yield the drivers of a class: what its authors wrote to be run, then those with the least effort."""
        reaching = self._graph.list_reaching(cls)
        names = {item.__name__ for item in (cls, *reaching) if isinstance(item, type) or item.__module__ in sys.modules}
        yield from islice(self._list_configured(cls, reaching), _MAX_DRIVERS[CONFIGURED])
        yield from islice(self._list_written(cls, reaching, names), _MAX_DRIVERS[WRITTEN])
        tests = [places for places, text in self._tests.items() if cls.__name__ in text][: _MAX_DRIVERS[TESTS]]
        yield from itertools.starmap(drive_tests, tests)
        for effort, drivers in itertools.groupby(self._list_ready(cls, reaching), lambda driver: driver.effort):
            yield from islice(drivers, _MAX_DRIVERS[effort])
        # Tests of others take seconds, and hardly show the class.
        near = {item.__name__ for item in reaching[:_NEAR]}
        others = (
            places for places, text in self._tests.items() if places not in tests and any(word in text for word in near)
        )
        yield from itertools.starmap(drive_tests, islice(others, _MAX_DRIVERS[TESTS] - len(tests)))

    def _list_ready(self, cls: type[nn.Module], reaching: list[Any]) -> list[Driver]:
        """Return the drivers that pass no arguments, or only those that tables state."""
        # The search for arguments has tried the class itself, but for what it does not know.
        ready = [driver for driver in self._drive(cls) if driver.informed]
        ready += [driver for item in reaching for driver in self._drive(item)]
        # Several functions of one module mostly make the same model in several sizes, which may not use the class.
        places: dict[tuple[int, str], list[Driver]] = {}
        for driver in ready:
            places.setdefault((driver.effort, driver.key.partition(":")[0]), []).append(driver)
        turns = [
            (driver.effort, turn, driver) for drivers in places.values() for turn, driver in enumerate(spread(drivers))
        ]
        return [driver for _, _, driver in sorted(turns, key=lambda item: item[:2])]

    def _drive(self, item: Any) -> list[Driver]:
        """Return the drivers of a definition, which most classes of a package are reached from."""
        if id(item) not in self._drivers:
            self._drivers[id(item)] = drive_definition(item, self._tables)
        return self._drivers[id(item)]

    def _list_configured(self, cls: type[nn.Module], reaching: list[Any]) -> Iterator[Driver]:
        """Yield the drivers of what takes a file that names the class, then of what reaches the class, with any."""
        naming = [file for file in self._files if cls.__name__ in file.words]
        near = [self._takers[id(item)] for item in (cls, *reaching) if id(item) in self._takers]
        for file in naming:
            for item, name in near or self._takers.values():
                yield drive_file(item, name, file)
        for item, name in near:
            yield from (drive_file(item, name, file) for file in spread(self._files))

    def _list_written(self, cls: type[nn.Module], reaching: list[Any], names: Collection[str]) -> Iterator[Driver]:
        for item in (cls, *reaching):
            space = vars(sys.modules[item.__module__])
            for number, code in enumerate(list_examples(item)):
                yield drive_code(f"{item.__module__}:{item.__qualname__} example {number}", code, space)
        for module in dict.fromkeys(item.__module__ for item in (cls, *reaching)):
            code = find_main(sys.modules[module])
            if code:
                yield drive_code(f"{module} main", code, vars(sys.modules[module]))
        for key, code in self._texts.items():
            if any(name in code for name in names):
                yield drive_code(key, code, {})

    def _run(self, driver: Driver) -> Calls:
        """Return the calls that a driver shows; run on the meta device, or on the CPU if it fails there."""
        if driver.key not in self._known:
            steps = sum(self._steps_of.values())
            if len(self._known) >= _MAX_TRIED or steps > _MAX_ALL_STEPS or time.process_time() > _LAST_SECONDS:
                return {}
            self._steps_of[driver.key] = 0
            known: dict[str, list[RecordedCall]] = {}
            for on_meta in (True, False):
                recorder = SourceRecorder(self._packages, _MAX_STEPS, self._registries.find_type, self._bases)
                try:
                    with _ending_waits(), recorder:
                        driver.run(on_meta)
                except (Exception, _WaitingError) as failure:  # noqa: BLE001 (what is foreign raises anything, outside of attempts, too)
                    worked = any(map(_has_forward, recorder.calls.values())) and "meta" not in str(failure)
                    ends = worked or recorder.count_largest() > _MOST_ON_CPU
                else:
                    ends = True
                self._steps_of[driver.key] += recorder.steps
                recorder.forget()
                torch.set_default_dtype(torch.float32)
                known = recorder.calls | {key: calls for key, calls in known.items() if _has_forward(calls)}
                if ends:
                    break
            self._known[driver.key] = known
        return self._known[driver.key]


def _has_forward(calls: Sequence[RecordedCall]) -> bool:
    return any("forward" in call.calls and call.worked for call in calls)


def spread(items: Sequence[T]) -> list[T]:
    """Return items in an order that is spread evenly from its start on: neighbors make one model in two sizes.

    Args: items: of one module, in the order of its text; the first stays the first.
    Returns: of eight those at 0, 4, 2, 6, 1, 5, 3, 7.
    """
    bits = max(1, (len(items) - 1).bit_length())
    return [items[place] for place in sorted(range(len(items)), key=lambda place: f"{place:0{bits}b}"[::-1])]
