"""Conversations of a folder as prompts with completions, and as preferences between a working and a failing answer.

A preference never guesses: the rejected code was run in the sandbox when the folder was made, and failed.

| origin | chosen | rejected |
|---|---|---|
| `repair` | the answer of the conversation, whose code runs | the same sentences with the file of the request |
| `design` | the answer of the conversation, whose code runs | the same answer with the file that `repair` broke |
| `synthesis` | code that passed all ten steps | code that failed one of them, written for the same request |
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from lemur.export.records import ExportContents, Preference, PromptCompletion
from lemur_core.files import Json
from lemur_core.files.errors import UserError
from manifests.conversations.conversation import fence, read_fenced_code
from manifests.conversations.verify import chat_rows
from manifests.folders.formats import EXTRACTION
from manifests.records import SPLITS, Block, ChatMessage, SynthesisAttempt

_Origin = Literal["repair", "design", "synthesis"]
#: Kinds of conversations whose answer is the whole file of the network.
_MINIMAL: tuple[_Origin, ...] = ("repair", "design")

_ABOUT_FORM = (
    "A prompt is the system's and the user's message, a completion the assistant's: `trl` reads both as they are."
)


def list_conversations(folder: Path, kind: str) -> list[tuple[str, Json]]:
    """Return split and row of each conversation of a folder, with `code_sha256`, the code that it is about.

    Raises: UserError if it has none.
    """
    rows = list(chat_rows(folder))
    codes = {}
    if kind == EXTRACTION.name:
        codes = {row.block: row.code_sha256 for row in EXTRACTION.rows(folder, Block, ("block", "code_sha256"))}
    for _, row in rows:
        row["code_sha256"] = codes[row["block"]] if codes else row["record"]
    if not rows:
        again = {"snapshot": "curate", "extraction": "extract"}[kind]
        raise UserError(f"{folder}: has no conversations; create it again with `lemur {again} ... --chat`")
    return rows


def export_completions(folder: Path, kind: str) -> ExportContents:
    """Return every conversation of a snapshot or an extraction as a prompt and a completion."""
    tables: dict[str, list[PromptCompletion]] = {split: [] for split in SPLITS}
    for split, row in list_conversations(folder, kind):
        *prompt, answer = map(ChatMessage.model_validate, row["messages"])
        facts: Json = {name: row.get(name) for name in ("id", "task", "license", "notice", "code_sha256")}
        tables[split].append(PromptCompletion(prompt=tuple(prompt), completion=(answer,), **facts))
    about = (
        _ABOUT_FORM,
        "The conversations are those of the source folder, in its splits; `task` says what is asked for.",
    )
    return ExportContents({"prompt_completion": tables}, Counter(), about)


def export_preferences(folder: Path, kind: str) -> ExportContents:
    """Return the preferences that a snapshot's conversations hold.

    Raises: UserError if it has no conversations.
    """
    tables: dict[str, list[Preference]] = {split: [] for split in SPLITS}
    skipped: Counter[str] = Counter()
    by_record: dict[tuple[str, str], dict[str, Json]] = defaultdict(dict)
    for split, row in list_conversations(folder, kind):
        by_record[split, row["record"]][row["task"]] = row
    for (split, _), rows in by_record.items():
        if (repair := rows.get("repair")) is None:
            skipped["no fault that fails is known for the network"] += 1
            continue
        broken, works = read_repair(repair)
        for origin in _MINIMAL:
            if (source := rows.get(origin)) is None:
                continue
            *prompt, answer = map(ChatMessage.model_validate, source["messages"])
            if works not in answer.content:
                skipped[f"{origin}: the answer is another file"] += 1
                continue
            rejected = answer.model_copy(update={"content": answer.content.replace(works, broken)})
            tables[split].append(
                _preference(
                    origin,
                    (source["id"], repair["id"]),
                    prompt,
                    (answer, rejected),
                    repair["variant"],
                    {name: repair[name] for name in ("license", "code_sha256")},
                )
            )
    about = (
        _ABOUT_FORM,
        "Both answers are the same but for the file in them: that of `chosen` runs, that of `rejected` has one fault"
        " and was seen to fail in the sandbox; `failure` names the fault and its line. For `repair` it is the file that"
        " the request asks to correct, for `design` that of the network's `repair` conversation.",
    )
    return ExportContents({"preference": tables}, skipped, about)


def read_repair(row: Json) -> tuple[str, str]:
    """Return the fenced file with the fault and the fenced file that works, of a `repair` conversation."""
    request, answer = (read_fenced_code(message["content"]) for message in row["messages"][1:])
    return fence(request[0]), fence(answer[-1])


def export_proofs(attempts: Sequence[SynthesisAttempt], license_: str) -> ExportContents:
    """Return the preferences that a synthesis holds: accepted against failed code for the same request.

    Args: attempts: all answers of the models. license_: that of the accepted networks, as the manifest states it.
    """
    requests: dict[str, list[SynthesisAttempt]] = defaultdict(list)
    first = {(item.model, item.attempt): item.prompt for item in attempts if item.round == 0}
    for item in attempts:
        if item.code is not None and item.form == "code":
            # A later round answers an error, but still the first request.
            requests[first[item.model, item.attempt]].append(item)
    rows: list[Preference] = []
    skipped: Counter[str] = Counter()
    for prompt, items in requests.items():
        accepted = [item for item in items if item.failed is None]
        failed = [item for item in items if item.failed is not None]
        if not accepted or not failed:
            skipped["no accepted answer to the request" if failed else "no failed answer to the request"] += 1
            continue
        messages = [ChatMessage.model_validate(message) for message in json.loads(prompt)]
        for item in failed:
            answers = [
                ChatMessage(role="assistant", content=fence(code)) for code in (accepted[0].code or "", item.code or "")
            ]
            ids = (accepted[0].code_sha256 or "", item.code_sha256 or "")
            failure = f"{item.failed}: {item.error}"
            facts: Json = {"license": license_, "code_sha256": accepted[0].code_sha256}
            rows.append(_preference("synthesis", ids, messages, (answers[0], answers[1]), failure, facts))
    unique = {row.id: row for row in rows}
    about = (
        _ABOUT_FORM,
        "Both answers were written for the same request, as code alone: `chosen` passed all ten steps of the proof,"
        " `rejected` failed the step that `failure` names. An answer of a later round also saw the error of the one"
        " before it.",
    )
    return ExportContents({"preference": {"train": list(unique.values())}}, skipped, about)


def _preference(
    origin: _Origin,
    ids: tuple[str, str],
    prompt: Sequence[ChatMessage],
    answers: tuple[ChatMessage, ChatMessage],
    failure: str,
    facts: Json,
) -> Preference:
    return Preference(
        prompt=tuple(prompt),
        chosen=(answers[0],),
        rejected=(answers[1],),
        id=hashlib.sha256(":".join((origin, *ids)).encode()).hexdigest(),
        origin=origin,
        failure=failure,
        **facts,
    )
