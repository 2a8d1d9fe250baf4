"""`lemur verify` of conversations about blocks: proves from the folder alone that they are what was promised."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from extract.chat.draft import FACTS, NAMES, Rights, guarded_text, read_rights, spec_facts
from extract.chat.verbalization import LAYERS
from manifests.checks import Check, check_table
from manifests.conversations.conversation import DROPS, TABLES
from manifests.conversations.verify import chat_rows, check_rows, contents, form_faults
from manifests.manifest import Manifest
from manifests.records import SPEC_CHAT_KINDS, Spec, SpecChatDrop, SpecChatRow

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_FENCED = re.compile(r"\A(`{3,})(json|python)\n(.*?)\n?\1\Z", re.DOTALL)
_OF_SPEC = ("source", "path", "start_line", "end_line", "swhid", "license")


@dataclass(frozen=True, slots=True)
class ChatTexts:
    """What of the conversations must be compared with code: guarded texts and whole answers, by block."""

    guarded: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # block -> name and text of each
    codes: dict[str, str] = field(default_factory=dict)  # block -> the code that `write` answers


def read_texts(folder: Path) -> ChatTexts:
    """The texts of a folder's conversations; of none, if it has no tables that can be read so."""
    found = ChatTexts()
    if not check_table(folder, f"{TABLES}/*.parquet", SpecChatRow).ok:
        return found
    for _, row in chat_rows(folder):
        _, user, assistant = contents(row)
        for block in (row["block"], *row["others"]):
            text = guarded_text(row["task"], user, assistant)
            found.guarded.setdefault(block, []).append((f"{row['task']} of {row['block']}", text))
        if row["task"] == "write":
            found.codes[row["block"]] = _fenced(assistant, "python") or ""
    return found


def check_chat(folder: Path, manifest: Manifest, specs: Mapping[str, Spec], splits: Mapping[str, str]) -> list[Check]:
    """The checks of a folder with conversations, but for those that read code.

    Args:
        specs: of the folder, by block.
        splits: of the specs, by block.
    """
    schemas = [check_table(folder, f"{TABLES}/*.parquet", SpecChatRow), check_table(folder, DROPS, SpecChatDrop)]
    options = manifest.parameters.get("chat")
    if not all(check.ok for check in schemas) or not isinstance(options, dict):
        return [
            *schemas,
            Check("chat", ok=False, detail="not checked: a table above or the manifest cannot be trusted"),
        ]
    kinds = [kind for kind in SPEC_CHAT_KINDS if kind != "write" or options.get("include_code")]
    rights = read_rights(folder) if any(row["task"] == "write" for _, row in chat_rows(folder)) else Rights()
    facts = "chat facts", ": form, ids, lengths, and facts of their specs"
    faults = partial(_faults, specs=specs, rights=rights)
    return [*schemas, *check_rows(folder, manifest, "block", splits, kinds, faults, facts)]


def _fenced(text: str, language: str) -> str | None:
    """What stands in the one fence that a text consists of; None if it is anything else."""
    match = _FENCED.fullmatch(text)
    return match[3] if match is not None and match[2] == language else None


def _faults(row: Mapping[str, Any], specs: Mapping[str, Spec], rights: Rights) -> Iterator[str]:
    """What is wrong with one conversation."""
    spec = specs.get(row["block"])
    if spec is None or any(block not in specs for block in row["others"]):
        yield "speaks of a block that has no spec"
        return
    yield from form_faults(row, "block")
    yield from (f"its {name} is not that of its spec" for name in _OF_SPEC if row[name] != getattr(spec, name))
    if row["task"] == "write":
        if spec.block in rights.barred:
            yield f"its answer is code under {rights.barred[spec.block]}"
        if row["notice"] != rights.notice(spec):
            yield "its notice is not that of its block"
        return
    if row["notice"] is not None or "```python" in contents(row)[2]:
        yield "holds code or a notice of it"
    yield from _fact_faults(row, spec, [specs[block] for block in row["others"]])


def _fact_faults(row: Mapping[str, Any], spec: Spec, others: Sequence[Spec]) -> Iterator[str]:
    """Every number of the answer is one of the specs it speaks of, or was given; JSON is the spec's own."""
    _, user, answer = contents(row)
    if row["task"] == "specify":
        text = _fenced(answer, "json")
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
