"""The structural view of a network: which layers it calls, how often, in which order, with which sizes.

The definition is the one that nn-dup published (order, bag of call names, bucketed hyperparameters), mended where it
misreads valid code: the training glue of the LEMUR contract is left out, and a size counts alike whether it is written
by keyword or by position. docs/similarity.md lists the differences.

Source: arXiv:2512.04329, section 3.2; https://github.com/ABrain-One/nn-dup
"""

import ast
import hashlib
import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lemur_core.similarity.outline import CallOutline, Outline, last_name

#: Keywords whose numbers describe an architecture, as published.
SIZE_KEYWORDS = frozenset(
    {"kernel_size", "stride", "padding", "groups", "num_heads", "heads", "expansion", "hidden_size"}
    | {"in_channels", "out_channels", "dim", "width", "depth"}
)

#: Calls that count for the order of layers, as published.
SEQUENCE_CALLS = 256

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


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A structure: the digest of the whole, and the set of its elements as sorted 64-bit hashes for the Jaccard."""

    digest: bytes  # 16 bytes; equal only when order, bag and sizes are equal
    elements: npt.NDArray[np.uint64]  # shape (n,); empty when the network calls nothing: then it is compared to nothing
    layers: int  # calls counted


def fingerprint(outline: Outline) -> Fingerprint:
    """The structural fingerprint of a module's outline."""
    calls = [(name, call) for call in outline.calls if not call.glue and (name := last_name(call.node.func))]
    bag = Counter(name for name, _ in calls)
    sizes = sorted(size for name, call in calls for size in _sizes(name, call))
    elements = {f"{name}*{count}" for name, count in bag.items()} | {f"{name}={bucket}" for name, bucket in sizes}
    parts = [" ".join(name for name, _ in calls[:SEQUENCE_CALLS]), repr(sorted(bag.items())), repr(sizes)]
    return Fingerprint(
        digest=hashlib.blake2b("\n".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest(),
        elements=np.unique(np.array([_hash(text) for text in elements], np.uint64)),
        layers=len(calls),
    )


def _sizes(name: str, call: CallOutline) -> list[tuple[str, str]]:
    """(what, bucket) of the numbers in one call: by keyword, by known position, else by place in the call."""
    positions = _POSITIONS.get(name, ())
    sizes = []
    for place, value in enumerate(call.node.args):
        known = place < len(positions)
        what = positions[place] if known else f"{name}#{place}"
        if (not known or what in SIZE_KEYWORDS) and (bucket := _bucket(value)) is not None:
            sizes.append((what, bucket))
    named = {keyword.arg: keyword.value for keyword in call.node.keywords if keyword.arg in SIZE_KEYWORDS}
    sizes += [(what, bucket) for what, value in named.items() if what and (bucket := _bucket(value)) is not None]
    return sizes


def _bucket(node: ast.expr) -> str | None:
    """A number's nearest power of two (`0` for none above zero), a tuple of such, or None for anything else."""
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


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
