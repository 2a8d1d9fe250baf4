r"""Receive what foreign code or an endpoint answers: cleaned texts, and values and sizes within bounds.

>>> receive({"message": "a lone \ud800", "sizes": [1, 2.5]})
{'message': 'a lone \\ud800', 'sizes': [1, 2.5]}
"""

import json
import math
import zlib
from typing import Any

#: Nested lists and objects of a value. Python's and pydantic's readers of JSON stop at about 1,000 and 200.
MAX_DEPTH = 100
#: The most that packed data may hold: the graph of a network with about 100,000 operations.
MAX_INFLATED_BYTES = 16 * 2**20
#: What a column of a table holds.
INTEGERS = range(-(2**63), 2**63)


def clean_text(text: str) -> str:
    r"""Return a text with escapes for what UTF-8 and tables cannot hold: `\ud800` for a lone surrogate, `\x00` for NUL.

    A backslash stays as it is, so that the escape of a character looks like the same text in the original.

    Args: text: a text of any origin.
    Returns: a text that UTF-8 and every column of a table can hold.
    """
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", r"\x00")


def receive(value: object, *, any_number: bool = False, depth: int = 0) -> Any:
    """Return a decoded JSON value with every string and every key cleaned; of keys that become equal, the last counts.

    Args: any_number: accept numbers that no table holds, as Python reads them from JSON.
    Returns: the same value in new lists and objects.
    Raises: ValueError if it is nested deeper than `MAX_DEPTH`, or has a number that is not finite, or an integer of
        more than 64 bits.
    """
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list | dict) and depth == MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, list):
        return [receive(item, any_number=any_number, depth=depth + 1) for item in value]
    if isinstance(value, dict):
        return {clean_text(name): receive(item, any_number=any_number, depth=depth + 1) for name, item in value.items()}
    if any_number:
        return value
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    if isinstance(value, int) and value not in INTEGERS:
        raise ValueError("an integer of more than 64 bits")
    return value


def read_json(data: bytes) -> Any:
    """Return the value in a file of JSON in which all readers find the same.

    Raises: ValueError, in one line, if it is not UTF-8 without a byte-order mark, holds an object with a key twice, or
        has a value that `receive` refuses.
    """
    try:
        # The first 40 digits of an integer tell that it has more than 64 bits; Python refuses to convert thousands.
        return receive(json.loads(data.decode(), object_pairs_hook=_join, parse_int=lambda digits: int(digits[:40])))
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None


def _join(pairs: list[tuple[str, object]]) -> dict[str, object]:
    joined: dict[str, object] = {}
    for key, value in pairs:
        if key in joined:
            raise ValueError(f"the key {key[:40]!r} twice in one object")
        joined[key] = value
    return joined


def inflate(data: bytes, limit: int = MAX_INFLATED_BYTES) -> bytes:
    """Decompress the output of `zlib.compress`.

    Args: limit: the maximum number of bytes of the content; never more than that are in memory.
    Returns: the content, whole.
    Raises: ValueError if it holds more, or the data is incomplete.
    """
    reader = zlib.decompressobj()
    try:
        content = reader.decompress(data, limit + 1)
    except zlib.error as error:
        raise ValueError(f"not packed data: {error}") from error
    if len(content) > limit:
        raise ValueError(f"holds more than {limit:,} bytes")
    if not reader.eof or reader.unused_data:
        raise ValueError("not packed data: cut short, or something follows it")
    return content
