"""The page of a finished folder: `index.html`, and `page/NNN.js` that it reads on demand; no network, no server.

A package describes the content as views, which are plain data; the script in the folder `page` turns each kind
of view into elements, and inserts every text as text. All data is compressed JSON in base64, which contains no special
characters of HTML or JavaScript.
"""

import base64
import hashlib
import html
import itertools
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from lemur_core.files import Json, markdown
from lemur_core.files.atomic import PAGE, scratch_folder, write_text
from lemur_core.files.markdown import count, make_visible, percent, plain
from lemur_core.sandbox.server.received import inflate
from manifests.folders.manifest import DATA, INDEX, SHARDS, Manifest
from manifests.folders.tables import read_text

_SHARD_CHARACTERS = 2_500_000  # before compression: quick to load, and similar texts share one


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a text of an entry, each of which its file holds once."""

    content: Sequence[str]


def pack(text: str) -> str:
    """Return a text compressed, in characters that neither HTML nor JavaScript treats as special."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def write_entries(folder: Path, entries: Iterable[Sequence[Json]]) -> list[int]:
    """Write the views of entries into files, several entries per file. Returns: the first entry of each file."""
    starts: list[int] = []
    rows: list[str] = []
    numbers: dict[str, int] = {}
    size = 0

    def encode(value: object) -> list[int]:
        """Encode a text as runs of lines of its file, each with its first line and length."""
        nonlocal size
        assert isinstance(value, Lines), value
        runs: list[int] = []
        for line in value.content:
            size += len(line) if line not in numbers else 0
            number = numbers.setdefault(line, len(numbers))
            if runs and runs[-2] + runs[-1] == number:
                runs[-1] += 1
            else:
                runs += [number, 1]
        return runs

    def close() -> None:
        lines = json.dumps(list(numbers), separators=(",", ":"))
        packed = pack(f'{{"lines":{lines},"entries":[{",".join(rows)}]}}')
        write_text(folder / f"{len(starts) - 1:03d}.js", f'lemur({len(starts) - 1},"{packed}");\n')
        rows.clear()
        numbers.clear()

    for at, views in enumerate(entries):
        if size > _SHARD_CHARACTERS:
            close()
            size = 0
        if not rows:
            starts.append(at)
        rows.append(json.dumps(views, default=encode, separators=(",", ":")))
        size += len(rows[-1])
    if rows:
        close()
    return starts


#: Maximum number of entries, and of further names of them, in the list.
ENTRIES, FURTHER_NAMES = 20_000, 40_000
_NAME = 240  # characters
_COMMON = 0.05  # a number of epochs that so many of the results were trained for is a limit to choose

#: One part of a page: its kind as `view`, usually a `title`, and the data of this kind.
View = Json
#: The content of a cell: a text, a number, nothing, or a link.
Cell = str | int | float | Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a library's list.

    `facets` and `numbers` correspond to those of the library; `further` are other names that lead to the entry.
    """

    name: str
    note: str
    facets: tuple[str, ...]
    numbers: tuple[float | None, ...]
    further: tuple[str, ...] = ()


#: Results by task, data set and metric, then by the number of the entry: pairs of epochs and value.
Results = Mapping[tuple[str, str, str], Mapping[int, Sequence[tuple[int | None, float]]]]


@dataclass(frozen=True, slots=True)
class EntryLibrary:
    """Entries that can be searched, filtered, sorted and opened.

    `views` are the contents of the entries, in the same order, built as they are written. `total` also counts entries
    that are not listed, and `elsewhere` says where to find all of them; `order` is the number for the initial sort
    order, else names; `by` is the text before a further name. `results`, where higher is better, are drawn over the
    numbers named in `sizes`.
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
    sizes: tuple[str, ...] = ()
    results: Results = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page:
    """The page of a folder: a title, its kind, a sentence, views, and at most one library."""

    title: str
    kind: str
    lead: str
    views: Sequence[View] = field(default=())
    library: EntryLibrary | None = None


# -- views --------------------------------------------------------------------------------------------------------


def link(text: str, path: str) -> Mapping[str, str] | str:
    """Return a cell that opens a file.

    Args: text, path: what is displayed, and the file relative to the folder of the page.
    Returns: a cell; the bare text for a file that is neither data nor text: a browser might run it.
    """
    return {"text": text, "path": path} if DATA.fullmatch(path) else text


def facts(title: str, rows: Iterable[tuple[str, Cell | Sequence[Cell]]]) -> View:
    """Return labels with values.

    Args: title, rows: the heading, and each label with one cell or several.
    Returns: a view of kind `facts`, without the rows whose value is None, empty or False; 0 is a value.
    """
    return {"view": "facts", "title": title, "rows": [row for row in rows if row[1] not in (None, "", [], (), False)]}


def note(title: str, *paragraphs: str) -> View:
    """Return running text.

    Args: title, paragraphs: the heading, and plain text; it is not read as HTML or Markdown.
    Returns: a view of kind `note`.
    """
    return {"view": "note", "title": title, "paragraphs": paragraphs}


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[Cell]], intro: str = "") -> View:
    """Return a table; every column can be sorted, and one of numbers and None alone is right-aligned.

    Args: title, head, rows, intro: the heading, the name of each column, a cell for each, and a sentence above.
    Returns: a view of kind `table`.
    """
    return {"view": "table", "title": title, "head": head, "rows": rows, "intro": intro}


def code(title: str, text: str, path: str | None = None) -> View:
    """Return code with line numbers, and the path of its file.

    Args: title, text, path: the heading, the code, and its file relative to the folder; None for code without a file.
    Returns: a view of kind `code`, for the entries of a library alone.
    """
    return {"view": "code", "title": title, "text": Lines(text.split("\n")), "path": path}


def versions(title: str, text: str, others: Sequence[tuple[str, str]], intro: str = "") -> View:
    """Return texts that can be compared side by side with a first one.

    Args: title, text, others, intro: the heading; the first text; a caption and a text for each of the entry's further
        names, in their order, which are the titles; a sentence above.
    Returns: a view of kind `versions`, for the entries of a library alone: no other view has further names.
    """
    rows = [(caption, Lines(lines.split("\n"))) for caption, lines in others]
    return {"view": "versions", "title": title, "text": Lines(text.split("\n")), "rows": rows, "intro": intro}


def operations(title: str, lines: Sequence[str], intro: str = "") -> View:
    """Return lines of operations, as `lemur_core.describe.facts` writes them.

    Args: title, lines, intro: the heading, the operations, and a sentence above.
    Returns: a view of kind `operations`, for the entries of a library alone.
    """
    return {"view": "operations", "title": title, "text": Lines(lines), "intro": intro}


def results(
    title: str, rows: Sequence[tuple[str, str, str, Sequence[tuple[int | None, float]]]], intro: str = ""
) -> View:
    """Return a table of results, and a chart of each benchmark with several.

    Args: title, rows, intro: the heading; task, data set, metric, and pairs of epochs and value in order; a sentence
        above.
    Returns: a view of kind `results`.
    """
    return {"view": "results", "title": title, "rows": rows, "intro": intro}


def graph(title: str, boxes: Sequence[Any]) -> View:
    """Return boxes of a graph from top to bottom.

    Args: title, boxes: the heading, and the result of `lemur_core.describe.picture.boxes`.
    Returns: a view of kind `graph`.
    """
    rows = [(box.title, box.lines, box.reads, box.kind) for box in boxes]
    return {"view": "graph", "title": title, "boxes": rows}


def curves(
    title: str, x: str, charts: Sequence[tuple[str, Sequence[tuple[str, Sequence[tuple[float, float]]]]]]
) -> View:
    """Return line charts side by side.

    Args: title, x, charts: the heading, the label of all horizontal axes, and for each chart its title, and its lines
        by name, as points (x, y).
    Returns: a view of kind `curves`.
    """
    return {"view": "curves", "title": title, "x": x, "charts": charts}


def pairs(
    title: str, unit: str, rows: Sequence[tuple[str, float, float | None, float | None]], intro: str = ""
) -> View:
    """Return differences with their intervals; an interval without zero is emphasized.

    Args: title, unit, rows, intro: the heading; the text after each number, such as `points`; name, mean, and the ends
        of the interval, None if there is none, all in `unit`; a sentence above.
    Returns: a view of kind `pairs`.
    """
    return {"view": "pairs", "title": title, "unit": unit, "rows": rows, "intro": intro}


def manifest_views(manifest: Manifest) -> list[View]:
    """Return the views that any folder has.

    Args: manifest: the manifest of the folder.
    Returns: its counts, and a table of its files with size and rows.
    """
    rows: list[Sequence[Cell]] = [[link(item.path, item.path), item.bytes, item.rows] for item in manifest.outputs]
    return [facts("Counts", [(name, value_text(value)) for name, value in manifest.counts.items()]),
            table("Files", ["file", "bytes", "rows"], rows)]  # fmt: skip


def value_text(value: object) -> str:
    """Return any value of JSON as text; whole numbers with separators."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {value_text(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value))
    return count(value) if isinstance(value, int) and not isinstance(value, bool) else str(value)


# -- writing ------------------------------------------------------------------------------------------------------


def write_page(folder: Path, page: Page, target: Path | None = None, *, base: str | None = None) -> Path:
    """Write a page into a folder whose other files are in place; the same folder gives the same bytes.

    Args: target: another folder to write it to. base: what its links begin with; by default they lead back.
    Returns: the path of the index.
    """
    if base is None:
        base = "" if target is None else f"{folder.resolve().as_uri()}/"
    target = target or folder
    (target / SHARDS).mkdir(parents=True, exist_ok=True)
    for older in (target / SHARDS).glob("[0-9]*.js"):
        older.unlink()
    library = page.library
    listed = [] if library is None else list(library.entries[:ENTRIES])
    starts = write_entries(target / SHARDS, itertools.islice(() if library is None else library.views, len(listed)))
    write_text(target / INDEX, _index(page, listed, starts, base))
    return target / INDEX


def list_page_files(folder: Path) -> list[str]:
    """Return the files of the page of a folder, relative to it; none without a page."""
    paths = (path for path in (folder / INDEX, *(folder / SHARDS).glob("*.js")) if path.is_file())
    return sorted(name for path in paths if PAGE.fullmatch(name := path.relative_to(folder).as_posix()))


def _index(page: Page, listed: Sequence[Entry], starts: Sequence[int], base: str) -> str:
    """Return the text of `index.html`."""
    library = page.library
    stated = ("title", "noun", "total", "elsewhere", "order", "by", "sizes")
    data: Json = {"title": page.title, "kind": page.kind, "lead": page.lead, "base": base}
    data["views"] = page.views
    if library is not None:
        names = itertools.islice((name for entry in listed for name in entry.further), FURTHER_NAMES)
        data["library"] = {
            **{name: getattr(library, name) for name in stated},
            "names": [entry.name[:_NAME] for entry in listed],
            "notes": [entry.note[:_NAME] for entry in listed],
            "facets": [_facet(label, [item.facets[at] for item in listed]) for at, label in enumerate(library.facets)],
            "numbers": [[label, [entry.numbers[at] for entry in listed]] for at, label in enumerate(library.numbers)],
            "further": [[name[:_NAME] for name in itertools.islice(names, len(entry.further))] for entry in listed],
            "starts": starts,
            "results": _rank_results(library.results, len(listed)),
        }
    return _fill(html.escape(page.title), pack(json.dumps(data, separators=(",", ":"))))


#: The parts of the script, in their order: they share one scope.
_SCRIPTS = ("elements.js", "views.js", "code.js", "charts.js", "library.js", "start.js")


def _fill(title: str, data: str) -> str:
    """Return the text of an index around its title and its data."""
    parts = files(__package__).joinpath("page")
    form, css, *scripts = (parts.joinpath(name).read_text(encoding="utf-8") for name in (INDEX, "page.css", *_SCRIPTS))
    script = '"use strict";\n(() => {\n' + "\n".join(scripts) + "})();"
    # The policy of the page allows this one script, by its digest.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return form.format(title=title, css=css, script=script, digest=digest, data=data)


_PACKED = "[A-Za-z0-9+/=]*"


def foreign_page_files(folder: Path) -> Iterator[str]:
    """Yield the files of a page, as read from a folder, that could run anything but the script of this release.

    Args: folder: with a page, or without one.
    Returns: an iterator over names, and what is wrong with them.
    Raises: OSError or ValueError if one cannot be read.
    """
    index, _, end = _fill("\0", "\1").partition("\1")
    start, _, middle = index.partition("\0")
    around = [re.escape(part) for part in (start, middle, end)]
    for name in list_page_files(folder):
        form = rf'lemur\({Path(name).stem.lstrip("0") or "0"},"{_PACKED}"\);\n'
        if name == INDEX:
            form = f"{around[0]}[^<>]*{around[1]}{_PACKED}{around[2]}"
        if not re.fullmatch(form, read_text(folder / name)):
            yield f"{name} is not as this release writes it; remove {INDEX} and {SHARDS}: `lemur open` makes a page"


def has_page(folder: Path, page: Page) -> bool:
    """Return whether the page in a folder is this one, without further files.

    Args: folder, page: a folder, and the content that its page should have.
    Returns: False if a file of it is missing, foreign, or holds other data; however these are compressed.
    """
    with scratch_folder("page") as target:
        write_page(folder, page, target, base="")
        names = list_page_files(target)
        try:
            return list_page_files(folder) == names and all(
                _unpack(target / name) == _unpack(folder / name) for name in names
            )
        except ValueError:  # what is packed there cannot be what we pack
            return False


def _unpack(path: Path) -> list[str]:
    """Return the text of a file of a page, its data in plain. Raises: ValueError as `inflate`."""
    parts = _DATA.split(read_text(path))
    parts[1::2] = [inflate(base64.b64decode(data), _MOST).decode("utf-8", "replace") for data in parts[1::2]]
    return parts


#: The data in a file of a page.
_DATA = re.compile(rf'(?:(?<=application/json">")|(?<=^lemur\()\d+,")({_PACKED})(?="</script>|"\);\n$)')
#: Bytes of the data of a file at most, of which a page has far fewer.
_MOST = 1 << 29


def _facet(label: str, values: Sequence[str]) -> list[Any]:
    """Return a facet: its values, most frequent first, and the value index of each entry."""
    counts = Counter(values)
    order = {value: place for place, value in enumerate(sorted(counts, key=lambda one: (-counts[one], one)))}
    return [label, list(order), [order[value] for value in values]]


def _rank_results(results: Results, listed: int) -> Json:
    """Return the best results within each limit of epochs, so that equal efforts can be compared.

    Returns: the `limits`, None for any number, and for each of the `benchmarks` its three names, the entries, and the
        best values and their epochs, a list per limit.
    """
    spent = Counter(max(epoch or 0 for epoch, _ in of_entry) for one in results.values() for of_entry in one.values())
    common = sorted(epochs for epochs, number in spent.items() if epochs and number >= _COMMON * spent.total())
    limits, benchmarks = [*common, None], []
    for names, by_entry in sorted(results.items(), key=lambda item: (-len(item[1]), item[0])):
        entries = sorted(number for number in by_entry if number < listed)
        best, after = [], []
        for limit in limits:
            chosen = [_choose_best(by_entry[number], limit) for number in entries]
            best.append([value for _, value in chosen])
            after.append([epoch for epoch, _ in chosen])
        benchmarks.append([*names, entries, best, after])
    return {"limits": limits, "benchmarks": benchmarks}


def _choose_best(results: Sequence[tuple[int | None, float]], limit: int | None) -> tuple[int | None, float | None]:
    """Return the best of some results within a limit, after the fewest epochs; a pair of None if there is none."""
    within = [(epoch, value) for epoch, value in results if limit is None or (epoch is not None and epoch <= limit)]
    return min(within, key=lambda item: (-item[1], item[0] or 0), default=(None, None))


# -- report.md: the views at the top of the page, as Markdown ------------------------------------------------------

#: Rows of a table; the rest is folded into one.
LONGEST = 20
_REPORT_CELL = 200  # characters


def write_report(folder: Path, page: Page, notes: Sequence[str], end: str) -> None:
    """Write `report.md`; the same contents give the same bytes.

    Args: page: its title, lead and views, of facts and tables. notes: what could not be done. end: Markdown.
    """
    lines = [f"# {plain(page.title)}", "", f"**{plain(page.lead)}**", ""]
    if notes:
        lines += ["Not everything could be done as asked:", "", *(f"- {plain(note)}" for note in notes), ""]
    for view in page.views:
        intro = view.get("intro")
        lines += [f"## {view['title']}", "", *([intro, ""] if intro else []), *_render_view(view)]
    write_text(folder / "report.md", "\n".join([*lines, end]) + "\n")


def _render_view(view: View) -> list[str]:
    if view["view"] == "facts":
        return [*(f"- {plain(label)}: {_report_cell(value)}" for label, value in view["rows"]), ""]
    rows = view["rows"]
    texts = [any(isinstance(row[at], str) for row in rows) for at in range(len(view["head"]))]
    left = texts.index(False) if False in texts else len(texts)
    return markdown.table(list(map(plain, view["head"])), [list(map(_report_cell, row)) for row in rows], left)


def _report_cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return count(value)
    return "–" if value is None else plain(make_visible(str(value), _REPORT_CELL))


def fold(rows: Sequence[Sequence[Cell]]) -> list[Sequence[Cell]]:
    """Return rows with those beyond the longest table folded into one that counts them."""
    more = len(rows) - LONGEST
    return [*rows[:LONGEST], *([[f"{count(more)} others", *[""] * (len(rows[0]) - 1)]] if more > 0 else [])]


def settings(parameters: Mapping[str, object]) -> View:
    """Return all parameters of a manifest that have a value."""
    return facts("Settings", [(name.replace("_", " "), _setting(value)) for name, value in parameters.items()])


def _setting(value: object) -> str | None:
    if isinstance(value, list | tuple):
        return ", ".join(":".join(map(str, item)) if isinstance(item, list | tuple) else str(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return None if value is None or value is False else "yes" if value is True else str(value)


def shares(title: str, heads: tuple[str, str], counts: Mapping[str, int], whole: int, intro: str = "") -> View:
    """Return a table of names, most first: each with its number, and its share of the whole."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows: list[list[Cell]] = [[name, number, percent(number, whole)] for name, number in ranked]
    return table(title, [*heads, "%"], fold(rows), intro)
