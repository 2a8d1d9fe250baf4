"""The ranking by words alone that `lemur search` had before: SQLite's FTS5 over names, category, place, shape, layers.

Rebuilt here to be measured beside today's, with the same synonyms.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from extract.search.words import shape_words, split_name, split_query

_COLUMNS = {"names": 10.0, "category": 4.0, "place": 3.0, "shape": 3.0, "layers": 2.0, "about": 1.0}


class Words:
    """The index of some specs."""

    def __init__(self, specs: Sequence[Mapping[str, Any]]) -> None:
        self._database = sqlite3.connect(":memory:")
        columns = f"{', '.join(_COLUMNS)}, content = '', tokenize = 'porter unicode61'"
        self._database.execute(f"CREATE VIRTUAL TABLE words USING fts5({columns})")
        marks = ", ".join("?" for _ in _COLUMNS)
        for number, spec in enumerate(specs):
            text = _text(spec)
            values = (number, *(text[column] for column in _COLUMNS))
            self._database.execute(f"INSERT INTO words(rowid, {', '.join(_COLUMNS)}) VALUES(?, {marks})", values)

    def rank(self, query: str) -> list[int]:
        """The numbers of the specs that have all words, best first; where none has, of those that have some."""
        terms = ["(" + " OR ".join(f'"{phrase}"' for phrase in phrases) + ")" for phrases in split_query(query)]
        weights = ", ".join(map(str, _COLUMNS.values()))
        for joined in (" AND ", " OR ") if terms else ():
            rows = self._database.execute(
                f"SELECT rowid FROM words WHERE words MATCH ? ORDER BY bm25(words, {weights}), rowid",
                (joined.join(terms),),
            ).fetchall()
            if rows:
                return [number for (number,) in rows]
        return []


def _text(spec: Mapping[str, Any]) -> dict[str, str]:
    layers = {**spec["builds"], **(spec["layers"] or {})}
    module = spec["block"].partition("::")[2].split(".")[:-1]
    arguments = {item["name"] for group in ("constructor", "forward") for item in spec[group]}
    summary = spec["summary"].removesuffix((spec.get("algorithm") or {}).get("told", ""))
    return {
        "names": split_name(spec["name"]),
        "category": spec["category"],
        "place": " ".join(dict.fromkeys(split_name(part) for part in module)),
        "shape": " ".join(shape_words(spec)),
        "layers": " ".join(split_name(name) for name in layers),
        "about": " ".join([summary, *sorted(arguments)]),
    }
