"""Retrieval baseline: BM25 over documents; the best document is put in the prompt."""

import math
import re
from collections import Counter
from collections.abc import Sequence

_K1, _B = 1.2, 0.75
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def split_words(text: str) -> list[str]:
    """Return names, whole and split into their parts, in lower case."""
    whole = re.findall(r"[\w-]+", text)
    return [word.lower() for word in whole] + [
        part.lower() for word in whole if len(parts := _WORD.findall(word)) > 1 for part in parts
    ]


class Bm25:
    """BM25 scores of documents for a query. Source: Robertson and Zaragoza, 2009, with k1 1.2 and b 0.75."""

    def __init__(self, documents: Sequence[str]) -> None:
        counted = [Counter(split_words(document)) for document in documents]
        lengths = [sum(counts.values()) for counts in counted]
        mean = sum(lengths) / max(1, len(lengths))
        self._postings: dict[str, list[tuple[int, float]]] = {}
        for at, (counts, length) in enumerate(zip(counted, lengths, strict=True)):
            for word, number in counts.items():
                weight = number * (_K1 + 1) / (number + _K1 * (1 - _B + _B * length / mean))
                self._postings.setdefault(word, []).append((at, weight))
        self._documents = len(documents)

    def best(self, query: str) -> int:
        """Return the index of the document with the highest score; the first among equal ones."""
        scores: dict[int, float] = {}
        for word in dict.fromkeys(split_words(query)):
            postings = self._postings.get(word, [])
            rarity = math.log(1 + (self._documents - len(postings) + 0.5) / (len(postings) + 0.5))
            for at, weight in postings:
                scores[at] = scores.get(at, 0.0) + rarity * weight
        return min(scores, key=lambda at: (-scores[at], at), default=0)
