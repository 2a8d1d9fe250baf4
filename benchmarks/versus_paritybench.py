"""`lemur extract` against ParityBench: `python -m benchmarks.versus_paritybench CHECKOUT [SOURCE...]`.

CHECKOUT is a clone of ParityBench's repository. Both tools get the files of each SOURCE, and find classes and arguments
in this very run. Ours is given the drawn classes, the peer has no list of names and takes all classes of the source, so
its cost is divided by all that it tried, ours by all that were drawn. A class counts for a tool if the file that it
wrote, executed in a process of its own, constructs the class and runs its `forward`, with the arguments in the file.

The peer joins all files of a repository into one and keeps the last class of a name; it compares nothing with the
original and states no source. Of the packages that its files import, those not installed here (TensorFlow and others)
are taken from its list, or no file would run. It executes what it reads in its own processes: there is no sandbox
around it.

Source: https://github.com/jansel/pytorch-jit-paritybench, commit e0644afa
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Cost, make_empty_cache, measure
from extract.model.blocks import read_blocks
from extract.proofs.runtime import runtime_for
from extract.resolve.discover import discover
from extract.resolve.index import FactsIndex
from extract.resolve.modules import CorpusIndex
from extract.sources import PackageSource, open_source
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError

_SOURCES = ("timm@1.0.30", "torchvision@0.29.1", "x-transformers@2.31.10")
_REQUIRES = ("astor", "expecttest", "pandas")
_SECONDS_EACH = 60
_GENERATE = """
import json, os, sys, tempfile
peer, files, tests, stats = sys.argv[1:]
os.chdir(peer)
sys.path.insert(0, peer)
import importlib.util
from paritybench import static_analysis
imported = static_analysis.IMPORT_WHITELIST
imported.difference_update([name for name in imported if importlib.util.find_spec(name) is None])
from paritybench.generate import generate_zipfile_subproc, write_helpers
from paritybench.main import get_args
write_helpers()
with tempfile.TemporaryDirectory() as folder:
    _, counted = generate_zipfile_subproc(folder, files, get_args(["--tests-dir", tests]))
json.dump(counted, open(stats, "w"))
"""
_RUN = """
import importlib.util, json, os, signal, sys, torch
sys.path[:0] = [sys.argv[1], os.path.dirname(sys.argv[1])]
torch.set_num_threads(1)
spec = importlib.util.spec_from_file_location("generated", sys.argv[2])
module = importlib.util.module_from_spec(spec)
sys.modules["generated"] = module
spec.loader.exec_module(module)
ran = []
for cls, make_init, make_call, _ in getattr(module, "TESTCASES", []):
    child = os.fork()
    if not child:
        signal.alarm(int(sys.argv[4]))
        try:
            args, kwargs = make_init()
            block = cls(*args, **kwargs).eval()
            args, kwargs = make_call()
            block(*args, **kwargs)
        except BaseException:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        ran.append(cls.__name__)
json.dump(ran, open(sys.argv[3], "w"))
"""


@dataclass(frozen=True, slots=True)
class SourceRun:
    """What one tool made of one source: the classes that it tried, those that run forward, and what it took."""

    tried: int
    ran: frozenset[str]
    cost: Cost


def main() -> None:
    """Run both on each source, print a table and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("sources", nargs="*", default=list(_SOURCES), metavar="SOURCE")
    parser.add_argument("--classes", type=int, default=40, help="how many to draw of each source (default: 40)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if not (arguments.checkout / "paritybench").is_dir():
        raise UserError(f"{arguments.checkout}: no checkout of ParityBench; clone its repository and name the folder")
    print(f"{'source':<26}{'drawn':>6}{'lemur runs':>12}{'peer runs':>11}{'lemur CPU s':>13}{'peer':>7}   (a class)")
    for text in arguments.sources:
        source = open_source(text)
        drawn = _draw(source, arguments.classes, arguments.seed)
        with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
            ours = _run_ours(Path(scratch), text, drawn)
            peer = _run_peer(Path(scratch), arguments.checkout, source)
        both = len(ours.ran), len(peer.ran & set(drawn))
        each = ours.cost.cpu / ours.tried, peer.cost.cpu / max(peer.tried, 1)
        print(f"{source.name:<26}{len(drawn):>6}{both[0]:>12}{both[1]:>11}{each[0]:>13.2f}{each[1]:>7.2f}", end="   ")
        print(f"{both[0] / max(both[1], 1):.2f}x the blocks at {each[0] / each[1]:.1f}x the CPU time", flush=True)


def _draw(source: PackageSource, count: int, seed: int) -> list[str]:
    """Return names of classes, each of one class only: the peer could not tell two of one name apart."""
    with tempfile.TemporaryDirectory() as folder, FactsIndex(Path(folder) / "index.sqlite") as index:
        index.add([(source, file) for file in source.files])
        library = CorpusIndex([source], index.facts)
        modules = [library.by_path[source.name, file.path] for file in source.files if source.in_scope(file.path)]
        names = [found.name for found in discover(library, modules)]
    single = sorted(name for name in set(names) if names.count(name) == 1)
    return sorted(random.Random(seed).sample(single, min(count, len(single))))


def _run_ours(work: Path, text: str, names: Sequence[str]) -> SourceRun:
    """Run our command with an empty cache, but for the source and the runtime of the blocks."""
    out, wanted, env = work / "out", work / "names.json", make_empty_cache(work)
    wanted.write_text(json.dumps(list(names)))
    lemur = [str(Path(sys.executable).with_name("lemur")), "extract", "--source", text, "--level", "forward"]
    cost = measure([*lemur, "--names", str(wanted), "--out", str(out)], env)
    rows = read_blocks(out, ["name", "level"])
    return SourceRun(len(names), frozenset(row.name for row in rows if row.level in ("forward", "backward")), cost)


def _run_peer(work: Path, checkout: Path, source: PackageSource) -> SourceRun:
    """Let the peer extract all classes of the source, then execute what it wrote."""
    peer, files = work / "peer", work / "source"
    shutil.copytree(checkout, peer, ignore=shutil.ignore_patterns("generated", ".git"))
    (peer / "generated").mkdir()
    for file in source.files:
        (files / file.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.root / file.path, files / file.path)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LEMUR_"))}
    runtime = runtime_for([*_REQUIRES, *source.requires], known=["torch", "torchvision"])
    env["PYTHONPATH"] = str(runtime.folder)
    stats, ran = work / "stats.json", work / "ran.json"
    generate = [sys.executable, "-c", _GENERATE, str(peer), str(files), str(peer / "generated"), str(stats)]
    cost = measure(generate, env)
    generated = peer / "generated" / "test_source.py"
    run = [sys.executable, "-c", _RUN, str(peer / "generated"), str(generated), str(ran), str(_SECONDS_EACH)]
    subprocess.run(run, env=env, check=True, stdout=sys.stderr)
    return SourceRun(json.loads(stats.read_text())["total"], frozenset(json.loads(ran.read_text())), cost)


if __name__ == "__main__":
    main()
