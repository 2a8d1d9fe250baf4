"""Upsample with zeros, pad or crop, filter, downsample (Karras et al., StyleGAN2 2020)."""
# ruff: noqa: A002

import torch


def upfirdn2d(
    input: torch.Tensor,
    filter: torch.Tensor,
    upx: int,
    upy: int,
    downx: int,
    downy: int,
    padx0: int,
    padx1: int,
    pady0: int,
    pady1: int,
    flip: bool | None = None,
    gain: float = 1.0,
) -> torch.Tensor:
    """Filtered images (N, C, H, W). Without `flip` (the older, ten-argument form) images are (N, H, W, C).

    The filter is convolved, or correlated with `flip`. Negative padding crops.
    """
    images = input.movedim(-1, 1) if flip is None else input
    n, channels, height, width = images.shape
    spread = images.new_zeros(n, channels, height, upy, width, upx)
    spread[:, :, :, 0, :, 0] = images
    spread = spread.reshape(n * channels, 1, height * upy, width * upx)
    spread = torch.nn.functional.pad(spread, (padx0, padx1, pady0, pady1))
    kernel = (filter if flip else filter.flip(0, 1)) * gain
    result = torch.nn.functional.conv2d(spread, kernel[None, None].to(images.dtype), stride=(downy, downx))
    result = result.reshape(n, channels, *result.shape[2:])
    return result.movedim(1, -1) if flip is None else result
