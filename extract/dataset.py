"""What makes an extraction folder a data set: tables of specs, conversations if asked for, and README.md, the card.

The card begins with the YAML that `datasets.load_dataset` reads.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from extract.chat.build import build_chat, extraction_chat_card
from extract.chat.draft import ChatBlock, Rights, read_rights
from extract.results import Options
from extract.specs.splits import Place, place_specs, write_spec_tables
from lemur_core.files.markdown import code_span, count, plural, table
from lemur_core.similarity.text import tokens_of
from manifests.conversations.conversation import Chat, write_chat_tables
from manifests.licenses import is_permissive
from manifests.manifest import package_versions
from manifests.provenance import TABLE
from manifests.records import SPLITS, Block, Spec, SpecChatDrop, SpecChatRow, SpecRow
from manifests.tables import Configs, card_yaml, offered_tables

CARD = "README.md"

#: The tables that are offered to readers, by configuration.
CONFIGS: Configs = {
    "blocks": (Block, {"train": TABLE}),
    "specs": (SpecRow, {split: f"data/specs/{split}-*.parquet" for split in SPLITS}),
    "chat": (SpecChatRow, {split: f"data/chat/{split}-*.parquet" for split in SPLITS}),
    "chat_drops": (SpecChatDrop, {"train": "chat_drops.parquet"}),
}


def write_dataset(
    folder: Path, specs: Sequence[Spec], codes: Sequence[str], blocks: int, options: Options
) -> tuple[dict[str, int], dict[str, Any]]:
    """Write the tables and the card of a folder whose blocks, requirements and specs are written.

    Args:
        codes: the closed files of the same blocks.
        blocks: rows of the table of blocks.
        options: seed, and how conversations are made.
    Returns: rows by path below `folder`, and counts for the manifest.
    """
    places = place_specs(specs, codes, options.seed)
    rows = write_spec_tables(folder, specs, places)
    splits = Counter(place.split for place in places)
    groups = len({place.cluster for place in places})
    counts: dict[str, Any] = {"specs": {**{split: splits[split] for split in SPLITS}, "groups": groups}}
    chat = None
    if options.chat is not None:
        chat_blocks = [ChatBlock(*given) for given in zip(specs, places, codes, strict=True)]
        chat = build_chat(chat_blocks, options.chat, read_rights(folder) if options.chat.include_code else Rights())
        rows |= write_chat_tables(folder, chat, SpecChatRow, SpecChatDrop)
        counts["chat"] = {**chat.counts("blocks"), "near": chat.near}
    told: Mapping[str, int] = {TABLE: blocks, **rows}
    (folder / CARD).write_text(extraction_card(told, specs, places, chat), encoding="utf-8", newline="\n")
    return rows, counts


def describe_extraction(folder: Path, rows: Mapping[str, int], licenses: Iterable[str]) -> None:
    """Write `croissant.json`: the tables that the card offers, their columns and the digests of their files.

    Args: licenses: of all sources.
    """
    from manifests.croissant import About, write_croissant

    about = About(
        name="Extracted PyTorch blocks",
        description=f"{plural(rows.get(TABLE, 0), 'PyTorch module')} as closed files where they could be"
        " closed, and neutral specs of them.",
        version=package_versions()["lemur-curator"],
        licenses=sorted(set(licenses)),
    )
    write_croissant(folder, offered_tables(CONFIGS, rows), about)


def extraction_card(
    rows: Mapping[str, int],
    specs: Sequence[Spec],
    places: Sequence[Place],
    chat: Chat | None,
) -> str:
    """The card.

    Args: rows: rows by path of every table; what has none is not offered, since `datasets` refuses it.
    """
    head = card_yaml(
        offered_tables(CONFIGS, rows),
        default="blocks",
        pretty_name="Extracted PyTorch blocks",
        tags=["neural-architecture", "pytorch", "code", "lemur"],
        size=rows.get(TABLE, 0),
    )
    lines = [
        "# Extracted PyTorch blocks",
        "",
        f"{plural(rows.get(TABLE, 0), 'PyTorch module')} as closed files where they could be closed, and"
        f" {plural(len(specs), 'neutral spec')} of them: what each module is and does, as facts that were read or"
        " measured, never text of its source.",
        "",
        "```python",
        "from datasets import load_dataset",
        "",
        'blocks = load_dataset("path/to/this/folder", "blocks")  # code, how far it runs, licence, place in its source',
        'specs = load_dataset("path/to/this/folder", "specs")    # arguments, shapes, parameters, layers',
        *(['chat = load_dataset("path/to/this/folder", "chat")      # messages, task, block, license'] if chat else []),
        "```",
        "",
        "`report.md` shows how far the blocks came, `manifest.json` says how to make this folder again, and `lemur"
        " verify` checks its promises. The code of each block is under the licence of its source.",
        "",
        *_specs(specs, places),
    ]
    return head + "\n" + "\n".join([*lines, *(extraction_chat_card(chat) if chat else [])]).rstrip() + "\n"


def _specs(specs: Sequence[Spec], places: Sequence[Place]) -> list[str]:
    if not specs:
        return []
    splits = Counter[str](place.split for place in places)
    groups: dict[str, Any] = Counter(place.cluster for place in places)
    told = ", ".join(f"{count(splits[split])} {split}" for split in SPLITS)
    lengths = sorted(len(tokens_of(spec.summary)) for spec in specs)
    return [
        "## Specs",
        "",
        f"{told}. Related blocks (nearly the same class, or the same design) form a group, column `cluster`, and a"
        f" group is in one split: {plural(len(groups), 'group')}, the largest of {count(max(groups.values()))}. The"
        " table `blocks` is one split; column `block` joins it with these.",
        "",
        f"{count(sum(bool(spec.cases) for spec in specs))} were seen to run forward,"
        f" {count(sum(spec.parameters is not None for spec in specs))} to be constructed. Summaries have a median of"
        f" {lengths[(len(lengths) - 1) // 2]} tokens.",
        "",
        *_licence_table(Counter(spec.license for spec in specs), "specs"),
    ]


def _licence_table(licenses: Mapping[str, int], what: str) -> list[str]:
    """How many there are under each licence, and whether it lets code be passed on."""
    ordered = sorted(licenses.items(), key=lambda item: (-item[1], item[0]))
    rows = [[code_span(name, 160), "yes" if is_permissive(name) else "no", count(number)] for name, number in ordered]
    return table(["licence", "permissive", what], rows, 2)
