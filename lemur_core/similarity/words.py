"""Tokens of any text, prose or code: how long conversations are, and what they have in common."""

import re

_TOKEN = re.compile(r"\w+|[^\w\s]")


def tokens_of(text: str) -> list[str]:
    r"""The matches of `\w+|[^\w\s]`: words, numbers and single signs, in order, without white space.

    It needs no tokenizer of any model. A byte-pair tokenizer gives other numbers: it splits long names, and counts
    indentation and line breaks.
    """
    return _TOKEN.findall(text)
