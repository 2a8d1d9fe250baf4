"""CIFAR-10 from the Hugging Face Hub, or from its cache on this machine, through `datasets`."""

import hashlib
from typing import Any

from lemur_core.files.errors import UserError
from manifests.hub import hub_errors, parse_dataset
from train.data.parquet import choose_columns, read_tables
from train.data.source import Contents, Source

_ADVICE = "check the network, run again, or give a folder"
_SPLITS = ("train", "test")


def find_hub(spec: str) -> Source:
    """A dataset on the Hub, downloaded unless `datasets` has it already.

    Its digest is of the fingerprints that `datasets` gives its splits, which tell one revision from another.

    Raises: RetryableError if the Hub cannot be reached; UserError if the dataset is not there or lacks a split.
    """
    repo, revision = parse_dataset(spec)
    import datasets

    with hub_errors(spec, _ADVICE):
        loaded = datasets.load_dataset(repo, revision=revision)
    missing = [split for split in _SPLITS if split not in loaded]
    if missing:
        raise UserError(f"{spec}: no split {' and '.join(missing)}; it has {', '.join(sorted(loaded))}")
    marks = [f"{split}={loaded[split]._fingerprint}" for split in _SPLITS]
    digest = hashlib.sha256("\0".join(["hub", spec, *marks]).encode()).hexdigest()
    return Source(spec, spec, digest, lambda: _read(spec, loaded))


def _read(spec: str, loaded: Any) -> Contents:
    with hub_errors(spec, _ADVICE):
        tables = [[(f"{spec}, split {split}", _table(spec, split, loaded[split]))] for split in _SPLITS]
    return read_tables(*tables)


def _table(spec: str, split: str, rows: Any) -> Any:
    from datasets import Image

    image, label = choose_columns(rows.column_names, f"{spec}, split {split}")
    rows = rows.select_columns([image, label])
    if isinstance(rows.features[image], Image):
        rows = rows.cast_column(image, Image(decode=False))
    return rows.with_format("arrow")[:]
