"""Inside the sandbox: run the tests of a source, as far as they need nothing but values that are written down.

    @pytest.fixture
    def width():
        return 8

    @pytest.mark.parametrize("rate", [0.0, 0.5])
    def test_gate(width, rate):
        assert Gate(width, rate=rate)(torch.randn(2, width, 6, 6)).shape[1] == width

All tests run with their first values, `test_gate(width=8, rate=0.0)`, and then with the other ones. What a test claims
does not matter, but what it calls does. A test whose arguments are unknown is left out. `pytest` is replaced, so that
results do not depend on whether it is installed; classes of `unittest` run, too.
"""

import contextlib
import functools
import importlib
import inspect
import itertools
import re
import sys
import tempfile
import time
import traceback
import types
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from extract.arguments.trials import AttemptError, attempt, seed_all
from extract.recording.meta import LightTensors

_IMPORT_SECONDS, _SECONDS = 30.0, 4.0  # of CPU time
_MAX_TESTS, _MAX_ROWS = 120, 12  # of one file, and of one test
_FILE_SECONDS = 4.0  # of CPU time; the counts end ordinary files
_MAX_FAILED = 40
_MOST_DRAWN = 10_000_000  # elements of the models that one test constructs with values
_MAX_REPLACED = 8  # modules that one file lacks
#: "numpy.core.multiarray failed to import", "Could not find module '_version_cpu' in ..."
_UNLOADED = re.compile(r"multiarray failed|ould not find module '_|undefined symbol|cannot open shared object")
_NEEDS_VALUES = re.compile(r"meta tensor|on meta|'meta'|does not require grad|numpy")


class _SkipTest(BaseException):
    """A test that does not want to run; no `Exception`, which tests may expect."""


class _Anything:
    """Takes any attribute and any call: decorators return what they decorate."""

    def __getattr__(self, name: str) -> "_Anything":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **_: Any) -> Any:
        return args[0] if len(args) == 1 and (inspect.isfunction(args[0]) or isinstance(args[0], type)) else self


class _Marks(_Anything):
    """`pytest.mark`, which keeps the values of parameters with the test."""

    @staticmethod
    def parametrize(names: Any, values: Any, **_: Any) -> Callable[[Any], Any]:
        """Keep the values of each name."""
        listed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        rows = [[value] if len(listed) == 1 else value for value in itertools.islice(values, _MAX_ROWS)]

        def keep(test: Any) -> Any:
            if all(isinstance(row, tuple | list) and len(row) == len(listed) for row in rows):
                mine = [dict(zip(listed, row, strict=True)) for row in rows]
                test.known_values = [*vars(test).get("known_values", ()), *([mine] if mine else ())]
            return test

        return keep


class _Raises:
    """`pytest.raises`: what is expected to fail may fail."""

    value = None

    def __enter__(self) -> "_Raises":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, Exception)


class ReplacedModule(types.ModuleType):
    """A module that is nowhere, such as one that would have to be compiled: no function in it works."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._fail

    def _fail(self, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError(f"{self.__name__} is not there")


def find_absent(error: BaseException | None) -> str | None:
    """Return the module whose absence an error is due to; who catches the first one may raise another.

    A package whose compiled parts cannot be loaded here counts as absent, too.
    """
    while error is not None:
        if isinstance(error, ImportError) and error.name:
            lacks = re.match(r"cannot import name '(_\w+)' from", str(error))
            if lacks or isinstance(error, ModuleNotFoundError):
                return f"{error.name}.{lacks[1]}" if lacks else error.name
        if isinstance(error, ImportError) and _UNLOADED.search(str(error)):
            frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
            tops = [str(frame.f_globals["__name__"]).partition(".")[0] for frame in frames]
            return next((top for top in reversed(tops) if top not in sys.stdlib_module_names), None)
        error = error.__context__
    return None


def _import_file(name: str) -> types.ModuleType:
    """Import a file of tests; what it lacks is replaced for it alone. Raises: AttemptError."""
    replaced: list[str] = []
    try:
        while True:
            try:
                attempt(functools.partial(importlib.import_module, name), _IMPORT_SECONDS)
            except AttemptError as error:
                absent = find_absent(error.cause)
                if absent is None or absent in replaced or name.startswith(absent) or len(replaced) == _MAX_REPLACED:
                    raise
                replaced.append(absent)
                sys.modules[absent] = ReplacedModule(absent)
            else:
                return sys.modules[name]
    finally:
        for absent in replaced:
            sys.modules.pop(absent, None)


def _fixture(function: Any = None, *, name: str | None = None, params: Any = (), **_: Any) -> Any:
    if function is None:
        return functools.partial(_fixture, name=name, params=params)
    function.fixture_name = name or function.__name__
    function.values = list(itertools.islice(params or (), _MAX_ROWS))
    return function


def _skip(*_: Any, **__: Any) -> None:
    raise _SkipTest


def _import_or_skip(name: str, **_: Any) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise _SkipTest from None


def stand_in() -> types.ModuleType:
    """Return a module with the parts of pytest that tests use most."""
    module = types.ModuleType("pytest")
    vars(module).update(
        mark=_Marks(),
        fixture=_fixture,
        skip=_skip,
        fail=_skip,
        importorskip=_import_or_skip,
        raises=lambda *_, **__: _Raises(),
        warns=lambda *_, **__: _Raises(),
        param=lambda *values, **_: values[0] if len(values) == 1 else values,
        approx=lambda value, **_: value,
        __getattr__=_Anything().__getattr__,
    )
    return module


def run_tests(name: str, on_meta: bool) -> None:
    """Import a file of tests and run them. Raises: AttemptError if it cannot be imported, or nothing in it runs."""
    sys.modules["pytest"] = stand_in()
    parents = list(itertools.accumulate(name.split(".")[:-1], "{}.{}".format))[::-1]
    around = [*(f"{parent}.conftest" for parent in parents), "conftest"]
    for space in around:
        with contextlib.suppress(AttemptError):  # most folders have none
            _import_file(space)
    module = _import_file(name)
    spaces = [_list_fixtures(vars(sys.modules[space])) for space in (name, *around) if space in sys.modules]
    ends = time.process_time() + _FILE_SECONDS
    failed, runs = 0, False
    failure = AttemptError(ValueError("no tests that can be run"))
    tests = list(_list_tests(module, spaces))
    # Each with its first values before one with others.
    turns = ((turn, test) for turn in range(_MAX_ROWS) for turns, test in tests if turn < turns)
    for turn, test in itertools.islice(turns, _MAX_TESTS):
        if failed == _MAX_FAILED or time.process_time() > ends:
            break
        error = _attempt_test(functools.partial(test, turn), on_meta)
        if error is None:
            runs = True
        else:
            failed, failure = failed + (not isinstance(error.cause, _SkipTest)), error
    if not runs:
        raise failure


def _attempt_test(test: Callable[[], None], on_meta: bool) -> AttemptError | None:
    """Run one test; what only real values, or gradients, allow runs again with them. Returns: the failure."""
    failure = None
    for light in (True, False) if on_meta else (False,):
        seed_all()
        try:
            with (
                LightTensors(on_meta=light, keeps_drawn=True, most_drawn=_MOST_DRAWN),
                torch.set_grad_enabled(not light),
            ):
                attempt(test, _SECONDS)
        except (AttemptError, PermissionError) as error:  # what the sandbox denies it, it denies to no other test
            failure = error if isinstance(error, AttemptError) else AttemptError(error)
            if not _NEEDS_VALUES.search(str(error)):
                break
        else:
            return None
    return failure


_Test = tuple[int, Callable[[int], None]]  # with how many values, and what takes the number of one


def _list_tests(module: types.ModuleType, spaces: Sequence[Mapping[str, Any]]) -> Iterator[_Test]:
    for name, value in list(vars(module).items()):
        if inspect.isfunction(value) and name.startswith("test"):
            yield _count_values(value, spaces), functools.partial(_run, value, spaces)
        elif isinstance(value, type) and not issubclass(value, nn.Module) and _is_suite(name, value):
            for part in list(dict.fromkeys(part for owner in value.__mro__ for part in vars(owner))):
                if part.startswith("test") and callable(getattr(value, part)):
                    own = [{"known_values": getattr(value, "known_values", ())}, *spaces]
                    yield _count_values(getattr(value, part), own), functools.partial(_run_method, value, part, spaces)


def _is_suite(name: str, cls: type) -> bool:
    own = issubclass(cls, unittest.TestCase) and cls.__module__ != "unittest.case"
    return own or (name.startswith("Test") and inspect.getattr_static(cls, "__init__", None) is object.__init__)


def _run_method(cls: type, name: str, spaces: Sequence[Mapping[str, Any]], turn: int) -> None:
    """Run one test of a class, on a new instance that was set up."""
    case = cls(name) if issubclass(cls, unittest.TestCase) else cls()
    for before in ("setUpClass", "setup_class", "setUp", "setup_method"):
        prepare = getattr(case, before, None)
        if prepare is not None:
            _run(prepare, spaces, turn)
    own = _list_fixtures(
        {part: getattr(case, part) for part in dir(cls) if hasattr(getattr(cls, part, None), "fixture_name")}
    )
    _run(getattr(case, name), [own | {"known_values": getattr(cls, "known_values", ())}, *spaces], turn)


def _run(function: Callable[..., Any], spaces: Sequence[Mapping[str, Any]], turn: int) -> None:
    function(**_find_arguments(function, spaces, turn))


def _list_fixtures(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fixtures of a module or class by the names that tests use."""
    return {
        value.fixture_name: value
        for value in list(space.values())
        if inspect.isroutine(value) and hasattr(value, "fixture_name")
    }


def _list_known(function: Any, spaces: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
    return [*getattr(function, "known_values", ()), *(spaces[0].get("known_values", ()) if spaces else ())]


def _count_values(function: Any, spaces: Sequence[Mapping[str, Any]]) -> int:
    """Return with how many values a test can run: as many as the parameter or fixture with the most has."""
    names = inspect.signature(function).parameters
    fixtures = (space[name] for name in names for space in spaces if name in space)
    return max(map(len, (*_list_known(function, spaces), *(fixture.values for fixture in fixtures))), default=1) or 1


def _find_arguments(function: Callable[..., Any], spaces: Sequence[Mapping[str, Any]], turn: int) -> dict[str, Any]:
    """Return values and the results of fixtures. Raises: _SkipTest if a required argument has neither."""
    known: dict[str, Any] = {}
    for rows in _list_known(function, spaces):
        known |= rows[turn % len(rows)]
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        fixture = next((space[name] for space in spaces if name in space), None)
        if name in known:
            arguments[name] = known[name]
        elif fixture is not None:
            arguments[name] = _find_result(fixture, spaces, turn)
        elif name == "request":
            values = getattr(function, "values", ()) or (None,)
            arguments[name] = _Request(values[turn % len(values)], spaces, turn)
        elif name in ("tmp_path", "tmpdir"):
            arguments[name] = Path(tempfile.mkdtemp(dir=".")).resolve()
        elif name in ("monkeypatch", "capsys", "caplog", "recwarn"):
            arguments[name] = _Anything()
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise _SkipTest
    return arguments


def _find_result(fixture: Callable[..., Any], spaces: Sequence[Mapping[str, Any]], turn: int) -> Any:
    value = fixture(**_find_arguments(fixture, spaces, turn))
    return next(value) if inspect.isgenerator(value) else value


class _Request(_Anything):
    """The `request` of a fixture, with its value and other fixtures."""

    def __init__(self, param: Any, spaces: Sequence[Mapping[str, Any]], turn: int) -> None:
        self.param = param
        self._spaces, self._turn = spaces, turn

    def getfixturevalue(self, name: str) -> Any:
        """Return the result of another fixture."""
        return _find_result(next(space[name] for space in self._spaces if name in space), self._spaces, self._turn)
