"""What the server imports before it forks: the heavy libraries, and the entries of the jobs."""

import gc
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from .compiler import defer_compiler

Entry = Callable[[dict[str, object]], object]


class Library:
    """Entries by their names. The caller's own packages are found where the caller has them."""

    def __init__(self, packages: dict[str, str]) -> None:
        self._entries: dict[str, Entry] = {}
        sys.meta_path.insert(0, _OwnPackages(packages))

    def preload(self, modules: Sequence[str], entries: Sequence[str]) -> None:
        """Import it all, and make what was imported cheap to share with forked children.

        Raises: whatever a module raises while it is imported.
        """
        for name in modules:
            importlib.import_module(name)
            if name == "torch":
                sys.modules[name].set_num_threads(1)  # a pool of threads would not survive the fork
                defer_compiler()
        for entry in entries:
            self.load(entry)
        gc.collect()
        gc.freeze()  # so that a collection in a child does not copy every page that it looks at

    def load(self, name: str) -> Entry:
        """The function that "package.module:function" names.

        Raises: ImportError or AttributeError if there is none.
        """
        if name not in self._entries:
            module, _, function = name.partition(":")
            self._entries[name] = getattr(importlib.import_module(module), function)
        return self._entries[name]


class _OwnPackages(importlib.abc.MetaPathFinder):
    """Finds the caller's packages, and nothing else that lies beside them."""

    def __init__(self, folders: dict[str, str]) -> None:
        self._folders = folders

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """The spec of one of these packages; their modules are then found in the ordinary way."""
        folder = self._folders.get(fullname)
        if folder is None:
            return None
        file = Path(folder) / "__init__.py"
        return importlib.util.spec_from_file_location(fullname, file, submodule_search_locations=[folder])
