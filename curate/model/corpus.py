"""The input of a run, read once: a row table without code, the distinct codes in a file, their features; and what a
snapshot kept before.

Features are everything that curation knows about one code, computed from that code alone and cached between runs. Codes
are written to a file as they are read, so that a million of them need no memory.
"""

import hashlib
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate, chain, islice
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curate.model.options import CurateOptions
from curate.model.pretrained import find_pretrained
from curate.sources.rows import RecordSource
from lemur_core.files import Json
from lemur_core.files.atomic import atomic_file, remove_dead, sha256_file
from lemur_core.files.cache import cache_folder, drop_damaged, read_cached
from lemur_core.files.errors import UserError
from lemur_core.files.progress import progress
from lemur_core.files.workers import map_chunks
from lemur_core.similarity.join import in_order
from lemur_core.similarity.minhash import PERMUTATIONS, SCHEME, IntArray, jaccard, signature
from lemur_core.similarity.outline import PYTHON, Outline, outline_code
from lemur_core.similarity.tokens import literal_digest, region_tokens, shingle_hashes
from manifests.folders.kinds import SNAPSHOT
from manifests.folders.manifest import Parent, describe_parent
from manifests.records import LemurRecord

#: The first match wins, so specific designs come first.
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (family, re.compile(pattern, re.IGNORECASE))
    for family, pattern in (
        ("fractal", r"fractal"),
        ("diffusion", r"diffusion|ddpm|noise_?sched|timestep_?embed"),
        ("gan", r"discriminator|generator"),
        ("vae", r"reparameteri[sz]e|\bvae|autoencoder"),
        ("moe", r"mixture_?of_?experts|\bmoe|gating_?network"),
        ("detection", r"anchor_?generator|roi_?(?:pool|align)|ssd(?:head|lite)?$|retinanet|faster_?rcnn|fcos"),
        ("segmentation", r"unet|deeplab|segformer|fcn_?head|aspp"),
        ("transformer", r"transformer|multi_?head|self_?attention|\bvit|swin|window_?attention"),
        ("recurrent", r"^(?:lstm|gru|rnn)(?:cell)?$"),
        ("mobile", r"mobilenet|inverted_?residual|depth_?wise|mbconv|shufflenet|efficientnet|mnasnet"),
        ("densenet", r"dense_?(?:net|block|layer)"),
        ("inception", r"inception|googlenet"),
        ("resnet", r"res_?net|residual|bottleneck|basic_?block|res_?block|shortcut|downsample"),
        ("squeezenet", r"^fire$|fire_?module|squeezenet"),
        ("vgg", r"vgg"),
        ("alexnet", r"alexnet"),
        ("convolutional", r"^conv\d?d$"),
        ("perceptron", r"^linear$"),
    )
)


def get_family(names: Iterable[str]) -> str:
    """Return the family for a set of identifiers: the first rule that any of them matches, else `other`."""
    first = min(map(_find_rule, names), default=len(_RULES))
    return _RULES[first][0] if first < len(_RULES) else "other"


@lru_cache(maxsize=100_000)
def _find_rule(name: str) -> int:
    """Return the index of the first rule that a name matches; the number of rules if none does."""
    return next((index for index, (_, pattern) in enumerate(_RULES) if pattern.search(name)), len(_RULES))


#: Part of the cache's name; increased whenever a definition below changes.
FEATURES_VERSION = 8


@dataclass(frozen=True, slots=True)
class Features:
    """The features of one valid code: those that are compared, and those that are reported. Digests have 16 bytes."""

    tree: bytes  # equal for codes that differ only in comments, docstrings and layout
    literal: bytes  # equal for model regions with the same tokens, names and numbers included
    shingle_set: bytes  # equal for equal shingle sets
    shingles: npt.NDArray[np.uint64]  # sorted distinct hashes, never empty
    signature: npt.NDArray[np.uint32]  # MinHash, shape (256,)
    fingerprint: bytes
    elements: npt.NDArray[np.uint64]  # of the fingerprint, sorted distinct hashes, may be empty
    family: str
    pretrained: bool  # whether it loads trained weights
    module: bool  # whether it may define an nn.Module


def code_features(code: str) -> Features | str:
    """Return the features of a code, or a short reason why it has none.

    Accepts any text: what Python cannot parse, or is too large or too deeply nested, gets a reason, never an error.

    Returns: a text, the reason, if there are no features.
    """
    outline = outline_code(code)
    if isinstance(outline, str):
        return outline
    tokens, declared = region_tokens(code, outline)
    shingles = shingle_hashes(tokens, declared)
    if not len(shingles):
        return "no code: only comments or docstrings"
    structure, elements = fingerprint(outline)
    return Features(
        tree=outline.tree_digest,
        literal=literal_digest(tokens),
        shingle_set=hashlib.blake2b(shingles.tobytes(), digest_size=16).digest(),
        shingles=shingles,
        signature=signature(shingles),
        fingerprint=structure,
        elements=elements,
        family=get_family(outline.names),
        pretrained=bool(find_pretrained(code)),
        # a class with a base that may be a module, or with `forward`; or a Net
        module=any(item.has_forward or not _NO_MODULES.issuperset(item.bases) for item in outline.classes)
        or _NET.search(code) is not None,
    )


# The structure is which layers a network calls, how often, in which order, and with which sizes. The definition is the
# one published with nn-dup (order, bag of call names, bucketed hyperparameters), fixed where it misreads valid code:
# the training functions of the LEMUR contract are left out, and a size counts in the same way by keyword and by
# position. docs/similarity.md lists the differences.
# Source: arXiv:2512.04329, section 3.2; https://github.com/ABrain-One/nn-dup

#: The number of calls that count for the order of layers, as published.
SEQUENCE_CALLS = 256


def fingerprint(outline: Outline) -> tuple[bytes, npt.NDArray[np.uint64]]:
    """Return the structure of a module: the digest of order, bag and sizes, and its elements as sorted 64-bit hashes.

    A network that calls nothing has no elements, and matches nothing.
    """
    bag = Counter(outline.layers)
    sizes = sorted(outline.sizes)
    elements = {_hash(f"{name}*{count}") for name, count in bag.items()}
    elements |= {_hash(f"{name}={bucket}") for name, bucket in set(sizes)}
    parts = [" ".join(outline.layers[:SEQUENCE_CALLS]), repr(sorted(bag.items())), repr(sizes)]
    digest = hashlib.blake2b("\n".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return digest, np.array(sorted(elements), np.uint64)


@lru_cache(maxsize=100_000)
def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


#: Bases of classes that are surely no modules.
_NO_MODULES = frozenset(
    (
        *("object", "ABC", "Protocol", "Generic", "NamedTuple", "TypedDict", "Enum", "IntEnum", "StrEnum", "Exception"),
        *("dict", "list", "tuple", "set", "str", "int", "float", "Dataset", "IterableDataset", "DataLoader"),
        *("Sampler", "Function", "Optimizer", "Thread", "Process", "TestCase"),
    )
)
_NET = re.compile(r"^(?:def\s+Net\b|Net\s*=)", re.MULTILINE)


#: The digests that define classes of equal codes.
_CLASSES = ("tree", "literal", "shingle_set", "fingerprint")


@dataclass(slots=True, eq=False)
class FeatureTable:
    """Columns over codes 0..n-1. Equal digests have equal numbers; -1 marks a code without features.

    `signatures`: of shape (shingle sets, 256). `elements[f]`: the sorted distinct hashes of fingerprint f.
    """

    problems: dict[int, str]
    tree: IntArray
    tree_digests: pa.ChunkedArray
    literal: IntArray
    shingle_set: IntArray
    fingerprint: IntArray
    module: npt.NDArray[np.bool_]
    family: list[str]
    pretrained: set[int]
    elements: list[npt.NDArray[np.uint64]]
    signatures: npt.NDArray[np.uint32]
    set_sizes: IntArray
    sets: list[pa.Buffer]  # of files that are mapped into memory

    def __len__(self) -> int:
        return len(self.tree)

    def shingles(self, shingle_set: int) -> npt.NDArray[np.uint64]:
        """Return the sorted distinct shingle hashes of one set, read from disk."""
        return np.frombuffer(self.sets[shingle_set], np.uint64)

    def compare(self, one: int, other: int) -> float:
        """Return the lexical Jaccard similarity of two codes."""
        return jaccard(*(self.shingles(int(self.shingle_set[code_index])) for code_index in (one, other)))


_STATED = ("family", "pretrained", "module")
_ARRAYS = ("shingles", "signature", "elements")  # equal ones of a shard are stored once
_SCHEMA = pa.schema(
    [
        ("id", pa.binary(32)),
        ("problem", pa.string()),
        *((name, pa.binary(16)) for name in _CLASSES),
        *((name, pa.dictionary(pa.int32(), pa.large_binary())) for name in _ARRAYS),
        ("family", pa.string()),
        ("pretrained", pa.bool_()),
        ("module", pa.bool_()),
    ]
)

#: Codes a shard: what a crash may cost, against the number of files.
SHARD_CODES = 20_000


class FeatureStore:
    """The features of all codes seen so far. Args: folder: the user's cache by default.

    They are in shards: immutable Arrow files with a row for each code, mapped into memory, so that a million shingle
    sets need none. Shards are named by their content and renamed into place, so that parallel runs cannot disturb each
    other.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder("features", f"v{FEATURES_VERSION}-{SCHEME}-{PYTHON}")
        self._pending: list[tuple[bytes, Features | str]] = []
        self._shards: list[tuple[Path, pa.RecordBatch]] = []
        self._known: dict[bytes, tuple[int, int]] = {}  # shard, row
        if folder is None:
            remove_dead(self._folder)
        for path in sorted(self._folder.glob("*.arrow")):
            self._open(path)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._known

    def add(self, digest: bytes, features: Features | str) -> None:
        """Take the features of one code; they are on disk after the next `flush`, at the latest a shard later."""
        self._pending.append((digest, features))
        if len(self._pending) >= SHARD_CODES:
            self.flush()

    def flush(self) -> None:
        """Write the features added since the last shard."""
        if not self._pending:
            return
        rows: list[Json] = [{"id": digest} for digest, _ in self._pending]
        for row, (_, features) in zip(rows, self._pending, strict=True):
            if isinstance(features, str):
                row["problem"] = features
            else:
                row |= {name: getattr(features, name) for name in (*_CLASSES, *_STATED)}
                row |= {name: getattr(features, name).tobytes() for name in _ARRAYS}
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, _SCHEMA) as file:
            file.write_batch(pa.RecordBatch.from_pylist(rows, _SCHEMA))
        content = sink.getvalue()
        path = self._folder / f"{hashlib.sha256(content).hexdigest()[:24]}.arrow"
        with atomic_file(path) as part:
            part.write_bytes(content)
        self._pending = []
        self._open(path)

    def table(self, digests: Sequence[bytes]) -> FeatureTable:
        """The features of these codes, in this order; all must have been added and flushed."""
        places = [self._known[digest] for digest in digests]
        shards = sorted({shard for shard, _ in places})
        for path in (self._shards[shard][0] for shard in shards):
            with read_cached(path):
                if not sha256_file(path).startswith(path.stem):
                    raise ValueError("other content")
        names = ["problem", *_CLASSES, *_STATED]
        parts = [self._shards[shard][1].select(names) for shard in shards]
        starts = dict(zip(shards, accumulate((len(part) for part in parts), initial=0), strict=False))
        rows = pa.Table.from_batches(parts, pa.schema([_SCHEMA.field(name) for name in names])).take(
            pa.array([starts[shard] + row for shard, row in places], pa.int64())
        )
        columns = {name: rows.column(name).to_pylist() for name in ("problem", *_STATED)}
        classes, firsts = {}, {}  # of each class the first code that is in it
        for name in _CLASSES:
            numbers = rows.column(name).combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy()
            classes[name] = numbers.astype(np.int64)
            distinct, first = np.unique(numbers, return_index=True)
            firsts[name] = first[distinct >= 0].tolist()

        def read(name: str, code_index: int) -> pa.Buffer:
            shard, row = places[code_index]
            return self._shards[shard][1][name][row].value.as_buffer()

        sets = [read("shingles", code_index) for code_index in firsts["shingle_set"]]
        signatures = b"".join(read("signature", code_index) for code_index in firsts["shingle_set"])
        return FeatureTable(
            problems={at: problem for at, problem in enumerate(columns["problem"]) if problem is not None},
            **classes,
            tree_digests=rows.column("tree"),
            module=np.array(columns["module"], np.bool_),  # null: False
            family=[family or "" for family in columns["family"]],
            pretrained={at for at, pretrained in enumerate(columns["pretrained"]) if pretrained},
            elements=[np.frombuffer(read("elements", at), np.uint64) for at in firsts["fingerprint"]],
            signatures=np.frombuffer(signatures, np.uint32).reshape(-1, PERMUTATIONS),
            set_sizes=np.array([buffer.size // 8 for buffer in sets], np.int64),
            sets=sets,
        )

    def _open(self, path: Path) -> None:
        try:
            with pa.memory_map(str(path)) as file:
                batch = pa.ipc.open_file(file).get_batch(0)
        except (OSError, pa.ArrowInvalid):  # a full disk or a crash left it shorter
            drop_damaged(path)
            return
        self._shards.append((path, batch))
        for row, digest in enumerate(batch["id"].to_pylist()):
            self._known.setdefault(digest, (len(self._shards) - 1, row))


#: The problem of a row whose code is Python, and no network.
NO_MODULE = "defines no nn.Module"


class CodeFile:
    """Distinct codes, appended to one file and read back by their index."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b")
        self._ends = [0]

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, code_index: int) -> str:
        start, end = self._ends[code_index], self._ends[code_index + 1]
        self._file.seek(start)
        return self._file.read(end - start).decode()

    def append(self, code: bytes) -> None:
        """Add a code (UTF-8); its index is the previous count."""
        self._file.seek(self._ends[-1])
        self._file.write(code)
        self._ends.append(self._ends[-1] + len(code))

    def __enter__(self) -> "CodeFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class LoadedRecords:
    """Rows and codes. Row r has the code of index `code_of_row[r]`, or -1 and a reason in `problems[r]`."""

    rows: pa.Table  # ROW_SCHEMA without nn_code and problem
    code_of_row: npt.NDArray[np.int64]
    problems: dict[int, str]
    ids: list[str]  # SHA-256 of each code, hexadecimal
    codes: CodeFile
    features: FeatureTable

    def sets(self, codes: Iterable[int]) -> IntArray:
        """Return the distinct shingle sets of codes, in the order of the codes' ids, independent of their numbering."""
        ordered = sorted(codes, key=self.ids.__getitem__)
        return in_order(self.features.shingle_set[np.array(ordered, np.int64)])


def read_corpus(
    source: RecordSource, codes: CodeFile, jobs: int | None, store: FeatureStore | None = None
) -> LoadedRecords:
    """Read all rows of a source and load or compute the features of every distinct code.

    Args: store: where features are kept; by default the user's cache.
    Raises: UserError if there are no rows, or the source cannot be read.
    """
    store = store or FeatureStore()
    index_of: dict[bytes, int] = {}  # by digest, in the order of the codes
    tables: list[pa.Table] = []
    indices_of_rows: list[npt.NDArray[np.int64]] = []
    problems: dict[int, str] = {}

    def read_codes() -> Iterator[tuple[bytes, str]]:
        """Read all batches, and yield each distinct code."""
        rows = 0
        for batch, distinct, places in source.coded_batches():
            tables.append(pa.table(batch.drop_columns(["nn_code", "problem"])))
            stated = enumerate(batch.column("problem").to_pylist(), rows)
            problems.update((row, problem) for row, problem in stated if problem is not None)
            rows += batch.num_rows
            indices = []
            for digest, code in distinct:
                known = len(index_of)
                indices.append(index_of.setdefault(digest, known))
                if indices[-1] == known:
                    codes.append(code.encode())
                    yield digest, code
            # A row without code has the last place, where -1 stands.
            indices_of_rows.append(np.array([*indices, -1], np.int64)[places])

    fill_store(store, read_codes(), jobs)
    if not any(table.num_rows for table in tables):
        raise UserError(f"{source.name}: no rows; nothing to curate")
    code_of_row = np.concatenate(indices_of_rows)
    features = store.table(list(index_of))
    for row in np.flatnonzero(np.isin(code_of_row, np.fromiter(features.problems, np.int64))).tolist():
        problems[row] = features.problems[int(code_of_row[row])]
    for row in np.flatnonzero(np.isin(code_of_row, np.flatnonzero(~features.module))).tolist():
        problems.setdefault(row, NO_MODULE)
    ids = [digest.hex() for digest in index_of]
    return LoadedRecords(pa.concat_tables(tables), code_of_row, problems, ids, codes, features)


_CHUNK_CODES = 48  # in one message to a worker

Key = TypeVar("Key")
Code = TypeVar("Code")
T = TypeVar("T")


def map_codes(
    work: Callable[[Code], T], codes: Iterable[tuple[Key, Code]], jobs: int | None
) -> Iterator[list[tuple[Key, T | str]]]:
    """Yield `work` of every (key, code) pair, in order, in chunks; reads ahead only a little.

    Args:
        work: run in other processes, so it must be picklable.
        jobs: the number of processes; None for one per available core.
    Returns: (key, result) pairs; if a worker dies on a code, the result is a text that reports it.
    """
    rest = iter(codes)
    chunks = iter(lambda: list(islice(rest, _CHUNK_CODES)), [])
    return map_chunks(partial(_with_key, work), chunks, _report_crash, jobs)


def _with_key(work: Callable[[Code], T], item: tuple[Key, Code]) -> tuple[Key, T | str]:
    return item[0], work(item[1])


def _report_crash(item: tuple[Key, Code]) -> tuple[Key, T | str]:
    return item[0], "Python's parser crashed on it"


def fill_store(store: FeatureStore, codes: Iterable[tuple[bytes, str]], jobs: int | None) -> None:
    """Compute and store the features of (digest, code) pairs that the store lacks."""
    new = (item for item in codes if item[0] not in store)
    if (first := next(new, None)) is None:
        return
    try:
        with progress("token sets and fingerprints", None, "new codes") as advance:
            for result in map_codes(code_features, chain([first], new), jobs):
                for digest, features in result:
                    store.add(digest, features)
                advance(len(result))
    finally:
        store.flush()  # also when interrupted: the next run resumes from here


#: The parameters that a snapshot and the one that follows it must have in common.
SAME = ("lexical_threshold", "structural_threshold", "graph")
#: The decision on a published record, from which alone `derive` knows it.
STAYS = "kept, as in the previous snapshot"


class PublishedRecord(NamedTuple):
    """A record that a snapshot kept: its name and its split."""

    nn: str
    split: str


@dataclass(frozen=True, slots=True)
class Previous:
    """The kept records of a snapshot, by id. Args: parameters: of its manifest; parent: the folder, as manifests do."""

    records: Mapping[str, PublishedRecord]
    parameters: Json = field(default_factory=dict)
    parent: Parent | None = None

    def check(self, options: CurateOptions) -> None:
        """Raise UserError if a parameter that must be the same differs."""
        for name in SAME if self.parameters else ():
            before, now = self.parameters.get(name), options.graphs if name == "graph" else getattr(options, name)
            if before != now:
                raise UserError(f"--previous: it was made with {name} {before}, this run has {now}; use the same")

    def find(self, corpus: LoadedRecords) -> dict[int, str]:
        """Return the splits of its records that the corpus has, by code index."""
        return {code_index: self.records[id_].split for code_index, id_ in enumerate(corpus.ids) if id_ in self.records}

    def list_gone(self, corpus: LoadedRecords, filtered: Mapping[int, str], there: Mapping[int, object]) -> list[Json]:
        """Return its records that the corpus has no longer, or that are no record now, and why.

        Args: filtered: why rows were left out. there: the present records, by code index.
        """
        why = dict.fromkeys(corpus.ids, "left out")
        for row, reason in (*filtered.items(), *corpus.problems.items()):
            if (code_index := int(corpus.code_of_row[row])) >= 0:
                why[corpus.ids[code_index]] = reason
        stay = {corpus.ids[code_index] for code_index in there}
        return [
            {"id": id_, "nn": nn, "split": split, "reason": why.get(id_, "its code is not in the source")}
            for id_, (nn, split) in sorted(self.records.items(), key=lambda item: (item[1].nn, item[0]))
            if id_ not in stay
        ]


def read_previous(spec: str) -> Previous:
    """Read a snapshot: a folder, or `hf://datasets/OWNER/NAME`.

    Raises: UserError if it is no snapshot; RetryableError if the Hub cannot be reached.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(spec)
        if spec.startswith("hf://"):
            from manifests.publishing.hub import parse_dataset  # the Hub's client takes half a second to import
            from manifests.publishing.publish import pull

            repo, revision = parse_dataset(spec)
            folder = Path(scratch) / repo.rpartition("/")[2]
            pull(repo, folder, revision=revision or "main")
        parameters = SNAPSHOT.open(folder).parameters
        with SNAPSHOT.reading(folder):
            rows = SNAPSHOT.rows(folder, LemurRecord, ("id", "nn", "split"))
            records = {row.id: PublishedRecord(row.nn, row.split) for row in rows}
        return Previous(records, parameters, describe_parent(folder))
