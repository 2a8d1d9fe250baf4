"""A finished snapshot or delta, with an index to look up the few records that are near new codes.

Everything that a comparison needs is indexed once, in the cache, after the digests of the whole folder have been
checked. The name of the index depends on the manifest's digest and the size, time and inode of each file, so a changed
snapshot never uses its old index. Later runs read only the records that are near their own codes.
"""

import hashlib
import itertools
import json
import shutil
import sqlite3
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curate.model.corpus import fill_store
from curate.model.features import FEATURES_VERSION, FeatureStore
from curate.model.options import LEAK_THRESHOLD, CurateOptions
from curate.published.outcome import DUPLICATE_STAGES, PublishedRecord
from lemur_core.files import Json
from lemur_core.files.atomic import atomic_folder, sha256_file
from lemur_core.files.cache import cache_folder, read_cached
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
from lemur_core.graphs.graph import FORM, TORCH
from lemur_core.similarity import Detail
from lemur_core.similarity.minhash import SCHEME
from lemur_core.similarity.stored import StoredIndex, write_index
from manifests.folders.checks import check_files
from manifests.folders.formats import SNAPSHOT
from manifests.folders.manifest import FILE_NAME, Manifest, Parent, describe_parent
from manifests.folders.tables import read_table
from manifests.records import Decision, GraphRow, LemurRecord

#: Part of the index's name; to be increased whenever its contents change.
_VERSION = 5

#: The columns read from the records; older snapshots may lack those of the graph.
_COLUMNS = ("id", "nn", "split", "cluster", "graph", "graph_widths", "behavior")
_REMOVED = ("id", "stage", "canonical", "similarity", "reason")
_DATABASE = "records.sqlite"  # of an index


class PublishedFolder:
    """The records and removals of one finished folder."""

    def __init__(self, folder: Path, manifest: Manifest, store: FeatureStore, jobs: int | None) -> None:
        self.folder, self.manifest, self.parent = folder, manifest, describe_parent(folder)
        self._store, self._jobs = store, jobs
        self._detail: Detail = manifest.parameters["tokens"]
        index_folder = _index_folder(folder, manifest, self.parent)
        if not (index_folder / "facts.json").exists():
            with SNAPSHOT.reading(folder):
                self._build_index(index_folder)
        self._index_folder = index_folder
        with read_cached(index_folder):
            # Nothing writes into a finished index.
            self._database = sqlite3.connect(f"{(index_folder / _DATABASE).as_uri()}?mode=ro&immutable=1", uri=True)
            weakref.finalize(self, self._database.close)
            self.index = StoredIndex(index_folder)
            facts = json.loads((index_folder / "facts.json").read_text(encoding="utf-8"))
            self.graphs: list[list[Any]] = facts["graphs"]

    @property
    def count(self) -> int:
        """The number of records."""
        (count,) = self._find_row("SELECT COUNT(*) FROM records") or (0,)
        return int(count)

    def _find_row(self, query: str, *values: str | int) -> tuple[Any, ...] | None:
        with read_cached(self._index_folder):
            row: tuple[Any, ...] | None = self._database.execute(query, values).fetchone()
        return row

    def record(self, number: int) -> PublishedRecord:
        """Return a record by its number in the index."""
        record = self.find("number", number)
        assert record is not None
        return record

    def find(self, column: str, value: str | int) -> PublishedRecord | None:
        """Return the first record by id with this `id`, `graph`, `graph_widths` or `behavior`, if any."""
        query = f"SELECT {', '.join(_COLUMNS)} FROM records WHERE {column} = ? ORDER BY number LIMIT 1"
        values = self._find_row(query, value)
        return None if values is None else PublishedRecord(self.parent.name, *values)

    def removal(self, id_: str) -> Json | None:
        """Return the decision that removed a code as a duplicate or a leak; None if there is none."""
        query = f"SELECT {', '.join(_REMOVED)} FROM removed WHERE id = ?"
        values = self._find_row(query, id_)
        return None if values is None else dict(zip(_REMOVED, values, strict=True))

    def shingles(self, id_: str) -> npt.NDArray[np.uint64]:
        """Return the shingles of a record."""
        self.ensure_features([id_])
        return self._store.shingles(bytes.fromhex(id_))

    def ensure_features(self, ids: Sequence[str]) -> None:
        """Ensure that the features of these records are in the store; compute the missing ones from their codes."""
        missing = {id_ for id_ in ids if bytes.fromhex(id_) not in self._store}
        if missing:
            fill_store(self._store, _iter_codes(self.folder, missing), self._detail, self._jobs)

    def _build_index(self, index_folder: Path) -> None:
        check = check_files(self.folder, self.manifest)
        if not check.ok:
            raise UserError(f"{self.folder}: differs from its {FILE_NAME}: {check.detail}; give it as it was published")
        note(f"{self.folder}: building its index, once")
        records = read_table(SNAPSHOT.files(self.folder, "records"), LemurRecord, _COLUMNS).sort_by("id")
        ids: list[str] = records.column("id").to_pylist()
        decisions = read_table([self.folder / "decisions.parquet"], Decision, ["id", "kept"])
        if ids != (kept := sorted(decisions.filter(decisions["kept"])["id"].to_pylist())):
            raise UserError(
                f"{self.folder}: holds {len(ids):,} records, but its decisions keep {len(kept):,}, not the same; run"
                " `lemur verify` on it, and give it as it was published"
            )
        self.ensure_features(ids)
        parameters = self.manifest.parameters
        features = self._store.table([bytes.fromhex(id_) for id_ in ids])
        removed = _removals(self.folder, set(ids))
        with atomic_folder(index_folder, force=True) as part:
            lowest = min(LEAK_THRESHOLD, parameters["lexical_threshold"])
            write_index(part, features, lowest, parameters["structural_threshold"])
            with closing(sqlite3.connect(part / _DATABASE)) as database, database:
                _store(database, "records", records, ("id", "graph", "graph_widths", "behavior"))
                _store(database, "removed", removed, ("id",))
            # The torch releases and formats of its graphs.
            table = read_table(SNAPSHOT.files(self.folder, "graphs"), GraphRow, ["graph", "torch", "form"])
            forms = {(row["torch"], row["form"]) for row in table.to_pylist() if row["graph"] is not None}
            facts = {"graphs": sorted(forms, key=str), "folder": str(self.folder.resolve())}
            (part / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
        _sweep(index_folder, facts["folder"])


def _store(database: sqlite3.Connection, name: str, table: pa.Table, keys: Sequence[str]) -> None:
    """Write a table with its rows numbered from 0, to be searched by these columns."""
    columns = table.column_names
    database.execute(f"CREATE TABLE {name} (number INTEGER PRIMARY KEY, {', '.join(columns)})")
    numbers = itertools.count()
    rows = ((next(numbers), *row.values()) for batch in table.to_batches() for row in batch.to_pylist())
    database.executemany(f"INSERT INTO {name} VALUES (?{', ?' * len(columns)})", rows)
    for key in keys:
        database.execute(f"CREATE INDEX {name}_{key} ON {name} ({key})")


def open_published(
    folders: Sequence[Path], options: CurateOptions, store: FeatureStore, jobs: int | None
) -> list[PublishedFolder]:
    """Open the folders that a delta extends, sorted by the digests of their manifests.

    Raises: UserError if one is not a snapshot, was created with other rules, has changed since, or extends a folder
        that is not among them.
    """
    manifests = check_parents(folders)
    own_parameters = asdict(options) | {"structural_threshold": options.structural, "graph": options.graphs}
    for folder, manifest in manifests.items():
        check_rules(folder, manifest, own_parameters)
    published_folders = [PublishedFolder(folder, manifest, store, jobs) for folder, manifest in manifests.items()]
    for published in published_folders:
        if options.graphs != "off" and any(form != [TORCH, FORM] for form in published.graphs):
            torch, form = next(form for form in published.graphs if form != [TORCH, FORM])
            raise UserError(
                f"{published.folder}: its graphs are form {form} of torch {torch}, here is form {FORM} of torch"
                f" {TORCH}; use that torch, or create the snapshot again"
            )
    return sorted(published_folders, key=lambda published: published.parent.sha256)


def check_parents(folders: Sequence[Path]) -> dict[Path, Manifest]:
    """Return the manifests of folders that a delta may extend.

    Raises: UserError if one is not a snapshot, is named twice, or is a delta whose parents are missing.
    """
    manifests: dict[Path, Manifest] = {}
    digests: dict[str, Path] = {}
    for folder in folders:
        manifest = SNAPSHOT.open(folder)
        digest = sha256_file(folder / FILE_NAME)
        if digest in digests:
            raise UserError(f"{folder}: is the same snapshot as {digests[digest]}; name it once")
        manifests[folder], digests[digest] = manifest, folder
    for folder, manifest in manifests.items():
        for parent in list_parents(manifest):
            if parent.sha256 not in digests:
                raise UserError(
                    f"{folder}: is a delta against {parent.name} (manifest {parent.sha256[:12]}), which is missing;"
                    f" add --against with that folder"
                )
    return manifests


def find_siblings(manifests: Mapping[Path, Manifest]) -> list[tuple[Path, Path]]:
    """Return the pairs of deltas that extend a common folder, but not each other."""
    extended = {folder: {parent.sha256 for parent in list_parents(own)} for folder, own in manifests.items()}
    digests = {folder: sha256_file(folder / FILE_NAME) for folder in manifests}
    return [
        (one, other)
        for one, other in itertools.combinations(manifests, 2)
        if extended[one] & extended[other]
        if digests[one] not in extended[other] and digests[other] not in extended[one]
    ]


def list_parents(manifest: Manifest) -> list[Parent]:
    """Return the folders that a delta extends; empty for a whole snapshot."""
    digests = manifest.parameters.get("against", [])
    by_digest = {parent.sha256: parent for parent in manifest.parents}
    return [by_digest[digest] for digest in digests if digest in by_digest]


def find_parents(
    folder: Path,
    manifest: Manifest,
    provided: Sequence[Path] = (),
    *,
    among: Sequence[Path] = (),
    partial: bool = False,
) -> list[Path]:
    """Return the folders that a delta extends: those provided, or the folders next to it with their names.

    Args: provided: paths that must all be parents. among: further candidates. partial: leave out missing parents.
    Raises: UserError if a parent is missing, or a path of `provided` is not a parent.
    """
    parents = list_parents(manifest)
    siblings = [folder.resolve().parent / parent.name for parent in parents]
    by_digest = {
        sha256_file(path / FILE_NAME): path for path in (*siblings, *among, *provided) if (path / FILE_NAME).is_file()
    }
    wanted = {parent.sha256 for parent in parents}
    for path in provided:
        if not (path / FILE_NAME).is_file():
            raise UserError(f"{path}: no {FILE_NAME}; give a snapshot that {folder} extends")
        if sha256_file(path / FILE_NAME) not in wanted:
            names = ", ".join(f"{parent.name} ({parent.sha256[:12]})" for parent in parents)
            raise UserError(f"{path}: {folder} does not extend it; it extends {names or 'nothing: it is not a delta'}")
    for parent in parents:
        if parent.sha256 not in by_digest and not partial:
            raise UserError(
                f"{folder}: is a delta against {parent.name} (manifest {parent.sha256[:12]}), which is not next to it;"
                " name that folder with --against"
            )
    return [by_digest[parent.sha256] for parent in parents if parent.sha256 in by_digest]


def check_rules(folder: Path, manifest: Manifest, requested: Json, by: str = "this run") -> None:
    """Raise UserError unless a folder was decided by the same rules, without which the guarantees would not hold.

    Args: requested: the manifest parameters of the run that appends to the folder. by: its name, for the message.
    """
    for name in ("profile", "lexical_threshold", "structural_threshold", "tokens", "graph"):
        stated, own = manifest.parameters[name], requested[name]
        if stated != own and not (name == "graph" and _graph_rule(stated) == _graph_rule(own)):
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{folder}: was created with {flag} {stated}, {by} has {own}; use the same to append to it")


def _graph_rule(graph: str) -> str:
    return "survivors" if graph == "all" else graph


def _index_folder(folder: Path, manifest: Manifest, parent: Parent) -> Path:
    files = [folder / item.path for item in manifest.outputs]
    try:
        # These show, without reading it, that a file was replaced or edited.
        states = [(item.st_size, item.st_mtime_ns, item.st_ino) for item in (path.stat() for path in files)]
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}; give {folder} as it was published") from error
    key_parts = (_VERSION, FEATURES_VERSION, SCHEME, LEAK_THRESHOLD, parent.sha256, str(folder.resolve()), states)
    return cache_folder("published") / hashlib.sha256(repr(key_parts).encode()).hexdigest()[:32]


def _sweep(newest: Path, folder: object) -> None:
    """Remove outdated indexes: older ones of this folder, and those of folders that no longer exist."""
    for facts in newest.parent.glob("*/facts.json"):
        try:
            owner = json.loads(facts.read_text(encoding="utf-8")).get("folder")
        except (OSError, ValueError, AttributeError):  # damaged
            owner = None
        if facts.parent != newest and (owner in (None, folder) or not Path(owner).exists()):
            shutil.rmtree(facts.parent, ignore_errors=True)


def _removals(folder: Path, kept: set[str]) -> pa.Table:
    """Return the first decision of each code that was removed as a duplicate or a leak, by id."""
    rows = read_table([folder / "decisions.parquet"], Decision, _REMOVED)
    decisions: dict[str, Json] = {}
    for batch in rows.to_batches():
        for row in batch.to_pylist():
            if row["stage"] in (*DUPLICATE_STAGES, "leak") and row["id"] not in kept and row["id"] != row["canonical"]:
                decisions.setdefault(row["id"], row)
    return pa.Table.from_pylist([decisions[id_] for id_ in sorted(decisions)], schema=rows.schema)


def _iter_codes(folder: Path, ids: set[str]) -> Iterator[tuple[bytes, str]]:
    for row in SNAPSHOT.rows(folder, LemurRecord, ("id", "nn_code"), ids=ids):
        if not row.nn_code:
            raise UserError(f"{folder}: is a copy without the codes that were not published; give the original")
        yield bytes.fromhex(row.id), row.nn_code
