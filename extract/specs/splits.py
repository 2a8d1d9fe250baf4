"""Specs as tables, split without leakage: related blocks form a group, and a group is in one split.

Two blocks are related if the texts of their classes (without docstrings, comments, layout and the class's own name)
have a shingle Jaccard similarity of at least `NEAR`, if their specs state the same design, or if they compute the same
function. The origin of a block is irrelevant: a layer that ten repositories copied is one group. A closed file also
contains other classes that its block needs. To keep files of one split free of answers of another, a group can go to
validation or test only if none of its classes, and none similar to them, occurs in a file of another group.
"""

import ast
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from extract.specs.make import design_facts
from extract.specs.outline import split_definitions
from lemur_core.similarity.tokens import Numbers, near_pairs, shingles
from lemur_core.source.text import list_nodes, parse_code
from manifests.folders.tables import write_tables
from manifests.records import SPLITS, Spec, SpecRow, Split

#: Path of the tables below the folder; `datasets.load_dataset(DIR, "specs")` opens them.
TABLES = "data/specs"

#: Minimum Jaccard similarity of the texts of related classes.
NEAR = 0.70

#: Held-out splits in the order in which they are filled, with their share of the specs.
HELD_OUT: tuple[tuple[Split, float], ...] = (("test", 0.10), ("validation", 0.10))

_DIGITS = 16
_NOT_DESIGN = frozenset({"level", "fidelity", "category", "summary", "withheld", "graph", "algorithm"})
_NAMING = _NOT_DESIGN | {"bases", "builds", "dependencies"}
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SplitAssignment:
    """The group of a spec, and the split that contains the whole group."""

    cluster: str
    split: Split


def assign_splits(specs: Sequence[Spec], codes: Sequence[str], seed: int) -> list[SplitAssignment]:
    """Assign each spec to a group and a split, about 80 / 10 / 10, regardless of their order.

    Args:
        codes: the closed files of the same blocks.
        seed: selects the groups for the held-out splits.
    """
    labels, used = _groups(specs, codes)
    digests = [hashlib.sha256(spec.block.encode()).hexdigest() for spec in specs]
    names: dict[int, str] = {}
    sizes: dict[int, int] = {}
    for label, digest in zip(labels, digests, strict=True):
        names[label] = min(names.get(label, digest), digest)
        sizes[label] = sizes.get(label, 0) + 1
    # By a digest: the order depends on the seed and the blocks alone, not on the number of other groups.
    order = sorted(names, key=lambda label: hashlib.sha256(f"{seed}:{names[label]}".encode()).digest())
    split_of: dict[int, Split] = {}
    for split, share in HELD_OUT:
        quota = round(len(specs) * share)
        # One large group must not fill a held-out split by itself.
        largest = max(1, quota // 2)
        for label in order:
            if label not in split_of and label not in used and sizes[label] <= min(quota, largest):
                split_of[label] = split
                quota -= sizes[label]
    return [SplitAssignment(names[label][:_DIGITS], split_of.get(label, "train")) for label in labels]


def _groups(specs: Sequence[Spec], codes: Sequence[str]) -> tuple[list[int], set[int]]:
    """Return the group of each spec, and the groups whose classes occur in files of other groups."""
    texts: dict[str, int] = {}  # class text -> its number
    own: list[int] = []
    within: list[list[int]] = []  # numbers of all class texts of each file
    for spec, code in zip(specs, codes, strict=True):
        classes = dict(_classes(code))
        own.append(texts.setdefault(classes.get(spec.name, spec.block), len(texts)))
        within.append([texts.setdefault(text, len(texts)) for text in classes.values()])
    designs: dict[str, int] = {}
    same = [designs.setdefault(design_key(spec), len(designs)) + len(texts) for spec in specs]
    ends = _find_near(list(texts), set(own))
    mine = np.isin(ends[0], own) & np.isin(ends[1], own)
    computed = [
        (text, designs.setdefault(spec.graph, len(designs)) + len(texts))
        for text, spec in zip(own, specs, strict=True)
        if spec.graph is not None
    ]
    ones = [ends[0][mine], own, [text for text, _ in computed]]
    others = [ends[1][mine], same, [graph for _, graph in computed]]
    ties = tuple(np.concatenate([np.asarray(part, np.int64) for part in parts]) for parts in (ones, others))
    labels = np.array(_label_components(ties[0].tolist(), ties[1].tolist(), len(texts) + len(designs)), np.int64)
    return [int(labels[text]) for text in own], _find_used(ends, labels, own, within)


def _label_components(ones: Sequence[int], others: Sequence[int], nodes: int) -> list[int]:
    """Return a number for each node of a graph, the same for connected ones. Importing SciPy takes longer than this."""
    parents = list(range(nodes))

    def find_root(node: int) -> int:
        while parents[node] != node:
            parents[node] = node = parents[parents[node]]
        return node

    for one, other in zip(ones, others, strict=True):
        parents[find_root(other)] = find_root(one)
    return [find_root(node) for node in range(nodes)]


def _find_used(ends: tuple[Numbers, Numbers], labels: Numbers, own: list[int], within: list[list[int]]) -> set[int]:
    """Return the groups whose classes, or similar ones, occur in files of other groups."""
    owners = {text: int(labels[text]) for text in own}
    near: dict[int, set[int]] = {text: {label} for text, label in owners.items()}  # text -> its groups
    for one, other in zip(*(part.tolist() for part in ends), strict=True):
        if other in owners:
            near.setdefault(one, set()).add(owners[other])
    return {
        label
        for text, others in zip(own, within, strict=True)
        for other in others
        for label in near.get(other, ())
        if label != owners[text]
    }


def _find_near(texts: list[str], own: set[int]) -> tuple[Numbers, Numbers]:
    """Return the pairs of similar texts whose second text is the class of a block."""
    pairs = [np.zeros((2, 0), np.int64)]
    for one, other in near_pairs([shingles(text) for text in texts], NEAR):
        pairs.append(np.stack((one, other))[:, np.isin(other, list(own))])
    ends = np.concatenate(pairs, axis=1)
    return ends[0], ends[1]


def design_key(spec: Spec) -> str:
    """Return a text that is equal for specs of the same design, regardless of origin and name.

    For a block that ran, it holds the observations and the call; otherwise, all facts from its syntax.
    """
    facts = design_facts(spec.model_dump(mode="json"))
    kept = {name: value for name, value in facts.items() if name not in (_NAMING if spec.cases else _NOT_DESIGN)}
    return json.dumps(kept, sort_keys=True, ensure_ascii=False)


def _classes(code: str) -> Iterator[tuple[str, str]]:
    """Yield the name and normalized text of each top-level class; nothing if the code is not valid Python."""
    for piece in split_definitions(code):
        if (match := _CLASS.search(piece)) is not None:
            yield match[1], _plain(piece)


@lru_cache(maxsize=20_000)
def _plain(piece: str) -> str:
    """Return the text of a class without docstrings, comments, layout and its own name."""
    tree = parse_code(piece)
    for node in list_nodes(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str())), *rest]:
                    node.body = rest or [ast.Pass()]
    return _CLASS.sub("class", ast.unparse(tree), count=1)


# --- the tables -------------------------------------------------------------------------------------------------------


def write_spec_tables(folder: Path, specs: Sequence[Spec], assignments: Sequence[SplitAssignment]) -> dict[str, int]:
    """Write the specs to the tables of their splits, in order. Returns: path below `folder` -> number of rows."""
    rows: dict[str, int] = {}
    for split in SPLITS:
        chosen = [pair for pair in zip(specs, assignments, strict=True) if pair[1].split == split]
        rows_to_write: Iterator[dict[str, object]] = (spec_row(*pair) for pair in chosen)
        written = write_tables(folder / TABLES, split, SpecRow, rows_to_write, len(chosen))
        rows |= {f"{TABLES}/{name}": count for name, count in written.items()}
    return rows


def spec_row(spec: Spec, assignment: SplitAssignment) -> dict[str, Any]:
    """Return one row: the fields of the spec's line, with mappings as lists sorted by name."""
    facts = spec.model_dump(mode="json")
    worked = facts.pop("arguments") or {"init": None, "forward": None, "method": None}
    facts["cases"] = [{"inputs": _values(case["inputs"]), "outputs": case["outputs"]} for case in facts["cases"]]
    facts["layers"] = None if facts["layers"] is None else _counts(facts["layers"])
    if facts["algorithm"] is not None:
        facts["algorithm"] = json.dumps(facts["algorithm"], sort_keys=True, ensure_ascii=False)
    facts["builds"] = _counts(facts["builds"])
    facts["dependencies"] = _values(facts["dependencies"])
    for name, key in (("init", "init"), ("call", "forward")):
        facts[name] = None if worked[key] is None else _values(worked[key])
    facts |= {"method": worked["method"], "split": assignment.split, "cluster": assignment.cluster}
    return {name: facts[name] for name in SpecRow.model_fields}


def _values(items: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in sorted(items.items())]


def _counts(items: Mapping[str, int]) -> list[dict[str, object]]:
    return [{"name": name, "count": number} for name, number in sorted(items.items())]
