"""Damage of finished folders, drawn from a seed: their manifest, a table, a file of JSON or text, or what lies there."""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lemur_core.files.atomic import sha256_file

MANIFEST = "manifest.json"
#: What stands in the place of a value of JSON.
_VALUES: tuple[Any, ...] = (
    *(None, True, "x", "", "\ud800", "../../etc/passwd", "javascript:alert(1)", "\x1b]0;x\x07", "0" * 64),
    *(0, -1, 1, 3, 2**63, 10**400, 0.5, -0.5, float("nan"), float("inf"), 1e308),
    *([], {}, [1], [None], [[]], {"": 1}, {"x": None}, {"train": "x"}, "a::b", "{}", "[", '{"nodes": 1}'),
)
_DEEP = "[" * 50_000


def copy(folder: Path, out: Path) -> Path:
    return Path(shutil.copytree(folder, out, copy_function=os.link))


def damage(folder: Path, random_: random.Random) -> str:
    """Damage one file of a folder, and in most cases make the manifest fit it again. Returns: what was done."""
    pattern, mutate = random_.choice(_KINDS)
    paths = sorted(path for path in folder.rglob(pattern) if path.is_file())
    if not paths:
        return damage(folder, random_)
    path = random_.choice(paths)
    name = path.relative_to(folder).as_posix()
    data = path.read_bytes()
    path.unlink()
    if random_.random() < 0.12:
        what = random_.choice(list(_INSTEAD))
        _INSTEAD[what](path)
        return f"{name}: {what}"
    path.write_bytes(mutate(data, random_))
    if name != MANIFEST and random_.random() < 0.85:
        _state(folder, name, path)
    return f"{name}: {mutate.__name__}"


#: What may lie in the place of a file.
_INSTEAD: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a loop": lambda path: path.symlink_to(path.name),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link": lambda path: path.symlink_to("/proc/self/status"),
}


def _state(folder: Path, name: str, path: Path) -> None:
    manifest = folder / MANIFEST
    stated = json.loads(manifest.read_text(encoding="utf-8"))
    for item in stated["outputs"]:
        if item["path"] == name:
            item |= {"sha256": sha256_file(path), "bytes": path.stat().st_size}
    manifest.unlink()
    manifest.write_text(json.dumps(stated), encoding="utf-8")


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(inner, (*path, key))


def _mutate_value(value: Any, random_: random.Random) -> Any:
    """Change one place of a JSON value: most often the large lists are passed by."""
    places = list(_places(value))
    if not places:
        return random_.choice(_VALUES)
    few = [path for path in places if len(path) <= 3]
    *above, last = random_.choice(few if random_.random() < 0.7 and few else places)
    holder = value
    for key in above:
        holder = holder[key]
    if random_.random() < 0.3:
        del holder[last]
    else:
        holder[last] = random_.choice(_VALUES)
    return value


def _mutate_json(data: bytes, random_: random.Random) -> bytes:
    if random_.random() < 0.06:
        return random_.choice((_DEEP, "null", "[]", "{}", "1", '"x"')).encode()
    try:
        value = json.loads(data)
    except ValueError:
        return _mutate_bytes(data, random_)
    for _ in range(random_.choice((1, 1, 1, 2, 4))):
        value = _mutate_value(value, random_)
    return json.dumps(value).encode()


def _mutate_lines(data: bytes, random_: random.Random) -> bytes:
    lines = data.splitlines(keepends=True) or [b"{}\n"]
    place = random_.randrange(len(lines))
    line = lines[place]
    lines[place] = random_.choice((b"", line + line, *[_mutate_json(line, random_) + b"\n"] * 3))
    return b"".join(lines)


def _mutate_bytes(data: bytes, random_: random.Random) -> bytes:
    place = random_.randrange(len(data) + 1)
    start, rest = data[:place], data[place + 1 :]
    odd = random_.choice((b"\xff\xfe", b"\0", b"\n", b"\r"))
    return random_.choice((start, start + bytes([random_.randrange(256)]) + rest, b"", start + odd + data[place:]))


_CELLS: tuple[Any, ...] = (None, "", "x", "\x1b[2J", "0" * 64, "[1", '{"a": 1}', "[]", "-1", "A" * 70_000)
_NUMBERS: tuple[Any, ...] = (None, 0, -1, 2, 2**62, -(2**62))
_RATIOS: tuple[Any, ...] = (None, float("nan"), float("inf"), -1.0, 2.0, 1e308)


def _mutate_table(data: bytes, random_: random.Random) -> bytes:
    try:
        table = pq.read_table(pa.BufferReader(data))
    except pa.ArrowException:
        return _mutate_bytes(data, random_)
    place = random_.randrange(table.num_columns)
    name, column = table.column_names[place], table.column(place)
    way = random_.randrange(8)
    if way == 0 and table.num_columns > 1:
        table = table.remove_column(place)
    elif way == 1:
        other = random_.choice((pa.string(), pa.int64(), pa.float64(), pa.binary(), pa.bool_(), pa.list_(pa.int64())))
        table = table.set_column(place, name, pa.nulls(len(table), other))
    elif way == 2:
        table = pa.concat_tables([table, table.slice(0, max(1, len(table) // 2))])
    elif way == 3:
        table = table.slice(random_.randrange(len(table) + 1))
    elif way == 4:
        table = table.append_column(random_.choice((name, "extra")), column)
    elif len(table):
        cells = column.to_pylist()
        row = random_.randrange(len(cells))
        cells[row] = _cell(cells[row], column.type, random_)
        table = table.set_column(place, name, pa.array(cells, column.type))
    sink = pa.BufferOutputStream()
    try:
        pq.write_table(table, sink)
    except pa.ArrowInvalid:  # a null where the type allows none: Arrow writes no such file
        return data
    return bytes(sink.getvalue().to_pybytes())


def _cell(value: Any, type_: pa.DataType, random_: random.Random) -> Any:
    if isinstance(value, str) and value[:1] in "{[" and random_.random() < 0.7:
        return _mutate_json(value.encode(), random_).decode("utf-8", "replace")
    values = _CELLS
    if pa.types.is_floating(type_):
        values = _RATIOS
    elif pa.types.is_integer(type_):
        values = _NUMBERS
    elif pa.types.is_boolean(type_):
        values = (None, not value)
    elif pa.types.is_list(type_):
        values = (None, [], [None], [_cell(None, type_.value_type, random_)] * 3)
    elif pa.types.is_struct(type_):
        values = (None, {field.name: None for field in type_}, {field.name: "x" for field in type_})
    return random_.choice(values)


#: More often than once where the readers look at it.
_KINDS: tuple[tuple[str, Callable[[bytes, random.Random], bytes]], ...] = (
    *[(MANIFEST, _mutate_json)] * 2,
    *[("*.parquet", _mutate_table)] * 2,
    *[("*.json", _mutate_json), ("*.jsonl", _mutate_lines)],
    *[("*", _mutate_bytes)] * 2,
)
