"""The JPEG copy of CIFAR-10: each image of `uoft-cs/cifar10` saved by Pillow at quality 75, chroma subsampled 4:2:0.

    python -m benchmarks.cifar_jpeg --out cifar10-jpeg                  # makes a copy, from the Hub or --source DIR
    python -m benchmarks.cifar_jpeg --compare cifar10-jpeg              # how a stored copy was encoded
    python -m benchmarks.cifar_jpeg --out mine --compare cifar10-jpeg   # and how many of its images these are

The files of the copy of the records have the SHA-256 that `RECORDED` names. This command does not give them: their rows
were shuffled in an order that nobody noted. Their images can be compared, in any order, with their labels; that takes
the original images.
"""

import argparse
import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import PIL
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, features

from lemur_core.files.atomic import atomic_folder, sha256_file
from train.data.sources import load_cifar10

QUALITY = 75
RECORDED = {
    "train": "ea84b6ddfc42e42cd08345c2b3201ee3ad18c9babbfce47e5e31f8d7b0486392",
    "test": "a3fac233d448312042b2fad7b5a494a74a114fd0495cdebe93f7a3189758e8f4",
}
_SCAN = b"\xff\xda"  # what comes before are the tables: quantization, sampling, Huffman codes


def encode(image: Image.Image) -> bytes:
    """Return an image as a JPEG file."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY)  # Pillow's own subsampling at this quality is 4:2:0
    return file.getvalue()


def make(source: str, out: Path) -> None:
    """Write a copy in the Hub's layout, its rows in the order of the source."""
    data = load_cifar10(source)
    with atomic_folder(out) as folder:
        for split in ("train", "test"):
            images, labels = getattr(data, f"{split}_images"), getattr(data, f"{split}_labels")
            coded = [{"bytes": encode(Image.fromarray(each.permute(1, 2, 0).numpy())), "path": None} for each in images]
            table = pa.table({"img": coded, "label": pa.array(labels.tolist(), pa.int64())})
            pq.write_table(table, folder / f"{split}-00000-of-00001.parquet")


def read(folder: Path, split: str) -> Iterator[tuple[bytes, int]]:
    """Yield the images and labels of a copy."""
    for row in pq.read_table(folder / f"{split}-00000-of-00001.parquet").to_pylist():
        yield row["img"]["bytes"], row["label"]


def compare(stored: Path, made: Path | None) -> None:
    """Print what a stored copy has in common with Pillow's encoding, and with a copy that was made."""
    tables = encode(Image.new("RGB", (32, 32))).partition(_SCAN)[0]
    for split, digest in RECORDED.items():
        kept = Counter(read(stored, split))
        same = sum(number for (image, _), number in kept.items() if image.partition(_SCAN)[0] == tables)
        recorded = sha256_file(stored / f"{split}-00000-of-00001.parquet") == digest
        print(f"{split}: the recorded file: {recorded}; {same:,} of {kept.total():,} images have quality 75's tables")
        if made is not None:
            print(f"{split}: {(kept & Counter(read(made, split))).total():,} images are those that were made here")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", default="hf://datasets/uoft-cs/cifar10", help="the original CIFAR-10")
    parser.add_argument("--out", type=Path, help="the folder to write")
    parser.add_argument("--compare", type=Path, metavar="DIR", help="a stored copy")
    given = parser.parse_args()
    print(f"Pillow {PIL.__version__}, libjpeg-turbo {features.version('libjpeg_turbo')}")
    if given.out is not None:
        make(given.source, given.out)
    if given.compare is not None:
        compare(given.compare, given.out)
