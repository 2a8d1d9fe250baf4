"""Formats of finished folders: the name of a kind, the command that writes it, its tables and its dataset card.

The formats of snapshots and extractions are here because every package reads them. What only the package that writes a
folder can do with it, verification, traces and its page, is in the `FolderKind` of that package.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from lemur_core.files.atomic import write_text
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import article, make_visible, plain
from manifests.folders.checks import Check, check_table
from manifests.folders.manifest import Manifest, check_stated, package_versions, read_unchecked_manifest
from manifests.folders.reading import reading
from manifests.folders.tables import Configs, R, card_yaml, read_rows, select_tables
from manifests.provenance import TABLE
from manifests.records import (
    SPLITS,
    Block,
    ChatDrop,
    ChatRow,
    Decision,
    GraphRow,
    JoinedCluster,
    LemurRecord,
    Removed,
    SpecChatDrop,
    SpecChatRow,
    SpecRow,
    Stat,
)


@dataclass(frozen=True, slots=True)
class FolderFormat:
    """The format of one kind of folder.

    Attributes:
        name: the kind, as manifests state it.
        command: the command that writes such a folder, for messages.
        tables: its Parquet tables by name; a table that a folder may lack is listed, too.
        default: the table that `datasets.load_dataset` opens without a name.
        tags: of its dataset card.
    """

    name: str
    command: str
    tables: Configs = field(default_factory=dict)
    default: str = ""
    tags: tuple[str, ...] = ()

    def open(self, folder: Path) -> Manifest:
        """Return the manifest of a folder of this kind.

        Raises: UserError if it has no valid manifest, or is of another kind.
        """
        manifest = read_unchecked_manifest(folder)
        self.check_kind(folder, manifest.kind)
        return check_stated(folder, manifest)

    def check_kind(self, folder: Path, kind: str) -> None:
        """Raise UserError unless a folder is of this kind, by its manifest."""
        if kind != self.name:
            own = article(self.name)
            raise UserError(f"{folder}: holds {article(kind)}, not {own}; give the folder that `{self.command}` wrote")

    def reading(self, folder: Path) -> AbstractContextManager[None]:
        """Return a context manager that reports what is damaged in a folder of this kind. Raises: UserError."""
        return reading(folder, self.name)

    def files(self, folder: Path, table: str) -> list[Path]:
        """Return the files of a table, sorted by name; none if the folder does not have it."""
        _, patterns = self.tables[table]
        return sorted(path for pattern in patterns.values() for path in folder.glob(pattern))

    def rows(
        self,
        folder: Path,
        record: type[R],
        columns: Sequence[str] = (),
        *,
        table: str | None = None,
        ids: Collection[str] | None = None,
    ) -> Iterator[R]:
        """Yield the rows of the table of a record type; see `read_rows`."""
        table = table or next(name for name, (kind, _) in self.tables.items() if kind is record)
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

    def write_card(self, folder: Path, rows: Mapping[str, int], card: "Card") -> None:
        """Write `README.md`, the dataset card, and `croissant.json`, the same tables for dataset catalogs.

        Args: rows: number of rows by path of each table; empty tables are omitted, because `datasets` rejects them.
        """
        # Slow to import, and needed only where a folder is written.
        from manifests.folders.croissant import About, write_croissant

        tables = select_tables(self.tables, rows)
        tags = ["neural-architecture", *self.tags]
        yaml = card_yaml(tables, default=self.default, pretty_name=card.name, tags=tags, size=card.size)
        write_text(folder / CARD, f"{yaml}\n# {plain(card.name)}\n\n{card.text}")
        about = About(
            make_visible(card.name), make_visible(card.description), package_versions()["lemur-curator"], card.licenses
        )
        write_croissant(folder, tables, about)


@dataclass(frozen=True, slots=True)
class Card:
    """The content of a dataset card.

    Attributes:
        name: title of the card, and name for catalogs.
        description: one or two sentences, for catalogs.
        licenses: SPDX expressions of the contents.
        size: number of rows of the default table.
        text: Markdown below the title.
    """

    name: str
    description: str
    licenses: Sequence[str]
    size: int
    text: str


CARD = "README.md"


def _by_split(folder: str) -> dict[str, str]:
    return {split: f"{folder}/{split}-*.parquet" for split in SPLITS}


#: Conversations have other rows in each format, but the same files.
_CHAT, _CHAT_DROPS = _by_split("data/chat"), {"train": "chat_drops.parquet"}

SNAPSHOT = FolderFormat(
    name="snapshot",
    command="lemur curate",
    tables={
        "records": (LemurRecord, _by_split("data/records")),
        "stats": (Stat, {"train": "data/stats/train-*.parquet"}),
        "decisions": (Decision, {"train": "decisions.parquet"}),
        "graphs": (GraphRow, {"train": "graphs.parquet"}),
        "removed": (Removed, {"train": "removed.parquet"}),
        "clusters": (JoinedCluster, {"train": "clusters.parquet"}),
        "chat": (ChatRow, _CHAT),
        "chat_drops": (ChatDrop, _CHAT_DROPS),
    },
    default="records",
    tags=("pytorch", "code", "deduplicated", "lemur"),
)

EXTRACTION = FolderFormat(
    name="extraction",
    command="lemur extract",
    tables={
        "blocks": (Block, {"train": TABLE}),
        "specs": (SpecRow, _by_split("data/specs")),
        "chat": (SpecChatRow, _CHAT),
        "chat_drops": (SpecChatDrop, _CHAT_DROPS),
    },
    default="blocks",
    tags=("pytorch", "code", "lemur"),
)
