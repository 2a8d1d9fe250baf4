"""Planted duplicates: `python -m benchmarks.planted [SOURCE] [--networks N] [--seed S] [--arch-uid FILE]`.

Pairs of files are made from real networks of a source (the released LEMUR): some compute the same in other words, some
differ in one thing (`benchmarks.plants`). Each pair is checked by running both files, with no part of what is judged:
results and gradients are equal, or they are not; other pairs are left out. Then each way says which pairs it takes for
duplicates. Ours stage after stage, as `lemur curate` decides; the released nn-dup 2.2.4 by its own measures and
thresholds (without LSH, groups and top-ups, which can only keep more); and `arch_uid` of nn-dataset, where its file
(`ab/nn/util/ArchUID.py`, which no release holds) is given.

Precision is the share of the found pairs that compute the same, recall the share of those that do which are found.
Near texts are meant to be merged, also where one width differs; what stages by text find beyond equal computations is
the price of that. `--graph keep-different` merges near texts only where graphs agree up to widths.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plants import PLANTS, Pair
from curate.compute.graphs import NetworkTracer, build_payload
from curate.compute.runs import PRM, TASK_DATASETS, open_box, read_parameters
from curate.sources import open_source
from curate.sources.rows import RecordSource
from lemur_core.files.markdown import percent, table
from lemur_core.sandbox import Job, Limits
from lemur_core.sandbox.stage import SandboxStage
from lemur_core.similarity.minhash import jaccard
from lemur_core.similarity.outline import outline_code
from lemur_core.similarity.views import LEXICAL, STRUCTURAL, Views, compute_views

_STAGE = SandboxStage[Any](
    "benchmarks.planted_entry:results_of", Any, Limits(wall_seconds=300, cpu_seconds=60, memory_bytes=4 * 2**30)
)
_TASK, _SHAPES = "img-classification", {"in_shape": [2, 3, 32, 32], "out_shape": [10]}
_ORACLE = 2  # version of `planted_entry`, whose text is no part of what outcomes are remembered by
_CANDIDATES = 4  # of a kind that are tried in one network
_TOLERANCE = 2e-3
STAGES = ("exact", "lexical", "structural", "graph")

#: Runs the peer's own measures on pairs; `ab.nn.api` is replaced, since it would build LEMUR's database.
_PEER = """
import json, sys, types
api, nn = types.ModuleType("ab.nn.api"), types.ModuleType("ab.nn")
nn.api = api
sys.modules["ab.nn"], sys.modules["ab.nn.api"] = nn, api
from ab.dup.preprocessing import (JACCARD_THRESH_LEX, JACCARD_THRESH_STRUCT, SHINGLE_K, collect_declared_names,
    extract_model_region, get_model_family, jaccard, python_token_stream, sha256_text, shingles,
    strip_comments_and_docstrings, structural_fingerprint_from_source, structural_jaccard)
def shingled(code):
    region = extract_model_region(code)
    names = collect_declared_names(region)
    return shingles(python_token_stream(strip_comments_and_docstrings(region), names), SHINGLE_K)
def stage(one, other):
    if sha256_text(one) == sha256_text(other):
        return "exact"
    fractal, family = (get_model_family("", code) for code in (one, other))
    near = 0.97 if family == "fractal" else JACCARD_THRESH_LEX
    if fractal == family and jaccard(shingled(one), shingled(other)) >= near:
        return "lexical"
    first, second = (structural_fingerprint_from_source(code) for code in (one, other))
    same = first.as_hash() == second.as_hash()
    return "structural" if same or structural_jaccard(first, second) >= JACCARD_THRESH_STRUCT else None
json.dump([stage(one, other) for one, other in json.load(sys.stdin)], sys.stdout)
"""

_ARCH_UID = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("arch_uid", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
def same(one, other):
    return "graph" if module.arch_uid(one) == module.arch_uid(other) else None
json.dump([same(one, other) for one, other in json.load(sys.stdin)], sys.stdout)
"""


@dataclass(frozen=True, slots=True)
class Planted:
    """One pair: of which kind, whether both compute the same, and the two files."""

    kind: str
    same: bool
    files: Pair


def main() -> None:
    """Plant, judge, print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", default="lemur@2.1.0")
    parser.add_argument("--networks", type=int, default=8, help="real networks that pairs are made from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arch-uid", type=Path, help="ArchUID.py of nn-dataset")
    given = parser.parse_args()
    pairs, left_out = plant(open_source(given.source), given.networks, given.seed)
    kinds = Counter(pair.kind for pair in pairs)
    print(f"{len(pairs)} pairs of {given.networks} networks, {sum(pair.same for pair in pairs)} compute the same")
    print(f"left out, for running both says otherwise, or nothing: {dict(left_out) or 'none'}\n")
    found = {**_ours(pairs), "nn-dup 2.2.4": _by_peer(_PEER, pairs)}
    if given.arch_uid is not None:
        found["arch_uid"] = _by_peer(_ARCH_UID, pairs, str(given.arch_uid))
    print("\n".join(table(["way", "stages", "found", "same", "precision", "recall"], list(_scores(pairs, found)), 2)))
    rows = []
    for plant_ in PLANTS:
        places = [place for place, pair in enumerate(pairs) if pair.kind == plant_.name]
        cells = [_told(Counter(stages[place] for place in places)) for stages in found.values()]
        rows.append([plant_.name, "same" if plant_.same else "different", str(kinds[plant_.name]), *cells])
    print("\n".join(table(["planted", "", "pairs", *found], rows, 2)))


def plant(source: RecordSource, networks: int, seed: int) -> tuple[list[Planted], Counter[str]]:
    """Pairs from so many networks of a source, and how many candidates of each kind were left out.

    Raises: UserError if the source cannot be read, or no sandbox can be had.
    """
    random = np.random.default_rng(seed)
    codes = _networks(source)
    pairs: list[Planted] = []
    left_out: Counter[str] = Counter()
    used = 0
    with open_box([_STAGE], jobs=None, unsafe=False) as box:

        def results(files: Sequence[str]) -> list[dict[str, Any] | None]:
            prm = PRM | {"batch": 2}
            jobs = [
                Job(str(n), _STAGE.guest, {"code": code, "prm": prm, "version": _ORACLE, **_SHAPES}, _STAGE.limits)
                for n, code in enumerate(files)
            ]
            values = {int(outcome.key): outcome.value for outcome in box.run(jobs)}
            answers = [value if isinstance(value, dict) else {} for _, value in sorted(values.items())]
            return [answer if answer.get("runs") else None for answer in answers]

        for place in random.permutation(len(codes)).tolist():
            if used == networks:
                break
            if results([codes[place]]) == [None]:
                continue
            used += 1
            waiting = {kind: _tried(kind.pairs, codes[place], random) for kind in PLANTS}
            for _ in range(_CANDIDATES):
                tried = {kind: files for kind, more in waiting.items() if (files := next(more, None)) is not None}
                new = list(dict.fromkeys(code for both in tried.values() for code in both))
                told = dict(zip(new, results(new), strict=True))
                for kind, both in tried.items():
                    first, second = (told[code] for code in both)
                    if first is None or second is None or _equal(first, second) is not kind.same:
                        left_out[kind.name] += 1
                    else:
                        pairs.append(Planted(kind.name, kind.same, both))
                        del waiting[kind]
    return pairs, left_out


def _networks(source: RecordSource) -> list[str]:
    """Codes of image classification that build layers, each once, in their order."""
    found: dict[str, None] = {}
    for batch in source.batches():
        for task, code in zip(batch.column("task").to_pylist(), batch.column("nn_code").to_pylist(), strict=True):
            if task == _TASK and code and "Conv2d" in code and "\nclass Net(" in code:
                found[code] = None
    return list(found)


def _tried(pairs: Any, code: str, random: np.random.Generator) -> Iterator[Pair]:
    try:
        yield from pairs(code, random)
    except (SyntaxError, StopIteration, IndexError, RuntimeError):  # written as no edit expects it
        return


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two runs gave the same results and gradients."""
    for name in ("output", "gradients"):
        first, second = one[name], other[name]
        if len(first) != len(second):
            return False
        for left, right in zip(first, second, strict=True):
            scale = max(abs(left[-1]), abs(right[-1]), 1e-12)  # the sum of all sizes
            near = (
                isclose(a, b, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE * scale) for a, b in zip(left, right, strict=True)
            )
            if left[0] != right[0] or not all(near):
                return False
    return True


# --- the ways -----------------------------------------------------------------------------------------------------


def _ours(pairs: Sequence[Planted]) -> dict[str, list[str | None]]:
    """The first stage that takes each pair for duplicates, as they are decided by default, with what is near in text
    and differs in graph left apart, and by the graph alone.
    """
    files = list(dict.fromkeys(code for pair in pairs for code in pair.files))
    given = build_payload(_TASK, TASK_DATASETS[_TASK], read_parameters(json.dumps(PRM)))
    assert not isinstance(given, str)
    with NetworkTracer() as tracer:
        traced = dict(tracer.run({number: given | {"code": code} for number, code in enumerate(files)}))
    known = {code: traced[number] for number, code in enumerate(files)}
    agreements = [known[pair.files[0]].agrees(known[pair.files[1]]) for pair in pairs]
    texts = [_near(pair.files) for pair in pairs]
    graphs = ["graph" if said == "same" else None for said in agreements]
    apart = [
        None if said == "different" and near != "exact" else near for near, said in zip(texts, agreements, strict=True)
    ]
    return {
        "lemur-curator": [near or graph for near, graph in zip(texts, graphs, strict=True)],
        "keep-different": [near or graph for near, graph in zip(apart, graphs, strict=True)],
        "graph alone": list(graphs),
    }


def _near(files: Pair) -> str | None:
    """The first stage by text that takes two files for duplicates."""
    one, other = (_views(code) for code in files)
    if one.tree == other.tree:
        return "exact"
    if jaccard(one.shingles, other.shingles) >= LEXICAL:
        return "lexical"
    return "structural" if jaccard(one.elements, other.elements) >= STRUCTURAL else None


def _views(code: str) -> Views:
    outline = outline_code(code)
    assert not isinstance(outline, str)
    views = compute_views(code, outline)
    assert isinstance(views, Views)
    return views


def _by_peer(script: str, pairs: Sequence[Planted], *arguments: str) -> list[str | None]:
    """What a script says of each pair, in a process of its own. It reads code; it runs none."""
    text = json.dumps([pair.files for pair in pairs])
    command = [sys.executable, "-P", "-c", script, *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    found: list[str | None] = json.loads(done.stdout)
    return found


# --- telling it ---------------------------------------------------------------------------------------------------


def _scores(pairs: Sequence[Planted], found: Mapping[str, Sequence[str | None]]) -> Iterator[list[str]]:
    whole = sum(pair.same for pair in pairs)
    for way, stages in found.items():
        present = [stage for stage in STAGES if stage in stages]
        for number, stage in enumerate(present):
            upto = present[: number + 1]
            taken = [pair for pair, said in zip(pairs, stages, strict=True) if said in upto]
            right = sum(pair.same for pair in taken)
            name = stage if not number else f"+ {stage}"
            yield [way, name, str(len(taken)), str(right), percent(right, len(taken)), percent(right, whole)]


def _told(stages: Counter[str | None]) -> str:
    return ", ".join(f"{stages[stage]} {stage or 'not found'}" for stage in (*STAGES, None) if stages[stage])


if __name__ == "__main__":
    main()
