"""nn-dup and `lemur curate` on the same rows of LEMUR: `python -m benchmarks.versus_nndup SNAPSHOT`.

SNAPSHOT: what `lemur curate lemur` wrote. The released nn-dup and `lemur curate --graph off` run here, one after the
other; the peer gets its rows from memory (its own database takes minutes to build, which is not counted). All three
selections are then judged alike, under two rulers: our tokens, and one that is not ours (the tokens of the whole file,
with every name and number replaced). Pairs are found by a product of sparse matrices, which shares nothing with the
product's join; graphs are those of our tracer. Table 4 of the paper (arXiv:2512.04329) stands below.
"""

import argparse
import io
import json
import keyword
import os
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp

from benchmarks.measure import Cost, make_empty_cache, measure
from curate.compute.graphs import NetworkTracer, build_payload
from curate.compute.runs import read_parameters
from curate.model.corpus import code_features
from curate.sources import open_source
from lemur_core.files.cache import cache_folder
from lemur_core.files.markdown import table as markdown_table

#: Runs the peer on the rows of a Parquet file; `ab.nn.api` is replaced, since it would build LEMUR's database.
_PEER = """
import sys, types
from pathlib import Path
import pandas, pyarrow.parquet
api, nn = types.ModuleType("ab.nn.api"), types.ModuleType("ab.nn")
api.data = lambda only_best_accuracy: pyarrow.parquet.read_table(sys.argv[1]).to_pandas()
nn.api = api
sys.modules["ab.nn"], sys.modules["ab.nn.api"] = nn, api
from ab.dup.preprocessing import curate_from_lemur
curate_from_lemur(Path(sys.argv[2]))
"""
_NEAR, _TWIN, _WINDOW = 0.90, 0.80, 10
_PAPER = "paper, Table 4: 115,127 rows; removed 104,804 exact, 8,939 lexical, 320 structural; kept 1,064"

Near = Callable[[Collection[str], Collection[str], float], list[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class Selection:
    """The split of each kept code, by its id, and the ids of those that were removed as near by text."""

    splits: dict[str, str]
    lexical: set[str]

    def of(self, split: str) -> list[str]:
        """Return the ids of a split."""
        return [id_ for id_, name in self.splits.items() if name == split]


def main() -> None:
    """Run both tools, print the costs and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snapshot", type=Path)
    parser.add_argument("--source", default="lemur", help="that of the snapshot")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
        work = Path(scratch)
        rows = pa.Table.from_batches(list(open_source(given.source).batches())).drop_columns(["problem"])
        pq.write_table(rows, work / "rows.parquet")
        lemur = str(Path(sys.executable).with_name("lemur"))
        command = [lemur, "curate", given.source, "--graph", "off", "--out", f"{scratch}/text"]
        ours = measure(command, make_empty_cache(work, ("lemur",)))
        print(f"lemur curate --graph off, no features cached  {ours}", flush=True)
        theirs = run_peer(work / "rows.parquet", work / "peer")
        print(f"nn-dup 2.2.4                                  {theirs}", flush=True)
        networks = pq.read_table(given.snapshot / "networks.parquet", columns=["id", "nn_code"])
        codes = dict(zip(*(networks[name].to_pylist() for name in ("id", "nn_code")), strict=True))
        ids = pq.read_table(given.snapshot / "decisions.parquet", columns=["id"])["id"].to_pylist()
        selections = {
            "nn-dup": read_peer(work / "peer", ids),
            "text alone": read_ours(work / "text"),
            "with graphs": read_ours(given.snapshot),
        }
    columns = {name: {"kept": f"{len(selection.splits):,}"} for name, selection in selections.items()}
    for ruler, cut in (("our tokens", _our_shingles), ("names and numbers replaced", replaced_shingles)):
        near = join(codes, cut)
        for name, selection in selections.items():
            columns[name] |= {f"{label}; {ruler}": value for label, value in judge(selection, near).items()}
    first = first_rows(rows.select(["task", "dataset", "prm"]).to_pylist(), ids)
    with NetworkTracer() as tracer:
        for name, selection in selections.items():
            columns[name] |= count_graphs(tracer, selection, codes, first)
    lines = [[label, *(column[label] for column in columns.values())] for label in columns["nn-dup"]]
    print("\n".join(markdown_table(["", *columns], lines)))
    print(_PAPER)


def run_peer(rows: Path, out: Path) -> Cost:
    """Run nn-dup on the rows of a Parquet file."""
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    return measure([sys.executable, "-P", "-c", _PEER, str(rows), str(out)], env)


def read_peer(out: Path, ids: Sequence[str]) -> Selection:
    """Return what nn-dup wrote, by the number of the row, which ends its ids.

    Args: ids: of the code of each row.
    """
    splits, tombstones = (json.loads((out / f"{name}.json").read_text()) for name in ("splits", "tombstones"))
    kept = {_row_of(id_): split.replace("dev", "validation") for id_, split in splits.items()}
    lexical = {_row_of(id_) for id_, item in tombstones.items() if item["reason"].startswith("lexical")} - kept.keys()
    return Selection({ids[row]: split for row, split in kept.items()}, {ids[row] for row in lexical})


def _row_of(id_: str) -> int:
    return int(id_.rpartition("_")[2])


def read_ours(folder: Path) -> Selection:
    """Return what a snapshot kept, and what it removed as near by text."""
    rows = pq.read_table(folder / "networks.parquet", columns=["id", "kept", "stage", "split"]).to_pylist()
    return Selection(
        {row["id"]: row["split"] for row in rows if row["kept"]},
        {row["id"] for row in rows if row["stage"] == "lexical"},
    )


def _our_shingles(code: str) -> Collection[int]:
    features = code_features(code)
    return [] if isinstance(features, str) else features.shingles.tolist()


def replaced_shingles(code: str) -> Collection[int]:
    """Return the runs of ten tokens of a file, as hashes: every name is N, every number 0, comments and layout gone."""
    words = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.NAME:
                words.append(token.string if keyword.iskeyword(token.string) else "N")
            elif token.type in (tokenize.NUMBER, tokenize.OP, tokenize.STRING):
                words.append("0" if token.type == tokenize.NUMBER else token.string)
    except (tokenize.TokenError, IndentationError):
        return []  # no pair with what the tokenizer cannot read
    return {hash(tuple(words[at : at + _WINDOW])) for at in range(max(1, len(words) - _WINDOW + 1))}


def join(codes: dict[str, str], cut: Callable[[str], Collection[int]]) -> Near:
    """Return a function that gives the pairs of two lists of ids at or above a Jaccard similarity.

    Args: codes: texts by id. cut: the shingles of a text.
    """
    place = {id_: number for number, id_ in enumerate(codes)}
    column: dict[int, int] = {}
    columns: list[int] = []
    ends = [0]
    for code in codes.values():
        columns += [column.setdefault(shingle, len(column)) for shingle in cut(code)]
        ends.append(len(columns))
    matrix = sp.csr_matrix((np.ones(len(columns), np.int32), columns, ends), shape=(len(codes), len(column)))
    sizes = np.diff(ends)

    def near(ones: Collection[str], others: Collection[str], least: float) -> list[tuple[str, str]]:
        left, right = list(ones), list(others)
        rows: npt.NDArray[np.int64] = np.array([place[id_] for id_ in left], np.int64)
        across: npt.NDArray[np.int64] = np.array([place[id_] for id_ in right], np.int64)
        found = []
        for start in range(0, len(rows), 500):
            part = rows[start : start + 500]
            shared = sp.coo_matrix(matrix[part] @ matrix[across].T)
            union = sizes[part][shared.row] + sizes[across][shared.col] - shared.data
            hits = np.flatnonzero(shared.data >= least * union)
            pairs = zip(shared.row[hits].tolist(), shared.col[hits].tolist(), strict=True)
            found += [(left[start + a], right[b]) for a, b in pairs]
        return found

    return near


def judge(selection: Selection, near: Near) -> dict[str, str]:
    """Count what a selection promises: no near pair, a near kept code for each removal by text, no twin in train."""
    kept = selection.splits
    pairs = sum(a < b for a, b in near(kept, kept, _NEAR))
    covered = {a for a, _ in near(selection.lexical, kept, _NEAR)}
    test = selection.of("test")
    twins = {a for a, _ in near(test, selection.of("train"), _TWIN)}
    return {
        f"kept pairs (Jaccard >= {_NEAR:.2f})": f"{pairs:,}",
        "removed by text without a kept near-duplicate": f"{len(selection.lexical - covered):,}"
        f" of {len(selection.lexical):,}",
        f"test records near train (>= {_TWIN:.2f})": f"{len(twins)} of {len(test)}",
    }


def first_rows(rows: Sequence[dict[str, Any]], ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the first row of each code, which says how the network is called."""
    return dict(reversed(list(zip(ids, rows, strict=True))))


def count_graphs(
    tracer: NetworkTracer, selection: Selection, codes: dict[str, str], rows: dict[str, dict[str, Any]]
) -> dict[str, str]:
    """Count the kept codes that were traced, their graphs, and the test records whose graph a train record has."""
    numbered = list(selection.splits)
    traced = {numbered[number]: graph for number, graph in _trace(tracer, [(codes[i], rows[i]) for i in numbered])}
    in_train = {graph for id_, graph in traced.items() if selection.splits[id_] == "train"}
    test = [graph for id_, graph in traced.items() if selection.splits[id_] == "test"]
    return {
        "different graphs, of those traced": f"{len(Counter(traced.values())):,} of {len(traced):,}",
        "test records with the graph of one in train": f"{sum(graph in in_train for graph in test)} of {len(test)}",
    }


def _trace(tracer: NetworkTracer, networks: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[tuple[int, str]]:
    payloads = {}
    for number, (code, row) in enumerate(networks):
        given = build_payload(row["task"], row["dataset"], read_parameters(row["prm"]))
        if isinstance(given, dict):
            payloads[number] = given | {"code": code}
    for number, answer in tracer.run(payloads):
        if answer.graph is not None:
            yield number, answer.graph


if __name__ == "__main__":
    main()
