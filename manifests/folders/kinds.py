"""The kinds of finished folders: a folder is its tables; what it derives from them, and its laws, make it verifiable.

Snapshots and extractions are here because every package reads them. What only the package that writes a folder can do
with it is added there: each lists its kinds as `KINDS`, and `lemur` combines them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import pyarrow.parquet as pq

from lemur_core.files import Json
from lemur_core.files.atomic import scratch_folder, sha256_file, write_text
from lemur_core.files.errors import UserError, missing_name
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
    usage_lines,
)
from manifests.folders.checks import (
    Check,
    check_derived,
    check_description,
    check_faults,
    check_files,
    check_table,
    run_checks,
)
from manifests.folders.croissant import DataOrigin, write_croissant
from manifests.folders.frame import Page, has_page
from manifests.folders.manifest import (
    FILE_NAME,
    INDEX,
    SHARDS,
    Manifest,
    check_stated,
    find_stated_fault,
    package_versions,
    read_unchecked_manifest,
)
from manifests.folders.reading import reading
from manifests.folders.tables import CROISSANT, Configs, R, read_rows, select_tables
from manifests.provenance import TABLE, Inlined

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
class FoundItem:
    """What a folder knows about one of its items.

    Attributes:
        links: the chain from it to its source lines, as far as this folder knows it.
        codes: the SHA-256 of its codes, which the parents of the folder may hold.
        lines: what it is, and why it is kept, removed or failed; without them, the first link says it.
        facts: the same as a JSON object.
        code: its text, to print after all else.
        draw: draws what it computes in eval mode as an `.svg`, and returns a message; None where nothing is drawn.
    """

    links: tuple[FolderLink, ...]
    codes: tuple[str, ...] = ()
    lines: Sequence[str] = ()
    facts: Json = field(default_factory=dict)
    code: str | None = None
    draw: Callable[[Path], str] | None = field(default=None, repr=False, compare=False)

    def behind(self, link: FolderLink) -> "FoundItem":
        """Return the same item, found by what is about it: a conversation."""
        return replace(self, links=(link, *self.links), lines=[*link.lines(), "", *self.lines])


@dataclass(frozen=True, slots=True)
class ListedItem:
    """One item of a folder: the names by which commands find it, best first, and what a list shows after the first."""

    names: tuple[str, ...]
    facts: Json


@dataclass(frozen=True, slots=True)
class Named:
    """The rows of a table that people look up by name.

    Attributes:
        what: a row, in one word.
        names: the fields that name it, the best first.
        fields: what is shown of it.
        own: the field with the SHA-256 of its code.
        codes: the field with the SHA-256 of the code that it comes from, or of several, which parents may hold.
    """

    what: str
    names: tuple[str, ...]
    fields: tuple[str, ...]
    own: str = "code_sha256"
    codes: str = "code_sha256"


@dataclass(frozen=True, slots=True)
class Folder:
    """A finished folder that is being verified. `jobs`: worker processes; None for all cores."""

    path: Path
    manifest: Manifest
    jobs: int | None = None


#: Writes again what follows from the rest of a folder, with the writer itself, into an empty folder. Returns: the facts
#: of the manifest that it knows, by field: counts, details and so on.
Derive = Callable[[Folder, Path], Json]
#: Checks something by other means than the writer. Raises: UserError or `CHECK_ERRORS` if values are inconsistent.
Law = Callable[[Folder], Check | list[Check]]


#: All checks of a folder; called with it, and with `jobs` by name.
Verifier = Callable[..., list[Check]]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of finished folder; `LAYOUTS` lists its files.

    Attributes:
        name: the kind, as manifests state it.
        command: the command that writes such a folder, for messages.
        tables: its Parquet tables by name; a table that a folder may lack is listed, too.
        default: the table that `datasets.load_dataset` opens without a name.
        tags: the tags of its dataset card.
        named: its tables whose rows are listed and found by name.
        derive: see `Derive`; None where nothing is derived.
        laws: what holds besides.
        items: its items, in the order of its tables; of a kind without one, the named rows.
        find: finds an item by name. Raises UserError with near names if there is none.
        find_code: finds the item whose code has this SHA-256.
        page: the content of its page; None for counts and files only.
    """

    name: str
    command: str
    tables: Configs = field(default_factory=dict)
    default: str = ""
    tags: tuple[str, ...] = ()
    disclosure: Disclosure = Disclosure()  # noqa: RUF009 (frozen)
    source_datasets: tuple[str, ...] = ("original",)
    named: Mapping[str, Named] = field(default_factory=dict)
    derive: Derive | None = None
    laws: tuple[Law, ...] = ()
    items: Callable[[Path], Iterator[ListedItem]] | None = None
    find: Callable[[Path, str], FoundItem] | None = None
    find_code: Callable[[Path, str], FoundItem | None] | None = None
    page: Callable[[Path, Manifest], Page] | None = None

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

    def list_items(self, folder: Path) -> Iterator[ListedItem]:
        """Yield its items."""
        if self.items is not None:
            yield from self.items(folder)
            return
        for named, row in self._named_rows(folder):
            facts = {name: getattr(row, name) for name in named.fields}
            yield ListedItem(tuple(getattr(row, name) for name in named.names), facts)

    def find_item(self, folder: Path, wanted: str) -> FoundItem:
        """Find an item by name. Raises: UserError, with near names, if there is none."""
        if self.find is not None:
            return self.find(folder, wanted)
        rows = [(named, row, [getattr(row, name) for name in named.names]) for named, row in self._named_rows(folder)]
        if not (found := [(named, row) for named, row, names in rows if wanted in names]):
            every = sorted({name for *_, names in rows for name in names})
            raise missing_name(f"{wanted}: nothing in {folder} has that name", wanted, every)
        return _show_rows(found)

    def find_code_item(self, folder: Path, sha256: str) -> FoundItem | None:
        """Find the item whose code has this SHA-256; None if there is none."""
        if self.find_code is not None:
            return self.find_code(folder, sha256)
        found = [(named, row) for named, row in self._named_rows(folder) if getattr(row, named.own) == sha256]
        return _show_rows(found) if found else None

    def _named_rows(self, folder: Path) -> Iterator[tuple[Named, records.Record]]:
        for table, named in self.named.items():
            columns = tuple(dict.fromkeys((*named.names, *named.fields, named.codes, named.own)))
            yield from ((named, row) for row in read_rows(self.files(folder, table), self.tables[table][0], columns))

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
        disclosure = card.disclosure or self.disclosure
        if any(table.config == "chat" for table in tables):  # its texts are built by templates
            disclosure = replace(disclosure, synthetic=True)
        tool = package_versions()["lemur-curator"]
        tags = ("neural-architecture", *self.tags, *(("lemur",) if card.lemur else ()))
        yaml = card_yaml(
            tables,
            default=default or self.default,
            pretty_name=card.name,
            tags=[*tags, *((f"arxiv:{PAPER}",) if card.lemur else ())],
            size=card.size,
            licenses=card.licenses,
            source_datasets=self.source_datasets,
        )
        citation = ["", "## Citation", "", "```bibtex", cite(card.name, tool), "```"] if card.lemur else []
        lines = [f"{yaml}\n# {plain(card.name)}", "", plain(card.description), *usage_lines(tables)]
        lines += ["", card.text.strip(), *disclosure.lines(), *column_lines(tables), *citation]
        write_text(folder / "README.md", "\n".join(lines) + "\n")
        origin = DataOrigin(self.command, tool, card.sources, tags, disclosure, cites=bool(card.lemur))
        name, description = make_visible(card.name), make_visible(card.description)
        write_croissant(folder, tables, name, description, card.lemur, card.licenses, origin)


def _show_rows(rows: Sequence[tuple[Named, records.Record]]) -> FoundItem:
    links, codes = [], dict[str, None]()
    for named, row in rows:
        facts = {name: getattr(row, name) for name in named.fields}
        links.append(FolderLink(named.what, getattr(row, named.names[0]), facts))
        about = getattr(row, named.codes)
        codes |= dict.fromkeys([about] if isinstance(about, str) else about)
    return FoundItem(tuple(links), tuple(codes))


@dataclass(frozen=True, slots=True)
class Card:
    """The content of a dataset card.

    Attributes:
        name: title of the card, and name for catalogs.
        description: one or two sentences, also for catalogs.
        licenses: SPDX expressions of the contents.
        size: number of rows of the default table.
        text: more Markdown, below how the tables are opened.
        sources: name and address of each source.
        lemur: the release of LEMUR that the data are of; empty for any other data, which are not those of its paper.
        disclosure: what this run did; that of the kind by default.
    """

    name: str
    description: str
    licenses: Sequence[str]
    size: int
    text: str
    sources: Sequence[tuple[str, str]] = ()
    lemur: str = ""
    disclosure: Disclosure | None = None


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

_LISTED = ("id", "split", "family", "task", "dataset", "best_accuracy", "score")
SNAPSHOT = Kind(
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
    tags=("pytorch", "code", "deduplicated"),
    disclosure=SNAPSHOT_DISCLOSURE,
    source_datasets=("extended",),
    named={
        "records": Named("record", ("nn", "id"), _LISTED, own="id", codes="id"),
    },
)

EXTRACTION = Kind(
    name="extraction",
    command="lemur extract",
    tables={
        "blocks": (records.Block, {"train": TABLE}),
        "specs": (records.SpecRow, files_by_split("data/specs")),
        "chat": (records.SpecChatRow, _CHAT),
        "chat_drops": (records.SpecChatDrop, _CHAT_DROPS),
    },
    default="blocks",
    tags=("pytorch", "code"),
    disclosure=EXTRACTION_DISCLOSURE,
    named={
        "blocks": Named("block", ("block", "qualname", "name"), ("level", "category", "n_lines", "license")),
    },
)


def manifest_link(folder: Path, manifest: Manifest, depth: int = 0) -> FolderLink:
    """Return the manifest of a folder as a link of a chain.

    Args: folder, manifest: the folder, and its manifest as read. depth: how many parent folders the chain has passed.
    Returns: a link with kind, SHA-256 of the file, and versions.
    """
    facts = {"kind": manifest.kind, "sha256": sha256_file(folder / FILE_NAME), "versions": manifest.versions}
    return FolderLink("manifest", str(folder / FILE_NAME), facts, depth)


def describe_inlined(block: Inlined, file: str = "") -> Json:
    """Return the facts of a block in a network's file. `file`: its name and a comma, to stand before the line."""
    return {
        "slot": f"{block.slot} ({file}from line {block.line} on)",
        "source": f"{block.block.partition('::')[0]} {block.path}",
        "lines": lines_text(*block.lines),
        "swhid": block.swhid,
        "license": block.license,
        "code": block.code_sha256,
    }


def list_fields(row: records.Record, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each of these fields that has one, as `show` and the pages print them."""
    for name in names:
        if (value := getattr(row, name)) not in (None, "", ()):
            yes = {True: "yes", False: "no"}.get(value) if isinstance(value, bool) else None
            yield name.replace("_", " "), yes or (f"{value:.4g}" if isinstance(value, float) else _text(value))


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


def verify_folder(
    kind: Kind, path: Path, *, jobs: int | None = None, further: Callable[[], list[Check]] | None = None
) -> list[Check]:
    """Return all checks of a folder, in a fixed order.

    Args: jobs: worker processes; all cores by default. further: checks to run if all others pass.
    Raises: UserError if it has no manifest.
    """
    manifest = read_unchecked_manifest(path)
    checks = [check_files(path, manifest)]
    if fault := find_stated_fault(manifest):
        return [*checks, Check("manifest", ok=False, detail=f"cannot be checked: {fault}")]
    folder = Folder(path, check_stated(path, manifest), jobs)
    checks += kind.check_tables(path, [name for name in kind.tables if kind.files(path, name)])
    if not all(check.ok for check in checks[1:]):
        return [*checks, Check(kind.name, ok=False, detail="not checked further: its tables cannot be trusted")]
    if (path / CROISSANT).is_file():
        checks += run_checks("card", lambda: _check_card(kind, path))
    if kind.derive is not None:
        checks += run_checks("derived", lambda: _check_derived(kind, folder))
    for law in kind.laws:
        checks += run_checks(kind.name, lambda law=law: law(folder))  # type: ignore[misc]
    # A page of wrong tables differs, too: that would report one fault twice.
    if kind.page is not None and (path / INDEX).is_file() and all(check.ok for check in checks):
        checks += run_checks("page", lambda: _check_page(kind, path, manifest))
    if further is not None and all(check.ok for check in checks):
        checks += further()
    return checks


def _check_card(kind: Kind, folder: Path) -> Check:
    files = [path for table in kind.tables for path in kind.files(folder, table)]
    rows = {path.relative_to(folder).as_posix(): pq.read_metadata(path).num_rows for path in files}
    tables = select_tables(kind.tables, rows)
    names = [table.config for table in tables]
    return check_description(folder, tables, kind.default if kind.default in names else names[0])


def _check_derived(kind: Kind, folder: Folder) -> Check:
    assert kind.derive is not None
    with scratch_folder("verify") as made:
        return check_derived(folder.path, folder.manifest, made, kind.derive(folder, made))


def _check_page(kind: Kind, folder: Path, manifest: Manifest) -> Check:
    assert kind.page is not None
    wrong = [] if has_page(folder, kind.page(folder, manifest)) else [f"{INDEX} or {SHARDS} shows something else"]
    return check_faults("page", wrong, "shows what is in the tables")
