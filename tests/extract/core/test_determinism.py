"""Same files, same bytes: whatever the hash seed, the order of files and sources, and earlier requests."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from extract.emit.emit import Emitted
from extract.sources.contents import PackageSource
from tests.builders.suites import read_files

EMIT_ALL = """
import json, pathlib, sys, tempfile
from extract.resolve.discover import discover
from extract.emit.emit import Emitter
from extract.resolve.index import FactsIndex
from extract.resolve.modules import CorpusIndex
from extract.sources import open_source
source = open_source(sys.argv[1])
with tempfile.TemporaryDirectory() as folder, FactsIndex(pathlib.Path(folder) / "index.sqlite") as index:
    library = CorpusIndex([source], index.facts)
    found = discover(library, [library.by_path[source.name, f.path] for f in source.files])
    emitter = Emitter(library, index)
    result = {f.qualname: getattr(emitter.emit(f), "code", "") for f in found}
    facts = [repr(index.facts(source, f)) for f in source.files]
print(json.dumps([result, facts]))
"""

# Names inside f-strings over several lines, which Python 3.11 misplaces.
FORMATTED = '''
from torch import nn
from . import b
class A(nn.Module):
    def forward(self, x):
        return f"""
        {b.one(x)} {b.two(x)} {b.three(x)} {b.four(x)}
        {b.five(x)} {b.six(x)}"""
'''


def start(folder: Path, seed: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.Popen([sys.executable, "-c", EMIT_ALL, f"{folder}/"], env=env, stdout=subprocess.PIPE, text=True)


def copied(corpus: Any, **options: bool) -> Any:
    files = read_files(__file__, "visionkit.md")
    numbers = ("one", "two", "three", "four", "five", "six")
    files |= {"p/a.py": FORMATTED, "p/b.py": "".join(f"def {name}(x): return x\n" for name in numbers)}
    return corpus(files, **options)


@pytest.mark.slow
def test_hash_seed(corpus: Any) -> None:
    """This process has a different seed, too."""
    made = copied(corpus)
    (source,) = made.sources
    codes = {name: code_of(outcome) for name, outcome in made.blocks().items()}
    facts = [repr(made.index.facts(source, file)) for file in source.files]
    for process in [start(made.folder, seed) for seed in ("0", "1")]:
        out, _ = process.communicate(timeout=300)
        assert json.loads(out) == [codes, facts]


def shuffled(source: PackageSource, step: int) -> PackageSource:
    files = sorted(source.files, key=lambda file: (hash(file.path) if step < 0 else 0, file.path), reverse=step > 0)
    fields = {name: getattr(source, name) for name in source.__slots__}
    return PackageSource(**{**fields, "files": tuple(files)})


def test_order_of_files(corpus: Any) -> None:
    plain, other = copied(corpus), copied(corpus, reverse=True)
    other.sources[:] = [shuffled(source, 1) for source in other.sources]
    other.__post_init__()
    codes = {name: code_of(outcome) for name, outcome in plain.blocks().items()}
    assert {name: code_of(outcome) for name, outcome in other.blocks().items()} == codes
    assert len(codes) > 10


def code_of(outcome: Any) -> str:
    assert isinstance(outcome, Emitted)
    return outcome.code


@pytest.mark.parametrize("name", ["TinyNet", "GatedMlp", "AlignHead"])
def test_what_was_asked_before(corpus: Any, name: str) -> None:
    made = copied(corpus)
    together = next(outcome for qualname, outcome in made.blocks().items() if qualname.endswith(f".{name}"))
    assert made.emit(name) == together
