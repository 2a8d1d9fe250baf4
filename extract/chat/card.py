"""The part of an extraction's card that tells of conversations."""

from collections import Counter
from collections.abc import Mapping

from extract.chat.result import Chat
from lemur_core.files.markdown import code_span, count, percent, plural, table
from lemur_core.similarity.text import SHINGLE
from manifests.conversations.alike import THRESHOLD
from manifests.conversations.samples import quantile, shown_turns
from manifests.records import SPLITS

_MEANING = {
    "describe": "the facts of a module to its name and sentences",
    "specify": "a requirement to a structured spec, as JSON",
    "choose": "a requirement and four modules to the one that fits",
    "shapes": "arguments and an input shape to the output shape and the parameters",
    "write": "a requirement to the module's code",
}
_EXAMPLES = 5
_HEAD, _TAIL = 8, 4  # lines of a message in an example
_WIDTH = 240


def chat_card(chat: Chat, near: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Sizes, lengths, near-duplicates, licences, and five short examples."""
    counts = chat.counts()
    splits = ", ".join(f"{count(counts['splits'][split])} {split}" for split in SPLITS)
    return [
        "## Conversations",
        "",
        f"{plural(counts['rows'], 'conversation')} about {plural(counts['blocks'], 'block')}, each in the split of its"
        f" spec: {splits}. `messages` is a list of `role` and `content` (system, user, assistant), as fine-tuning"
        f" libraries read it. {_promise(chat)}",
        "",
        *_kinds(chat, near),
        "Lengths are in tokens: words, numbers and single signs; white space is not counted. Near: rows whose question"
        f" and answer have a Jaccard of {THRESHOLD:.2f} or more, over sets of {SHINGLE}-token shingles, to another row"
        " of the kind; across: to one in another split. All pairs were compared.",
        "",
        *_licences(chat),
        "`chat_drops.parquet` says of every block with a spec, and every kind, why there is no conversation:"
        f" {plural(len(chat.drops), 'row')}.",
        "",
        *_reasons(chat),
        *_examples(chat),
    ]


def _promise(chat: Chat) -> str:
    neutral = (
        "Every number in an answer is one of the specs it speaks of: observed as the module was constructed and run, or"
        " the default of an argument. No answer has eight consecutive tokens in common with the code of a module that"
        " it speaks of"
    )
    if not chat.options.include_code:
        return f"{neutral}."
    return (
        f"{neutral}, but for `write`, whose answers are code of modules of which every part is under a permissive"
        " licence; `source`, `path`, lines, `swhid`, `license` and `notice` say whose."
    )


def _kinds(chat: Chat, near: Mapping[str, Mapping[str, int]]) -> list[str]:
    rows = []
    for kind in chat.options.kinds:
        tokens = [pair.tokens for pair in chat.pairs if pair.kind == kind]
        of_kind = near[kind]
        rows.append(
            [
                f"`{kind}`",
                _MEANING[kind],
                count(len(tokens)),
                *(count(quantile(tokens, share)) if tokens else "–" for share in (10, 50, 90, 100)),
                percent(of_kind["near"], of_kind["rows"]),
                percent(of_kind["across_splits"], of_kind["rows"]),
            ]
        )
    head = ["task", "from what to what", "rows", "10 %", "median", "90 %", "longest", "near", "across"]
    return table(head, rows, 2)


def _licences(chat: Chat) -> list[str]:
    counts = Counter(pair.subject.spec.license for pair in chat.pairs)
    with_code = Counter(pair.subject.spec.license for pair in chat.pairs if pair.kind == "write")
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    further = ["with code"] if chat.options.include_code else []
    rows = [
        [code_span(name, 160), count(number), *(count(with_code[name]) for _ in further)] for name, number in ordered
    ]
    return table(["licence of the block", "conversations", *further], rows)


def _reasons(chat: Chat) -> list[str]:
    counts = Counter((drop.kind, drop.reason) for drop in chat.drops)
    reasons = sorted({reason for _, reason in counts})
    rows = [[f"`{reason}`", *(count(counts[kind, reason]) for kind in chat.options.kinds)] for reason in reasons]
    return table(["not made", *(f"`{kind}`" for kind in chat.options.kinds)], rows) if rows else []


def _examples(chat: Chat) -> list[str]:
    """Five rows, one of each kind before the second of any; chosen by their ids."""
    kinds = chat.options.kinds
    by_kind = {kind: sorted((p for p in chat.pairs if p.kind == kind), key=lambda p: p.id) for kind in kinds}
    ordered = [rows[place] for place in range(_EXAMPLES) for rows in by_kind.values() if place < len(rows)]
    lines = ["### Examples", ""] if ordered else []
    for pair in ordered[:_EXAMPLES]:
        lines += [f"`{pair.kind}`, `{pair.id[:12]}`, {plural(pair.tokens, 'token')}:", ""]
        turns = (("user", pair.talk.user), ("assistant", pair.talk.assistant))
        lines += shown_turns(turns, _HEAD, _TAIL, _WIDTH)
    return lines
