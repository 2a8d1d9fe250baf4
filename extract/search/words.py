"""Words: how names are split for the index, and which words of the field mean the same."""

import re
from functools import lru_cache

from extract.categories import words_of

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


@lru_cache(maxsize=20_000)
def split_name(name: str) -> str:
    """A name for the index: whole in lower case, then its words: `SEModule` is `semodule se module`."""
    whole, words = name.lower(), words_of(name)
    return whole if words in (whole, "") else f"{whole} {words}"


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
