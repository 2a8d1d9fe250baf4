"""The kinds of finished folders: a folder is its tables; all that people see of it is a loop over its kind.

Which tables and files each kind has is declared here, once. What only the package that writes a folder can do with it
is added there: each lists its kinds as `KINDS`, and `lemur` combines them.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lemur_core.files import Json
from lemur_core.files.atomic import PAGE, scratch_folder, sha256_file, write_text
from lemur_core.files.errors import DamagedError, UserError, missing_name
from lemur_core.files.markdown import article, make_visible, plural
from lemur_core.files.progress import show_item
from manifests import provenance, records
from manifests.folders.cards import CARD, Card, card_text, croissant_text
from manifests.folders.frame import (
    Page,
    foreign_page_files,
    has_page,
    list_page_files,
    value_text,
    write_page,
    write_report,
)
from manifests.folders.manifest import (
    DATA,
    FILE_NAME,
    INDEX,
    SHARDS,
    Manifest,
    Output,
    Stopwatch,
    count_rows,
    list_outputs,
    package_versions,
    read_manifest,
    write_manifest,
)
from manifests.folders.tables import (
    CHAT,
    CHAT_DROPS,
    CHECK_ERRORS,
    CROISSANT,
    READ_ERRORS,
    Named,
    R,
    Table,
    describe,
    read_rows,
    reading,
    select_tables,
)

_LABEL, _FACT = 11, 13  # columns
_SHOWN = 60  # characters of a value
_CELLS = 3  # of a column


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `lemur verify`. Args: ok: no fault was found. done: False if it could not be made here."""

    name: str
    ok: bool
    detail: str
    done: bool = True


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
        stated = [(key, value_text(value)) for key, value in self.facts.items() if value not in (None, "", [], {})]
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


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of finished folder.

    Attributes:
        name: the kind, as manifests state it.
        command: the command that writes such a folder, for messages.
        tables: its Parquet tables, also those that a folder may lack; `datasets.load_dataset` opens the first one that
            has rows.
        further_files: patterns of its other files, besides report, card, manifest and page.
        tags: the tags of its dataset card.
        source_datasets: `original` or `extended`, as the Hub names where data come from.
        derive: see `Derive`; None where nothing is derived.
        laws: what holds besides.
        items: its items, in the order of its tables; of a kind without one, the named rows.
        find: finds an item by name. Raises UserError with near names if there is none.
        find_code: finds the item whose code has this SHA-256.
        overview: title, lead and views of `report.md` and of the top of its page; None for one without a report.
        ending: Markdown at the end of the report.
        card: the content of its dataset card; None for one without a card.
        page: the content of its page; None for counts and files only.
    """

    name: str
    command: str
    tables: tuple[Table, ...] = ()
    further_files: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    source_datasets: tuple[str, ...] = ("original",)
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
        manifest = read_manifest(folder)
        if manifest.kind != self.name:
            kinds = f"{article(manifest.kind)}, not {article(self.name)}"
            raise UserError(f"{folder}: holds {kinds}; give the folder that `{self.command}` wrote")
        return manifest

    def reading(self, folder: Path) -> AbstractContextManager[None]:
        """Return a context manager that reports what is damaged in a folder of this kind. Raises: UserError."""
        return reading(folder, self.name)

    def files(self, folder: Path, table: str) -> list[Path]:
        """Return the files of a table, sorted by name; none if the folder does not have it."""
        return sorted(next(item for item in self.tables if item.name == table).paths(folder))

    def rows(
        self, folder: Path, record: type[R], columns: Sequence[str] = (), *, ids: Collection[str] | None = None
    ) -> Iterator[R]:
        """Yield the rows of the table of a record type; see `read_rows`."""
        table = next(item for item in self.tables if item.record is record)
        return read_rows(sorted(table.paths(folder)), record, columns, ids=ids)

    def list_items(self, folder: Path) -> Iterator[ListedItem]:
        """Yield its items, also those that are not listed."""
        if self.items is not None:
            yield from self.items(folder)
            return
        for table in self.tables:
            if (named := table.named) is not None:
                columns = tuple(dict.fromkeys((*named.names, *named.fields, named.origin or named.own, named.own)))
                for row in read_rows(sorted(table.paths(folder)), table.record, columns):
                    yield _make_item(named, row)

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

    def write_face(self, folder: Path, manifest: Manifest, target: Path) -> None:
        """Write what follows from the tables and the manifest alone: report, dataset card, description for catalogs."""
        if self.overview is not None:
            notes = manifest.details.get("notes") or ()
            write_report(target, self.overview(folder, manifest), notes, self.ending)
        if self.card is None:
            return
        paths = [path for table in self.tables for path in table.paths(folder)]
        rows = {path.relative_to(folder).as_posix(): count_rows(path) for path in paths}
        tables, card = select_tables(self.tables, rows), self.card(folder, manifest)
        if any(table.name == "chat" for table in tables):  # its texts are built by templates
            card = replace(card, disclosure=replace(card.disclosure, synthetic=True))
        about: Json = {
            "tool": manifest.versions["lemur-curator"],
            "tags": ("neural-architecture", *self.tags, *(("lemur",) if card.lemur else ())),
        }
        size = sum(rows[path.relative_to(folder).as_posix()] for table in tables[:1] for path in table.paths(folder))
        text = card_text(card, tables, size=size, source_datasets=self.source_datasets, **about)
        write_text(target / CARD, text)
        write_text(target / CROISSANT, croissant_text(folder, card, tables, command=self.command, **about))

    def finish(
        self,
        folder: Path,
        watch: Stopwatch,
        *,
        versions: Mapping[str, str] = {},
        page: bool = True,
        **stated: Any,
    ) -> Manifest:
        """Write report, card and page of a folder whose tables are in place, and its manifest as the last file.

        An existing manifest that differs only in measured values is kept.

        Args:
            versions: of further packages.
            page: write its page, too.
            stated: the other fields of the manifest.
        Returns: the manifest.
        """
        empty: Json = {"parameters": {}, "inputs": [], "counts": {}, "details": {}, "outputs": []}
        every = package_versions() | dict(versions)
        manifest = Manifest(kind=self.name, versions=every, **empty | stated, measured=watch.measure())
        self.write_face(folder, manifest, folder)
        manifest = manifest.model_copy(update={"outputs": list_outputs(folder)})
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


def _make_item(named: Named, row: records.Record) -> ListedItem:
    """Return a row of a table as an item."""
    names = tuple(getattr(row, name) for name in named.names)
    facts = {name: getattr(row, name) for name in named.fields}
    found = FoundItem((FolderLink(named.what, names[0], facts),), (getattr(row, named.origin or named.own),))
    return ListedItem(names, facts, (getattr(row, named.own),), lambda: found)


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


# --- all kinds of folder: what only the package that writes one can do with it is added there -------------------------


def _split(folder: str, *splits: str) -> dict[str, str]:
    """Return a pattern by split of the files of a table in a folder."""
    return {split: f"{folder}/{split}-*.parquet" for split in splits or records.SPLITS}


def _whole(path: str) -> dict[str, str]:
    """Return the file of a table that nobody trains on as it is; `datasets` reserves the word all."""
    return {"full": path}


def _list_chat(row: type[records.Record], drop: type[records.Record]) -> tuple[Table, Table]:
    return Table("chat", row, _split(CHAT)), Table("chat_drops", drop, _whole(CHAT_DROPS))


_LISTED = ("id", "split", "family", "task", "dataset", "best_accuracy", "score")
_WRITTEN = ("id", "model", "attempt", "round", "block", "license")
_EXPORTED = ("license", "code_sha256")

SNAPSHOT = Kind(
    "snapshot",
    "lemur curate",
    (
        Table(
            "records",
            records.LemurRecord,
            _split("data/records"),
            Named("record", ("nn", "id"), _LISTED, own="id"),
        ),
        Table("networks", records.NetworkRow, _whole("networks.parquet")),
        Table("stats", records.Stat, _split("data/stats", "train")),
        Table("decisions", records.Decision, _whole("decisions.parquet")),
        Table("graphs", records.GraphRow, _whole("graphs.parquet")),
        *_list_chat(records.ChatRow, records.ChatDrop),
    ),
    tags=("pytorch", "code", "deduplicated"),
    source_datasets=("extended",),
)
EXTRACTION = Kind(
    "extraction",
    "lemur extract",
    (
        Table(
            "blocks",
            records.Block,
            {"train": provenance.TABLE},
            Named("block", ("block", "qualname", "name"), ("level", "category", "n_lines", "license")),
        ),
        Table("specs", records.SpecRow, _split("data/specs")),
        *_list_chat(records.SpecChatRow, records.SpecChatDrop),
    ),
    (provenance.SPECS, provenance.REQUIREMENTS, provenance.NAMES, "blocks/*/*.py", "lean/*/*.py"),
    tags=("pytorch", "code"),
)
EXPORT = Kind(
    "export",
    "lemur export",
    (
        Table(
            "problems",
            records.KernelProblem,
            _split("data/problems", "test"),
            Named("problem", ("name", "block"), ("block", "cases", "hackable", *_EXPORTED)),
        ),
        Table(
            "prompt_completion",
            records.PromptCompletion,
            _split("data/prompt_completion"),
            Named("conversation", ("id",), ("task", *_EXPORTED)),
        ),
    ),
    ("level1/*.py",),
    tags=("pytorch", "code"),
    source_datasets=("extended",),
)
SYNTHESIS = Kind(
    "synthesis",
    "lemur synthesize",
    (
        Table(
            "networks",
            records.Synthesized,
            _split("data/records", "train"),
            Named("network", ("nn", "id"), _WRITTEN, own="id", origin="block_code"),
        ),
        Table("attempts", records.SynthesisAttempt, _whole("attempts.parquet")),
    ),
    ("nets/*.py",),
    tags=("pytorch", "code", "synthetic"),
)
#: `lemur/` is what is copied into a checkout of LEMUR.
_OF_RUN = (
    *("net.py", "record.json", "history.jsonl", "weights.pt"),
    *("lemur/ab/nn/nn/*.py", "lemur/ab/nn/stat/train/*/*.json"),
)
RUN = Kind("run", "lemur train run", further_files=_OF_RUN)
ABLATION = Kind(
    "ablation",
    "lemur train ablate",
    further_files=(
        *("plan.json", "records.jsonl", "ablation.md"),
        *(f"runs/*/{name}" for name in ("manifest.json", *_OF_RUN)),
    ),
)


def _list_all(name: str, what: str, record: type[records.Record]) -> tuple[Table]:
    """Return the only table of a folder of experts; of its rows everything is shown."""
    facts = tuple(field for field in record.model_fields if field != "id")
    return (Table(name, record, _whole(f"{name}.parquet"), Named(what, ("id", "block"), facts)),)


_EXPERTS = "lemur experts"
_MODEL = ("model/*.json", "model/*.safetensors", "model/*.txt", "model/*.model", "model/*.jinja")
#: All kinds by name.
DECLARED: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        *(SNAPSHOT, EXTRACTION, EXPORT, SYNTHESIS, RUN, ABLATION),
        Kind("experts-data", _EXPERTS, _list_all("facts", "fact", records.ExpertFact)),
        Kind("experts-expert", _EXPERTS, further_files=_MODEL),
        Kind("experts-codebook", _EXPERTS, further_files=("vectors.safetensors",)),
        Kind("experts-prototypes", _EXPERTS, further_files=("prototypes.safetensors",)),
        Kind("experts-evaluation", _EXPERTS, _list_all("answers", "answer", records.ExpertAnswer)),
    )
}

#: What any folder may have.
_FACE = (CARD, CROISSANT, "report.md")
#: What tools run because of its name, wherever it lies.
_RUN_BY_NAME = frozenset({"conftest.py", "setup.py", "sitecustomize.py", "usercustomize.py"})


def is_foreign(kind: str, name: str) -> bool:
    """Return whether folders of a kind do not have such a file.

    Args: name: its path in the folder; neither `manifest.json` nor of the page.
    """
    hidden = any(part.startswith(".") for part in name.split("/"))
    return hidden or name.rpartition("/")[2] in _RUN_BY_NAME or not _pattern(kind).fullmatch(name)


@cache
def _pattern(name: str) -> re.Pattern[str]:
    if name not in DECLARED:
        return DATA
    tables = (path for table in DECLARED[name].tables for path in table.files.values())
    forms = (re.escape(path).replace(r"\*", "[^/]+") for path in (*_FACE, *tables, *DECLARED[name].further_files))
    return re.compile("|".join(forms))


def manifest_link(folder: Path, manifest: Manifest, depth: int = 0) -> FolderLink:
    """Return the manifest of a folder as a link of a chain.

    Args: folder, manifest: the folder, and its manifest as read. depth: how many parent folders the chain has passed.
    Returns: a link with kind, SHA-256 of the file, and versions.
    """
    facts = {"kind": manifest.kind, "sha256": sha256_file(folder / FILE_NAME), "versions": manifest.versions}
    return FolderLink("manifest", str(folder / FILE_NAME), facts, depth)


def describe_inlined(block: provenance.Inlined, file: str = "") -> Json:
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
            yield name.replace("_", " "), yes or (f"{value:.4g}" if isinstance(value, float) else value_text(value))


def lines_text(first: int, last: int) -> str:
    """Return a range of lines as text.

    Args: first, last: line numbers from 1, both inclusive.
    Returns: `7` or `7-9`.
    """
    return str(first) if first == last else f"{first}-{last}"


def verify_folder(kind: Kind, path: Path, *, jobs: int | None = None) -> list[Check]:
    """Return all checks of a folder, in a fixed order.

    Args: jobs: worker processes; all cores by default.
    Raises: UserError if it has no valid manifest.
    """
    folder = Folder(path, read_manifest(path), jobs)
    checks = [check_files(path, folder.manifest)]
    checks += [check_table(paths, table.record) for table in kind.tables if (paths := table.paths(path))]
    if not all(check.ok for check in checks[1:]):
        return [*checks, Check(kind.name, ok=False, detail="not checked further: its tables cannot be trusted")]
    if kind.derive or kind.overview or kind.card:
        checks += run_checks("derived", partial(_check_derived, kind, folder))
    for law in kind.laws:
        checks += run_checks(kind.name, partial(law, folder))
    # A page of wrong tables differs, too: that would report one fault twice.
    if kind.page is not None and list_page_files(path) and all(check.ok for check in checks):
        checks += run_checks("page", partial(_check_page, kind, folder))
    return checks


def _check_page(kind: Kind, folder: Folder) -> Check:
    assert kind.page is not None
    same = has_page(folder.path, kind.page(folder.path, folder.manifest))
    wrong = [] if same else [f"{INDEX} or {SHARDS} shows something else"]
    return check_faults("page", wrong, "shows what is in the tables")


# --- checks of any folder: its files and digests, the columns and rows of tables, what is derived ---------------------


def check_files(folder: Path, manifest: Manifest) -> Check:
    """Check that every file has the digest stated in the manifest, that there are no others, nor links, nor any that
    folders of this kind do not have, and that a page has no script but ours.
    """
    show_item("digests")
    listed = {item.path: item for item in manifest.outputs}
    links = find_links(folder)
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {FILE_NAME}
    names = listed.keys() | {name for name in present if not PAGE.fullmatch(name)}
    faults = {name: _find_fault(folder, name, listed.get(name), manifest.kind) for name in sorted(names - set(links))}
    wrong = [f"{name} is a link" for name in links] + [f"{name} {fault}" for name, fault in faults.items() if fault]
    try:
        wrong += foreign_page_files(folder)
    except CHECK_ERRORS as error:
        wrong.append(f"{INDEX}: {describe(error)}")
    return check_faults("digests", wrong, f"{plural(len(listed), 'file')} as the manifest states")


def find_links(folder: Path) -> list[str]:
    """Return the links in a folder, to whatever: what they show may change, and is not in the folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink())


def _find_fault(folder: Path, name: str, stated: Output | None, kind: str) -> str | None:
    """Return in which way a file is not as the manifest states."""
    path = folder / name
    if not path.is_file():
        return "is missing"
    if stated is None:
        return "is not in the manifest"
    if is_foreign(kind, name):
        return "is no file of this kind of folder"
    try:
        if sha256_file(path) != stated.sha256:
            return "differs from its digest"
        if (size := path.stat().st_size) != stated.bytes:
            return f"has {size:,} bytes, {stated.bytes:,} are stated"
        rows = None if stated.rows is None else count_rows(path)
    except READ_ERRORS as error:
        return f"cannot be read: {describe(error, path)}"
    return f"has {rows:,} rows, {stated.rows:,} are stated" if rows != stated.rows else None


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


def check_table(files: Sequence[Path], record: type[records.Record]) -> Check:
    """Check the columns of the files of a table, and each row, against a record type; of a file the first fault."""
    show_item(name := f"schema {record.__name__}")
    rows, wrong = 0, []
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


def _check_derived(kind: Kind, folder: Folder) -> Check:
    """Compare what is made again, cell by cell, with the files and the manifest of a folder."""
    path, manifest = folder.path, folder.manifest
    wrong: list[str] = []
    with scratch_folder("verify") as made:
        stated: Mapping[str, Json] = {} if kind.derive is None else kind.derive(folder, made)
        for part, facts in stated.items():
            for key, value in json.loads(json.dumps(facts)).items():
                if (own := getattr(manifest, part).get(key)) != value:
                    texts = [json.dumps(item, ensure_ascii=False) for item in (value, own)]
                    wrong.append(f"manifest: {part}.{key} is {_find_difference(*texts)[1]}")
        if not wrong:  # the face says what the manifest states
            kind.write_face(path, manifest, made)
        names = sorted(item.relative_to(made).as_posix() for item in made.rglob("*") if item.is_file())
        for name in names:
            if not (path / name).is_file():
                wrong.append(f"{name} is missing")
            elif name.endswith(".parquet"):
                wrong += _compare_tables(name, made / name, path / name)
            elif (made / name).read_bytes() != (path / name).read_bytes():
                texts = [(place / name).read_bytes().decode("utf-8", "replace") for place in (made, path)]
                line, fault = _find_difference(*texts)
                wrong.append(f"{name}, line {line}: {fault}")
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
    return make_visible(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…") or "(nothing)"
