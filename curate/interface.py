"""The Python interface of curation: one function that writes a snapshot, and the snapshot as an object.

Everything here calls the modules below; the command line and programs therefore do the same.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from curate.compute.outcome import STAGES
from curate.folder.explain import explain
from curate.folder.novelty import Novelty, NoveltyChecker, describe_novelty
from curate.folder.novelty import novel as novel  # as it is: the command reads its result
from curate.kinds import verify
from curate.model.corpus import read_previous
from curate.model.options import CurateOptions
from curate.model.records import list_first
from curate.run.pipeline import curate as curate_source
from curate.sources import open_sources
from curate.sources.rows import check_task
from lemur_core.files import Json
from lemur_core.files.atomic import PathLike, check_free
from lemur_core.files.errors import MissingNameError, UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import hide_progress
from lemur_core.files.workers import on_cluster
from lemur_core.graphs.graph import Graph
from manifests.folders.kinds import SNAPSHOT, Check, FoundItem
from manifests.folders.manifest import Manifest
from manifests.folders.tables import read_frame
from manifests.records import Decision, NetworkRow

if TYPE_CHECKING:
    import pandas


def curate(
    source: PathLike | Sequence[PathLike],
    *,
    out: PathLike,
    options: CurateOptions | None = None,
    origins: Sequence[PathLike] = (),
    previous: PathLike | None = None,
    jobs: int | None = None,
    ray: str | None = None,
    force: bool = False,
    progress: bool = False,
) -> "Snapshot":
    """Deduplicate, split and explain a corpus of network codes, and write a snapshot of it.

    Args:
        source: what `lemur curate` takes as SOURCE: `lemur[@VERSION]`, a table, a folder of Python files, a dataset of
            the Hub; or several of these.
        out: the folder to write; it is written completely or not at all.
        options: thresholds, filters and everything else that decides what is kept.
        previous: a snapshot, or `hf://datasets/OWNER/NAME`: what it kept stays kept and keeps its split, as far as the
            source still has it.
        origins: extractions; each code is compared with their blocks, which states its origin and license.
        jobs: worker processes; all cores by default.
        ray: the address of a Ray cluster that does their work, or `auto`; this process by default.
        force: replace a folder that exists.
        progress: show progress on stderr.

    Returns:
        The snapshot in `out`.

    Raises:
        UserError: if a source cannot be read, no record is left, or `out` cannot be written.
        UsageError: if options contradict each other.

    Example:
        ```python
        from curate import CurateOptions, curate

        snapshot = curate("networks.jsonl", out="snapshot", options=CurateOptions(graph="off"))
        print(f"{len(snapshot)} of {len(snapshot.networks)} codes are kept")
        ```
    """
    sources = [source] if isinstance(source, str | os.PathLike) else source
    folder = Path(out)
    with hide_progress(unless=progress):
        options = options or CurateOptions()
        rows = open_sources([os.fspath(item) for item in sources], options.of_files)
        check_free(folder, force=force)
        before = None if previous is None else read_previous(os.fspath(previous))
        with on_cluster(ray):
            curate_source(
                rows, folder, options, origins=list(map(Path, origins)), previous=before, jobs=jobs, force=force
            )
    return Snapshot(folder)


@dataclass(frozen=True, repr=False)
class CuratedNetwork:
    """A network of a snapshot, kept or not.

    Attributes:
        folder: the folder of the snapshot.
        row: the row of its code in the table of networks.

    Example:
        ```python
        from curate import Snapshot

        network = Snapshot("snapshot")["tiny-1"]
        print(network, network.decision.reason, len(network.code))
        ```
    """

    folder: Path
    row: NetworkRow
    found: FoundItem = field(compare=False)

    def __repr__(self) -> str:
        outcome = f"kept, {self.row.split}" if self.row.kept else f"removed at stage {self.row.stage}"
        return f"<CuratedNetwork {self.found.facts['name']} {self.row.id[:12]} {outcome}>"

    @property
    def code(self) -> str:
        """Return the Python source; empty if its license does not permit that it was published."""
        return self.row.nn_code

    @cached_property
    def decision(self) -> Decision:
        """Return the decision on its row: kept, or removed and why."""
        row = self.found.facts["row"]
        return next(decision for decision in SNAPSHOT.rows(self.folder, Decision) if decision.row == row)

    @property
    def graph(self) -> Graph | None:
        """Return the graph of what it computes in eval mode; None if it was not traced, or could not be."""
        text = (self.found.facts["graph"] or {}).get("eval")
        return None if text is None else Graph.from_json(json.loads(text))

    @property
    def explanation(self) -> str:
        """Return what `lemur show` prints: why it is kept or removed, with the difference to its canonical record."""
        return "\n".join(self.found.lines)


@dataclass(frozen=True, init=False, repr=False)
class Snapshot:
    """Open a folder that `curate` wrote. A snapshot is a path, too: pass it wherever a folder is expected.

    Attributes:
        folder: the folder of the snapshot.
        manifest: how it was created, with counts and digests.

    Args:
        folder: a finished snapshot.

    Raises:
        UserError: if the folder is not a snapshot.

    Example:
        ```python
        from curate import Snapshot

        snapshot = Snapshot("snapshot")
        removed = snapshot.decisions.query("not kept")
        print(removed[["nn", "stage", "reason"]])
        print(snapshot[removed.nn.iloc[0]].explanation)
        assert all(check.ok for check in snapshot.verify())
        assert snapshot.novelty(snapshot.records.nn_code[0]).known
        ```
    """

    folder: Path
    manifest: Manifest = field(compare=False)
    _checker: NoveltyChecker = field(compare=False)

    def __init__(self, folder: PathLike) -> None:
        path = Path(folder)
        object.__setattr__(self, "folder", path)
        object.__setattr__(self, "manifest", SNAPSHOT.open(path))
        object.__setattr__(self, "_checker", NoveltyChecker(path))

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        splits = ", ".join(f"{number:,} {split}" for split, number in self.manifest.counts["splits"].items())
        codes = self.manifest.counts["codes"]
        return f"<Snapshot {self.folder} {len(self):,} of {codes:,} codes kept: {splits}>"

    def __len__(self) -> int:
        """Return the number of kept records."""
        return int(self.manifest.counts["rows"]["kept"])

    def __getitem__(self, name_or_id: str) -> CuratedNetwork:
        """Return the network of an exact name, an id, or at least its first six digits.

        Raises:
            UserError: which is a KeyError, too, if nothing, or more than one network, is called that; it lists near
                names.
        """
        found = explain(self.folder, name_or_id)
        id_ = found.facts["id"]
        if id_ is None or found.facts["stage"] == "invalid":
            raise MissingNameError(f"{name_or_id}: has no usable code: {found.facts['reason']}")
        row = next(SNAPSHOT.rows(self.folder, NetworkRow, ids={id_}), None)
        if row is None:
            raise UserError(f"{self.folder}: damaged snapshot: {id_[:16]} is not among its networks; verify it")
        return CuratedNetwork(self.folder, row, found)

    def _read(self, table: str) -> "pandas.DataFrame":
        with SNAPSHOT.reading(self.folder):
            return read_frame(SNAPSHOT.files(self.folder, table))

    @cached_property
    def records(self) -> "pandas.DataFrame":
        """Return the kept records of all splits, with their codes."""
        return self._read("records")

    @cached_property
    def networks(self) -> "pandas.DataFrame":
        """Return all distinct codes of the source, kept or not."""
        return self._read("networks")

    @cached_property
    def stats(self) -> "pandas.DataFrame":
        """Return all results of these codes."""
        return self._read("stats")

    @cached_property
    def decisions(self) -> "pandas.DataFrame":
        """Return one decision for each input row, in input order: kept, or removed and why."""
        return self._read("decisions")

    def verify(self, *, jobs: int | None = None) -> tuple[Check, ...]:
        """Return all checks of the folder: digests, schemas, counts and guarantees. Nothing in it is executed.

        Args:
            jobs: worker processes; all cores by default.
        """
        with hide_progress():
            return tuple(verify(self.folder, jobs=jobs))

    def novelty(
        self,
        code: str,
        *,
        graph: bool = True,
        task: str = "img-classification",
        prm: Mapping[str, object] | None = None,
        runtime: Sequence[str] = (),
        jobs: int | None = None,
        unsafe_no_sandbox: bool = False,
    ) -> Novelty:
        """Compare a network with the records of the snapshot, by text, by structure, by its graph and its numbers.

        The first call loads the snapshot, the first one with graphs starts the sandbox; both serve all further calls,
        from any thread. The network is traced in the sandbox if the snapshot holds graphs.

        Args:
            code: the text of a Python file, a network by LEMUR's contract or a module.
            graph: compare what it computes, too; without, nothing is run.
            task: the task whose inputs the network is traced with.
            prm: hyperparameters; usual ones by default.
            runtime: packages that the network can import in addition to the declared runtime.
            jobs: worker processes that load the snapshot; all cores by default.
            unsafe_no_sandbox: run the network without the sandbox; only for code that you trust.

        Returns:
            Whether the network is known and why, and the nearest records.

        Raises:
            UserError: if the code is not Python, the folder cannot be compared with, or no sandbox is available.
            UsageError: if the task is not known.

        Example:
            ```python
            from curate import Snapshot

            snapshot = Snapshot("snapshot")
            novelty = snapshot.novelty(snapshot.records.nn_code[0])
            print(novelty.verdict, novelty.reason)  # known  the same code, near by text, near by structure: …
            print(novelty.text.name, novelty.text.similarity)
            ```
        """
        check_task(task, "task")
        return self._checker.check(
            code, graph=graph, task=task, prm=prm, runtime=tuple(runtime), unsafe=unsafe_no_sandbox, jobs=jobs
        )


# What the commands print.


def novelty_text(facts: Json, *, as_json: bool) -> str:
    """Return the output of `lemur novel`."""
    return json.dumps(facts, indent=2) if as_json else "\n".join(describe_novelty(facts))


def summary_text(out: Path, manifest: Manifest, *, as_json: bool) -> str:
    """Return the summary of a finished snapshot: one line for each stage that removed rows, and what is kept."""
    if not as_json:
        return "\n".join(_summary_lines(out, manifest))
    facts: Json = manifest.model_dump(include={"kind", "parameters", "counts", "details", "measured"})
    return json.dumps({"out": str(out), **facts})


def _summary_lines(out: Path, manifest: Manifest) -> Iterator[str]:
    counts, rows = manifest.counts, manifest.counts["rows"]
    unusable = f"; {plural(rows['invalid'], 'row')} without usable code" if rows["invalid"] else ""
    codes, networks = plural(counts["codes"], "distinct code"), plural(counts["networks"], "network")
    yield f"{codes} of {networks}, in {plural(rows['input'], 'row')}{unusable}"
    for stage, number in counts["stages"].items():
        splits = ", ".join(f"{number:,} {split}" for split, number in counts["splits"].items())
        yield f"  {stage:<10} {number:>9,}  {STAGES.get(stage, splits)}"
    if "graphs" in counts:
        graphs = counts["graphs"]
        text = f"of the kept traced, each a graph of its own; {graphs['distinct_up_to_widths']:,} up to widths"
        yield f"  {'graphs':<10} {graphs['kept']:>9,}  {text}"
    else:
        yield f"  {'graphs':<10} {'-':>9}  not compared: two of the kept may compute the same"
    if (previous := manifest.details.get("previous")) is not None:
        gone = list_first([f"{item['nn']} ({item['reason']})" for item in previous["gone"]])
        near = f"; {len(inherited):,} near or equal to another" if (inherited := manifest.details["inherited"]) else ""
        text = f"stay kept, in their splits{near}; gone: {gone or 'none'}"
        yield f"  {'previous':<10} {previous['kept']:>9,}  {text}"
    if "origins" in counts:
        kept_origins = counts["origins"]["kept"]
        licenses = ", ".join(f"{count:,} {name}" for name, count in kept_origins["licenses"].items())
        yield f"  {'origins':<10} {kept_origins['codes']:>9,}  of the kept are from a repository: {licenses or 'none'}"
    if "chat" in counts:
        chat = counts["chat"]
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in chat["kinds"].items())
        yield f"  {'chat':<10} {chat['rows']:>9,}  conversations: {kinds}; {chat['dropped']:,} not made"
    for note in manifest.details.get("notes", ()):
        yield f"  note: {note}"
    measured = manifest.measured
    yield f"{out}: {measured.seconds:.1f} s, {measured.peak_memory_bytes / 2**20:,.0f} MiB of memory; see report.md"
