"""`lemur extract` against a plain script: `python -m benchmarks.versus_plain [SOURCE...] [--classes N] [--seed N]`.

Both get the same drawn classes in this very run. The script (`benchmarks/plain_script.py`) imports the packages, which
are installed with all that they require into an environment of their own, and guesses; nothing confines it, and nothing
that it says is proven. CPU seconds are those of all processes; fetching and installing are not counted.
"""

import argparse
import json
import random
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from subprocess import run

from benchmarks.environment import make_environment
from benchmarks.measure import children_cpu, make_empty_cache, measure
from extract.model.blocks import read_blocks

_SOURCES = ("timm@1.0.30", "kornia@0.9.0", "vit-pytorch@1.26.11", "x-transformers@2.31.10", "monai@1.6.1")
_RUNS = ("forward", "backward")
_SCRIPT = str(Path(__file__).with_name("plain_script.py"))


def main() -> None:
    """Draw, run both, print the counts and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", default=_SOURCES, metavar="SOURCE")
    parser.add_argument("--classes", type=int, default=60, help="in all, equally many of each source")
    parser.add_argument("--seed", type=int, default=20261203)
    given = parser.parse_args()
    lemur = [sys.executable, "-P", "-m", "lemur.start", "extract"]
    sources = [part for source in given.sources for part in ("--source", source)]
    with tempfile.TemporaryDirectory() as work:
        scratch, names = Path(work), Path(work, "names.json")
        measure([*lemur, *sources, "--level", "discovered", "--out", f"{work}/all"], make_empty_cache(scratch))
        drawn = draw(scratch / "all", given.classes // len(given.sources), given.seed)
        names.write_text(json.dumps(drawn), encoding="utf-8")
        (scratch / "ours").mkdir()
        env = make_empty_cache(scratch / "ours")
        ours = measure([*lemur, *sources, "--names", str(names), "--jobs", "1", "--out", f"{work}/blocks"], env)
        running = {row.block for row in read_blocks(scratch / "blocks", ("block", "level")) if row.level in _RUNS}
        packages = [source.replace("@", "==") for source in given.sources]
        python = make_environment("plain", [packages], ", ".join(packages))
        asked = {f"{name.rpartition('.')[0].partition('::')[2]}:{name.rpartition('.')[2]}": name for name in drawn}
        names.write_text(json.dumps(list(asked)), encoding="utf-8")
        before = children_cpu()
        imported = sorted({name.partition(".")[0] for name in asked})
        done = run([str(python), "-P", _SCRIPT, str(names), *imported], capture_output=True, text=True, check=True)
        cpu = children_cpu() - before
    plain = {asked[name] for name in json.loads(done.stdout.splitlines()[-1])}
    print(f"{len(drawn)} classes, seed {given.seed}, torch {version('torch')}")
    print(f"lemur  {len(running):3} run  {ours.cpu:6.1f} CPU s")
    print(f"plain  {len(plain):3} run  {cpu:6.1f} CPU s; {len(plain - running)} that lemur does not run")
    print(f"{len(running) / max(1, len(plain)):.2f} times the blocks for {ours.cpu / cpu:.1f} times the CPU seconds")


def draw(folder: Path, each: int, seed: int) -> list[str]:
    """Return so many blocks of each source, without nested classes."""
    by_source: dict[str, list[str]] = {}
    for row in read_blocks(folder, ("block", "source", "path", "name", "qualname")):
        if row.qualname.count(".") == row.path.removesuffix(".py").removesuffix("/__init__").count("/") + 1:
            by_source.setdefault(row.source, []).append(row.block)
    drawn = random.Random(seed)
    return [name for source in sorted(by_source) for name in drawn.sample(sorted(by_source[source]), each)]


if __name__ == "__main__":
    main()
