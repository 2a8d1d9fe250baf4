"""Comments that the generator of a network left in its file."""

import re

_COMMENTS = re.compile(r"(?:^#[^\n]*(?:\n|\Z))+", re.MULTILINE)
_OF_A_GENERATOR = re.compile(r"\bauto-?generated\b|chromosome used to generate", re.IGNORECASE)
#: Lines by which generators mark where the parts of a file come from, and what a template asked for.
_MARKS = re.compile(
    r"^[ \t]*#[ \t]*(?:-{4} (?:\w+(?:\.\w+)+|\w+ \(target\)|original imports from contributing modules) -{4}"
    r"|Standard library and external imports|[^\n]*(?:the provided block|\bProvidedBlock\b)[^\n]*)[ \t]*(?:\n|\Z)",
    re.MULTILINE | re.IGNORECASE,
)

#: A result as an annotation, and dependencies that an extraction did not resolve: such a file is not a network alone.
_NOTES = re.compile(r"^(?:addon_accuracy:|# UNRESOLVED DEPENDENCIES).*$", re.MULTILINE)


def find_note(code: str) -> str | None:
    """Return a line by which what made a file notes something in it, not as a comment on the whole; None without one.

    Args: code: of a record.
    """
    return note[0].strip() if (note := _NOTES.search(code)) else None


def strip_residue(code: str) -> str:
    """Return a file without the comments in which its generator says how it was made.

    Args: code: of a record. Everything else stays as it is.
    """
    code = _COMMENTS.sub(lambda match: "" if _OF_A_GENERATOR.search(match[0]) else match[0], code)
    return _MARKS.sub("", code)
