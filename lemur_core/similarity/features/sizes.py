"""The numbers in a call that describe an architecture: by keyword, or by the position in a known layer.

Source: arXiv:2512.04329, section 3.2; https://github.com/ABrain-One/nn-dup
"""

import ast
import math

#: Keywords whose numbers describe an architecture, as published.
SIZE_KEYWORDS = frozenset(
    {"kernel_size", "stride", "padding", "groups", "num_heads", "heads", "expansion", "hidden_size"}
    | {"in_channels", "out_channels", "dim", "width", "depth"}
)

_CONVOLUTION = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "output_padding", "groups")
_POOL = ("kernel_size", "stride", "padding")

#: Positional parameters of `torch.nn` layers, so that `Conv2d(3, 64, 3)` reads as its keyword form.
_POSITIONS: dict[str, tuple[str, ...]] = {
    **{f"Conv{n}d": _CONVOLUTION for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": _TRANSPOSED for n in (1, 2, 3)},
    **{f"{kind}Pool{n}d": _POOL for kind in ("Max", "Avg") for n in (1, 2, 3)},
    "MultiheadAttention": ("embed_dim", "num_heads"),
    "LSTM": ("input_size", "hidden_size"),
    "GRU": ("input_size", "hidden_size"),
    "RNN": ("input_size", "hidden_size"),
}


def read_sizes(name: str, call: ast.Call) -> list[tuple[str, str]]:
    """Return (what, bucket) of the numbers in a call of `name`: by keyword, known position, or index in the call."""
    positions = _POSITIONS.get(name, ())
    sizes = []
    for index, value in enumerate(call.args):
        if (bucket := _bucket(value)) is None:
            continue
        if index >= len(positions):
            sizes.append((f"{name}#{index}", bucket))
        elif positions[index] in SIZE_KEYWORDS:
            sizes.append((positions[index], bucket))
    named = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg in SIZE_KEYWORDS}
    sizes += [(what, bucket) for what, value in named.items() if what and (bucket := _bucket(value)) is not None]
    return sizes


def _bucket(node: ast.expr) -> str | None:
    """Return a number's nearest power of two (`0` if not positive), a tuple of such, or None for anything else."""
    if isinstance(node, ast.Tuple):
        return "(" + ",".join(_bucket(item) or "X" for item in node.elts) + ")" if len(node.elts) <= 8 else None
    if not isinstance(node, ast.Constant) or not isinstance(node.value, int | float):
        return None
    value = node.value
    if not value > 0:
        return "0"
    if value == math.inf or value >= 2**1000:
        return "inf"
    return str(int(2 ** round(math.log2(value))))
