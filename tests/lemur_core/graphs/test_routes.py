"""Every module of torch.nn has one graph, whether it is traced without values or with them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from lemur_core.graphs.identity import identities
from tests.builders.graphs import trace

Build = Callable[[], nn.Module]

IMAGE = (2, 4, 16, 16)
SERIES = (2, 4, 16)
VOLUME = (2, 4, 8, 8, 8)
TOKENS = (2, 5, 8)


def _of(*shapes: tuple[int, ...], make: Callable[..., Any] = torch.rand) -> Callable[[], list[Any]]:
    return lambda: [make(shape) for shape in shapes]


def _numbers(high: int, *shape: int) -> Callable[[], list[Any]]:
    return lambda: [torch.randint(0, high, shape)]


PLAIN = [
    *("ELU", "Hardshrink", "Hardsigmoid", "Hardtanh", "Hardswish", "LeakyReLU", "LogSigmoid", "PReLU"),
    *("ReLU", "ReLU6", "RReLU", "SELU", "CELU", "GELU", "Sigmoid", "SiLU"),
    *("Mish", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Softmax2d"),
    *("Identity", "Dropout", "FeatureAlphaDropout", "Flatten"),
]

#: By the numbers of dimensions that each kind has: what its constructor is given.
DIMENSIONS: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [
    ("Conv{}d", "123", (4, 6, 3), {"padding": "same", "dilation": 2}),
    ("ConvTranspose{}d", "123", (4, 6, 3), {"stride": 2, "output_padding": 1}),
    ("BatchNorm{}d", "123", (4,), {}),
    ("InstanceNorm{}d", "123", (4,), {"affine": True, "track_running_stats": True}),
    ("MaxPool{}d", "123", (3, 2, 1), {}),
    ("AvgPool{}d", "123", (2,), {}),
    ("LPPool{}d", "12", (2, 2), {}),
    ("AdaptiveAvgPool{}d", "123", (3,), {}),
    ("AdaptiveMaxPool{}d", "123", (3,), {}),
    ("ConstantPad{}d", "1", (1, 2.0), {}),
    ("Dropout{}d", "123", (), {}),
]
SHAPES = {"1": SERIES, "2": IMAGE, "3": VOLUME}
OF_TWO = [
    *("LocalResponseNorm", "CrossMapLRN2d", "PixelShuffle", "PixelUnshuffle", "ChannelShuffle", "Unfold"),
    *("ReflectionPad2d", "ReplicationPad2d", "ZeroPad2d", "CircularPad2d"),
]
#: Of two inputs.
LOSSES = ("PairwiseDistance", "MSELoss", "L1Loss", "SmoothL1Loss", "BCEWithLogitsLoss", "CosineSimilarity")

CASES: dict[str, tuple[Build, Callable[[], list[Any]]]] = {
    **{name: (getattr(nn, name), _of(IMAGE)) for name in PLAIN},
    **{name: (getattr(nn, name), _of(TOKENS)) for name in ("GLU", "AlphaDropout")},
    **{name: (partial(getattr(nn, name), 2), _of(IMAGE)) for name in OF_TWO},
    **{name: (partial(getattr(nn, name), 8), _of(TOKENS)) for name in ("LayerNorm", "RMSNorm")},
    **{name: (partial(getattr(nn, name), 8, 6), _of((2, 8))) for name in ("RNNCell", "LSTMCell", "GRUCell")},
    **{name: (partial(getattr(nn, name), dim=1), _of(TOKENS)) for name in ("Softmin", "Softmax", "LogSoftmax")},
    **{
        name.format(n): (partial(getattr(nn, name.format(n)), *given, **named), _of(SHAPES[n]))
        for name, numbers, given, named in DIMENSIONS
        for n in numbers
    },
    **{name: (getattr(nn, name), _of(TOKENS, TOKENS)) for name in LOSSES},
    "Threshold": (lambda: nn.Threshold(0.1, 20), _of(IMAGE)),
    "Linear": (lambda: nn.Linear(8, 3), _of(TOKENS)),
    "Bilinear": (lambda: nn.Bilinear(8, 8, 3), _of((2, 8), (2, 8))),
    "Conv2d in groups": (lambda: nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2), _of(IMAGE)),
    "Conv2d reflect": (lambda: nn.Conv2d(4, 8, 3, padding=1, padding_mode="reflect"), _of(IMAGE)),
    "BatchNorm2d no statistics": (lambda: nn.BatchNorm2d(4, track_running_stats=False), _of(IMAGE)),
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm(4), _of(IMAGE)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), _of(IMAGE)),
    "MaxPool2d indices": (lambda: nn.MaxPool2d(2, return_indices=True), _of(IMAGE)),
    "FractionalMaxPool2d": (lambda: nn.FractionalMaxPool2d(2, output_size=8), _of(IMAGE)),
    "AdaptiveAvgPool2d to one": (lambda: nn.AdaptiveAvgPool2d(1), _of(IMAGE)),
    "Dropout in place": (lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2, inplace=True)), _of(TOKENS)),
    "Embedding": (lambda: nn.Embedding(10, 4), _numbers(10, 2, 5)),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(10, 4, mode="sum"), _numbers(10, 2, 5)),
    "RNN": (lambda: nn.RNN(8, 6, 2), _of(TOKENS)),
    "RNN relu": (lambda: nn.RNN(8, 6, nonlinearity="relu"), _of(TOKENS)),
    "LSTM": (lambda: nn.LSTM(8, 6, 2, bidirectional=True, dropout=0.1), _of(TOKENS)),
    "LSTM projected": (lambda: nn.LSTM(8, 6, proj_size=3), _of(TOKENS)),
    "GRU": (lambda: nn.GRU(8, 6, batch_first=True), _of(TOKENS)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), _of(TOKENS, TOKENS, TOKENS)),
    "Transformer": (lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), _of(TOKENS, TOKENS)),
    "Upsample nearest": (lambda: nn.Upsample(scale_factor=2), _of(IMAGE)),
    "Upsample bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), _of(IMAGE)),
    "Upsample bicubic": (lambda: nn.Upsample(size=9, mode="bicubic", align_corners=True), _of(IMAGE)),
    "Unflatten": (lambda: nn.Unflatten(1, (2, 2)), _of(IMAGE)),
    "Fold": (lambda: nn.Fold((4, 4), 2, stride=2), _of((2, 16, 4))),
    "KLDivLoss": (lambda: nn.KLDivLoss(reduction="batchmean"), _of(TOKENS, TOKENS)),
    "CrossEntropyLoss": (nn.CrossEntropyLoss, lambda: [torch.rand(2, 5), torch.randint(0, 5, (2,))]),
    "weight_norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 3)), _of(TOKENS)),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", CASES)
def test_with_and_without_values_the_graph_is_the_same(name: str, train: bool) -> None:
    build, inputs = CASES[name]
    found = [trace(build, inputs, device=device, train=train) for device in ("meta", "cpu")]
    assert identities(found[0]).exact == identities(found[1]).exact
    assert identities(found[0]) == identities(found[1])
