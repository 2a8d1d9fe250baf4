"""Which blocks answer a query, the best first: words, and what they mean.

A word counts by how rare it is and by the fields that it stands in (BM25 over several fields); synonyms stand for each
other, a word's beginning for the word (`conv` for convolutional), initials for what they abbreviate. To this is added
how near the query is to a block by the vectors of `meaning`. A short query is a search for blocks that have all of its
words; one of more words is a description, and the nearest come first whichever words they lack.
"""

import difflib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from extract.model.categories import words_of
from extract.search import meaning
from extract.search.index import Hits, Index
from extract.search.words import FILLER, plain_words, stem, stems, terms_of
from lemur_core.files.errors import UserError

_DESCRIPTION = 5  # terms from which on a query is a description
_MEANING = 2.0  # how much meaning counts beside words
_MEANING_TIES = 0.2  # where all words of a short query are found
_BEGINNING = (0.3, 0.5)  # what a word's beginning counts: this, and this times its share of the word
_SHORTEST = 4  # letters of a beginning
_CUT = 3  # letters at least that it lacks, so that a misspelled word is none
_INITIALS = {2: 0.4, 3: 0.6, 4: 0.6, 5: 0.6}  # what initials count, by how many
_APART = 0.8  # what a phrase counts whose words are found, in turn or not
_JOINED = 0.7  # what two words count that are written as one
_NEAR = 5

Spec = dict[str, Any]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Filters:
    """What hits must have; several values of one kind are alternatives."""

    categories: tuple[str, ...] = ()
    level: str | None = None  # or higher
    licenses: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()  # with or without version


@dataclass(frozen=True, slots=True)
class Found:
    """The best hits, how many there are in all, and whether they have all words of the query."""

    hits: list[Spec]
    matched: int
    complete: bool = True


def search(index: Index, query: str, filters: Filters, limit: int | None) -> Found:
    """The blocks that have all words of a query, best first; if none has, or it is a description, the nearest.

    Without a query, all that pass the filters, in the order of the table.

    Args: limit: hits at most; all when None.
    Raises: UserError if nothing is found, or a filter names what there is not.
    """
    allowed = passing(index, filters)
    terms = terms_of(query)
    if query.strip() and not terms:
        raise UserError(f"{query.strip()[:80]!r}: no words to search for; give a name, a layer, or what a block does")
    if not terms:
        if not allowed.any():
            what = (
                "no block passes these filters" if filters != Filters() else "the folder holds no block that has code"
            )
            raise UserError(what)
        every = np.flatnonzero(allowed)
        return Found([index.spec(int(number)) for number in every[:limit]], len(every))
    ranked, complete, without = _ranked(index, query, terms, allowed)
    if not len(ranked):
        raise UserError(_nothing(index, query, terms, without))
    return Found([index.spec(int(number)) for number in ranked[:limit]], len(ranked), complete)


def rank(index: Index, query: str) -> npt.NDArray[np.int64]:
    """The numbers of the blocks that answer a query, best first; none where nothing does."""
    return _ranked(index, query, terms_of(query), np.ones(len(index), bool))[0]


def _ranked(
    index: Index, query: str, terms: Sequence[tuple[str, ...]], allowed: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int64], bool, int]:
    """Of the blocks that pass those that answer, best first; whether by all words; how many would without filters."""
    if len(terms) >= _DESCRIPTION:
        terms = [term for term in terms if len(term) > 1 or term[0] not in FILLER] or terms
    scores, has = np.zeros(len(index), np.float32), np.zeros(len(index), np.int32)
    rare = 0.0
    for term in terms:
        weights, there = _of_term(index, term)
        value = _rarity(int(there.sum()), len(index))
        scores += value * weights
        has += there
        rare += value
    for word, share in _together(index, query).items():
        hits = index.hits(word)
        scores[hits.blocks] += share * _rarity(len(hits.blocks), len(index)) * hits.weights
    scores = scores / np.float32(max(rare, 1e-9) ** 0.5)
    found, whole = has > 0, has == len(terms)
    complete = bool((whole & allowed).any())
    described = len(terms) >= _DESCRIPTION
    if complete and not described:
        found = whole
    near = index.meanings @ meaning.of_query(_asked(query))
    scores += (_MEANING if described or not complete else _MEANING_TIES) * near
    complete |= described  # of a description no block need have every word
    name = "".join(query.split()).lower()
    chosen = np.flatnonzero(found & allowed)
    first = np.array([index.facts["name"][number].lower() == name for number in chosen], bool)
    order = np.lexsort((chosen, -scores[chosen], ~first))
    return chosen[order], complete, int(found.sum())


def _asked(query: str) -> list[str]:
    found = [one for one in stems(query) if len(one) > 1]
    return [one for one in found if one not in _FILLER_STEMS] or found


_FILLER_STEMS = frozenset(stem(word) for word in FILLER)


def _rarity(blocks: int, of: int) -> float:
    """What a word counts that this many blocks have: the inverse document frequency of BM25."""
    return float(np.log(1 + (of - blocks + 0.5) / (blocks + 0.5)))


def _of_term(index: Index, phrases: Sequence[str]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """How much each block has of a term, and which have one of its phrases: of the best all, of others half."""
    best, every = np.zeros(len(index), np.float32), np.zeros(len(index), np.float32)
    for words in dict.fromkeys(tuple(stem(word) for word in phrase.split()) for phrase in phrases):
        hits = _of_phrase(index, words)
        best[hits.blocks] = np.maximum(best[hits.blocks], hits.weights)
        every[hits.blocks] += hits.weights
    weights: Floats = ((best + every) / 2).astype(np.float32)
    there = every > 0
    for word, share in _beginnings(index, phrases[0]).items():
        hits = index.hits(word)
        weights[hits.blocks] = np.maximum(weights[hits.blocks], np.float32(share) * hits.weights)
    return weights, there


def _of_phrase(index: Index, words: Sequence[str]) -> Hits:
    """The blocks that have all of these stems, with the mean of what they have of each; several may stand apart."""
    found = index.hits(words[0])
    for word in words[1:]:
        more = index.hits(word)
        both, left, right = np.intersect1d(found.blocks, more.blocks, assume_unique=True, return_indices=True)
        found = Hits(both, found.weights[left] + more.weights[right])
    return Hits(found.blocks, found.weights * np.float32(_APART / len(words) if len(words) > 1 else 1))


def _beginnings(index: Index, word: str) -> dict[str, float]:
    """Stems that begin a word, or that it begins, and what they count for it."""
    word = stem(word)
    if len(word) < _SHORTEST or not word.isalpha():
        return {}
    found = {}
    for other in index.by_start.get(word[:_SHORTEST], ()):
        short, long = sorted((len(other), len(word)))
        if long - short >= _CUT and (word.startswith(other) or other.startswith(word)):
            found[other] = _BEGINNING[0] + _BEGINNING[1] * short / long
    return found


def _together(index: Index, query: str) -> dict[str, float]:
    """Stems that stand for several words of a query in turn, joined or by their initials, and what they count."""
    every = [part for word in plain_words(query) for part in words_of(word).split() or [word.lower()]]
    telling = [word for word in every if word not in FILLER]
    found: dict[str, float] = {}
    for one, other in itertools.pairwise(telling):
        found |= {joined: _JOINED for joined in (one + other, stem(one) + other) if joined in index}
    for words in (telling, every):
        for many, share in _INITIALS.items():
            for start in range(len(words) - many + 1):
                initials = "".join(word[0] for word in words[start : start + many])
                if initials.isalpha() and initials in index and initials not in every:
                    found.setdefault(initials, share)
    return found


# --- filters, and what to say where nothing is found ---------------------------------------------------------------


def passing(index: Index, filters: Filters) -> npt.NDArray[np.bool_]:
    """Which blocks pass the filters.

    Raises: UserError for a value that no block has.
    """
    found = np.ones(len(index), bool)
    for name, option, wanted in (
        ("category", "--category", filters.categories),
        ("license", "--license", filters.licenses),
        ("source", "--source", filters.sources),
    ):
        if wanted:
            told = index.facts[name]
            values = [{value, value.partition("@")[0] if name == "source" else value} for value in told]
            known = {_known(option, sorted(set().union(*values)), value) for value in wanted}
            found &= np.array([bool(one & known) for one in values], bool)
    if filters.level is not None:
        from extract.model.results import at_least  # heavy (pyarrow), and only needed here

        high = {level for level in set(index.facts["level"]) if at_least(level, filters.level)}
        found &= np.array([level in high for level in index.facts["level"]], bool)
    return found


def _known(option: str, values: Sequence[str], wanted: str) -> str:
    """The value as the folder spells it.

    Raises: UserError naming near ones if it has none.
    """
    folded = {value.casefold(): value for value in values}
    if wanted.casefold() in folded:
        return folded[wanted.casefold()]
    near = [folded[name] for name in difflib.get_close_matches(wanted.casefold(), folded, _NEAR, 0.5)]
    near += [value for value in values if wanted and wanted.casefold() in value.casefold() and value not in near]
    told = ", ".join(near[:_NEAR] or values[:_NEAR])
    hint = f"; {'near' if near else 'there are'}: {told}" if told else ""
    raise UserError(f"{option} {wanted}: no block of this folder has it{hint}")


def _nothing(index: Index, query: str, terms: Iterable[Sequence[str]], without: int) -> str:
    """What to say where nothing matches. Args: without: blocks that match, but for the filters."""
    told = query.strip()[:80]
    if without:
        return f"{told}: nothing passes these filters; {without:,} blocks match without them"
    words = index.words
    near = [word for term in terms for word in difflib.get_close_matches(term[0], words, _NEAR)]
    near += [word for term in terms for word in words if term[0] in word]
    unique = ", ".join(list(dict.fromkeys(near))[:_NEAR])
    return f"{told}: nothing matches; " + (f"near words: {unique}" if unique else "try a category or a layer")
