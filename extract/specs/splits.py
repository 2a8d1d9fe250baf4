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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from extract.specs.make import design_facts
from extract.specs.outline import read_outline
from lemur_core.similarity.tokens import near_pairs, shingles
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
_NAMING = _NOT_DESIGN | {"bases", "dependencies"}
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)


Node = tuple[str, str]  # a class by its text, a design or a graph


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
    labels, used = _group(specs, codes)
    digests = [hashlib.sha256(spec.block.encode()).hexdigest() for spec in specs]
    members: dict[Node, list[str]] = {}
    for label, digest in zip(labels, digests, strict=True):
        members.setdefault(label, []).append(digest)
    names = {label: min(group) for label, group in members.items()}
    # By a digest: the order depends on the seed and the blocks alone, not on the number of other groups.
    order = sorted(names, key=lambda label: hashlib.sha256(f"{seed}:{names[label]}".encode()).digest())
    split_of: dict[Node, Split] = {}
    for split, share in HELD_OUT:
        quota = round(len(specs) * share)
        # One large group must not fill a held-out split by itself.
        largest = max(1, quota // 2)
        for label in order:
            size = len(members[label])
            if label not in split_of and label not in used and size <= min(quota, largest):
                split_of[label] = split
                quota -= size
    return [SplitAssignment(names[label][:_DIGITS], split_of.get(label, "train")) for label in labels]


class _Groups:
    """Sets of connected nodes; each has a root."""

    def __init__(self) -> None:
        self._parents: dict[Node, Node] = {}

    def find(self, node: Node) -> Node:
        while (parent := self._parents.get(node, node)) != node:
            self._parents[node] = node = self._parents.get(parent, parent)
        return node

    def join(self, one: Node, other: Node) -> None:
        self._parents[self.find(other)] = self.find(one)


def _group(specs: Sequence[Spec], codes: Sequence[str]) -> tuple[list[Node], set[Node]]:
    """Return the group of each spec, and the groups whose classes, or similar ones, occur in files of other groups."""
    files = [{name: _plain(text) for name, text in read_outline(code).texts.items()} for code in codes]
    own = [classes.get(spec.name, spec.block) for spec, classes in zip(specs, files, strict=True)]
    texts = list(dict.fromkeys([*own, *(text for classes in files for text in classes.values())]))
    blocks = len({*own})
    near: dict[str, set[str]] = {text: {text} for text in own}  # a class -> the classes of blocks that are similar
    for one, other in near_pairs([shingles(text) for text in texts], NEAR):
        for first, second in zip(one.tolist(), other.tolist(), strict=True):
            if second < blocks:  # the classes of blocks are the first texts
                near.setdefault(texts[first], set()).add(texts[second])
    groups = _Groups()
    for spec, text in zip(specs, own, strict=True):
        for similar in near[text]:
            groups.join(("text", text), ("text", similar))
        groups.join(("text", text), ("design", design_key(spec)))
        if spec.graph is not None:
            groups.join(("text", text), ("graph", spec.graph))
    labels = [groups.find(("text", text)) for text in own]
    used = {
        label
        for mine, classes in zip(labels, files, strict=True)
        for text in classes.values()
        for similar in near.get(text, ())
        if (label := groups.find(("text", similar))) != mine
    }
    return labels, used


def design_key(spec: Spec) -> str:
    """Return a text that is equal for specs of the same design, regardless of origin and name.

    For a block that ran, it holds the observations and the call; otherwise, all facts from its syntax.
    """
    facts = design_facts(spec.model_dump(mode="json"))
    kept = {name: value for name, value in facts.items() if name not in (_NAMING if spec.cases else _NOT_DESIGN)}
    return json.dumps(kept, sort_keys=True, ensure_ascii=False)


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


def write_spec_tables(folder: Path, specs: Sequence[Spec], assignments: Sequence[SplitAssignment]) -> None:
    """Write the specs to the tables of their splits, in order."""
    for split in SPLITS:
        chosen = [pair for pair in zip(specs, assignments, strict=True) if pair[1].split == split]
        values = (SpecRow.values(spec, **asdict(assignment)) for spec, assignment in chosen)
        write_tables(folder / TABLES, split, SpecRow, values, len(chosen))
