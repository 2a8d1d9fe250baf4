"""How new is what models wrote? `python -m benchmarks.generated SNAPSHOT --out DIR`.

For each prefix of names in LEMUR: how many networks, and how many of them differ as texts, as sets of tokens, as
structures, as computations (graphs of eval mode) and as computations up to widths. Texts are those of the snapshot's
table of all networks, behaviors those of the networks that it measured: those that may have the numbers of others.
Graphs are traced here for the first codes of each prefix by id, which is a digest, since a snapshot traces only what
its texts left. "new": in no network of another prefix.
"""

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from curate.compute.runs import PRM, InputCase, NetFailure, build_case, open_box, read_answer
from curate.model.corpus import FeatureStore, FeatureTable, fill_store
from lemur_core.describe.picture import BLUE, FAINT, INK, ORANGE, save_figure
from lemur_core.files import Json
from lemur_core.files.atomic import write_text
from lemur_core.files.markdown import code_span, count, table
from lemur_core.sandbox import META_PRELOAD, Limits
from lemur_core.sandbox.stage import Retries, SandboxStage
from manifests.folders.kinds import SNAPSHOT
from manifests.records import NetworkRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TRACED = 150
#: Prefixes with fewer networks were not generated in bulk: they are one row of the table.
_MANY = 50
OTHERS = "others"

#: What is distinct, in the order of the columns; the last two of the traced networks.
TEXTS = ("texts", "without comments", "token sets", "structures")
GRAPHS = ("graphs", "up to widths")
BEHAVIORS = "behaviors"
_COLORS = (FAINT, "#009E73", BLUE, INK, ORANGE, "#CC79A7")


@dataclass(frozen=True, slots=True)
class FamilyNovelty:
    """One prefix: counts of distinct items by column, and how many of them no other prefix has."""

    prefix: str
    networks: int  # names
    traced: int
    measured: int
    distinct: Mapping[str, int]
    new: Mapping[str, int]


def main() -> None:
    """Count, print the table, and write it with its figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snapshot", type=Path, help="a snapshot with a table of networks")
    parser.add_argument("--out", type=Path, required=True, help="the folder for table and figure")
    parser.add_argument("--traced", type=int, default=_TRACED, help="codes to trace of a prefix (default: %(default)s)")
    options = parser.parse_args()
    networks = sorted(SNAPSHOT.rows(options.snapshot, NetworkRow), key=lambda network: network.id)
    families = count_families(networks, options.traced)
    lines = report(families)
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / "generated.md", "\n".join(lines))
    draw_figure(options.out / "generated.png", families)
    print("\n".join(lines))


def count_families(networks: Sequence[NetworkRow], traced: int) -> list[FamilyNovelty]:
    """Return the counts of each prefix, the most frequent first; rare prefixes together come last.

    Args: networks: all codes, by id. traced: codes to trace of each prefix.
    Raises: UserError if no sandbox is available.
    """
    sizes: defaultdict[str, int] = defaultdict(int)
    for network in networks:
        sizes[network.prefix] += len(network.names)
    members: dict[str, list[int]] = {}
    for number, network in enumerate(networks):
        members.setdefault(network.prefix if sizes[network.prefix] >= _MANY else OTHERS, []).append(number)
    chosen = [number for own in members.values() for number in own[:traced]]
    graphs = trace_codes({number: networks[number].nn_code for number in chosen})
    features = _read_features(networks)
    items: dict[str, dict[int, object]] = {
        "texts": {number: network.id for number, network in enumerate(networks)},
        "without comments": dict(enumerate(features.tree.tolist())),
        "token sets": dict(enumerate(features.shingle_set.tolist())),
        "structures": dict(enumerate(features.fingerprint.tolist())),
        "graphs": {number: answer.graph for number, answer in graphs.items()},
        "up to widths": {number: answer.widths for number, answer in graphs.items()},
        BEHAVIORS: {number: network.behavior for number, network in enumerate(networks) if network.behavior},
    }
    families = []
    for prefix, own in members.items():
        inside = set(own)
        distinct, new = {}, {}
        for column, values in items.items():
            here = {values[number] for number in own if number in values}
            elsewhere = {value for number, value in values.items() if number not in inside}
            distinct[column], new[column] = len(here), len(here - elsewhere)
        names = sum(len(networks[number].names) for number in own)
        traced_here, measured = (sum(number in items[column] for number in own) for column in ("graphs", BEHAVIORS))
        families.append(FamilyNovelty(prefix, names, traced_here, measured, distinct, new))
    return sorted(families, key=lambda family: (family.prefix == OTHERS, -family.networks, family.prefix))


@dataclass(frozen=True, slots=True)
class GraphRequest:
    """A network to trace, as `generated_entry` takes it."""

    code: str
    prm: Json
    case: Json
    version: int = 1  # of the entry, whose text is no part of what outcomes are remembered by


@dataclass(frozen=True, slots=True)
class NetGraph:
    """What a network that runs computes, exactly and up to widths."""

    runs: Literal[True]
    graph: str
    widths: str


_TRACE = SandboxStage[NetGraph | NetFailure](
    "benchmarks.generated_entry:measure_graph",
    NetGraph | NetFailure,
    Limits(wall_seconds=300, cpu_seconds=60, memory_bytes=6 * 2**30),
    Retries.NONE,
    "graphs",
    "networks",
)


def trace_codes(codes: Mapping[int, str]) -> dict[int, NetGraph]:
    """Return the graphs of those of some codes, by number, that run with three images of LEMUR's usual size."""
    case = build_case("img-classification", "cifar-10", "norm_256")
    assert isinstance(case, InputCase)
    given = asdict(replace(case, in_shape=(3, *case.in_shape[1:]), output=None))
    requests = {str(number): GraphRequest(code, PRM | {"batch": 3}, given) for number, code in codes.items()}
    with open_box([_TRACE], jobs=1, unsafe=False, preload=META_PRELOAD) as box:
        answers = {int(reply.key): read_answer(reply) for reply in _TRACE.run(box, requests)}
    return {number: answer for number, answer in sorted(answers.items()) if isinstance(answer, NetGraph)}


def _read_features(networks: Sequence[NetworkRow]) -> FeatureTable:
    store, ids = FeatureStore(), [bytes.fromhex(network.id) for network in networks]
    missing = ((id_, network.nn_code) for id_, network in zip(ids, networks, strict=True) if id_ not in store)
    fill_store(store, missing, 1)
    return store.table(ids)


def report(families: Sequence[FamilyNovelty]) -> list[str]:
    """Return the table as Markdown: distinct, and in parentheses those that no other prefix has."""
    rows = []
    for family in families:
        name = family.prefix if family.prefix == OTHERS else code_span(family.prefix)
        cells = [
            f"{count(family.distinct[column])} ({count(family.new[column])})" for column in (*TEXTS, *GRAPHS, BEHAVIORS)
        ]
        texts, graphs, behaviors = cells[: len(TEXTS)], cells[len(TEXTS) : -1], cells[-1]
        sizes = [count(number) for number in (family.networks, family.traced, family.measured)]
        rows.append([name, sizes[0], *texts, sizes[1], *graphs, sizes[2], behaviors])
    return table(["prefix", "networks", *TEXTS, "traced", *GRAPHS, "measured", BEHAVIORS], rows)


def draw_figure(path: Path, families: Sequence[FamilyNovelty]) -> None:
    """Draw the share of networks that are distinct, in each sense; of graphs the share of those that were traced."""

    def draw(figure: "Figure") -> None:
        figure.set_size_inches(8.0, 1.4 + 0.34 * len(families))
        axes = figure.subplots()
        axes.set_yticks(range(len(families)), [family.prefix for family in families])
        axes.set_ylim(len(families) - 0.5, -0.5)  # upside down, so that the first bar is at the top
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        for column, color in zip((*TEXTS, *GRAPHS), _COLORS, strict=True):
            shares = [
                family.distinct[column] / max(1, family.traced if column in GRAPHS else family.networks)
                for family in families
            ]
            axes.plot(100 * np.array(shares), range(len(families)), "o", color=color, label=column, alpha=0.85)
        axes.set_xlim(-2, 102)
        axes.set_xlabel("distinct, % of the networks (of graphs: of those that were traced)")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=6, fontsize=8.5)

    save_figure(path, draw)


if __name__ == "__main__":
    main()
