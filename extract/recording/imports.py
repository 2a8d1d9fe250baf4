"""Inside the sandbox: import modules of a source, of which some need what is nowhere, such as compiled operators."""

import importlib
import re
import sys
import traceback
import types
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from extract.arguments.trials import AttemptError, attempt
from lemur_core.sandbox.runtime import DECLARED

_IMPORT_SECONDS = 60.0  # of CPU time
_MAX_REPLACED = 8  # modules that one import lacks
#: "numpy.core.multiarray failed to import", "Could not find module '_version_cpu' in ..."
_UNLOADED = re.compile(
    r"multiarray failed|ould not find module '_|undefined symbol|shared object|ELF header|load this lib"
)
_SHARED = frozenset({*sys.stdlib_module_names, *DECLARED})  # they load the libraries of others


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
        # Cython names the frame of a module's initialization `init xtcocotools._mask`.
        compiled = [frame.f_code.co_name for frame in frames if frame.f_code.co_name.startswith("init ")]
        if isinstance(error, ValueError) and compiled:
            return compiled[0].removeprefix("init ")
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
