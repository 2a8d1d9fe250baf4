"""Corpora of any size for measuring growth: LEMUR codes with the edits that their generators and authors make."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from curate.sources.lemur import LemurRelease
from curate.sources.rows import BATCH_ROWS

_SWAPS = (
    ("ReLU", "GELU", "SiLU", "ELU", "LeakyReLU"),
    ("BatchNorm2d", "InstanceNorm2d", "SyncBatchNorm"),
    ("MaxPool2d", "AvgPool2d"),
    ("relu", "gelu", "silu"),
)
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_LAYER_LINE = re.compile(r"^( +)self\.(\w+) = (nn\.\w+\(.*\))$", re.MULTILINE)
_ATTRIBUTE = re.compile(r"\bself\.(\w+)\b")


def mutate(code: str, random: np.random.Generator) -> str:
    """A variant of a network after one to six small edits; valid Python when the original is."""
    for _ in range(int(random.integers(1, 7))):
        code = _EDITS[int(random.integers(len(_EDITS)))](code, random)
    return code


def write_corpus(path: Path, rows: int, seed: int = 0) -> None:
    """Write `rows` records (columns nn, nn_code, accuracy and the benchmark's) as Parquet, a batch at a time."""
    bases = _lemur_codes()
    random = np.random.default_rng(seed)
    schema = pa.schema(
        {"nn": pa.string(), "nn_code": pa.string(), "task": pa.string(), "dataset": pa.string()}
        | {"metric": pa.string(), "epoch": pa.int64(), "accuracy": pa.float64()}
    )
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=1) as writer:
        for batch in _batches(bases, rows, random):
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))


def _batches(bases: list[tuple[str, str]], rows: int, random: np.random.Generator) -> Iterator[list[dict[str, object]]]:
    benchmark = {"task": "img-classification", "dataset": "cifar-10", "metric": "acc", "epoch": 1}
    for start in range(0, rows, BATCH_ROWS):
        batch: list[dict[str, object]] = []
        for row in range(start, min(rows, start + BATCH_ROWS)):
            prefix, code = bases[int(random.integers(len(bases)))]
            accuracy = float(random.random())
            batch.append({"nn": f"{prefix}-{row}", "nn_code": mutate(code, random), "accuracy": accuracy, **benchmark})
        yield batch


def _lemur_codes() -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for batch in LemurRelease().batches():
        for name, code in zip(batch.column("nn").to_pylist(), batch.column("nn_code").to_pylist(), strict=True):
            found.setdefault(code, name.split("-")[0])
    return [(prefix, code) for code, prefix in found.items()]


def _change_number(code: str, random: np.random.Generator) -> str:
    places = list(_NUMBER.finditer(code))
    if not places:
        return code
    place = places[int(random.integers(len(places)))]
    return f"{code[: place.start()]}{int(random.integers(1, 513))}{code[place.end() :]}"


def _swap_layer(code: str, random: np.random.Generator) -> str:
    names = _SWAPS[int(random.integers(len(_SWAPS)))]
    old, new = (names[int(place)] for place in random.permutation(len(names))[:2])
    return re.sub(rf"\b{old}\b", new, code, count=int(random.integers(0, 3)))


def _add_layer(code: str, random: np.random.Generator) -> str:
    places = list(_LAYER_LINE.finditer(code))
    if not places:
        return code
    place = places[int(random.integers(len(places)))]
    line = f"{place[1]}self.{place[2]}_{int(random.integers(100))} = {place[3]}"
    return f"{code[: place.end()]}\n{line}{code[place.end() :]}"


def _rename(code: str, random: np.random.Generator) -> str:
    names = sorted(set(_ATTRIBUTE.findall(code)))
    if not names:
        return code
    name = names[int(random.integers(len(names)))]
    return re.sub(rf"\bself\.{name}\b", f"self.{name}{int(random.integers(1000))}", code)


def _comment(code: str, random: np.random.Generator) -> str:
    return f"# variant {int(random.integers(10**9))}\n{code}"


_EDITS = (_change_number, _change_number, _swap_layer, _add_layer, _rename, _comment)
