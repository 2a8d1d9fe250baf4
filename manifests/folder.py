"""The dataset folder: Parquet tables under fixed names, and the card with the YAML that `datasets.load_dataset` reads.

Source: https://huggingface.co/docs/hub/datasets-manual-configuration
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from manifests.records import Record, arrow_schema

#: Rows a file, so that no column of code outgrows Arrow's 2 GiB strings.
ROWS_PER_FILE = 50_000
_ROWS_PER_GROUP = 2_000


def write_tables(
    folder: Path, stem: str, record: type[Record], rows: Iterable[dict[str, object]], count: int
) -> dict[str, int]:
    """Write `count` rows as `STEM-00000-of-0000N.parquet` below `folder`; at least one file, even without rows.

    Returns: rows by file name.
    """
    schema = arrow_schema(record)
    files = max(1, -(-count // ROWS_PER_FILE))
    folder.mkdir(parents=True, exist_ok=True)
    iterator = iter(rows)
    written: dict[str, int] = {}
    for number in range(files):
        name = f"{stem}-{number:05d}-of-{files:05d}.parquet"
        size = min(ROWS_PER_FILE, count - number * ROWS_PER_FILE)
        write_table(folder / name, schema, _take(iterator, size))
        written[name] = size
    return written


def write_table(path: Path, schema: pa.Schema, rows: Iterator[dict[str, object]]) -> None:
    """Write rows as one Parquet file, a group at a time."""
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        group: list[dict[str, object]] = []
        for row in rows:
            group.append(row)
            if len(group) >= _ROWS_PER_GROUP:
                writer.write_table(pa.Table.from_pylist(group, schema=schema))
                group = []
        if group:  # `datasets` cannot read a row group without rows, but a file without row groups it can
            writer.write_table(pa.Table.from_pylist(group, schema=schema))


def _take(rows: Iterator[dict[str, object]], count: int) -> Iterator[dict[str, object]]:
    for _ in range(count):
        yield next(rows)


def card_yaml(configs: list[dict[str, object]], *, pretty_name: str, tags: list[str], size: int) -> str:
    """The YAML block of a dataset card. A config has `config_name`, `data_files` and perhaps `default`."""
    lines = ["---", f"pretty_name: {pretty_name}", "task_categories:", "- text-generation", "tags:"]
    lines += [f"- {tag}" for tag in tags]
    lines += ["size_categories:", f"- {_size_category(size)}", "configs:"]
    for config in configs:
        lines.append(f"- config_name: {config['config_name']}")
        if config.get("default"):
            lines.append("  default: true")
        lines.append("  data_files:")
        files = config["data_files"]
        assert isinstance(files, dict)
        for split, pattern in files.items():
            lines += [f"  - split: {split}", f"    path: {pattern}"]
    return "\n".join([*lines, "---", ""])


def _size_category(rows: int) -> str:
    limits = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
    return next((label for limit, label in limits if rows < limit), "1M<n<10M")
