"""Decide a snapshot again from what only its source or the sandbox could say, and write it with the same writer.

Taken from its tables as they are: codes and results, row by row; graphs, numbers and whether a network runs; licenses
and origins; conversations. All else follows: `lemur verify` compares it cell by cell.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from curate.compute.graphs import GraphTrace, read_graph_row
from curate.compute.outcome import CurationOutcome
from curate.model.corpus import CodeFile, LoadedRecords, fill_store
from curate.model.features import FeatureStore
from curate.model.options import CurateOptions
from curate.model.previous import STAYS, Previous, PublishedRecord
from curate.model.rights import Origin, Rights
from curate.run.pipeline import describe_assumptions_of, write_contents
from curate.run.strict import curate_strict
from curate.sources.rows import ROW_SCHEMA, MeasuredFacts, RecordSource
from lemur_core.files import Json
from lemur_core.files.errors import UserError
from manifests.conversations import DROPS, Chat, chat_rows, contents, conversation_id, count_tokens
from manifests.folders.kinds import SNAPSHOT, Folder
from manifests.folders.manifest import Input, Manifest
from manifests.folders.tables import iterate_rows, read_table
from manifests.provenance.licenses import NOASSERTION
from manifests.records import CHAT_KINDS, LemurRecord

_BATCH = 5_000
_READ = ("task", "dataset", "metric", "epoch", "accuracy", "duration", "prm", "outcomes")


def derive(folder: Folder, made: Path) -> Json:
    """Write the snapshot again; see `Derive`. Of code that was not published nothing can be derived."""
    if list_withheld(folder):
        return {}
    path, manifest = folder.path, folder.manifest
    options = _read_options(manifest)
    with tempfile.TemporaryDirectory(dir=made) as scratch, CodeFile(Path(scratch) / "codes") as codes:
        corpus = _read_corpus(folder, options, codes)
        tracer = None if options.graphs == "off" else StoredTracer(path, corpus)
        outcome = curate_strict(corpus, options, tracer, _read_previous(folder))
        if tracer is not None:
            outcome.notes += describe_assumptions_of(corpus, outcome, options)
        elif notes := manifest.details.get("notes"):
            outcome.notes += notes[len(outcome.notes) :][-1:]  # why nothing could be run
        outcome.rights = _read_rights(path, manifest, corpus)
        given = ("origins", "chat_residue")
        outcome.details.update((name, manifest.details[name]) for name in given if name in manifest.details)
        if options.chat:
            outcome.chat = _read_chat(path, corpus, outcome)
        source = _StoredSource(path, manifest)
        _, counts, details = write_contents(made, corpus, outcome, source)
    return {"counts": counts, "details": details}


def list_withheld(folder: Folder) -> set[str]:
    """Return the ids of the codes that were left out when the snapshot was published."""
    if not folder.manifest.details.get("withheld"):
        return set()
    files = SNAPSHOT.files(folder.path, "networks")
    return {row["id"] for path in files for row in iterate_rows(path, ("id", "nn_code")) if not row["nn_code"]}


def _read_options(manifest: Manifest) -> CurateOptions:
    stated = {field.name: manifest.parameters[field.name] for field in fields(CurateOptions)}
    tuples = {name: tuple(value) for name, value in stated.items() if isinstance(value, list)}
    return CurateOptions(**{**stated, **tuples, "upweight": tuple(map(tuple, stated["upweight"]))})


def _read_corpus(folder: Folder, options: CurateOptions, codes: CodeFile) -> LoadedRecords:
    """Return the rows and codes as they were loaded."""
    path = folder.path
    store = FeatureStore(options.tokens)
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
                if digest.digest() not in store:
                    yield digest.digest(), row["nn_code"]

    fill_store(store, read_codes(), options.tokens, folder.jobs)
    features = store.table(list(map(bytes.fromhex, digests)))
    if features.problems:
        code_index, problem = next(iter(features.problems.items()))
        raise UserError(f"networks.parquet: {list(digests)[code_index][:16]} is not usable: {problem}")
    records = read_table(SNAPSHOT.files(path, "records"), LemurRecord, ["id", "arch_uid"])
    arch_uids = {row["id"]: row["arch_uid"] for row in records.to_pylist() if row["arch_uid"] is not None}
    tables: list[pa.Table] = []
    problems: dict[int, str] = {}
    code_of_row: list[int] = []
    columns = [name for name in ROW_SCHEMA.names if name not in ("nn_code", "problem")]
    schema = pa.schema([ROW_SCHEMA.field(name) for name in columns])
    stats = (row for file in SNAPSHOT.files(path, "stats") for row in iterate_rows(file, ("id", "nn", *_READ)))
    decided = iterate_rows(path / "decisions.parquet", ("id", "nn", "stage", "reason"))
    while batch := list(islice(decided, _BATCH)):
        rows: list[Json] = []
        for decision in batch:
            if decision["stage"] == "invalid":
                problems[len(code_of_row)] = decision["reason"]
                id_ = decision["id"]
                code_of_row.append(-1 if id_ is None else digests.setdefault(id_, len(digests)))
                rows.append({"nn": decision["nn"]})
                continue
            stat = next(stats, None)
            named = (decision["id"], decision["nn"])
            if stat is None or (stat["id"], stat["nn"]) != named or stat["id"] not in digests:
                raise UserError(f"decisions.parquet row {len(code_of_row)}: the results have no such row: {named[1]}")
            code_of_row.append(digests[stat.pop("id")])
            rows.append({**stat, "arch_uid": arch_uids.get(decision["id"])})
        tables.append(pa.Table.from_pylist(rows, schema=schema))
    if (left := next(stats, None)) is not None:
        raise UserError(f"data/stats: {left['nn']} has a row of results, and no decision")
    rows_table = pa.concat_tables(tables) if tables else schema.empty_table()
    ids = list(digests)
    return LoadedRecords(rows_table, np.array(code_of_row, np.int64), problems, ids, codes, features)


class StoredTracer:
    """Answers as the sandbox did: with the graphs of the folder, whose identities are computed again."""

    def __init__(self, folder: Path, corpus: LoadedRecords) -> None:
        self.known: dict[int, GraphTrace] = {}
        self._folder, self._corpus = folder, corpus
        self._code_of = {id_: code_index for code_index, id_ in enumerate(corpus.ids)}
        self._stored: dict[int, Json] | None = None

    def trace(self, representatives: Mapping[int, int]) -> dict[int, GraphTrace]:
        """Look up the codes that are not known yet. Raises: UserError if one has no row."""
        if self._stored is None:
            self._stored = {}
            for row in iterate_rows(self._folder / "graphs.parquet"):
                if row["id"] not in self._code_of:
                    raise UserError(f"graphs.parquet: {row['id'][:16]} is the id of no code here")
                self._stored[self._code_of[row.pop("id")]] = read_graph_row(row)
        for code_index in representatives:
            if code_index not in self._stored:
                raise UserError(
                    f"graphs.parquet: has no row of {self._corpus.ids[code_index][:16]}, which was compared"
                )
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


def _read_rights(folder: Path, manifest: Manifest, corpus: LoadedRecords) -> Rights:
    """Return the rights as the table of networks states them; `lemur verify` proves these."""
    shared = manifest.details.get("license", NOASSERTION)
    code_of = {id_: code_index for code_index, id_ in enumerate(corpus.ids)}
    own: dict[int, str] = {}
    origins: dict[int, Origin] = {}
    columns = ("id", "license", "origin", "origin_similarity", "origin_license")
    for file in SNAPSHOT.files(folder, "networks"):
        for row in iterate_rows(file, columns):
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
    rows = []
    for _, row in chat_rows(folder):
        if row["record"] not in about:
            raise UserError(f"data/chat: {row['record'][:16]} is the id of no kept record")
        split, columns = about[row["record"]]
        own = {
            "id": conversation_id(row["record"], row["task"], row["variant"]),
            "n_tokens": count_tokens(contents(row)),
        }
        rows.append((split, {**row, **columns, **own}))
    drops = list(iterate_rows(folder / DROPS))
    if strange := next((row["record"] for row in drops if row["record"] not in about), None):
        raise UserError(f"{DROPS}: {strange[:16]} is the id of no kept record")
    drops = [{**row, **about[row["record"]][1]} for row in drops]
    return Chat("record", CHAT_KINDS, rows, drops)


class _StoredSource(RecordSource):
    """The source as the manifest names it."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__(manifest.parameters["source"])
        self._folder, self._manifest = folder, manifest

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield nothing: the rows were read."""
        return iter(())

    def inputs(self) -> list[Input]:
        """Return the inputs as stated."""
        return self._manifest.inputs

    def measurements(self) -> Iterator[MeasuredFacts]:
        """Yield the measurements as they were read."""
        for file in SNAPSHOT.files(self._folder, "measurements"):
            for row in iterate_rows(file, ("nn", "kind", "place", "facts")):
                yield MeasuredFacts(row["nn"], row["kind"], row["place"], json.loads(row["facts"]))
