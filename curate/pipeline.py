"""`lemur curate`: source in, snapshot folder out."""

import logging
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from curate.corpus import CodeFile, Corpus, read_corpus
from curate.counts import count_decisions
from curate.options import CurateOptions
from curate.outcome import Outcome
from curate.report.page import write_report
from curate.rows import Source
from curate.snapshot import snapshot_card, write_snapshot_tables
from curate.strict import curate_strict
from manifests.atomic import atomic_folder
from manifests.manifest import Input, Manifest, Stopwatch, list_outputs, package_versions, write_manifest

logger = logging.getLogger(__name__)


def curate(
    source: Source, out: Path, options: CurateOptions, *, jobs: int | None = None, force: bool = False
) -> Manifest:
    """Curate a source into the folder `out`.

    Returns: the manifest that was written.
    Raises: UserError for bad input or an `out` that cannot be written; nothing is left behind then.
    """
    watch = Stopwatch()
    with atomic_folder(out, force=force) as folder:
        with tempfile.TemporaryDirectory(dir=folder) as scratch, CodeFile(Path(scratch) / "codes") as codes:
            corpus = read_corpus(source, codes, options.tokens, jobs)
            watch.lap("load and features")
            outcome = decide(corpus, options, jobs)
            watch.lap("decide")
            rows = write_snapshot_tables(folder, corpus, outcome)
            watch.lap("write tables")
            counts = count_decisions(corpus, outcome)
            write_report(folder, corpus, outcome, counts, options, source.name)
            watch.lap("report")
        card = snapshot_card(source.name, outcome, rows)
        (folder / "README.md").write_text(card, encoding="utf-8")
        manifest = Manifest(
            kind="snapshot",
            versions=package_versions(),
            parameters=_parameters(source, options),
            inputs=[Input(name=item.name, sha256=item.sha256, bytes=item.bytes) for item in source.inputs()],
            counts=counts,
            details={**outcome.details, "notes": outcome.notes},
            outputs=list_outputs(folder, rows),
            measured=watch.measured(),
        )
        write_manifest(folder, manifest)
    return manifest


def decide(corpus: Corpus, options: CurateOptions, jobs: int | None) -> Outcome:
    """The outcome of the profile that was asked for."""
    if options.profile == "strict":
        return curate_strict(corpus, options)
    from curate.nndup.profile import curate_like_nndup

    return curate_like_nndup(corpus, options, jobs)


def _parameters(source: Source, options: CurateOptions) -> dict[str, Any]:
    chosen = asdict(options)
    chosen["structural_threshold"], chosen["min_per_prefix"] = options.structural, options.min_prefix
    return {"source": source.name, **chosen}
