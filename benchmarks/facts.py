"""The facts of specs, counted again by code that shares nothing with the product's own.

    python -m benchmarks.facts FOLDER... [--blocks N] [--seed N]

FOLDER: extraction folders. Below the file of each block runs a text in plain torch, in the sandbox. It constructs and
calls the block as `lemur show` prints it, and counts: the shapes of inputs and outputs in every case and known call,
the parameters and their shapes, the operations of one eval run (a dispatch mode; what no output depends on and what is
computed twice is not counted, as in a graph), whether a generator's state changes in either mode, and whether outputs
change with the mode. Prints every disagreement, and how many of the blocks agree on each fact.
"""

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from extract.model.blocks import read_blocks
from extract.proofs.runtime import runtime_for
from extract.specs.make import print_call, read_observed
from lemur_core.sandbox import Job, Limits, Sandbox
from manifests.records import Observed

_COLUMNS = ("block", "name", "code", "lean_code", "requires", "arguments", "observed")
_FUTURE = re.compile(r"^from __future__ import .*$", re.MULTILINE)
FACTS = ("shapes", "parameters", "operations", "draws", "modes")
_WATCH = (Path(__file__).parent / "facts_watch.py").read_text(encoding="utf-8")
#: Operations of the dispatcher under the names of specs.
_SPELLINGS = dict.fromkeys(("bmm", "mm", "mv", "dot"), "matmul") | {"scaled_dot_product_attention": "attention"}
#: What moves elements or creates tensors; a graph writes these in another way.
_UNCOUNTED = frozenset(
    "custom_gradient stop_gradient reshape expand permute cast slice full view unsafe_view transpose t detach alias"  # noqa: SIM905
    " squeeze unsqueeze select split split_with_sizes unbind to_copy clone copy lift_fresh new_zeros zeros ones"
    " zeros_like ones_like new_ones full_like empty randn rand arange empty_like new_empty fill zero chunk"
    " as_strided stack cat index_put slice_scatter scalar_tensor randint eye linspace".split()
)


def main() -> None:
    """Print each disagreement, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("--blocks", type=int, help="draw so many of each folder (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    counts, wrong = compare(given.folder, given.blocks, given.seed)
    print(*(f"{line}\n" for line in wrong), sep="", end="")
    for fact in FACTS:
        print(f"{fact}: {counts[fact]} of {counts[f'{fact} counted']} blocks agree")
    print(f"{counts['not run again']} of {counts['blocks']} blocks were not run again")


def compare(folders: list[Path], most: int | None = None, seed: int = 0) -> tuple[Counter[str], list[str]]:
    """Return how many blocks agree on each fact, and the disagreements in lines."""
    counts, wrong = Counter[str](), []
    for folder in folders:
        for spec, observed, answer in _run(folder, most, seed):
            counts["blocks"] += 1
            if not isinstance(answer, dict):
                counts["not run again"] += 1
                wrong.append(f"{spec['block']}: not run again: {answer}")
                continue
            faults: dict[str, list[str]] = {}
            for fact, stated, counted in list_facts(spec, observed, answer):
                faults.setdefault(fact, []).extend([] if stated == counted else [f"{stated}, counted {counted}"])
            for fact, found in faults.items():
                counts[f"{fact} counted"] += 1
                counts[fact] += not found
                wrong += [f"{spec['block']}: {fact}: {text}" for text in found]
    return counts, wrong


def _run(folder: Path, most: int | None, seed: int) -> Iterator[tuple[dict[str, Any], Observed, Any]]:
    rows = {row.block: row for row in read_blocks(folder, _COLUMNS) if row.code}
    runtime = runtime_for(sorted({need for row in rows.values() for need in row.requires}))
    lines = (folder / "specs.jsonl").read_text(encoding="utf-8").splitlines()
    specs = [spec for spec in map(json.loads, lines) if spec["cases"]]
    if most is not None:
        specs = random.Random(seed).sample(specs, min(most, len(specs)))
    jobs, seen = {}, {}
    for spec in specs:
        row = rows[spec["block"]]
        observed = seen[row.block] = read_observed(row)
        *start, last = print_call(row, row.code) or ("", "")
        if observed is not None and last.startswith("block("):
            code = row.code or ""
            calls = [[call.init, call.forward] for call in observed.calls]
            sizes = [[_sizes(text) for text in case["inputs"].values() if _sizes(text)] for case in spec["cases"]]
            text = "\n".join(
                [
                    *_FUTURE.findall(code),  # such an import is allowed before all others alone
                    "import sys",
                    f"sys.path += {[str(folder) for folder in runtime.folders]!r}",
                    _FUTURE.sub("", code),
                    "import torch\ntorch.manual_seed(0)",
                    *start,
                    f"lemur_watch = {{}}\nexec({_WATCH!r}, lemur_watch)",
                    f"lemur_call = lambda: {last}",
                    f"lemur_given = block, lemur_call, {row.name}, globals(), {calls!r}, {sizes!r}",
                    "answer = lemur_watch['count_again'](*lemur_given)",
                ]
            )
            jobs[row.block] = Job(row.block, "lemur_core.sandbox.loader:run_text", {"code": text})
    limits = Limits(wall_seconds=600, cpu_seconds=120, memory_bytes=4 * 2**30)
    with Sandbox(limits=limits, workers=2, readable=list(runtime.folders)) as box:
        answers = {outcome.key: outcome.value or outcome for outcome in box.run(list(jobs.values()))}
    for spec in specs:
        if (observed := seen[spec["block"]]) is not None:
            yield spec, observed, answers.get(spec["block"], "no closed call")


def _sizes(text: str) -> str:
    """Return the shape of a tensor in words, as `2x3`; empty if it is none."""
    match = re.fullmatch(r"\w+ (scalar|\d+(?:[x×]\d+)*)", text)
    return match[1].replace("×", "x") if match else ""


def list_facts(spec: dict[str, Any], observed: Observed, answer: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield each fact with its value as stated and as counted again."""
    for case, counted in zip(spec["cases"], answer["cases"], strict=True):
        yield "shapes", list(map(_sizes, case["outputs"])), counted and counted[:32]
    for call, modes in zip(observed.calls, answer["calls"], strict=True):
        for stated, counted in zip((call.eval, call.train), modes, strict=True):
            yield "shapes", None if stated is None else list(map(_sizes, stated)), counted and counted[:32]
    yield "parameters", spec["parameters"], answer["elements"]
    algorithm = spec["algorithm"]
    drawn = answer["draws"]
    if spec["identity_in_eval"] is not None and "eval" in drawn and not drawn["eval"]:
        yield "modes", spec["identity_in_eval"], answer["identity"]
    if spec["train_differs"] is not None and "train" in drawn:
        yield "modes", spec["train_differs"], answer["differs"]
    if algorithm is None:
        return
    unused = set(algorithm["unused_parameters"])
    used = {shape for name, shape in answer["parameters"] if name not in unused}
    text = "\n".join(algorithm["operations"])
    learned = {shape.replace("×", "x") for shape in re.findall(r"\blearned (?:\w+ )?(scalar|\d[\d×]*)", text)}
    if algorithm["train"] is None and algorithm["train_error"] is None:  # else train mode may use some alone
        yield "parameters", sorted(used), sorted(learned)
    for mode, counted in drawn.items():
        stated = algorithm["draws"].get(mode, [])
        outside = {name for name in ("random", "numpy.random") if name in stated}
        yield "draws", sorted(outside | ({"torch"} if set(stated) - outside else set())), counted
    names = re.findall(r"^\(\d+\) (?!in backward)(\w+)", text, re.MULTILINE)
    bags = _count_operations(dict(Counter(names))), _count_operations(answer["operations"])
    differing = sorted(name for name in bags[0] | bags[1] if bags[0][name] != bags[1][name])
    of_spec, again = ({name: bag[name] for name in differing} for bag in bags)
    yield "operations", of_spec, again


def _count_operations(counts: dict[str, int]) -> Counter[str]:
    """Return how many operations of each name compute something."""
    bag = Counter[str]()
    for name, count in counts.items():
        plain = name.strip("_")
        bag[_SPELLINGS.get(plain, plain)] += count if plain not in _UNCOUNTED else 0
    return +bag


if __name__ == "__main__":
    main()
