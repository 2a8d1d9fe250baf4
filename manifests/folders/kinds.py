"""The kinds of finished folders: a folder is its tables; all that people see of it is a loop over its kind.

Snapshots and extractions are here because every package reads them. What only the package that writes a folder can do
with it is added there: each lists its kinds as `KINDS`, and `lemur` combines them.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow.parquet as pq

from lemur_core.files import Json
from lemur_core.files.atomic import scratch_folder, sha256_file, write_text
from lemur_core.files.errors import DamagedError, UserError, missing_name
from lemur_core.files.foreign import check_plain
from lemur_core.files.markdown import article, make_visible, plural
from lemur_core.files.progress import show_item
from manifests import records
from manifests.folders.cards import (
    CARD,
    EXTRACTION_DISCLOSURE,
    HERE,
    SNAPSHOT_DISCLOSURE,
    Card,
    Disclosure,
    card_text,
    croissant_text,
)
from manifests.folders.frame import Page, foreign_page_files, has_page, write_page, write_report
from manifests.folders.manifest import (
    FILE_NAME,
    INDEX,
    PAGE_FILES,
    SHARDS,
    Manifest,
    Stopwatch,
    check_stated,
    find_stated_fault,
    foreign_files,
    is_of_page,
    list_outputs,
    package_versions,
    read_manifest,
    read_unchecked_manifest,
    write_manifest,
)
from manifests.folders.tables import (
    CHECK_ERRORS,
    CROISSANT,
    READ_ERRORS,
    Configs,
    R,
    describe,
    read_json,
    read_rows,
    reading,
    select_tables,
)
from manifests.provenance import TABLE, Inlined

_LABEL, _FACT = 11, 13  # columns
_SHOWN = 60  # characters of a value
_CELLS = 3  # of a column


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `lemur verify`."""

    name: str
    ok: bool
    detail: str


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
    """One item of a folder.

    Attributes:
        names: by which commands find it, best first.
        facts: what a list shows after the first name.
        codes: the SHA-256 of its own code, which a folder that was built from this one may state.
        show: returns what the folder knows about it; None where the kind finds items by itself.
        listed: False for one that is found, but not listed.
    """

    names: tuple[str, ...]
    facts: Json
    codes: tuple[str, ...] = ()
    show: Callable[[], FoundItem] | None = field(default=None, repr=False, compare=False)
    listed: bool = True


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

    def item(self, row: records.Record) -> ListedItem:
        """Return a row as an item."""
        names = tuple(getattr(row, name) for name in self.names)
        facts = {name: getattr(row, name) for name in self.fields}
        about = getattr(row, self.codes)
        found = FoundItem((FolderLink(self.what, names[0], facts),), (about,) if isinstance(about, str) else about)
        return ListedItem(names, facts, (getattr(row, self.own),), lambda: found)


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
        default: the table that `datasets.load_dataset` opens without a name, unless it has no rows.
        tags: the tags of its dataset card.
        named: its tables whose rows are listed and found by name.
        derive: see `Derive`; None where nothing is derived.
        laws: what holds besides.
        items: its items, in the order of its tables; of a kind without one, the named rows.
        find: finds an item by name. Raises UserError with near names if there is none.
        find_code: finds the item whose code has this SHA-256.
        overview: title, lead and views of `report.md` and of the top of its page; None for one without a report.
        ending: Markdown at the end of the report.
        card: the content of its dataset card; None for one without tables.
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
    overview: Callable[[Path, Manifest], Page] | None = None
    ending: str = ""
    card: Callable[[Path, Manifest], Card] | None = None
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
        """Yield its items, also those that are not listed."""
        if self.items is not None:
            yield from self.items(folder)
            return
        for table, named in self.named.items():
            columns = tuple(dict.fromkeys((*named.names, *named.fields, named.codes, named.own)))
            yield from map(named.item, read_rows(self.files(folder, table), self.tables[table][0], columns))

    def find_item(self, folder: Path, wanted: str) -> FoundItem:
        """Find an item by name. Raises: UserError, with near names, if there is none."""
        if self.find is not None:
            return self.find(folder, wanted)
        items = list(self.list_items(folder))
        if (found := _join(item for item in items if wanted in item.names)) is None:
            every = list(dict.fromkeys(name for item in items for name in item.names))
            raise missing_name(f"{wanted}: nothing in {folder} has that name", wanted, every)
        return found

    def find_code_item(self, folder: Path, sha256: str) -> FoundItem | None:
        """Find the item whose code has this SHA-256; None if there is none."""
        if self.find_code is not None:
            return self.find_code(folder, sha256)
        return _join(item for item in self.list_items(folder) if sha256 in item.codes)

    def check_tables(self, folder: Path, names: Sequence[str]) -> list[Check]:
        """Check the columns and rows of some tables against their record types."""
        checks = []
        for name in names:
            record, patterns = self.tables[name]
            path = PurePosixPath(next(iter(patterns.values())))
            # The files of all splits are in one folder: a stray file among them is read, and checked, too.
            checks.append(check_table(folder, str(path.with_name("*.parquet") if "*" in path.name else path), record))
        return checks

    def write_face(self, folder: Path, manifest: Manifest, target: Path) -> None:
        """Write what follows from the tables and the manifest alone: report, dataset card, description for catalogs."""
        if self.overview is not None:
            notes = manifest.details.get("notes") or ()
            write_report(target, self.overview(folder, manifest), notes, self.ending)
        if self.card is None:
            return
        files = [path for table in self.tables for path in self.files(folder, table)]
        rows = {path.relative_to(folder).as_posix(): pq.read_metadata(path).num_rows for path in files}
        tables, card = select_tables(self.tables, rows), self.card(folder, manifest)
        names = [item.config for item in tables]
        default = self.default if self.default in names or not names else names[0]
        disclosure = self.disclosure if card.disclosure == Disclosure() else card.disclosure
        if "chat" in names:  # its texts are built by templates
            disclosure = replace(disclosure, synthetic=True)
        card = replace(card, disclosure=disclosure)
        tool = manifest.versions["lemur-curator"]
        tags = ("neural-architecture", *self.tags, *(("lemur",) if card.lemur else ()))
        text = card_text(
            card,
            tables,
            default=default,
            size=sum(pq.read_metadata(path).num_rows for path in self.files(folder, default)),
            tags=tags,
            source_datasets=self.source_datasets,
            tool=tool,
            address=get_address(manifest),
        )
        write_text(target / CARD, text)
        write_text(target / CROISSANT, croissant_text(folder, card, tables, command=self.command, tags=tags, tool=tool))

    def finish(
        self,
        folder: Path,
        rows: Mapping[str, int],
        watch: Stopwatch,
        *,
        versions: Mapping[str, str] = {},
        page: bool = True,
        **stated: Any,
    ) -> Manifest:
        """Write report, card and page of a folder whose tables are in place, and its manifest as the last file.

        An existing manifest that differs only in measured values is kept.

        Args:
            rows: the number of rows of each table by path.
            versions: of further packages.
            page: write its page, too.
            stated: the other fields of the manifest.
        Returns: the manifest.
        """
        empty: Json = {"parameters": {}, "inputs": [], "counts": {}, "details": {}, "outputs": []}
        every = package_versions() | dict(versions)
        manifest = Manifest(kind=self.name, versions=every, **empty | stated, measured=watch.measure())
        self.write_face(folder, manifest, folder)
        manifest = manifest.model_copy(update={"outputs": list_outputs(folder, dict(rows))})
        if page and self.page is not None:
            write_page(folder, self.page(folder, manifest))
            watch.lap("page")
        if (folder / FILE_NAME).is_file():
            older = read_manifest(folder)
            if older == manifest.model_copy(update={"measured": older.measured}):
                return older
        manifest = manifest.model_copy(update={"measured": watch.measure()})
        write_manifest(folder, manifest)
        return manifest


def get_address(manifest: Manifest) -> str:
    """Return where the card of a folder says that it is."""
    return str(manifest.details.get("published", {}).get("repository", HERE))


def _join(items: Iterable[ListedItem]) -> FoundItem | None:
    """Return some items as one; None if there is none."""
    links: list[FolderLink] = []
    codes: dict[str, None] = {}
    for item in items:
        assert item.show is not None
        found = item.show()
        links += [link for link in found.links if link not in links]
        codes |= dict.fromkeys(found.codes)
    return FoundItem(tuple(links), tuple(codes)) if links else None


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


def verify_folder(kind: Kind, path: Path, *, jobs: int | None = None) -> list[Check]:
    """Return all checks of a folder, in a fixed order.

    Args: jobs: worker processes; all cores by default.
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
    if kind.derive or kind.overview or kind.card:
        checks += run_checks("derived", partial(_check_derived, kind, folder))
    for law in kind.laws:
        checks += run_checks(kind.name, partial(law, folder))
    # A page of wrong tables differs, too: that would report one fault twice.
    if kind.page is not None and (path / INDEX).is_file() and all(check.ok for check in checks):
        checks += run_checks("page", partial(_check_page, kind, folder))
    return checks


def _check_derived(kind: Kind, folder: Folder) -> Check:
    with scratch_folder("verify") as made:
        stated = {} if kind.derive is None else kind.derive(folder, made)
        kind.write_face(folder.path, folder.manifest, made)
        return check_derived(folder.path, folder.manifest, made, stated)


def _check_page(kind: Kind, folder: Folder) -> Check:
    assert kind.page is not None
    same = has_page(folder.path, kind.page(folder.path, folder.manifest))
    wrong = [] if same else [f"{INDEX} or {SHARDS} shows something else"]
    return check_faults("page", wrong, "shows what is in the tables")


# --- checks of any folder: its files and digests, the columns and rows of tables, what is derived ---------------------


def check_files(folder: Path, manifest: Manifest) -> Check:
    """Check that every file has the digest stated in the manifest, that there are no others, nor links, nor any that
    folders of this kind do not have. The files of the HTML page are checked against an index of their own.
    """
    show_item("digests")
    listed = {item.path: item for item in manifest.outputs}
    links = find_links(folder)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    files -= {FILE_NAME, *links}
    present = {name for name in files if not is_of_page(name)}
    wrong = [f"{name} is a link" for name in links]
    wrong += [f"{name} is missing" for name in sorted(listed.keys() - present - set(links))]
    wrong += [f"{name} is not in the manifest" for name in sorted(present - listed.keys())]
    wrong += foreign_files(manifest.kind, sorted(present & listed.keys()))
    wrong += [
        f"{name} differs from its digest"
        for name in sorted(listed.keys() & present)
        if sha256_file(folder / name) != listed[name].sha256
    ]
    wrong += [
        f"{name} has {(folder / name).stat().st_size:,} bytes, {item.bytes:,} are stated"
        for name, item in sorted(listed.items())
        if not wrong and (folder / name).stat().st_size != item.bytes
    ]
    wrong += list(_row_faults(folder, manifest, present))
    # A page is not in the manifest, since it can be made again at any time, by a later release.
    wrong += _page_faults(folder, files - present)
    return check_faults("digests", wrong, f"{plural(len(listed), 'file')} as the manifest states")


def find_links(folder: Path) -> list[str]:
    """Return the links in a folder, to whatever: what they show may change, and is not in the folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink())


def _row_faults(folder: Path, manifest: Manifest, present: set[str]) -> Iterator[str]:
    """Yield the files whose number of rows is not as stated."""
    for item in manifest.outputs:
        if item.rows is None or item.path not in present:
            continue
        try:
            path = folder / item.path
            check_plain(path)
            is_table = path.suffix == ".parquet"
            rows = pq.read_metadata(path).num_rows if is_table else path.read_bytes().count(b"\n")
        except READ_ERRORS as error:
            yield f"{item.path} cannot be read: {describe(error)}"
            continue
        if rows != item.rows:
            yield f"{item.path} has {rows:,} rows, {item.rows:,} are stated"


def _page_faults(folder: Path, present: set[str]) -> Iterator[str]:
    """Yield the differences between the files of a folder's page, if it has one, and their index."""
    if not present:
        return
    try:
        listed: dict[str, str] = dict(read_json(folder / PAGE_FILES))
    except CHECK_ERRORS:
        yield f"{PAGE_FILES} is missing or not readable"
        return
    for name in sorted(listed.keys() | (present - {PAGE_FILES})):
        if name not in present or name not in listed:
            yield f"{name} is {'missing' if name in listed else f'not in {PAGE_FILES}'}"
        elif sha256_file(folder / name) != listed[name]:
            yield f"{name} differs from its digest"
    try:
        yield from foreign_page_files(folder)
    except CHECK_ERRORS as error:
        yield f"{INDEX}: {describe(error)}"


def run_checks(name: str, make: Callable[[], Check | list[Check]]) -> list[Check]:
    """Run checks of a folder's contents.

    Returns: the checks; one failed check of this name instead if values in the folder are inconsistent.
    """
    show_item(name)
    try:
        checks = make()
    except DamagedError:  # the cache, not the folder
        raise
    except (UserError, *CHECK_ERRORS) as error:
        return [Check(name, ok=False, detail=f"cannot be checked: {describe(error)}")]
    return checks if isinstance(checks, list) else [checks]


def check_table(folder: Path, pattern: str, record: type[records.Record]) -> Check:
    """Check the columns of tables, and each row, against a record type.

    Args: pattern: a glob relative to the folder, such as `data/records/*.parquet`; no match is a fault.
    Returns: one check; it reports only the first fault of a file.
    """
    show_item(name := f"schema {record.__name__}")
    files, rows = sorted(folder.glob(pattern)), 0
    wrong = [] if files else [f"no file {pattern}"]
    for path in files:
        try:
            rows += sum(1 for _ in read_rows([path], record))
        except READ_ERRORS as error:
            wrong.append(describe(error).replace(str(path), path.name))
    return check_faults(name, wrong, f"{plural(rows, 'row')} in {plural(len(files), 'file')}")


def check_faults(name: str, wrong: list[str], passed: str) -> Check:
    """Return a check that fails with the first three faults, or passes if there are none.

    Args:
        wrong: all faults, each a short text without a full stop.
        passed: the detail if there are no faults.
    """
    if not wrong:
        return Check(name, ok=True, detail=passed)
    more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
    return Check(name, ok=False, detail="; ".join(wrong[:3]) + more)


# What follows from the rest of a folder, made again by its writer.


def check_derived(folder: Path, manifest: Manifest, made: Path, stated: Mapping[str, Mapping[str, Any]]) -> Check:
    """Compare what was made again, cell by cell, with the files and the manifest of a folder.

    Args: made: a folder with the files. stated: facts by field of the manifest, `counts` and `details`.
    """
    names = sorted(path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file())
    wrong: list[str] = []
    for name in names:
        if not (folder / name).is_file():
            wrong.append(f"{name} is missing")
        elif name.endswith(".parquet"):
            wrong += _compare_tables(name, made / name, folder / name)
        elif (made / name).read_bytes() != (folder / name).read_bytes():
            texts = [path.read_bytes().decode("utf-8", "replace") for path in (made / name, folder / name)]
            line, fault = _find_difference(*texts)
            wrong.append(f"{name}, line {line}: {fault}")
    for part, facts in stated.items():
        for key, value in json.loads(json.dumps(facts)).items():
            if (own := getattr(manifest, part).get(key)) != value:
                texts = [json.dumps(item, ensure_ascii=False) for item in (value, own)]
                wrong.append(f"manifest: {part}.{key} is {_find_difference(*texts)[1]}")
    made_again = f"{plural(len(names), 'file')} made again by the writer: no cell and no line differs"
    return check_faults("derived", wrong, made_again if names else "the counts are those of the tables")


def _compare_tables(name: str, made: Path, found: Path) -> Iterator[str]:
    """Yield the cells of a table that differ, at most three of a column."""
    with pq.ParquetFile(made) as one, pq.ParquetFile(found) as other:
        columns = [column for column in one.schema_arrow.names if column in other.schema_arrow.names]
        yield from (f"{name}: has no column {column}" for column in one.schema_arrow.names if column not in columns)
        if one.metadata.num_rows != other.metadata.num_rows:
            yield f"{name}: has {other.metadata.num_rows:,} rows, not {one.metadata.num_rows:,}"
            return
        for column in columns:  # one at a time: codes and graphs are large
            expected, stated = (file.read([column])[column] for file in (one, other))
            if expected.equals(stated):
                continue
            pairs = zip(expected.to_pylist(), stated.to_pylist(), strict=True)
            differing = [(row, own, other) for row, (own, other) in enumerate(pairs) if own != other]
            for row, should, found_value in differing[:_CELLS]:
                yield f"{name} row {row}: {column} is {_show(found_value)}, not {_show(should)}"


def _find_difference(made: str, found: str) -> tuple[int, str]:
    """Return the line where two texts differ, and what follows from a few characters before that place on."""
    at = next((at for at, (one, other) in enumerate(zip(made, found, strict=False)) if one != other), len(made))
    at = min(at, len(found))
    start = max(made.rfind("\n", 0, at) + 1, at - _SHOWN // 3)
    there, here = (text[start : start + 4 * _SHOWN].partition("\n")[0] for text in (found, made))
    return made.count("\n", 0, at) + 1, f"{_show(there)}, not {_show(here)}"


def _show(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return make_visible(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
