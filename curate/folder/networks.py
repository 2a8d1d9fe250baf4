"""Write the table of all networks of a corpus: one row for each distinct code, kept or not."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from curate.compute.graphs import GraphTrace
from curate.model.corpus import LoadedRecords
from curate.model.features import FeatureTable
from curate.model.options import get_prefix
from curate.model.records import find_best_rows
from curate.published.outcome import CurationOutcome
from curate.sources.rows import MeasuredFacts, read_number, read_text
from lemur_core.describe.cost import count_multiply_adds, count_parameters
from lemur_core.files import Json
from lemur_core.files.progress import note as show
from lemur_core.graphs.graph import Graph
from lemur_core.similarity.minhash import IntArray, ShingleSets, jaccard
from lemur_core.similarity.nearest import iterate_nearest
from manifests.records import BANDS

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
    """Yield the rows of `NetworkRow` for these codes."""
    best_rows, names, token_sets = (
        find_best_rows(corpus, outcome.rows),
        _find_names(corpus),
        _name_sets(corpus, outcome),
    )
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


def _name_sets(corpus: LoadedRecords, outcome: CurationOutcome) -> dict[int, str]:
    """Return for each code the id of the one that represents its token set."""
    first, sets = _represent_sets(corpus, outcome), corpus.features.shingle_set
    return {code: corpus.ids[first.get(int(sets[code]), code)] for code in outcome.rows}


def _represent_sets(corpus: LoadedRecords, outcome: CurationOutcome) -> dict[int, int]:
    """Return for each token set the code that represents it: a kept one, a traced one, or that of smallest id."""
    kept, traced, sets = set(outcome.kept), outcome.graphs or {}, corpus.features.shingle_set
    codes = (code for code in outcome.rows if code not in outcome.further and sets[code] >= 0)
    first: dict[int, int] = {}
    for code in sorted(codes, key=lambda code: (code not in kept, code not in traced, corpus.ids[code])):
        first.setdefault(int(sets[code]), code)
    return first


#: How many near pairs of each token set and band are listed by default.
PER_BAND = 10

#: Token sets beyond which none are listed by default: comparing so many takes three CPU minutes.
MOST_SETS = 50_000

#: CPU seconds for a pair of token sets, most of which are never compared; measured on sets that form few clusters.
_SECONDS_A_PAIR = 1.5e-7


def list_pairs(corpus: LoadedRecords, outcome: CurationOutcome, requested: int | None) -> tuple[Iterator[Json], int]:
    """Return the rows of `Pair`, and their number; how many of each set and band are listed is added to the details.

    Its time grows with the square of the number of sets, so that by default it is left out where there are many.

    Args: requested: how many near pairs to list of each token set and band; None for the default.
    """
    codes = sorted(_represent_sets(corpus, outcome).values(), key=corpus.ids.__getitem__)
    per_band = (PER_BAND if len(codes) <= MOST_SETS else 0) if requested is None else requested
    outcome.details["pairs"] = {"per_band": per_band, "sets": len(codes)}
    if not per_band:
        if requested is None:
            note = f"near pairs of {len(codes):,} token sets are not listed; --pairs-per-band {PER_BAND} lists them"
            outcome.notes.append(note)
        return iter(()), 0
    if len(codes) > MOST_SETS:
        minutes = _SECONDS_A_PAIR * len(codes) ** 2 / 2 / 60
        show(f"near pairs of {len(codes):,} token sets: about {minutes:,.0f} CPU minutes")
    pairs = find_pairs(corpus.features, corpus.features.shingle_set[np.array(codes, np.int64)], per_band)
    names = corpus.rows.column("nn")
    labels = [(corpus.ids[code], names[outcome.rows[code]].as_py() or "") for code in codes]
    traces = [outcome.get_trace(code) for code in codes]
    return pair_rows(corpus.features, codes, labels, traces, pairs), len(pairs.a)


# Write the near pairs of a corpus as a table: distinct token sets by their Jaccard similarity, in bands.
# The pairs are exact. Of each set the most similar others of every band are listed, so that a table of ten thousand
# networks stays at a few megabytes; a pair is there if either of its sets lists the other.
# Worked example: of four sets at 0.97, 0.96 and 0.95 to a fifth, one pair for each set and band lists 0.97, and also
# the other two, since the fifth is the nearest of each of them, too.

#: The lower ends of the bands, most similar first.
LOWER_ENDS = tuple(float(band.partition("-")[0]) for band in BANDS)


@dataclass(frozen=True, slots=True)
class NearPairs:
    """Pairs of places in a list of sets, most similar first."""

    a: IntArray
    b: IntArray
    jaccard: npt.NDArray[np.float64]

    @property
    def band(self) -> IntArray:
        """The number of each pair's band in `BANDS`."""
        return np.searchsorted(-np.array(LOWER_ENDS), -self.jaccard)


def find_pairs(features: ShingleSets, sets: IntArray, per_band: int) -> NearPairs:
    """Return of all pairs of sets those that are among the nearest of one of their ends, in their band.

    Args:
        sets: distinct numbers of token sets.
        per_band: how many pairs of each set and band; of equal similarities the set at the smaller place is nearer.
    """
    blocks = [(np.empty(0, np.int64), np.empty(0)), *_key_blocks(features, sets, per_band)]
    keys, near = (np.concatenate(column) for column in zip(*blocks, strict=True))
    keys, first = np.unique(keys, return_index=True)  # a pair is found from both of its ends
    near = near[first]
    order = np.argsort(-near, kind="stable")
    return NearPairs(*np.divmod(keys[order], max(1, len(sets))), near[order])


def _key_blocks(
    features: ShingleSets, sets: IntArray, per_band: int
) -> Iterator[tuple[IntArray, npt.NDArray[np.float64]]]:
    for a, b, near in iterate_nearest(features, sets, LOWER_ENDS, per_band):
        yield np.minimum(a, b) * len(sets) + np.maximum(a, b), near


def pair_rows(
    features: FeatureTable,
    codes: Sequence[int],
    labels: Sequence[tuple[str, str]],
    traces: Sequence[GraphTrace | None],
    pairs: NearPairs,
) -> Iterator[Json]:
    """Yield the rows of `Pair`.

    Args: labels: id and name of each of the codes. traces: what they compute, if known.
    """
    near = zip(pairs.a.tolist(), pairs.b.tolist(), pairs.jaccard.tolist(), pairs.band.tolist(), strict=True)
    for a, b, similarity, band in near:
        one, other = traces[a], traces[b]
        yield {
            "a": labels[a][0],
            "b": labels[b][0],
            "nn_a": labels[a][1],
            "nn_b": labels[b][1],
            "jaccard": similarity,
            "band": BANDS[band],
            "structural": compare_structures(features, codes[a], codes[b]),
            "agreement": None if one is None or other is None else one.agrees(other),
        }


def compare_structures(features: FeatureTable, one: int, other: int) -> float:
    """Return the Jaccard similarity of two codes' fingerprints; 1.0 for equal ones."""
    structures = int(features.fingerprint[one]), int(features.fingerprint[other])
    if structures[0] == structures[1]:
        return 1.0
    return jaccard(*(features.elements[number] for number in structures))
