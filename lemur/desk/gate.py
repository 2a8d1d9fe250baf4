"""Decide on a contribution: each file by itself, then its networks compared with a reference and with each other.

Files are taken in their order: of two networks of a contribution that are near each other, the first passes and the
second names it. A network that is refused for another reason stands for none.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from curate.compute.graphs import NetworkTracer
from curate.compute.runs import PRM
from curate.folder.novelty import NovelNeighbor, Novelty, NoveltyIndex, Query, open_reference
from curate.sources.rows import TASK_DATASETS
from lemur.desk.checks import (
    RULES,
    GatedFile,
    Network,
    Refusal,
    Statistics,
    find_untrained,
    inspect_network,
    read_contribution,
    read_statistics,
)
from lemur_core.files import Json
from lemur_core.files.atomic import PathLike
from lemur_core.files.markdown import make_visible, plural, ratio
from lemur_core.files.progress import hide_progress
from lemur_core.files.progress import progress as show_progress
from lemur_core.files.workers import map_chunks
from lemur_core.sandbox.runtime import find_absence, option_for
from manifests.folders.manifest import package_versions
from train.model.certificates import compute_certificates
from train.model.contract import lemur_digest

_CHUNK = 16  # files in one message to a worker
_MEASURED = ("accuracy", "duration", "uid")  # in a trial besides its hyperparameters
_OTHER = 0.5  # a value in the range of LEMUR's search, for hyperparameters that a network names itself


@dataclass(frozen=True, slots=True)
class GateReport:
    """The verdict on a contribution: its files in their order, and notes."""

    files: tuple[GatedFile, ...]
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """True if no file is refused."""
        return all(file.passed for file in self.files)

    @property
    def coverage(self) -> Json:
        """The numbers of networks and statistics, and of files that each rule refuses."""
        refused = Counter(rule for file in self.files for rule in {finding.rule for finding in file.findings})
        networks = [file for file in self.files if isinstance(file, Network)]
        statistics = [file for file in self.files if isinstance(file, Statistics)]
        measured = {file.network for file in statistics}
        return {
            "networks": len(networks),
            "passed": sum(file.passed for file in networks),
            "refused": {rule: refused[rule] for rule in RULES if refused[rule]},
            "statistics": len(statistics),
            "without_statistics": sum(Path(file.path).stem not in measured for file in networks),
        }


def gate(
    paths: PathLike | Sequence[PathLike],
    *,
    against: Sequence[PathLike] = ("lemur",),
    runtime: Sequence[str] = (),
    jobs: int | None = None,
    unsafe_no_sandbox: bool = False,
    progress: bool = False,
) -> GateReport:
    """Check a contribution to LEMUR: contract, names, statistics, runs, what is new, secrets, licenses.

    Args:
        paths: one or more files, folders, or ranges of commits `A..B` of the repository in the working folder.
        against: snapshots, or sources of records such as `lemur` and `lemur-db`.
        runtime: packages that the networks can import in addition to the declared runtime.
        jobs: worker processes; all cores by default.
        unsafe_no_sandbox: run the networks without the sandbox; only for code that you trust.
        progress: show progress on stderr.

    Returns:
        The findings by file; none if there is nothing to check.

    Raises:
        UserError: if a path or a reference cannot be read, or no sandbox is available.

    Example:
        ```python
        from lemur import gate

        report = gate("network.py", against=["snapshot"])
        print(report.passed)
        ```
    """
    with hide_progress(unless=progress):
        find_absence(runtime)  # report missing packages before anything runs
        given = [paths] if isinstance(paths, str | os.PathLike) else paths
        contribution = read_contribution([os.fspath(path) for path in given])
        references = [open_reference(os.fspath(name)) for name in against]
        if not (contribution.networks or contribution.statistics or contribution.links):
            kinds = "networks (.py files) or statistics (stat/train/TASK_DATASET_METRIC_NAME/EPOCH.json)"
            note = f"nothing to check: no {kinds} among {plural(len(contribution.others), 'file')}"
            return GateReport((), (note,))
        index = NoveltyIndex(references, jobs=jobs)
        networks = _inspect(contribution.networks, jobs)
        needed: dict[str, tuple[str, ...]] = dict.fromkeys(contribution.names, ())
        needed |= {Path(network.path).stem: network.needed for network in networks}
        statistics = [read_statistics(path, data, needed.get) for path, data in contribution.statistics.items()]
        files: dict[str, GatedFile] = {file.path: file for file in (*networks, *statistics)}
        for path, link in contribution.links.items():
            where = f"{link}, whose content is not in this contribution; put the files themselves here"
            files[path] = GatedFile(path, "link", [Refusal("file", where)])
        for path, fault in find_untrained([file for file in statistics if file.passed], contribution.present):
            files[path].findings.append(Refusal("statistics", fault))

        _set_arguments(networks, statistics)
        compared = [(network, network.query) for network in networks if network.query is not None]
        with NetworkTracer(jobs=jobs, unsafe=unsafe_no_sandbox, runtime=runtime) as tracer:
            novelties = index.compare([query for _, query in compared], None if index.absence else tracer)
            certificates: Mapping[str, str | None] = {}
            if contribution.arch_uid is not None:
                codes = {query.name: query.code for _, query in compared}
                near = {neighbor.id for novelty in novelties for neighbor in novelty.nearest}
                for corpus in index.corpora:
                    codes |= corpus.read_codes(near)
                by_code = compute_certificates(contribution.arch_uid, codes.values(), unsafe=unsafe_no_sandbox)
                certificates = {name: by_code[code] for name, code in codes.items()}
            for (network, query), novelty in zip(compared, novelties, strict=True):
                network.findings += _judge(novelty, {finding.rule for finding in network.findings})
                network.findings += _judge_certificate(network, query, novelty, certificates)
                if novelty.text is not None:
                    network.nearest, network.similarity = novelty.text.name, novelty.text.similarity
            passing = [query for network, query in compared if network.passed]
            for number, earlier in index.find_repeats(passing, tracer).items():
                repeats = f"{earlier.how}, of these files ({_describe_similarity(earlier)})"
                files[passing[number].name].findings.append(Refusal("new", repeats))

        notes = index.list_notes()
        missing = [novelty.trace.missing for novelty in novelties if option_for(novelty.trace.missing)]
        if missing:
            lacking = f"{plural(len(missing), 'network')} not run, for want of {', '.join(sorted(set(missing)))}"
            notes.append(f"{lacking}, which LEMUR has: {option_for(missing[0])} runs them")
        if unchecked := [file.path for file in networks if file.certificate and not certificates.get(file.path)]:
            shown = unchecked[0] + (f" and {len(unchecked) - 1:,} more" if len(unchecked) > 1 else "")
            notes.append(f"{shown}: certificate, not checked: the digits are not the MD5 of the code, as up to 2.2.11")
        if others := len(contribution.others):
            notes.append(f"neither networks nor statistics, and not checked: {plural(others, 'file')}")
        return GateReport(tuple(files.values()), tuple(notes))


def _inspect(networks: Mapping[str, bytes], jobs: int | None) -> list[Network]:
    """Check each network by itself, in worker processes: one that ends Python's parser ends no more than its own."""
    items = list(networks.items())
    chunks = [items[at : at + _CHUNK] for at in range(0, len(items), _CHUNK)]
    results: list[Network] = []
    with show_progress("files", len(items), "networks") as advance:
        for part in map_chunks(inspect_network, chunks, _report_crash, jobs):
            results += part
            advance(len(part))
    return results


def _report_crash(item: tuple[str, bytes]) -> Network:
    return Network(item[0], "network", [Refusal("contract", "Python's parser crashed on it")])


def _set_arguments(networks: Sequence[Network], statistics: Sequence[Statistics]) -> None:
    """Run each network for the task and with the hyperparameters of its statistics, if it has some here."""
    first: dict[str, Statistics] = {}
    for file in sorted(statistics, key=lambda file: file.path):
        if file.network and file.trials:
            first.setdefault(file.network, file)
    for network in networks:
        if network.query is None:
            continue
        prm: Json = dict.fromkeys((name for name in network.parameters if name not in PRM), _OTHER)
        if (measured := first.get(Path(network.path).stem)) is not None:
            prm |= {name: value for name, value in measured.trials[0].items() if name not in _MEASURED}
            network.query.task = measured.task if measured.task in TASK_DATASETS else network.query.task
        network.query.prm = prm


def _judge_certificate(
    network: Network, query: Query, novelty: Novelty, certificates: Mapping[str, str | None]
) -> Iterator[Refusal]:
    """Yield what is wrong with a certificate: another one in the name, or that of a network of the references, to which
    LEMUR's head would add the statistics."""
    own = certificates.get(network.path)
    if own is None:
        return
    twin = next((neighbor.name for neighbor in novelty.nearest if certificates.get(neighbor.id) == own), None)
    if network.certificate not in ("", own):
        either = f"the digest of its code, {lemur_digest(query.code)}, or its certificate by ArchUID.py"
        yield Refusal("name", f"ends in neither {either}, {own}")
    elif twin is not None:
        yield Refusal("new", f"has the certificate of {twin}: LEMUR's head would add its statistics to that network")


def _judge(novelty: Novelty, rules: Collection[str]) -> Iterator[Refusal]:
    """Yield why a network is refused that was run and compared.

    One that imports what LEMUR's networks may, and that is not in the runtime here, is not to blame.

    Args: rules: that refuse its file alone.
    """
    if novelty.trace.runs is False and "contract" not in rules and not option_for(novelty.trace.missing):
        yield Refusal("runs", f"does not run: {novelty.trace.error}")
    if novelty.known:
        first = novelty.nearest[0]
        removed = f", which was removed for {first.stands_for_it}" if first.stands_for_it else ""
        yield Refusal("new", f"{first.how}{removed} ({_describe_similarity(first)}; {first.folder})")


def _describe_similarity(near: NovelNeighbor) -> str:
    graph = f", graph {ratio(near.graph)}" if near.graph is not None else ""
    return f"text {ratio(near.lexical)}, structure {ratio(near.structural)}{graph}"


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
    shown = ("path", "kind", "nearest", "similarity", "passed")
    files = [
        {name: getattr(file, name) for name in shown} | {"findings": [asdict(one) for one in file.findings]}
        for file in report.files
    ]
    return {"passed": report.passed, "coverage": report.coverage, "files": files, "notes": list(report.notes)}


def is_sarif(path: Path) -> bool:
    """Return True if a file holds findings as `build_sarif` returns them."""
    return path.is_file() and f'"$schema": "{_SCHEMA}"'.encode() in path.read_bytes()


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
