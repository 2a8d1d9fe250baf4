"""`lemur verify` of conversations: proves from the folder alone that they are what was promised."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from extract.chat.guard import guarded_text
from extract.chat.result import count_chat, pair_id
from extract.chat.rights import Rights, read_rights
from extract.chat.specify import FACTS, NAMES, spec_facts
from extract.chat.tables import DROPS, TABLES
from extract.chat.wording import LAYERS
from lemur_core.similarity.text import tokens_of
from manifests.checks import Check, check_table, found_check
from manifests.manifest import Manifest
from manifests.records import CHAT_ROLES, Spec, SpecChatDrop, SpecChatRow
from manifests.tables import rows_by_split

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_FENCED = re.compile(r"\A(`{3,})(json|python)\n(.*?)\n?\1\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ChatTexts:
    """What of the conversations must be held against code: guarded texts and whole answers, by block."""

    guarded: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # block -> name and text of each
    codes: dict[str, str] = field(default_factory=dict)  # block -> the code that `write` answers


def read_texts(folder: Path) -> ChatTexts:
    """The texts of a folder's conversations; of none, if it has no tables that can be read so."""
    found = ChatTexts()
    if not check_table(folder, f"{TABLES}/*.parquet", SpecChatRow).ok:
        return found
    for _, row in rows_by_split(folder, TABLES):
        _, user, assistant = (message["content"] for message in row["messages"])
        for block in (row["block"], *row["others"]):
            text = guarded_text(row["task"], user, assistant)
            found.guarded.setdefault(block, []).append((f"{row['task']} of {row['block']}", text))
        if row["task"] == "write":
            found.codes[row["block"]] = fenced(assistant, "python") or ""
    return found


def has_chat(folder: Path) -> bool:
    """Whether there is anything of conversations."""
    return (folder / TABLES).is_dir() or (folder / DROPS).exists()


def check_chat(folder: Path, manifest: Manifest, specs: Mapping[str, Spec], splits: Mapping[str, str]) -> list[Check]:
    """The checks of a folder with conversations, but for those that read code.

    Args:
        specs: of the folder, by block.
        splits: of the specs, by block.
    """
    tables = [check_table(folder, f"{TABLES}/*.parquet", SpecChatRow), check_table(folder, DROPS, SpecChatDrop)]
    options = manifest.parameters.get("chat")
    if not all(check.ok for check in tables) or not isinstance(options, dict):
        return [*tables, Check("chat", ok=False, detail="not checked: a table above or the manifest cannot be trusted")]
    rows = list(rows_by_split(folder, TABLES))
    drops = pq.read_table(folder / DROPS).to_pylist()
    kinds = ["describe", "specify", "choose", "shapes", *(["write"] if options.get("include_code") else [])]
    rights = read_rights(folder) if any(row["task"] == "write" for _, row in rows) else Rights()
    forms = [f"{row['block']} {row['task']}: {fault}" for _, row in rows for fault in _faults(row, specs, rights)]
    places = [
        f"{row['block']} {row['task']}: in {split}, {block} is in {splits.get(block)}"
        for split, row in rows
        for block in (row["block"], *row["others"])
        if splits.get(block) != split
    ]
    stated = dict(manifest.counts.get("chat", {}))
    stated.pop("near", None)
    made = [(row["task"], row["block"], split, row["n_tokens"]) for split, row in rows]
    counts = count_chat(made, [(drop["task"], drop["reason"]) for drop in drops], kinds)
    wrong = [
        f"{key}: {value} in the tables, {stated.get(key)} stated"
        for key, value in counts.items()
        if stated.get(key) != value
    ]
    return [
        *tables,
        found_check("chat facts", forms, f"{len(rows):,} conversations: form, ids, lengths, and facts of their specs"),
        found_check(
            "chat splits", places, f"{len(rows):,} conversations, each in the split of all blocks it speaks of"
        ),
        _check_given(rows, drops, specs, kinds),
        found_check("chat counts", wrong, f"{len(rows):,} conversations and {len(drops):,} drops as stated"),
    ]


def fenced(text: str, language: str) -> str | None:
    """What stands in the one fence that a text consists of; None if it is anything else."""
    match = _FENCED.fullmatch(text)
    return match[3] if match is not None and match[2] == language else None


def _faults(row: Mapping[str, Any], specs: Mapping[str, Spec], rights: Rights) -> Iterator[str]:
    """What is wrong with one conversation."""
    if tuple(message["role"] for message in row["messages"]) != CHAT_ROLES:
        yield f"roles are not {', '.join(CHAT_ROLES)}"
        return
    spec = specs.get(row["block"])
    if spec is None or any(block not in specs for block in row["others"]):
        yield "speaks of a block that has no spec"
        return
    if row["id"] != pair_id(row["block"], row["task"]):
        yield "its id is not the digest of block and task"
    if row["n_tokens"] != sum(len(tokens_of(message["content"])) for message in row["messages"]):
        yield f"n_tokens is {row['n_tokens']:,}, which is not what its contents hold"
    names = ("source", "path", "start_line", "end_line", "swhid", "license")
    yield from (f"its {name} is not that of its spec" for name in names if row[name] != getattr(spec, name))
    if row["task"] == "write":
        yield from _code_faults(row, spec, rights)
        return
    if row["notice"] is not None or "```python" in row["messages"][2]["content"]:
        yield "holds code or a notice of it"
    yield from _fact_faults(row, spec, [specs[block] for block in row["others"]])


def _code_faults(row: Mapping[str, Any], spec: Spec, rights: Rights) -> Iterator[str]:
    if spec.block in rights.barred:
        yield f"its answer is code under {rights.barred[spec.block]}"
    if row["notice"] != rights.notice(spec):
        yield "its notice is not that of its block"


def _fact_faults(row: Mapping[str, Any], spec: Spec, others: Sequence[Spec]) -> Iterator[str]:
    """Every number of the answer is one of the specs it speaks of, or was given; JSON is the spec's own."""
    _, user, answer = (message["content"] for message in row["messages"])
    if row["task"] == "specify":
        text = fenced(answer, "json")
        try:
            same = text is not None and json.loads(text) == spec_facts(spec, (*NAMES, *FACTS))
        except ValueError:
            same = False
        if not same:
            yield "the spec that it answers is not that of its block"
        return
    known = {number for item in (spec, *others) for number in _known(item)} | set(_numbers(user))
    wrong = [number for number in _numbers(answer) if number not in known]
    if wrong:
        yield f"states {wrong[0]}, which is no number of the specs that it speaks of"


def _known(spec: Spec) -> Iterator[str]:
    """The numbers that may be said of a block: of its spec, how many of a kind there are, and the scale's inverse."""
    yield from _numbers(json.dumps(spec.model_dump(mode="json"), ensure_ascii=False))
    yield from (str(len(case.outputs)) for case in spec.cases)
    yield str(len(spec.layers or {}) - LAYERS)  # further kinds
    if spec.downsampling:
        yield from _numbers(f"{spec.downsampling:.4g} {1 / spec.downsampling:.4g}")
    yield "0"


def _numbers(text: str) -> list[str]:
    return [number.rstrip(",").replace(",", "") for number in _NUMBER.findall(text)]


def _check_given(
    rows: Sequence[tuple[str, Mapping[str, Any]]],
    drops: Sequence[Mapping[str, Any]],
    specs: Mapping[str, Spec],
    kinds: Sequence[str],
) -> Check:
    """Every block with a spec has one conversation or one reason of each kind, and nothing else has any."""
    given = Counter(
        [(row["block"], row["task"]) for _, row in rows] + [(drop["block"], drop["task"]) for drop in drops]
    )
    wanted = {(block, kind) for block in specs for kind in kinds}
    wrong = [
        f"{block} {kind}: {given[block, kind]} conversations and drops"
        for block, kind in sorted(wanted | given.keys())
        if given[block, kind] != ((block, kind) in wanted)
    ]
    return found_check("chat explained", wrong, f"{len(specs):,} specs, for each kind a conversation or a reason")
