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


ACTIVATIONS = [
    *("ELU", "Hardshrink", "Hardsigmoid", "Hardtanh", "Hardswish", "LeakyReLU", "LogSigmoid", "PReLU"),
    *("ReLU", "ReLU6", "RReLU", "SELU", "CELU", "GELU", "Sigmoid", "SiLU"),
    *("Mish", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Softmax2d"),
]

CASES: dict[str, tuple[Build, Callable[[], list[Any]]]] = {
    **{name: (getattr(nn, name), _of(IMAGE)) for name in ACTIVATIONS},
    **{name: (partial(getattr(nn, name), dim=1), _of(TOKENS)) for name in ("Softmin", "Softmax", "LogSoftmax")},
    "Threshold": (lambda: nn.Threshold(0.1, 20), _of(IMAGE)),
    "GLU": (nn.GLU, _of(TOKENS)),
    "Identity": (nn.Identity, _of(IMAGE)),
    "Linear": (lambda: nn.Linear(8, 3), _of(TOKENS)),
    "Bilinear": (lambda: nn.Bilinear(8, 8, 3), _of((2, 8), (2, 8))),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3, padding="same"), _of(SERIES)),
    "Conv2d": (lambda: nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2), _of(IMAGE)),
    "Conv2d reflect": (lambda: nn.Conv2d(4, 8, 3, padding=1, padding_mode="reflect"), _of(IMAGE)),
    "Conv3d": (lambda: nn.Conv3d(4, 6, 3, dilation=2), _of(VOLUME)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 6, 3), _of(SERIES)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1), _of(IMAGE)),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(4, 6, 3), _of(VOLUME)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), _of(SERIES)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), _of(IMAGE)),
    "BatchNorm2d no statistics": (lambda: nn.BatchNorm2d(4, track_running_stats=False), _of(IMAGE)),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(4), _of(VOLUME)),
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm(4), _of(IMAGE)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), _of(IMAGE)),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(4), _of(SERIES)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), _of(IMAGE)),
    "InstanceNorm3d": (lambda: nn.InstanceNorm3d(4), _of(VOLUME)),
    "LayerNorm": (lambda: nn.LayerNorm(8), _of(TOKENS)),
    "RMSNorm": (lambda: nn.RMSNorm(8), _of(TOKENS)),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), _of(IMAGE)),
    "CrossMapLRN2d": (lambda: nn.CrossMapLRN2d(2), _of(IMAGE)),
    "MaxPool1d": (lambda: nn.MaxPool1d(2), _of(SERIES)),
    "MaxPool2d": (lambda: nn.MaxPool2d(3, 2, 1), _of(IMAGE)),
    "MaxPool2d indices": (lambda: nn.MaxPool2d(2, return_indices=True), _of(IMAGE)),
    "MaxPool3d": (lambda: nn.MaxPool3d(2), _of(VOLUME)),
    "AvgPool1d": (lambda: nn.AvgPool1d(2), _of(SERIES)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), _of(IMAGE)),
    "AvgPool3d": (lambda: nn.AvgPool3d(2), _of(VOLUME)),
    "LPPool1d": (lambda: nn.LPPool1d(2, 2), _of(SERIES)),
    "LPPool2d": (lambda: nn.LPPool2d(2, 2), _of(IMAGE)),
    "FractionalMaxPool2d": (lambda: nn.FractionalMaxPool2d(2, output_size=8), _of(IMAGE)),
    "AdaptiveAvgPool1d": (lambda: nn.AdaptiveAvgPool1d(3), _of(SERIES)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(3), _of(IMAGE)),
    "AdaptiveAvgPool2d to one": (lambda: nn.AdaptiveAvgPool2d(1), _of(IMAGE)),
    "AdaptiveAvgPool3d": (lambda: nn.AdaptiveAvgPool3d(2), _of(VOLUME)),
    "AdaptiveMaxPool1d": (lambda: nn.AdaptiveMaxPool1d(3), _of(SERIES)),
    "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d(3), _of(IMAGE)),
    "AdaptiveMaxPool3d": (lambda: nn.AdaptiveMaxPool3d(2), _of(VOLUME)),
    "ReflectionPad2d": (lambda: nn.ReflectionPad2d(1), _of(IMAGE)),
    "ReplicationPad2d": (lambda: nn.ReplicationPad2d(1), _of(IMAGE)),
    "ZeroPad2d": (lambda: nn.ZeroPad2d(1), _of(IMAGE)),
    "ConstantPad1d": (lambda: nn.ConstantPad1d(1, 2.0), _of(SERIES)),
    "CircularPad2d": (lambda: nn.CircularPad2d(1), _of(IMAGE)),
    "Dropout": (nn.Dropout, _of(IMAGE)),
    "Dropout in place": (lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2, inplace=True)), _of(TOKENS)),
    "Dropout1d": (nn.Dropout1d, _of(SERIES)),
    "Dropout2d": (nn.Dropout2d, _of(IMAGE)),
    "Dropout3d": (nn.Dropout3d, _of(VOLUME)),
    "AlphaDropout": (nn.AlphaDropout, _of(TOKENS)),
    "FeatureAlphaDropout": (nn.FeatureAlphaDropout, _of(IMAGE)),
    "Embedding": (lambda: nn.Embedding(10, 4), _numbers(10, 2, 5)),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(10, 4, mode="sum"), _numbers(10, 2, 5)),
    "RNN": (lambda: nn.RNN(8, 6, 2), _of(TOKENS)),
    "RNN relu": (lambda: nn.RNN(8, 6, nonlinearity="relu"), _of(TOKENS)),
    "LSTM": (lambda: nn.LSTM(8, 6, 2, bidirectional=True, dropout=0.1), _of(TOKENS)),
    "LSTM projected": (lambda: nn.LSTM(8, 6, proj_size=3), _of(TOKENS)),
    "GRU": (lambda: nn.GRU(8, 6, batch_first=True), _of(TOKENS)),
    "RNNCell": (lambda: nn.RNNCell(8, 6), _of((2, 8))),
    "LSTMCell": (lambda: nn.LSTMCell(8, 6), _of((2, 8))),
    "GRUCell": (lambda: nn.GRUCell(8, 6), _of((2, 8))),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), _of(TOKENS, TOKENS, TOKENS)),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), _of(TOKENS)),
    "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(8, 2, 16), _of(TOKENS, TOKENS)),
    "Transformer": (lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), _of(TOKENS, TOKENS)),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), _of(IMAGE)),
    "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), _of(IMAGE)),
    "ChannelShuffle": (lambda: nn.ChannelShuffle(2), _of(IMAGE)),
    "Upsample nearest": (lambda: nn.Upsample(scale_factor=2), _of(IMAGE)),
    "Upsample bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), _of(IMAGE)),
    "Upsample bicubic": (lambda: nn.Upsample(size=9, mode="bicubic", align_corners=True), _of(IMAGE)),
    "Flatten": (nn.Flatten, _of(IMAGE)),
    "Unflatten": (lambda: nn.Unflatten(1, (2, 2)), _of(IMAGE)),
    "Fold": (lambda: nn.Fold((4, 4), 2, stride=2), _of((2, 16, 4))),
    "Unfold": (lambda: nn.Unfold(2), _of(IMAGE)),
    "CosineSimilarity": (nn.CosineSimilarity, _of(TOKENS, TOKENS)),
    "PairwiseDistance": (nn.PairwiseDistance, _of((2, 8), (2, 8))),
    "MSELoss": (nn.MSELoss, _of(TOKENS, TOKENS)),
    "L1Loss": (nn.L1Loss, _of(TOKENS, TOKENS)),
    "SmoothL1Loss": (nn.SmoothL1Loss, _of(TOKENS, TOKENS)),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss, _of(TOKENS, TOKENS)),
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
