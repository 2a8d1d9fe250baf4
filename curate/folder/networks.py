"""Write the table of all networks of a corpus: one row for each distinct code, kept or not."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from curate.model.corpus import LoadedRecords
from curate.model.options import get_prefix
from curate.model.records import find_best_rows
from curate.published.outcome import CurationOutcome
from curate.sources.rows import MeasuredFacts, read_number, read_text
from lemur_core.describe.cost import count_multiply_adds, count_parameters
from lemur_core.files import Json
from lemur_core.graphs.graph import Graph

_IDENTITIES = ("graph", "graph_widths", "behavior")
_BENCHMARK = ("task", "dataset", "metric")


def list_networks(corpus: LoadedRecords, outcome: CurationOutcome) -> list[int]:
    """Return all usable codes, by name and id, independent of their rows."""
    names = corpus.rows.column("nn")
    keys = {code: (names[row].as_py() or "", corpus.ids[code]) for code, row in outcome.rows.items()}
    return sorted(keys, key=keys.__getitem__)


def network_rows(corpus: LoadedRecords, outcome: CurationOutcome, codes: list[int]) -> Iterator[Json]:
    """Yield the rows of `NetworkRow` for these codes."""
    best_rows, names = find_best_rows(corpus, outcome.rows), _find_names(corpus)
    for code in codes:
        row, best = outcome.rows[code], best_rows.get(code)
        shown = {name: corpus.rows.column(name)[row].as_py() for name in ("nn", *_BENCHMARK)}
        decision, trace = outcome.decisions[row], (outcome.graphs or {}).get(code)
        cost = {} if trace is None or trace.answer.get("eval") is None else _measure_cost(trace.read_graph())
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


def measurement_rows(corpus: LoadedRecords, measured: Iterable[MeasuredFacts]) -> Iterator[Json]:
    """Yield the rows of `Measurement`; of a name that several codes have, none is known to be the measured one."""
    codes: defaultdict[str, set[str]] = defaultdict(set)
    for code, own in _find_names(corpus).items():
        for name in own:
            codes[name] |= {corpus.ids[code]} if code >= 0 else set()
    for nn, kind, place, facts in measured:
        valid = facts.get("valid")
        yield {
            "id": next(iter(codes[nn])) if len(codes.get(nn, ())) == 1 else None,
            "nn": nn,
            "kind": kind,
            "place": place,
            "device": read_text(facts.get("device_type")),
            "valid": bool(valid) if isinstance(valid, int) else None,
            "duration": read_number(facts.get("duration")),
            "facts": read_text(dict(facts)),
        }


def count_measurements(rows: Iterable[Mapping[str, object]]) -> Json:
    """Count the rows of `Measurement` by kind, and the codes that they are of."""
    kinds, ids = Counter[str](), set()
    for row in rows:
        kinds[str(row["kind"])] += 1
        ids.add(row["id"])
    return {"rows": kinds.total(), "codes": len(ids - {None}), "kinds": dict(sorted(kinds.items()))}


def _measure_cost(graph: Graph) -> dict[str, int]:
    return {"parameters": count_parameters(graph), "multiply_adds": count_multiply_adds(graph)}


def _find_names(corpus: LoadedRecords) -> Mapping[int, list[str]]:
    """Return all names of each code, sorted."""
    names: defaultdict[int, set[str]] = defaultdict(set)
    for code, name in zip(corpus.code_of_row.tolist(), corpus.rows.column("nn").to_pylist(), strict=True):
        names[code].add(name or "")
    return {code: sorted(own) for code, own in names.items()}
