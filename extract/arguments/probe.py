"""How a block's file is executed inside the sandbox, and its errors told. Little else is imported here."""

import sys
import traceback
import warnings
from collections.abc import Collection
from types import ModuleType

from lemur_core.sandbox.server.foreign import load as load_module
from lemur_core.sandbox.server.foreign import message_of
from lemur_core.sandbox.server.foreign import one_line as to_line

MODULE_NAME = "block"


class _Hidden:
    """Finds no module of some packages, before any other finder can."""

    def __init__(self, packages: Collection[str]) -> None:
        self._packages = frozenset(packages)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        """None for every other module, so that the next finder is asked.

        Raises: ModuleNotFoundError for a hidden one.
        """
        if fullname.partition(".")[0] in self._packages:
            raise ModuleNotFoundError(f"No module named {fullname!r} (the block's origin)", name=fullname)


def hide(packages: Collection[str]) -> None:
    """Make packages impossible to import, and forget those that are imported already.

    Of torchvision an empty module stays: a file may import it for its compiled operators, which are registered here.
    """
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Hidden(packages))
    if "torchvision" in packages:
        sys.modules["torchvision"] = ModuleType("torchvision")


def load(code: str) -> ModuleType:
    """Execute a file as the module `block`, without its warnings."""
    sys.dont_write_bytecode = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_module(code, MODULE_NAME)


def classify_error(error: BaseException) -> str:
    """The category of an error: its type in snake case, the commonest ones by what they mean."""
    if isinstance(error, ModuleNotFoundError):
        return "missing_dependency"
    name = type(error).__name__
    if name in {"OSError", "RuntimeError", "AssertionError", "KeyError", "IndexError", "ValueError"}:
        return "runtime_error"
    return "".join("_" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(name))


def one_line(error: BaseException) -> str:
    """Type, message and the line of the block's file that raised it."""
    message = to_line(message_of(error), 300)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith(f"{MODULE_NAME}.py")]
    where = f" (line {frames[-1].lineno}: {(frames[-1].line or '')[:120]})" if frames else ""
    return f"{type(error).__name__}: {message}{where}"
