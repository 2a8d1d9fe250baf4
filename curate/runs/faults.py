"""What went wrong in a network's file: one line, the same on every machine."""

import traceback

from lemur_core.sandbox.foreign import NETWORK, message_of, one_line

_MESSAGE_CHARACTERS = 240
_LINE_CHARACTERS = 100


class ProbeError(Exception):
    """The network does not run: its category, one line, and the module that is missing, if that is why."""

    def __init__(self, category: str, detail: str, missing: str = "") -> None:
        super().__init__(detail)
        self.category, self.detail, self.missing = category, detail, missing


def describe(error: BaseException, tried: str) -> str:
    """Type, message, the last line of the network's own file that was being executed, and what was tried."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(f"{NETWORK}.py")]
    where = [f"line {frames[-1].lineno}: {one_line(frames[-1].line or '', _LINE_CHARACTERS)}"] if frames else []
    context = "; ".join([*where, *([tried] if tried else [])])
    told = f"{type(error).__name__}: {one_line(message_of(error), _MESSAGE_CHARACTERS)}"
    return f"{told} ({context})" if context else told


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
