"""Inside the sandbox: load a foreign file as a module, and format its errors in one line, the same on every machine."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

#: The module name of a network's file.
NETWORK = "network"

_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{4,}\b")
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[\w.+@~-]+/)+(?=[\w.+@~-])")


def load(code: str, name: str) -> ModuleType:
    """Execute code as a module.

    Args: name: of the module; its file is written to the working folder, where inspect and TorchScript look for it.
    Returns: the module, which is also in `sys.modules`, so that its classes can be pickled.
    """
    path = Path(f"{name}.py").resolve()
    path.write_text(code, encoding="utf-8", newline="\n")
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


def run_text(payload: dict[str, Any]) -> object:
    """Entry of a job: execute the file `code`, and return its global `answer`."""
    return vars(load(payload["code"], NETWORK)).get("answer")


def one_line(text: str, limit: int) -> str:
    """Return the text without what differs between runs: line breaks, memory addresses, folders of this machine.

    Args: limit: characters to keep.
    Returns: one line, with ` …` at the end if it was cut.
    """
    text = _FOLDERS.sub("", _ADDRESS.sub("0x…", " ".join(text.split())))
    return text if len(text) <= limit else f"{text[:limit]} …"


def read_message(error: BaseException) -> str:
    """Return the message of a foreign exception.

    Args: error: its `__str__` is foreign code, too.
    Returns: a text that says so if there is no message because `__str__` fails.
    """
    try:
        return str(error)
    except BaseException as broken:  # noqa: BLE001 (foreign code, too)
        return f"(its message is unavailable: {type(broken).__name__})"


def list_causes(error: BaseException) -> list[BaseException]:
    """Return an exception and its chain of causes and contexts, each once."""
    seen: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in seen:
        seen.append(link)
        link = link.__cause__ or link.__context__
    return seen
