"""Write the table of all networks of a corpus: one row for each distinct code, kept or not."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from curate.model.corpus import LoadedRecords
from curate.model.options import get_prefix
from curate.model.records import find_best_rows
from curate.published.outcome import CurationOutcome
from lemur_core.files import Json
from lemur_core.graphs.cost import count_multiply_adds, count_parameters
from lemur_core.graphs.graph import Graph, unpack

_IDENTITIES = ("graph", "graph_widths", "behavior")
_BENCHMARK = ("task", "dataset", "metric")


def list_networks(corpus: LoadedRecords, outcome: CurationOutcome) -> list[int]:
    """Return all usable codes but those that are published already, by name and id, independent of their rows."""
    names = corpus.rows.column("nn")
    keys = {
        code: (names[row].as_py() or "", corpus.ids[code])
        for code, row in outcome.rows.items()
        if code not in outcome.further
    }
    return sorted(keys, key=keys.__getitem__)


def network_rows(corpus: LoadedRecords, outcome: CurationOutcome, codes: list[int]) -> Iterator[Json]:
    """Yield the rows of `Network` for these codes."""
    best_rows, names, token_sets = (
        find_best_rows(corpus, outcome.rows),
        _find_names(corpus),
        _name_sets(corpus, outcome),
    )
    for code in codes:
        row, best = outcome.rows[code], best_rows.get(code)
        shown = {name: corpus.rows.column(name)[row].as_py() for name in ("nn", *_BENCHMARK)}
        decision, trace = outcome.decisions[row], (outcome.graphs or {}).get(code)
        graph = None if trace is None else trace.answer.get("eval")
        cost: Json = {} if graph is None else _measure_cost(graph)
        name = shown["nn"] or ""
        yield {
            **shown,
            "id": corpus.ids[code],
            "nn": name,
            "names": names[code],
            "nn_code": corpus.codes[code],
            "prefix": get_prefix(name),
            "family": outcome.families.get(code, corpus.features.family[code]),
            "kept": decision.kept,
            "canonical": None if decision.canonical is None else corpus.ids[decision.canonical],
            "stage": decision.stage,
            "similarity": decision.similarity,
            "split_group": outcome.whole.groups.get(code),
            "split": outcome.whole.splits.get(code),
            "token_set": token_sets[code],
            **{identity: None if trace is None else trace.answer.get(identity) for identity in _IDENTITIES},
            **cost,
            "score": outcome.scores.get(code),
            **{
                f"best_{column}": None if best is None else corpus.rows.column(column)[best].as_py()
                for column in ("accuracy", "epoch", "dataset")
            },
            "pretrained": code in corpus.features.pretrained,
            **outcome.rights.columns(code),
        }


def _measure_cost(packed: str) -> dict[str, int]:
    graph = Graph.from_json(unpack(packed))
    return {"parameters": count_parameters(graph), "multiply_adds": count_multiply_adds(graph)}


def _find_names(corpus: LoadedRecords) -> Mapping[int, list[str]]:
    """Return all names of each code, sorted."""
    names: defaultdict[int, set[str]] = defaultdict(set)
    for code, name in zip(corpus.code_of_row.tolist(), corpus.rows.column("nn").to_pylist(), strict=True):
        names[code].add(name or "")
    return {code: sorted(own) for code, own in names.items()}


def _name_sets(corpus: LoadedRecords, outcome: CurationOutcome) -> dict[int, str]:
    """Return for each code the id of the one that represents its token set: a kept one, a traced one, the smallest."""
    kept, traced = set(outcome.kept), outcome.graphs or {}
    first: dict[int, str] = {}
    sets = corpus.features.shingle_set
    order = sorted(outcome.rows, key=lambda code: (code not in kept, code not in traced, corpus.ids[code]))
    for code in order:
        if sets[code] >= 0:
            first.setdefault(int(sets[code]), corpus.ids[code])
    return {code: first.get(int(sets[code]), corpus.ids[code]) for code in order}
