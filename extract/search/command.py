"""`lemur search QUERY`: print hits as lines or JSON, or write them to a file of candidates."""

import json
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from extract.search.index import Filters, SearchResult, SpecLine, open_index, search
from lemur_core.files.atomic import check_new_file, write_text
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import make_visible, plural

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
        raise type(error)(make_visible(f"{folder}: {error}")) from None
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
    check_new_file(path, "--spec", force=True)
    lines = (json.dumps(make_candidate(spec), ensure_ascii=False) for spec in hits)
    write_text(path, '{"candidates": [\n' + ",\n".join(lines) + "\n]}\n")


def _loading(hit: SpecLine, folder: Path) -> str:
    """Return the Python code that loads a block."""
    return f"from extract import load_block; {hit['name']} = load_block({str(folder)!r}, {hit['block']!r})"
