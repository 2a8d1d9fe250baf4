"""What `cells` does for one value, for whole Arrow columns: no Python object is made of a value that fits."""

import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curate.rows import ROW_SCHEMA
from curate.sources.cells import EMPTY, MISSING, not_a_string, read_code, read_integer, read_number, read_text


def read_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of any columns as a batch of ROW_SCHEMA with as many rows."""
    columns: dict[str, pa.Array] = {}
    for field in ROW_SCHEMA:
        place = batch.schema.get_field_index(field.name)
        if field.name == "problem":
            continue
        values = _plain(batch.column(place)) if place >= 0 else pa.nulls(batch.num_rows, field.type)
        if field.name == "nn_code":
            columns["nn_code"], columns["problem"] = _read_codes(values)
        elif pa.types.is_int64(field.type):
            columns[field.name] = _read_integers(values)
        elif pa.types.is_float64(field.type):
            columns[field.name] = _read_numbers(values)
        else:
            columns[field.name] = _read_texts(values)
    columns["nn"] = columns["nn"].fill_null("")
    return pa.RecordBatch.from_arrays([columns[name] for name in ROW_SCHEMA.names], schema=ROW_SCHEMA)


def _plain(values: pa.Array) -> pa.Array:
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _read_codes(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Codes and problems."""
    if not _is_text(values.type):
        wrong = pa.scalar(not_a_string(str(values.type)), pa.string())
        return pa.nulls(len(values), pa.large_string()), pc.if_else(values.is_null(), MISSING, wrong)
    codes = _as_unicode(values, pa.large_string())
    if codes is None:
        return _from_pairs([read_code(value) for value in values.cast(pa.large_binary()).to_pylist()])
    # Printable ASCII is in every code; the few texts without it are judged one by one.
    doubtful = pc.indices_nonzero(pc.invert(pc.match_substring_regex(codes, "[!-~]"))).to_pylist()
    blank = [place for place in doubtful if not codes[place].as_py().strip()]
    problems = pc.if_else(codes.is_null(), MISSING, pa.scalar(None, pa.string()))
    if blank:
        mask = pc.is_in(pa.array(range(len(codes)), pa.int64()), value_set=pa.array(blank, pa.int64()))
        problems = pc.if_else(mask, EMPTY, problems)
        codes = pc.if_else(mask, pa.scalar(None, pa.large_string()), codes)
    return codes, problems


def _from_pairs(pairs: list[tuple[str | None, str | None]]) -> tuple[pa.Array, pa.Array]:
    return pa.array([code for code, _ in pairs], pa.large_string()), pa.array([why for _, why in pairs], pa.string())


def _read_texts(values: pa.Array) -> pa.Array:
    if _is_text(values.type):
        texts = _as_unicode(values, pa.string())
        return texts if texts is not None else _one_by_one(values.cast(pa.large_binary()), read_text, pa.string())
    return _one_by_one(values, read_text, pa.string())


def _read_numbers(values: pa.Array) -> pa.Array:
    if pa.types.is_floating(values.type):
        numbers = values.cast(pa.float64())
        return pc.if_else(pc.is_finite(numbers), numbers, pa.scalar(None, pa.float64()))
    return _one_by_one(values, read_number, pa.float64())


def _read_integers(values: pa.Array) -> pa.Array:
    if pa.types.is_signed_integer(values.type):
        return values.cast(pa.int64())
    return _one_by_one(values, read_integer, pa.int64())


def _is_text(kind: pa.DataType) -> bool:
    return any(
        test(kind)
        for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    ) or pa.types.is_fixed_size_binary(kind)


def _as_unicode(values: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """The texts, checked to be UTF-8 (a file may claim it falsely); None if one of them is not."""
    try:
        return values.cast(pa.large_binary()).cast(kind)
    except pa.ArrowInvalid:
        return None


def _one_by_one(values: pa.Array, read: Callable[[object], Any], kind: pa.DataType) -> pa.Array:
    return pa.array([read(_python(value)) for value in values], kind)


def _python(value: pa.Scalar) -> object:
    """A Python value; a map as a dictionary; None for what Python cannot hold (a time in the year 300000)."""
    try:
        plain = value.as_py()
    except (ValueError, OverflowError):
        return None
    if pa.types.is_map(value.type) and plain is not None:
        return dict(plain)
    return None if isinstance(plain, float) and math.isnan(plain) else plain
