"""`lemur search`: hits as lines, as JSON or as a file of candidates; and the blocks with the most similar graphs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from extract.model.blocks import find_block, read_blocks
from extract.search.index import SearchIndex, SpecLine, open_index
from extract.search.ranking import Filters, SearchResult, filter_mask, search
from lemur_core.files.atomic import write_text
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import make_visible, plural
from manifests.records import Agreement, Block

_SHOWN = 10


def search_folder(
    folder: Path,
    query: str,
    filters: Filters,
    *,
    count: int = _SHOWN,
    spec_file: Path | None = None,
    as_json: bool = False,
) -> None:
    """Search a folder and print the hits; with `spec_file`, also write their specs there.

    Args:
        folder: an extraction folder.
        query: words, a description, or nothing for all blocks that pass the filters.
        filters: conditions that a hit meets.
        count: maximum number of hits; without a query, `spec_file` gets all blocks that pass, whatever it is.
        spec_file: JSON file of candidates to write the hits to.
        as_json: print one JSON object instead of a table.

    Raises: UserError if nothing matches, the folder has no specs, or the file cannot be written.
    """
    limit = None if spec_file is not None and not query.strip() else count
    index = open_index(folder)
    try:
        result = search(index, query, filters, limit)
    except UserError as error:
        raise UserError(make_visible(f"{folder}: {error}")) from None
    if spec_file is not None:
        write_candidates(spec_file, result.hits)
    if as_json:
        print(json.dumps(json_facts(result, folder, query), indent=2))
        return
    print("\n".join(format_lines(result, folder, count)))
    if spec_file is not None:
        print(make_visible(f"{spec_file}: {plural(len(result.hits), 'candidate')}"))


def format_lines(result: SearchResult, folder: Path, count: int = _SHOWN) -> list[str]:
    """Return the hits as lines, followed by how to read and import the first one."""
    lines = [] if result.complete else ["no block has all of these words; nearest first:"]
    hits = result.hits[:count]
    for rank, hit in enumerate(hits, start=1):
        lines.append(f"{rank:>3}  {hit['block']}")
        lines.append(f"     {hit['category']}, {hit['level']}, {hit['license']}: {hit['summary'].partition(': ')[2]}")
        lines.append(f"     {folder / hit['file'] if hit['file'] else '(no file)'}")
    if result.matched > len(hits):
        lines.append(f"{len(hits)} of {result.matched:,}; -k shows more")
    best = hits[0]
    lines += [
        "",
        f"read it    lemur show {quote(best['block'])} --in {quote(str(folder))}",
        f"import it  {_loading(best, folder)}",
    ]
    return [make_visible(line) for line in lines]


def json_facts(result: SearchResult, folder: Path, query: str) -> dict[str, Any]:
    """Return the hits in order for JSON, with the code that loads them."""
    names = ("block", "name", "category", "level", "license", "source", "summary", "file")
    hits = [
        {"rank": rank, **{name: hit[name] for name in names}, "load": _loading(hit, folder)}
        for rank, hit in enumerate(result.hits, start=1)
    ]
    return {"query": query, "matched": result.matched, "all_words": result.complete, "hits": hits}


def make_candidate(spec: SpecLine) -> dict[str, Any]:
    """Return a spec in the format of NN-RAG's `spec.json`: class, forward_args and summary, then all other fields."""
    rest = {name: value for name, value in spec.items() if name not in ("name", "forward", "summary")}
    names = [item["name"] for item in spec["forward"]]
    return {"class": spec["name"], "forward_args": names, "summary": spec["summary"], **rest}


def write_candidates(path: Path, hits: Sequence[SpecLine]) -> None:
    """Write `{"candidates": […]}` atomically, one candidate per line.

    Raises: UserError if the file cannot be written.
    """
    if path.is_dir():
        raise UserError(f"{path}: is a folder; give a file for --spec")
    try:
        lines = (json.dumps(make_candidate(spec), ensure_ascii=False) for spec in hits)
        write_text(path, '{"candidates": [\n' + ",\n".join(lines) + "\n]}\n")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}; choose another --spec") from error


def _loading(hit: SpecLine, folder: Path) -> str:
    """Return the Python code that loads a block."""
    return f"from extract import load_block; {hit['name']} = load_block({str(folder)!r}, {hit['block']!r})"


# --- by computation ---------------------------------------------------------------------------------------------------


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


def format_similar(wanted: BlockComputation, hits: list[SimilarBlock], matched: int) -> list[str]:
    """Return the hits as the lines of a table.

    Args: wanted, hits, matched: what was compared, and the two results of `find_similar`.
    Returns: two lines of heading, one line per hit, and one more if `matched` exceeds them; without control characters.
    """
    lines = [f"like {wanted.title}", "graph"]
    lines += [f"{hit.similarity:.3f}  {_AGREEMENTS[hit.agreement]:<17}  {hit.block}  ({hit.category})" for hit in hits]
    if matched > len(hits):
        lines.append(f"{len(hits)} of {matched:,}; -k shows more")
    return [make_visible(line) for line in lines]


def format_similar_json(wanted: BlockComputation, folder: Path, hits: list[SimilarBlock], matched: int) -> str:
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
