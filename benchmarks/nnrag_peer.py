"""The released nn-rag, made to run on our sources: installed apart, its cache of repositories filled, its phases timed.

Its wheel lacks `repo_config.json`; the one written here states the same facts from our corpus file: names of
repositories, priorities, and paths where our sources have them. It clones into `~/.cache/nn-rag/repo_cache/OWNER_NAME`
and takes what lies there with a `.git` for a clone, so it gets a HOME of its own and copies of our files.

Its validator executes what it extracts in its own process: there is no sandbox around the peer.
"""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Cost, measure
from extract.proofs.runtime import runtime_for
from extract.sources import PackageSource
from lemur_core.files.errors import UserError
from manifests.records.corpus import Corpus

VERSION = "2.2.4"
_INDEX = """
import os, sys
from pathlib import Path
os.chdir(sys.argv[1])
from ab.rag import BlockExtractor
BlockExtractor(max_workers=int(sys.argv[2]), project_dir=Path(sys.argv[1])).warm_index_once()
"""
_EXTRACT = """
import json, os, sys
from pathlib import Path
os.chdir(sys.argv[1])
from ab.rag import BlockExtractor
extractor = BlockExtractor(max_workers=int(sys.argv[2]), project_dir=Path(sys.argv[1]))
done = extractor.extract_blocks_from_file(Path("names.json"))
Path("results.json").write_text(json.dumps(done, default=str))
"""


@dataclass(frozen=True, slots=True)
class PeerRun:
    """What the peer made of the names, and what each phase took."""

    index_cold: Cost
    index_warm: Cost
    extract: Cost
    generated: int
    accepted: dict[str, str]  # the code of each file that its validator accepted, by name
    unresolved: int  # of those, by its own account, with unresolved dependencies


def run_peer(
    work: Path, corpus: Corpus, sources: Sequence[PackageSource], names: Sequence[str], workers: int
) -> PeerRun:
    """Index the sources and extract the names, with nothing cached.

    Args: workers: its threads; its own default is at least 8, with one it accepts more (its threads race).
    Raises: UserError if it cannot be installed; CalledProcessError if it fails as a whole.
    """
    package, home, project = work / "package", work / "home", work / "project"
    _install(package)
    project.mkdir()
    config = _fill(home / ".cache" / "nn-rag", corpus, sources)
    (package / "ab" / "rag" / "config" / "repo_config.json").write_text(json.dumps(config))
    (project / "names.json").write_text(json.dumps(list(names)))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LEMUR_"))}
    env |= {"HOME": str(home), "PYTHONPATH": str(package), "PYTHONHASHSEED": "0", "TQDM_DISABLE": "1"}
    cold, warm, cost = (
        measure([sys.executable, "-P", "-c", script, str(project), str(workers)], env)
        for script in (_INDEX, _INDEX, _EXTRACT)
    )
    results = json.loads((project / "results.json").read_text())["results"]
    accepted = {path.stem: _read(path) for path in sorted((project / "blocks").glob("*.py"))}
    generated = len(list((package / "ab" / "rag" / "generated_packages").glob("*.py"))) + len(accepted)
    unresolved = sum(name in accepted and bool(result.get("unresolved")) for name, result in results.items())
    return PeerRun(cold, warm, cost, generated, accepted, unresolved)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _install(folder: Path) -> None:
    runtime = runtime_for([f"nn-rag=={VERSION}"])
    if runtime.folder is None or f"nn-rag=={VERSION}" not in runtime.installed or runtime.unavailable:
        raise UserError(f"nn-rag {VERSION} cannot be installed: {runtime.unavailable}; check the index settings of pip")
    shutil.copytree(runtime.folder, folder)


def _fill(cache: Path, corpus: Corpus, sources: Sequence[PackageSource]) -> dict[str, object]:
    """Write its cache of repositories; returns its configuration."""
    opened = {source.name.partition("@")[0]: source for source in sources}
    config: dict[str, object] = {}
    index: dict[str, object] = {}
    for entry in corpus.sources:
        source = opened.get(entry.name)
        if source is None:
            continue
        clone = cache / "repo_cache" / entry.repository.replace("/", "_")
        (clone / ".git").mkdir(parents=True)
        for file in source.files:
            (clone / file.path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.root / file.path, clone / file.path)
        url = f"https://github.com/{entry.repository}.git"
        paths = list(source.paths)
        config[entry.repository] = {"url": url, "priority": entry.priority, "paths": paths, "description": ""}
        index[entry.repository] = {"path": str(clone), "default_branch": "main", "url": url}
    (cache / "cache_index.json").write_text(json.dumps(index))
    return config
