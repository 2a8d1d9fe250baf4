"""Rank the blocks that match a query, by its words and by their meaning.

A word is weighted by its rarity and by the fields that contain it (BM25 over several fields). Synonyms match each
other, a prefix matches its word (`conv` matches convolutional), and initials match what they abbreviate. The similarity
of the query and the block by the vectors of `meaning` is added to the score. A block that contains all words gains by
it. A long query is a description: blocks that are near by meaning match it without any of its words.
"""

import difflib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
import numpy.typing as npt

from extract.model.categories import split_words
from extract.search import meaning
from extract.search.index import Hits, SearchIndex, SpecLine
from extract.search.words import FILLER, plain_words, split_query, stem, stems
from lemur_core.files.errors import UserError
from manifests.options import Level

_DESCRIPTION = 5  # minimum number of terms of a description
_MEANING = 2.0  # weight of the meaning relative to words
_NEAR_ENOUGH = 0.2  # similarity of meaning that needs no common word
_WHOLE = 1.0  # what a block gains that contains all words: a long class may contain them by chance
_BEGINNING = (0.3, 0.5)  # weight of a prefix: a constant, and a factor of its share of the word
_SHORTEST = 4  # minimum letters of a prefix
_CUT = 3  # minimum letters missing from a prefix, so that misspelled words do not count as prefixes
_INITIALS = {2: 0.4, 3: 0.6, 4: 0.6, 5: 0.6}  # number of initials -> weight
_APART = 0.8  # weight of a phrase whose words all match, adjacent or not
_JOINED = 0.7  # weight of two words written as one
_NEAR = 5
_LEVELS: tuple[str, ...] = get_args(Level)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Filters:
    """Conditions on hits; several values of one kind are alternatives."""

    categories: tuple[str, ...] = ()
    level: str | None = None  # or higher
    licenses: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()  # with or without version
    all_words: bool = False  # only blocks with all words of a short query, if there are any


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best hits, the total number of matches, and whether one contains all words of the query."""

    hits: list[SpecLine]
    matched: int
    complete: bool = True


def search(index: SearchIndex, query: str, filters: Filters, limit: int | None) -> SearchResult:
    """Return the blocks that contain words of a query, or are near to a description, best first.

    Without a query, return all blocks that pass the filters, in the order of the table.

    Args:
        index: from `open_index`.
        query: a name, words or a description; empty for all blocks.
        filters: conditions that a hit meets.
        limit: maximum number of hits; None for all.

    Returns: the hits, the number of matches before `limit`, and whether one of them contains all words.
    Raises: UserError if nothing matches, or no block has the value of a filter.
    """
    allowed = filter_mask(index, filters)
    terms = split_query(query)
    if query.strip() and not terms:
        raise UserError(f"{query.strip()[:80]!r}: no words to search for; give a name, a layer, or what a block does")
    if not terms:
        if not allowed.any():
            what = (
                "no block passes these filters" if filters != Filters() else "the folder holds no block that has code"
            )
            raise UserError(what)
        indices = np.flatnonzero(allowed)
        return SearchResult([index.spec(int(number)) for number in indices[:limit]], len(indices))
    ranked, complete, without = _rank_blocks(index, query, terms, allowed, filters.all_words)
    if not len(ranked):
        raise UserError(_explain_no_match(index, query, terms, without))
    return SearchResult([index.spec(int(number)) for number in ranked[:limit]], len(ranked), complete)


def rank(index: SearchIndex, query: str) -> npt.NDArray[np.int64]:
    """Return the numbers of the blocks that match a query, best first; empty if nothing matches."""
    return _rank_blocks(index, query, split_query(query), np.ones(len(index), bool))[0]


def _rank_blocks(
    index: SearchIndex,
    query: str,
    terms: Sequence[tuple[str, ...]],
    allowed: npt.NDArray[np.bool_],
    strict: bool = False,
) -> tuple[npt.NDArray[np.int64], bool, int]:
    """Rank the allowed blocks that match.

    Returns: their numbers, best first; whether they contain all words; the number of matches without filters.
    """
    if len(terms) >= _DESCRIPTION:
        terms = [term for term in terms if len(term) > 1 or term[0] not in FILLER] or terms
    scores, has = np.zeros(len(index), np.float32), np.zeros(len(index), np.int32)
    rare = 0.0
    for term in terms:
        weights, matched = _weigh_term(index, term)
        value = _rarity(int(matched.sum()), len(index))
        scores += value * weights
        has += matched
        rare += value
    for word, share in _match_joined(index, query).items():
        hits = index.hits(word)
        scores[hits.blocks] += share * _rarity(len(hits.blocks), len(index)) * hits.weights
    # Comparable with the similarity of meanings, whatever the number of terms.
    scores = scores / np.float32(max(rare, 1e-9) ** 0.5)
    near = index.meanings @ meaning.query_vector(_query_stems(query))
    matches, whole = has > 0, has == len(terms)
    described = len(terms) >= _DESCRIPTION
    complete = described or bool((whole & allowed).any())  # a block need not contain every word of a description
    if strict and complete and not described:
        matches = whole
    elif described and matches.any():  # also those that say the same in other words
        matches |= near > _NEAR_ENOUGH
    scores += _MEANING * near + _WHOLE * whole
    name = "".join(query.split()).lower()
    chosen = np.flatnonzero(matches & allowed)
    first = np.array([index.facts["name"][number].lower() == name for number in chosen], bool)
    # A block of exactly this name first, then by score; ties in the order of the table.
    order = np.lexsort((chosen, -scores[chosen], ~first))
    return chosen[order], complete, int(matches.sum())


def _query_stems(query: str) -> list[str]:
    long_stems = [item for item in stems(query) if len(item) > 1]
    return [item for item in long_stems if item not in _FILLER_STEMS] or long_stems


_FILLER_STEMS = frozenset(stem(word) for word in FILLER)


def _rarity(blocks: int, of: int) -> float:
    """Return the BM25 inverse document frequency of a word that this many of all blocks contain."""
    return float(np.log(1 + (of - blocks + 0.5) / (blocks + 0.5)))


def _weigh_term(index: SearchIndex, phrases: Sequence[str]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return the weight of a term in each block, and the blocks that contain one of its phrases.

    The best phrase counts fully, the others half.
    """
    best, total = np.zeros(len(index), np.float32), np.zeros(len(index), np.float32)
    for words in dict.fromkeys(tuple(stem(word) for word in phrase.split()) for phrase in phrases):
        hits = _match_phrase(index, words)
        best[hits.blocks] = np.maximum(best[hits.blocks], hits.weights)
        total[hits.blocks] += hits.weights
    weights: Floats = ((best + total) / 2).astype(np.float32)
    matched = total > 0
    for word, share in _match_prefixes(index, phrases[0]).items():
        hits = index.hits(word)
        weights[hits.blocks] = np.maximum(weights[hits.blocks], np.float32(share) * hits.weights)
    return weights, matched


def _match_phrase(index: SearchIndex, words: Sequence[str]) -> Hits:
    """Return the blocks that contain all of these stems, adjacent or not, with the mean of their weights."""
    hits = index.hits(words[0])
    for word in words[1:]:
        more = index.hits(word)
        both, left, right = np.intersect1d(hits.blocks, more.blocks, assume_unique=True, return_indices=True)
        hits = Hits(both, hits.weights[left] + more.weights[right])
    return Hits(hits.blocks, hits.weights * np.float32(_APART / len(words) if len(words) > 1 else 1))


def _match_prefixes(index: SearchIndex, word: str) -> dict[str, float]:
    """Return the stems that are a prefix of a word, or of which it is a prefix, with their weights."""
    word = stem(word)
    if len(word) < _SHORTEST or not word.isalpha():
        return {}
    weights = {}
    for other in index.by_start.get(word[:_SHORTEST], ()):
        short, long = sorted((len(other), len(word)))
        if long - short >= _CUT and (word.startswith(other) or other.startswith(word)):
            weights[other] = _BEGINNING[0] + _BEGINNING[1] * short / long
    return weights


def _match_joined(index: SearchIndex, query: str) -> dict[str, float]:
    """Return the stems that represent several adjacent words of a query, joined or as initials, with their weights."""
    all_words = [part for word in plain_words(query) for part in split_words(word).split() or [word.lower()]]
    content_words = [word for word in all_words if word not in FILLER]
    weights: dict[str, float] = {}
    for one, other in itertools.pairwise(content_words):
        pairs = itertools.product(_single_words(one), _single_words(other))  # `channelattn` for channel attention
        weights |= {joined: _JOINED for first, second in pairs if (joined := first + second) in index}
    for words in (content_words, all_words):
        for many, share in _INITIALS.items():
            for start in range(len(words) - many + 1):
                initials = "".join(word[0] for word in words[start : start + many])
                # Initials that the query itself contains as a word have been counted.
                if initials.isalpha() and initials in index and initials not in all_words:
                    weights.setdefault(initials, share)
    return weights


def _single_words(word: str) -> set[str]:
    return {word, stem(word), *(phrase for term in split_query(word) for phrase in term if " " not in phrase)}


# --- filters and error messages ------------------------------------------------------------------------------------


def filter_mask(index: SearchIndex, filters: Filters) -> npt.NDArray[np.bool_]:
    """Return a mask of the blocks that pass the filters.

    Raises: UserError for a value that no block has.
    """
    mask = np.ones(len(index), bool)
    for name, option, wanted in (
        ("category", "--category", filters.categories),
        ("license", "--license", filters.licenses),
        ("source", "--source", filters.sources),
    ):
        if wanted:
            column = index.facts[name]
            values = [{value, value.partition("@")[0] if name == "source" else value} for value in column]
            known = {_match_value(option, sorted(set().union(*values)), value) for value in wanted}
            mask &= np.array([not known.isdisjoint(names) for names in values], bool)
    if filters.level is not None:
        high = _LEVELS[_LEVELS.index(filters.level) :]
        mask &= np.array([level in high for level in index.facts["level"]], bool)
    return mask


def _match_value(option: str, values: Sequence[str], wanted: str) -> str:
    """Return the value in the spelling of the folder.

    Raises: UserError listing similar values if there is none.
    """
    folded = {value.casefold(): value for value in values}
    if wanted.casefold() in folded:
        return folded[wanted.casefold()]
    near = [folded[name] for name in difflib.get_close_matches(wanted.casefold(), folded, _NEAR, 0.5)]
    near += [value for value in values if wanted and wanted.casefold() in value.casefold() and value not in near]
    suggestions = ", ".join(near[:_NEAR] or values[:_NEAR])
    hint = f"; {'near' if near else 'there are'}: {suggestions}" if suggestions else ""
    raise UserError(f"{option} {wanted}: no block of this folder has it{hint}")


def _explain_no_match(index: SearchIndex, query: str, terms: Iterable[Sequence[str]], without: int) -> str:
    """Return the message for a query without matches. Args: without: number of matches without the filters."""
    shown_query = query.strip()[:80]
    if without:
        return f"{shown_query}: nothing passes these filters; {without:,} blocks match without them"
    words = index.words
    near = [word for term in terms for word in difflib.get_close_matches(term[0], words, _NEAR)]
    near += [word for term in terms for word in words if term[0] in word]
    unique = ", ".join(list(dict.fromkeys(near))[:_NEAR])
    return f"{shown_query}: nothing matches; " + (f"near words: {unique}" if unique else "try a category or a layer")
