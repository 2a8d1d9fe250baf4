"""Inside the sandbox: load a foreign file as a module."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from lemur_core.files.foreign import decode_python

#: The module name of a network's file.
NETWORK = "network"


def load(code: str, name: str) -> ModuleType:
    """Execute code as a module.

    Args: name: the name of the module; its file is written to the working folder for inspect and TorchScript.
    Returns: the module, which is also in `sys.modules`, so that its classes can be pickled.
    Raises: SyntaxError if Python would read another text from the file, and whatever the code raises.
    """
    path = Path(f"{name}.py").resolve()
    text = decode_python(code)
    path.write_bytes(text.encode())
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    # Not by the loader: bytecode of another code that was loaded here is taken for this one's if both have one length
    # and were written within a second.
    exec(compile(text, path, "exec", dont_inherit=True), vars(module))  # noqa: S102 (what the sandbox is for)
    return module


def run_text(payload: dict[str, Any]) -> object:
    """Entry of a job: execute the file `code`, and return its global `answer`."""
    return vars(load(payload["code"], NETWORK)).get("answer")
