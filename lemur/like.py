"""`lemur search --like`: the blocks whose graphs and codes are most like those of another block, or of a network.

A graph is its Weisfeiler-Lehman labels up to widths. A code is two sets, of which each feature counts by how rare it
is: the words of all its names, and the shingles of `lemur_core.similarity.tokens`, which leave names open, so that a
renamed copy has the same; a quarter of them is kept.
"""

import hashlib
import json
import math
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from keyword import iskeyword
from pathlib import Path

from curate.compute.graphs import NetworkTracer, build_payload
from curate.compute.runs import PRM
from curate.sources.rows import TASK_DATASETS
from extract.model.blocks import find_block, iterate_blocks, read_blocks
from extract.search import SearchIndex, keep_database, open_index, read_database, show_indexing, split_name
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import read_python_file
from lemur_core.files.markdown import make_visible
from lemur_core.graphs.graph import Graph
from lemur_core.graphs.identity import subtrees
from lemur_core.graphs.sizes import Sized
from lemur_core.similarity.outline import outline_code
from lemur_core.similarity.tokens import class_texts, region_tokens, span_tokens
from manifests.records import Agreement, Block

Features = Mapping[int, int]  # with their counts

_AGREEMENTS = {"same": "same", "widths": "same up to widths", "different": ""}
_LEAST = 0.01  # similarity of a hit: words that all blocks share are hardly anything in common
_GRAPH = 0.5  # share of the graph in the similarity of two blocks that have one; the rest is their codes
_SAMPLED = 4  # one shingle in so many is kept
_TASK = "img-classification"
KINDS = ("graph", "words", "shingles")
_DIGITS = 15  # of a digest: 60 bits, which SQLite holds


@dataclass(frozen=True, slots=True)
class BlockComputation:
    """The computation that blocks are compared with. Args: features: `read_features`; graph, widths: G0 and G1.

    block: its name in the folder, if it is from there: it is left out of the hits.
    """

    title: str
    features: Mapping[str, Features]
    graph: str | None
    widths: str | None
    block: str | None = None


@dataclass(frozen=True, slots=True)
class SimilarBlock:
    """A block that has something in common with the requested one."""

    block: str
    category: str
    similarity: float  # mean of the next two; of the code alone if one of the blocks has no graph
    graph: float | None  # Jaccard of the labels, up to widths
    code: float  # mean of the Jaccard similarities of words and shingles
    agreement: Agreement
    file: str | None


def search_like(folder: Path, wanted: str, *, count: int, unsafe: bool = False, as_json: bool = False) -> str:
    """Return the blocks with the most similar graphs and codes, as a table without control characters, or as JSON.

    Args:
        wanted: a block of the folder, as `lemur show` names it, or a file with a LEMUR network, which is traced in the
            sandbox with the default inputs and hyperparameters of `lemur novel`.
    Raises: UserError if there is no such block or file, a file has no graph, or nothing has anything in common with it.
    """
    path = Path(wanted)
    computed = _trace_file(path, unsafe) if path.suffix == ".py" else block_in(folder, wanted)
    hits, matched = find_similar(folder, open_index(folder), computed, count)
    if as_json:
        facts = [{"rank": rank, **asdict(hit)} for rank, hit in enumerate(hits, start=1)]
        return json.dumps({"like": computed.title, "in": str(folder), "matched": matched, "hits": facts}, indent=2)
    lines = [f"like {computed.title}", "both   graph  code"]
    for hit in hits:
        graph = "–    " if hit.graph is None else f"{hit.graph:.3f}"
        numbers = f"{hit.similarity:.3f}  {graph}  {hit.code:.3f}"
        lines.append(f"{numbers}  {_AGREEMENTS[hit.agreement]:<17}  {hit.block}  ({hit.category})")
    if matched > len(hits):
        lines.append(f"{len(hits)} of {matched:,}; -k shows more")
    return "\n".join(map(make_visible, lines))


def _trace_file(path: Path, unsafe: bool) -> BlockComputation:
    code = read_python_file(path, "pass a Python file")
    inputs = build_payload(_TASK, TASK_DATASETS[_TASK], PRM)
    assert not isinstance(inputs, str)  # the reason why a task has no inputs; this one has
    with NetworkTracer(jobs=1, unsafe=unsafe) as tracer:
        ((_, traced),) = tracer.run({0: inputs | {"code": code}})
    if traced.graph is None:
        raise UserError(f"{path}: has no graph: {traced.error}; pass a network that meets LEMUR's contract and runs")
    return BlockComputation(str(path), read_features(code, traced.read_graph()), traced.graph, traced.widths)


def read_features(code: str, graph: Graph | None, name: str | None = None) -> dict[str, dict[int, int]]:
    """Return the features of a graph and of a code, by kind; none of what is not there, or not valid Python.

    Args: name: of a class of the code; None for all its networks and the functions that they call.
    """
    labels = {int(label[:_DIGITS], 16): count for label, count in subtrees(graph).items()} if graph is not None else {}
    outline = outline_code(code)
    if isinstance(outline, str):
        return {"graph": labels, "words": {}, "shingles": {}}
    lines = [(item.first, item.last) for item in outline.classes if item.name == name]
    tokens = region_tokens(code, outline)[0] if name is None else span_tokens(code, outline, lines)
    names = {token for token in tokens if token.isidentifier() and not iskeyword(token)}
    words = {_number(word): 1 for token in names for word in split_name(token)}
    shingles = {int(item) >> 4 for text in class_texts(code, name) for item in text.shingles if item % _SAMPLED == 0}
    return {"graph": labels, "words": words, "shingles": dict.fromkeys(shingles, 1)}


@lru_cache(maxsize=100_000)
def _number(word: str) -> int:
    return int(hashlib.blake2b(word.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS], 16)


def compare_features(
    rows: Sequence[tuple[int, ...]], wanted: Features, size: int, *, rare: bool = False
) -> dict[int, float]:
    """Return the Jaccard similarity of multisets of features, by block; none without a common feature.

    Args:
        rows: the features of blocks: number, feature, count.
        size: the number of all blocks.
        rare: a feature counts by the logarithm of how rare it is, instead of 1.
    """
    spread = Counter(feature for _, feature, _ in rows)

    def worth(feature: int) -> float:
        # Not zero: equal blocks are alike also where each block has all of their features.
        return max(math.log((size + 0.5) / (spread[feature] + 0.5)), 1e-3) if rare else 1.0

    own = sum(worth(feature) * count for feature, count in wanted.items())
    totals, shared = defaultdict[int, float](float), defaultdict[int, float](float)
    for number, feature, count in rows:
        value = worth(feature)
        totals[number] += value * count
        if feature in wanted:
            shared[number] += value * min(count, wanted[feature])
    return {number: common / (totals[number] + own - common) for number, common in shared.items()}


def open_features(folder: Path, index: SearchIndex) -> Path:
    """Return the database of the features of a folder, beside that of its words; blocks have its numbers.

    Raises: UserError if the table of blocks cannot be read.
    """
    path = index.path.with_name(f"like-{index.path.name}")
    keep_database(path, "features", lambda connection: _build(connection, folder, index))
    return path


def _build(connection: sqlite3.Connection, folder: Path, index: SearchIndex) -> None:
    rows = iterate_blocks(folder, ("block", "name", "code"))
    codes = {row.block: (row.name, row.code) for row in rows if row.code is not None}
    blocks = index.read("SELECT block, number FROM blocks")
    connection.execute("CREATE TABLE features (kind TEXT, number INTEGER, feature INTEGER, count INTEGER)")
    with show_indexing(len(blocks)) as advance:
        for block, number in blocks:
            name, code = codes.get(block, ("", ""))
            algorithm, graph = index.spec(number)["algorithm"], None
            if algorithm is not None:
                with suppress(ValueError, LookupError, TypeError, AttributeError):  # of another version of torch
                    graph = Sized.from_json(algorithm).evaluate()["eval"]
            for kind, own in read_features(code, graph, name).items():
                items = [(kind, number, feature, count) for feature, count in own.items()]
                connection.executemany("INSERT INTO features VALUES (?, ?, ?, ?)", items)
            advance(1)
    connection.execute("CREATE INDEX by_kind ON features (kind, number)")


def features_of(database: Path, number: int) -> dict[str, dict[int, int]]:
    """Return the features of one block, by kind."""
    query = "SELECT feature, count FROM features WHERE kind = ? AND number = ?"
    return {kind: dict(read_database(database, query, kind, number)) for kind in KINDS}


def compare(database: Path, kind: str, wanted: Features, size: int, *, rare: bool = False) -> dict[int, float]:
    """Return the similarity of each block's features of a kind. Args: as `compare_features`."""
    rows = read_database(database, "SELECT number, feature, count FROM features WHERE kind = ?", kind)
    return compare_features(rows, wanted, size, rare=rare)


def block_in(folder: Path, wanted: str) -> BlockComputation:
    """Return the computation of a block of a folder. Args: wanted: any name that `lemur show` accepts.

    Raises: UserError if there is no such block, or it has no code.
    """
    row, index = find_block(folder, wanted), open_index(folder)
    found = index.read("SELECT number FROM blocks WHERE block = ?", row.block)
    if not found:
        raise UserError(f"{row.block}: it has no code: it was not emitted; give another block")
    features = features_of(open_features(folder, index), found[0][0])
    return BlockComputation(row.block, features, row.graph, row.graph_widths, row.block)


def find_similar(
    folder: Path, index: SearchIndex, wanted: BlockComputation, limit: int
) -> tuple[list[SimilarBlock], int]:
    """Return the blocks with the most similar graphs and codes, and the number of all matches.

    Returns: hits with the same graph first, then those that are the same up to widths, then by similarity; and how many
        blocks there were before `limit`.
    Raises: UserError if no block has anything in common.
    """
    database = open_features(folder, index)
    graph = compare(database, "graph", wanted.features["graph"], index.size)
    words, shingles = (compare(database, kind, wanted.features[kind], index.size, rare=True) for kind in KINDS[1:])
    traced = {number for (number,) in read_database(database, "SELECT number FROM features WHERE kind = 'graph'")}
    agreements = {row.block: _agree(wanted, row) for row in read_blocks(folder, ("block", "graph", "graph_widths"))}
    facts = {number: (block, kind) for number, block, kind in index.read("SELECT number, block, category FROM blocks")}
    found = []
    for number, (block, category) in facts.items():
        code = (words.get(number, 0.0) + shingles.get(number, 0.0)) / 2
        own = graph.get(number, 0.0) if wanted.features["graph"] and number in traced else None
        similarity = code if own is None else _GRAPH * own + (1 - _GRAPH) * code
        if similarity > _LEAST and block != wanted.block:
            found.append((number, SimilarBlock(block, category, similarity, own, code, agreements[block], None)))
    if not found:
        raise UserError(f"{wanted.title}: no block has a graph or code with anything in common")
    # Equal identities first: similarity of labels is up to widths, and equal labels do not prove equality.
    found.sort(key=lambda item: (list(_AGREEMENTS).index(item[1].agreement), -item[1].similarity, item[0]))
    return [replace(hit, file=index.spec(number)["file"]) for number, hit in found[:limit]], len(found)


def _agree(wanted: BlockComputation, row: Block) -> Agreement:
    if row.graph is not None and row.graph == wanted.graph:
        return "same"
    return "widths" if row.graph_widths is not None and row.graph_widths == wanted.widths else "different"
