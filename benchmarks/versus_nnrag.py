"""`lemur extract` against the released nn-rag: `python -m benchmarks.versus_nnrag --names FILE.json [--peer-limit N]`.

FILE is a JSON list of class names. Both tools get the 22 repositories of the corpus `paper`, fetched before the clock
starts, and begin with nothing indexed, one after the other, in this very run. What each then delivers as valid is
judged alike, by `benchmarks.nnrag_judge`: in our sandbox, by rules that neither tool had a hand in.

Claims, on the 1,287 target names of the paper: of those that the repositories still have, at least 95 % closed (nn-rag:
about half); cold index under 90 s on 2 cores. The whole run takes the peer about 20 minutes of CPU time.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Cost, make_empty_cache, measure
from benchmarks.nnrag_judge import Judgement, Originals, judge, read_originals
from benchmarks.nnrag_peer import VERSION, PeerRun, run_peer
from extract.model.blocks import read_blocks
from extract.proofs.runtime import runtime_for
from extract.sources import open_available
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
from lemur_core.files.workers import available_cores
from manifests.records.corpus import load_corpus

_INDEX = """
import sys
from extract.extractor import BlockExtractor
with BlockExtractor(corpus=sys.argv[1]) as extractor:
    extractor.warm_index_once()
"""


@dataclass(frozen=True, slots=True)
class OurRun:
    """What `lemur extract` made of the names, and what each phase took."""

    index_cold: Cost
    index_warm: Cost
    extract: Cost
    generated: int
    accepted: dict[str, str]
    requires: tuple[str, ...]


def main() -> None:
    """Run both, judge both, print a table and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", type=Path, required=True, metavar="FILE", help="a JSON list of class names")
    parser.add_argument("--peer-limit", type=int, metavar="N", help="give the peer only N of them, evenly spread")
    parser.add_argument("--peer-workers", type=int, default=1, metavar="N", help="threads of the peer (default: 1)")
    parser.add_argument("--corpus", default="paper", metavar="NAME|FILE", help="another corpus (default: paper)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write all figures there")
    arguments = parser.parse_args()
    names = list(dict.fromkeys(json.loads(arguments.names.read_text(encoding="utf-8"))))
    peer_names = _spread(names, arguments.peer_limit)
    corpus = load_corpus(arguments.corpus)
    sources, unopened = open_available(corpus)
    if unopened:
        raise UserError(f"not all sources can be had: {unopened}")
    originals = read_originals(sources, names)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
        ours = _run_ours(Path(scratch), arguments.corpus, names)
        _print_costs("lemur", ours)
        peer = run_peer(Path(scratch) / "peer", corpus, sources, peer_names, arguments.peer_workers)
        _print_costs(f"nn-rag {VERSION}", peer)
    folder = runtime_for(ours.requires).folder
    columns: dict[str, tuple[list[str], OurRun | PeerRun, dict[str, Judgement]]] = {
        "lemur": (names, ours, _judge("lemur", ours.accepted, originals, folder)),
        f"nn-rag {VERSION}": (peer_names, peer, _judge("nn-rag", peer.accepted, originals, folder)),
    }
    figures = {tool: _figures(asked, run, judged, originals) for tool, (asked, run, judged) in columns.items()}
    if peer_names != names:
        judged = columns["lemur"][2]
        figures["lemur, same names"] = _quality(peer_names, ours.accepted, judged, originals)
    _print(figures)
    _print_ratios(ours, peer, figures, len(names), len(peer_names))
    if arguments.json:
        details = {
            tool: {n: dataclasses.asdict(j) for n, j in judged.items()} for tool, (_, _, judged) in columns.items()
        }
        text = json.dumps({"figures": figures, "files": details}, indent=1)
        arguments.json.write_text(text, encoding="utf-8")


def _spread(names: Sequence[str], limit: int | None) -> list[str]:
    if limit is None or limit >= len(names):
        return list(names)
    return [names[number * len(names) // limit] for number in range(limit)]


def _run_ours(work: Path, corpus: str, names: Sequence[str]) -> OurRun:
    """Run our command with an empty cache, but for the sources and the runtime of the blocks."""
    out, wanted, env = work / "out", work / "names.json", make_empty_cache(work) | {"PYTHONHASHSEED": "0"}
    wanted.write_text(json.dumps(list(names)))
    index = [sys.executable, "-P", "-c", _INDEX, corpus]
    lemur = [str(Path(sys.executable).with_name("lemur")), "extract", "--corpus", corpus, "--level", "executed"]
    cold, warm = measure(index, env), measure(index, env)
    cost = measure([*lemur, "--names", str(wanted), "--out", str(out)], env)
    rows = read_blocks(out, ["name", "level", "code", "requires"])
    accepted = {row.name: row.code or "" for row in rows if row.level == "executed"}
    requires = {text for row in rows for text in row.requires}
    generated = sum(row.code is not None for row in rows)
    return OurRun(cold, warm, cost, generated, accepted, tuple(sorted(requires)))


def _print_costs(tool: str, run: OurRun | PeerRun) -> None:
    print(f"{tool:<14} cold index  {run.index_cold}")
    print(f"{tool:<14} warm start  {run.index_warm}")
    print(f"{tool:<14} extraction  {run.extract}", flush=True)


def _judge(tool: str, codes: Mapping[str, str], originals: Originals, folder: Path | None) -> dict[str, Judgement]:
    note(f"judging {len(codes)} files of {tool}")
    return judge(codes, originals, folder, available_cores())


def _figures(
    asked: Sequence[str], run: OurRun | PeerRun, judged: Mapping[str, Judgement], originals: Originals
) -> dict[str, Any]:
    extraction, per = run.extract.cpu - run.index_warm.cpu, 1000 / len(asked)
    return {
        **_quality(asked, run.accepted, judged, originals),
        "files made": run.generated,
        "cold index, CPU s": round(run.index_cold.cpu, 1),
        "cold index, wall s": round(run.index_cold.wall, 1),
        "warm start, CPU s": round(run.index_warm.cpu, 1),
        "warm start, wall s": round(run.index_warm.wall, 1),
        "extraction and validation, CPU s": round(extraction, 1),
        "extraction and validation, CPU ms a name": round(extraction * per),
        "extraction and validation, wall s": round(run.extract.wall - run.index_warm.wall, 1),
        "peak memory, MiB, shared pages in each process": round(max(run.index_cold.peak_mib, run.extract.peak_mib)),
        **({"accepted with unresolved names by its own account": run.unresolved} if isinstance(run, PeerRun) else {}),
    }


def _quality(
    asked: Sequence[str], accepted: Mapping[str, str], judged: Mapping[str, Judgement], originals: Originals
) -> dict[str, Any]:
    existing = [name for name in asked if name in originals.outlines]
    files = [judged[name] for name in existing if name in judged]
    closed = [file for file in files if file.closed]
    return {
        "names asked for": len(asked),
        "of those, classes in the sources": len(existing),
        "accepted by the tool itself": sum(name in accepted for name in existing),
        "run in a clean process": sum(file.runs for file in files),
        "give the class, an nn.Module": sum(file.is_module for file in files),
        "no undefined names": sum(not file.undefined for file in files),
        "import nothing of the corpus": sum(not file.foreign for file in files),
        "closed: all of these": len(closed),
        "closed, share of the classes in the sources": round(len(closed) / max(len(existing), 1), 4),
        "closed, and every method's decorators kept": sum(file.decorators_kept for file in closed),
    }


def _print(figures: Mapping[str, Mapping[str, Any]]) -> None:
    rows = list(dict.fromkeys(row for column in figures.values() for row in column))
    print(f"{'':<52}" + "".join(f"{tool:>20}" for tool in figures))
    for row in rows:
        print(f"{row:<52}" + "".join(f"{column.get(row, ''):>20}" for column in figures.values()))


def _print_ratios(
    ours: OurRun, peer: PeerRun, figures: Mapping[str, Mapping[str, Any]], n_ours: int, n_peer: int
) -> None:
    key = "closed: all of these"
    same = figures.get("lemur, same names", figures["lemur"])[key], figures[f"nn-rag {VERSION}"][key]
    cpu = (peer.extract.cpu - peer.index_warm.cpu) / n_peer / ((ours.extract.cpu - ours.index_warm.cpu) / n_ours)
    wall = (peer.extract.wall - peer.index_warm.wall) / n_peer / ((ours.extract.wall - ours.index_warm.wall) / n_ours)
    print(f"closed blocks of the same names: {same[0]} to {same[1]}, {same[0] / max(same[1], 1):.2f}x the peer's")
    index_cpu, index_wall = peer.index_cold.cpu / ours.index_cold.cpu, peer.index_cold.wall / ours.index_cold.wall
    print(f"cold index: {index_cpu:.1f}x less CPU time, {index_wall:.1f}x faster", end=" ")
    print(f"(claim: under 90 s, is {ours.index_cold.wall:.0f} s)")
    print(f"extraction and validation of a name: {cpu:.1f}x less CPU time, {wall:.1f}x faster")


if __name__ == "__main__":
    main()
