"""A query over the index: terms and filters in, ranked hits out."""

import difflib
import re
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from extract.categories import words_of
from extract.search.index import COLUMNS
from lemur_core.files.errors import UserError

_NEAR = 5
_FIELDS = ("block", "name", "category", "level", "license", "source", "summary", "file")
_WEIGHTS = ", ".join(str(weight) for weight in COLUMNS.values())


#: Phrases that stand for each other in a query. Plurals and endings are the index's matter (Porter's stemmer).
SYNONYMS: tuple[tuple[str, ...], ...] = (
    ("se", "squeeze excitation", "squeeze excite", "squeeze and excitation"),
    ("eca", "efficient channel attention"),
    ("cbam", "convolutional block attention"),
    ("attn", "att", "attention"),
    ("mha", "mhsa", "multi head attention", "multihead attention", "multi head self attention"),
    ("conv", "convolution"),
    ("dw", "depthwise", "depth wise"),
    ("pw", "pointwise", "point wise"),
    ("dcn", "deform conv", "deformable conv", "deformable convolution"),
    ("deconv", "conv transpose", "transposed conv", "transposed convolution"),
    ("atrous", "dilated"),
    ("norm", "normalization", "normalisation"),
    ("bn", "batch norm", "batch normalization"),
    ("ln", "layer norm", "layer normalization"),
    ("gn", "group norm", "group normalization"),
    ("act", "activation"),
    ("glu", "gated linear unit"),
    ("mlp", "multi layer perceptron", "ffn", "feed forward"),
    ("moe", "mixture of experts"),
    ("lora", "low rank adaptation"),
    ("fpn", "feature pyramid"),
    ("spp", "spatial pyramid"),
    ("avg", "average"),
    ("pos", "position", "positional"),
    ("rope", "rotary"),
    ("drop path", "stochastic depth"),
    ("residual", "skip connection", "shortcut"),
    ("vit", "vision transformer"),
    ("rnn", "recurrent"),
    ("ssm", "state space"),
    ("gnn", "graph network", "graph neural network"),
    ("gcn", "graph conv", "graph convolution"),
    ("gat", "graph attention"),
    ("roi", "region of interest"),
    ("rpn", "region proposal"),
    ("bbox", "bounding box"),
    ("cls", "classification"),
    ("seg", "segmentation"),
    ("keep", "keeps", "preserve", "preserves", "preserving"),
    ("downsample", "downsampling", "halves", "shrinks", "reduction"),
    ("upsample", "upsampling", "doubles", "grows"),
)

_GROUPS = {phrase: group for group in SYNONYMS for phrase in group}
_LONGEST = max(len(phrase.split()) for phrase in _GROUPS)
_IDLE = frozenset(("a", "an", "and", "by", "for", "in", "is", "its", "of", "on", "or", "that", "the", "to", "with"))
_QUERY_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Filters:
    """What hits must have; several values of one kind are alternatives."""

    categories: tuple[str, ...] = ()
    level: str | None = None  # or higher
    licenses: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()  # with or without version


@dataclass(frozen=True, slots=True)
class Hit:
    """One block that was found, and where its spec lies in the file."""

    block: str
    name: str
    category: str
    level: str
    license: str
    source: str
    summary: str
    file: str | None
    start: int = field(repr=False)
    bytes: int = field(repr=False)


@dataclass(frozen=True, slots=True)
class Found:
    """The best hits, how many there are in all, and whether they have all words of the query."""

    hits: tuple[Hit, ...]
    matched: int
    complete: bool = True


def search(index: sqlite3.Connection, query: str, filters: Filters, limit: int | None) -> Found:
    """The blocks that have all words of a query, best first; if none has, those that have some.

    Without a query, all that pass the filters, in the order of the table.

    Args: limit: hits at most; all when None.
    Raises: UserError if nothing is found, or a filter names what there is not.
    """
    where, values = _conditions(index, filters)
    terms = terms_of(query)
    if query.strip() and not terms:
        raise UserError(f"{query.strip()[:80]!r}: no words to search for; give a name, a layer, or what a block does")
    if not terms:
        return _all(index, where, values, limit)
    for complete, joined in ((True, " AND "), (False, " OR ")):
        match = joined.join(_either(term) for term in terms)
        found = _ranked(index, match, query, where, values, limit)
        if found.matched:
            return Found(found.hits, found.matched, complete)
    raise UserError(_nothing(index, query, terms, filters))


def terms_of(query: str) -> list[tuple[str, ...]]:
    """The terms of a query, each with the phrases that satisfy it; whatever the query holds, they are plain words."""
    words = [word for word in _QUERY_WORD.findall(query) if word.strip("_")]
    idle = _IDLE if any(word.lower() not in _IDLE for word in words) else ()
    terms: list[tuple[str, ...]] = []
    place = 0
    while place < len(words):
        taken = next((n for n in range(_LONGEST, 0, -1) if _phrase(words[place : place + n]) in _GROUPS), 1)
        phrase = _phrase(words[place : place + taken])
        if phrase in _GROUPS:
            terms.append(_GROUPS[phrase])
        elif phrase not in idle:
            terms.append(_spellings(words[place]))
        place += taken
    return list(dict.fromkeys(terms))


def _phrase(words: list[str]) -> str:
    return " ".join(word.lower() for word in words)


def _spellings(word: str) -> tuple[str, ...]:
    """One word as a user may write it: whole, and split where it is a name of several words."""
    parts = words_of(word)
    phrases = [word.lower(), *([parts] if parts else [])]
    if parts in _GROUPS:
        phrases += _GROUPS[parts]
    return tuple(dict.fromkeys(phrases))


def _either(phrases: Iterable[str]) -> str:
    """Phrases in FTS5's syntax: quoted, so that nothing in them is an operator."""
    return "(" + " OR ".join(f'"{phrase}"' for phrase in phrases) + ")"


def _ranked(
    index: sqlite3.Connection, match: str, query: str, where: str, values: Sequence[object], limit: int | None
) -> Found:
    tables = f"words JOIN spec ON spec.id = words.rowid WHERE words MATCH ?{where}"
    matched = index.execute(f"SELECT count(*) FROM {tables}", (match, *values)).fetchone()[0]
    order = f"folded = ? DESC, bm25(words, {_WEIGHTS}), spec.id LIMIT ?"
    given = (match, *values, "".join(query.split()).lower(), -1 if limit is None else limit)
    rows = index.execute(f"SELECT {_columns()} FROM {tables} ORDER BY {order}", given)
    return Found(tuple(Hit(*row) for row in rows), matched)


def _all(index: sqlite3.Connection, where: str, values: Sequence[object], limit: int | None) -> Found:
    tables = f"spec WHERE true{where}"
    matched = index.execute(f"SELECT count(*) FROM {tables}", values).fetchone()[0]
    if not matched:
        raise UserError("no block passes these filters" if where else "the folder holds no block that has code")
    given = (*values, -1 if limit is None else limit)
    rows = index.execute(f"SELECT {_columns()} FROM {tables} ORDER BY id LIMIT ?", given)
    return Found(tuple(Hit(*row) for row in rows), matched)


def _columns() -> str:
    return ", ".join(f"spec.{name}" for name in (*_FIELDS, "start", "bytes"))


def _conditions(index: sqlite3.Connection, filters: Filters) -> tuple[str, list[object]]:
    """SQL behind `WHERE …`, and its values.

    Raises: UserError for a value that no block has.
    """
    where, values = "", list[object]()
    for option, columns, wanted in (
        ("--category", ("category",), filters.categories),
        ("--license", ("license",), filters.licenses),
        ("--source", ("source", "package"), filters.sources),
    ):
        if wanted:
            known = [_known(index, option, columns, value) for value in wanted]
            marks = ", ".join("?" for _ in known)
            where += " AND (" + " OR ".join(f"spec.{column} IN ({marks})" for column in columns) + ")"
            values += known * len(columns)
    if filters.level is not None:
        where += " AND spec.rung >= (SELECT rung FROM rung WHERE level = ?)"
        values.append(filters.level)
    return where, values


def _known(index: sqlite3.Connection, option: str, columns: Sequence[str], wanted: str) -> str:
    """The value as the folder spells it.

    Raises: UserError naming near ones if it has none.
    """
    rows = [index.execute(f"SELECT DISTINCT {column} FROM spec") for column in columns]
    values = sorted({str(value) for row in rows for (value,) in row})
    folded = {value.casefold(): value for value in values}
    if wanted.casefold() in folded:
        return folded[wanted.casefold()]
    near = [folded[name] for name in difflib.get_close_matches(wanted.casefold(), folded, _NEAR, 0.5)]
    near += [value for value in values if wanted and wanted.casefold() in value.casefold() and value not in near]
    shown = ", ".join(near[:_NEAR] or values[:_NEAR])
    told = f"; {'near' if near else 'there are'}: {shown}" if shown else ""
    raise UserError(f"{option} {wanted}: no block of this folder has it{told}")


def _nothing(index: sqlite3.Connection, query: str, terms: Sequence[Sequence[str]], filters: Filters) -> str:
    told = query.strip()[:80]
    if filters != Filters():
        match = " OR ".join(_either(term) for term in terms)
        without = index.execute("SELECT count(*) FROM words WHERE words MATCH ?", (match,)).fetchone()[0]
        if without:
            return f"{told}: nothing passes these filters; {without:,} blocks match without them"
    words = [word for (word,) in index.execute("SELECT word FROM word ORDER BY blocks DESC, word LIMIT 50000")]
    near = [word for term in terms for word in difflib.get_close_matches(term[0], words, _NEAR)]
    near += [word for term in terms for word in words if term[0] in word]
    unique = list(dict.fromkeys(near))[:_NEAR]
    return f"{told}: nothing matches; " + (
        f"near words: {', '.join(unique)}" if unique else "try a category or a layer"
    )
