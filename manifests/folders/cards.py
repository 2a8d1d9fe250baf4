"""Dataset cards: the YAML that the Hub and `datasets.load_dataset` read, and what users of the data must know.

Source: https://huggingface.co/docs/hub/datasets-manual-configuration, https://huggingface.co/docs/hub/datasets-cards
"""

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import yaml

from lemur_core.files import Json
from lemur_core.files.markdown import code_span, make_visible, table
from manifests.folders.reading import read_text
from manifests.folders.tables import Table
from manifests.provenance.licenses import NOASSERTION
from manifests.records import arrow_schema

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


@dataclass(frozen=True, slots=True)
class Disclosure:
    """Facts that users of a data set must know; the card states them, and `croissant.json` as its RAI fields."""

    uses: Sequence[str] = ()
    limits: Sequence[str] = ()
    biases: Sequence[str] = ()
    impact: str = ""
    sensitive: str = ""
    collection: str = ""
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
            "rai:dataBiases": unwrap_single(self.biases),
            "rai:dataLimitations": unwrap_single(self.limits),
            "rai:dataSocialImpact": self.impact,
            "rai:dataUseCases": unwrap_single(self.uses),
            "rai:hasSyntheticData": self.synthetic,
            "rai:personalSensitiveInformation": self.sensitive,
        }


_CODE_RISK = (
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

SNAPSHOT_DISCLOSURE = Disclosure(
    uses=(
        "Training language models on PyTorch code, and evaluating them on held-out groups of networks.",
        "Searching architectures and predicting accuracies, within one task, data set, metric and epoch.",
        "Studying duplicates in code: every removal states its canonical and their similarity.",
        "Not for ranking architectures across benchmarks, and not as a source of code that is known to be safe.",
    ),
    limits=(
        "Accuracies are those of the source, from its runs, many of one epoch; they were not measured again.",
        "Splits keep near-duplicates by text and by computation together; other resemblances are not measured.",
        _CODE_RISK,
    ),
    biases=(
        "Tasks, data sets and families are as frequent as in the source, which may be written by few people or models;"
        " report.md counts them.",
        "Of near-duplicates the one with the best results is kept: results are better than those of the source.",
    ),
    impact=_IMPACT,
    sensitive=_SENSITIVE,
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
        "A block was run on the CPU, with arguments that were found by rules and search: others may fail.",
        "Facts hold for the stated arguments and sizes, in the versions that manifest.json states.",
        _CODE_RISK,
    ),
    biases=(
        "The sources are those that somebody chose. Blocks that need a compiler, a GPU or data do not run, and are"
        " missing wherever blocks must run.",
    ),
    impact=_IMPACT,
    sensitive=_SENSITIVE,
    collection="A program read the Python files of the sources, wrote each class of a module as a closed file, and"
    " ran it in a sandbox. Nothing was annotated by hand.",
)


def unwrap_single(values: Sequence[object]) -> object:
    """Return the only value of a sequence, or a list of all, as `mlcroissant` writes them."""
    return values[0] if len(values) == 1 else list(values)


def cite(name: str, version: str) -> str:
    """Return a BibTeX entry. Args: name, version: of the data set, and of lemur-curator."""
    title = re.sub(r"([{}%&#$_])", r"\\\1", make_visible(name))
    return (
        f"@misc{{lemur-curator,\n  title = {{{title}}},\n  note = {{Written by lemur-curator {version}; pipeline of"
        f" arXiv:{PAPER}}},\n  url = {{https://arxiv.org/abs/{PAPER}}}\n}}"
    )


def usage_lines(tables: Sequence[Table]) -> Iterator[str]:
    """Yield how `datasets` opens each table."""
    yield from ("", "```python", "from datasets import load_dataset", "")
    for item in tables:
        about = (inspect.getdoc(item.record) or "").partition("\n")[0]
        yield f'{item.config} = load_dataset("path/to/this/folder", "{item.config}")  # {about}'
    yield from ("```", "", "`manifest.json` says how to make this folder again, `lemur verify` checks its promises.")


def column_lines(tables: Sequence[Table]) -> Iterator[str]:
    """Yield the section about columns: type and meaning of each, by configuration."""
    yield from ("", "## Columns", "")
    for item in tables:
        rows = [
            [code_span(column.name), _type_name(column.type), item.record.model_fields[column.name].description or ""]
            for column in arrow_schema(item.record)
        ]
        yield from (f"`{item.config}`:", "", *table(["column", "type", "meaning"], rows, 3))


def _type_name(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {_type_name(kind.value_type)}"
    return "struct" if pa.types.is_struct(kind) else str(kind)


def card_yaml(
    tables: Sequence[Table],
    *,
    default: str,
    pretty_name: str,
    tags: list[str],
    size: int,
    licenses: Sequence[str] = (),
    source_datasets: Sequence[str] = ("original",),
) -> str:
    """Return the YAML block of a dataset card: one configuration per table.

    Args:
        tables: the configurations, from `select_tables`.
        default: the configuration that `datasets` opens without a name.
        pretty_name: the title of the data set.
        tags: tags on the Hub.
        size: number of rows, which is published as a range.
        licenses: SPDX expressions of the contents.
        source_datasets: `original` or `extended`, as the Hub names where data come from.
    Returns: the block with its two lines of `---`, and a newline at its end.
    """
    card = {
        "pretty_name": make_visible(pretty_name),
        **_state_licenses(licenses),
        "language": ["en", "code"],
        "annotations_creators": ["machine-generated"],
        "source_datasets": list(source_datasets),
        "task_categories": ["text-generation"],
        "tags": tags,
        "size_categories": [next((label for limit, label in _SIZES if size < limit), "1M<n<10M")],
        "configs": _list_configs(tables, default),
    }
    return _dump(card)


def _dump(card: Json) -> str:
    text = yaml.safe_dump(card, sort_keys=False, allow_unicode=True, width=sys.maxsize)
    return f"---\n{text}---\n"


def _list_configs(tables: Sequence[Table], default: str) -> list[Json]:
    return [
        {
            "config_name": table.config,
            **({"default": True} if table.config == default else {}),
            "data_files": [{"split": split, "path": pattern} for split, pattern in table.files.items()],
        }
        for table in tables
    ]


_KEYS = {
    *("pretty_name", "license", "license_name", "language", "annotations_creators", "source_datasets"),
    *("task_categories", "tags", "size_categories", "configs"),
}


def card_faults(folder: Path, tables: Sequence[Table], default: str) -> Iterator[str]:
    """Yield what `datasets` would read from the card of a folder but these tables.

    Args: default: the table that `datasets` opens without a name.
    """
    text = read_text(folder / "README.md")
    head = text[: text.find("\n---\n") + len("\n---\n")]
    card = yaml.safe_load(head.removeprefix("---\n").removesuffix("---\n"))
    if not isinstance(card, dict) or not head.startswith("---\n"):
        yield "README.md does not begin with the lines of YAML that lemur writes"
    elif card.get("configs") != _list_configs(tables, default):
        yield "README.md opens other tables than those of the folder"
    elif _dump(card) != head or set(card) - _KEYS:
        yield "README.md has other YAML than lemur writes"


def _state_licenses(licenses: Sequence[str]) -> Json:
    """Return the keys of the license: those of the Hub by their identifiers, all others by name."""
    parts = sorted({part for name in licenses for part in name.split(" AND ")})
    known = [name.lower().removesuffix("-only").removesuffix("-or-later") for name in parts]
    if not parts or NOASSERTION in parts:
        return {"license": "unknown"} if parts else {}
    if all(name in _HUB_LICENSES for name in known):
        return {"license": unwrap_single(list(dict.fromkeys(known)))}
    return {"license": "other", "license_name": " AND ".join(map(make_visible, parts))}
