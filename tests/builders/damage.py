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
    kinds: tuple[tuple[str, Callable[[bytes, random.Random], bytes]], ...] = (
        (MANIFEST, _mutate_json),
        (MANIFEST, _mutate_json),
        ("*.parquet", _mutate_table),
        ("*.parquet", _mutate_table),
        ("*.json", _mutate_json),
        ("*.jsonl", _mutate_lines),
        ("*", _mutate_bytes),
        ("*", _mutate_bytes),
    )
    pattern, mutate = random_.choice(kinds)
    paths = sorted(path for path in folder.rglob(pattern) if path.is_file())
    if not paths:
        return damage(folder, random_)
    path = random_.choice(paths)
    name = path.relative_to(folder).as_posix()
    if random_.random() < 0.12:
        return f"{name}: {_replace(path, random_)}"
    data = mutate(path.read_bytes(), random_)
    path.unlink()
    path.write_bytes(data)
    if name != MANIFEST and random_.random() < 0.85:
        _state(folder, name, path)
    return f"{name}: {mutate.__name__}"


def _state(folder: Path, name: str, path: Path) -> None:
    manifest = folder / MANIFEST
    stated = json.loads(manifest.read_text(encoding="utf-8"))
    for item in stated["outputs"]:
        if item["path"] == name:
            item |= {"sha256": sha256_file(path), "bytes": path.stat().st_size}
    manifest.unlink()
    manifest.write_text(json.dumps(stated), encoding="utf-8")


def _replace(path: Path, random_: random.Random) -> str:
    path.unlink()
    what = random_.choice(("nothing", "a folder", "a pipe", "a loop", "a device", "a link"))
    if what == "a folder":
        path.mkdir()
    elif what == "a pipe":
        os.mkfifo(path)
    elif what == "a loop":
        path.symlink_to(path.name)
    elif what == "a device":
        path.symlink_to("/dev/zero")
    elif what == "a link":
        path.symlink_to("/proc/self/status")
    return what


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
    lines = data.splitlines(keepends=True)
    if not lines:
        return b"{}\n"
    place = random_.randrange(len(lines))
    way = random_.randrange(5)
    if way == 0:
        del lines[place]
    elif way == 1:
        lines.append(lines[place])
    else:
        lines[place] = _mutate_json(lines[place], random_) + b"\n"
    return b"".join(lines)


def _mutate_bytes(data: bytes, random_: random.Random) -> bytes:
    way = random_.randrange(4)
    place = random_.randrange(len(data) + 1)
    if way == 0:
        return data[:place]
    if way == 1:
        return data[:place] + bytes([random_.randrange(256)]) + data[place + 1 :]
    return b"" if way == 2 else data[:place] + random_.choice((b"\xff\xfe", b"\0", b"\n", b"\r")) + data[place:]


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
    if pa.types.is_floating(type_):
        return random_.choice(_RATIOS)
    if pa.types.is_integer(type_):
        return random_.choice(_NUMBERS)
    if pa.types.is_boolean(type_):
        return None if value is None else random_.choice((None, not value))
    if pa.types.is_list(type_):
        return random_.choice((None, [], [None], [_cell(None, type_.value_type, random_)] * 3))
    if pa.types.is_struct(type_):
        return random_.choice((None, {field.name: None for field in type_}, {field.name: "x" for field in type_}))
    if isinstance(value, str) and value[:1] in "{[" and random_.random() < 0.7:
        return _mutate_json(value.encode(), random_).decode("utf-8", "replace")
    return random_.choice(_CELLS)
