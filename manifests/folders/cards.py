"""The face of a folder's tables: `README.md`, the dataset card, and `croissant.json`, the same for dataset catalogs.

The YAML of the card is what the Hub and `datasets.load_dataset` read. `croissant.json` lists every file of a table with
its SHA-256, and every table with its columns; paths are relative to the folder, so that
`mlcroissant.Dataset("DIR/croissant.json").records("records")` reads it in place. It is written as that library would
write it, key for key, which a test holds: the library takes 0.8 s to import, and 0.2 s to build and print its objects.

Source: https://huggingface.co/docs/hub/datasets-manual-configuration, https://huggingface.co/docs/hub/datasets-cards,
https://docs.mlcommons.org/croissant/
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path

import pyarrow as pa
import yaml

from lemur_core.files import Json
from lemur_core.files.atomic import sha256_file
from lemur_core.files.markdown import code_span, make_visible, plain, table
from manifests.folders.manifest import Output
from manifests.folders.tables import Table
from manifests.provenance.licenses import NOASSERTION
from manifests.records import arrow_schema

CARD = "README.md"
#: Sizes of data sets, as the Hub names them.
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
#: Identifiers of licenses on the Hub; any other is stated by its own name.
_HUB_LICENSES = frozenset(
    (
        *("afl-3.0", "agpl-3.0", "apache-2.0", "artistic-2.0", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear"),
        *("bsl-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc0-1.0", "ecl-2.0", "epl-2.0", "eupl-1.2", "gpl-2.0", "gpl-3.0"),
        *("isc", "lgpl-2.1", "lgpl-3.0", "mit", "mpl-2.0", "ms-pl", "ncsa", "postgresql", "unlicense", "wtfpl", "zlib"),
    )
)
#: The paper of the pipeline that these data sets come from.
PAPER = "2512.04329"


#: A limit of every collection of code.
CODE_RISK = (
    "The code is other people's and was not reviewed: run it in a sandbox. A model trained on it may repeat it with its"
    " faults, and under its license."
)
_SENSITIVE = (
    "No personal data was collected. Code and its comments may name their authors. `lemur publish` refuses secrets and"
    " paths of the publisher's machine."
)
_IMPACT = (
    "Fewer repeated texts make training and evaluation cheaper, and splits without near-duplicates make results easier"
    " to trust. As any collection of code, it can also serve to train models that write code for harmful ends."
)


@dataclass(frozen=True, slots=True)
class Disclosure:
    """Facts that users of a data set must know; the card states them, and `croissant.json` as its RAI fields."""

    uses: Sequence[str]
    limits: Sequence[str]
    biases: Sequence[str]
    collection: str
    impact: str = _IMPACT
    sensitive: str = _SENSITIVE
    synthetic: bool = False

    def lines(self) -> Iterator[str]:
        """Yield the sections of a card."""
        yield from ("", "## Collection", "", self.collection)
        yield from ("", "## Uses", "", *(f"- {text}" for text in self.uses))
        yield from ("", "## Biases, risks and limits", "", *(f"- {text}" for text in (*self.biases, *self.limits)))
        yield from (f"- {text}" for text in (self.impact, self.sensitive))

    def to_croissant(self) -> Json:
        """Return the fields of the vocabulary for responsible AI, version 1.0."""
        return {
            "rai:dataCollection": self.collection,
            "rai:dataBiases": _unwrap_single(self.biases),
            "rai:dataLimitations": _unwrap_single(self.limits),
            "rai:dataSocialImpact": self.impact,
            "rai:dataUseCases": _unwrap_single(self.uses),
            "rai:hasSyntheticData": self.synthetic,
            "rai:personalSensitiveInformation": self.sensitive,
        }


SNAPSHOT_DISCLOSURE = Disclosure(
    uses=(
        "Training language models on PyTorch code, and evaluating them on held-out groups of networks.",
        "Searching architectures and predicting accuracies, within one task, data set, metric and epoch.",
        "Studying duplicates in code: every removal states its canonical and their similarity.",
        "Not for ranking architectures across benchmarks, and not as a source of code that is known to be safe.",
    ),
    limits=(
        "Accuracies are those of the source, from its runs; they were not measured again.",
        "Splits keep near-duplicates by text and by computation together; other resemblances are not measured.",
        CODE_RISK,
    ),
    biases=(
        "Tasks, data sets and families are those of the source, which few people or models may have written; report.md"
        " counts them.",
        "Among near-duplicates those with better results are preferred: results need not be typical of the source.",
    ),
    collection="A program read the rows of the source, and kept one of those that are near each other by text"
    " or structure. Nothing was annotated by hand.",
)
EXTRACTION_DISCLOSURE = Disclosure(
    uses=(
        "Building networks from blocks that run, and looking up what a block computes.",
        "Training language models on PyTorch code or on facts about it, and evaluating them on held-out groups.",
        "Not as a source of code that is known to be safe, and not as a measure of the quality of its sources.",
    ),
    limits=(
        "What ran, ran on the CPU, with arguments that were recorded or found by rules and search: others may fail.",
        "Facts hold for the stated arguments and sizes, in the versions that manifest.json states.",
        CODE_RISK,
    ),
    biases=(
        "The sources are those that somebody chose. Blocks that need a compiler, a GPU or data do not run, and are"
        " missing wherever blocks must run.",
    ),
    collection="A program read the Python files of the sources, wrote each class of a module as a closed file where it"
    " could be closed, and ran it where that was asked for. Nothing was annotated by hand.",
)


@dataclass(frozen=True, slots=True)
class Card:
    """The content of a dataset card.

    Attributes:
        name: title of the card, and name for catalogs.
        description: one or two sentences, also for catalogs.
        licenses: SPDX expressions of the contents.
        text: more Markdown, below how the tables are opened.
        disclosure: what users must know.
        sources: name and address of each source, such as `pkg:pypi/timm@1.0.30`.
        lemur: the release of LEMUR that the data are of; empty for any other data, which are not those of its paper.
    """

    name: str
    description: str
    licenses: Sequence[str]
    text: str
    disclosure: Disclosure
    sources: Sequence[tuple[str, str]] = ()
    lemur: str = ""


def _unwrap_single(values: Sequence[object]) -> object:
    """Return the only value of a sequence, or a list of all, as `mlcroissant` writes them."""
    return values[0] if len(values) == 1 else list(values)


def _cite(name: str, version: str) -> str:
    """Return a BibTeX entry. Args: name, version: of the data set, and of lemur-curator."""
    title = re.sub(r"([{}%&#$_])", r"\\\1", make_visible(name))
    return (
        f"@misc{{lemur-curator,\n  title = {{{title}}},\n  note = {{Written by lemur-curator {version}; pipeline of"
        f" arXiv:{PAPER}}},\n  url = {{https://arxiv.org/abs/{PAPER}}}\n}}"
    )


# --- README.md --------------------------------------------------------------------------------------------------------


def card_text(
    card: Card,
    tables: Sequence[Table],
    *,
    size: int,
    tags: Sequence[str],
    source_datasets: Sequence[str],
    tool: str,
) -> str:
    """Return the text of a dataset card.

    Args:
        tables: from `select_tables`; `datasets` opens the first one without a name.
        size: the number of rows of that one.
        tags: tags on the Hub.
        source_datasets: `original` or `extended`, as the Hub names where data come from.
        tool: the release of lemur-curator that wrote the data.
    """
    front = {
        "pretty_name": make_visible(card.name),
        **_state_licenses(card.licenses),
        "language": ["en", "code"],
        "annotations_creators": ["machine-generated"],
        "source_datasets": list(source_datasets),
        "task_categories": ["text-generation"],
        "tags": [*tags, *([f"arxiv:{PAPER}"] if card.lemur else [])],
        "size_categories": [next((label for limit, label in _SIZES if size < limit), "1M<n<10M")],
        "configs": [
            {
                "config_name": item.name,
                **({"default": True} if item is tables[0] else {}),
                "data_files": [{"split": split, "path": pattern} for split, pattern in item.files.items()],
            }
            for item in tables
        ],
    }
    lines = ["---", yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=sys.maxsize) + "---", ""]
    lines += [f"# {plain(card.name)}", "", plain(card.description)]
    lines += ["", "```python", "from datasets import load_dataset", ""]
    lines += ['HERE = "path/to/this/folder"  # on the Hub its repository, OWNER/NAME']
    for item in tables:
        lines.append(f'{item.name} = load_dataset(HERE, "{item.name}")  # {item.about}')
    lines += ["```", "", "`manifest.json` says how to make this folder again, `lemur verify` checks its promises."]
    lines += ["", card.text.strip(), *card.disclosure.lines(), "", "## Columns", ""]
    for item in tables:
        rows = [
            [code_span(column.name), _type_name(column.type), item.record.model_fields[column.name].description or ""]
            for column in arrow_schema(item.record)
        ]
        lines += [f"`{item.name}`:", "", *table(["column", "type", "meaning"], rows, 3)]
    lines += ["", "## Citation", "", "```bibtex", _cite(card.name, tool), "```"] if card.lemur else []
    return "\n".join(lines) + "\n"


def _type_name(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {_type_name(kind.value_type)}"
    return "struct" if pa.types.is_struct(kind) else str(kind)


def _state_licenses(licenses: Sequence[str]) -> Json:
    """Return the keys of the license: those of the Hub by their identifiers, all others by name."""
    parts = sorted({part for name in licenses for part in name.split(" AND ")})
    known = [name.lower().removesuffix("-only").removesuffix("-or-later") for name in parts]
    if not parts or NOASSERTION in parts:
        return {"license": "unknown"} if parts else {}
    if all(name in _HUB_LICENSES for name in known):
        return {"license": _unwrap_single(list(dict.fromkeys(known)))}
    return {"license": "other", "license_name": " AND ".join(map(make_visible, parts))}


# --- croissant.json ---------------------------------------------------------------------------------------------------

_VERSION, _RAI = "http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"
_SPLITS = "splits"

#: What the names in the file mean: the terms of version 1.0, and `data`, `examples` and `prov` of 1.1.
_CONTEXT = "croissant_context.json"
_DATA_TYPES = {pa.string(): "sc:Text", pa.int64(): "cr:Int64", pa.float64(): "cr:Float64", pa.bool_(): "sc:Boolean"}


def croissant_text(
    folder: Path, card: Card, tables: Sequence[Table], *, command: str, tags: Sequence[str], tool: str
) -> str:
    """Return the description for catalogs; the same tables give the same text, so it has no date.

    Licenses are left out if one of them is NOASSERTION; an expression of several has no address.

    Args: folder: that holds the tables. command: that wrote them. tags: keywords. tool: the release of lemur-curator.
    """
    addresses = [name if " " in name else f"https://spdx.org/licenses/{name}" for name in card.licenses]
    details = f"lemur-curator {tool}; manifest.json states the parameters, inputs, versions and digests"
    # One node an address: readers take two with one address for the same.
    derived = [{"@id": address, "name": source} for address, source in {a: s for s, a in card.sources}.items()]
    paper = {"citeAs": _cite(card.name, tool), "url": f"https://arxiv.org/abs/{PAPER}"} if card.lemur else {}
    stated: Json = {
        **paper,
        "license": None if NOASSERTION in card.licenses else _unwrap_single(addresses),
        "version": card.lemur,
        "creator": {"@type": "sc:Organization", "name": "The users of lemur-curator who ran it"},
        "keywords": _unwrap_single(tags),
        "prov:wasDerivedFrom": _unwrap_single(derived),
        "prov:wasGeneratedBy": {"@type": "prov:Activity", "name": command, "description": details},
        **card.disclosure.to_croissant(),
    }
    used = dict.fromkeys(split for item in tables if _is_set(item) for split in item.files)
    about = {"name": make_visible(card.name), "description": make_visible(card.description)}
    node = _describe(
        {"@context": json.loads(files(__package__).joinpath(_CONTEXT).read_bytes()), "@type": "sc:Dataset"},
        {**about, "conformsTo": [_VERSION, _RAI]},
        dict(sorted(stated.items())),  # in the order of the alphabet, as the library writes them
        distribution=[file for item in tables for file in _files(folder, item)],
        recordSet=[*_splits(list(used)), *map(_record_set, tables)],
    )
    return json.dumps(node, indent=2) + "\n"


def restate_croissant(source: Path, target: Path, changed: Sequence[Output]) -> None:
    """Copy a `croissant.json`, with the digests and sizes of files that were rewritten since."""
    stated = json.loads(source.read_text(encoding="utf-8"))
    outputs = {item.path: item for item in changed}
    for node in stated["distribution"]:
        if (output := outputs.get(node.get("contentUrl"))) is not None:
            node |= {"sha256": output.sha256, "contentSize": f"{output.bytes} B"}
    target.write_text(json.dumps(stated, indent=2) + "\n", encoding="utf-8", newline="\n")


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
        includes = _unwrap_single(list(table.files.values()))
        yield {**_node("FileSet", _source_name(table)), **form, "includes": includes}


def _source_name(table: Table) -> str:
    return f"{table.name}-files" if _is_set(table) else next(iter(table.files.values()))


def _splits(used: Sequence[str]) -> Iterator[Json]:
    """Yield the names of splits as a separate table, which fields that hold a split refer to."""
    if used:
        name = _node("Field", f"{_SPLITS}/name", "name")
        kind = {"dataType": "cr:Split", "key": {"@id": name["@id"]}, "field": [name | {"dataType": "sc:Text"}]}
        yield _node("RecordSet", _SPLITS) | kind | {"data": _unwrap_single([{name["@id"]: split} for split in used])}


def _record_set(table: Table) -> Json:
    """Return a table: its split, if that follows from the file name, and its columns."""
    origin = {"fileSet" if _is_set(table) else "fileObject": {"@id": _source_name(table)}}
    fields = [_split_field(table, origin)] if _is_set(table) else []
    for column in arrow_schema(table.record):
        if not (fields and column.name == "split"):
            source = partial(_source, origin, column.name)
            about = table.record.model_fields[column.name].description
            fields.append(_field(source, f"{table.name}/{column.name}", column, about))
    return _describe(_node("RecordSet", table.name), description=table.about, field=fields)


def _split_field(table: Table, origin: Json) -> Json:
    """Return the split, extracted from the path of the file, so that readers can choose files by it.

    The library applies the expression again to its own result, so a bare split must match too.
    """
    split, pattern = next(iter(table.files.items()))
    start = pattern.removesuffix(f"{split}-*.parquet")
    assert all(pattern == f"{start}{split}-*.parquet" for split, pattern in table.files.items()), table.files
    regex = f"(?:{start})?({'|'.join(table.files)})(?:-.+\\.parquet)?$"
    return {
        **_node("Field", f"{table.name}/split", "split"),
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
