"""Inside the sandbox: run the tests of a source, as far as they need nothing but values that are written down.

    @pytest.fixture
    def width():
        return 8

    @pytest.mark.parametrize("rate", [0.0, 0.5])
    def test_gate(width, rate):
        assert Gate(width, rate=rate)(torch.randn(2, width, 6, 6)).shape[1] == width

This runs once, with the first values: `test_gate(width=8, rate=0.0)`. What a test claims does not matter, but what it
calls does. A test whose arguments are unknown is left out. `pytest` is replaced, so that results do not depend on
whether it is installed; classes of `unittest` run, too.
"""

import contextlib
import functools
import importlib
import inspect
import re
import sys
import types
import unittest
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch import nn

from extract.arguments.trials import AttemptError, attempt, seed_all
from extract.recording.meta import LightTensors

_IMPORT_SECONDS, _SECONDS = 30.0, 10.0  # of CPU time
_MAX_TESTS = 24  # of one file
_MAX_FAILED = 12
_MAX_REPLACED = 8  # modules that one file lacks
_UNKNOWN = object()


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
    """`pytest.mark`, which keeps the first values of parameters with the test."""

    @staticmethod
    def parametrize(names: Any, values: Any, **_: Any) -> Callable[[Any], Any]:
        """Keep the first value of each name."""
        listed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        first = next(iter(values), _UNKNOWN)
        row = [first] if len(listed) == 1 else list(first) if isinstance(first, tuple | list) else []

        def keep(test: Any) -> Any:
            if first is not _UNKNOWN and len(row) == len(listed):
                test.first_values = {**dict(zip(listed, row, strict=True)), **getattr(test, "first_values", {})}
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
    """Return the module whose absence an error is due to; who catches the first one may raise another."""
    while error is not None:
        if isinstance(error, ImportError) and error.name:
            lacks = re.match(r"cannot import name '(_\w+)' from", str(error))
            if lacks or isinstance(error, ModuleNotFoundError):
                return f"{error.name}.{lacks[1]}" if lacks else error.name
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


def _fixture(function: Any = None, **_: Any) -> Any:
    if function is None:
        return _fixture
    function.is_fixture = True
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
    around = f"{name.rpartition('.')[0]}.conftest".lstrip(".")
    with contextlib.suppress(AttemptError):  # most folders have none
        _import_file(around)
    module = _import_file(name)
    spaces = [vars(sys.modules[space]) for space in (name, around) if space in sys.modules]
    tried = failed = 0
    failure = AttemptError(ValueError("no tests that can be run"))
    for test in _list_tests(module, spaces):
        if tried == _MAX_TESTS or failed == _MAX_FAILED:
            break
        tried += 1
        seed_all()
        try:
            with LightTensors(on_meta=on_meta, keeps_drawn=True), torch.no_grad():
                attempt(test, _SECONDS)
        except AttemptError as error:
            failed, failure = failed + 1, error
    if failed == tried:
        raise failure


def _list_tests(module: types.ModuleType, spaces: list[dict[str, Any]]) -> Iterator[Callable[[], Any]]:
    for name, value in list(vars(module).items()):
        if inspect.isfunction(value) and name.startswith("test"):
            yield functools.partial(_run, value, spaces)
        elif isinstance(value, type) and not issubclass(value, nn.Module) and _is_suite(name, value):
            for part in list(dict.fromkeys(part for owner in value.__mro__ for part in vars(owner))):
                if part.startswith("test") and callable(getattr(value, part)):
                    yield functools.partial(_run_method, value, part, spaces)


def _is_suite(name: str, cls: type) -> bool:
    own = issubclass(cls, unittest.TestCase) and cls.__module__ != "unittest.case"
    return own or (name.startswith("Test") and inspect.getattr_static(cls, "__init__", None) is object.__init__)


def _run_method(cls: type, name: str, spaces: list[dict[str, Any]]) -> None:
    """Run one test of a class, on a new instance that was set up."""
    case = cls(name) if issubclass(cls, unittest.TestCase) else cls()
    for before in ("setUpClass", "setup_class", "setUp", "setup_method"):
        prepare = getattr(case, before, None)
        if prepare is not None:
            _run(prepare, spaces)
    own = {part: getattr(case, part) for part in dir(cls) if hasattr(getattr(cls, part, None), "is_fixture")}
    _run(getattr(case, name), [own, *spaces])


def _run(function: Callable[..., Any], spaces: list[dict[str, Any]]) -> None:
    function(**_find_arguments(function, spaces))


def _find_arguments(function: Callable[..., Any], spaces: list[dict[str, Any]]) -> dict[str, Any]:
    """Return first values and the results of fixtures. Raises: _SkipTest if a required argument has neither."""
    known: Mapping[str, Any] = getattr(function, "first_values", {})
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        fixture = next((space[name] for space in spaces if hasattr(space.get(name), "is_fixture")), None)
        if name in known:
            arguments[name] = known[name]
        elif fixture is not None:
            value = fixture(**_find_arguments(fixture, spaces))
            arguments[name] = next(value) if inspect.isgenerator(value) else value
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise _SkipTest
    return arguments
