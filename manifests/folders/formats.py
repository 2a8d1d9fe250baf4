"""The kinds of finished folders: format, dataset card, checks, page, and how to trace a row back to its source.

The formats of snapshots and extractions are here because every package reads them. What only the package that writes a
folder can do with it is in the `FolderKind`s that this package lists as `KINDS`; `lemur` combines them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from lemur_core.files import Json
from lemur_core.files.atomic import sha256_file, write_text
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import article, make_visible, plain
from manifests import records
from manifests.folders.cards import (
    EXTRACTION_DISCLOSURE,
    PAPER,
    SNAPSHOT_DISCLOSURE,
    Disclosure,
    card_yaml,
    cite,
    column_lines,
)
from manifests.folders.checks import Check, check_table
from manifests.folders.croissant import DataOrigin, write_croissant
from manifests.folders.frame import Page
from manifests.folders.manifest import FILE_NAME, Manifest, check_stated, package_versions, read_unchecked_manifest
from manifests.folders.reading import reading
from manifests.folders.tables import Configs, R, read_rows, select_tables
from manifests.provenance import TABLE


@dataclass(frozen=True, slots=True)
class FolderFormat:
    """The format of one kind of folder.

    Attributes:
        name: the kind, as manifests state it.
        command: the command that writes such a folder, for messages.
        tables: its Parquet tables by name; a table that a folder may lack is listed, too.
        default: the table that `datasets.load_dataset` opens without a name.
        tags: the tags of its dataset card.
    """

    name: str
    command: str
    tables: Configs = field(default_factory=dict)
    default: str = ""
    tags: tuple[str, ...] = ()
    disclosure: Disclosure = Disclosure()  # noqa: RUF009 (frozen)
    source_datasets: tuple[str, ...] = ("original",)

    def open(self, folder: Path) -> Manifest:
        """Return the manifest of a folder of this kind.

        Raises: UserError if it has no valid manifest, or is of another kind.
        """
        manifest = read_unchecked_manifest(folder)
        if manifest.kind != self.name:
            kinds = f"{article(manifest.kind)}, not {article(self.name)}"
            raise UserError(f"{folder}: holds {kinds}; give the folder that `{self.command}` wrote")
        return check_stated(folder, manifest)

    def reading(self, folder: Path) -> AbstractContextManager[None]:
        """Return a context manager that reports what is damaged in a folder of this kind. Raises: UserError."""
        return reading(folder, self.name)

    def files(self, folder: Path, table: str) -> list[Path]:
        """Return the files of a table, sorted by name; none if the folder does not have it."""
        _, patterns = self.tables[table]
        return sorted(path for pattern in patterns.values() for path in folder.glob(pattern))

    def rows(
        self, folder: Path, record: type[R], columns: Sequence[str] = (), *, ids: Collection[str] | None = None
    ) -> Iterator[R]:
        """Yield the rows of the table of a record type; see `read_rows`."""
        table = next(name for name, (kind, _) in self.tables.items() if kind is record)
        return read_rows(self.files(folder, table), record, columns, ids=ids)

    def check_tables(self, folder: Path, names: Sequence[str]) -> list[Check]:
        """Check the columns and rows of some tables against their record types."""
        checks = []
        for name in names:
            record, patterns = self.tables[name]
            path = PurePosixPath(next(iter(patterns.values())))
            # The files of all splits are in one folder: a stray file among them is read, and checked, too.
            checks.append(check_table(folder, str(path.with_name("*.parquet") if "*" in path.name else path), record))
        return checks

    def write_card(self, folder: Path, rows: Mapping[str, int], card: "Card", *, default: str = "") -> None:
        """Write `README.md`, the dataset card, and `croissant.json`, the same tables for dataset catalogs.

        Args:
            rows: number of rows by path of each table; empty tables are omitted, because `datasets` rejects them.
            default: the table that `datasets` opens without a name; that of the kind by default.
        """
        tables = select_tables(self.tables, rows)
        disclosure = self.disclosure
        if any(table.config == "chat" for table in tables):  # its texts are built by templates
            disclosure = replace(disclosure, synthetic=True)
        version = package_versions()["lemur-curator"]
        yaml = card_yaml(
            tables,
            default=default or self.default,
            pretty_name=card.name,
            tags=["neural-architecture", *self.tags, f"arxiv:{PAPER}"],
            size=card.size,
            licenses=card.licenses,
            source_datasets=self.source_datasets,
        )
        sections = [*disclosure.lines(), *column_lines(tables), "", "## Citation", "", "```bibtex"]
        end = "\n".join([*sections, cite(card.name, version), "```"])
        write_text(folder / "README.md", f"{yaml}\n# {plain(card.name)}\n\n{card.text.rstrip()}\n{end}\n")
        origin = DataOrigin(self.command, card.sources, ("neural-architecture", *self.tags), disclosure)
        name, description = make_visible(card.name), make_visible(card.description)
        write_croissant(folder, tables, name, description, version, card.licenses, origin)


@dataclass(frozen=True, slots=True)
class Card:
    """The content of a dataset card.

    Attributes:
        name: title of the card, and name for catalogs.
        description: one or two sentences, for catalogs.
        licenses: SPDX expressions of the contents.
        size: number of rows of the default table.
        text: Markdown below the title.
        sources: name and address of each source.
    """

    name: str
    description: str
    licenses: Sequence[str]
    size: int
    text: str
    sources: Sequence[tuple[str, str]] = ()


#: The only split of a table that nobody trains on as it is; `datasets` reserves the word all.
_WHOLE = "full"


def files_by_split(folder: str) -> dict[str, str]:
    """Return the files of a table in the three splits.

    Args: folder: of the table, below the finished folder.
    Returns: a pattern by split.
    """
    return {split: f"{folder}/{split}-*.parquet" for split in records.SPLITS}


#: Conversations have other rows in each format, but the same files.
_CHAT, _CHAT_DROPS = files_by_split("data/chat"), {_WHOLE: "chat_drops.parquet"}

SNAPSHOT = FolderFormat(
    name="snapshot",
    command="lemur curate",
    tables={
        "records": (records.LemurRecord, files_by_split("data/records")),
        "networks": (records.NetworkRow, {_WHOLE: "networks.parquet"}),
        "stats": (records.Stat, {"train": "data/stats/train-*.parquet"}),
        "measurements": (records.Measurement, {"train": "data/measurements/train-*.parquet"}),
        "decisions": (records.Decision, {_WHOLE: "decisions.parquet"}),
        "graphs": (records.GraphRow, {_WHOLE: "graphs.parquet"}),
        "chat": (records.ChatRow, _CHAT),
        "chat_drops": (records.ChatDrop, _CHAT_DROPS),
    },
    default="records",
    tags=("pytorch", "code", "deduplicated", "lemur"),
    disclosure=SNAPSHOT_DISCLOSURE,
    source_datasets=("extended",),
)

EXTRACTION = FolderFormat(
    name="extraction",
    command="lemur extract",
    tables={
        "blocks": (records.Block, {"train": TABLE}),
        "specs": (records.SpecRow, files_by_split("data/specs")),
        "chat": (records.SpecChatRow, _CHAT),
        "chat_drops": (records.SpecChatDrop, _CHAT_DROPS),
    },
    default="blocks",
    tags=("pytorch", "code", "lemur"),
    disclosure=EXTRACTION_DISCLOSURE,
)


_LABEL, _FACT = 11, 13  # columns


@dataclass(frozen=True, slots=True)
class FolderLink:
    """One step of a chain back to source lines. `depth` counts the parent folders traversed."""

    what: str
    name: str
    facts: Mapping[str, object]
    depth: int = 0

    def to_json(self) -> Json:
        """Return the link as a JSON object."""
        return {"link": self.what, "name": self.name, "depth": self.depth, **self.facts}

    def lines(self) -> list[str]:
        """Return the printed lines: kind and name, then one fact per line."""
        stated = [(key, _text(value)) for key, value in self.facts.items() if value not in (None, "", [], {})]
        facts = [f"  {key.replace('_', ' '):<{_FACT}} {text}" for key, text in stated]
        return [make_visible(f"{'  ' * self.depth}{line}") for line in (f"{self.what:<{_LABEL}}{self.name}", *facts)]


@dataclass(frozen=True, slots=True)
class RowTrace:
    """A folder's information about a row: its links, and the SHA-256 of codes in it that its parents may hold."""

    links: tuple[FolderLink, ...]
    codes: tuple[str, ...]


#: All checks of one kind of folder, in a fixed order; called with the folder, and `jobs` by name. Raises: UserError if
#: there is no valid manifest.
Verifier = Callable[..., list[Check]]


@dataclass(frozen=True, slots=True)
class ListedItem:
    """One item of a folder.

    Attributes:
        names: the names by which commands find it, the one that is shown first.
        facts: what a list shows after it.
    """

    names: tuple[str, ...]
    facts: Json


@dataclass(frozen=True, slots=True)
class FolderKind:
    """One kind of finished folder.

    Attributes:
        format: its name and its tables.
        verify: all its checks.
        find: finds an item of the folder by name. Raises UserError with similar names if there is none.
        find_code: finds the item whose code has this SHA-256.
        page: the content of its page; None for counts and files only.
        items: its items, in the order of its tables; None for a kind without any.
    """

    format: FolderFormat
    verify: Verifier
    find: Callable[[Path, str], RowTrace]
    find_code: Callable[[Path, str], RowTrace | None]
    page: Callable[[Path, Manifest], Page] | None = None
    items: Callable[[Path], Iterator[ListedItem]] | None = None


def manifest_link(folder: Path, manifest: Manifest, depth: int = 0) -> FolderLink:
    """Return the manifest of a folder as a link of a chain.

    Args: folder, manifest: the folder, and its manifest as read. depth: how many parent folders the chain has passed.
    Returns: a link with kind, SHA-256 of the file, and versions.
    """
    facts = {"kind": manifest.kind, "sha256": sha256_file(folder / FILE_NAME), "versions": manifest.versions}
    return FolderLink("manifest", str(folder / FILE_NAME), facts, depth)


def lines_text(first: int, last: int) -> str:
    """Return a range of lines as text.

    Args: first, last: line numbers from 1, both inclusive.
    Returns: `7` or `7-9`.
    """
    return str(first) if first == last else f"{first}-{last}"


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
