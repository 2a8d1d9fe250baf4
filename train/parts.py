"""What torch and torchvision bring for each slot, and three parts of our own: emitted only when used."""

from train.slots import Filler

_RESIDUAL = '''
import torch.nn as nn


class PreActResidual(nn.Module):
    """Norm, activation, convolution, twice, added to the input: He et al. 2016, arXiv:1603.05027."""

    def __init__(self, channels, norm_activation, conv):
        super().__init__()
        self.norm1 = norm_activation(channels)
        self.conv1 = conv(channels, channels, 3)
        self.norm2 = norm_activation(channels)
        self.conv2 = conv(channels, channels, 3)

    def forward(self, x):
        return x + self.conv2(self.norm2(self.conv1(self.norm1(x))))
'''

_WHITENING = '''
import torch
import torch.nn as nn


class WhiteningStem(nn.Module):
    """3 x 3 patches of the images without their correlations, then a convolution: Page 2018; Jordan 2024,
    arXiv:2404.00498, section 3.2. The filters, with both signs, are measured on the first batch of training, and stay.
    """

    def __init__(self, in_channels, out_channels, activation, conv):
        super().__init__()
        filters = 9 * in_channels
        self.whiten = nn.Conv2d(in_channels, 2 * filters, 3, padding=1, bias=False)
        self.whiten.weight.requires_grad_(False)
        self.activation = activation()
        self.conv = conv(2 * filters, out_channels, 3)
        self.register_buffer("measured", torch.tensor(False))

    def forward(self, x):
        if self.training and not self.measured:
            self.measure(x)
        return self.conv(self.activation(self.whiten(x)))

    @torch.no_grad()
    def measure(self, x):
        stride = min(x.shape[-2:]) // 32 or 1  # enough of large images
        patches = nn.functional.unfold(x.detach().float(), 3, stride=stride).transpose(1, 2).flatten(0, 1)
        patches = patches - patches.mean(0)
        with torch.autocast(x.device.type, enabled=False):
            covariance = patches.T @ patches / len(patches)
        variances, directions = torch.linalg.eigh(covariance.cpu().double())
        filters = (directions / torch.sqrt(variances.clamp(min=0) + 5e-4)).T.reshape(-1, *self.whiten.weight.shape[1:])
        self.whiten.weight.copy_(torch.cat([filters, -filters]))
        self.measured.fill_(True)
'''

_MAX_HEAD = '''
import torch.nn as nn


class MaxHead(nn.Module):
    """The largest value of each channel, then a linear layer, scaled down as in Jordan 2024, arXiv:2404.00498."""

    def __init__(self, channels, classes, scale=0.25):
        super().__init__()
        self.linear = nn.Linear(channels, classes)
        self.scale = scale

    def forward(self, x):
        return self.linear(x.amax((-2, -1))) * self.scale
'''

NONE = "none"

#: Of two slots, that stay empty under this name.
EMPTY_SLOTS = ("attention", "stochastic_depth")

_GROUP_NORM = "min(32, channels // 8 or 1), channels"

PARTS: dict[str, dict[str, Filler]] = {
    "stem": {
        "conv3x3": Filler("conv3x3", "make_conv", ("in_channels, out_channels, 3",)),
        "patch2": Filler(
            "patch2", "nn.Sequential", ("nn.PixelUnshuffle(2), make_conv(4 * in_channels, out_channels, 3)",)
        ),
        "whitening": Filler(
            "whitening",
            "WhiteningStem",
            ("in_channels, out_channels, make_activation, make_conv",),
            _WHITENING,
        ),
    },
    "residual": {
        "preact_basic": Filler(
            "preact_basic", "PreActResidual", ("channels, make_norm_activation, make_conv",), _RESIDUAL
        ),
    },
    "attention": {},
    "downsample": {
        "strided_conv": Filler("strided_conv", "make_conv", ("channels, out_channels, 3, stride=2",)),
        "avg_pool": Filler("avg_pool", "nn.AvgPool2d", ("2",)),
        "max_pool": Filler("max_pool", "nn.MaxPool2d", ("2",)),
    },
    "norm": {
        "batch_norm": Filler("batch_norm", "nn.BatchNorm2d", ("channels",)),
        "group_norm": Filler("group_norm", "nn.GroupNorm", (_GROUP_NORM,)),
    },
    "activation": {
        "relu": Filler("relu", "nn.ReLU", ("inplace=True",)),
        "silu": Filler("silu", "nn.SiLU", ("",)),
        "gelu": Filler("gelu", "nn.GELU", ("",)),
    },
    "stochastic_depth": {
        "torchvision": Filler(
            "torchvision",
            "StochasticDepth",
            ('rate, mode="row"',),
            imports=("from torchvision.ops import StochasticDepth",),
        ),
    },
    "head": {
        "linear": Filler(
            "linear", "nn.Sequential", ("nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)",)
        ),
        "max_linear": Filler("max_linear", "MaxHead", ("channels, classes",), _MAX_HEAD),
    },
}


def part_names(slot: str) -> list[str]:
    """The names of a slot's built-in parts, `none` among them where it may stay empty."""
    return sorted([*PARTS[slot], *([NONE] if slot in EMPTY_SLOTS else [])])
