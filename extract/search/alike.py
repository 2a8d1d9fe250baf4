"""Find blocks by computation: the similarity of each block's graph to another graph, and whether they are the same."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from extract.model.blocks import find_block, read_blocks
from extract.search.index import SearchIndex, open_index
from extract.search.ranking import Filters, filter_mask
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import make_visible
from manifests.records import Agreement, Block

_AGREEMENTS = {"same": "same", "widths": "same up to widths", "different": ""}


@dataclass(frozen=True, slots=True)
class BlockComputation:
    """The computation that blocks are compared with.

    Args:
        labels: Weisfeiler-Lehman labels of its graph in eval mode (`lemur_core.graphs.identity.subtrees`).
        graph, widths: its identities G0 and G1.
        block: name of the block of the folder that it comes from, if any; it is left out of the hits.
    """

    title: str
    labels: Mapping[str, int]
    graph: str | None
    widths: str | None
    block: str | None = None


@dataclass(frozen=True, slots=True)
class SimilarBlock:
    """A block whose graph has something in common with the requested one."""

    block: str
    category: str
    similarity: float  # Jaccard of the labels, up to widths
    agreement: Agreement
    file: str | None


def block_in(folder: Path, wanted: str) -> BlockComputation:
    """Return the computation of a block of a folder.

    Args:
        folder: an extraction folder.
        wanted: a block id, or any name that `lemur show` accepts.

    Returns: a computation that names the block, so that `find_similar` leaves it out of the hits.
    Raises: UserError if there is no such block, or it has no comparable graph.
    """
    row = find_block(folder, wanted).row
    index = open_index(folder)
    labels = (
        index.labels.list_of_block(index.facts["block"].index(row.block)) if row.block in index.facts["block"] else {}
    )
    if not labels:
        why = "its graph is of another form or another torch" if row.graph else "it has no graph: it was not traced"
        raise UserError(f"{row.block}: {why}; give another block")
    return BlockComputation(row.block, labels, row.graph, row.graph_widths, row.block)


def find_similar(
    folder: Path, index: SearchIndex, wanted: BlockComputation, filters: Filters, limit: int
) -> tuple[list[SimilarBlock], int]:
    """Return the blocks with the most similar graphs, and the number of all matches.

    Args:
        folder, index: an extraction, and its index from `open_index`.
        wanted: the computation to compare with; the block that it comes from is left out.
        filters: conditions that a hit meets.
        limit: maximum number of hits.

    Returns: hits with the same graph first, then those that are the same up to widths, then by similarity; and how many
        blocks there were before `limit`.
    Raises: UserError if no block has the value of a filter, or no block that passes has anything in common.
    """
    # A block without a graph has no labels.
    allowed = filter_mask(index, filters) & (index.labels.totals > 0)
    similar = index.labels.similar(wanted.labels)
    agreements = {row.block: _agreement(wanted, row) for row in read_blocks(folder, ("block", "graph", "graph_widths"))}
    names = index.facts["block"]
    numbers = [int(number) for number in np.flatnonzero(allowed) if names[number] != wanted.block]
    numbers = [number for number in numbers if similar[number] > 0 or agreements.get(names[number]) == "same"]
    if not numbers:
        raise UserError(f"{wanted.title}: no block that passes has a graph with anything in common")
    # Equal identities first: similarity of labels is up to widths, and equal labels do not prove equality.
    ranks: dict[str | None, int] = {"same": 0, "widths": 1}
    numbers.sort(key=lambda number: (ranks.get(agreements.get(names[number]), 2), -similar[number], number))
    hits = [
        SimilarBlock(
            names[number],
            index.facts["category"][number],
            float(similar[number]),
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
    lines = [f"like {wanted.title}", "graph"]
    lines += [f"{hit.similarity:.3f}  {_AGREEMENTS[hit.agreement]:<17}  {hit.block}  ({hit.category})" for hit in hits]
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
            "graph": hit.similarity,
            "agreement": hit.agreement,
            "file": hit.file,
        }
        for rank, hit in enumerate(hits, start=1)
    ]
    return json.dumps({"like": wanted.title, "in": str(folder), "matched": matched, "hits": hit_facts}, indent=2)
