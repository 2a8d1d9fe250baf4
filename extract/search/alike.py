"""Find blocks that are like another one: by its graph, by its code, and whether they compute the same."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from extract.model.blocks import find_block, read_blocks
from extract.search.codes import CodeFeatures, open_codes
from extract.search.index import SearchIndex, open_index
from extract.search.ranking import Filters, filter_mask
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import make_visible
from manifests.records import Agreement, Block

_AGREEMENTS = {"same": "same", "widths": "same up to widths", "different": ""}


_LEAST = 0.01  # similarity of a hit: words that all blocks share are hardly anything in common
_GRAPH = 0.5  # share of the graph in the similarity of two blocks that have one; the rest is their codes


@dataclass(frozen=True, slots=True)
class BlockComputation:
    """The computation that blocks are compared with.

    Args:
        labels: Weisfeiler-Lehman labels of its graph in eval mode (`index.graph_labels`); none without a graph.
        code: features of its code.
        graph, widths: identities G0 and G1 of the graph.
        block: name of the block of the folder that it comes from, if any; it is left out of the hits.
    """

    title: str
    labels: Mapping[int, int]
    code: CodeFeatures
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
    code: float  # `codes.CodeIndex.similar`
    agreement: Agreement
    file: str | None


def block_in(folder: Path, wanted: str) -> BlockComputation:
    """Return the computation of a block of a folder.

    Args:
        folder: an extraction folder.
        wanted: a block id, or any name that `lemur show` accepts.

    Returns: a computation that names the block, so that `find_similar` leaves it out of the hits.
    Raises: UserError if there is no such block, or it has no code.
    """
    row = find_block(folder, wanted).row
    index = open_index(folder)
    if row.block not in index.facts["block"]:
        raise UserError(f"{row.block}: it has no code: it was not emitted; give another block")
    number = index.facts["block"].index(row.block)
    code = open_codes(folder, index).of_block(number)
    labels = index.labels.list_of_block(number)
    return BlockComputation(row.block, labels, code, row.graph, row.graph_widths, row.block)


def find_similar(
    folder: Path, index: SearchIndex, wanted: BlockComputation, filters: Filters, limit: int
) -> tuple[list[SimilarBlock], int]:
    """Return the blocks with the most similar graphs and codes, and the number of all matches.

    Args:
        folder, index: an extraction, and its index from `open_index`.
        wanted: the computation to compare with; the block that it comes from is left out.
        filters: conditions that a hit meets.
        limit: maximum number of hits.

    Returns: hits with the same graph first, then those that are the same up to widths, then by similarity; and how many
        blocks there were before `limit`.
    Raises: UserError if no block has the value of a filter, or no block that passes has anything in common.
    """
    graph, code = index.labels.similar(wanted.labels), open_codes(folder, index).similar(wanted.code)
    both = (index.labels.totals > 0) & bool(wanted.labels)  # a block without a graph has no labels
    similar = np.where(both, _GRAPH * graph + (1 - _GRAPH) * code, code)
    agreements = {row.block: _agreement(wanted, row) for row in read_blocks(folder, ("block", "graph", "graph_widths"))}
    names = index.facts["block"]
    allowed = filter_mask(index, filters) & (similar > _LEAST)
    numbers = [int(number) for number in np.flatnonzero(allowed) if names[number] != wanted.block]
    if not numbers:
        raise UserError(f"{wanted.title}: no block that passes has a graph or code with anything in common")
    # Equal identities first: similarity of labels is up to widths, and equal labels do not prove equality.
    ranks: dict[str | None, int] = {"same": 0, "widths": 1}
    numbers.sort(key=lambda number: (ranks.get(agreements.get(names[number]), 2), -similar[number], number))
    hits = [
        SimilarBlock(
            names[number],
            index.facts["category"][number],
            float(similar[number]),
            float(graph[number]) if both[number] else None,
            float(code[number]),
            agreements.get(names[number], "different"),
            index.spec(number)["file"],
        )
        for number in numbers[:limit]
    ]
    return hits, len(numbers)


def _agreement(wanted: BlockComputation, row: Block) -> Agreement:
    if row.graph is not None and row.graph == wanted.graph:
        return "same"
    return "widths" if row.graph_widths is not None and row.graph_widths == wanted.widths else "different"


def format_lines(wanted: BlockComputation, hits: list[SimilarBlock], matched: int) -> list[str]:
    """Return the hits as the lines of a table.

    Args: wanted, hits, matched: what was compared, and the two results of `find_similar`.
    Returns: two lines of heading, one line per hit, and one more if `matched` exceeds them; without control characters.
    """
    lines = [f"like {wanted.title}", "both   graph  code"]
    for hit in hits:
        graph = "–    " if hit.graph is None else f"{hit.graph:.3f}"
        numbers = f"{hit.similarity:.3f}  {graph}  {hit.code:.3f}"
        lines.append(f"{numbers}  {_AGREEMENTS[hit.agreement]:<17}  {hit.block}  ({hit.category})")
    if matched > len(hits):
        lines.append(f"{len(hits)} of {matched:,}; -k shows more")
    return [make_visible(line) for line in lines]


def format_json(wanted: BlockComputation, folder: Path, hits: list[SimilarBlock], matched: int) -> str:
    """Return the hits as JSON.

    Args: wanted, folder, hits, matched: what was compared with which folder, and the two results of `find_similar`.
    Returns: one object, indented; the ranks of its `hits` count from 1.
    """
    hit_facts = [
        {
            "rank": rank,
            "block": hit.block,
            "category": hit.category,
            "similarity": hit.similarity,
            "graph": hit.graph,
            "code": hit.code,
            "agreement": hit.agreement,
            "file": hit.file,
        }
        for rank, hit in enumerate(hits, start=1)
    ]
    return json.dumps({"like": wanted.title, "in": str(folder), "matched": matched, "hits": hit_facts}, indent=2)
