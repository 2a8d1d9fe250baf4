"""A curation in memory: rows in, decisions out, without worker processes or folders."""

import hashlib
import io
import itertools
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, redirect_stderr
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from curate.compute.graphs import GraphTrace
from curate.compute.outcome import CurationOutcome
from curate.model.corpus import CodeFile, FeatureStore, LoadedRecords, code_features, read_corpus
from curate.model.options import CurateOptions
from curate.run.strict import curate_strict
from curate.sources.rows import BATCH_ROWS, RecordSource, to_batch
from lemur_core.files.cache import cache_folder
from lemur_core.similarity.index import Verdict
from manifests.folders.manifest import Input

Row = dict[str, Any]


class MemorySource(RecordSource):
    """Rows whose features are known, so that a curation of them starts no worker."""

    def __init__(self, rows: Iterable[Row], batch_rows: int = BATCH_ROWS) -> None:
        super().__init__("memory")
        self._rows, self._batch_rows = list(rows), batch_rows
        self.store = warm_features(code for row in self._rows if (code := row.get("nn_code")) is not None)

    def batches(self) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(self._rows), self._batch_rows):
            yield to_batch(self._rows[start : start + self._batch_rows])

    def inputs(self) -> list[Input]:
        return []


@dataclass(frozen=True)
class Curated:
    """A finished curation; everything is looked up by the text of the code."""

    rows: list[Row]
    corpus: LoadedRecords
    outcome: CurationOutcome
    options: CurateOptions

    @property
    def decisions(self) -> list[Verdict]:
        return self.outcome.decisions

    def code(self, number: int) -> str:
        return self.corpus.codes[number]

    @property
    def kept(self) -> list[str]:
        return [self.code(number) for number in self.outcome.kept]

    def kept_names(self) -> list[str]:
        return [self.rows[self.outcome.representatives[number]]["nn"] for number in self.outcome.kept]

    def kept_row(self, code: str) -> Row:
        return self.rows[self.outcome.representatives[self.number(code)]]

    def number(self, code: str) -> int:
        return self.corpus.ids.index(hashlib.sha256(code.encode()).hexdigest())

    def split_of(self, code: str) -> str:
        return self.outcome.splits[self.number(code)]

    def canonical(self, decision: Verdict) -> str | None:
        return None if decision.canonical is None else self.code(decision.canonical)


@cache
def open_store(_folder: Path) -> FeatureStore:
    """One store for all tests that have a cache folder in common: opening one reads all its files."""
    return FeatureStore()


def warm_features(codes: Iterable[str]) -> FeatureStore:
    """Put the features of all codes into the store, so that a curation of them starts no worker."""
    store = open_store(cache_folder("features"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for code in dict.fromkeys(codes):
            digest = hashlib.sha256(code.encode()).digest()
            if digest not in store:
                store.add(digest, code_features(code))
    store.flush()
    return store


@pytest.fixture(scope="session")
def curated() -> Iterator[Callable[..., Curated]]:
    """`curated(rows, **options)`: the strict curation of rows; those without accuracy and the like get nulls."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        numbers = itertools.count()

        def run(rows: Sequence[Row], *, batch_rows: int = BATCH_ROWS, **chosen: Any) -> Curated:
            options = CurateOptions(**chosen)
            source = MemorySource(rows, batch_rows)
            codes = stack.enter_context(CodeFile(folder / f"codes-{next(numbers)}"))
            with redirect_stderr(io.StringIO()):  # a line of progress for each of thousands of runs
                corpus = read_corpus(source, codes, jobs=1, store=source.store)
            return Curated(list(rows), corpus, curate_strict(corpus, options), options)

        yield run


class Told:
    """A tracer that is told what each code computes, by its text, and notes what it was asked.

    Args: told: the answer of the sandbox, or a name of the computation; None: it does not run.
    """

    def __init__(self, corpus: LoadedRecords | Callable[[int], str], told: Callable[[str], Row | str | None]) -> None:
        self._code_of, self._told = corpus if callable(corpus) else corpus.codes.__getitem__, told
        self.known: dict[int, GraphTrace] = {}

    def __enter__(self) -> "Told":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def trace(self, representatives: Mapping[int, int]) -> dict[int, GraphTrace]:
        for code_index in representatives:
            answer = self._told(self._code_of(code_index))
            if answer is None:
                answer = {"error": "forward_failed: ValueError: no"}
            elif isinstance(answer, str):
                answer = dict.fromkeys(("graph", "graph_widths", "graph_eval"), answer)
            self.known.setdefault(code_index, GraphTrace(answer))
        return self.known


#: Lines of a constructor and of a forward pass; lower-case names and numbers are blind to the lexical view.
BLOCKS = (
    ("self.{v} = nn.Conv2d({n}, {n}, kernel_size=3, padding=1, bias=False)", "{x} = self.{v}({x})"),
    ("self.{v} = nn.BatchNorm2d({n}, eps=1e-05, momentum=0.1)", "{x} = torch.relu(self.{v}({x}))"),
    ("self.{v} = nn.Sequential(nn.Linear({n}, {n}), nn.ReLU(inplace=True))", "{x} = {x} + self.{v}({x})"),
    ("self.{v} = nn.Dropout(p=0.2) if train else nn.Identity()", "{x} = self.{v}({x}) * 0.5"),
    ("self.{v} = nn.MaxPool2d(kernel_size=2, stride=2)", "{x}, skip = self.{v}({x}), {x}"),
    (
        "self.{v} = nn.ModuleList([nn.GroupNorm(4, {n}) for i in range(3)])",
        "for m in self.{v}:\n            {x} = m({x})",
    ),
    ("self.{v} = nn.LSTM({n}, {n}, num_layers=2, batch_first=True)", "{x}, (h, c) = self.{v}({x}.flatten(1))"),
    ("self.{v} = nn.MultiheadAttention({n}, num_heads=4)", "{x} = self.{v}({x}, {x}, {x})[0]"),
    ("self.{v} = nn.Parameter(torch.zeros(1, {n}, 1, 1))", "{x} = {x} - self.{v} / (1 + {x}.abs())"),
    ("self.{v} = SqueezeExcite({n}, ratio=0.25)", "{x} = {x} if self.{v} is None else self.{v}({x})"),
    ("self.{v} = nn.AdaptiveAvgPool2d((1, 1))", "{x} = torch.cat([{x}, self.{v}({x})], dim=1)"),
    (
        "self.{v} = [nn.GELU(), nn.SiLU(), nn.ELU()][{n} % 3]",
        "assert {x}.ndim == 4 and not self.{v}({x}).isnan().any()",
    ),
)

GLUE = """
    def train_setup(self, prm):
        self.optimizer = torch.optim.SGD(self.parameters(), lr=prm["lr"])

    def learn(self, train_data):
        for inputs, labels in train_data:
            self.optimizer.zero_grad()
            self.criterion(self(inputs), labels).backward()
            self.optimizer.step()
"""


def network(
    blocks: Sequence[int],
    *,
    name: str = "Net",
    base: str = "nn.Module",
    width: int = 64,
    variable: str = "x",
    docstring: str = "",
    comment: str = "",
    glue: bool = True,
    extra: str = "",
) -> str:
    """A network of the given blocks. What a keyword changes shows in the name of the keyword."""
    lines = [
        "import torch",
        "import torch.nn as nn",
        *([f"# {comment}"] if comment else []),
        "",
        f"class {name}({base}):",
    ]
    if docstring:
        lines.append(f'    """{docstring}"""')
    lines += ["    def __init__(self, in_shape, out_shape, prm, device, train=True):", "        super().__init__()"]
    lines += ["        " + BLOCKS[b][0].format(v=f"{variable}{b}", n=width, x=variable) for b in blocks]
    lines += ["", f"    def forward(self, {variable}):" + (f"  # {comment}" if comment else "")]
    lines += ["        " + BLOCKS[b][1].format(v=f"{variable}{b}", n=width, x=variable) for b in blocks]
    lines += [f"        return {variable}", *([GLUE] if glue else []), extra]
    return "\n".join(lines) + "\n"
