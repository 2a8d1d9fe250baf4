"""The blocks of an extraction folder in SQLite, for full-text search.

The database is made once for a folder, and kept in the user's cache under the digest of the folder's specs. Its words
are those of names, split (`SEModule` is `semodule se module`), and the docstrings and comments of a class and of its
methods. FTS5 stems them, and weighs a block by BM25.
"""

import ast
import difflib
import itertools
import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from extract.model.categories import split_words
from lemur_core.files.atomic import atomic_file
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import article, plural
from lemur_core.files.progress import progress
from lemur_core.source.scopes import last_name
from manifests.options import Level
from manifests.provenance import SPECS

#: The columns of words, with their weights, chosen on every third description of `benchmarks.search`.
COLUMNS = {"name": 40.0, "place": 10.0, "arguments": 1.0, "parts": 1.0, "computed": 0.5, "text": 1.0}
FACTS = ("block", "name", "category", "level", "license", "source")
#: Words that describe nothing; ignored in a query if any other words remain.
FILLER = frozenset(
    re.findall(
        r"\w+",
        "a an and by for in is its of on or that the to with this these those from as at be can which it we are was has"
        " have into using use used uses based via given such also both when where each et al see more their our your"
        " https arxiv org paper implementation implements implement implemented class module following follows proposed"
        " described create creates",
    )
)
_VERSION = 5  # of the database
_NEAR = 5
_MANY = 400  # blocks
_DESCRIPTION = 5  # words: no block need have them all
_WORD = re.compile(r"\w+")
#: The next statement at the left margin ends a class; a comment or a closing bracket does not.
_NEXT = re.compile(r"^[^\s#)\]}]", re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s)#+(.*)", re.MULTILINE)
_LEVELS: tuple[str, ...] = get_args(Level)
_SIZES = str.maketrans("×*", "xx")
_TABLES = f"""
CREATE TABLE blocks (number INTEGER PRIMARY KEY, {", ".join(FACTS)}, first INTEGER, last INTEGER);
CREATE VIRTUAL TABLE words USING fts5({", ".join(COLUMNS)}, tokenize = 'porter unicode61');
"""

SpecLine = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Filters:
    """Conditions on hits; several values of one kind are alternatives."""

    categories: tuple[str, ...] = ()
    level: str | None = None  # or higher
    licenses: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()  # with or without version
    all_words: bool = False  # only blocks with all words of the query, if there are any


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best hits, the number of all matches, and whether the first one contains all words of the query."""

    hits: list[SpecLine]
    matched: int
    complete: bool = True


class SearchIndex:
    """The database of a folder."""

    def __init__(self, path: Path, specs: Path) -> None:
        self.path, self._specs = path, specs
        self.size: int = self.read("SELECT count(*) FROM blocks JOIN words ON words.rowid = number")[0][0]

    def _open(self) -> "closing[sqlite3.Connection]":
        return closing(sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True))

    def read(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self._open() as connection:
            return connection.execute(query, values).fetchall()

    def spec(self, number: int) -> SpecLine:
        """Read the spec of a block from its file. Raises: UserError if it is no longer there."""
        ((block, first, last),) = self.read("SELECT block, first, last FROM blocks WHERE number = ?", number)
        try:
            with self._specs.open("rb") as file:
                file.seek(first)
                spec: SpecLine = json.loads(file.read(last - first))
            if spec["block"] != block:  # the file may have been replaced by one of the same size
                raise ValueError("another block is there")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _explain(self._specs, number, error) from error
        return spec

    def rank(self, query: str, *, all_words: bool = False) -> list[int]:
        """Return the numbers of the blocks that match a query, best first: that of exactly this name, then by BM25."""
        terms = list(_terms(query))
        match = f" {'AND' if all_words else 'OR'} ".join(terms)
        weights = ", ".join(map(str, COLUMNS.values()))
        order = f"lower(blocks.name) = ? DESC, bm25(words, {weights}), number"
        found = self.read(
            f"SELECT number FROM words JOIN blocks ON number = words.rowid WHERE words MATCH ? ORDER BY {order}",
            match,
            "".join(query.split()).lower(),
        )
        return [number for (number,) in found]

    def filter(self, filters: Filters) -> list[int]:
        """Return the numbers of the blocks that pass. Raises: UserError for a value that no block has."""
        passing = dict(self.read("SELECT number, level FROM blocks ORDER BY number"))
        wanted = {"category": filters.categories, "license": filters.licenses, "source": filters.sources}
        for name, values in wanted.items():
            if values:
                column = dict(self.read(f"SELECT number, {name} FROM blocks"))
                spelled = {v: {v, v.partition("@")[0]} if name == "source" else {v} for v in column.values()}
                known = {_spell(f"--{name}", sorted(set().union(*spelled.values())), value) for value in values}
                passing = {number: level for number, level in passing.items() if spelled[column[number]] & known}
        high = _LEVELS[_LEVELS.index(filters.level) :] if filters.level else _LEVELS
        return [number for number, level in passing.items() if level in high]


def search(index: SearchIndex, query: str, filters: Filters, limit: int | None) -> SearchResult:
    """Return the blocks that match words, best first; without words all that pass the filters.

    Args: limit: maximum number of hits; None for all.
    Raises: UserError if nothing matches, or no block has the value of a filter.
    """
    allowed = index.filter(filters)
    shown = query.strip()[:80]
    if not shown:
        if not allowed:
            why = "no block passes these filters" if filters != Filters() else "the folder holds no block that has code"
            raise UserError(why)
        return SearchResult([index.spec(number) for number in allowed[:limit]], len(allowed))
    if not list(_terms(query)):
        raise UserError(f"{shown!r}: no words to search for; give a name, a layer, or what a block does")
    passes = set(allowed)
    ranked, whole = index.rank(query), set(index.rank(query, all_words=True))
    hits = [number for number in ranked if number in passes]
    if filters.all_words and whole & passes:
        hits = [number for number in hits if number in whole]
    if not hits:
        if ranked:
            raise UserError(f"{shown}: nothing passes these filters; {plural(len(ranked), 'hit')} without them")
        known = {word for (name,) in index.read("SELECT name FROM blocks") for word in split_name(name)}
        near = [word for term in _words(query) for word in difflib.get_close_matches(term, known, _NEAR)]
        hint = f"near words: {', '.join(list(dict.fromkeys(near))[:_NEAR])}" if near else "try a category or a layer"
        raise UserError(f"{shown}: nothing matches; {hint}")
    return SearchResult(
        [index.spec(number) for number in hits[:limit]],
        len(hits),
        hits[0] in whole or len(list_words(query)) >= _DESCRIPTION,
    )


def list_words(text: str) -> list[str]:
    """Return the words of a text; `3×3` is one word."""
    return [word for word in _WORD.findall(text.translate(_SIZES)) if word.strip("_")]


def _words(query: str) -> list[str]:
    """Return the words of a query; of a description those that say something, if there are any."""
    words = list_words(query)
    telling = [word for word in words if word.lower() not in FILLER] if len(words) >= _DESCRIPTION else []
    return telling or words


def _terms(query: str) -> Iterator[str]:
    """Yield a word, or the parts of a name, as a term of FTS5; a longer word also matches words that begin with it."""
    for word in _words(query):
        spellings = dict.fromkeys(part for part in split_name(word) if part)
        texts = (f'"{part}"{"*" if len(part) > 3 else ""}' for part in spellings)
        yield f"({' OR '.join(texts)})"


@lru_cache(maxsize=100_000)
def split_name(name: str) -> tuple[str, ...]:
    """Return a name in lower case, then its words: `SEModule` gives semodule, se, module."""
    whole, words = name.lower().strip("_"), split_words(name).split()
    return (whole, *words) if words != [whole] else (whole,)


def _spell(option: str, values: Sequence[str], wanted: str) -> str:
    """Return the value in the spelling of the folder. Raises: UserError with near values if there is none."""
    folded = {value.casefold(): value for value in values}
    if wanted.casefold() in folded:
        return folded[wanted.casefold()]
    near = [folded[name] for name in difflib.get_close_matches(wanted.casefold(), folded, _NEAR, 0.5)]
    near += [value for value in values if wanted and wanted.casefold() in value.casefold() and value not in near]
    named = ", ".join(near[:_NEAR] or values[:_NEAR])
    hint = f"; {'near' if near else 'there are'}: {named}" if named else ""
    raise UserError(f"{option} {wanted}: no block of this folder has it{hint}")


# --- opening and building -----------------------------------------------------------------------------------------


def open_index(folder: Path) -> SearchIndex:
    """Open the database of a folder; build it if there is none, or if it is damaged.

    Raises: UserError if the folder is not an extraction, has no specs, or one of their lines is broken.
    """
    path = folder / SPECS
    size, digest = _read_manifest(folder)
    try:
        actual = path.stat().st_size
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; run `lemur verify`, or create the folder again") from error
    # Compare sizes, not digests: a search must not read the whole file.
    if actual != size:
        raise UserError(f"{path}: is not the file that the manifest states; run `lemur verify`, or create it again")
    read = "code" if (folder / "blocks").is_dir() else "specs"
    kept = cache_folder("search") / f"v{_VERSION}-{read}-{digest[:40]}.sqlite"
    if kept.exists():
        try:
            return SearchIndex(kept, path)
        except sqlite3.DatabaseError:
            pass  # damaged
    with atomic_file(kept) as part:
        _build(part, folder)
    return SearchIndex(kept, path)


def _read_manifest(folder: Path) -> tuple[int, str]:
    """Return the size in bytes and the SHA-256 of the specs from the manifest, read as plain JSON for speed."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        kind = manifest["kind"]
        outputs = {item["path"]: (int(item["bytes"]), str(item["sha256"])) for item in manifest["outputs"]}
    except FileNotFoundError:
        raise UserError(f"{folder}: no manifest.json; not a finished lemur folder") from None
    except NotADirectoryError:
        raise UserError(f"{folder}: is a file; give the folder that `lemur extract` wrote") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a valid manifest: {error}; create the folder again") from error
    if kind != "extraction":
        raise UserError(
            f"{folder}: holds {article(kind)}, not an extraction; give the folder that `lemur extract` wrote"
        )
    if SPECS not in outputs:
        raise UserError(f"{folder}: has no {SPECS}: an earlier version wrote it; run `lemur extract` again")
    return outputs[SPECS]


def show_indexing(blocks: int) -> "AbstractContextManager[Callable[[int], None]]":
    """Show progress if that takes seconds."""
    return progress("index", blocks, "blocks") if blocks > _MANY else nullcontext(lambda _: None)


def _build(path: Path, folder: Path) -> None:
    lines = (folder / SPECS).read_bytes().splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]
    facts_of, words_of = (", ".join("?" * (len(names) + more)) for names, more in ((FACTS, 3), (COLUMNS, 1)))
    with closing(sqlite3.connect(path)) as connection, show_indexing(len(lines)) as advance:
        connection.executescript(_TABLES)
        for number, line in enumerate(lines):
            try:
                spec = json.loads(line)
                facts = [str(spec[name]) for name in FACTS]
                file = folder / spec["file"] if spec["file"] else None
                code = file.read_text(encoding="utf-8") if file is not None and file.is_file() else ""
                words = read_words(spec, code)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise _explain(folder / SPECS, number, error) from error
            place = starts[number : number + 2]
            connection.execute(f"INSERT INTO blocks VALUES ({facts_of})", (number, *facts, *place))
            connection.execute(
                f"INSERT INTO words (rowid, {', '.join(COLUMNS)}) VALUES ({words_of})",
                (number, *(words[name] for name in COLUMNS)),
            )
            advance(1)
        connection.commit()


def _explain(path: Path, number: int, error: object) -> UserError:
    return UserError(f"{path}:{number + 1}: not a spec: {error}; run `lemur verify`, or create it again")


def read_words(spec: SpecLine, code: str) -> dict[str, str]:
    """Return the words of a block by column, from its spec and the class in its file."""
    algorithm = spec.get("algorithm") or {}
    arguments = [item["name"] for group in ("constructor", "forward") for item in spec[group]]
    parts = [*spec["builds"], *(spec["layers"] or {}), *spec["dependencies"], *spec["bases"]]
    motifs = [motif["kind"] for motif in algorithm.get("motifs", ())]
    computed = [line.partition(") ")[2].partition(" ")[0] for line in algorithm.get("operations", ())]
    text = ""
    for node, source in _find_class(code, spec["name"]):
        documented = [item for item in ast.walk(node) if isinstance(item, ast.FunctionDef | ast.ClassDef)]
        text = "\n".join([*(ast.get_docstring(item) or "" for item in documented), *_COMMENT.findall(source)])
        for item in ast.walk(node):
            if isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Store):
                parts.append(item.attr)
            elif isinstance(item, ast.Call):
                parts.append(last_name(item.func))
    return {
        "name": _join([spec["name"]]),
        "place": _join([*spec["block"].partition("::")[2].split(".")[:-1], spec["source"].partition("@")[0]]),
        "arguments": _join(arguments),
        "parts": _join(parts),
        "computed": f"{_join(computed)} {' '.join(motifs)}",
        "text": _join(list_words(text), once=False),
    }


def _join(names: Iterable[str], *, once: bool = True) -> str:
    return " ".join(word for name in (dict.fromkeys(names) if once else names) for word in split_name(name))


def _find_class(code: str, name: str) -> Iterator[tuple[ast.ClassDef, str]]:
    """Yield the class of this name with its text; nothing if it does not parse alone: files are long."""
    start = re.search(rf"^class +{re.escape(name)}\b", code, re.MULTILINE)
    end = _NEXT.search(code, start.end()) if start else None
    text = code[start.start() : end.start() if end else len(code)] if start else ""
    try:
        yield from ((node, text) for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
