"""The gate on networks of LEMUR itself: `python -m benchmarks.gate [--codes 500] [--against lemur ...]`.

Codes of some prefixes of the default release are drawn by a seed and written, with all their statistics, as a
contributor would add them; the gate compares them with each release given, run by run. LEMUR took all of them, so what
another rule than `new` refuses is read: the first message of each kind is printed.
"""

import argparse
import json
import random
import re
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

from benchmarks.measure import children_cpu
from curate.model.options import get_prefix
from curate.sources.lemur import LemurRelease, read_codes, stat_files
from lemur import gate
from lemur_core.files.cache import cache_folder
from lemur_core.files.progress import note

_PREFIXES = ("rag", "alt")
_DIGITS = re.compile(r"[\d.]*\d")


def main() -> None:
    """Draw, write, gate and print the counts as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codes", type=int, default=500, help="codes of each prefix")
    parser.add_argument("--against", nargs="+", default=["lemur"], help="a release for each run")
    parser.add_argument("--seed", default="20261129")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = write_contribution(Path(folder), given.codes, given.seed)
        note(f"{files['networks']:,} networks, {files['statistics']:,} files of statistics")
        runs = {name: count_refusals(folder, name) for name in given.against}
    print(json.dumps({"seed": given.seed, "drawn": files, "against": runs}, indent=1))


def write_contribution(folder: Path, codes: int, seed: str) -> dict[str, int]:
    """Write the drawn networks and their statistics as they lie in LEMUR's tree, and return how many files."""
    release = LemurRelease()
    release.inputs()  # fetches the wheel
    (wheel,) = cache_folder("lemur", release.version).glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(read_codes(archive))
        chooser = random.Random(seed)
        groups = ([name for name in names if get_prefix(name) == prefix] for prefix in _PREFIXES)
        drawn = {name for group in groups for name in chooser.sample(group, min(codes, len(group)))}
        statistics = [path for path in stat_files(archive) if path.split("/")[-2].rpartition("_")[2] in drawn]
        archive.extractall(folder, [*(f"ab/nn/nn/{name}.py" for name in sorted(drawn)), *statistics])
    return {"networks": len(drawn), "statistics": len(statistics)}


def count_refusals(folder: str, against: str) -> dict[str, object]:
    """Gate the contribution and count files by the rules that refuse them, and messages by kind, with an example."""
    cpu = children_cpu()
    report = gate(folder, against=[against], jobs=1)
    kinds: dict[str, list[str]] = {}
    for file in report.files:
        for finding in file.findings:
            words = finding.message.partition(": " if finding.rule == "new" else " (line ")[0]
            found = kinds.setdefault(f"{finding.rule}: {_DIGITS.sub('#', words)}", [])
            found.append(f"{file.path}: {finding.message}".replace(f"{folder}/ab/nn/nn/", ""))
    rules = Counter(" + ".join(sorted({finding.rule for finding in file.findings})) for file in report.files)
    by_frequency = sorted(kinds.items(), key=lambda item: -len(item[1]))
    return {
        "coverage": report.coverage,
        "rules": {rule or "pass": number for rule, number in rules.most_common()},
        "kinds": {kind: {"findings": len(found), "first": found[0]} for kind, found in by_frequency},
        "notes": list(report.notes),
        "cpu_seconds": round(children_cpu() - cpu),
    }


if __name__ == "__main__":
    main()
