"""The part of a snapshot's card that tells of conversations."""

from curate.chat.result import Chat, Conversation
from lemur_core.files.markdown import count, percent, plural, table
from lemur_core.similarity.text import SHINGLE
from manifests.conversations.alike import THRESHOLD
from manifests.conversations.samples import quantile, shown_turns
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
        " message, to a prompt of the same kind about another record; across: to one in another split, of which only"
        " that in the earlier split is kept. All pairs were compared.",
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
                *(count(quantile(tokens, share)) if tokens else "–" for share in (50, 90)),
                percent(near["near"], near["prompts"]),
                percent(near["across_splits"], near["prompts"]),
            ]
        )
    return table(["task", "from what to what", "rows", "median tokens", "90 %", "near", "across"], rows, 2)


def _lengths(tokens: list[int]) -> str:
    if not tokens:
        return "none"
    return f"median {count(quantile(tokens, 50))}, 90 % {count(quantile(tokens, 90))}, longest {count(max(tokens))}"


def _examples(made: list[Conversation]) -> list[str]:
    lines = ["### One of each", ""]
    for kind in CHAT_KINDS:
        of_kind = [item for item in made if item.kind == kind]
        if of_kind:
            shown_one = min(of_kind, key=lambda item: item.id)
            lines += [f"`{kind}`, `{shown_one.id[:12]}`, {plural(shown_one.tokens, 'token')}:", ""]
            turns = (("user", shown_one.user), ("assistant", shown_one.assistant))
            lines += shown_turns(turns, _HEAD, _TAIL, _WIDTH)
    return lines
