"""Comments that the generator of a network left in its file."""

import re

_COMMENTS = re.compile(r"(?:^#[^\n]*(?:\n|\Z))+", re.MULTILINE)
_OF_A_GENERATOR = re.compile(r"\bauto-?generated\b|chromosome used to generate", re.IGNORECASE)


def strip_residue(code: str) -> str:
    """Return a file without the unindented comments in which its generator says how it was made.

    Args: code: of a record. Everything else stays as it is.
    """
    return _COMMENTS.sub(lambda match: "" if _OF_A_GENERATOR.search(match[0]) else match[0], code)
