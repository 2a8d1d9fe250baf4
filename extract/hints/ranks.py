"""Which layers say how many dimensions their input has, and which keep that number."""

import re

_BY_NAME = {
    "Embedding": 2,
    "LSTM": 3,
    "GRU": 3,
    "MultiheadAttention": 3,
    "TransformerEncoderLayer": 3,
    "TransformerDecoderLayer": 3,
    "PixelShuffle": 4,
    "PixelUnshuffle": 4,
    "pixel_shuffle": 4,
    "UpsamplingBilinear2d": 4,
    "build_conv_layer": 4,
    "unfold": 4,
}
_DIMENSIONAL = re.compile(
    r"(conv|pool|pad|upsampling|batch_?norm|instance_?norm|layer_?norm|dropout|fold|unfold|transpose)(\w*?)([123])d",
    re.IGNORECASE,
)
_KEEPING = re.compile(
    r"norm|drop|act|relu|gelu|silu|swish|mish|sigmoid|tanh|softmax|identity|scale|^ls\d*$|^ln_?\w*$|^bn\w*$|linear|^fc\d*$"
    r"|^conv|conv\dx\d|contiguous|quant",
    re.IGNORECASE,
)
_KEEPING_METHODS = {"contiguous", "float", "half", "double", "to", "type", "type_as", "clone", "detach", "cuda", "cpu"}
_KEEPING_METHODS |= {
    "masked_fill",
    "clamp",
    "relu",
    "sigmoid",
    "tanh",
    "softmax",
    "abs",
    "pow",
    "mul",
    "add",
    "sub",
    "div",
}
_KEEPING_METHODS |= {"float16", "bfloat16", "exp", "log", "sqrt", "square", "transpose", "permute", "flip", "roll"}


def rank_for(name: str) -> int | None:
    """The number of dimensions that a layer or function of this name takes; None where it does not say."""
    last = name.rpartition(".")[2]
    if last in _BY_NAME:
        return _BY_NAME[last]
    match = _DIMENSIONAL.search(last)
    if match is None or (match[1].lower().replace("_", "") == "batchnorm" and match[3] == "1"):
        return None
    return int(match[3]) + 2


def keeps_rank(name: str) -> bool:
    """Whether what a layer of this name gives has as many dimensions as what it takes."""
    last = name.rpartition(".")[2]
    return bool(_KEEPING.search(last)) or (rank_for(name) or 0) > 2


def method_keeps_rank(name: str) -> bool:
    """Whether a method of a tensor keeps the number of dimensions."""
    return name in _KEEPING_METHODS
