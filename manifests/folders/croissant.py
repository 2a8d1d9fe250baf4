"""`croissant.json`: the contents of a dataset folder, in the format that dataset catalogs and loaders read.

It lists every file of a table with its SHA-256, and every table with its columns; paths are relative to the folder, so
that `mlcroissant.Dataset("DIR/croissant.json").records("records")` reads it in place.

The library takes more than a second to import: import this module only where it is used, so that no other command
waits.

Source: https://docs.mlcommons.org/croissant/
"""

import inspect
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mlcroissant as mlc
import pyarrow as pa
import pyarrow.parquet as pq

from lemur_core.files import Json
from lemur_core.files.atomic import sha256_file
from manifests.folders.manifest import Output
from manifests.folders.reading import CHECK_ERRORS, read_json
from manifests.folders.tables import CROISSANT, Table
from manifests.provenance.licenses import NOASSERTION
from manifests.records import arrow_schema

_VERSION = "http://mlcommons.org/croissant/1.1"
_SPLITS = "splits"

#: Terms of version 1.1; the library's own context for new metadata is still version 1.0.
_TERMS: Json = {
    "arrayShape": "cr:arrayShape",
    "containedIn": "cr:containedIn",
    "description": {"@container": "@language"},
    "isArray": "cr:isArray",
    "name": {"@container": "@language"},
}

_DATA_TYPES: dict[pa.DataType, Any] = {
    pa.string(): mlc.DataType.TEXT,
    pa.int64(): mlc.DataType.INT64,
    pa.float64(): mlc.DataType.FLOAT64,
    pa.bool_(): mlc.DataType.BOOL,
}


def write_croissant(
    folder: Path, tables: Sequence[Table], name: str, description: str, version: str, licenses: Sequence[str]
) -> None:
    """Write `croissant.json` for the tables in a folder, validated by `mlcroissant`.

    The same tables give the same bytes: it contains no date.

    Args: licenses: SPDX expressions of the contents; left out of the metadata if one of them is NOASSERTION.
    """
    context = mlc.Context(conforms_to=_VERSION)
    context.rdf = mlc.Rdf(context=dict(sorted({**context.rdf.context, **_TERMS}.items())))
    used = dict.fromkeys(split for table in tables if _is_set(table) for split in table.files)
    # An expression of several licenses has no address.
    addresses = [name if " " in name else f"https://spdx.org/licenses/{name}" for name in licenses]
    metadata = mlc.Metadata(  # raises ValidationError
        ctx=context,
        name=name,
        description=description,
        version=version,
        license=None if NOASSERTION in licenses else addresses or None,
        distribution=[node for table in tables for node in _files(context, folder, table)],
        record_sets=[*_splits(context, list(used)), *(_record_set(context, table) for table in tables)],
    )
    _write(folder / CROISSANT, metadata.to_json())


def restate_croissant(source: Path, target: Path, changed: Sequence[Output]) -> None:
    """Copy a `croissant.json`, with the digests and sizes of files that were rewritten since."""
    stated = json.loads(source.read_text(encoding="utf-8"))
    outputs = {item.path: item for item in changed}
    for node in stated["distribution"]:
        if (output := outputs.get(node.get("contentUrl"))) is not None:
            node |= {"sha256": output.sha256, "contentSize": f"{output.bytes} B"}
    _write(target, stated)


def croissant_faults(folder: Path, tables: Sequence[Table]) -> list[str]:
    """Return the faults of the file: invalid metadata, or tables, columns or digests that differ from the folder's."""
    try:
        stated = read_json(folder / CROISSANT)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # from rdflib, about classes that it uses itself
            metadata = mlc.Metadata.from_json(mlc.Context(), stated)
    except (*CHECK_ERRORS, mlc.ValidationError) as error:
        messages = [line.strip(" -") for line in str(error).splitlines()]
        return [": ".join(messages[:2]) or type(error).__name__]
    listed = {item.content_url: item.sha256 for item in metadata.file_objects}
    files = {path.relative_to(folder).as_posix(): path for table in tables for path in table.paths(folder)}
    wrong = [f"{name} is not listed" for name in sorted(files.keys() - listed.keys())]
    wrong += [f"{name} is listed, but no file of a table" for name in sorted(listed.keys() - files.keys())]
    wrong += [
        f"{name} has another digest"
        for name in sorted(files.keys() & listed.keys())
        if sha256_file(files[name]) != listed[name]
    ]
    sets = {item.id: [field.name for field in item.fields] for item in metadata.record_sets if item.id != _SPLITS}
    wrong += [
        f"{name} is not a table of this folder" for name in sorted(sets.keys() - {table.config for table in tables})
    ]
    for table in tables:
        if table.config not in sets:
            wrong.append(f"{table.config} is not described")
            continue
        columns = [name for path in table.paths(folder)[:1] for name in pq.read_schema(path).names]
        if {*sets[table.config]} - {"split"} != {*columns} - {"split"}:
            wrong.append(f"{table.config} has other columns: {', '.join(columns)}")
    return wrong


def _write(path: Path, stated: Mapping[str, object]) -> None:
    path.write_text(json.dumps(stated, indent=2) + "\n", encoding="utf-8", newline="\n")


def _is_set(table: Table) -> bool:
    """Return whether its files are patterns, one per split."""
    return any("*" in pattern for pattern in table.files.values())


def _files(context: mlc.Context, folder: Path, table: Table) -> Iterator[Any]:
    form: Json = {"ctx": context, "encoding_formats": [mlc.EncodingFormat.PARQUET]}
    for path in table.paths(folder):
        name = path.relative_to(folder).as_posix()
        size, digest = f"{path.stat().st_size} B", sha256_file(path)
        yield mlc.FileObject(id=name, name=name, content_url=name, content_size=size, sha256=digest, **form)
    if _is_set(table):
        name = _source_name(table)
        yield mlc.FileSet(id=name, name=name, includes=list(table.files.values()), **form)


def _source_name(table: Table) -> str:
    return f"{table.config}-files" if _is_set(table) else next(iter(table.files.values()))


def _splits(context: mlc.Context, used: Sequence[str]) -> Iterator[mlc.RecordSet]:
    """Yield the names of splits as a separate table, which fields that hold a split refer to."""
    if not used:
        return
    name = mlc.Field(ctx=context, id=f"{_SPLITS}/name", name="name", data_types=[mlc.DataType.TEXT])
    rows = [{name.id: split} for split in used]
    form: Json = {"data_types": [mlc.DataType.SPLIT], "key": [name.id], "fields": [name], "data": rows}
    yield mlc.RecordSet(ctx=context, id=_SPLITS, name=_SPLITS, **form)


def _record_set(context: mlc.Context, table: Table) -> mlc.RecordSet:
    """Return a table: its split, if that follows from the file name, and its columns."""
    origin = {"file_set" if _is_set(table) else "file_object": _source_name(table)}
    fields = [_split_field(context, table)] if _is_set(table) else []
    for column in arrow_schema(table.record):
        if not (fields and column.name == "split"):
            source = partial(_source, context, origin, column.name)
            fields.append(_field(context, source, f"{table.config}/{column.name}", column))
            fields[-1].description = table.record.model_fields[column.name].description
    summary = (inspect.getdoc(table.record) or "").partition("\n")[0]
    return mlc.RecordSet(ctx=context, id=table.config, name=table.config, description=summary, fields=fields)


def _split_field(context: mlc.Context, table: Table) -> mlc.Field:
    """Return the split, extracted from the path of the file, so that readers can choose files by it.

    The library applies the expression again to its own result, so a bare split must match too.
    """
    split, pattern = next(iter(table.files.items()))
    start = pattern.removesuffix(f"{split}-*.parquet")
    assert all(pattern == f"{start}{split}-*.parquet" for split, pattern in table.files.items()), table.files
    regex = mlc.Transform(ctx=context, regex=f"(?:{start})?({'|'.join(table.files)})(?:-.+\\.parquet)?$")
    extract = mlc.Extract(ctx=context, file_property="fullpath")
    return mlc.Field(
        ctx=context,
        id=f"{table.config}/split",
        name="split",
        description="as the file is named",
        data_types=[mlc.DataType.TEXT],
        source=mlc.Source(ctx=context, file_set=_source_name(table), extract=extract, transforms=[regex]),
        references=mlc.Source(ctx=context, field=f"{_SPLITS}/name"),
    )


def _source(context: mlc.Context, origin: Mapping[str, str], column: str, path: str = "") -> mlc.Source:
    """Return where to read a field: a column, or by JSONPath a part of each value, or of each element, in it."""
    transforms = [mlc.Transform(ctx=context, json_path=path)] if path else []
    return mlc.Source(ctx=context, **origin, extract=mlc.Extract(ctx=context, column=column), transforms=transforms)


def _field(
    context: mlc.Context, source: Callable[[str], mlc.Source], name: str, column: pa.Field, path: str = ""
) -> mlc.Field:
    """Return a column or a part of it; the members of a struct, or of structs in a list, become its subfields."""
    listed = pa.types.is_list(column.type)
    kind = column.type.value_type if listed else column.type
    form: Json = {"ctx": context, "id": name, "name": column.name}
    if listed:
        form |= {"is_array": True, "array_shape": "-1"}
    if not pa.types.is_struct(kind):
        return mlc.Field(data_types=[_DATA_TYPES[kind]], source=source(path), **form)
    start = f"{path}{'[*]' if listed else ''}." if path else ""
    members = [_field(context, source, f"{name}/{member.name}", member, f"{start}{member.name}") for member in kind]
    return mlc.Field(sub_fields=members, **form)
