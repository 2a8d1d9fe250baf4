"""What each arm of `benchmarks.teaching` is trained on, and what is held out of all of them.

Groups of near records are drawn from the snapshot with graphs until so many records are held out. They, and every code
that is near one of them by its text or computes the same up to widths, leave every arm.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from curate.model.corpus import FeatureStore, FeatureTable, fill_store
from curate.model.options import LEAK_THRESHOLD
from lemur_core.files.errors import UserError
from lemur_core.similarity.join import pairs_between
from manifests.folders.kinds import SNAPSHOT

#: The arms, in the order of the table.
ARMS = {
    "released": "LEMUR as released: a text for each network name",
    "nndup": "the selection of nn-dup",
    "plain": "our snapshot without graphs",
    "graphs": "our snapshot with graphs",
}


@dataclass(frozen=True, slots=True)
class Text:
    """One file: `id` is the SHA-256 of its code; a group is a cluster of the snapshot."""

    id: str
    code: str
    name: str = ""
    group: str = ""
    task: str = ""


@dataclass(frozen=True, slots=True)
class Corpus:
    """`arms`: the texts that each arm learns, without what is held out and its neighbors, in a fixed order."""

    arms: Mapping[str, Sequence[Text]]
    held: Sequence[Text]


def read_corpus(folders: Mapping[str, Path], held: int, drawn_by: int) -> Corpus:
    """Return the arms that these folders make, with records held out.

    Args:
        folders: `plain`, `graphs`: snapshots of one release; perhaps `nndup`, what nn-dup selects.
        held: records to hold out.
        drawn_by: the seed.

    Raises: UserError if a folder is no such thing, or all of an arm would be held out.
    """
    arms = {name: read_snapshot(folder) for name, folder in folders.items()}
    arms["released"] = read_released(folders["graphs"], arms["graphs"])
    table, place = _features(text for texts in arms.values() for text in texts)
    usable = {id_ for id_, at in place.items() if table.shingle_set[at] >= 0}
    chosen = draw([text for text in arms["graphs"] if text.id in usable], held, drawn_by)
    kept = usable - neighbours(chosen, place, table, _known_widths(folders["graphs"]))
    left = {name: [text for text in arms[name] if text.id in kept] for name in ARMS if name in arms}
    if not all(left.values()):
        raise UserError(f"--held {held}: leaves an arm without texts; hold out fewer")
    return Corpus(left, chosen)


def read_snapshot(folder: Path) -> list[Text]:
    """The kept records of a snapshot, by id. Raises: UserError if it is none."""
    columns = ["id", "nn", "nn_code", "cluster", "task"]
    rows = [
        row for path in SNAPSHOT.files(folder, "records") for row in pq.read_table(path, columns=columns).to_pylist()
    ]
    if not rows:
        raise UserError(f"{folder}: holds no records; give a snapshot that lemur curate wrote")
    made = (Text(row["id"], row["nn_code"], row["nn"], row["cluster"] or row["id"], row["task"] or "") for row in rows)
    return sorted(made, key=lambda text: text.id)


def read_released(folder: Path, kept: Sequence[Text]) -> list[Text]:
    """All networks that a snapshot was made from: one text a name and code, further rows of it left out."""
    codes = {text.id: text.code for text in kept}
    for batch in pq.ParquetFile(folder / "networks.parquet").iter_batches(columns=["id", "nn_code"]):
        codes |= {row["id"]: row["nn_code"] for row in batch.to_pylist()}
    decisions = pq.read_table(folder / "decisions.parquet", columns=["id", "nn", "canonical"]).to_pylist()
    networks = sorted({(row["nn"], row["id"], row["canonical"]) for row in decisions if row["id"] in codes})
    groups = {text.id: text.group for text in kept}
    return [Text(id_, codes[id_], name, groups.get(stands, stands)) for name, id_, stands in networks]


def draw(texts: Sequence[Text], count: int, seed: int) -> list[Text]:
    """Whole groups in random order, each that still fits into `count`; the texts by id."""
    groups: dict[str, list[Text]] = {}
    for text in sorted(texts, key=lambda text: text.id):
        groups.setdefault(text.group, []).append(text)
    names = sorted(groups)
    chosen: list[Text] = []
    for name in random.Random(seed).sample(names, len(names)):
        if len(chosen) + len(groups[name]) <= count:
            chosen += groups[name]
    return sorted(chosen, key=lambda text: text.id)


def neighbours(
    held: Sequence[Text], place: Mapping[str, int], table: FeatureTable, widths: Mapping[str, str]
) -> set[str]:
    """The ids of held-out texts and of all near them: a Jaccard by which splits are kept apart, or the same G1."""
    asked = np.unique(table.shingle_set[[place[text.id] for text in held]])
    there = np.unique(table.shingle_set[table.shingle_set >= 0])
    near = set(pairs_between(table, asked, there, LEAK_THRESHOLD).b.tolist())
    computed = {widths[text.id] for text in held if text.id in widths}
    return {id_ for id_, at in place.items() if int(table.shingle_set[at]) in near or widths.get(id_) in computed}


def _known_widths(folder: Path) -> dict[str, str]:
    path = folder / "graphs.parquet"
    if not path.exists():
        raise UserError(f"{folder}: holds no graphs; give a snapshot made without --graph off")
    rows: list[dict[str, Any]] = pq.read_table(path, columns=["id", "graph_widths"]).to_pylist()
    return {row["id"]: row["graph_widths"] for row in rows if row["graph_widths"]}


def _features(texts: Iterable[Text]) -> tuple[FeatureTable, dict[str, int]]:
    """The features of these texts, and the place of each id there."""
    codes = {text.id: text.code for text in texts}
    store = FeatureStore()
    fill_store(store, ((bytes.fromhex(id_), code) for id_, code in codes.items()), 1)
    return store.table([bytes.fromhex(id_) for id_ in codes]), {id_: at for at, id_ in enumerate(codes)}
