"""`lemur search QUERY`: the blocks of an extraction folder in SQLite, for full-text search.

The database is made once for a folder, and kept in the user's cache under the digest of the folder's specs. Its words
are those of names, split (`SEModule` is `semodule se module`), and the docstrings and comments of a class and of its
methods. FTS5 stems them, and weighs a block by BM25.
"""

import ast
import difflib
import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from functools import lru_cache
from pathlib import Path
from shlex import quote
from typing import Any

from extract.model.categories import split_words
from lemur_core.files.atomic import atomic_file
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import make_visible
from lemur_core.files.progress import progress
from lemur_core.source.scopes import last_name
from manifests.folders.kinds import EXTRACTION
from manifests.folders.tables import describe
from manifests.provenance import SPECS
from manifests.records import Spec

#: The columns of words, with their weights, chosen on every third description of `benchmarks.search`.
COLUMNS = {"name": 40.0, "place": 10.0, "text": 1.0}
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
_VERSION = 7  # of the database
_NEAR = 5
_MANY = 400  # blocks
_DESCRIPTION = 5  # words: no block need have them all
_WORD = re.compile(r"\w+")
#: The next statement at the left margin ends a class; a comment or a closing bracket does not.
_NEXT = re.compile(r"^[^\s#)\]}]", re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s)#+(.*)", re.MULTILINE)
_SIZES = str.maketrans("×*", "xx")
_TABLES = f"""
CREATE TABLE blocks (number INTEGER PRIMARY KEY, {", ".join(FACTS)}, spec);
CREATE VIRTUAL TABLE words USING fts5({", ".join(COLUMNS)}, tokenize = 'porter unicode61');
"""

SpecLine = dict[str, Any]


class SearchIndex:
    """The database of a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size: int = self.read("SELECT count(*) FROM blocks")[0][0]

    def read(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return read_database(self.path, query, *values)

    def spec(self, number: int) -> SpecLine:
        """Return the spec of a block."""
        spec: SpecLine = json.loads(self.read("SELECT spec FROM blocks WHERE number = ?", number)[0][0])
        return spec

    def rank(self, query: str) -> list[int]:
        """Return the numbers of the blocks that match a query, best first: that of exactly this name, then by BM25."""
        weights = ", ".join(map(str, COLUMNS.values()))
        found = self.read(
            "SELECT number FROM words JOIN blocks ON number = words.rowid WHERE words MATCH ?"
            f" ORDER BY lower(blocks.name) = ? DESC, bm25(words, {weights}), number",
            " OR ".join(_terms(query)),
            "".join(query.split()).lower(),
        )
        return [number for (number,) in found]

    def search(self, query: str, limit: int) -> tuple[list[SpecLine], int]:
        """Return the specs of the best hits of words or a description, and the number of all hits.

        Raises: UserError if nothing matches.
        """
        shown = query.strip()[:80]
        if not list(_terms(query)):
            raise UserError(f"{shown!r}: no words to search for; give a name, a layer, or what a block does")
        found = self.rank(query)
        if not found:
            known = {word for (name,) in self.read("SELECT name FROM blocks") for word in split_name(name)}
            near = [word for term in _words(query) for word in difflib.get_close_matches(term, known, _NEAR)]
            names = ", ".join(list(dict.fromkeys(near))[:_NEAR])
            hint = f"near words: {names}" if names else "try a category or a layer"
            raise UserError(f"{shown}: nothing matches; {hint}")
        return [self.spec(number) for number in found[:limit]], len(found)


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


# --- opening and building -----------------------------------------------------------------------------------------


def read_database(path: Path, query: str, *values: object) -> list[tuple[Any, ...]]:
    """Return the rows of a query to a database."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        return connection.execute(query, values).fetchall()


def keep_database(path: Path, table: str, build: Callable[[sqlite3.Connection], None]) -> None:
    """Build a database of the cache if there is none, or if it is damaged. Args: table: one that it has."""
    try:
        read_database(path, f"SELECT count(*) FROM {table}")
    except sqlite3.DatabaseError:
        with atomic_file(path) as part, closing(sqlite3.connect(part)) as connection:
            build(connection)
            connection.commit()


def open_index(folder: Path) -> SearchIndex:
    """Open the database of a folder; build it if there is none, or if it is damaged.

    Raises: UserError if the folder is not an extraction, has no specs, or one of their lines is broken.
    """
    specs = next((item for item in EXTRACTION.open(folder).outputs if item.path == SPECS), None)
    if specs is None:
        raise UserError(f"{folder}: has no {SPECS}: an earlier version wrote it; run `lemur extract` again")
    path = folder / SPECS
    # Compare sizes, not digests: a search must not read the whole file.
    if not path.is_file() or path.stat().st_size != specs.bytes:
        raise UserError(f"{path}: is not the file that the manifest states; run `lemur verify`, or create it again")
    read = "code" if (folder / "blocks").is_dir() else "specs"
    kept = cache_folder("search") / f"v{_VERSION}-{read}-{specs.sha256[:40]}.sqlite"
    keep_database(kept, "words", lambda connection: _build(connection, folder))
    return SearchIndex(kept)


def show_indexing(blocks: int) -> AbstractContextManager[Callable[[int], None]]:
    """Show progress if that takes seconds."""
    return progress("index", blocks, "blocks") if blocks > _MANY else nullcontext(lambda _: None)


def _build(connection: sqlite3.Connection, folder: Path) -> None:
    lines = (folder / SPECS).read_bytes().splitlines()
    facts_of, words_of = (", ".join("?" * (len(names) + more)) for names, more in ((FACTS, 2), (COLUMNS, 1)))
    connection.executescript(_TABLES)
    with show_indexing(len(lines)) as advance:
        for number, line in enumerate(lines):
            try:
                spec = Spec.model_validate_json(line)
                file = folder / spec.file if spec.file else None
                code = file.read_text(encoding="utf-8") if file is not None and file.is_file() else ""
            except ValueError as error:
                where = f"{folder / SPECS}:{number + 1}"
                raise UserError(
                    f"{where}: not a spec: {describe(error)}; run `lemur verify`, or create it again"
                ) from error
            facts = [getattr(spec, name) for name in FACTS]
            words = read_words(spec, code)
            connection.execute(f"INSERT INTO blocks VALUES ({facts_of})", (number, *facts, line.decode()))
            connection.execute(
                f"INSERT INTO words (rowid, {', '.join(COLUMNS)}) VALUES ({words_of})",
                (number, *(words[name] for name in COLUMNS)),
            )
            advance(1)


def read_words(spec: Spec, code: str) -> dict[str, str]:
    """Return the words of a block by column, from its spec and the class in its file."""
    names = [item.name for item in (*spec.constructor, *spec.forward)]
    names += [*(spec.layers or {}), *spec.dependencies, *spec.bases]
    if spec.algorithm is not None:
        names += [line.partition(") ")[2].partition(" ")[0] for line in spec.algorithm.operations]
        names += [motif.kind for motif in spec.algorithm.motifs]
    told = ""
    for node, source in _find_class(code, spec.name):
        documented = [item for item in ast.walk(node) if isinstance(item, ast.FunctionDef | ast.ClassDef)]
        told = "\n".join([*(ast.get_docstring(item) or "" for item in documented), *_COMMENT.findall(source)])
        for item in ast.walk(node):
            if isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Store):
                names.append(item.attr)
            elif isinstance(item, ast.Call):
                names.append(last_name(item.func))
    return {
        "name": _join([spec.name]),
        "place": _join([*spec.block.partition("::")[2].split(".")[:-1], spec.source.partition("@")[0]]),
        "text": f"{_join(dict.fromkeys(names))} {_join(list_words(told))}",
    }


def _join(names: Iterable[str]) -> str:
    return " ".join(word for name in names for word in split_name(name))


def _find_class(code: str, name: str) -> Iterator[tuple[ast.ClassDef, str]]:
    """Yield the class of this name with its text; nothing if it does not parse alone: files are long."""
    start = re.search(rf"^class +{re.escape(name)}\b", code, re.MULTILINE)
    end = _NEXT.search(code, start.end()) if start else None
    text = code[start.start() : end.start() if end else len(code)] if start else ""
    try:
        yield from ((node, text) for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return


# --- the command ------------------------------------------------------------------------------------------------------


def search_folder(folder: Path, query: str, *, count: int = 10, as_json: bool = False) -> str:
    """Return the best hits of words or a description in a folder, as a table without control characters, or as JSON.

    Raises: UserError if nothing matches, or the folder has no specs.
    """
    index = open_index(folder)
    try:
        hits, matched = index.search(query, count)
    except UserError as error:
        raise type(error)(make_visible(f"{folder}: {error}")) from None
    loads = [
        f"from extract import load_block; {hit['name']} = load_block({str(folder)!r}, {hit['block']!r})" for hit in hits
    ]
    if as_json:
        names = (*FACTS, "summary", "file")
        facts = [
            {"rank": rank, **{name: hit[name] for name in names}, "load": load}
            for rank, (hit, load) in enumerate(zip(hits, loads, strict=True), start=1)
        ]
        return json.dumps({"query": query, "matched": matched, "hits": facts}, indent=2)
    lines = []
    for rank, hit in enumerate(hits, start=1):
        lines.append(f"{rank:>3}  {hit['block']}")
        lines.append(f"     {hit['category']}, {hit['level']}, {hit['license']}: {hit['summary'].partition(': ')[2]}")
        lines.append(f"     {folder / hit['file'] if hit['file'] else '(no file)'}")
    if matched > len(hits):
        lines.append(f"{len(hits)} of {matched:,}; -k shows more")
    best = hits[0]["block"]
    lines += ["", f"read it    lemur show {quote(best)} --in {quote(str(folder))}", f"import it  {loads[0]}"]
    return "\n".join(map(make_visible, lines))
