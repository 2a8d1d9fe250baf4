"""Path patterns: which files of a source are asked for."""

import re
from functools import lru_cache


@lru_cache(maxsize=256)
def compile_patterns(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """One expression for `match` against paths with forward slashes; it matches what any of the patterns does.

    A pattern is a file or a folder with all below it (`timm/layers`); `.py` may be left out (`models_mae`). It may hold
    `*` and `?` (within one name), `**` (any number of folders) and `[seq]` or `[!seq]`.
    """
    return re.compile("|".join(f"(?:{_translate(pattern)})" for pattern in patterns) or "(?!)")


def _translate(pattern: str) -> str:
    pattern = pattern.strip("/").removeprefix("./")
    if pattern in ("", "."):
        return ""
    parts = [r"(?:[^/]+/)*" if part == "**" else _translate_name(part) + "/" for part in pattern.split("/")]
    if pattern.endswith("**"):
        return "".join(parts)
    return "".join(parts).removesuffix("/") + r"(?:/|\.py$|$)"


def _translate_name(name: str) -> str:
    made = []
    place = 0
    while place < len(name):
        sign = name[place]
        place += 1
        end = name.find("]", place + 2 if name[place : place + 1] == "!" else place + 1) if sign == "[" else -1
        if sign == "*":
            made.append("[^/]*")
        elif sign == "?":
            made.append("[^/]")
        elif end > 0:
            inner = name[place:end]
            negated = inner.startswith("!")
            inner = inner.removeprefix("!").replace("\\", r"\\").replace("^", r"\^").replace("[", r"\[")
            made.append(f"(?!/)[{'^' if negated else ''}{inner}]")
            place = end + 1
        else:
            made.append(re.escape(sign))
    return "".join(made)
