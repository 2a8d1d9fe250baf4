"""CIFAR-10 from the Hugging Face Hub, or from its cache on this machine, through `datasets`."""

import contextlib
import hashlib
import re
from collections.abc import Iterator
from typing import Any

from manifests.errors import RetryableError, UserError
from train.data.parquet import choose_columns, read_tables
from train.data.source import Contents, Source

_SPEC = re.compile(r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^\s@]+))?")
_TRY_AGAIN = (408, 425, 429)
_SPLITS = ("train", "test")


def find_hub(spec: str) -> Source:
    """A dataset on the Hub, downloaded unless `datasets` has it already.

    Its digest is of the fingerprints that `datasets` gives its splits, which tell one revision from another.

    Raises: RetryableError if the Hub cannot be reached; UserError if the dataset is not there or lacks a split.
    """
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise UserError(f"{spec}: not a dataset on the Hub; write hf://datasets/OWNER/NAME or …/NAME@REVISION")
    import datasets

    with _hub_errors(spec):
        loaded = datasets.load_dataset(match["repo"], revision=match["revision"])
    missing = [split for split in _SPLITS if split not in loaded]
    if missing:
        raise UserError(f"{spec}: no split {' and '.join(missing)}; it has {', '.join(sorted(loaded))}")
    marks = [f"{split}={loaded[split]._fingerprint}" for split in _SPLITS]
    digest = hashlib.sha256("\0".join(["hub", spec, *marks]).encode()).hexdigest()
    return Source(spec, spec, digest, lambda: _read(spec, loaded))


def _read(spec: str, loaded: Any) -> Contents:
    with _hub_errors(spec):
        tables = [[(f"{spec}, split {split}", _table(spec, split, loaded[split]))] for split in _SPLITS]
    return read_tables(*tables)


def _table(spec: str, split: str, rows: Any) -> Any:
    from datasets import Image

    image, label = choose_columns(rows.column_names, f"{spec}, split {split}")
    rows = rows.select_columns([image, label])
    if isinstance(rows.features[image], Image):
        rows = rows.cast_column(image, Image(decode=False))
    return rows.with_format("arrow")[:]


@contextlib.contextmanager
def _hub_errors(spec: str) -> Iterator[None]:
    from datasets.exceptions import DatasetsError
    from huggingface_hub.errors import HfHubHTTPError
    from pyarrow import ArrowException

    # The bases include that of every transport error, whichever HTTP library this release is built on.
    network: tuple[type[BaseException], ...] = (OSError, EOFError, *HfHubHTTPError.__bases__)
    try:
        yield
    except (DatasetsError, ArrowException, ValueError, RuntimeError) as error:
        raise UserError(
            f"{spec}: {_line(error)}; check the name, the revision, and that `hf auth login` was done"
        ) from error
    except network as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(status, int) and 400 <= status < 500 and status not in _TRY_AGAIN:
            raise UserError(
                f"{spec}: {_line(error)}; check the name, the revision, and that `hf auth login` was done"
            ) from error
        raise RetryableError(
            f"{spec}: the Hub cannot be read: {_line(error)}; check the network, run again, or give a folder"
        ) from error


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
