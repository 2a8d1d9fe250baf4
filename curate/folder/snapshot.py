"""Write the tables of a snapshot folder."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

from curate.compute.graphs import graph_rows
from curate.compute.outcome import CurationOutcome
from curate.model.corpus import LoadedRecords
from curate.model.options import SPLIT_RATIOS, get_prefix
from curate.model.records import find_best_rows
from lemur_core.files import Json
from lemur_core.graphs.graph import Graph, Node
from manifests import records
from manifests.conversations import write_chat_tables
from manifests.folders.tables import write_table, write_tables

_API_COLUMNS = ("nn", "task", "dataset", "metric", "epoch", "accuracy", "duration", "prm")
_GRAPH_COLUMNS = ("graph", "graph_widths", "behavior", "dead_classes", "unused_parameters")


def write_snapshot_tables(folder: Path, corpus: LoadedRecords, outcome: CurationOutcome) -> None:
    """Write all tables."""
    best = find_best_rows(corpus, outcome.representatives)
    for split in SPLIT_RATIOS:
        kept = [code_index for code_index in outcome.kept if outcome.splits[code_index] == split]
        rows = _records(corpus, outcome, kept, best)
        write_tables(folder / "data" / "records", split, records.LemurRecord, rows, len(kept))
    stat_rows = [row for row, code_index in enumerate(corpus.code_of_row.tolist()) if code_index in outcome.rows]
    write_tables(folder / "data" / "stats", "train", records.Stat, _stats(corpus, stat_rows), len(stat_rows))

    def write(path: str, record: type[records.Record], values: Iterator[Json]) -> None:
        write_table(folder / path, records.arrow_schema(record), values)

    write("networks.parquet", records.NetworkRow, _networks(corpus, outcome))
    write("decisions.parquet", records.Decision, _decisions(corpus, outcome))
    if outcome.graphs is not None:
        write("graphs.parquet", records.GraphRow, graph_rows(corpus, outcome.graphs))
    if outcome.chat is not None:
        write_chat_tables(folder, outcome.chat, records.ChatRow, records.ChatDrop)


def _code_columns(corpus: LoadedRecords, outcome: CurationOutcome, code_index: int, best: int | None) -> Json:
    """Return the columns that records and networks have in common. Args: best: the row of its highest accuracy."""
    trace = (outcome.graphs or {}).get(code_index)
    answer = {} if trace is None else trace.answer
    return {
        "id": corpus.ids[code_index],
        "nn_code": corpus.codes[code_index],
        "family": corpus.features.family[code_index],
        "score": outcome.scores.get(code_index),
        "pretrained": code_index in corpus.features.pretrained,
        **{
            f"best_{name}": None if best is None else corpus.rows.column(name)[best].as_py()
            for name in ("accuracy", "epoch", "dataset")
        },
        **{name: answer.get(name) for name in _GRAPH_COLUMNS},
        **outcome.rights.columns(code_index),
    }


def _records(
    corpus: LoadedRecords, outcome: CurationOutcome, kept: list[int], best: Mapping[int, int]
) -> Iterator[Json]:
    rows = corpus.rows.take([outcome.representatives[index] for index in kept]).select([*_API_COLUMNS, "arch_uid"])
    for code_index, row in zip(kept, rows.to_pylist(), strict=True):
        trace = (outcome.graphs or {}).get(code_index)
        yield {
            **row,
            **_code_columns(corpus, outcome, code_index, best.get(code_index)),
            "nn": row["nn"] or "",
            "prefix": get_prefix(row["nn"] or ""),
            "split": outcome.splits[code_index],
            "weight": outcome.weights[code_index],
            "cluster": outcome.clusters[code_index],
            "runs": trace and trace.runs,
            "runs_error": trace and trace.error,
        }


def _networks(corpus: LoadedRecords, outcome: CurationOutcome) -> Iterator[Json]:
    """Yield all usable codes by name and id, independent of their rows."""
    best = find_best_rows(corpus, outcome.rows)
    names: list[str] = [nn or "" for nn in corpus.rows.column("nn").to_pylist()]
    names_of = defaultdict[int, set[str]](set)
    for code_index, name in zip(corpus.code_of_row.tolist(), names, strict=True):
        names_of[code_index].add(name)
    for code_index, row in sorted(outcome.rows.items(), key=lambda item: (names[item[1]], corpus.ids[item[0]])):
        trace, decision = (outcome.graphs or {}).get(code_index), outcome.decisions[row]
        graph = None if trace is None or trace.answer.get("eval") is None else trace.read_graph()
        yield {
            **{name: corpus.rows.column(name)[row].as_py() for name in ("task", "dataset", "metric")},
            **_code_columns(corpus, outcome, code_index, best.get(code_index)),
            "nn": names[row],
            "names": sorted(names_of[code_index]),
            "prefix": get_prefix(names[row]),
            "kept": decision.kept,
            "canonical": None if decision.canonical is None else corpus.ids[decision.canonical],
            "stage": decision.stage,
            "similarity": decision.similarity,
            "split_group": outcome.whole.groups.get(code_index),
            "split": outcome.whole.splits.get(code_index),
            "parameters": graph and _count_parameters(graph),
            "multiply_adds": graph and _count_multiply_adds(graph),
        }


def _stats(corpus: LoadedRecords, rows: list[int]) -> Iterator[Json]:
    columns = corpus.rows.take(rows).select([*_API_COLUMNS, "outcomes"])
    stats = (stat for batch in columns.to_batches(max_chunksize=5_000) for stat in batch.to_pylist())
    for row, stat in zip(rows, stats, strict=True):
        yield {**stat, "nn": stat["nn"] or "", "id": corpus.ids[int(corpus.code_of_row[row])]}


def _decisions(corpus: LoadedRecords, outcome: CurationOutcome) -> Iterator[Json]:
    names, traces = corpus.rows.column("nn").to_pylist(), outcome.graphs or {}
    for row, (code_index, decision) in enumerate(zip(corpus.code_of_row.tolist(), outcome.decisions, strict=True)):
        canonical = decision.canonical
        one = traces.get(code_index)
        other = None if canonical is None or canonical == code_index else traces.get(canonical)
        yield {
            "row": row,
            "id": corpus.ids[code_index] if code_index >= 0 else None,
            "nn": names[row] or "",
            "kept": decision.kept,
            "stage": decision.stage,
            "rescued": decision.rescued,
            "canonical": None if canonical is None else corpus.ids[canonical],
            "similarity": decision.similarity,
            "reason": decision.reason,
            "agreement": one and other and one.agrees(other),
        }


# The cost of a computation, counted in its canonical graph. Worked example: a convolution of 3 to 8 channels with a
# kernel of 3 x 3 that gives maps of 128 x 128 has 8 * 3 * 9 parameters, and 8 * 128 * 128 * 3 * 9 multiply-adds for one
# image.

#: Layers and cells that multiply every step by all their matrices.
_RECURRENT = frozenset(f"{name}{end}" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu") for end in ("", "_cell"))


def _count_parameters(graph: Graph) -> int:
    """Return how many numbers the parameters of a graph hold; a parameter that is used twice counts once.

    Args: graph: of eval mode, at one input size.
    Returns: parameters that the outputs depend on, in single numbers.
    """
    return sum(prod(kind.shape) for node in graph.nodes if node.op == "parameter" for kind in node.outputs)


def _count_multiply_adds(graph: Graph) -> int:
    """Return the multiply-adds of one input: of a whole run, divided by the size of the batch.

    Args: graph: of eval mode, at one input size.
    Returns: multiplications of one input; biases, normalization, activations and pooling are not counted.
    """
    inputs = [node.outputs[0].shape for node in graph.nodes if node.op == "input"]
    batch = inputs[0][0] if inputs and inputs[0] else 1
    return sum(_count_products(graph, node) for node in graph.nodes) // max(1, batch)


def _count_products(graph: Graph, node: Node) -> int:
    if node.op == "convolution":
        # out, in / groups, kernel; if transposed in, out / groups, kernel
        weight = graph.type_of(node.get("weight")).shape
        spread = graph.type_of(node.get("input")).shape if node.get("transposed") else node.outputs[0].shape
        return prod(spread) * prod(weight[1:])
    if node.op in ("linear", "matmul"):
        return prod(node.outputs[0].shape) * graph.type_of(node.get("input")).shape[-1]
    if node.op == "attention":
        query, key, value = (graph.type_of(node.get(name)).shape for name in ("query", "key", "value"))
        return prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
    if node.op in _RECURRENT:
        shapes = [graph.type_of(ref).shape for ref in node.inputs if graph.nodes[ref.node].op == "parameter"]
        steps = prod(graph.type_of(node.get("input")).shape[:-1])
        return steps * sum(prod(shape) for shape in shapes if len(shape) > 1)
    return 0
