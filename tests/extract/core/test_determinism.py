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
from tests.builders.suites import read_suite
from tests.extract.core.test_behaves import VERBS

EMIT_ALL = """
import json, pathlib, sys, tempfile
from extract.resolve.index import FactsIndex
from extract.sources import open_source
from tests.extract.core.conftest import Corpus
results = []
with tempfile.TemporaryDirectory() as folder, FactsIndex(pathlib.Path(folder) / "index.sqlite") as index:
    for source in map(open_source, sys.argv[1:]):
        blocks = Corpus(source.root, [source], index).blocks()
        codes = {name: getattr(outcome, "code", "") for name, outcome in blocks.items()}
        results.append([codes, [repr(index.facts(source, f)) for f in source.files]])
print(json.dumps(results))
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
NUMBERS = ("one", "two", "three", "four", "five", "six")
PAGES = ("names.md", "order.md", "containers.md", "registries.md")
CASES = [case for page in PAGES for case in read_suite(Path(__file__).with_name(page), VERBS)]
#: The cases of the pages that have several files.
PACKAGES = {case.title: case.files for case in CASES if len(case.files) > 1}
PACKAGES["f-strings"] = {"p/a.py": FORMATTED, "p/b.py": "".join(f"def {name}(x): return x\n" for name in NUMBERS)}


def codes_of(made: Any) -> dict[str, str]:
    outcomes = made.blocks()
    assert all(isinstance(outcome, Emitted) for outcome in outcomes.values())
    return {name: outcome.code for name, outcome in outcomes.items()}


@pytest.mark.slow
def test_hash_seed(corpus: Any) -> None:
    """This process has a different seed, too."""
    every = [corpus(files) for files in list(PACKAGES.values())[::-12]]
    expected = [
        [codes_of(made), [repr(made.index.facts(made.sources[0], file)) for file in made.sources[0].files]]
        for made in every
    ]
    command = [sys.executable, "-c", EMIT_ALL, *(f"{made.folder}/" for made in every)]
    for seed in ("0", "1"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[3])}
        assert json.loads(subprocess.run(command, env=env, capture_output=True, timeout=300).stdout) == expected


def turned(source: PackageSource) -> PackageSource:
    fields = {name: getattr(source, name) for name in source.__slots__}
    return PackageSource(**{**fields, "files": source.files[::-1]})


@pytest.mark.parametrize("title", PACKAGES)
def test_order_of_files_and_what_was_asked_before(corpus: Any, title: str) -> None:
    plain, other = corpus(PACKAGES[title]), corpus(PACKAGES[title], reverse=True)
    other.sources[:] = [turned(source) for source in other.sources]
    other.__post_init__()
    codes = codes_of(plain)
    assert codes_of(other) == codes
    assert {name: plain.emit(name).code for name in codes} == codes
