"""Inside the sandbox: what the errors of foreign code say, in one line, the same on every machine."""

import re
from types import TracebackType
from typing import Any

# What an attribute of an exception really holds: a class may replace it with a property that raises, or never returns.
_TYPE_NAME: Any = type.__dict__["__name__"].__get__
_CAUSE: Any = BaseException.__dict__["__cause__"].__get__
_CONTEXT: Any = BaseException.__dict__["__context__"].__get__
_TRACEBACK: Any = BaseException.__dict__["__traceback__"].__get__
_ERRNO: Any = OSError.__dict__["errno"].__get__
_MISSING: Any = ImportError.__dict__["name"].__get__

_MESSAGE_CHARACTERS, _NAME_CHARACTERS, _MOST_CAUSES = 20_000, 200, 100
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{4,}\b")
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[\w.+@~-]+/)+(?=[\w.+@~-])")


def one_line(text: str, limit: int) -> str:
    """Return the text without what differs between runs: line breaks, memory addresses, folders of this machine.

    Args: limit: characters to keep.
    Returns: one line, with ` …` at the end if it was cut.
    """
    text = _FOLDERS.sub("", _ADDRESS.sub("0x…", " ".join(text.split())))
    return text if len(text) <= limit else f"{text[:limit]} …"


def name_type(error: BaseException) -> str:
    """Return the name of the type of a foreign exception.

    Args: error: its metaclass is foreign, too, and is not asked.
    Returns: at most 200 characters.
    """
    name: str = _TYPE_NAME(type(error))
    return name[:_NAME_CHARACTERS]


def is_kind(error: BaseException, kind: type[BaseException]) -> bool:
    """Return whether a foreign exception is of a type.

    Args: kind: a type of Python's own.
    Returns: the answer by the real type; `isinstance` would also ask its `__class__`, which may be foreign code.
    """
    return issubclass(type(error), kind)


def read_message(error: BaseException) -> str:
    """Return the message of a foreign exception.

    Args: error: its `__str__` is foreign code, too.
    Returns: at most 20,000 characters; a text that says so if there is no message because `__str__` fails.
    """
    try:
        return str.__str__(str(error))[:_MESSAGE_CHARACTERS]
    except BaseException as broken:  # noqa: BLE001 (foreign code, too)
        return f"(its message is unavailable: {name_type(broken)})"


def list_causes(error: BaseException) -> list[BaseException]:
    """Return an exception and its chain of causes and contexts.

    Args: error: foreign; the chain may be a circle.
    Returns: the exception first, each once, at most 100.
    """
    seen: dict[int, BaseException] = {}
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(seen) < _MOST_CAUSES:
        seen[id(link)] = link
        cause = _CAUSE(link)
        link = _CONTEXT(link) if cause is None else cause
    return list(seen.values())


def read_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback of a foreign exception.

    Args: error: its class may replace `__traceback__`, which is therefore not asked.
    Returns: None if it was never raised.
    """
    trace: TracebackType | None = _TRACEBACK(error)
    return trace


def list_frames(error: BaseException) -> list[tuple[str, int, str]]:
    """Return the frames of a foreign exception.

    Args: error: an exception that was raised; one that was not has none.
    Returns: file, line and function of each frame, the innermost last.
    """
    frames, link = [], read_traceback(error)
    while link is not None:
        code = link.tb_frame.f_code
        frames.append((code.co_filename[-_NAME_CHARACTERS:], link.tb_lineno, code.co_name[:_NAME_CHARACTERS]))
        link = link.tb_next
    return frames


def read_errno(error: BaseException) -> int | None:
    """Return the number of a system's error; None if this is none."""
    number = _ERRNO(error) if is_kind(error, OSError) else None
    return number if type(number) is int else None


def read_missing(error: BaseException) -> str:
    """Return the name of the module that could not be imported and led to this error; empty if that was not it."""
    for cause in list_causes(error):
        name = _MISSING(cause) if is_kind(cause, ModuleNotFoundError) else None
        if type(name) is str and all(part.isidentifier() for part in name.split(".")):
            return name if len(name) <= _NAME_CHARACTERS else name.partition(".")[0][:_NAME_CHARACTERS]
    return ""
