"""Search index of an extraction folder: stems of each spec and its code, a meaning vector, labels of its graph.

The index is built once for a folder and kept in the user's cache under the digest from the manifest. A search reads the
whole index, but only those lines of the specs that it shows.
"""

import ast
import functools
import itertools
import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from extract.search import meaning
from extract.search.class_words import iterate_classes, stems_of_class
from extract.search.words import name_stems, shape_words, split_name, stems
from lemur_core.files.atomic import atomic_file
from lemur_core.files.cache import cache_folder, read_cached
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import article
from lemur_core.files.progress import progress
from manifests.provenance import SPECS

#: Field of a spec -> weight of a stem in it. Fitted by benchmarks/search.py, then rounded.
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
    "text": 0.2,
}
#: Fields that the code of a class adds to: what was traced is only a part of it, or nothing.
_NAMES = ("arguments", "parts", "operations")
_VERSION = 3  # of the index format
_LENGTHS = 0.6  # length normalization, as in BM25
_NEAR_WORDS = 50_000
_IN_PROCESS = 400  # maximum number of specs to read without worker processes
_CHUNK = 50

#: Fields used by filters.
FACTS = ("block", "name", "category", "level", "license", "source")

#: A line of specs.jsonl as it is: validating each line would take longer than a search.
SpecLine = dict[str, Any]
Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int32]


class Hits(NamedTuple):
    """Matching blocks by number, and their weights."""

    blocks: Numbers
    weights: Floats


@dataclass(frozen=True, slots=True)
class IndexedSpec:
    """The parts of one spec that are indexed."""

    facts: tuple[str, ...]
    fields: dict[str, list[str]]  # their stems
    words: list[str]  # unstemmed, for suggestions
    labels: dict[int, int]  # labels of the subtrees of its graph, if it has one


class SearchIndex:
    """The stored index of a folder."""

    def __init__(self, path: Path, specs: Path) -> None:
        """Open a stored index. Raises: OSError, ValueError or KeyError if it is not valid."""
        self.path, self._specs = path, specs
        stems_, facts, *arrays = self._read("stems", "facts", "starts", "blocks", "weights", "lines", "meanings")
        self._vocabulary = {stem: index for index, stem in enumerate(_texts(stems_))}
        self._starts, self._blocks, self._weights, self._lines, meanings = arrays
        self.facts: dict[str, list[str]] = json.loads(bytes(facts))
        #: Meaning vectors of the blocks, shape (blocks, size), rows of unit length.
        self.meanings: Floats = meanings.astype(np.float32)

    def __len__(self) -> int:
        return len(self._lines) - 1

    def __contains__(self, stem: str) -> bool:
        return stem in self._vocabulary

    def hits(self, stem: str) -> Hits:
        """Return the blocks that contain a stem, in order; empty if there is no such stem."""
        index = self._vocabulary.get(stem)
        if index is None:
            return Hits(self._blocks[:0], self._weights[:0])
        span = slice(self._starts[index], self._starts[index + 1])
        return Hits(self._blocks[span], self._weights[span])

    @functools.cached_property
    def by_start(self) -> dict[str, list[str]]:
        """Stems by their first four letters."""
        groups: dict[str, list[str]] = {}
        for stem in self._vocabulary:
            if len(stem) >= _START and stem.isalpha():
                groups.setdefault(stem[:_START], []).append(stem)
        return groups

    @functools.cached_property
    def words(self) -> list[str]:
        """Unstemmed words of names, modules and layers, the most common first."""
        with read_cached(self.path):
            return _texts(*self._read("words"))

    @functools.cached_property
    def labels(self) -> "FeatureIndex":
        """Labels of the graphs of the blocks."""
        names = ("label_names", "label_starts", "label_blocks", "label_counts", "label_totals")
        with read_cached(self.path):
            return FeatureIndex(*self._read(*names))

    def _read(self, *names: str) -> list[npt.NDArray[Any]]:
        with self.path.open("rb") as file, np.load(file) as stored:
            return [stored[name] for name in names]

    def spec(self, number: int) -> SpecLine:
        """Read one spec from its file.

        Raises: UserError if it is no longer there.
        """
        start, end = int(self._lines[number]), int(self._lines[number + 1])
        try:
            with self._specs.open("rb") as file:
                file.seek(start)
                spec: SpecLine = json.loads(file.read(end - start))
            # The file may have been replaced by one of the same size since the index was built.
            if spec["block"] != self.facts["block"][number]:
                raise ValueError("another block is there")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _invalid_line(self._specs, number, error) from error
        return spec


_START = 4


@dataclass(frozen=True, slots=True)
class FeatureIndex:
    """Features of many blocks, by feature: labels of their graphs (Weisfeiler-Lehman), or parts of their codes."""

    names: npt.NDArray[np.uint64]  # sorted
    starts: npt.NDArray[np.int64]  # start of each feature's entries, and the end
    blocks: Numbers
    counts: Numbers  # occurrences of the feature in the block
    totals: Numbers  # number of features of each block; 0 if it has no graph or code

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """The arrays from which it is made."""
        return self.names, self.starts, self.blocks, self.counts, self.totals

    def similar(self, wanted: Mapping[int, int], *, rare: bool = False) -> Floats:
        """Return the Jaccard similarity of each block's multiset of features with this one, shape (blocks,).

        Args: rare: a feature counts as the logarithm of how rare it is, instead of 1.
        """
        spans, size = np.diff(self.starts), len(self.totals)
        # Not zero: equal blocks are alike also where each block has all of their features.
        worth = np.maximum(np.log((size + 0.5) / (spans + 0.5)), 1e-3) if rare else np.ones(len(spans))
        totals = np.bincount(self.blocks, np.repeat(worth, spans) * self.counts, size) if rare else self.totals
        unknown = np.log(2 * size + 1) if rare else 1.0
        shared, own = np.zeros(size), 0.0
        for name, count in wanted.items():
            index = int(np.searchsorted(self.names, np.uint64(name)))
            if index < len(self.names) and self.names[index] == name:
                span = slice(self.starts[index], self.starts[index + 1])
                shared[self.blocks[span]] += worth[index] * np.minimum(self.counts[span], count)
                own += worth[index] * count
            else:
                own += unknown * count
        similarity: Floats = (shared / np.maximum(totals + own - shared, 1e-9)).astype(np.float32)
        return similarity

    def list_of_block(self, number: int) -> dict[int, int]:
        """Return the features of one block with their counts."""
        rows = np.flatnonzero(self.blocks == number)
        names = self.names[np.searchsorted(self.starts, rows, side="right") - 1]
        return {int(name): int(count) for name, count in zip(names, self.counts[rows], strict=True)}


# --- opening and building -----------------------------------------------------------------------------------------


def open_index(folder: Path) -> SearchIndex:
    """Open the index of a folder; build it if necessary.

    Args: folder: an extraction folder.
    Returns: the index from the user's cache, where it is stored under the digest of the specs.
    Raises: UserError if the folder is not an extraction, has no specs, or one of their lines is broken.
    """
    path = folder / SPECS
    size, digest = _read_manifest(folder)
    try:
        actual = path.stat().st_size
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; run `lemur verify`, or create the folder again") from error
    # Compare sizes, not digests: a search must not read the whole file.
    if actual != size:
        raise UserError(f"{path}: is not the file that the manifest states; run `lemur verify`, or create it again")
    read = "code" if (folder / "blocks").is_dir() else "specs"
    kept = cache_folder("search") / f"v{_VERSION}-{meaning.VERSION}-{read}-{digest[:40]}.npz"
    try:
        return SearchIndex(kept, path)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass  # missing or damaged, so it is built
    arrays = _build_arrays(folder)
    with atomic_file(kept) as part, part.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    return SearchIndex(kept, path)


def _read_manifest(folder: Path) -> tuple[int, str]:
    """Return the size in bytes and the SHA-256 of the specs from the manifest, read as plain JSON for speed."""
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
        raise UserError(f"{path}: not a valid manifest: {error}; create the folder again") from error
    if kind != "extraction":
        raise UserError(
            f"{folder}: holds {article(kind)}, not an extraction; give the folder that `lemur extract` wrote"
        )
    if SPECS not in outputs:
        raise UserError(f"{folder}: has no {SPECS}: an earlier version wrote it; run `lemur extract` again")
    return outputs[SPECS]


def _build_arrays(folder: Path) -> dict[str, npt.NDArray[Any]]:
    """Build the arrays of the index of a folder.

    Raises: UserError if a line is broken.
    """
    path = folder / SPECS
    # Bytes: the index stores offsets, by which a search reads single lines.
    lines = path.read_bytes().splitlines(keepends=True)
    reads: list[IndexedSpec] = []
    for number, read in enumerate(_read_all(lines, folder)):
        if isinstance(read, str):
            raise _invalid_line(path, number, read)
        reads.append(read)
    counted = Counter(word for read in reads for word in read.words)
    facts = {name: [read.facts[index] for read in reads] for index, name in enumerate(FACTS)}
    return {
        "lines": np.cumsum([0, *map(len, lines)], dtype=np.int64),
        "facts": np.frombuffer(json.dumps(facts).encode(), np.uint8),
        "words": _bytes(sorted(counted, key=lambda word: (-counted[word], word))[:_NEAR_WORDS]),
        "meanings": meaning.block_vectors([read.fields for read in reads]).astype(np.float16),
        **_postings([read.fields for read in reads]),
        **{f"label_{name}": array for name, array in feature_arrays([read.labels for read in reads]).items()},
    }


def _read_all(lines: Sequence[bytes], folder: Path) -> Iterator[IndexedSpec | str]:
    read = functools.partial(read_line, folder=folder)
    if len(lines) <= _IN_PROCESS:
        yield from map(read, lines)
        return
    from lemur_core.files.workers import map_chunks  # loads slowly, and a search in a known folder does not need it

    chunks = (lines[start : start + _CHUNK] for start in range(0, len(lines), _CHUNK))
    with progress("index", len(lines), "blocks") as advance:
        for chunk in map_chunks(read, chunks, None):
            yield from chunk
            advance(len(chunk))


def read_line(line: bytes, folder: Path) -> IndexedSpec | str:
    """Return the indexed parts of a spec line and of its block's code, or a message if it is invalid."""
    try:
        spec = json.loads(line)
        graph = read_graph(spec)
        return IndexedSpec(
            tuple(str(spec[name]) for name in FACTS),
            stems_by_field(spec, graph, folder),
            [word for name in _list_names(spec) for word in split_name(name).split()],
            graph_labels(graph),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _invalid_line(path: Path, number: int, error: object) -> UserError:
    return UserError(f"{path}:{number + 1}: not a spec: {error}; run `lemur verify`, or create it again")


# --- contents of a spec --------------------------------------------------------------------------------------------


def read_graph(spec: SpecLine) -> Any:
    """Return the graph of eval mode; None if there is none, or it is from another graph format or torch version."""
    if spec.get("algorithm") is None:
        return None
    from lemur_core.graphs.serialization import load_graphs  # loads slowly, and only building an index needs it

    try:
        return load_graphs(spec["algorithm"])["eval"]
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def graph_labels(graph: Any) -> dict[int, int]:
    """Return the labels of the subtrees of a graph with their counts; empty without a graph."""
    if graph is None:
        return {}
    from lemur_core.graphs.identity import subtrees

    return {int(label[:16], 16): count for label, count in subtrees(graph).items()}


def _list_names(spec: SpecLine) -> list[str]:
    module = spec["block"].partition("::")[2].split(".")[:-1]
    return [spec["name"], *dict.fromkeys(module), *spec["builds"], *(spec["layers"] or {})]


def stems_by_field(spec: SpecLine, graph: Any, folder: Path, *, described: bool = True) -> dict[str, list[str]]:
    """Return the stems of each field of a spec, one for each occurrence.

    Args:
        folder: the extraction folder; a folder without files of code is searched by specs alone.
        described: with the docstring of the class.
    """
    algorithm = spec.get("algorithm") or {}
    arguments = [item["name"] for group in ("constructor", "forward") for item in spec[group]]
    nodes = graph.nodes if graph is not None else ()
    scopes = dict.fromkeys(part for node in nodes for part in node.scope.split(".") if not part.isdigit())
    fields = {
        "name": list(name_stems(spec["name"])),
        "category": list(name_stems(spec["category"])),
        "arguments": _stems_of_names(arguments),
        "shape": stems(" ".join(shape_words(spec))),
        "place": _stems_of_names(dict.fromkeys(spec["block"].partition("::")[2].split(".")[1:-1])),
        "parts": _stems_of_names(scopes),
        "source": list(name_stems(spec["source"].partition("@")[0])),
        "operations": _stems_of_names(dict.fromkeys(node.op for node in nodes)),
        "needs": _stems_of_names(spec["dependencies"]),
        "layers": _stems_of_names({**spec["builds"], **(spec["layers"] or {})}),
        "sentences": stems(" ".join([*algorithm.get("sentences", ()), *algorithm.get("motifs", ())])),
        "bases": _stems_of_names(base for base in spec["bases"] if base != "Module"),
        "text": [],
    }
    for node, text in _read_class(spec, folder):
        read = stems_of_class(node, text, described=described)
        fields |= {name: [*fields[name], *(stem for stem in read[name] if stem not in fields[name])] for name in _NAMES}
        fields["text"] = read["text"]
    return fields


def _read_class(spec: SpecLine, folder: Path) -> Iterable[tuple[ast.ClassDef, str]]:
    """Return the class of a spec and its text; nothing without a file."""
    if not spec["file"] or not (path := folder / spec["file"]).is_file():
        return []
    return itertools.islice(iterate_classes(path.read_text(encoding="utf-8"), [spec["name"]]), 1)


def _stems_of_names(names: Iterable[str]) -> list[str]:
    return [stem for name in names for stem in name_stems(name)]


# --- arrays --------------------------------------------------------------------------------------------------------


def _postings(blocks: Sequence[Mapping[str, list[str]]]) -> dict[str, npt.NDArray[Any]]:
    """Return the blocks of each stem with their BM25 weights: saturated, normalized frequencies, summed over fields."""
    usual = {name: np.mean([len(fields[name]) for fields in blocks if fields[name]] or [1]) for name in FIELDS}
    postings: dict[str, dict[int, float]] = {}
    for number, fields in enumerate(blocks):
        for name, weight in FIELDS.items():
            long = 1 - _LENGTHS + _LENGTHS * len(fields[name]) / usual[name]
            for stem, count in Counter(fields[name]).items():
                of_stem = postings.setdefault(stem, {})
                of_stem[number] = of_stem.get(number, 0.0) + float(weight * 2 * count / (count + long))
    order = sorted(postings)
    return {
        "stems": _bytes(order),
        "starts": np.cumsum([0, *(len(postings[stem]) for stem in order)], dtype=np.int64),
        "blocks": np.array([number for stem in order for number in postings[stem]], np.int32),
        "weights": np.array([weight for stem in order for weight in postings[stem].values()], np.float32),
    }


def feature_arrays(blocks: Sequence[Mapping[int, int]]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of `FeatureIndex` of these blocks, by name, in order."""
    keys = np.array([name for features in blocks for name in features], np.uint64)
    owners = np.repeat(np.arange(len(blocks), dtype=np.int32), [len(features) for features in blocks])
    counts = np.array([count for features in blocks for count in features.values()], np.int32)
    # By feature, then by block: each feature's entries become one slice.
    order = np.lexsort((owners, keys))
    names, starts = np.unique(keys[order], return_index=True)
    return {
        "names": names,
        "starts": np.append(starts, len(keys)).astype(np.int64),
        "blocks": owners[order],
        "counts": counts[order],
        "totals": np.array([sum(features.values()) for features in blocks], np.int32),
    }


def _bytes(texts: Sequence[str]) -> npt.NDArray[np.uint8]:
    return np.frombuffer("\n".join(texts).encode("utf-8", "surrogatepass"), np.uint8)


def _texts(stored: npt.NDArray[np.uint8]) -> list[str]:
    text = bytes(stored).decode("utf-8", "surrogatepass")
    return text.split("\n") if text else []
