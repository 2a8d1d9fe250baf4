"""Given a class of transformers, find the class that its authors derived it from: `lemur search --like`, beside others.

    python -m benchmarks.search_modular PACKAGE

PACKAGE: an unpacked wheel of transformers (5.24.0 is what docs/specs.md states). A file `modular_X.py` says which class
of another model each class of X inherits from; `modeling_X.py`, which is generated, has the class written out. The
query is the class as written out; the answers are its parent as written out, and those of equal text once the name of
the model is taken out of both. All classes of other models are candidates. Files are parsed, nothing is run.

Compared: the token Jaccard of `utils/modular_model_detector.py` (transformers#41289), which knows the name of each
model; our shingles without weights; and what the product ranks by. The weights of the product were chosen on `chosen`,
the half of the models (by SHA-256 of the model's name) that the table states apart.
"""

import argparse
import ast
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from benchmarks.search import told
from lemur.like import Features, compare_features, read_features

#: Model and name of a class.
Key = tuple[str, str]
#: Similarities of classes to all.
Scores = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """A class and its parent. `copied`: it changes nothing but names."""

    child: Key
    parent: Key
    copied: bool

    @property
    def chosen(self) -> bool:
        """Whether weights were chosen on it."""
        return hashlib.sha256(self.child[0].encode()).digest()[-1] % 2 == 0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    options = parser.parse_args()
    classes = dict(read_classes(options.package / "models"))
    pairs = list(read_pairs(options.package / "models", classes))
    keys = sorted(classes)
    plain = [without_model(classes[key], *key) for key in keys]
    features = [read_features(classes[key], None, key[1]) for key in keys]
    plain_words = [{hash(word): 1 for word in set(re.findall(r"\b[a-zA-Z_][a-zA-Z0-9_]*\b", text))} for text in plain]
    print(f"{len(keys):,} classes, {len(pairs):,} pairs; R@1, R@10, MRR with 95 % intervals")
    places = {key: number for number, key in enumerate(keys)}
    wanted = [places[pair.child] for pair in pairs]
    words, shingles = ([own[kind] for own in features] for kind in ("words", "shingles"))
    ways = {
        "detector": compare_all(plain_words, wanted),
        "shingles": compare_all(shingles, wanted),
        "code": (compare_all(words, wanted, rare=True) + compare_all(shingles, wanted, rare=True)) / 2,
    }
    report(places, plain, pairs, ways)


def compare_all(features: Sequence[Features], wanted: Sequence[int], *, rare: bool = False) -> Scores:
    """Return the similarities of the wanted to all, as `compare_features` of the product gives them one at a time.

    Raises: AssertionError if it gives others for the first of the wanted.
    """
    size = len(features)
    places = {item: place for place, item in enumerate(sorted(set().union(*features)))}
    rows = np.repeat(np.arange(size), [len(own) for own in features])
    columns = np.array([places[item] for own in features for item in own])
    held: Any = csr_array((np.ones(len(rows)), (rows, columns)), shape=(size, len(places)))
    spread = held.sum(axis=0)
    worth = np.maximum(np.log((size + 0.5) / (spread + 0.5)), 1e-3) if rare else np.ones(len(places))
    totals, shared = held @ worth, ((held[wanted] * worth) @ held.T).toarray()
    both = totals[wanted][:, None] + totals - shared
    found: Scores = np.divide(shared, both, out=np.zeros_like(shared), where=both > 0)
    listed = [(number, item, count) for number, own in enumerate(features) for item, count in own.items()]
    expected = compare_features(listed, features[wanted[0]], size, rare=rare)
    assert np.allclose(found[0], [expected.get(number, 0.0) for number in range(size)])
    return found


def report(places: dict[Key, int], plain: Sequence[str], pairs: Sequence[Pair], ways: dict[str, Scores]) -> None:
    """Print the ranks of the parents by each way."""
    numbers = np.arange(len(places))
    models = np.array([model for model, _ in places])
    distinct: dict[str, int] = {}
    texts = np.array([distinct.setdefault("".join(text.split()), len(distinct)) for text in plain])
    groups: dict[str, Callable[[Pair], bool]] = {
        "chosen": lambda pair: pair.chosen,
        "other half": lambda pair: not pair.chosen,
        "of it, copies": lambda pair: not pair.chosen and pair.copied,
        "of it, changed": lambda pair: not pair.chosen and not pair.copied,
    }
    for name, scores in ways.items():
        ranks = []
        for pair, own_scores in zip(pairs, scores, strict=True):
            others = numbers[models != pair.child[0]]
            others = others[np.argsort(-own_scores[others], kind="stable")]
            ranks.append(int(np.argmax(texts[others] == texts[places[pair.parent]])) + 1)
        for group, belongs in groups.items():
            own = [rank for rank, pair in zip(ranks, pairs, strict=True) if belongs(pair)]
            if own:
                print(f"  {name:<22}{group:<15}{len(own):>5}  {told(own)}", flush=True)


def read_classes(models: Path) -> Iterator[tuple[Key, str]]:
    """Yield the text of each class of a file `modeling_X.py`."""
    for path in sorted(models.glob("*/modeling_*.py")):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                code = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                yield (path.stem.removeprefix("modeling_"), node.name), code


def read_pairs(models: Path, classes: dict[Key, str]) -> Iterator[Pair]:
    """Yield each class with its parent of another model, where both are written out."""
    for path in sorted(models.glob("*/modular_*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        imported: dict[str, Key] = {}
        for node in body:
            if isinstance(node, ast.ImportFrom) and node.level == 2 and node.module:
                model = re.sub(r"^.*\.(modeling|modular)_", "", node.module)
                imported |= {alias.asname or alias.name: (model, alias.name) for alias in node.names}
        for node in body:
            if not isinstance(node, ast.ClassDef):
                continue
            child = (path.stem.removeprefix("modular_"), node.name)
            copied = all(isinstance(part, ast.Pass) or _is_text(part) for part in node.body)
            for base in node.bases:
                parent = imported.get(base.id) if isinstance(base, ast.Name) else None
                if child in classes and parent in classes and parent is not None:
                    yield Pair(child, parent, copied)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def without_model(code: str, model: str, name: str) -> str:
    """A class without docstrings, comments and imports, the name of its model replaced: rules of the detector."""
    code = re.sub(r'("""|\'\'\')(?:.|\n)*?\1', "", code)
    code = re.sub(r"#.*", "", code)
    code = "\n".join(line for line in code.splitlines() if not re.match(r"\s*(from|import)\s+", line))
    first = re.match(r"^([A-Z][a-z0-9]+)", name) or re.match(r"^([A-Za-z0-9]+)", name)
    names = {model, *([first[1]] if first else [])}
    names |= {part for name in list(names) for part in (name.replace("_", ""), re.sub(r"\d+", "", name))}
    names |= {name.lower() for name in list(names)}
    for part in sorted((name for name in names if len(name) > 2), key=len, reverse=True):
        code = re.sub(re.escape(part), "Model", code, flags=re.IGNORECASE)
    return code


if __name__ == "__main__":
    main()
