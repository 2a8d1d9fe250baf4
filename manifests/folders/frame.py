"""The page of a finished folder: `index.html`, and `page/NNN.js` that it reads on demand; no network, no server.

A package states what there is to see as views, which are plain data; `page.js` turns each kind of view into elements,
and puts every text in as text. All data is compressed JSON in base64, whose letters mean nothing in HTML or JavaScript.
"""

import base64
import hashlib
import html
import itertools
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from lemur_core.files.atomic import sha256_file, write_text
from lemur_core.files.markdown import plural
from manifests.folders.manifest import INDEX, PAGE_FILES, SHARDS, Manifest, Stopwatch, is_of_page, write_manifest

#: Bytes of the index at most, and what the page may take of its folder; a very small folder may have some more.
INDEX_BYTES, SHARE, LEAST = 5_000_000, 0.30, 256 * 1024
#: Entries and further names of them that are listed at most.
ENTRIES, FURTHER_NAMES = 20_000, 40_000
_SHARD_CHARACTERS = 2_500_000  # before compression: one is read in a blink, and near texts stand together
_NAME = 240  # characters
_TOO_LITTLE = 8 * 1024  # bytes, in which it is not tried to place anything heavy
_STARTS = 16 * 1024  # bytes of the index that are known only at the end

#: One part of a page: its kind as `view`, mostly a `title`, and what its kind needs.
View = dict[str, Any]
#: What may stand in a cell: a text, a number, nothing, or a link.
Cell = str | int | float | Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class Heavy:
    """What is left out where the page would grow too large: lines of a text, or anything else as JSON can hold it."""

    content: Any


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing of a library, as it is listed.

    `facets` and `numbers` are as the library names them; `further` are other names that lead to it.
    """

    name: str
    note: str
    facets: tuple[str, ...]
    numbers: tuple[float | None, ...]
    further: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Library:
    """Entries that can be searched, filtered, sorted and opened.

    `views` are what each opens to, in the same order, made as they are written. `total` counts also those that are not
    listed, and `elsewhere` says where all are; `order` is the number that they are first sorted by, else their names;
    `by` is said before a further name.
    """

    title: str
    noun: str
    facets: tuple[str, ...]
    numbers: tuple[str, ...]
    entries: Sequence[Entry]
    views: Iterable[Sequence[View]]
    total: int
    elsewhere: str
    order: str | None = None
    by: str = "also"


@dataclass(frozen=True, slots=True)
class Page:
    """What there is to see of a folder: a title, what kind it is, a sentence, views, and at most one library."""

    title: str
    kind: str
    lead: str
    views: Sequence[View] = field(default=())
    library: Library | None = None


# -- views --------------------------------------------------------------------------------------------------------


def link(text: str, path: str) -> Mapping[str, str]:
    """A cell that opens a file, by its path relative to the folder that the page is of."""
    return {"text": text, "path": path}


def page_link(text: str, path: str) -> Mapping[str, str]:
    """A cell that opens another page, by its path relative to this one, wherever the two are."""
    return {"text": text, "page": path}


def facts(title: str, rows: Iterable[tuple[str, Cell | Sequence[Cell]]]) -> View:
    """Labels with values; what is None, empty or False is left out."""
    return {"view": "facts", "title": title, "rows": [row for row in rows if row[1] not in (None, "", [], (), False)]}


def note(title: str, *paragraphs: str) -> View:
    """Running text."""
    return {"view": "note", "title": title, "paragraphs": paragraphs}


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[Cell]], intro: str = "") -> View:
    """A table; columns whose cells are numbers are flush right, and every column sorts."""
    return {"view": "table", "title": title, "head": head, "rows": rows, "intro": intro}


def bars(title: str, rows: Sequence[tuple[str, float, float, str]], intro: str = "") -> View:
    """Bars, one a row: label, what is dark, what is light behind it, and what stands at the right."""
    return {"view": "bars", "title": title, "rows": rows, "intro": intro}


def code(title: str, text: str, path: str | None = None) -> View:
    """Code with line numbers, and the file that it is."""
    return {"view": "code", "title": title, "text": Heavy(text.split("\n")), "path": path}


def versions(title: str, text: str, others: Sequence[tuple[str, str]], intro: str = "") -> View:
    """Texts that can be compared side by side with one: of each what is said of it, and the text.

    They stand in the order of the entry's further names, by which they are called.
    """
    rows = [(told, Heavy(lines.split("\n"))) for told, lines in others]
    return {"view": "versions", "title": title, "text": Heavy(text.split("\n")), "rows": rows, "intro": intro}


def graph(title: str, boxes: Sequence[Any]) -> View:
    """Boxes of `lemur_core.describe.picture`, from top to bottom."""
    rows = [(box.title, box.lines, box.reads, box.kind) for box in boxes]
    return {"view": "graph", "title": title, "boxes": Heavy({"boxes": rows})}


def curves(
    title: str, x: str, charts: Sequence[tuple[str, Sequence[tuple[str, Sequence[tuple[float, float]]]]]]
) -> View:
    """Line charts side by side: of each what it shows, and its lines by name; `x` is what runs to the right."""
    return {"view": "curves", "title": title, "x": x, "charts": charts}


def pairs(
    title: str, unit: str, rows: Sequence[tuple[str, float, float | None, float | None]], intro: str = ""
) -> View:
    """Differences with their intervals: name, mean, low, high."""
    return {"view": "pairs", "title": title, "unit": unit, "rows": rows, "intro": intro}


def manifest_views(manifest: Manifest) -> list[View]:
    """What any folder can show of itself."""
    rows: list[Sequence[Cell]] = [[link(item.path, item.path), item.bytes, item.rows] for item in manifest.outputs]
    return [facts("Counts", [(name, _told(value)) for name, value in manifest.counts.items()]),
            table("Files", ["file", "bytes", "rows"], rows)]  # fmt: skip


def _told(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_told(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return plural(len(value), "item")
    return str(value)


# -- writing ------------------------------------------------------------------------------------------------------


def write_page(folder: Path, page: Page, target: Path | None = None) -> Path:
    """Write a page into a folder whose other files are in place; the same folder gives the same bytes.

    Args: target: another folder to write it to; its links lead back.
    Returns: the index.
    """
    target = target or folder
    base = "" if target == folder else f"{folder.resolve().as_uri()}/"
    there = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not _of_page(folder, path))
    (target / SHARDS).mkdir(parents=True, exist_ok=True)
    for older in (target / SHARDS).iterdir():
        older.unlink()
    library = page.library
    listed = [] if library is None else list(library.entries[:ENTRIES])
    while (size := len(_index(page, listed, None, base))) > INDEX_BYTES and listed:
        listed = listed[: len(listed) // 2]
    shards = Shards(target / SHARDS, max(int(SHARE * there), LEAST) - size - _STARTS)
    for _, views in zip(listed, () if library is None else library.views, strict=False):
        shards.put(views)
    shards.close()
    write_text(target / INDEX, _index(page, listed, shards, base))
    files = [target / INDEX, *sorted((target / SHARDS).glob("*.js"))]
    digests = {path.relative_to(target).as_posix(): sha256_file(path) for path in files}
    write_text(target / PAGE_FILES, json.dumps(digests, indent=1) + "\n")
    return target / INDEX


def finish(folder: Path, manifest: Manifest, page: Callable[[Path, Manifest], Page], watch: Stopwatch) -> Manifest:
    """Write the page of a folder whose other files are in place, and then its manifest, the last file.

    Args: watch: of the whole run. Returns: the manifest that was written.
    """
    write_page(folder, page(folder, manifest))
    watch.lap("page")
    done = manifest.model_copy(update={"measured": watch.measured()})
    write_manifest(folder, done)
    return done


def _of_page(folder: Path, path: Path) -> bool:
    return is_of_page(path.relative_to(folder).as_posix())


class Shards:
    """Writes the views of entries, so many to a file. Each file holds every line of its texts once.

    `limit` is in bytes: what is heavy is left out where it would be passed.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._left = folder, limit
        self.starts: list[int] = []
        self.left_out = 0
        self._entries = 0
        self._begin()

    def put(self, views: Sequence[View]) -> None:
        """Add the views of the next entry."""
        if self._size > _SHARD_CHARACTERS:
            self.close()
        self._add(views)

    def close(self) -> None:
        """Write what was not written yet: in one file, in several where that is too much, or without what is heavy."""
        views, text = self._views, self._text()
        if len(text) <= self._left or self._bare:
            if views:
                write_text(self._folder / f"{len(self.starts):03d}.js", text)
                self.starts.append(self._entries)
                self._entries += len(views)
                self._left -= len(text)
            self._begin()
            return
        half = len(views) // 2
        for part in [views[:half], views[half:]] if half else [views]:
            self._begin(bare=not half or self._left < _TOO_LITTLE)
            for one in part:
                self._add(one)
            self.close()

    def _begin(self, *, bare: bool = False) -> None:
        self._lines: dict[str, int] = {}
        self._views: list[Sequence[View]] = []
        self._rows: list[str] = []
        self._size: int = 0  # characters
        self._bare = bare

    def _add(self, views: Sequence[View]) -> None:
        row = json.dumps(views, default=self._plain, separators=(",", ":"))
        self._views.append(views)
        self._rows.append(row)
        self._size += len(row)

    def _text(self) -> str:
        lines = json.dumps(list(self._lines), separators=(",", ":"))
        packed = _packed(f'{{"lines":{lines},"entries":[{",".join(self._rows)}]}}')
        return f'lemur({len(self.starts)},"{packed}");\n'

    def _plain(self, value: object) -> Any:
        """What is heavy as JSON can hold it: of a text the runs of lines, each its first and how many."""
        assert isinstance(value, Heavy), value
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


def _packed(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _index(page: Page, listed: Sequence[Entry], shards: Shards | None, base: str) -> str:
    """The text of `index.html`."""
    library = page.library
    data: dict[str, Any] = {"title": page.title, "kind": page.kind, "lead": page.lead, "base": base}
    data["views"] = page.views
    if library is not None:
        names = itertools.islice((name for entry in listed for name in entry.further), FURTHER_NAMES)
        data["library"] = {
            **{name: getattr(library, name) for name in ("title", "noun", "total", "elsewhere", "order", "by")},
            "names": [entry.name[:_NAME] for entry in listed],
            "notes": [entry.note[:_NAME] for entry in listed],
            "facets": [_facet(label, [one.facets[at] for one in listed]) for at, label in enumerate(library.facets)],
            "numbers": [[label, [one.numbers[at] for one in listed]] for at, label in enumerate(library.numbers)],
            "further": list(_further(listed, names)),
            "starts": [] if shards is None else shards.starts,
            "leftOut": 0 if shards is None else shards.left_out,
        }
    css, script = (files(__package__).joinpath(f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    return _HTML.format(
        title=html.escape(page.title),
        css=css,
        script=script,
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=_packed(json.dumps(data, separators=(",", ":"))),
    )


def _facet(label: str, values: Sequence[str]) -> list[Any]:
    """A facet, its values the commonest first, and of each entry which it has."""
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    order = {value: place for place, value in enumerate(sorted(counts, key=lambda one: (-counts[one], one)))}
    return [label, list(order), [order[value] for value in values]]


def _further(listed: Sequence[Entry], names: Iterator[str]) -> Iterator[list[str]]:
    for entry in listed:
        yield [name[:_NAME] for name in itertools.islice(names, len(entry.further))]


_HTML = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'sha256-{digest}' 'self' file:; base-uri 'none'; form-action 'none'">
<title>{title}</title>
<style>
{css}</style>
</head>
<body>
<noscript>This page needs JavaScript; report.md beside it says the same in words.</noscript>
<script id="data" type="application/json">"{data}"</script>
<script>{script}</script>
</body>
</html>
"""
