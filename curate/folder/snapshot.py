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


def write_snapshot_tables(folder: Path, corpus: LoadedRecords, outcome: CurationOutcome) -> dict[str, int]:
    """Write all tables. Returns: the number of rows by path below `folder`."""
    rows: dict[str, int] = {}
    best = find_best_rows(corpus, outcome.representatives)
    for split in SPLIT_RATIOS:
        codes = [code for code in outcome.kept if outcome.splits[code] == split]
        kept = _records(corpus, outcome, codes, best)
        written = write_tables(folder / "data" / "records", split, records.LemurRecord, kept, len(codes))
        rows |= {f"data/records/{name}": count for name, count in written.items()}
    networks = _list_networks(corpus, outcome)
    usable = set(networks)
    stat_rows = [row for row, code in enumerate(corpus.code_of_row.tolist()) if code in usable]
    written = write_tables(folder / "data" / "stats", "train", records.Stat, _stats(corpus, stat_rows), len(stat_rows))
    rows |= {f"data/stats/{name}": count for name, count in written.items()}

    def write(table: str, record: type[records.Record], values: Iterator[dict[str, object]], count: int) -> None:
        write_table(folder / f"{table}.parquet", records.arrow_schema(record), values)
        rows[f"{table}.parquet"] = count

    write("networks", records.NetworkRow, _networks(corpus, outcome, networks), len(networks))
    write("decisions", records.Decision, _decisions(corpus, outcome), len(outcome.decisions))
    if outcome.graphs is not None:
        write("graphs", records.GraphRow, graph_rows(corpus, outcome.graphs), len(outcome.graphs))
    return (
        rows
        if outcome.chat is None
        else rows | write_chat_tables(folder, outcome.chat, records.ChatRow, records.ChatDrop)
    )


def _code_columns(corpus: LoadedRecords, outcome: CurationOutcome, code: int, best: int | None) -> Json:
    """Return the columns that records and networks have in common. Args: best: the row of its highest accuracy."""
    trace = (outcome.graphs or {}).get(code)
    answer = {} if trace is None else trace.answer
    return {
        "id": corpus.ids[code],
        "nn_code": corpus.codes[code],
        "family": corpus.features.family[code],
        "score": outcome.scores.get(code),
        "pretrained": code in corpus.features.pretrained,
        **{
            f"best_{name}": None if best is None else corpus.rows.column(name)[best].as_py()
            for name in ("accuracy", "epoch", "dataset")
        },
        **{name: answer.get(name) for name in _GRAPH_COLUMNS},
        **outcome.rights.columns(code),
    }


_GRAPH_COLUMNS = ("graph", "graph_widths", "behavior", "dead_classes", "unused_parameters")


def _records(
    corpus: LoadedRecords, outcome: CurationOutcome, codes: list[int], best: Mapping[int, int]
) -> Iterator[dict[str, object]]:
    rows = corpus.rows.take([outcome.representatives[code] for code in codes]).select([*_API_COLUMNS, "arch_uid"])
    for code, row in zip(codes, rows.to_pylist(), strict=True):
        trace = (outcome.graphs or {}).get(code)
        yield {
            **row,
            **_code_columns(corpus, outcome, code, best.get(code)),
            "nn": row["nn"] or "",
            "prefix": get_prefix(row["nn"] or ""),
            "split": outcome.splits[code],
            "weight": outcome.weights[code],
            "cluster": outcome.clusters[code],
            "runs": trace and trace.runs,
            "runs_error": trace and trace.error,
        }


def _list_networks(corpus: LoadedRecords, outcome: CurationOutcome) -> list[int]:
    """Return all usable codes, by name and id, independent of their rows."""
    names = corpus.rows.column("nn")
    keys = {code: (names[row].as_py() or "", corpus.ids[code]) for code, row in outcome.rows.items()}
    return sorted(keys, key=keys.__getitem__)


def _networks(corpus: LoadedRecords, outcome: CurationOutcome, codes: list[int]) -> Iterator[Json]:
    best_rows, names = find_best_rows(corpus, outcome.rows), _find_names(corpus)
    for code in codes:
        row, trace = outcome.rows[code], (outcome.graphs or {}).get(code)
        shown = {name: corpus.rows.column(name)[row].as_py() for name in ("nn", "task", "dataset", "metric")}
        decision = outcome.decisions[row]
        graph = None if trace is None or trace.answer.get("eval") is None else trace.read_graph()
        yield {
            **shown,
            **_code_columns(corpus, outcome, code, best_rows.get(code)),
            "nn": shown["nn"] or "",
            "names": names[code],
            "prefix": get_prefix(shown["nn"] or ""),
            "kept": decision.kept,
            "canonical": None if decision.canonical is None else corpus.ids[decision.canonical],
            "stage": decision.stage,
            "similarity": decision.similarity,
            "split_group": outcome.whole.groups.get(code),
            "split": outcome.whole.splits.get(code),
            "parameters": graph and _count_parameters(graph),
            "multiply_adds": graph and _count_multiply_adds(graph),
        }


def _find_names(corpus: LoadedRecords) -> Mapping[int, list[str]]:
    """Return all names of each code, sorted."""
    names: defaultdict[int, set[str]] = defaultdict(set)
    for code, name in zip(corpus.code_of_row.tolist(), corpus.rows.column("nn").to_pylist(), strict=True):
        names[code].add(name or "")
    return {code: sorted(own) for code, own in names.items()}


def _agreement(outcome: CurationOutcome, code: int, canonical: int | None) -> records.Agreement | None:
    """Return how the graphs of a removed code and its canonical compare."""
    if canonical is None or canonical == code:
        return None
    traces = outcome.graphs or {}
    return traces[code].agrees(traces[canonical]) if code in traces and canonical in traces else None


def _stats(corpus: LoadedRecords, rows: list[int]) -> Iterator[dict[str, object]]:
    columns = corpus.rows.take(rows).select([*_API_COLUMNS, "outcomes"])
    position = 0
    for batch in columns.to_batches(max_chunksize=5_000):
        for stat in batch.to_pylist():
            stat["nn"] = stat["nn"] or ""
            yield {**stat, "id": corpus.ids[int(corpus.code_of_row[rows[position]])]}
            position += 1


def _decisions(corpus: LoadedRecords, outcome: CurationOutcome) -> Iterator[dict[str, object]]:
    names = corpus.rows.column("nn").to_pylist()
    for row, decision in enumerate(outcome.decisions):
        code = int(corpus.code_of_row[row])
        yield {
            "row": row,
            "id": corpus.ids[code] if code >= 0 else None,
            "nn": names[row] or "",
            "kept": decision.kept,
            "stage": decision.stage,
            "rescued": decision.rescued,
            "canonical": None if decision.canonical is None else corpus.ids[decision.canonical],
            "similarity": decision.similarity,
            "reason": decision.reason,
            "agreement": _agreement(outcome, code, decision.canonical),
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
