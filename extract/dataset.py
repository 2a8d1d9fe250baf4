"""What makes an extraction folder a data set: tables of specs, conversations if asked for, and the card."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from extract.card import extraction_card
from extract.chat.build import build_chat
from extract.chat.result import ChatOptions, Subject
from extract.chat.rights import Rights, read_rights
from extract.chat.similar import near_rows
from extract.chat.tables import write_chat_tables
from extract.specs import SPECS
from extract.specs.make import read_lines
from extract.specs.splits import Place, place_specs, write_spec_tables
from manifests.provenance import TABLE
from manifests.records import SPLITS, Spec

CARD = "README.md"


def write_dataset(
    folder: Path, codes: Sequence[str], blocks: int, seed: int, options: ChatOptions | None
) -> tuple[dict[str, int], dict[str, Any]]:
    """Write the tables and the card of a folder whose blocks, requirements and specs are written.

    Args:
        codes: the closed files, in the order of the specs.
        blocks: rows of the table of blocks.
        seed: draws which groups are held out.
        options: of conversations; None for none.
    Returns: rows by path below `folder`, and counts for the manifest.
    """
    specs = [Spec.model_validate_json(line) for line in read_lines(folder / SPECS)]
    places = place_specs(specs, codes, seed)
    rows = write_spec_tables(folder, specs, places)
    counts: dict[str, Any] = {"specs": count_places(places)}
    chat, near = None, {}
    if options is not None:
        subjects = [Subject(*given) for given in zip(specs, places, codes, strict=True)]
        chat = build_chat(subjects, options, read_rights(folder) if options.include_code else Rights())
        rows |= write_chat_tables(folder, chat)
        near = near_rows(chat.pairs, options.kinds)
        counts["chat"] = {**chat.counts(), "near": near}
    told: Mapping[str, int] = {TABLE: blocks, **rows}
    (folder / CARD).write_text(extraction_card(told, specs, places, chat, near), encoding="utf-8", newline="\n")
    return rows, counts


def count_places(places: Sequence[Place]) -> dict[str, int]:
    """Specs by split, and groups."""
    splits = Counter(place.split for place in places)
    return {
        **{split: splits[split] for split in SPLITS},
        "groups": len({place.cluster for place in places}),
    }
