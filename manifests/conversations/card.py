"""The section of a dataset card about conversations: sizes, lengths, near-duplicates, licenses, examples."""

from collections import Counter
from collections.abc import Mapping, Sequence

from lemur_core.files.markdown import block, code_span, count, make_visible, percent, plural, table
from lemur_core.similarity.tokens import SHINGLE
from manifests.conversations.conversation import DROPS, THRESHOLD, Chat

_QUANTILES = {"10 %": 10, "median": 50, "90 %": 90, "longest": 100}
_EXAMPLES = 5
_HEAD, _TAIL = 8, 4  # lines of a message in an example
_WIDTH = 240


def chat_card(
    chat: Chat, subjects: tuple[str, str], meanings: Mapping[str, str], promise: str, compared: str
) -> list[str]:
    """Return the section of a dataset card about conversations.

    Args:
        chat: the conversations of the folder, and those that were skipped.
        subjects: the noun for the subject of a conversation, singular and plural: `block`, `blocks`.
        meanings: the description of each kind.
        promise: sentences that are true of all conversations.
        compared: whose near-duplicates were counted: `rows whose question …`.

    Returns: lines of Markdown: sizes, lengths, near-duplicates, licenses, skipped conversations, five short examples.
    """
    one, many = subjects
    counts = chat.counts(many)
    splits = ", ".join(f"{count(number)} {split}" for split, number in counts["splits"].items())
    return [
        "## Conversations",
        "",
        f"{plural(counts['rows'], 'conversation')} about {plural(counts[many], one)}, each in the split of its"
        f" {one}: {splits}. `messages` is a list of `role` and `content` (system, user, assistant), as fine-tuning"
        f" libraries read it. {promise}",
        "",
        *_kinds(chat, meanings),
        "Lengths are in tokens: words, numbers and single signs; white space is not counted. Near: "
        f"{compared} have a Jaccard of {THRESHOLD:.2f} or more, over sets of {SHINGLE}-token shingles, to another row"
        " of the kind; across: to one in another split, of which only that in the earlier split is kept. All pairs"
        " were compared.",
        "",
        *_licences(chat),
        f"`{DROPS}` says of every {one} and kind without a conversation why there is none:"
        f" {plural(len(chat.drops), 'row')}.",
        "",
        *_reasons(chat),
        *_examples(chat),
    ]


def quantile(values: Sequence[int], percents: int) -> int:
    """Return the smallest value that is at least as large as this percentage of all values."""
    return sorted(values)[max(0, -(-percents * len(values) // 100) - 1)]


def _kinds(chat: Chat, meanings: Mapping[str, str]) -> list[str]:
    rows = []
    for kind in chat.kinds:
        tokens = [item.tokens for item in chat.conversations if item.kind == kind]
        near = chat.near[kind]
        rows.append(
            [
                f"`{kind}`",
                meanings[kind],
                count(len(tokens)),
                *(count(quantile(tokens, share)) if tokens else "–" for share in _QUANTILES.values()),
                percent(near["near"], len(tokens)),
                percent(near["across_splits"], len(tokens)),
            ]
        )
    return table(["task", "from what to what", "rows", *_QUANTILES, "near", "across"], rows, 2)


def _licences(chat: Chat) -> list[str]:
    """Count conversations by license of their subject; those whose answer is code are also listed separately."""
    counts = Counter[str](item.subject.columns["license"] for item in chat.conversations)
    noticed = [item for item in chat.conversations if item.draft.columns.get("notice") is not None]
    with_code = Counter[str](item.subject.columns["license"] for item in noticed)
    further = ["with code"] if noticed else []
    rows = [
        [code_span(name, 160), count(number), *(count(with_code[name]) for _ in further)]
        for name, number in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    return table(["license", "conversations", *further], rows)


def _reasons(chat: Chat) -> list[str]:
    counts = Counter((drop.kind, drop.skipped.reason) for drop in chat.drops)
    reasons = sorted({reason for _, reason in counts})
    rows = [[f"`{reason}`", *(count(counts[kind, reason]) for kind in chat.kinds)] for reason in reasons]
    return table(["not made", *(f"`{kind}`" for kind in chat.kinds)], rows) if rows else []


def _examples(chat: Chat) -> list[str]:
    """Return five conversations, chosen by their ids: one of each kind before the second of any."""
    by_kind = [sorted((c for c in chat.conversations if c.kind == kind), key=lambda c: c.id) for kind in chat.kinds]
    ordered = [items[index] for index in range(_EXAMPLES) for items in by_kind if index < len(items)]
    lines = ["### Examples", ""] if ordered else []
    for item in ordered[:_EXAMPLES]:
        lines += [f"`{item.kind}`, `{item.id[:12]}`, {plural(item.tokens, 'token')}:", ""]
        for role, text in (("user", item.draft.user), ("assistant", item.draft.assistant)):
            lines += block([f"{role}:", *_shorten(text)], "text")
    return lines


def _shorten(text: str) -> list[str]:
    """Return the first and last lines of a text, each truncated to a fixed width."""
    lines = [make_visible(line, _WIDTH) for line in text.split("\n")]
    left_out = len(lines) - _HEAD - _TAIL
    return [*lines[:_HEAD], f"… {plural(left_out, 'line')} …", *lines[-_TAIL:]] if left_out > 1 else lines
