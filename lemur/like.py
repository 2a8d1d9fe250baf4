"""`lemur search --like`: find the blocks of a library whose graphs and codes are most like a block's or a network's."""

from pathlib import Path

from curate.compute.graphs import NetworkTracer, build_payload
from curate.compute.runs import PRM, TASK_DATASETS
from extract.search.alike import (
    BlockComputation,
    block_in,
    find_similar,
    format_json,
    format_lines,
    read_features,
)
from extract.search.index import Filters, open_index
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import read_python_file

_TASK = "img-classification"


def search_like(
    folder: Path, wanted: str, filters: Filters, *, count: int, unsafe: bool = False, as_json: bool = False
) -> str:
    """Return the blocks with the most similar graphs and codes, as lines or as JSON.

    Args:
        wanted: a block of the folder, as `lemur show` names it, or a file with a LEMUR network, which is traced in the
            sandbox with the default inputs and hyperparameters of `lemur novel`.
    Raises: UserError if there is no such block or file, a file has no graph, or nothing has anything in common with it.
    """
    path = Path(wanted)
    computed = _trace_file(path, unsafe) if path.suffix == ".py" else block_in(folder, wanted)
    hits, matched = find_similar(folder, open_index(folder), computed, filters, count)
    return format_json(computed, folder, hits, matched) if as_json else "\n".join(format_lines(computed, hits, matched))


def _trace_file(path: Path, unsafe: bool) -> BlockComputation:
    code = read_python_file(path, "pass a Python file")
    inputs = build_payload(_TASK, TASK_DATASETS[_TASK], PRM)
    assert not isinstance(inputs, str)  # the reason why a task has no inputs; this one has
    with NetworkTracer(jobs=1, unsafe=unsafe) as tracer:
        ((_, traced),) = tracer.run({0: inputs | {"code": code}})
    if traced.graph is None:
        raise UserError(f"{path}: has no graph: {traced.error}; pass a network that meets LEMUR's contract and runs")
    return BlockComputation(str(path), read_features(code, traced.read_graph()), traced.graph, traced.widths)
