"""Inside the sandbox: run the tests of a source with pytest, for what they call; and import what lacks something.

    @pytest.fixture
    def width():
        return 8

    @pytest.mark.parametrize("rate", [0.0, 0.5])
    def test_gate(width, rate):
        assert Gate(width, rate=rate)(torch.randn(2, width, 6, 6)).shape[1] == width

All tests run with their first values, `test_gate[0.0]`, and then with the other ones. What a test claims does not
matter. The options and plugins of the project are not used, its `conftest.py` files are. Modules that are nowhere, such
as compiled operators, are replaced.
"""

import importlib
import itertools
import os
import re
import sys
import time
import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from extract.arguments.trials import AttemptError, attempt, seed_all
from extract.recording.meta import LightTensors
from lemur_core.sandbox.runtime import DECLARED
from lemur_core.sandbox.server.foreign import read_message

_IMPORT_SECONDS = 60.0  # of CPU time
_MAX_REPLACED = 8  # modules that one import lacks
#: "numpy.core.multiarray failed to import", "Could not find module '_version_cpu' in ..."
_UNLOADED = re.compile(
    r"multiarray failed|ould not find module '_|undefined symbol|shared object|ELF header|load this lib"
)
_SHARED = frozenset({*sys.stdlib_module_names, *DECLARED})  # they load the libraries of others
_SECONDS, _FILE_SECONDS = 4.0, 4.0  # of CPU time, for a test and a file; the counts end ordinary files
_MAX_TESTS, _MAX_ROWS = 120, 4  # of one file, and of one test
#: Plugins of pytest that cost time in each session, and that tests hardly ask for.
_WITHOUT = (
    *("cacheprovider", "stepwise", "faulthandler", "warnings", "unraisableexception", "threadexception", "logging"),
    *("doctest", "pastebin", "junitxml", "setuponly", "setupplan", "freeze_support"),
)
_OPTIONS = (
    *("-c", os.devnull, "--continue-on-collection-errors", "--capture=no", "--assert=plain", "-qq", "--no-summary"),
    *(word for plugin in _WITHOUT for word in ("-p", f"no:{plugin}")),
)
_NEEDS_VALUES = re.compile(r"meta tensor|on meta|'meta'|does not require grad|numpy")


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

    Modules that cannot be loaded here, since they were compiled for other versions, count as absent, too.
    """
    while error is not None:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        if isinstance(error, ImportError) and error.name:
            lacks = re.match(r"cannot import name '(_\w+)' from", str(error))
            if lacks or isinstance(error, ModuleNotFoundError):
                return f"{error.name}.{lacks[1]}" if lacks else error.name
        if isinstance(error, ImportError | OSError) and _UNLOADED.search(str(error)):
            if isinstance(error, ImportError) and error.name and "." in error.name:
                return error.name  # the compiled part itself
            tops = [str(frame.f_globals["__name__"]).partition(".")[0] for frame in frames]
            return next((top for top in reversed(tops) if top not in _SHARED), None)
        error = error.__context__
    return None


def import_module(name: str, may_replace: Callable[[str], bool], replaced: list[str]) -> None:
    """Import a module; what it lacks is replaced, and its name appended to `replaced`.

    Args: may_replace: says of the name of a module that is lacking whether it may be.
    Raises: AttemptError; PermissionError.
    """
    while True:
        try:
            attempt(partial(importlib.import_module, name), _IMPORT_SECONDS)
        except AttemptError as error:
            absent = find_absent(error.cause)
            is_known = isinstance(sys.modules.get(absent or ""), ReplacedModule)
            if absent is None or is_known or not may_replace(absent) or len(replaced) == _MAX_REPLACED:
                raise
            replaced.append(absent)
            sys.modules[absent] = ReplacedModule(absent)
        else:
            return


class _Plugin:
    """Chooses and runs the tests of one file. Args: name: of its module, which is imported already."""

    def __init__(self, file: Path, name: str) -> None:
        self._file = file
        self._name = name
        self._messages: list[str] = []  # of the errors of the test that runs
        self._ends = time.process_time() + _FILE_SECONDS

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out the other files of its folder."""
        return True if collection_path.suffix == ".py" and collection_path != self._file else None

    def pytest_pycollect_makemodule(self, module_path: Path, parent: Any) -> Any:
        """Return the node of the file, which is imported already, by its place in the project."""
        import pytest

        node = pytest.Module.from_parent(parent, path=module_path)
        node._getobj = partial(importlib.import_module, self._name)  # type: ignore[method-assign]
        return node

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep what passes a value that its test has not had yet: the first ones of all tests, then the second ones."""
        rows: dict[str, list[Any]] = {}
        had: set[tuple[str, str, int]] = set()
        for item in items:
            test = item.nodeid.partition("[")[0]
            values = getattr(getattr(item, "callspec", None), "params", {})
            new = {(test, name, id(value)) for name, value in values.items()} - had
            kept = rows.setdefault(test, [])
            # One test often goes through all classes of a module.
            passes_class = any(isinstance(getattr(value, "func", value), type) for value in values.values())
            if not values or (new and (len(kept) < _MAX_ROWS or passes_class)):
                kept.append(item)
            had |= new
        in_turns = itertools.zip_longest(*rows.values())
        items[:] = [item for turn in in_turns for item in turn if item is not None][:_MAX_TESTS]

    def pytest_runtest_protocol(self, item: Any) -> bool:
        """Run one test; what only real values, or gradients, allow runs again with them."""
        run = item.config.pluginmanager.get_plugin("runner").runtestprotocol
        if time.process_time() > self._ends:
            return True  # to stop the session writes a text about it
        for light in (True, False):
            self._messages.clear()
            seed_all()
            with LightTensors(on_meta=light), torch.set_grad_enabled(not light):
                # Without a next item: the fixtures of a whole file hold such tensors, too.
                attempt(partial(run, item, log=False, nextitem=None), _SECONDS)
            if not self._messages or not _NEEDS_VALUES.search(self._messages[0]):
                break
        return True

    def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
        """Note why a test failed, instead of writing a text about it."""
        import pytest

        if call.excinfo is not None:
            self._messages.append(read_message(call.excinfo.value))  # not the error, whose frames hold open files
        outcome: Any = "failed" if self._messages else "passed"
        return pytest.TestReport(item.nodeid, item.location, {}, outcome, None, call.when)


def run_tests(root: Path, path: str) -> None:
    """Run the tests in a file, with replacements of what they import and nobody has: none if it cannot be imported.

    Args: root: of the project, which may have files `conftest.py`. path: relative to it.
    """
    import pytest

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    options = [*_OPTIONS, "--rootdir", str(root), "--confcutdir", str(root), str(root / path)]
    name = path.removesuffix(".py").replace("/", ".")
    replaced: list[str] = []
    for folder in reversed(Path(path).parents):
        if (root / folder / "conftest.py").is_file():
            # Pytest imports it, too; here it shows what it lacks, and whether it works.
            settings = ".".join((*folder.parts, "conftest"))
            sys.modules.pop(settings, None)
            try:
                import_module(settings, lambda _: True, replaced)
            except (AttemptError, PermissionError):
                options.append("--noconftest")
    with suppress(AttemptError, PermissionError):
        import_module(name, lambda absent: not name.startswith(absent), replaced)
        pytest.main(options, plugins=[_Plugin(root / path, name)])
    for absent in replaced:
        sys.modules.pop(absent, None)
