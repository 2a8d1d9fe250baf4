"""Inside the sandbox: a foreign file as a module, and its errors as single lines, the same on every machine."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

#: The module that a network's file becomes.
NETWORK = "network"

_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{4,}\b")
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[\w.+@~-]+/)+(?=[\w.+@~-])")


def load(code: str, name: str) -> ModuleType:
    """Execute a file as a module of this name; it lies in the working folder, where inspect and TorchScript look."""
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
    """An entry: what a file of `code` leaves under the name `answer`."""
    return vars(load(payload["code"], NETWORK)).get("answer")


def one_line(text: str, limit: int) -> str:
    """The text without what differs from run to run: line breaks, addresses in memory, folders of this machine."""
    text = _FOLDERS.sub("", _ADDRESS.sub("0x…", " ".join(text.split())))
    return text if len(text) <= limit else f"{text[:limit]} …"


def message_of(error: BaseException) -> str:
    """The message of a foreign exception."""
    try:
        return str(error)
    except BaseException as broken:  # noqa: BLE001 (foreign code, too)
        return f"(its message cannot be had: {type(broken).__name__})"


def causes_of(error: BaseException) -> list[BaseException]:
    """An exception, and what it was raised from or while handling, each once."""
    seen: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in seen:
        seen.append(link)
        link = link.__cause__ or link.__context__
    return seen
