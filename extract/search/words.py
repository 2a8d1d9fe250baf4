"""Split names, facts and queries into words; stems and synonyms."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from extract.model.categories import split_words

_OF_LAYOUT = {
    "N×C": "vectors features",
    "N×C×L": "sequence signal 1d channels first",
    "N×L×C": "sequence tokens channels last",
    "N×C×H×W": "image feature map 2d channels first",
    "N×H×W×C": "image feature map 2d channels last",
    "N×C×D×H×W": "volume video 3d channels first",
    "N×D×H×W×C": "volume video 3d channels last",
}

#: Groups of phrases that match each other in a query. Plurals and endings are removed by `stem`.
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
    ("blur", "anti alias", "anti aliased", "anti aliasing", "antialias", "antialiased", "antialiasing"),
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

#: Words that describe nothing; ignored in a description if any other words remain.
FILLER = _IDLE | frozenset(
    re.findall(
        r"\w+",
        "this these those from as at be can which it we are was has have into using use used uses based via given such"
        " also both when where each et al see more their our your https arxiv org paper implementation implements"
        " implement implemented class module following follows proposed described create creates",
    )
)
_WORD = re.compile(r"\w+")
_SIZES = str.maketrans("×*", "xx")

#: (ending, replacement), the longest endings first.
_ENDINGS = (
    *((ending, "iz") for ending in ("isations", "izations", "isation", "ization", "ising", "ised", "ises", "ise")),
    *(("ations", "at"), ("ation", "at"), ("ators", "ator"), ("ional", "ion"), ("ions", "ion"), ("ings", "")),
    *(("ing", ""), ("ables", ""), ("able", ""), ("ies", "y"), ("ied", "y"), ("ed", ""), ("es", ""), ("ly", "")),
    *(("s", ""), ("e", "")),
)
_DOUBLING = ("ing", "ings", "ed")
_ENDED = ("ss", "us", "is", "as", "eed", "bed")  # words that only seem to have an ending


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """Return a lower-case word without its ending, so that `downsampling` and `downsamples` are equal."""
    if len(word) < 4 or not word.isalpha() or word.endswith(_ENDED):
        return word
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) + len(instead) >= 3:
            word = word[: len(word) - len(ending)] + instead
            if ending in _DOUBLING and len(word) > 4 and word[-1] == word[-2] and word[-1] not in "ls":
                word = word[:-1]
            break
    if word.endswith("at") and len(word) > 6:
        word = word[:-2]
    return word[:-1] + "y" if word.endswith("i") and len(word) > 3 else word


def plain_words(text: str) -> list[str]:
    """Return the words of a text unchanged; `3×3` is one word."""
    return [word for word in _WORD.findall(text.translate(_SIZES)) if word.strip("_")]


def stems(text: str) -> list[str]:
    """Return the stems of the words of a text; names of several words are split."""
    return [stem(part) for word in plain_words(text) for part in split_words(word).split() or [word.lower()]]


@lru_cache(maxsize=20_000)
def name_stems(name: str) -> tuple[str, ...]:
    """Return the stems of a name's parts and of the whole name: `SEModule` gives se, modul, semodul."""
    words = split_words(name).split()
    whole = (stem(name.lower().strip("_")),) if len(words) > 1 else ()
    return (*map(stem, words), *whole)


def split_query(query: str) -> list[tuple[str, ...]]:
    """Return the terms of a query, each as the phrases that satisfy it; special characters are ignored."""
    words = [word for word in _WORD.findall(query) if word.strip("_")]
    idle = _IDLE if any(word.lower() not in _IDLE for word in words) else ()
    terms: list[tuple[str, ...]] = []
    index = 0
    while index < len(words):
        # The longest phrase first: "layer norm" is one term, not two.
        taken = next((n for n in range(_LONGEST, 0, -1) if _phrase(words[index : index + n]) in _GROUPS), 1)
        phrase = _phrase(words[index : index + taken])
        if phrase in _GROUPS:
            terms.append(_GROUPS[phrase])
        elif phrase not in idle:
            terms.append(_spellings(words[index]))
        index += taken
    return list(dict.fromkeys(terms))


def _phrase(words: list[str]) -> str:
    return " ".join(word.lower() for word in words)


def _spellings(word: str) -> tuple[str, ...]:
    """Return the spellings of a word: whole, and split if it is a name of several words."""
    parts = split_words(word)
    phrases = [word.lower(), *([parts] if parts else [])]
    if parts in _GROUPS:
        phrases += _GROUPS[parts]
    return tuple(dict.fromkeys(phrases))


def shape_words(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield phrases about the observed shapes of a spec in the words of a search query."""
    yield _OF_LAYOUT.get(spec["layout"], "")
    if spec["keeps_shape"]:
        yield "keeps shape same size shape preserving"
    factor = spec["downsampling"]
    if factor is not None and factor > 1:
        yield f"{'halves height width' if factor == 2 else ''} shrinks downsampling downsample by {factor:g}"
    elif factor is not None and factor < 1:
        yield f"{'doubles height width' if factor == 0.5 else ''} grows upsampling upsample by {1 / factor:g}"
    elif factor == 1:
        yield "keeps height width"
    if spec["changes_channels"] is not None:
        yield "changes channels" if spec["changes_channels"] else "keeps channels"
    if spec["parameters"] == 0:
        yield "no parameters parameter free"
    if spec["identity_in_eval"]:
        yield "identity in eval"
    if spec["train_differs"]:
        yield "train eval differ stochastic"
    if len(spec["cases"][:1] and spec["cases"][0]["outputs"]) > 1:
        yield "several outputs"


@lru_cache(maxsize=20_000)
def split_name(name: str) -> str:
    """Return a name in lower case, followed by its words: `SEModule` gives `semodule se module`."""
    whole, words = name.lower(), split_words(name)
    return whole if words in (whole, "") else f"{whole} {words}"
