"""Fit the vectors of `lemur search` to docstrings and what their classes are made of.

    python -m benchmarks.search_meaning OUT.npz --in DIR... --package FILE.whl|FOLDER... --without SOURCE...

DIR: extraction folders, whose specs say what a block is made of, graphs included. Packages add many more classes, by
the names in their code alone. SOURCE: packages that are held out: nothing is learnt of them, nor of classes elsewhere
that have a docstring of theirs word for word.

Two sums of vectors, of the stems of a docstring and of those of its class, are brought near each other and apart from
those of 255 other classes, of any package and of the same one in turn. A stem means nearly the same in both. More than
half of the queries go without the words of the class's name, and some stems are left out at random, so that all of them
carry some of the weight.

Source: the loss is that of A. van den Oord et al., "Representation learning with contrastive predictive coding" (2018).
"""

import argparse
import ast
import json
import math
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, embedding_bag, normalize

from benchmarks.descriptions import description, docstring_in
from extract.model.categories import split_words
from extract.search.class_words import iterate_classes, stems_of_class
from extract.search.index import read_graph, stems_by_field
from extract.search.meaning import KINDS, weigh_stems
from extract.search.words import FILLER, name_stems, stem, stems
from manifests.provenance import SPECS

_SIZE = 128
_BATCH = 256
_EPOCHS = 14
_LEFT_OUT = 0.7  # share of a class's stems that one step does not see; of a query's half as many
_NAMELESS = 0.6  # share of queries without the words of the name
_RATE = 5e-3
_RATE_APART = 1.5e-3  # of what a stem means in a query beside what it means in a class
_AT_LEAST = 8  # pairs that a stem occurs in
_TOLD = 12  # letters of a docstring at least
_SHORT = 2  # stems of a docstring that many classes may have
_OF_PACKAGE = 800  # classes of one package at most: copies of one model after another would fill the batches
_FIRST_KINDS = (1.0, 0.5, 0.3, 0.5, 0.5, 0.5, 0.5, 0.3, 0.5)
_FILLER = frozenset(stem(word) for word in FILLER)
_BASE = re.compile(
    "Module|Layer|Block|Net|Attention|Conv|Loss|Norm|Head|Model|Embed|Backbone|Encoder|Decoder|Transform|Pool|Act"
)

#: Most files hold no such class with a docstring, and are not parsed.
_DERIVED = re.compile(rf"^class \w+\([^)]*(?:{_BASE.pattern})[^)]*\):\s+r?[\"']", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Pair:
    """A class and its description."""

    package: str
    name: str
    query: list[str]
    fields: dict[str, list[str]]


def main() -> None:
    """Fit, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--in", dest="folders", type=Path, nargs="*", default=[])
    parser.add_argument("--package", type=Path, nargs="*", default=[])
    parser.add_argument("--without", nargs="*", default=[])
    given = parser.parse_args()
    pairs = list(_unique([*_blocks(given.folders), *_classes(given.package)], set(given.without)))
    print(f"{len(pairs)} classes of {len({pair.package for pair in pairs})} packages", flush=True)
    np.savez_compressed(given.out, **fitted(pairs))


def _unique(pairs: Sequence[Pair], without: set[str]) -> Iterator[Pair]:
    copied = {tuple(pair.query) for pair in pairs if pair.package in without and len(pair.query) > _SHORT}
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for pair in pairs:
        query = tuple(pair.query)
        if len(query) > 1 and pair.package not in without and query not in copied and (pair.name, query) not in seen:
            seen.add((pair.name, query))
            yield pair


def _asked(docstring: str) -> list[str]:
    return [one for one in dict.fromkeys(stems(description(docstring))) if one not in _FILLER and len(one) > 1]


def _blocks(folders: Sequence[Path]) -> Iterator[Pair]:
    for folder in folders:
        for line in (folder / SPECS).read_text(encoding="utf-8").splitlines():
            spec: dict[str, Any] = json.loads(line)
            if told := docstring_in(folder, spec)[0]:
                source = spec["source"].partition("@")[0]
                fields = stems_by_field(spec, read_graph(spec), folder, described=False)
                yield Pair(source, spec["name"], _asked(told), fields)


def _classes(packages: Sequence[Path]) -> Iterator[Pair]:
    for package in packages:
        name = package.name.partition("-")[0].replace("_", "-") if package.suffix == ".whl" else package.name
        read = 0
        for path, text in _files(package):
            for node, own in iterate_classes(text) if _DERIVED.search(text) else ():
                told = ast.get_docstring(node) or ""
                if read < _OF_PACKAGE and len(told) >= _TOLD and any(map(_BASE.search, _bases(node))):
                    read += 1
                    yield Pair(name, node.name, _asked(told), _fields(node, own, path))


def _fields(node: ast.ClassDef, text: str, path: str) -> dict[str, list[str]]:
    """What a spec would say, as far as the code tells it."""
    named = {"name": [node.name], "place": path.removesuffix(".py").split("/")[1:]}
    named["bases"] = [base for base in _bases(node) if base != "Module"]
    found = {field: [one for name in names for one in name_stems(name)] for field, names in named.items()}
    found |= stems_of_class(node, text, described=False)
    return {field: found.get(field, []) for kind in KINDS for field in kind}


def _files(package: Path) -> Iterator[tuple[str, str]]:
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as archive:
            for name in sorted(archive.namelist()):
                if name.endswith(".py") and "test" not in name:
                    yield name, archive.read(name).decode(errors="replace")
    else:
        for path in sorted(package.rglob("*.py")):
            name = path.relative_to(package.parent).as_posix()
            if "test" not in name:
                yield name, path.read_text(encoding="utf-8", errors="replace")


def _bases(node: ast.ClassDef) -> list[str]:
    return [base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases]


class _Vectors(nn.Module):
    """The vectors, and how much each stem and each kind of field counts."""

    def __init__(self, in_queries: Sequence[int], in_classes: Sequence[int], pairs: int) -> None:
        super().__init__()
        stems_ = len(in_queries)
        self.rare_asked = torch.tensor([max(0.1, math.log(pairs / (1 + count))) for count in in_queries])
        self.rare_told = torch.tensor([max(0.1, math.log(pairs / (1 + count))) for count in in_classes])
        self.vectors = nn.Parameter(torch.randn(stems_, _SIZE) / _SIZE**0.5)
        self.apart = nn.Parameter(torch.zeros(stems_, _SIZE))
        self.asked_by = nn.Parameter(torch.zeros(stems_))
        self.told_by = nn.Parameter(torch.zeros(stems_))
        self.kinds = nn.Parameter(torch.tensor(_FIRST_KINDS))
        self.sharpness = nn.Parameter(torch.tensor(math.log(12.0)))

    @property
    def asked(self) -> torch.Tensor:
        return self.rare_asked * self.asked_by.exp()

    @property
    def told(self) -> torch.Tensor:
        return self.rare_told * self.told_by.exp()

    def queries(self, places: Sequence[Any]) -> torch.Tensor:
        """Of each query its vector, shape (queries, size)."""
        flat = torch.as_tensor(np.concatenate(places))
        return _summed(self.vectors + self.apart, flat, self.asked[flat], places)

    def classes(self, told: Sequence[tuple[Any, Any, Any]]) -> torch.Tensor:
        """Of each class, given places, kinds and weights of its stems, its vector, shape (classes, size)."""
        flat, kinds, weights = (torch.as_tensor(np.concatenate([one[part] for one in told])) for part in range(3))
        return _summed(self.vectors, flat, self.told[flat] * self.kinds[kinds] * weights, [one[0] for one in told])


def _summed(vectors: torch.Tensor, flat: torch.Tensor, weights: torch.Tensor, groups: Sequence[Any]) -> torch.Tensor:
    starts = torch.tensor(np.cumsum([0, *map(len, groups[:-1])]))
    return normalize(embedding_bag(flat, vectors, starts, mode="sum", per_sample_weights=weights), dim=-1, eps=1e-6)


def fitted(pairs: Sequence[Pair], seed: int = 0) -> dict[str, Any]:
    """The table that `extract.search.meaning` reads, vectors as whole numbers of a scale for each."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # and so the same sums, whatever the machine
    random = np.random.default_rng(seed)
    in_queries = Counter(one for pair in pairs for one in set(pair.query))
    in_classes = Counter(one for pair in pairs for one in {one for own in pair.fields.values() for one in own})
    packages: dict[str, set[str]] = {}
    for pair in pairs:
        for one in {*pair.query, *(one for own in pair.fields.values() for one in own)}:
            packages.setdefault(one, set()).add(pair.package)
    often = (one for one in packages if in_queries[one] + in_classes[one] >= _AT_LEAST and len(packages[one]) > 1)
    places = {one: place for place, one in enumerate(sorted(often))}
    model = _Vectors([in_queries[one] for one in places], [in_classes[one] for one in places], len(pairs))
    queries, nameless, classes = [], [], []
    for pair in pairs:
        name = {stem(word) for word in split_words(pair.name).split()} | {pair.name.lower()}
        queries.append(np.array([places[one] for one in pair.query if one in places], np.int64))
        nameless.append(np.array([places[one] for one in pair.query if one in places and one not in name], np.int64))
        classes.append(_told(pair, places))
    same = np.unique([pair.name for pair in pairs], return_inverse=True)[1]
    optimizer = torch.optim.Adam(
        [
            {"params": [model.vectors, model.asked_by, model.told_by], "lr": _RATE},
            {"params": [model.apart], "lr": _RATE_APART},
            {"params": [model.kinds, model.sharpness], "lr": 0.01},
        ]
    )
    for epoch in range(_EPOCHS):
        total, steps = 0.0, 0
        for batch in _batches(pairs, random, of_one_package=epoch % 2 == 1):
            asked = [nameless[n] if random.random() < _NAMELESS and len(nameless[n]) else queries[n] for n in batch]
            asked = [_some(one, random.random(len(one)) > _LEFT_OUT / 2) for one in asked]
            left = [random.random(len(classes[n][0])) > _LEFT_OUT for n in batch]
            told = [tuple(_some(part, some) for part in classes[n]) for n, some in zip(batch, left, strict=True)]
            near = model.sharpness.exp() * model.queries(asked) @ model.classes(told).T
            twins = torch.as_tensor(same[batch][:, None] == same[batch][None]) & ~torch.eye(
                len(batch), dtype=torch.bool
            )
            near = near.masked_fill(twins, -1e4)
            own = torch.arange(len(batch))
            loss = cross_entropy(near, own) + 0.5 * cross_entropy(near.T, own)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total, steps = total + float(loss.detach()), steps + 1
        print(f"epoch {epoch + 1}: loss {total / steps:.3f}", flush=True)
    return _stored(model, list(places))


def _told(pair: Pair, places: dict[str, int]) -> tuple[Any, Any, Any]:
    """Places, kinds and weights of a class's stems."""
    found = [
        weigh_stems(pair.fields, places, [float(k == kind) for k in range(len(KINDS))]) for kind in range(len(KINDS))
    ]
    kept = [(own[0][own[1] > 0], own[1][own[1] > 0]) for own in found]
    return (
        np.concatenate([own[0] for own in kept]),
        np.concatenate([np.full(len(own[0]), kind) for kind, own in enumerate(kept)]),
        np.concatenate([own[1] for own in kept]),
    )


def _some(items: Any, chosen: Any) -> Any:
    return items[chosen] if chosen.any() else items


def _batches(pairs: Sequence[Pair], random: np.random.Generator, *, of_one_package: bool) -> Iterator[Any]:
    if not of_one_package:
        order = random.permutation(len(pairs))
        yield from (order[start : start + _BATCH] for start in range(0, len(pairs) - _BATCH + 1, _BATCH))
        return
    own: dict[str, list[int]] = {}
    for number, pair in enumerate(pairs):
        own.setdefault(pair.package, []).append(number)
    shuffled = [random.permutation(numbers) for numbers in own.values()]
    batches = [numbers[start : start + _BATCH] for numbers in shuffled for start in range(0, len(numbers), _BATCH)]
    yield from (batches[place] for place in random.permutation(len(batches)) if len(batches[place]) > 20)


def _stored(model: _Vectors, names: Sequence[str]) -> dict[str, Any]:
    with torch.no_grad():
        told, told_by = _whole(model.vectors, model.told)
        asked, asked_by = _whole(model.vectors + model.apart, model.asked)
        kinds = model.kinds.numpy().astype(np.float32)
    stems_ = np.frombuffer("\n".join(names).encode(), np.uint8)
    return {"stems": stems_, "asked": asked, "asked_by": asked_by, "told": told, "told_by": told_by, "kinds": kinds}


def _whole(vectors: torch.Tensor, weights: torch.Tensor) -> tuple[Any, Any]:
    """Vectors as whole numbers, and what each is to be multiplied by: its scale and its weight."""
    scales = vectors.abs().amax(dim=1) / 127
    return (vectors / scales[:, None]).round().to(torch.int8).numpy(), (weights * scales).numpy().astype(np.float32)


if __name__ == "__main__":
    main()
