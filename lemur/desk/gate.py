"""Decide on a contribution: each file by itself, then its networks compared with a reference and with each other.

Files are taken in their order: of two networks of a contribution that are near each other, the first passes and the
second names it. A network that is refused for another reason stands for none.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from curate.compute.graphs import NetworkTracer
from curate.compute.runs import PRM, TASK_DATASETS
from curate.folder.novelty import Novelty, NoveltyIndex, Query
from curate.sources import open_source
from curate.sources.rows import RecordSource
from lemur.desk.certificate_guest import Certificate, CodeToCertify
from lemur.desk.checks import (
    RULES,
    Contribution,
    Inspection,
    Refusal,
    find_untrained,
    inspect_network,
    inspect_statistics,
    match_statistics,
    read_contribution,
    read_trials,
)
from lemur_core.files import Json
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import make_visible, plural, ratio
from lemur_core.files.progress import progress
from lemur_core.files.workers import map_chunks
from lemur_core.sandbox import Limits
from lemur_core.sandbox.cached import CachedSandbox
from lemur_core.sandbox.runtime import find_absence
from lemur_core.sandbox.stage import SandboxStage
from manifests.folders.manifest import package_versions
from train.model.contract import lemur_digest

#: LEMUR's own file computes the certificate by which its head names networks.
CERTIFY = SandboxStage[Certificate](
    "lemur.desk.certificate_guest:certify", Certificate, Limits(), label="certificates", unit="networks"
)
_CHUNK = 16  # files in one message to a worker
_MEASURED = ("accuracy", "duration", "uid")  # in a trial besides its hyperparameters
_OTHER = 0.5  # a value in the range of LEMUR's search, for hyperparameters that a network names itself


@dataclass(slots=True)
class GatedFile:
    """One file and why it is refused. `nearest` and `similarity`: by tokens, of a network."""

    path: str
    kind: Literal["network", "statistics", "link"]
    findings: list[Refusal]
    nearest: str | None = None
    similarity: float | None = None

    @property
    def passed(self) -> bool:
        """True if nothing was found."""
        return not self.findings


@dataclass(frozen=True, slots=True)
class GateReport:
    """The verdict on a contribution: its files in their order, its coverage by name, and notes."""

    files: tuple[GatedFile, ...]
    coverage: Json
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """True if no file is refused."""
        return all(file.passed for file in self.files)


def gate(
    paths: Sequence[str],
    *,
    against: Sequence[str] = ("lemur",),
    jobs: int | None = None,
    unsafe: bool = False,
    runtime: Sequence[str] = (),
) -> GateReport:
    """Check a contribution to LEMUR.

    Args:
        paths: files, folders, and ranges of commits `A..B` of the repository in the working folder.
        against: snapshots, or sources of records such as `lemur` and `lemur-db`.
        jobs: parallel processes; None for one per core.
        unsafe: run the networks without the sandbox.
        runtime: packages that the networks can import in addition to the declared runtime.
    Returns: the findings by file; none if there is nothing to check.
    Raises: UserError if a path or a reference cannot be read, or no sandbox is available.
    """
    find_absence(runtime)  # report missing packages before anything runs
    contribution = read_contribution(paths)
    references = [_open_reference(name) for name in against]
    if not (contribution.networks or contribution.statistics or contribution.links):
        kinds = "networks (.py files) or statistics (stat/train/TASK_DATASET_METRIC_NAME/EPOCH.json)"
        note = f"nothing to check: no {kinds} among {plural(len(contribution.others), 'file')}"
        return GateReport((), _describe_coverage(()), (note,))
    index = NoveltyIndex(references, jobs=jobs)
    inspections = _inspect(contribution, jobs)
    trials = {path: read_trials(data) for path, data in contribution.statistics.items()}
    files = {path: GatedFile(path, "network", list(item.findings)) for path, item in inspections.items()}
    files |= _inspect_statistics(contribution, inspections, trials)
    for path, link in contribution.links.items():
        where = f"{link}, whose content is not in this contribution; put the files themselves here"
        files[path] = GatedFile(path, "link", [Refusal("file", where)])
    queries = {path: item.query for path, item in inspections.items() if item.query is not None}
    _set_arguments(trials, inspections, queries)
    with NetworkTracer(jobs=jobs, unsafe=unsafe, runtime=runtime) as tracer:
        compared = index.compare(list(queries.values()), None if index.absence else tracer)
        novelties = dict(zip(queries, compared, strict=True))
        for path, novelty in novelties.items():
            files[path].findings += _judge(novelty, files[path].findings)
            if novelty.text is not None:
                files[path].nearest, files[path].similarity = novelty.text.name, novelty.text.similarity
        answers = _compute_certificates(contribution, novelties, queries, index, unsafe=unsafe)
        for path, novelty in novelties.items():
            files[path].findings += _check_certificate(novelty, queries[path], inspections[path].certificate, answers)
        passing = [query for path, query in queries.items() if files[path].passed]
        for number, earlier in index.find_repeats(passing, tracer).items():
            files[passing[number].name].findings.append(Refusal("new", f"{earlier.how}, of these files"))
    notes = [
        f"{name}: holds no graphs; its networks are compared by text and structure alone;"
        " `lemur curate --graph all` makes a snapshot that holds them"
        for name in against
        if index.absence is None and not any(corpus.name == name for corpus in index.corpora if corpus.has_graphs)
    ]
    if index.absence is not None:
        notes.append(f"no network was run, and no graphs are compared: {index.absence}")
    if unchecked := [path for path in queries if inspections[path].certificate and answers.get(path) is None]:
        shown = unchecked[0] + (f" and {len(unchecked) - 1:,} more" if len(unchecked) > 1 else "")
        notes.append(f"{shown}: certificate, not checked: the digits are not the MD5 of the code, as up to 2.2.11")
    if contribution.others:
        notes.append(f"neither networks nor statistics, and not checked: {plural(len(contribution.others), 'file')}")
    every = tuple(files.values())
    return GateReport(every, _describe_coverage(every), tuple(notes))


def _open_reference(name: str) -> Path | RecordSource:
    if Path(name).is_dir():
        return Path(name)
    if name.partition("@")[0] in ("lemur", "lemur-db"):
        return open_source(name)
    raise UserError(f"{name}: no such folder; --against takes a snapshot, lemur[@VERSION] or lemur-db[@VERSION]")


def _inspect(contribution: Contribution, jobs: int | None) -> dict[str, Inspection]:
    """Check each network by itself, in worker processes."""
    items = list(contribution.networks.items())
    chunks = [items[at : at + _CHUNK] for at in range(0, len(items), _CHUNK)]
    results: list[Inspection] = []
    with progress("files", len(items), "networks") as advance:
        for part in map_chunks(inspect_network, chunks, _report_crash, jobs):
            results += part
            advance(len(part))
    return dict(zip(contribution.networks, results, strict=True))


def _report_crash(_item: tuple[str, bytes]) -> Inspection:
    return Inspection((Refusal("contract", "Python's parser crashed on it"),))


def _inspect_statistics(
    contribution: Contribution, inspections: Mapping[str, Inspection], trials: Mapping[str, list[Json] | str]
) -> dict[str, GatedFile]:
    known: dict[str, tuple[str, ...]] = dict.fromkeys(contribution.names, ())
    known |= {Path(path).stem: item.parameters for path, item in inspections.items()}
    files = {
        path: GatedFile(path, "statistics", inspect_statistics(known.get, path, data, trials[path]))
        for path, data in contribution.statistics.items()
    }
    sound = {path: rows for path, rows in trials.items() if files[path].passed}
    for path, refusal in find_untrained(sound, contribution.present):
        files[path].findings.append(refusal)
    return files


def _compute_certificates(
    contribution: Contribution,
    novelties: Mapping[str, Novelty],
    queries: Mapping[str, Query],
    index: NoveltyIndex,
    *,
    unsafe: bool,
) -> dict[str, str | None]:
    """Return the certificates of the networks by path, and of those near them by id; None where LEMUR's file fails."""
    if contribution.arch_uid is None or not queries:
        return {}
    codes = {path: query.code for path, query in queries.items()}
    near = {neighbor.id for novelty in novelties.values() for neighbor in novelty.nearest}
    for corpus in index.corpora:
        codes |= corpus.read_codes(near)
    payloads = {key: CodeToCertify(contribution.arch_uid, code) for key, code in codes.items()}
    with CachedSandbox(entries=[CERTIFY.guest], preload=("numpy",), unsafe=unsafe) as box:
        replies = list(CERTIFY.run(box, payloads))
    return {reply.key: None if reply.answer is None else reply.answer.certificate for reply in replies}


def _check_certificate(
    novelty: Novelty, query: Query, stated: str, answers: Mapping[str, str | None]
) -> Iterator[Refusal]:
    """Yield what is wrong with a certificate: another one in the name, or that of a network of the references, to which
    LEMUR's head would add the statistics. Args: stated: in the name."""
    own = answers.get(query.name)
    twin = next((neighbor.name for neighbor in novelty.nearest if answers.get(neighbor.id) == own), None)
    if own is not None and stated and stated != own:
        either = f"the digest of its code, {lemur_digest(query.code)}, or its certificate by ArchUID.py"
        yield Refusal("name", f"ends in neither {either}, {own[:40]}")
    elif own is not None and twin is not None:
        attached = "LEMUR's head would add its statistics to that network"
        yield Refusal("new", f"has the certificate of {twin}: {attached}")


def _set_arguments(
    statistics: Mapping[str, list[Json] | str], inspections: Mapping[str, Inspection], queries: Mapping[str, Query]
) -> None:
    """Run each network for the task and with the hyperparameters of its statistics, if it has some here."""
    by_name: dict[str, tuple[str, Json]] = {}
    for path, trials in sorted(statistics.items()):
        parts = match_statistics(path)[0].split("_")
        if len(parts) == 4 and isinstance(trials, list):
            by_name.setdefault(parts[3], (parts[0], trials[0]))
    for path, query in queries.items():
        named = dict.fromkeys((name for name in inspections[path].parameters if name not in PRM), _OTHER)
        task, prm = by_name.get(Path(path).stem, (query.task, {}))
        query.prm = named | {name: value for name, value in prm.items() if name not in _MEASURED}
        query.task = task if task in TASK_DATASETS else query.task


def _judge(novelty: Novelty, findings: Sequence[Refusal]) -> list[Refusal]:
    """Return why a network is refused that was run and compared. Args: findings: of its file alone."""
    found, trace = [], novelty.trace
    if trace.runs is False and "contract" not in {finding.rule for finding in findings}:
        found.append(Refusal("runs", f"does not run: {trace.error}"))
    if novelty.known:
        first = novelty.nearest[0]
        measures = [f"text {ratio(first.lexical)}", f"structure {ratio(first.structural)}"]
        measures += [f"graph {ratio(first.graph)}"] if first.graph is not None else []
        removed = f", which was removed for {first.stands_for_it}" if first.stands_for_it else ""
        found.append(Refusal("new", f"{novelty.reason}{removed} ({', '.join(measures)}; {first.folder})"))
    return found


def _describe_coverage(checked: Sequence[GatedFile]) -> Json:
    refused = Counter(rule for file in checked for rule in {finding.rule for finding in file.findings})
    files = [file for file in checked if file.kind == "network"]
    statistics = [file.path for file in checked if file.kind == "statistics"]
    with_statistics = {match_statistics(path)[0].rpartition("_")[2] for path in statistics}
    return {
        "networks": len(files),
        "passed": sum(file.passed for file in files),
        "refused": {rule: refused[rule] for rule in RULES if refused[rule]},
        "statistics": len(statistics),
        "without_statistics": sum(Path(file.path).stem not in with_statistics for file in files),
    }


# The verdict of the gate as one table, as JSON, and as SARIF, which code review shows at the lines.

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def build_table(report: GateReport) -> Iterator[str]:
    """Yield the lines of the table: each file with its nearest network or what was found, then the coverage."""
    if not report.files:
        yield from report.notes
        return
    shown = [(file, _show(file.path)) for file in report.files if file.kind == "network" or not file.passed]
    width = max((len(path) for _, path in shown), default=0)
    for file, path in shown:
        near = "nothing is like it"
        if file.nearest is not None and file.similarity is not None:
            near = f"nearest by text {ratio(file.similarity)} {file.nearest}"
        yield _show(f"pass  {path:<{width}}  {near}" if file.passed else f"FAIL  {path}")
        for finding in file.findings:
            yield _show(f"      line {finding.line}: {finding.rule}: {finding.message}")
    facts, refused = report.coverage, sum(not file.passed for file in report.files)
    yield f"{plural(len(report.files), 'file')}: {len(report.files) - refused:,} pass, {refused:,} refused"
    if facts["refused"]:
        yield f"  refused by {', '.join(f'{rule} {count:,}' for rule, count in facts['refused'].items())}"
    if facts["networks"]:
        counted = f"{plural(facts['networks'], 'network')}, {facts['without_statistics']:,} without statistics here"
        yield f"  {counted}; {plural(facts['statistics'], 'file')} of statistics"
    for note in report.notes:
        yield _show(f"note: {note}")


def _show(text: str) -> str:
    return make_visible(text).replace("\t", "\\t")


def build_json(report: GateReport) -> Json:
    """Return the report as one JSON object."""
    files = [{**asdict(file), "passed": file.passed} for file in report.files]
    return {"passed": report.passed, "coverage": report.coverage, "files": files, "notes": list(report.notes)}


def build_sarif(report: GateReport) -> Json:
    """Return the findings in SARIF 2.1.0.

    Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
    """
    rules = [{"id": rule, "shortDescription": {"text": text}} for rule, text in RULES.items()]
    version = package_versions()["lemur-curator"]
    driver = {"name": "lemur gate", "version": version, "rules": rules}
    results = []
    for file in report.files:
        address = {"uri": quote(os.fsencode(file.path))}
        for finding in file.findings:
            place = {"artifactLocation": address, "region": {"startLine": finding.line}}
            message = {"text": _show(finding.message)}
            result = {"ruleId": finding.rule, "level": "error", "message": message}
            results.append(result | {"locations": [{"physicalLocation": place}]})
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
