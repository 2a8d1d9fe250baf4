"""Docstrings as queries: what the authors of classes say of them, which no spec holds."""

import ast
import re
from pathlib import Path
from typing import Any

from extract.model.categories import split_words
from extract.search import FILLER, list_words

_AT_LEAST = 12  # words, where the docstring has as many
_AT_MOST = 40

#: Where the description ends: sections, directives, examples, rules.
_END = re.compile(
    r"\n\s*(?:Args?|Arguments?|Parameters|Params|Attributes|Inputs?|Outputs?|Returns?|Examples?|Shape|Notes?|References?"
    r"|Methods|Usage|Raises)\b[^\n]{0,20}:?\s*(?:\n|$)|\n\s*\.\. |\n\s*>>>|\n\s*-{4,}|\n\s*:param"
)
_URL = re.compile(r"https?://\S+")
_ROLE = re.compile(r":\w+(?::\w+)?:`~?([^`]*)`")
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


def description(docstring: str) -> str:
    """The first sentences of a docstring, until they have twelve words; forty at most, without links and markup."""
    text = _ROLE.sub(r"\1", _URL.sub(" ", _END.split(docstring.strip())[0]))
    told = ""
    for sentence in _SENTENCE.split(" ".join(text.split())):
        told = f"{told} {sentence}".strip()
        if len(list_words(told)) >= _AT_LEAST:
            break
    return " ".join(told.split()[:_AT_MOST])


def without_name(query: str, name: str) -> str:
    """A query without the words of a name: neither the whole of it, nor any of its words, whatever their case."""
    gone = {name.lower(), *split_words(name).split()}

    def names(word: str) -> bool:
        parts = set(split_words(word).split())
        return word.lower() in gone or (bool(parts) and parts <= gone)

    return " ".join(word for word in list_words(query) if not names(word))


def telling(query: str) -> int:
    """How many words of a query say something."""
    return sum(word.lower() not in FILLER for word in list_words(query))


def docstring_in(folder: Path, spec: dict[str, Any]) -> tuple[str | None, str | None, str]:
    """The docstring of a spec's class, the rest of the class without layout, the file without that docstring."""
    if not spec["file"]:
        return None, None, ""
    code = (folder / spec["file"]).read_text(encoding="utf-8")
    for node in ast.parse(code).body:
        if isinstance(node, ast.ClassDef) and node.name == spec["name"]:
            told = ast.get_docstring(node)
            if told is not None:
                first, lines = node.body[0], code.split("\n")
                lines[first.lineno - 1 : first.end_lineno] = [f"{' ' * first.col_offset}pass"]
                code, node.body = "\n".join(lines), node.body[1:] or [ast.Pass()]
            return told, ast.dump(node), code
    return None, None, code
