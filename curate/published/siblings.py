"""Deltas that were made in parallel against one snapshot: they can be extended together only if they fit together."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from curate.model.features import FeatureStore
from curate.model.options import CurateOptions
from curate.published.clusters import join_clusters, read_joined
from curate.published.delta import Baseline
from curate.published.published import PublishedFolder, check_parents, find_siblings, list_parents, open_published
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import plural
from manifests.folders.manifest import FILE_NAME


def refuse_conflicts(folders: Sequence[Path], options: CurateOptions, jobs: int | None) -> None:
    """Check that folders can be extended together.

    Raises: UserError if two of them were made in parallel and their records conflict, and as `open_published` does.
    """
    manifests = check_parents(folders)
    siblings = find_siblings(manifests)
    if not siblings:
        return
    store = FeatureStore(options.tokens)
    opened = {published.folder: published for published in open_published(folders, options, store, jobs)}
    for one, other in siblings:
        conflicts = list(_find_conflicts(opened[one], opened[other], options, store))
        if conflicts:
            extended = {parent.sha256 for folder in (one, other) for parent in list_parents(manifests[folder])}
            bases = [folder for folder in folders if sha256_file(folder / FILE_NAME) in extended]
            against = " ".join(f"--against {base}" for base in bases)
            raise UserError(
                f"{other}: was made in parallel with {one}, with {plural(len(conflicts), 'conflict')}: {conflicts[0]};"
                f" decide both again in one delta: lemur curate {one} {other} {against}"
            )


def _find_conflicts(
    one: PublishedFolder, other: PublishedFolder, options: CurateOptions, store: FeatureStore
) -> Iterator[str]:
    """Yield what keeps the records of two folders from being those of one snapshot."""
    ids = other.column("id", np.arange(other.count))
    other.have(ids)
    baseline = Baseline([one], ids, store.table([bytes.fromhex(id_) for id_ in ids]), options, store)
    joined = join_clusters([*read_joined(one.folder), *read_joined(other.folder)])
    records = [other.record(row) for row in range(other.count)]
    verdicts = baseline.verdicts(range(other.count), lambda row: records[row].traced)
    yield from (f"{records[row].label}: {verdict.reason}" for row, verdict in verdicts.items())
    for row, record in enumerate(records):
        key = joined.get(record.cluster, record.cluster)
        for (split, cluster), near in baseline.published_groups(row, record.traced).items():
            if (split, joined.get(cluster, cluster)) != (record.split, key):
                places = [f"{near.label} (group {cluster}, {split})", f"(group {record.cluster}, {record.split})"]
                yield f"{record.label} belongs to the group of {places[0]}, but is apart {places[1]}"
