"""The kind of folder that `lemur curate` writes: how it is made again, its laws, and what is shown of its networks.

A snapshot is decided again from what only its source or the sandbox could say, taken from its tables as they are: codes
and results, row by row; graphs, numbers and whether a network runs; licenses and origins; conversations. All else
follows, and is written by the same writer: `lemur verify` compares it cell by cell.
"""

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.compute.graphs import GraphTrace, read_graph_row
from curate.compute.outcome import CurationOutcome
from curate.folder.explain import explain
from curate.folder.page import FACED
from curate.folder.verify import check_snapshot
from curate.model.corpus import STAYS, CodeFile, FeatureStore, LoadedRecords, Previous, PublishedRecord, fill_store
from curate.model.options import CurateOptions
from curate.model.rights import Origin, Rights
from curate.run.pipeline import describe_assumptions, write_contents
from curate.run.strict import curate_strict
from curate.sources.rows import ROW_SCHEMA
from lemur_core.files import Json
from lemur_core.files.errors import UserError
from manifests.conversations import (
    Chat,
    chat_rows,
    contents,
    conversation_id,
    count_tokens,
    find_conversation,
)
from manifests.folders.kinds import SNAPSHOT, Check, Folder, FolderLink, FoundItem, verify_folder
from manifests.folders.manifest import Manifest
from manifests.folders.tables import CHAT_DROPS, iterate_rows, read_table
from manifests.provenance.licenses import NOASSERTION
from manifests.records import CHAT_KINDS, ChatRow, Decision, LemurRecord

_BATCH = 5_000
_READ = ("task", "dataset", "metric", "epoch", "accuracy", "duration", "prm", "outcomes")


def derive(folder: Folder, made: Path) -> Json:
    """Write the snapshot again; see `Derive`. Of code that was not published nothing can be derived."""
    path, manifest = folder.path, folder.manifest
    details = manifest.details
    networks = (row for file in SNAPSHOT.files(path, "networks") for row in iterate_rows(file, ("nn_code",)))
    if details.get("withheld") and not all(row["nn_code"] for row in networks):
        return {}
    options = CurateOptions(**{field.name: manifest.parameters[field.name] for field in fields(CurateOptions)})
    with tempfile.TemporaryDirectory(dir=made) as scratch, CodeFile(Path(scratch) / "codes") as codes:
        corpus = _read_corpus(folder, codes)
        code_of = {id_: code_index for code_index, id_ in enumerate(corpus.ids)}
        tracer = None if options.graphs == "off" else StoredTracer(path, code_of)
        outcome = curate_strict(corpus, options, tracer, _read_previous(folder))
        if tracer is not None:
            outcome.notes += describe_assumptions(corpus, outcome)
        elif notes := details.get("notes"):
            outcome.notes += notes[len(outcome.notes) :][-1:]  # why nothing could be run
        outcome.rights = _read_rights(path, manifest, code_of)
        outcome.details.update((name, details[name]) for name in ("origins", "chat_residue") if name in details)
        if options.chat:
            outcome.chat = _read_chat(path, corpus, outcome)
        counts, details = write_contents(made, corpus, outcome)
    return {"counts": counts, "details": details}


def _read_corpus(folder: Folder, codes: CodeFile) -> LoadedRecords:
    """Return the rows and codes as they were loaded."""
    path = folder.path
    store = FeatureStore()
    digests: dict[str, int] = {}

    def read_codes() -> Iterator[tuple[bytes, str]]:
        for file in SNAPSHOT.files(path, "networks"):
            for row in iterate_rows(file, ("id", "nn_code")):
                raw = row["nn_code"].encode()
                digest = hashlib.sha256(raw)
                if digest.hexdigest() != row["id"]:
                    raise UserError(f"networks.parquet: {row['id'][:16]} is not the SHA-256 of its code")
                digests[row["id"]] = len(codes)
                codes.append(raw)
                yield digest.digest(), row["nn_code"]

    fill_store(store, read_codes(), folder.jobs)
    features = store.table(list(map(bytes.fromhex, digests)))
    if features.problems:
        code_index, problem = next(iter(features.problems.items()))
        raise UserError(f"networks.parquet: {list(digests)[code_index][:16]} is not usable: {problem}")
    records = read_table(SNAPSHOT.files(path, "records"), LemurRecord, ["id", "arch_uid"])
    arch_uids = {row["id"]: row["arch_uid"] for row in records.to_pylist() if row["arch_uid"] is not None}
    columns = [name for name in ROW_SCHEMA.names if name not in ("nn_code", "problem")]
    schema = pa.schema([ROW_SCHEMA.field(name) for name in columns])
    tables: list[pa.Table] = [schema.empty_table()]
    problems: dict[int, str] = {}
    code_of_row: list[int] = []
    stats = (row for file in SNAPSHOT.files(path, "stats") for row in iterate_rows(file, ("id", "nn", *_READ)))
    decided = iterate_rows(path / "decisions.parquet", ("id", "nn", "stage", "reason"))
    while batch := list(islice(decided, _BATCH)):
        rows: list[Json] = []
        for decision in batch:
            id_, nn = decision["id"], decision["nn"]
            if decision["stage"] == "invalid":
                problems[len(code_of_row)] = decision["reason"]
                code_of_row.append(-1 if id_ is None else digests.setdefault(id_, len(digests)))
                rows.append({"nn": nn})
                continue
            stat = next(stats, None)
            if stat is None or (stat["id"], stat["nn"]) != (id_, nn) or id_ not in digests:
                raise UserError(f"decisions.parquet row {len(code_of_row)}: the results have no such row: {nn}")
            code_of_row.append(digests[id_])
            rows.append({**stat, "arch_uid": arch_uids.get(id_)})
        tables.append(pa.Table.from_pylist(rows, schema=schema))
    if (left := next(stats, None)) is not None:
        raise UserError(f"data/stats: {left['nn']} has a row of results, and no decision")
    rows_table = pa.concat_tables(tables)
    return LoadedRecords(rows_table, np.array(code_of_row, np.int64), problems, list(digests), codes, features)


class StoredTracer:
    """Answers as the sandbox did: with the graphs of the folder, whose identities are computed again.

    Args: code_of: the code index of each id.
    """

    def __init__(self, folder: Path, code_of: Mapping[str, int]) -> None:
        self.known: dict[int, GraphTrace] = {}
        self._folder, self._code_of = folder, code_of
        self._stored: dict[int, Json] = {}

    def trace(self, representatives: Mapping[int, int]) -> dict[int, GraphTrace]:
        """Look up the codes that are not known yet. Raises: UserError if one has no row."""
        for row in iterate_rows(self._folder / "graphs.parquet") if not self._stored else ():
            if row["id"] not in self._code_of:
                raise UserError(f"graphs.parquet: {row['id'][:16]} is the id of no code here")
            self._stored[self._code_of[row.pop("id")]] = read_graph_row(row)
        for code_index in representatives:
            if code_index not in self._stored:
                id_ = next(id_ for id_, index in self._code_of.items() if index == code_index)
                raise UserError(f"graphs.parquet: has no row of {id_[:16]}, which was compared")
            self.known[code_index] = GraphTrace(self._stored[code_index])
        return self.known


def _read_previous(folder: Folder) -> Previous | None:
    """Return what was kept before: the records whose decisions say so, and those that the manifest names as gone."""
    if (stated := folder.manifest.details.get("previous")) is None:
        return None
    decided = iterate_rows(folder.path / "decisions.parquet", ("id", "kept", "reason"))
    stayed = {row["id"] for row in decided if row["kept"] and row["reason"] == STAYS}
    records = {item["id"]: PublishedRecord(item["nn"], item["split"]) for item in stated["gone"]}
    rows = SNAPSHOT.rows(folder.path, LemurRecord, ("id", "nn", "split"))
    return Previous(records | {row.id: PublishedRecord(row.nn, row.split) for row in rows if row.id in stayed})


def _read_rights(folder: Path, manifest: Manifest, code_of: Mapping[str, int]) -> Rights:
    """Return the rights as the table of networks states them; `lemur verify` proves these."""
    shared = manifest.details.get("license", NOASSERTION)
    own: dict[int, str] = {}
    origins: dict[int, Origin] = {}
    columns = ("id", "license", "origin", "origin_similarity", "origin_license")
    for row in (row for file in SNAPSHOT.files(folder, "networks") for row in iterate_rows(file, columns)):
        code_index = code_of[row["id"]]
        if row["license"] != shared:
            own[code_index] = row["license"]
        if row["origin"] is not None:
            origins[code_index] = Origin(row["origin"], row["origin_similarity"], row["origin_license"], "")
    by_row = manifest.details.get("licensed_by_row", 0)
    return Rights(shared, own, origins if "origins" in manifest.details else None, by_row)


def _read_chat(folder: Path, corpus: LoadedRecords, outcome: CurationOutcome) -> Chat:
    """Return the conversations with their texts as stored; ids, lengths, names, licenses and splits are worked out."""
    about: dict[str, tuple[str, Json]] = {}
    for code_index in outcome.kept:
        nn = corpus.rows.column("nn")[outcome.representatives[code_index]].as_py() or ""
        columns = {"record": corpus.ids[code_index], "nn": nn, "license": outcome.rights.get_license(code_index)}
        about[corpus.ids[code_index]] = (outcome.splits[code_index], columns)

    def find(record: str, where: str) -> tuple[str, Json]:
        if record not in about:
            raise UserError(f"{where}: {record[:16]} is the id of no kept record")
        return about[record]

    rows = []
    for _, row in chat_rows(folder):
        split, columns = find(row["record"], "data/chat")
        id_ = conversation_id(row["record"], row["task"], row["variant"])
        rows.append((split, {**row, **columns, "id": id_, "n_tokens": count_tokens(contents(row))}))
    drops = [{**row, **find(row["record"], CHAT_DROPS)[1]} for row in iterate_rows(folder / CHAT_DROPS)]
    return Chat("record", CHAT_KINDS, rows, drops)


def find(folder: Path, wanted: str) -> FoundItem:
    """Find a network by its name or the beginning of its id, or a conversation by its id.

    Raises: UserError, with near names, if nothing or several things match.
    """
    with SNAPSHOT.reading(folder):
        chat = find_conversation(folder, wanted, ChatRow, ("id", "task", "variant", "nn", "record", "license"))
    found = explain(folder, chat["record"] if chat else wanted)
    if chat is None:
        return found
    facts = {"task": chat["task"], "variant": chat["variant"], "license": chat["license"], "about": chat["nn"]}
    return found.behind(FolderLink("chat row", chat["id"], facts))


def find_code(folder: Path, sha256: str) -> FoundItem | None:
    """Find the network whose code has this digest."""
    with SNAPSHOT.reading(folder):
        ids = read_table([folder / "decisions.parquet"], Decision, ["id"])["id"]
    return explain(folder, sha256) if pc.index(ids, sha256).as_py() >= 0 else None


KIND = replace(FACED, derive=derive, laws=(check_snapshot,), find=find, find_code=find_code)
KINDS = (KIND,)


def verify(folder: Path, *, jobs: int | None = None) -> list[Check]:
    """Run all checks of a snapshot. Nothing in it is executed."""
    return verify_folder(KIND, folder, jobs=jobs)
