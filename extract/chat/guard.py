"""No answer, and no question, repeats a passage of the code of a block that it speaks of: the rule of specs."""

from collections.abc import Iterable

from extract.specs.make import repeated, source_of
from lemur_core.similarity.text import tokens_of


def repeats(texts: Iterable[str], code: str) -> list[bool]:
    """Of each text, whether it has eight consecutive tokens in common with the code; its header is no source."""
    source = tokens_of(source_of(code))
    return [repeated(text, source) is not None for text in texts]


def guarded_text(kind: str, user: str, assistant: str) -> str:
    """The part of a conversation that must not repeat code: all of it, unless the answer is the code itself."""
    return user if kind == "write" else f"{user}\n{assistant}"
