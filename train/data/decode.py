"""PNG and JPEG bytes to pixels, in threads; the first broken image is named by its file and row."""

import io
import struct
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lemur_core.files.errors import UserError
from lemur_core.files.progress import progress
from train.data.source import SHAPE

# Most of the time of so small an image goes to Python code, which threads share: more of them than two are slower.
_THREADS = 2
_CHUNK = 500
_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_MODES = {
    "1": "black and white",
    "L": "greyscale",
    "LA": "greyscale",
    "P": "with a palette",
    "RGBA": "with transparency",
}


@dataclass(frozen=True, slots=True)
class Cells:
    """Encoded images of one file, with their labels."""

    where: str
    labels: NDArray[np.int64]
    images: Sequence[bytes]

    def __post_init__(self) -> None:
        for row, image in enumerate(self.images):
            if not image.startswith((_JPEG, _PNG)):
                begins = f"begins with {image[:4].hex(' ')}" if image else "is empty"
                raise UserError(
                    f"{self.where}, row {row}: the image {begins}, neither PNG nor JPEG; get the file again"
                )


def is_jpeg(image: bytes) -> bool:
    """Whether these are the bytes of a JPEG image."""
    return image.startswith(_JPEG)


def decode_cells(parts: Sequence[Cells]) -> NDArray[np.uint8]:
    """The pixels of all parts in a row: (N, 3, 32, 32).

    Raises: UserError naming the first image that is broken, not 32 x 32 or not RGB.
    """
    from PIL import Image

    Image.preinit()  # not in the threads, where two would do it at once
    total = sum(len(part.images) for part in parts)
    out = np.empty((total, *SHAPE), np.uint8)
    work: list[tuple[Cells, int, NDArray[np.uint8]]] = []
    done = 0
    for part in parts:
        for start in range(0, len(part.images), _CHUNK):
            end = min(start + _CHUNK, len(part.images))
            work.append((part, start, out[done + start : done + end]))
        done += len(part.images)
    pool = ThreadPoolExecutor(_THREADS)
    try:
        with progress("decoding", total, "images") as advance:
            for count in pool.map(lambda chunk: _decode_chunk(*chunk), work):
                advance(count)
    finally:
        pool.shutdown(cancel_futures=True)
    return out


def _decode_chunk(part: Cells, start: int, out: NDArray[np.uint8]) -> int:
    for place in range(len(out)):
        out[place] = _pixels(part.images[start + place], f"{part.where}, row {start + place}")
    return len(out)


def _pixels(encoded: bytes, where: str) -> NDArray[np.uint8]:
    from PIL import Image, UnidentifiedImageError

    channels, *size = SHAPE
    try:
        with Image.open(io.BytesIO(encoded), formats=("JPEG", "PNG")) as image:
            if image.size != (32, 32):
                raise UserError(f"{where}: the image is {image.width} x {image.height}, those of CIFAR-10 are 32 x 32")
            if image.mode != "RGB":
                kind = _MODES.get(image.mode, "in other colours")
                raise UserError(f"{where}: the image is {kind} (mode {image.mode}), those of CIFAR-10 are RGB")
            pixels = np.frombuffer(image.tobytes(), np.uint8)
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        IndexError,
        KeyError,
        TypeError,
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ) as error:
        # What PIL says of unknown files holds an address of memory.
        said = "cannot be identified" if isinstance(error, UnidentifiedImageError) else str(error)
        raise UserError(f"{where}: broken image: {said}; get the file again") from error
    return pixels.reshape(*size, channels).transpose(2, 0, 1)
