"""A batch of CIFAR-10's Python version, read without running anything that its pickle asks for.

numpy's own unpickling is not safe on files from elsewhere: a dtype or a buffer made up for the purpose gives arrays of
raw pointers. So even the three names that a batch needs stand for plain records here, from which one uint8 array
is made when everything about it has been checked.
"""

import io
import pickle
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lemur_core.files.errors import UserError
from train.data.source import SHAPE, VALUES, check_labels

_BROKEN = (
    pickle.UnpicklingError,
    AssertionError,
    EOFError,
    AttributeError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)


class _Record:
    """Stands for what a pickle makes and fills: keeps the state, does nothing."""

    __slots__ = ("arguments", "state")

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Array(_Record):
    """An array: its state is (version, shape, dtype, is_fortran, bytes)."""

    __slots__ = ()


class _Dtype(_Record):
    """A dtype: its first argument is the name."""

    __slots__ = ()


_KNOWN: dict[tuple[str, str], type[_Record]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Record,
    ("numpy", "dtype"): _Dtype,
}


class _Unpickler(pickle._Unpickler):
    # The one written in Python: that in C takes gigabytes, or worse, for some damaged files of a few bytes.

    def __init__(self, data: bytes, where: str) -> None:
        super().__init__(io.BytesIO(data), encoding="bytes")
        self._where = where

    def find_class(self, module: str, name: str, /) -> type[_Record]:
        """The record that stands for a name; any other name is refused before anything is imported."""
        known = _KNOWN.get((module, name))
        if known is None:
            asked = repr(f"{module}.{name}"[:100])
            raise UserError(
                f"{self._where}: asks for {asked}, which no batch of CIFAR-10 needs; not loaded: get the original file"
            )
        return known


def read_pickled(data: bytes, where: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (N, 3, 32, 32) and labels of one batch.

    Raises: UserError if the pickle is broken, asks for anything but a numpy array, or does not hold a batch.
    Source: https://www.cs.toronto.edu/~kriz/cifar.html
    """
    try:
        batch = _Unpickler(data, where).load()
    except _BROKEN as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{where}: not a whole pickle: {said}; get the file again") from error
    if not isinstance(batch, dict):
        raise UserError(f"{where}: holds no dictionary; a batch of CIFAR-10 has data and labels: get the original file")
    pixels = _pixels(_entry(batch, "data", where), where)
    labels = _entry(batch, "labels", where)
    if not isinstance(labels, list) or not all(type(label) is int and abs(label) < 2**63 for label in labels):
        raise UserError(f"{where}: its labels are no list of integers; get the original file")
    if len(labels) != len(pixels):
        raise UserError(f"{where}: has {len(pixels):,} images and {len(labels):,} labels; get the file again")
    return pixels, check_labels(np.array(labels, np.int64), where)


def _entry(batch: dict[Any, Any], name: str, where: str) -> object:
    for key in (name.encode(), name):
        if key in batch:
            return batch[key]
    names = [key.decode("latin1") if isinstance(key, bytes) else key for key in batch]
    there = ", ".join(repr(name[:40]) for name in names[:10] if isinstance(name, str))
    raise UserError(f"{where}: no entry {name!r}, it has {there or 'none'}: is it another data set?")


def _pixels(array: object, where: str) -> NDArray[np.uint8]:
    state = array.state if isinstance(array, _Array) else None
    if not isinstance(state, tuple) or len(state) != 5:
        raise UserError(f"{where}: its data are no array; get the original file")
    _, shape, dtype, fortran, raw = state
    name = dtype.arguments[:1] if isinstance(dtype, _Dtype) else ()
    if name not in (("u1",), (b"u1",)):
        raise UserError(f"{where}: its data are not of type uint8; get the original file")
    if not (isinstance(shape, tuple) and len(shape) == 2 and type(shape[0]) is int and shape[1] == VALUES):
        raise UserError(f"{where}: its data are not {VALUES:,} values an image; get the original file")
    if not isinstance(raw, bytes) or len(raw) != shape[0] * VALUES:
        raise UserError(f"{where}: its data have not the bytes of {shape[0]:,} images; get the file again")
    flat = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")
    return flat.reshape(-1, *SHAPE)
