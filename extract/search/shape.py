"""Words for what a spec says of shapes, as a searcher would put it."""

from collections.abc import Iterator, Mapping
from typing import Any

_OF_LAYOUT = {
    "N×C": "vectors features",
    "N×C×L": "sequence signal 1d channels first",
    "N×L×C": "sequence tokens channels last",
    "N×C×H×W": "image feature map 2d channels first",
    "N×H×W×C": "image feature map 2d channels last",
    "N×C×D×H×W": "volume video 3d channels first",
    "N×D×H×W×C": "volume video 3d channels last",
}


def shape_words(spec: Mapping[str, Any]) -> str:
    """The words of a spec, as JSON has it; empty when nothing was observed."""
    return " ".join(_words(spec))


def _words(spec: Mapping[str, Any]) -> Iterator[str]:
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
