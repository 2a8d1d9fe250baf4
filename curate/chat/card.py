"""The part of a snapshot's card that tells of conversations."""

import numpy as np

from curate.chat.result import Chat, Conversation
from curate.chat.similar import SHINGLE, THRESHOLD
from manifests.markdown import block, count, percent, plural, shown, table
from manifests.records import CHAT_KINDS

_MEANING = {
    "design": "requirements to a file that has these measures",
    "complete": "a file with a gap to the missing part",
    "repair": "a file that fails, with its error, to the file that runs",
    "explain": "a file to what was measured on it",
    "change": "a file and one change to the changed file, which was run",
}
_HEAD, _TAIL = 4, 4  # lines of a message in an example
_WIDTH = 110


def chat_card(chat: Chat) -> str:
    """Sizes, lengths, near-duplicates, licence and one short example a kind."""
    made = chat.conversations
    counts = chat.counts()
    tokens = [item.tokens for item in made]
    splits = ", ".join(f"{count(number)} {split}" for split, number in counts["splits"].items())
    lines = [
        "## Conversations",
        "",
        "```python",
        'chat = load_dataset("path/to/this/folder", "chat")  # messages, id, task, nn, record, license, n_tokens, ...',
        "```",
        "",
        f"{plural(len(made), 'conversation')} about {plural(counts['records'], 'record')}, each in the split of its"
        f" record: {splits}. `messages` is a list of `role` and `content` (system, user, assistant), as fine-tuning"
        " libraries read it. Numbers in them were measured by running the network in a sandbox; every fault was seen to"
        " fail, every changed file to run.",
        "",
        *_kinds(chat),
        f"Length in tokens (words, numbers and single signs; white space not counted): {_lengths(tokens)}.",
        "",
        f"Near: prompts with a Jaccard of {THRESHOLD:.2f} or more, over sets of {SHINGLE}-token shingles of the user"
        " message, to a prompt of the same kind about another record; across: to one in another split. All pairs were"
        " compared.",
        "",
        *table(["licence", "conversations"], [[f"`{chat.license}`", count(len(made))]]),
        "`chat_drops.parquet` says of every record and kind without a conversation why there is none.",
        "",
        *_examples(made),
    ]
    return "\n".join(lines)


def _kinds(chat: Chat) -> list[str]:
    rows = []
    for kind in CHAT_KINDS:
        tokens = [item.tokens for item in chat.conversations if item.kind == kind]
        near = chat.similar[kind]
        rows.append(
            [
                f"`{kind}`",
                _MEANING[kind],
                count(len(tokens)),
                *(count(_quantile(tokens, q)) if tokens else "–" for q in (0.5, 0.9)),
                percent(near["near"], near["prompts"]),
                percent(near["across_splits"], near["prompts"]),
            ]
        )
    return table(["task", "from what to what", "rows", "median tokens", "90 %", "near", "across"], rows, 2)


def _lengths(tokens: list[int]) -> str:
    if not tokens:
        return "none"
    return f"median {count(_quantile(tokens, 0.5))}, 90 % {count(_quantile(tokens, 0.9))}, longest {count(max(tokens))}"


def _quantile(values: list[int], share: float) -> int:
    """The least value that this share of the values does not exceed."""
    return int(np.quantile(np.array(values), share, method="inverted_cdf"))


def _examples(made: list[Conversation]) -> list[str]:
    lines = ["### One of each", ""]
    for kind in CHAT_KINDS:
        of_kind = [item for item in made if item.kind == kind]
        if of_kind:
            shown_one = min(of_kind, key=lambda item: item.id)
            lines += [f"`{kind}`, `{shown_one.id[:12]}`, {plural(shown_one.tokens, 'token')}:", ""]
            for role, text in (("user", shown_one.user), ("assistant", shown_one.assistant)):
                lines += block([f"{role}:", *_shortened(text)], "text")
    return lines


def _shortened(text: str) -> list[str]:
    lines = [shown(line, _WIDTH) for line in text.split("\n")]
    left_out = len(lines) - _HEAD - _TAIL
    return [*lines[:_HEAD], f"… {plural(left_out, 'line')} …", *lines[-_TAIL:]] if left_out > 1 else lines
