"""The index of an extraction folder: what each spec says, in weighted stems, what it means, what its graph is made of.

It is made once for a folder's specs and kept in the user's cache, under the digest that the manifest states; a search
reads it whole, and of the specs only the lines that it shows.
"""

import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from extract.search import meaning
from extract.search.words import name_stems, shape_words, split_name, stems
from lemur_core.files.atomic import atomic_file
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import article
from manifests.provenance import SPECS

#: Of the fields of a spec, by how much a stem in each counts. Fitted, as benchmarks/search.py tells, then rounded.
FIELDS = {
    "name": 1.0,
    "category": 0.8,
    "arguments": 0.5,
    "shape": 0.5,
    "place": 0.45,
    "parts": 0.4,
    "source": 0.3,
    "operations": 0.25,
    "needs": 0.1,
    "layers": 0.1,
    "sentences": 0.08,
    "bases": 0.05,
}
_VERSION = 1  # of what an index holds
_LENGTHS = 0.6  # how much a long field counts less, as in BM25
_NEAR_WORDS = 50_000
_IN_PROCESS = 400  # specs that are read without worker processes
_CHUNK = 50

#: What filters ask for.
FACTS = ("block", "name", "category", "level", "license", "source")

Spec = dict[str, Any]  # a line of specs.jsonl
Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int32]


class Hits(NamedTuple):
    """Blocks by number, and how much each has of what was asked for."""

    blocks: Numbers
    weights: Floats


@dataclass(frozen=True, slots=True)
class Read:
    """What the index takes from one spec."""

    facts: tuple[str, ...]
    fields: dict[str, list[str]]  # their stems
    words: list[str]  # as they are spelled, to suggest near ones
    labels: dict[str, int] | None  # of the subtrees of its graph


class Index:
    """The index of a folder, as it is kept."""

    def __init__(self, path: Path, specs: Path) -> None:
        """Raises: OSError, ValueError or KeyError if it is none."""
        self._path, self._specs = path, specs
        stems_, facts, *arrays = self._read("stems", "facts", "starts", "blocks", "weights", "lines", "meanings")
        self._vocabulary = {stem: place for place, stem in enumerate(_texts(stems_))}
        self._starts, self._blocks, self._weights, self._lines, meanings = arrays
        self.facts: dict[str, list[str]] = json.loads(bytes(facts))
        #: What each block means, shape (blocks, size), rows of length 1.
        self.meanings: Floats = meanings.astype(np.float32)

    def __len__(self) -> int:
        return len(self._lines) - 1

    def __contains__(self, stem: str) -> bool:
        return stem in self._vocabulary

    def hits(self, stem: str) -> Hits:
        """The blocks that have a stem, in their order; none if there is no such stem."""
        place = self._vocabulary.get(stem)
        if place is None:
            return Hits(self._blocks[:0], self._weights[:0])
        span = slice(self._starts[place], self._starts[place + 1])
        return Hits(self._blocks[span], self._weights[span])

    @cached_property
    def by_start(self) -> dict[str, list[str]]:
        """Stems by their first four letters."""
        found: dict[str, list[str]] = {}
        for stem in self._vocabulary:
            if len(stem) >= _START and stem.isalpha():
                found.setdefault(stem[:_START], []).append(stem)
        return found

    @cached_property
    def words(self) -> list[str]:
        """The words of names, places and layers as they are spelled, the commonest first."""
        return _texts(*self._read("words"))

    @cached_property
    def labels(self) -> "Labels":
        """The graphs of the blocks."""
        return Labels(*self._read("labels", "label_starts", "label_blocks", "label_counts", "label_totals"))

    def _read(self, *names: str) -> list[npt.NDArray[Any]]:
        with self._path.open("rb") as file, np.load(file) as stored:
            return [stored[name] for name in names]

    def spec(self, number: int) -> Spec:
        """One spec, from its file.

        Raises: UserError if it is no longer there.
        """
        start, end = int(self._lines[number]), int(self._lines[number + 1])
        try:
            with self._specs.open("rb") as file:
                file.seek(start)
                found: Spec = json.loads(file.read(end - start))
            if found["block"] != self.facts["block"][number]:
                raise ValueError("another block stands there")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _broken(self._specs, number, error) from error
        return found


_START = 4


@dataclass(frozen=True, slots=True)
class Labels:
    """The Weisfeiler-Lehman labels of a folder's graphs, by label."""

    names: npt.NDArray[np.uint64]  # in order
    starts: npt.NDArray[np.int64]  # of each label's blocks, and the end
    blocks: Numbers
    counts: Numbers  # how often the block has the label
    totals: Numbers  # labels of each block; 0 where it has no graph

    def similar(self, wanted: Mapping[str, int]) -> Floats:
        """The Jaccard similarity of each block's multiset of labels with this one, shape (blocks,)."""
        shared = np.zeros(len(self.totals), np.int64)
        for name, count in wanted.items():
            key = _key(name)
            place = int(np.searchsorted(self.names, key))
            if place < len(self.names) and self.names[place] == key:
                span = slice(self.starts[place], self.starts[place + 1])
                shared[self.blocks[span]] += np.minimum(self.counts[span], count)
        union = self.totals + sum(wanted.values()) - shared
        found: Floats = (shared / np.maximum(union, 1)).astype(np.float32)
        return found

    def of(self, number: int) -> dict[str, int]:
        """The labels of one block with their counts."""
        places = np.flatnonzero(self.blocks == number)
        names = self.names[np.searchsorted(self.starts, places, side="right") - 1]
        return {f"{name:016x}": int(count) for name, count in zip(names, self.counts[places], strict=True)}


def _key(label: str) -> np.uint64:
    return np.uint64(int(label[:16], 16))


# --- opened, made when it is not there ----------------------------------------------------------------------------


def open_index(folder: Path) -> Index:
    """The index of a folder.

    Raises: UserError if the folder is no extraction, has no specs, or a line of them is broken.
    """
    path = folder / SPECS
    size, digest = _stated(folder)
    try:
        there = path.stat().st_size
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; run `lemur verify`, or make the folder anew") from error
    if there != size:
        raise UserError(f"{path}: is not the file that the manifest states; run `lemur verify`, or make it anew")
    kept = cache_folder("search") / f"v{_VERSION}-{meaning.VERSION}-{digest[:40]}.npz"
    try:
        return Index(kept, path)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        pass  # not there, or not whole: made anew
    arrays = _made(path)
    with atomic_file(kept) as part, part.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    return Index(kept, path)


def _stated(folder: Path) -> tuple[int, str]:
    """Size in bytes and SHA-256 of the specs, by the folder's manifest, read as plain JSON, since that is quick."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        kind = manifest["kind"]
        outputs = {item["path"]: (int(item["bytes"]), str(item["sha256"])) for item in manifest["outputs"]}
    except FileNotFoundError:
        raise UserError(f"{folder}: no manifest.json; not a finished lemur folder") from None
    except NotADirectoryError:
        raise UserError(f"{folder}: is a file; give the folder that `lemur extract` wrote") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a valid manifest: {error}; make the folder anew") from error
    if kind != "extraction":
        raise UserError(
            f"{folder}: holds {article(kind)}, not an extraction; give the folder that `lemur extract` wrote"
        )
    if SPECS not in outputs:
        raise UserError(f"{folder}: has no {SPECS}: an earlier version wrote it; run `lemur extract` again")
    return outputs[SPECS]


def _made(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an index of these specs.

    Raises: UserError if a line is broken.
    """
    lines = path.read_bytes().splitlines(keepends=True)
    reads: list[Read] = []
    for number, read in enumerate(_read_all(lines)):
        if isinstance(read, str):
            raise _broken(path, number, read)
        reads.append(read)
    counted = Counter(word for read in reads for word in read.words)
    facts = {name: [read.facts[place] for read in reads] for place, name in enumerate(FACTS)}
    return {
        "lines": np.cumsum([0, *map(len, lines)], dtype=np.int64),
        "facts": np.frombuffer(json.dumps(facts).encode(), np.uint8),
        "words": _bytes(sorted(counted, key=lambda word: (-counted[word], word))[:_NEAR_WORDS]),
        "meanings": meaning.of_blocks([read.fields for read in reads]).astype(np.float16),
        **_postings([read.fields for read in reads]),
        **_labelled([read.labels for read in reads]),
    }


def _read_all(lines: Sequence[bytes]) -> Iterator[Read | str]:
    if len(lines) <= _IN_PROCESS:
        yield from map(read_line, lines)
        return
    from lemur_core.files.progress import progress
    from lemur_core.files.workers import map_chunks

    chunks = (lines[start : start + _CHUNK] for start in range(0, len(lines), _CHUNK))
    with progress("index", len(lines), "blocks") as advance:
        for found in map_chunks(read_line, chunks, None):
            yield from found
            advance(len(found))


def read_line(line: bytes) -> Read | str:
    """What the index takes from a line of specs, or what is wrong with it."""
    try:
        spec = json.loads(line)
        graph = graph_of(spec)
        return Read(
            tuple(str(spec[name]) for name in FACTS),
            fields_of(spec, graph),
            [word for name in _named(spec) for word in split_name(name).split()],
            _labels_of(graph),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _broken(path: Path, number: int, error: object) -> UserError:
    return UserError(f"{path}:{number + 1}: not a spec: {error}; run `lemur verify`, or make it anew")


# --- what a spec says ----------------------------------------------------------------------------------------------


def graph_of(spec: Mapping[str, Any]) -> Any:
    """The graph of eval mode; None where there is none, or it is of another form or torch."""
    if spec.get("algorithm") is None:
        return None
    from lemur_core.graphs.serialization import forms_of  # only where there is a graph

    try:
        return forms_of(spec["algorithm"])["eval"]
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _labels_of(graph: Any) -> dict[str, int] | None:
    if graph is None:
        return None
    from lemur_core.graphs.identity import subtrees

    return dict(subtrees(graph))


def _named(spec: Mapping[str, Any]) -> list[str]:
    module = spec["block"].partition("::")[2].split(".")[:-1]
    return [spec["name"], *dict.fromkeys(module), *spec["builds"], *(spec["layers"] or {})]


def fields_of(spec: Mapping[str, Any], graph: Any) -> dict[str, list[str]]:
    """The stems of each field of a spec, repeated as often as they occur."""
    told = spec.get("algorithm") or {}
    arguments = [item["name"] for group in ("constructor", "forward") for item in spec[group]]
    nodes = graph.nodes if graph is not None else ()
    scopes = dict.fromkeys(part for node in nodes for part in node.scope.split(".") if not part.isdigit())
    return {
        "name": list(name_stems(spec["name"])),
        "category": list(name_stems(spec["category"])),
        "arguments": _of_names(arguments),
        "shape": stems(" ".join(shape_words(spec))),
        "place": _of_names(dict.fromkeys(spec["block"].partition("::")[2].split(".")[1:-1])),
        "parts": _of_names(scopes),
        "source": list(name_stems(spec["source"].partition("@")[0])),
        "operations": _of_names(dict.fromkeys(node.op for node in nodes)),
        "needs": _of_names(spec["dependencies"]),
        "layers": _of_names({**spec["builds"], **(spec["layers"] or {})}),
        "sentences": stems(" ".join([*told.get("sentences", ()), *told.get("motifs", ())])),
        "bases": _of_names(base for base in spec["bases"] if base != "Module"),
    }


def _of_names(names: Iterable[str]) -> list[str]:
    return [stem for name in names for stem in name_stems(name)]


# --- arrays --------------------------------------------------------------------------------------------------------


def _postings(blocks: Sequence[Mapping[str, list[str]]]) -> dict[str, npt.NDArray[Any]]:
    """Of each stem the blocks that have it, with the sum over fields of weight and saturated, normalised frequency."""
    usual = {name: np.mean([len(fields[name]) for fields in blocks if fields[name]] or [1]) for name in FIELDS}
    found: dict[str, dict[int, float]] = {}
    for number, fields in enumerate(blocks):
        for name, weight in FIELDS.items():
            long = 1 - _LENGTHS + _LENGTHS * len(fields[name]) / usual[name]
            for stem, count in Counter(fields[name]).items():
                of_stem = found.setdefault(stem, {})
                of_stem[number] = of_stem.get(number, 0.0) + float(weight * 2 * count / (count + long))
    order = sorted(found)
    return {
        "stems": _bytes(order),
        "starts": np.cumsum([0, *(len(found[stem]) for stem in order)], dtype=np.int64),
        "blocks": np.array([number for stem in order for number in found[stem]], np.int32),
        "weights": np.array([weight for stem in order for weight in found[stem].values()], np.float32),
    }


def _labelled(blocks: Sequence[Mapping[str, int] | None]) -> dict[str, npt.NDArray[Any]]:
    keys = np.array([_key(name) for labels in blocks for name in labels or ()], np.uint64)
    owners = np.repeat(np.arange(len(blocks), dtype=np.int32), [len(labels or ()) for labels in blocks])
    counts = np.array([count for labels in blocks for count in (labels or {}).values()], np.int32)
    order = np.lexsort((owners, keys))
    names, starts = np.unique(keys[order], return_index=True)
    return {
        "labels": names,
        "label_starts": np.append(starts, len(keys)).astype(np.int64),
        "label_blocks": owners[order],
        "label_counts": counts[order],
        "label_totals": np.array([sum((labels or {}).values()) for labels in blocks], np.int32),
    }


def _bytes(texts: Sequence[str]) -> npt.NDArray[np.uint8]:
    return np.frombuffer("\n".join(texts).encode("utf-8", "surrogatepass"), np.uint8)


def _texts(stored: npt.NDArray[np.uint8]) -> list[str]:
    text = bytes(stored).decode("utf-8", "surrogatepass")
    return text.split("\n") if text else []
