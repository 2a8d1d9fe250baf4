"""Execute a block's file inside the sandbox and describe its errors. Imports little else."""

import linecache
import re
import sys
import warnings
from collections.abc import Collection
from types import ModuleType

from lemur_core.sandbox.loader import load as load_module
from lemur_core.sandbox.server.foreign import is_kind, list_frames, name_type, read_message
from lemur_core.sandbox.server.foreign import one_line as to_line

MODULE_NAME = "block"
#: The files in which an error means that an operator is not Python: PyTorch's builder of extensions, and Triton.
_NATIVE_FILES = re.compile(r"torch/utils/cpp_extension\.py$|/triton/")
_NATIVE_MESSAGES = re.compile(
    r"not compiled with CUDA|NVIDIA driver|CUDA_HOME|No CUDA GPUs|\d active drivers|CUDA error|'_OpNamespace' '"
    r"|Could not load this library|undefined symbol|cannot open shared object file"
)
_EXTENSION = re.compile(r"_C[A-Z]*|(?:\w*_)?(?:cuda|ext|cpp)")  # usual names of extensions that a build compiles


class _Hidden:
    """A finder that makes the modules of some packages impossible to import."""

    def __init__(self, packages: Collection[str]) -> None:
        self._packages = frozenset(packages)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        """Return None for every other module, so that the next finder handles it.

        Raises: ModuleNotFoundError for a hidden one.
        """
        if _is_inside(fullname, self._packages):
            raise ModuleNotFoundError(f"No module named {fullname!r} (the block's origin)", name=fullname)


def hide(packages: Collection[str]) -> None:
    """Make packages impossible to import, and drop those that are already imported.

    An empty torchvision module is kept: files may import it for its compiled operators, which are registered already.
    """
    for name in [name for name in sys.modules if _is_inside(name, packages)]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Hidden(packages))
    if "torchvision" in packages:
        sys.modules["torchvision"] = ModuleType("torchvision")


def _is_inside(module: str, packages: Collection[str]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def load(code: str) -> ModuleType:
    """Execute a file as the module `block`, and suppress its warnings."""
    sys.dont_write_bytecode = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_module(code, MODULE_NAME)


def classify_error(error: BaseException) -> str:
    """Return the category of an error: its type in snake case; the most common types share `runtime_error`.

    What needs a compiler for C++ or CUDA, its results, Triton's compiler or a GPU is `native_op`, whatever its type.
    """
    if is_kind(error, ModuleNotFoundError):
        missing = re.search(r"No module named '(?:[\w.]*\.)?(\w+)'", read_message(error))
        return "native_op" if missing and _EXTENSION.fullmatch(missing[1]) else "missing_dependency"
    if _read_variable(error):
        return "environment_variable"
    if _NATIVE_MESSAGES.search(read_message(error)) or any(
        _NATIVE_FILES.search(file) for file, _, _ in list_frames(error)
    ):
        return "native_op"
    name = name_type(error)
    if name in {"OSError", "RuntimeError", "AssertionError", "KeyError", "IndexError", "ValueError"}:
        return "runtime_error"
    return "".join("_" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(name))


def _read_variable(error: BaseException) -> str:
    """Return the environment variable whose absence led to an error; "" if it was not that."""
    frames = list_frames(error)
    # The file of `os` is part of the interpreter.
    unset = is_kind(error, KeyError) and frames and frames[-1][0] == "<frozen os>" and frames[-1][2] == "__getitem__"
    return read_message(error).strip("'\"") if unset else ""


def one_line(error: BaseException) -> str:
    """Return the type and message of an error, and the last line of the block's file that it passed, in one line."""
    variable = _read_variable(error)
    reason = f"the environment variable {variable} is not set, and its source assigns no literal value to it"
    message = to_line(reason if variable else read_message(error), 300)
    lines = [(file, line) for file, line, _ in list_frames(error) if file.endswith(f"{MODULE_NAME}.py")]
    where = f" (line {lines[-1][1]}: {linecache.getline(*lines[-1]).strip()[:120]})" if lines else ""
    return f"{name_type(error)}: {message}{where}"
