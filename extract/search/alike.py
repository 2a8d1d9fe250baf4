"""Find blocks that are like another one: by its graph, by its code, and whether they compute the same.

A graph is its Weisfeiler-Lehman labels up to widths. A code is two sets, of which each feature counts by how rare it
is: the words of all its names, and the shingles of `lemur_core.similarity.tokens`, which leave names open, so that a
renamed copy has the same; a quarter of them is kept.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from keyword import iskeyword
from pathlib import Path

from extract.model.blocks import find_block, read_blocks
from extract.search.index import Features, Filters, SearchIndex, SpecLine, open_index, split_name
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import make_visible
from lemur_core.graphs.graph import Graph
from lemur_core.graphs.identity import subtrees
from lemur_core.graphs.serialization import load_graphs
from lemur_core.similarity.outline import outline_code
from lemur_core.similarity.tokens import class_texts, region_tokens, span_tokens
from manifests.records import Agreement, Block

_AGREEMENTS = {"same": "same", "widths": "same up to widths", "different": ""}
_LEAST = 0.01  # similarity of a hit: words that all blocks share are hardly anything in common
_GRAPH = 0.5  # share of the graph in the similarity of two blocks that have one; the rest is their codes
_SAMPLED = 4  # one shingle in so many is kept
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


def read_features(
    spec: SpecLine | None, code: str, graph: Graph | None = None, *, name: str | None = None
) -> dict[str, dict[int, int]]:
    """Return the features of a graph and of a code, by kind.

    Args:
        spec: of the block, with its graph and name.
        graph, name: without a spec: of a network, and of a class of the code; None for all networks of the code.
        code: without a valid one there are no words and shingles.
    """
    if spec is not None and spec.get("algorithm") is not None:
        try:
            graph = load_graphs(spec["algorithm"])["eval"]
        except (ValueError, LookupError, TypeError, AttributeError):  # of another version of torch
            graph = None
    labels = {int(label[:_DIGITS], 16): count for label, count in subtrees(graph).items()} if graph is not None else {}
    outline, name = outline_code(code), spec["name"] if spec is not None else name
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


def block_in(folder: Path, wanted: str) -> BlockComputation:
    """Return the computation of a block of a folder. Args: wanted: any name that `lemur show` accepts.

    Raises: UserError if there is no such block, or it has no code.
    """
    row, index = find_block(folder, wanted).row, open_index(folder)
    found = index.read("SELECT number FROM blocks WHERE block = ?", row.block)
    if not found:
        raise UserError(f"{row.block}: it has no code: it was not emitted; give another block")
    features = {kind: index.features(kind, found[0][0]) for kind in ("graph", "words", "shingles")}
    return BlockComputation(row.block, features, row.graph, row.graph_widths, row.block)


def find_similar(
    folder: Path, index: SearchIndex, wanted: BlockComputation, filters: Filters, limit: int
) -> tuple[list[SimilarBlock], int]:
    """Return the blocks with the most similar graphs and codes, and the number of all matches.

    Returns: hits with the same graph first, then those that are the same up to widths, then by similarity; and how many
        blocks there were before `limit`.
    Raises: UserError if no block has the value of a filter, or no block that passes has anything in common.
    """
    graph = index.similar("graph", wanted.features["graph"])
    words, shingles = (index.similar(kind, wanted.features[kind], rare=True) for kind in ("words", "shingles"))
    traced = {number for (number,) in index.read("SELECT DISTINCT number FROM features WHERE kind = 'graph'")}
    agreements = {row.block: _agree(wanted, row) for row in read_blocks(folder, ("block", "graph", "graph_widths"))}
    facts = {number: (block, kind) for number, block, kind in index.read("SELECT number, block, category FROM blocks")}
    found = []
    for number in index.filter(filters):
        block, category = facts[number]
        code = (words.get(number, 0.0) + shingles.get(number, 0.0)) / 2
        own = graph.get(number, 0.0) if wanted.features["graph"] and number in traced else None
        similarity = code if own is None else _GRAPH * own + (1 - _GRAPH) * code
        if similarity > _LEAST and block != wanted.block:
            found.append((number, SimilarBlock(block, category, similarity, own, code, agreements[block], None)))
    if not found:
        raise UserError(f"{wanted.title}: no block that passes has a graph or code with anything in common")
    # Equal identities first: similarity of labels is up to widths, and equal labels do not prove equality.
    found.sort(key=lambda item: (list(_AGREEMENTS).index(item[1].agreement), -item[1].similarity, item[0]))
    hits = [
        SimilarBlock(**{name: getattr(hit, name) for name in hit.__slots__} | {"file": index.spec(number)["file"]})
        for number, hit in found[:limit]
    ]
    return hits, len(found)


def _agree(wanted: BlockComputation, row: Block) -> Agreement:
    if row.graph is not None and row.graph == wanted.graph:
        return "same"
    return "widths" if row.graph_widths is not None and row.graph_widths == wanted.widths else "different"


def format_lines(wanted: BlockComputation, hits: list[SimilarBlock], matched: int) -> list[str]:
    """Return the hits as the lines of a table, without control characters."""
    lines = [f"like {wanted.title}", "both   graph  code"]
    for hit in hits:
        graph = "–    " if hit.graph is None else f"{hit.graph:.3f}"
        numbers = f"{hit.similarity:.3f}  {graph}  {hit.code:.3f}"
        lines.append(f"{numbers}  {_AGREEMENTS[hit.agreement]:<17}  {hit.block}  ({hit.category})")
    if matched > len(hits):
        lines.append(f"{len(hits)} of {matched:,}; -k shows more")
    return [make_visible(line) for line in lines]


def format_json(wanted: BlockComputation, folder: Path, hits: list[SimilarBlock], matched: int) -> str:
    """Return the hits as one JSON object, indented; ranks count from 1."""
    facts = [
        {"rank": rank, **{name: getattr(hit, name) for name in hit.__slots__}} for rank, hit in enumerate(hits, start=1)
    ]
    return json.dumps({"like": wanted.title, "in": str(folder), "matched": matched, "hits": facts}, indent=2)
