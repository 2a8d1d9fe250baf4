"""The verdict of the gate as one table, as JSON, and as SARIF, which code review shows at the lines."""

from collections.abc import Iterator
from dataclasses import asdict

from lemur.gate.checks import RULES, Refusal
from lemur.gate.gate import GatedFile, GateReport
from lemur_core.files import Json
from lemur_core.files.markdown import make_visible, plural, ratio
from manifests.folders.manifest import package_versions

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def build_table(report: GateReport) -> Iterator[str]:
    """Yield the lines of the table: each file with its nearest network or what was found, then the coverage."""
    shown = [file for file in report.files if file.kind == "network" or not file.passed]
    width = max((len(make_visible(file.path)) for file in shown), default=0)
    for file in shown:
        near = "nothing is like it"
        if file.nearest is not None and file.similarity is not None:
            near = f"nearest by text {ratio(file.similarity)} {file.nearest}"
        line = f"pass  {file.path:<{width}}  {near}" if file.passed else f"FAIL  {file.path}"
        yield make_visible(line)
        for finding in file.findings:
            yield make_visible(f"      line {finding.line}: {finding.rule}: {finding.message}")
    yield from describe_coverage(report)
    for note in report.notes:
        yield make_visible(f"note: {note}")


def describe_coverage(report: GateReport) -> Iterator[str]:
    """Yield the lines that sum a contribution up."""
    facts = report.coverage
    refused = sum(not file.passed for file in report.files)
    yield f"{plural(len(report.files), 'file')}: {len(report.files) - refused:,} pass, {refused:,} refused"
    if facts["refused"]:
        yield f"  refused by {', '.join(f'{rule} {count:,}' for rule, count in facts['refused'].items())}"
    if facts["networks"]:
        families = ", ".join(f"{name} {count:,}" for name, count in facts["families"].items())
        kinds = plural(len(facts["families"]), "family", "families")
        yield f"  {plural(facts['networks'], 'network')} of {kinds}: {families}"
        yield f"  {plural(facts['graphs'], 'graph')}, {facts['graphs_up_to_widths']:,} up to widths"
        alike = plural(facts["one_number"], "network differs", "networks differ")
        yield f"  {alike} from the nearest one by one number only"
        without = plural(facts["without_statistics"], "network")
        yield f"  {plural(facts['statistics'], 'file')} of statistics; {without} without any among these files"


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
    results = [_build_result(file, finding) for file in report.files for finding in file.findings]
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _build_result(file: GatedFile, finding: Refusal) -> Json:
    place = {"artifactLocation": {"uri": file.path}, "region": {"startLine": finding.line}}
    return {
        "ruleId": finding.rule,
        "level": "error",
        "message": {"text": finding.message},
        "locations": [{"physicalLocation": place}],
    }
