"""Both halves of a convolution evaluated only where a mask is set: gather columns, scatter results (one image)."""

import torch


def masked_im2col_forward(
    im: torch.Tensor,
    mask_h_idx: torch.Tensor,
    mask_w_idx: torch.Tensor,
    col: torch.Tensor,
    kernel_h: int,
    kernel_w: int,
    pad_h: int,
    pad_w: int,
) -> None:
    """Fill `col` (C * kh * kw, places) with the zero-padded neighbourhoods of the chosen output places."""
    padded = torch.nn.functional.pad(im[0], (pad_w, pad_w + kernel_w, pad_h, pad_h + kernel_h))
    rows = mask_h_idx[None, None] + torch.arange(kernel_h, device=im.device)[:, None, None]
    columns = mask_w_idx[None, None] + torch.arange(kernel_w, device=im.device)[None, :, None]
    col.copy_(padded[:, rows, columns].reshape(col.shape))


def masked_col2im_forward(
    col: torch.Tensor,
    mask_h_idx: torch.Tensor,
    mask_w_idx: torch.Tensor,
    im: torch.Tensor,
    height: int,
    width: int,
    channels: int,
) -> None:
    """Write `col` (channels, places) to the chosen places of `im` (1, channels, height, width)."""
    im[0, :, mask_h_idx, mask_w_idx] = col.reshape(channels, -1)
