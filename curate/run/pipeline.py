"""`lemur curate`: source in, snapshot folder out."""

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

from curate.compute.graphs import GraphTracer
from curate.compute.outcome import CurationOutcome, count_decisions
from curate.compute.runs import complete, read_parameters
from curate.folder.chat import build_chat
from curate.folder.page import FACED
from curate.folder.snapshot import write_snapshot_tables
from curate.model.corpus import CodeFile, LoadedRecords, Previous, read_corpus
from curate.model.options import CurateOptions, get_prefix
from curate.model.rights import Origins, check_origins, read_rights
from curate.run.strict import curate_strict
from curate.sources import find_source_parents
from curate.sources.rows import RecordSource
from lemur_core.files import Json
from lemur_core.files.atomic import atomic_folder
from lemur_core.files.errors import NoSandboxError, UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import note
from lemur_core.sandbox.cached import run_versions
from lemur_core.sandbox.runtime import expand_sets
from manifests.folders.manifest import Manifest, Stopwatch


def curate(
    source: RecordSource,
    out: Path,
    options: CurateOptions,
    *,
    origins: Sequence[Path] = (),
    previous: Previous | None = None,
    jobs: int | None = None,
    force: bool = False,
) -> Manifest:
    """Curate a source into the folder `out`.

    Args:
        origins: extractions whose blocks each code is compared with to find its origin.
        previous: what was kept before stays, and keeps its split.
    Returns: the manifest that was written.
    Raises: UserError for bad input or an `out` that cannot be written; nothing is left behind then.
    """
    watch = Stopwatch()
    repositories = check_origins(origins)
    if previous is not None:
        previous.check(options)
    before = [previous.parent] if previous is not None and previous.parent is not None else []
    with atomic_folder(out, force=force) as folder:
        # Inside the folder that is written: a killed run leaves one thing behind.
        with tempfile.TemporaryDirectory(dir=folder) as scratch, CodeFile(Path(scratch) / "codes") as codes:
            corpus = read_corpus(source, codes, jobs)
            watch.lap("load and features")
            outcome = decide(corpus, options, jobs, previous)
            _check_some_left(corpus, outcome)
            watch.lap("decide")
            reported, of_codes = sorted(outcome.rows), None
            if origins:
                library = Origins(origins, jobs)
                of_codes, outcome.details["origins"] = library.find_origins(corpus, reported), library.facts
                watch.lap("origins")
            license_ = source.license(options.license)
            outcome.rights = read_rights(corpus, reported, license_, options.license, of_codes)
            if options.chat:
                outcome.chat = build_chat(corpus, outcome, options, jobs=jobs)
                watch.lap("chat")
            # All that decides, to reproduce it; `graph` is off if nothing could be run.
            parameters: Json = {"source": source.name, **describe_options(options)}
            parameters["graph"] = "off" if outcome.graphs is None else options.graphs
            if repositories:
                parameters["origins"] = [parent.sha256 for parent in repositories]
            if before:
                parameters["previous"] = before[0].sha256
            counts, details = write_contents(folder, corpus, outcome)
            watch.lap("write")
        ran_code = options.chat or outcome.graphs is not None
        return FACED.finish(
            folder,
            watch,
            versions=run_versions(options.runtime) if ran_code else {},
            parameters=parameters,
            inputs=source.inputs(),
            parents=list(dict.fromkeys([*find_source_parents(source), *repositories, *before])),
            counts=counts,
            details=details,
        )


def decide(
    corpus: LoadedRecords, options: CurateOptions, jobs: int | None, previous: Previous | None = None
) -> CurationOutcome:
    """Decide every row."""
    if options.graphs == "off":
        return curate_strict(corpus, options, previous=previous)
    in_sandbox: Json = {"jobs": jobs, "unsafe": options.unsafe_no_sandbox, "runtime": options.runtime}
    try:
        with GraphTracer(corpus.rows, corpus.codes.__getitem__, **in_sandbox) as tracer:
            outcome = curate_strict(corpus, options, tracer, previous)
    except NoSandboxError as error:
        # Only the default may be left out in silence: what was requested is an error.
        if options.graph is not None or options.require_runs or previous is not None:
            raise
        note(f"graphs are not compared: {error}")
        outcome = curate_strict(corpus, options)
        outcome.notes.append("graphs were not compared: nothing can be run here, so no code was run")
        return outcome
    outcome.notes += describe_assumptions(corpus, outcome)
    return outcome


def describe_assumptions(corpus: LoadedRecords, outcome: CurationOutcome) -> list[str]:
    """Return a sentence on what was assumed to run the kept networks, or why none was traced; none if all is stated."""
    traces = outcome.graphs or {}
    errors = [(traces[index].error, index) for index in outcome.kept if index in traces]
    traced = [index for error, index in errors if error is None]
    if errors and not traced:
        (error, count), *_ = Counter(error for error, _ in errors).most_common(1)
        return [f"none of {plural(len(errors), 'kept network')} could be traced; {count:,} by {error}"]
    rows = corpus.rows.take(pa.array([outcome.representatives[code_index] for code_index in traced], pa.int64()))
    usual, assumed = 0, dict[str, object]()
    for code_index, record in zip(traced, rows.select(["task", "dataset", "prm"]).to_pylist(), strict=True):
        task, dataset, prm = complete(record, corpus.codes[code_index])
        used, stated = {"task": task, "dataset": dataset, **prm}, record | read_parameters(record["prm"])
        own = {name: value for name, value in used.items() if stated.get(name) != value}
        usual, assumed = usual + bool(own), assumed | own
    networks = f"{plural(usual, 'kept network')} without a stated task, data set or hyperparameters"
    values = ", ".join(f"{name} {value}" for name, value in assumed.items())
    return [f"{networks}, traced with the usual ones: {values}"] if usual else []


def _check_some_left(corpus: LoadedRecords, outcome: CurationOutcome) -> None:
    """Raise UserError, with the reason of most rows, if there are rows and no record is kept."""
    if outcome.kept or not outcome.decisions:
        return
    left_out = [row for row, decision in enumerate(outcome.decisions) if decision.stage == "filter"]
    if not left_out:
        why, _ = Counter(decision.reason for decision in outcome.decisions).most_common(1)[0]
        rows = plural(len(outcome.decisions), "row")
        raise UserError(f"none of {rows} holds usable code: {why}; nothing was written")
    prefixes = Counter(get_prefix(corpus.rows.column("nn")[row].as_py() or "") for row in left_out)
    known = ", ".join(prefix for prefix, _ in prefixes.most_common(5))
    reason = outcome.decisions[left_out[0]].reason
    raise UserError(f"no record is left: {reason}; the most frequent prefixes are {known}")


def describe_options(options: CurateOptions) -> Json:
    """Return the options as they are written down: with the packages of a named set, which may change."""
    return asdict(options) | {"runtime": expand_sets(options.runtime)}


def write_contents(folder: Path, corpus: LoadedRecords, outcome: CurationOutcome) -> tuple[Json, Json]:
    """Write the tables of a snapshot, which follow from its outcome.

    Returns: the counts and the details of its manifest.
    """
    write_snapshot_tables(folder, corpus, outcome)
    rights = outcome.rights
    counts = count_decisions(corpus, outcome) | rights.count(outcome.kept, outcome.rows.keys() - set(outcome.kept))
    details: Json = dict(outcome.details)
    if outcome.chat is not None:
        details["chat"] = {"license": rights.license}
    details["license"] = rights.license
    if rights.by_row:
        details["licensed_by_row"] = rights.by_row
    details["notes"] = outcome.notes
    return counts, details
