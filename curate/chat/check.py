"""`lemur verify` of conversations: proves from the folder alone that they are about kept records, and well formed."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from curate.chat.conversation import conversation_id, count_tokens
from curate.chat.gap import MARK, put_back
from curate.chat.text import fenced_codes, parse
from manifests.checks import Check, found_check
from manifests.manifest import Manifest
from manifests.records import CHAT_KINDS, CHAT_ROLES, SPLITS
from manifests.tables import rows_by_split

_ONE_CODE = frozenset({"design", "complete", "repair", "change"})


def check_chat(folder: Path, manifest: Manifest) -> list[Check]:
    """The checks of a snapshot with conversations; its tables have the right columns already."""
    splits = _splits(folder)
    ids: Counter[str] = Counter()
    given: Counter[tuple[str, str]] = Counter()
    counts: dict[str, Any] = {"rows": 0, "tokens": 0, "kinds": Counter(), "splits": Counter()}
    places: list[str] = []
    codes: list[str] = []
    parsed = 0
    for split, row in rows_by_split(folder, "data/chat"):
        name = f"{row['nn']} {row['task']}"
        ids[row["id"]] += 1
        given[row["record"], row["task"]] += 1
        counts["rows"] += 1
        counts["tokens"] += row["n_tokens"]
        counts["kinds"][row["task"]] += 1
        counts["splits"][split] += 1
        home = splits.get(row["record"])
        if home != split:
            places.append(f"{name}: in {split}, its record is {'not kept' if home is None else f'in {home}'}")
        codes += [f"{name}: {fault}" for fault in _faults(row)]
        parsed += len(fenced_codes(row["messages"][2]["content"]))
    drops = pq.read_table(folder / "chat_drops.parquet").to_pylist()
    return [
        found_check("chat splits", places, f"{counts['rows']:,} conversations, each in the split of its kept record"),
        found_check("chat code", codes, f"{parsed:,} code blocks of answers parse and fit their records"),
        _check_ids(ids),
        _check_given(given, drops, splits),
        _check_counts(counts, given, drops, manifest),
    ]


def _splits(folder: Path) -> dict[str, str]:
    """The split of each kept record, by the file that holds it."""
    found = {}
    for path in sorted(folder.glob("data/records/*.parquet")):
        for id_ in pq.read_table(path, columns=["id"]).column("id").to_pylist():
            found[id_] = path.name.partition("-")[0]
    return found


def _faults(row: dict[str, Any]) -> Iterator[str]:
    """What is wrong with one conversation: its form, its code, and whether the code is that of its record."""
    messages = row["messages"]
    if tuple(message["role"] for message in messages) != CHAT_ROLES:
        yield f"roles are not {', '.join(CHAT_ROLES)}"
        return
    _, user, assistant = (message["content"] for message in messages)
    if row["id"] != conversation_id(row["record"], row["task"], row["variant"]):
        yield "its id is not the digest of record, task and variant"
    if row["n_tokens"] != sum(count_tokens(message["content"]) for message in messages):
        yield f"n_tokens is {row['n_tokens']:,}, which is not what its contents hold"
    asked, answered = fenced_codes(user), fenced_codes(assistant)
    if len(answered) != (row["task"] in _ONE_CODE):
        yield f"{len(answered)} code blocks in the answer"
        return
    for code in answered:
        try:
            parse(code)
        except (SyntaxError, ValueError) as error:
            yield f"a code block of the answer does not parse: {str(error).splitlines()[0]}"
    if asked == answered:
        yield "the code of its answer is that of its question"
    if not _is_file(row, asked, answered):
        yield "the file in it is not that of its record"


def _is_file(row: dict[str, Any], asked: list[str], answered: list[str]) -> bool:
    """Whether the record's file is where the kind of request has it; a newline at its end may have been added."""
    if row["task"] in ("design", "repair"):
        text = answered[0]
    elif len(asked) != 1:
        return False
    elif row["task"] == "complete":
        if MARK not in asked[0]:
            return False
        text = put_back(asked[0], answered[0].removesuffix("\n"))
    else:
        text = asked[0]
    texts = (text, text.removesuffix("\n"))
    return row["record"] in {hashlib.sha256(item.encode()).hexdigest() for item in texts}


def _check_ids(ids: Counter[str]) -> Check:
    wrong = [f"{id_[:12]} occurs {number} times" for id_, number in sorted(ids.items()) if number > 1]
    return found_check("chat ids", wrong, f"{len(ids):,} ids, each once")


def _check_given(given: Counter[tuple[str, str]], drops: list[dict[str, Any]], splits: dict[str, str]) -> Check:
    """Every kept record and kind has one conversation or one reason, not both."""
    told = Counter((drop["record"], drop["task"]) for drop in drops)
    wrong = [
        f"{record[:12]} {kind}: {given[record, kind]} conversations and {told[record, kind]} drops"
        for record in sorted(splits)
        for kind in CHAT_KINDS
        if given[record, kind] + told[record, kind] != 1
    ]
    wrong += [f"{record[:12]} {kind}: dropped, but no kept record" for record, kind in told if record not in splits]
    return found_check("chat explained", wrong, f"{len(splits):,} records, for each kind a conversation or a reason")


def _check_counts(
    counts: dict[str, Any], given: Counter[tuple[str, str]], drops: list[dict[str, Any]], manifest: Manifest
) -> Check:
    stated = manifest.counts.get("chat", {})
    reasons = Counter((drop["task"], drop["reason"]) for drop in drops)
    found = {
        "rows": counts["rows"],
        "records": len({record for record, _ in given}),
        "tokens": counts["tokens"],
        "kinds": {kind: counts["kinds"][kind] for kind in CHAT_KINDS},
        "splits": {split: counts["splits"][split] for split in SPLITS},
        "dropped": len(drops),
        "drops": {kind: {reason: n for (of, reason), n in reasons.items() if of == kind} for kind in CHAT_KINDS},
    }
    wrong = [
        f"{name}: {value} in the tables, {stated.get(name)} in the manifest"
        for name, value in found.items()
        if stated.get(name) != value
    ]
    return found_check("chat counts", wrong, f"{counts['rows']:,} conversations and {len(drops):,} drops as stated")
