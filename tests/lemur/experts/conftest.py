"""A library of made-up specs, and the settings of tiny models that are trained on it in seconds."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from manifests.folders.manifest import Manifest, Stopwatch, list_outputs, write_manifest
from tests.builders import finished

SOURCES = {"alpha": "alpha@1.0", "beta": "beta@2.0", "other": "other@0.1"}
SETTINGS = f"""{finished.SETTINGS.rstrip()}
[base]
vocabulary = 320
tiny = {{width = 16, layers = 1, heads = 2}}
training = {{steps = 6, batch = 8}}
[expert]
training = {{steps = 6, batch = 8}}
[codebook]
slots = 2
training = {{steps = 6, batch = 8}}
[router]
prototypes = 4
"""


def spec(source: str, number: int) -> dict[str, object]:
    """Of a class whose figures hang on its number."""
    name = f"{source.title()}Block{number}"
    nodes = [[0]] * (number % 11 + 1)
    return {
        "block": f"{SOURCES[source]}::{source}.blocks.{name}",
        "name": name,
        "source": SOURCES[source],
        "start_line": 1,
        "end_line": 5 + 3 * number,
        "parameters": 64 * number,
        "layers": {"Linear": number % 5 + 1, "ReLU": 1},
        "algorithm": {"eval": {"nodes": nodes}} if number % 4 else None,
        "code_sha256": hashlib.sha256(name.encode()).hexdigest(),
    }


def write_library(folder: Path) -> Path:
    """As an extraction folder holds specs; `lemur experts train` reads nothing else of it."""
    folder.mkdir()
    rows = [spec(source, number) for source in SOURCES for number in range(20)]
    (folder / "specs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    outputs = list_outputs(folder, {"specs.jsonl": len(rows)})
    manifest = Manifest(
        kind="extraction", versions={}, parameters={}, inputs=[], counts={}, details={}, outputs=outputs,
        measured=Stopwatch().measure(),
    )  # fmt: skip
    write_manifest(folder, manifest)
    return folder


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the stages do: several cost more than they bring on such small tensors
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    """A file of settings beside its library."""
    write_library(tmp_path / "library")
    path = tmp_path / "experts.toml"
    path.write_text(SETTINGS)
    return path
