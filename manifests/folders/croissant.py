"""`croissant.json`: the contents of a dataset folder, in the format that dataset catalogs and loaders read.

It lists every file of a table with its SHA-256, and every table with its columns; paths are relative to the folder, so
that `mlcroissant.Dataset("DIR/croissant.json").records("records")` reads it in place.

It is written as the library would write it, key for key, which a test holds: the library takes 0.8 s to import, and
0.2 s to build and print its objects.

Source: https://docs.mlcommons.org/croissant/
"""

import contextlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from lemur_core.files import Json
from lemur_core.files.atomic import sha256_file
from manifests.folders.cards import PAPER, Disclosure, cite, unwrap_single
from manifests.folders.manifest import Output
from manifests.folders.reading import CHECK_ERRORS, read_json
from manifests.folders.tables import CROISSANT, Table
from manifests.provenance.licenses import NOASSERTION
from manifests.records import arrow_schema

_VERSION, _RAI = "http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"
_SPLITS = "splits"

_OWN_TERMS = (
    *("arrayShape", "citeAs", "column", "containedIn", "equivalentProperty", "extract", "field", "fileObject"),
    *("fileProperty", "fileSet", "format", "includes", "isArray", "isLiveDataset", "jsonPath", "key", "md5"),
    *("parentField", "path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate", "separator"),
    *("source", "subField", "transform"),
)
#: What the names in the file mean: the terms of version 1.0 and, at the end, of 1.1.
_CONTEXT: Json = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    **{term: f"cr:{term}" for term in _OWN_TERMS},
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "prov": "http://www.w3.org/ns/prov#",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    "description": {"@container": "@language"},
    "name": {"@container": "@language"},
}

_DATA_TYPES = {pa.string(): "sc:Text", pa.int64(): "cr:Int64", pa.float64(): "cr:Float64", pa.bool_(): "sc:Boolean"}


@dataclass(frozen=True, slots=True)
class DataOrigin:
    """Where a data set comes from, and what its users must know.

    Attributes:
        command: the command that wrote it; `tool`: the release of lemur-curator.
        sources: name and address of each source, such as `pkg:pypi/timm@1.0.30`.
        keywords: words for catalogs.
        disclosure: uses, limits, biases and the like.
        cites: whether the data are those of the paper.
    """

    command: str
    tool: str
    sources: Sequence[tuple[str, str]]
    keywords: Sequence[str]
    disclosure: Disclosure
    cites: bool = False

    def to_json(self, name: str) -> Json:
        """Return the fields of the description."""
        details = f"lemur-curator {self.tool}; manifest.json states the parameters, inputs, versions and digests"
        # One node an address: readers take two with one address for the same.
        derived = [{"@id": address, "name": source} for address, source in {a: s for s, a in self.sources}.items()]
        paper = {"citeAs": cite(name, self.tool), "url": f"https://arxiv.org/abs/{PAPER}"} if self.cites else {}
        return {
            **paper,
            "creator": {"@type": "sc:Organization", "name": "The users of lemur-curator who ran it"},
            "keywords": unwrap_single(self.keywords),
            "prov:wasDerivedFrom": unwrap_single(derived),
            "prov:wasGeneratedBy": {"@type": "prov:Activity", "name": self.command, "description": details},
            **self.disclosure.to_croissant(),
        }


#: The fields that `DataOrigin` states.
_STATED = frozenset(DataOrigin("", "", (), (), Disclosure(), cites=True).to_json(""))


def write_croissant(
    folder: Path,
    tables: Sequence[Table],
    name: str,
    description: str,
    version: str,
    licenses: Sequence[str],
    origin: DataOrigin | None = None,
) -> None:
    """Write `croissant.json` for the tables in a folder.

    The same tables give the same bytes, so it has no date.

    Args:
        licenses: SPDX expressions of the contents; left out of the metadata if one of them is NOASSERTION.
        origin: where the data come from, and what users must know; left out if None.
    """
    # An expression of several licenses has no address.
    addresses = [name if " " in name else f"https://spdx.org/licenses/{name}" for name in licenses]
    about = {"name": name, "description": description, "version": version}
    stated = None if NOASSERTION in licenses else unwrap_single(addresses)
    more = {} if origin is None else origin.to_json(name)
    _write(folder / CROISSANT, _build(folder, tables, about, {"license": stated, **more}))


def _build(folder: Path, tables: Sequence[Table], about: Mapping[str, str], more: Json) -> Json:
    """Return the whole description. Args: about: `name`, `description` and `version`. more: its license and origin."""
    used = dict.fromkeys(split for table in tables if _is_set(table) for split in table.files)
    conforms = [_VERSION, _RAI] if _STATED & more.keys() else _VERSION
    return _describe(
        {"@context": dict(sorted(_CONTEXT.items())), "@type": "sc:Dataset"},
        {"name": about["name"], "description": about["description"], "conformsTo": conforms},
        # In the order of the alphabet, as the library writes them.
        dict(sorted({**more, "version": about["version"]}.items())),
        distribution=[node for table in tables for node in _files(folder, table)],
        recordSet=[*_splits(list(used)), *map(_record_set, tables)],
    )


def restate_croissant(source: Path, target: Path, changed: Sequence[Output]) -> None:
    """Copy a `croissant.json`, with the digests and sizes of files that were rewritten since."""
    stated = json.loads(source.read_text(encoding="utf-8"))
    outputs = {item.path: item for item in changed}
    for node in stated["distribution"]:
        if (output := outputs.get(node.get("contentUrl"))) is not None:
            node |= {"sha256": output.sha256, "contentSize": f"{output.bytes} B"}
    _write(target, stated)


def is_described(folder: Path, tables: Sequence[Table]) -> bool:
    """Return whether the file describes these tables as we write it, whatever names and texts it states."""
    with contextlib.suppress(*CHECK_ERRORS):
        stated = read_json(folder / CROISSANT)
        about = {key: stated.get(key, "") for key in ("name", "description", "version")}
        more = {key: stated[key] for key in ("license", *_STATED) if key in stated}
        return bool(stated == _build(folder, tables, about, more))
    return False


def _write(path: Path, stated: Mapping[str, object]) -> None:
    path.write_text(json.dumps(stated, indent=2) + "\n", encoding="utf-8", newline="\n")


def _is_set(table: Table) -> bool:
    """Return whether its files are patterns, one per split."""
    return any("*" in pattern for pattern in table.files.values())


def _describe(*parts: Json, **more: object) -> Json:
    """Return a node of these keys, in this order; empty values are left out."""
    return {key: value for part in (*parts, more) for key, value in part.items() if value or value is False}


def _node(kind: str, name: str, shown: str = "") -> Json:
    return {"@type": f"cr:{kind}", "@id": name, "name": shown or name}


def _files(folder: Path, table: Table) -> Iterator[Json]:
    form = {"encodingFormat": "application/x-parquet"}
    for path in table.paths(folder):
        name = path.relative_to(folder).as_posix()
        size = {"contentSize": f"{path.stat().st_size} B", "contentUrl": name}
        yield {**_node("FileObject", name), **size, **form, "sha256": sha256_file(path)}
    if _is_set(table):
        includes = unwrap_single(list(table.files.values()))
        yield {**_node("FileSet", _source_name(table)), **form, "includes": includes}


def _source_name(table: Table) -> str:
    return f"{table.config}-files" if _is_set(table) else next(iter(table.files.values()))


def _splits(used: Sequence[str]) -> Iterator[Json]:
    """Yield the names of splits as a separate table, which fields that hold a split refer to."""
    if used:
        name = _node("Field", f"{_SPLITS}/name", "name")
        kind = {"dataType": "cr:Split", "key": {"@id": name["@id"]}, "field": [name | {"dataType": "sc:Text"}]}
        yield _node("RecordSet", _SPLITS) | kind | {"data": unwrap_single([{name["@id"]: split} for split in used])}


def _record_set(table: Table) -> Json:
    """Return a table: its split, if that follows from the file name, and its columns."""
    origin = {"fileSet" if _is_set(table) else "fileObject": {"@id": _source_name(table)}}
    fields = [_split_field(table, origin)] if _is_set(table) else []
    for column in arrow_schema(table.record):
        if not (fields and column.name == "split"):
            source = partial(_source, origin, column.name)
            about = table.record.model_fields[column.name].description
            fields.append(_field(source, f"{table.config}/{column.name}", column, about))
    summary = (inspect.getdoc(table.record) or "").partition("\n")[0]
    return _describe(_node("RecordSet", table.config), description=summary, field=fields)


def _split_field(table: Table, origin: Json) -> Json:
    """Return the split, extracted from the path of the file, so that readers can choose files by it.

    The library applies the expression again to its own result, so a bare split must match too.
    """
    split, pattern = next(iter(table.files.items()))
    start = pattern.removesuffix(f"{split}-*.parquet")
    assert all(pattern == f"{start}{split}-*.parquet" for split, pattern in table.files.items()), table.files
    regex = f"(?:{start})?({'|'.join(table.files)})(?:-.+\\.parquet)?$"
    return {
        **_node("Field", f"{table.config}/split", "split"),
        "description": "as the file is named",
        "dataType": "sc:Text",
        "references": {"field": {"@id": f"{_SPLITS}/name"}},
        "source": {**origin, "extract": {"fileProperty": "fullpath"}, "transform": {"regex": regex}},
    }


def _source(origin: Json, column: str, path: str = "") -> Json:
    """Return where to read a field: a column, or by JSONPath a part of each value, or of each element, in it."""
    return _describe(origin, extract={"column": column}, transform={"jsonPath": path} if path else None)


def _field(
    source: Callable[[str], Json], name: str, column: pa.Field, description: str | None = None, path: str = ""
) -> Json:
    """Return a column or a part of it; the members of a struct, or of structs in a list, become its subfields."""
    listed = pa.types.is_list(column.type)
    kind = column.type.value_type if listed else column.type
    node = _describe(_node("Field", name, column.name), description=description, arrayShape="-1" if listed else None)
    array = {"isArray": True} if listed else {}
    if not pa.types.is_struct(kind):
        return {**node, "dataType": _DATA_TYPES[kind], **array, "source": source(path)}
    start = f"{path}{'[*]' if listed else ''}." if path else ""
    members = [_field(source, f"{name}/{member.name}", member, path=f"{start}{member.name}") for member in kind]
    return {**node, **array, "subField": members}
