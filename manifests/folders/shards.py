"""The files of a page that are read on demand: compressed JSON in base64, as the argument of a call of `lemur`."""

import base64
import json
import zlib
from collections.abc import Sequence
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
