"""Words: how names, facts and queries are split into them, and which stand for each other."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from extract.model.categories import words_of

_OF_LAYOUT = {
    "N×C": "vectors features",
    "N×C×L": "sequence signal 1d channels first",
    "N×L×C": "sequence tokens channels last",
    "N×C×H×W": "image feature map 2d channels first",
    "N×H×W×C": "image feature map 2d channels last",
    "N×C×D×H×W": "volume video 3d channels first",
    "N×D×H×W×C": "volume video 3d channels last",
}

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

#: What descriptions say without describing anything: left out where enough else is said.
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

#: Endings, the longest first, and what stands in their place.
_ENDINGS = (
    *((ending, "iz") for ending in ("isations", "izations", "isation", "ization", "ising", "ised", "ises", "ise")),
    *(("ations", "at"), ("ation", "at"), ("ators", "ator"), ("ional", "ion"), ("ions", "ion"), ("ings", "")),
    *(("ing", ""), ("ables", ""), ("able", ""), ("ies", "y"), ("ied", "y"), ("ed", ""), ("es", ""), ("ly", "")),
    *(("s", ""), ("e", "")),
)
_DOUBLING = ("ing", "ings", "ed")
_ENDED = ("ss", "us", "is", "as", "eed", "bed")  # words that look as if they had an ending


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """A word in lower case without its ending, so that `downsampling` and `downsamples` are one."""
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
    """The words of a text as they stand there; `3×3` is one."""
    return [word for word in _WORD.findall(text.translate(_SIZES)) if word.strip("_")]


def stems(text: str) -> list[str]:
    """The stems of a text's words; names of several words are split."""
    return [stem(part) for word in plain_words(text) for part in words_of(word).split() or [word.lower()]]


@lru_cache(maxsize=20_000)
def name_stems(name: str) -> tuple[str, ...]:
    """The stems of a name, and the whole of it in lower case: `SEModule` is se, modul, semodul."""
    words = words_of(name).split()
    whole = (stem(name.lower().strip("_")),) if len(words) > 1 else ()
    return (*map(stem, words), *whole)


def terms_of(query: str) -> list[tuple[str, ...]]:
    """The terms of a query, each with the phrases that satisfy it; whatever the query holds, they are plain words."""
    words = [word for word in _WORD.findall(query) if word.strip("_")]
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


def shape_words(spec: Mapping[str, Any]) -> Iterator[str]:
    """What a spec says of shapes, as a searcher would put it; nothing when nothing was observed."""
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
    """A name as it is spelled in lower case, then its words: `SEModule` is `semodule se module`."""
    whole, words = name.lower(), words_of(name)
    return whole if words in (whole, "") else f"{whole} {words}"
