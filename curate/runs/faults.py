"""Loading a network's file in the sandbox, and telling what went wrong in it: one line, the same on every machine."""

import importlib.util
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType

_MODULE = "network"
_MESSAGE_CHARACTERS = 240
_LINE_CHARACTERS = 100
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{4,}\b")
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[\w.+@~-]+/)+(?=[\w.+@~-])")


class ProbeError(Exception):
    """The network does not run: its category, one line, and the module that is missing, if that is why."""

    def __init__(self, category: str, detail: str, missing: str = "") -> None:
        super().__init__(detail)
        self.category, self.detail, self.missing = category, detail, missing


def load(code: str) -> ModuleType:
    """Execute a network's file as a module; it lies in the working folder, where inspect and TorchScript look."""
    path = Path(f"{_MODULE}.py").resolve()
    path.write_text(code, encoding="utf-8", newline="\n")
    specification = importlib.util.spec_from_file_location(_MODULE, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[_MODULE] = module
    specification.loader.exec_module(module)
    return module


def describe(error: BaseException, tried: str) -> str:
    """Type, message, the last line of the network's own file that was being executed, and what was tried."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(f"{_MODULE}.py")]
    where = [f"line {frames[-1].lineno}: {one_line(frames[-1].line or '', _LINE_CHARACTERS)}"] if frames else []
    context = "; ".join([*where, *([tried] if tried else [])])
    told = f"{type(error).__name__}: {one_line(message_of(error), _MESSAGE_CHARACTERS)}"
    return f"{told} ({context})" if context else told


def one_line(text: str, limit: int) -> str:
    """The text without what differs from run to run: line breaks, addresses in memory, folders of this machine."""
    text = _FOLDERS.sub("", _ADDRESS.sub("0x…", " ".join(text.split())))
    return text if len(text) <= limit else f"{text[:limit]} …"


def missing_module(error: BaseException) -> str:
    """The name of the module whose absence led to this error, or nothing."""
    seen: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in seen:
        if isinstance(link, ModuleNotFoundError) and link.name:
            return link.name
        seen.append(link)
        link = link.__cause__ or link.__context__
    return ""


def message_of(error: BaseException) -> str:
    """The message of a foreign exception."""
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 (foreign code, too)
        return f"(its message cannot be had: {type(broken).__name__})"
