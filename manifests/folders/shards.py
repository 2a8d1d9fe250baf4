"""The files of a page that are read on demand: compressed JSON in base64, as the argument of a call of `lemur`."""

import base64
import json
import re
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lemur_core.files import Json
from lemur_core.files.atomic import write_text

_SHARD_CHARACTERS = 2_500_000  # before compression: quick to load, and similar texts share one
_TOO_LITTLE = 8 * 1024  # bytes; below this, heavy content is not attempted


@dataclass(frozen=True, slots=True)
class OptionalContent:
    """Content that is left out if the page would become too large: lines of a text, or any JSON value."""

    content: Any


def pack(text: str) -> str:
    """Return a text compressed, in characters that neither HTML nor JavaScript treats as special."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


class Shards:
    """Writes the views of entries, several entries per file. Each file holds every line of its texts once.

    `limit` is in bytes: heavy content that would exceed it is left out. `starts` are the first entries of the files,
    and `left` the bytes that remain.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self.left = folder, limit
        self.starts: list[int] = []
        self.left_out = 0
        self._entries = self._files = 0
        self._begin()

    def put(self, views: Sequence[Json]) -> None:
        """Add the views of the next entry."""
        if self._size > _SHARD_CHARACTERS:
            self.close()
        self._add(views)

    def close(self) -> None:
        """Write the remaining views: in one file, in several if that is too large, or without heavy content."""
        views, packed = self._views, self._pack()
        if len(packed) <= self.left or self._bare:
            if views:
                self.put_packed(packed)
                self.starts.append(self._entries)
                self._entries += len(views)
            self._begin()
            return
        # Halved until it fits; a single entry that does not loses its heavy content.
        half = len(views) // 2
        for part in [views[:half], views[half:]] if half else [views]:
            self._begin(bare=not half or self.left < _TOO_LITTLE)
            for item in part:
                self._add(item)
            self.close()

    def put_packed(self, packed: str) -> None:
        """Write the next file: the views of entries, or, after the last of these, other data."""
        text = f'lemur({self._files},"{packed}");\n'
        write_text(self._folder / f"{self._files:03d}.js", text)
        self._files += 1
        self.left -= len(text)

    def _begin(self, *, bare: bool = False) -> None:
        self._lines: dict[str, int] = {}
        self._views: list[Sequence[Json]] = []
        self._rows: list[str] = []
        self._size: int = 0  # characters
        self._bare = bare

    def _add(self, views: Sequence[Json]) -> None:
        row = json.dumps(views, default=self._plain, separators=(",", ":"))
        self._views.append(views)
        self._rows.append(row)
        self._size += len(row)

    def _pack(self) -> str:
        lines = json.dumps(list(self._lines), separators=(",", ":"))
        return pack(f'{{"lines":{lines},"entries":[{",".join(self._rows)}]}}')

    def _plain(self, value: object) -> Any:
        """Encode heavy content as JSON: a text as runs of lines, each with its first line and length."""
        assert isinstance(value, OptionalContent), value
        if self._bare:
            self.left_out += 1
            return None
        if not isinstance(value.content, list):
            return value.content
        runs: list[int] = []
        for line in value.content:
            if line not in self._lines:
                self._size += len(line)
            number = self._lines.setdefault(line, len(self._lines))
            if runs and runs[-2] + runs[-1] == number:
                runs[-1] += 1
            else:
                runs += [number, 1]
        return runs


# The full-text index of a page: which entries have a word in their texts, and which have it in their code.
# `Conv2d`, `self_attention` and `cifar-10` are one word each; the page finds every word that contains what is searched.
# The entries of a word are a string of the gaps between their numbers, five bits per character, the lowest bits first:
# 32 is added if the number continues in the next character, and 48 to make it plain text.

_TEXT, _CODE = re.compile(r"[^\W\d]\w*(?:-\w+)*"), re.compile(r"[^\W\d]\w*")
_LONGEST = 40  # characters of a word; longer ones are digests
_FILE_CHARACTERS = 2_000_000  # before compression
_TRIES = 12  # each drops the words of twice as many entries


class WordIndex:
    """Collects the words of entries, which are added in the order of their numbers."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[array[int], array[int]]] = {}

    def add(self, number: int, own: Sequence[str], views: Iterable[Json]) -> None:
        """Add the words of an entry.

        Args: number, own, views: its number, texts besides its views, and these as they are given to the page.
        """
        words: tuple[set[str], set[str]] = set(_find_words(_TEXT, own)), set()
        for view in views:
            is_code = view["view"] in ("code", "versions")
            words[is_code].update(_find_words(_CODE if is_code else _TEXT, _list_texts(_choose_content(view))))
        for at, of_kind in enumerate(words):
            for word in of_kind:
                self._entries.setdefault(word, (array("i"), array("i")))[at].append(number)

    def pack(self, limit: int) -> tuple[int, list[str]]:
        """Compress the index.

        Args: limit: maximum number of bytes.
        Returns: the least number of entries that an indexed word has, above 1 only if more would exceed the limit; and
            the data of each file, none if nothing fits.
        """
        for least in (2**exponent for exponent in range(_TRIES)):
            files = [pack(text) for text in self._divide(least)]
            if files and sum(map(len, files)) <= limit:
                return least, files
        return 0, []

    def _divide(self, least: int) -> Iterator[str]:
        """Yield the index as JSON, in files of limited size: words, and for each its entries in text and in code."""
        rows: list[tuple[str, str, str]] = []
        size = 0
        for word, (text, code) in sorted(self._entries.items()):
            if len(text) + len(code) >= least:
                rows.append((word, _encode(text), _encode(code)))
                size += sum(map(len, rows[-1]))
            if size > _FILE_CHARACTERS:
                yield json.dumps(list(zip(*rows, strict=True)), separators=(",", ":"))
                rows, size = [], 0
        if rows:
            yield json.dumps(list(zip(*rows, strict=True)), separators=(",", ":"))


def _choose_content(view: Json) -> object:
    """Return the parts of a view that are searched: no headings, and of versions only the entry's own text."""
    match view["view"]:
        case "facts":
            return [value for _, value in view["rows"]]
        case "graph":
            return [box[:2] for box in view["boxes"].content["boxes"]]
        case "note":
            return view["paragraphs"]
        case "table" | "results":
            return view["rows"]
        case _:
            return view.get("text")


def _list_texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, OptionalContent):
        yield from value.content
    elif isinstance(value, Mapping):
        yield str(value["text"])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _list_texts(item)


def _find_words(pattern: re.Pattern[str], texts: Iterable[str]) -> Iterator[str]:
    return (word for word in pattern.findall("\n".join(texts).lower()) if len(word) <= _LONGEST)


def _encode(numbers: Iterable[int]) -> str:
    characters, last = [], -1
    for number in numbers:
        gap, last = number - last, number
        while gap >= 32:
            characters.append(chr(48 + 32 + (gap & 31)))
            gap >>= 5
        characters.append(chr(48 + gap))
    return "".join(characters)
