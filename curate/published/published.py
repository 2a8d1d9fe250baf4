"""What is published already: one finished snapshot or delta, read for the few records that are near to new codes.

What comparison needs is put into an index once, in the cache, when the digests of the whole folder have been checked:
it is named by the manifest's digest and by what the file system says of the files, so that a changed snapshot is never
read by its old index. After that a run reads what its own codes are near to.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from curate.model.corpus import fill_store
from curate.model.features import FEATURES_VERSION, FeatureStore
from curate.model.options import LEAK_THRESHOLD, CurateOptions
from curate.published.delta_check import record_files
from curate.published.outcome import DUPLICATE_STAGES, Published
from lemur_core.files.atomic import atomic_folder, sha256_file
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import article
from lemur_core.files.progress import note
from lemur_core.graphs.graph import FORM, TORCH
from lemur_core.similarity.features.minhash import SCHEME
from lemur_core.similarity.features.tokens import Detail
from lemur_core.similarity.stored import StoredIndex, write_index
from manifests.folders.checks import check_files
from manifests.folders.manifest import FILE_NAME, Manifest, Parent, parent_of, read_manifest

#: Part of the index's name; raised whenever what lies in it changes.
_VERSION = 2

#: What is read of the records; older snapshots may lack those of the graph.
_COLUMNS = ("id", "nn", "split", "cluster", "graph", "graph_widths")
_REMOVED = ("id", "stage", "canonical", "similarity", "reason")
_LOOKUPS = ("graph", "graph_widths")


class PublishedFolder:
    """The records of one finished folder, and what it has removed."""

    def __init__(self, folder: Path, manifest: Manifest, store: FeatureStore, jobs: int | None) -> None:
        self.folder, self.manifest, self.parent = folder, manifest, parent_of(folder)
        self._store, self._jobs = store, jobs
        self._detail: Detail = manifest.parameters["tokens"]
        place = _index_place(folder, manifest, self.parent)
        if not (place / "facts.json").exists():
            self._make_index(place)
        self._records, self._removed = (_mapped(place / f"{name}.arrow") for name in ("records", "removed"))
        self._keys = {name: _Keys.load(place, name) for name in ("records", "removed", *_LOOKUPS)}
        self.index = StoredIndex(place)
        self.graphs: list[list[Any]] = json.loads((place / "facts.json").read_text(encoding="utf-8"))["graphs"]

    @property
    def count(self) -> int:
        """How many records there are."""
        return len(self._records)

    def record(self, row: int) -> Published:
        """A record by its number in the index."""
        (found,) = self._records.slice(row, 1).to_pylist()
        return Published(self.parent.name, **found)

    def ids(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """The ids of records by their numbers."""
        found: list[str] = self._records.column("id").take(pa.array(rows)).to_pylist()
        return found

    def splits(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """The splits of records by their numbers."""
        found: list[str] = self._records.column("split").take(pa.array(rows)).to_pylist()
        return found

    def of_id(self, id_: str) -> Published | None:
        """The record of an id."""
        return self._first("records", "id", id_)

    def of_graph(self, name: str, digest: str) -> Published | None:
        """The first record by id with this `graph` or `graph_widths`."""
        return self._first(name, name, digest)

    def removal(self, id_: str) -> dict[str, Any] | None:
        """The decision by which a code was removed for a record, or for the splits; None where there is none."""
        for row in self._keys["removed"].rows(id_):
            (found,) = self._removed.slice(row, 1).to_pylist()
            if found["id"] == id_:
                return dict(found)
        return None

    def shingles(self, id_: str) -> npt.NDArray[np.uint64]:
        """The shingles of a record."""
        self.have([id_])
        return self._store.shingles(bytes.fromhex(id_))

    def _first(self, keys: str, column: str, value: str) -> Published | None:
        for row in self._keys[keys].rows(value):
            if self._records.column(column)[row].as_py() == value:
                return self.record(row)
        return None

    def have(self, ids: Sequence[str]) -> None:
        """Have the features of these records in the store, from their codes where they are not in it."""
        missing = {id_ for id_ in ids if bytes.fromhex(id_) not in self._store}
        if missing:
            fill_store(self._store, _codes_of(self.folder, missing), self._detail, self._jobs)

    def _make_index(self, place: Path) -> None:
        check = check_files(self.folder, self.manifest)
        if not check.ok:
            raise UserError(
                f"{self.folder}: is not as its {FILE_NAME} states: {check.detail}; give it as it was published"
            )
        note(f"{self.folder}: its index is made, once")
        records = pa.concat_tables(_record_table(path) for path in record_files(self.folder)).sort_by("id")
        ids: list[str] = records.column("id").to_pylist()
        self.have(ids)
        parameters = self.manifest.parameters
        features = self._store.table([bytes.fromhex(id_) for id_ in ids])
        removed = _removals(self.folder, set(ids))
        with atomic_folder(place, force=True) as part:
            lowest = min(LEAK_THRESHOLD, parameters["lexical_threshold"])
            write_index(part, features, lowest, parameters["structural_threshold"])
            for name, table in (("records", records), ("removed", removed)):
                with (
                    pa.OSFile(str(part / f"{name}.arrow"), "wb") as sink,
                    pa.ipc.new_file(sink, table.schema) as writer,
                ):
                    writer.write_table(table.combine_chunks())
                _Keys.of(table.column("id").to_pylist()).save(part, name)
            for name in _LOOKUPS:
                _Keys.of(records.column(name).to_pylist()).save(part, name)
            facts = {"graphs": _graph_forms(self.folder), "folder": str(self.folder.resolve())}
            (part / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
        _sweep(place, facts["folder"])


class _Keys:
    """Rows by the first digits of a digest, for searching."""

    def __init__(self, keys: npt.NDArray[np.uint64], rows: npt.NDArray[np.int64]) -> None:
        self._keys, self._rows = keys, rows

    @classmethod
    def of(cls, digests: Sequence[str | None]) -> "_Keys":
        """The keys of a column; null has none."""
        rows = np.array([row for row, digest in enumerate(digests) if digest is not None], np.int64)
        keys = np.array([_key(digest) for digest in digests if digest is not None], np.uint64)
        order = np.argsort(keys, kind="stable")
        return cls(keys[order], rows[order])

    @classmethod
    def load(cls, folder: Path, name: str) -> "_Keys":
        """What `save` has written."""
        keys, rows = (np.load(folder / f"{name}_{what}.npy", mmap_mode="r") for what in ("keys", "rows"))
        return cls(keys, rows)

    def save(self, folder: Path, name: str) -> None:
        """Write them into a folder."""
        for what, array in (("keys", self._keys), ("rows", self._rows)):
            np.save(folder / f"{name}_{what}.npy", array)

    def rows(self, digest: str) -> list[int]:
        """The rows whose digest begins like this one."""
        low, high = (int(np.searchsorted(self._keys, np.uint64(_key(digest)), side)) for side in ("left", "right"))
        found: list[int] = self._rows[low:high].tolist()
        return found


def _key(digest: str) -> int:
    return int(digest[:16], 16)


def open_published(
    folders: Sequence[Path], options: CurateOptions, store: FeatureStore, jobs: int | None
) -> list[PublishedFolder]:
    """The folders that a delta is made against, by the digests of their manifests.

    Raises: UserError if one is no snapshot, was made by other rules or changed since, or what it was made against
        itself is not among them.
    """
    manifests = check_parents(folders)
    asked = asdict(options) | {"structural_threshold": options.structural, "graph": options.graphs}
    for folder, manifest in manifests.items():
        check_rules(folder, manifest, asked)
    found = [PublishedFolder(folder, manifest, store, jobs) for folder, manifest in manifests.items()]
    for one in found:
        if options.graphs != "off" and any(form != [TORCH, FORM] for form in one.graphs):
            torch, form = next(form for form in one.graphs if form != [TORCH, FORM])
            raise UserError(
                f"{one.folder}: its graphs are form {form} of torch {torch}, here is form {FORM} of torch {TORCH};"
                " use that torch, or make the snapshot anew"
            )
    return sorted(found, key=lambda one: one.parent.sha256)


def check_parents(folders: Sequence[Path]) -> dict[Path, Manifest]:
    """The manifests of folders that a delta may be compared with.

    Raises: UserError if one is no snapshot, is named twice, or is a delta without what it was made against.
    """
    manifests: dict[Path, Manifest] = {}
    digests: dict[str, Path] = {}
    for folder in folders:
        manifest = read_manifest(folder)
        if manifest.kind != "snapshot":
            raise UserError(f"{folder}: holds {article(manifest.kind)}, not a snapshot; give what `lemur curate` wrote")
        digest = sha256_file(folder / FILE_NAME)
        if digest in digests:
            raise UserError(f"{folder}: is the same snapshot as {digests[digest]}; name it once")
        manifests[folder], digests[digest] = manifest, folder
    for folder, manifest in manifests.items():
        for parent in against_of(manifest):
            if parent.sha256 not in digests:
                raise UserError(
                    f"{folder}: is a delta against {parent.name} (manifest {parent.sha256[:12]}), which is not given;"
                    f" add --against with that folder"
                )
    return manifests


def against_of(manifest: Manifest) -> list[Parent]:
    """The folders that a delta was made against; none of a whole snapshot."""
    digests = manifest.parameters.get("against", [])
    by_digest = {parent.sha256: parent for parent in manifest.parents}
    return [by_digest[digest] for digest in digests if digest in by_digest]


def find_parents(
    folder: Path,
    manifest: Manifest,
    given: Sequence[Path] = (),
    *,
    among: Sequence[Path] = (),
    partial: bool = False,
) -> list[Path]:
    """The folders that a delta was made against: among those given, else beside it under their names.

    Args:
        given: each must be one of them. among: others that may be. partial: leave out those that are not found.

    Raises: UserError if one is not found, or one that is given is none of them.
    """
    parents = against_of(manifest)
    beside = [folder.resolve().parent / parent.name for parent in parents]
    there = {sha256_file(path / FILE_NAME): path for path in (*beside, *among, *given) if (path / FILE_NAME).is_file()}
    wanted = {parent.sha256 for parent in parents}
    for path in given:
        if not (path / FILE_NAME).is_file():
            raise UserError(f"{path}: no {FILE_NAME}; give a snapshot that {folder} was made against")
        if sha256_file(path / FILE_NAME) not in wanted:
            names = ", ".join(f"{parent.name} ({parent.sha256[:12]})" for parent in parents)
            raise UserError(
                f"{path}: {folder} was not made against it, but against {names or 'nothing: it is no delta'}"
            )
    for parent in parents:
        if parent.sha256 not in there and not partial:
            raise UserError(
                f"{folder}: is a delta against {parent.name} (manifest {parent.sha256[:12]}), which is not beside it;"
                " name that folder with --against"
            )
    return [there[parent.sha256] for parent in parents if parent.sha256 in there]


def check_rules(folder: Path, manifest: Manifest, asked: Mapping[str, Any], by: str = "this run") -> None:
    """Guarantees hold over the union only where all was decided by the same rules.

    Args: asked: parameters as in a manifest, of what appends to the folder. by: what that is.
    Raises: UserError if they differ from the folder's.
    """
    for name in ("profile", "lexical_threshold", "structural_threshold", "tokens", "graph"):
        there, mine = manifest.parameters[name], asked[name]
        if there != mine and not (name == "graph" and _graph_rule(there) == _graph_rule(mine)):
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{folder}: was made with {flag} {there}, {by} has {mine}; give the same to append to it")


def _graph_rule(graph: str) -> str:
    return "survivors" if graph == "all" else graph


def _index_place(folder: Path, manifest: Manifest, parent: Parent) -> Path:
    files = [folder / item.path for item in manifest.outputs]
    try:
        states = [(item.st_size, item.st_mtime_ns, item.st_ino) for item in (path.stat() for path in files)]
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}; give {folder} as it was published") from error
    made_of = (_VERSION, FEATURES_VERSION, SCHEME, LEAK_THRESHOLD, parent.sha256, str(folder.resolve()), states)
    return cache_folder("published") / hashlib.sha256(repr(made_of).encode()).hexdigest()[:32]


def _sweep(newest: Path, folder: object) -> None:
    """Remove indexes that nothing asks for: older ones of a folder, and those of folders that are gone."""
    for facts in newest.parent.glob("*/facts.json"):
        of = json.loads(facts.read_text(encoding="utf-8")).get("folder")
        if facts.parent != newest and (of in (None, folder) or not Path(of).exists()):
            shutil.rmtree(facts.parent, ignore_errors=True)


def _mapped(path: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def _record_table(path: Path) -> pa.Table:
    there = [name for name in _COLUMNS if name in pq.read_schema(path).names]
    table = pq.read_table(path, columns=there)
    for name in (name for name in _COLUMNS if name not in there):
        table = table.append_column(name, pa.nulls(len(table), pa.string()))
    return table.select(list(_COLUMNS))


def _removals(folder: Path, kept: set[str]) -> pa.Table:
    """The first decision of each code that was removed for a record or for the splits, by id."""
    rows = pq.read_table(folder / "decisions.parquet", columns=list(_REMOVED))
    found: dict[str, dict[str, Any]] = {}
    for batch in rows.to_batches():
        for row in batch.to_pylist():
            if row["stage"] in (*DUPLICATE_STAGES, "leak") and row["id"] not in kept and row["id"] != row["canonical"]:
                found.setdefault(row["id"], row)
    return pa.Table.from_pylist([found[id_] for id_ in sorted(found)], schema=rows.schema)


def _codes_of(folder: Path, ids: set[str]) -> Iterator[tuple[bytes, str]]:
    for path in record_files(folder):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1_000, columns=["id", "nn_code"]):
                for row in batch.to_pylist():
                    if row["id"] in ids and not row["nn_code"]:
                        raise UserError(
                            f"{folder}: is a copy without the codes that were not published; give the original"
                        )
                    if row["id"] in ids:
                        yield bytes.fromhex(row["id"]), row["nn_code"]


def _graph_forms(folder: Path) -> list[list[Any]]:
    """The releases of torch and the forms of the folder's graphs."""
    path = folder / "graphs.parquet"
    if not path.exists():
        return []
    table = pq.read_table(path, columns=["graph", "torch", "form"])
    found = {(row["torch"], row["form"]) for row in table.to_pylist() if row["graph"] is not None}
    return [list(form) for form in sorted(found)]
