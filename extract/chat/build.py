"""Conversations for all specs of a folder: asked, answered, guarded, and counted where there are none."""

from collections import defaultdict
from collections.abc import Sequence

from extract.chat.choose import Shelf, choose
from extract.chat.describe import describe
from extract.chat.guard import guarded_text, repeats
from extract.chat.result import Chat, ChatOptions, Drop, No, Pair, Subject, Talk
from extract.chat.rights import Rights
from extract.chat.shapes import shapes
from extract.chat.similar import held_by_another
from extract.chat.specify import specify
from extract.chat.wording import SYSTEMS
from extract.chat.write import write
from extract.specs.make import LIMIT
from extract.specs.splits import design_key
from lemur_core.files.progress import progress
from lemur_core.similarity.text import tokens_of
from manifests.conversations.draw import Draw
from manifests.records import SpecChatKind


def build_chat(subjects: Sequence[Subject], options: ChatOptions, rights: Rights) -> Chat:
    """One conversation or one reason for each subject and kind, in their order.

    Args:
        subjects: one for each spec, in the order of the folder.
        rights: of their code; only needed with code.
    """
    first: dict[str, Subject] = {}
    for subject in subjects:
        first.setdefault(design_key(subject.spec), subject)
    shelf = Shelf.of(list(first.values()))
    said: list[tuple[Subject, SpecChatKind, Talk | No]] = []
    for subject in subjects:
        stands = first[design_key(subject.spec)]
        for kind in options.kinds:
            if stands is not subject and kind != "write":
                said.append((subject, kind, No("same_spec", f"as {stands.spec.block}")))
            else:
                said.append((subject, kind, _say(subject, kind, options.seed, shelf, rights)))
    wrong = _repeating([(subject, kind, talk) for subject, kind, talk in said if isinstance(talk, Talk)])
    made = [
        (subject, kind, _finished(subject, kind, talk, options, wrong.get((subject.spec.block, kind))))
        for subject, kind, talk in said
    ]
    elsewhere = held_by_another([pair for *_, pair in made if isinstance(pair, Pair)], options.kinds)
    pairs: list[Pair] = []
    drops: list[Drop] = []
    for subject, kind, outcome in made:
        if isinstance(outcome, Pair) and outcome.id in elsewhere:
            other = elsewhere[outcome.id]
            outcome = No("near_split", f"as that of {other.subject.spec.block} in {other.subject.place.split}")
        if isinstance(outcome, Pair):
            pairs.append(outcome)
        else:
            drops.append(Drop(subject.spec, kind, outcome.reason, outcome.detail))
    return Chat(options, pairs, drops)


def _say(subject: Subject, kind: SpecChatKind, seed: int, shelf: Shelf, rights: Rights) -> Talk | No:
    draw = Draw(seed, subject.spec.block, kind)
    if kind == "choose":
        return choose(subject, draw, shelf)
    if kind == "write":
        return write(subject, draw, rights)
    return {"describe": describe, "specify": specify, "shapes": shapes}[kind](subject, draw)


def _finished(
    subject: Subject, kind: SpecChatKind, talk: Talk | No, options: ChatOptions, repeated: str | None
) -> Pair | No:
    if isinstance(talk, No):
        return talk
    if repeated is not None:
        return No("repeats_source", f"{LIMIT} tokens in a row of the file of {repeated}")
    system = Draw(options.seed, subject.spec.block, kind).pick(SYSTEMS, "system")
    tokens = sum(len(tokens_of(text)) for text in (system, talk.user, talk.assistant))
    if tokens > options.max_tokens:
        return No("too_long", f"{tokens:,} tokens; the limit is {options.max_tokens:,}")
    return Pair(kind, subject, system, talk, tokens)


def _repeating(said: Sequence[tuple[Subject, SpecChatKind, Talk]]) -> dict[tuple[str, str], str]:
    """The conversations that repeat code, by block and kind, and whose code it is. Each file is read once."""
    about: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    codes: dict[str, str] = {}
    for subject, kind, talk in said:
        text = guarded_text(kind, talk.user, talk.assistant)
        for named in (subject, *talk.others):
            codes[named.spec.block] = named.code
            about[named.spec.block].append((subject.spec.block, kind, text))
    found: dict[tuple[str, str], str] = {}
    with progress("chat", len(codes), "blocks") as advance:
        for named_block, code in codes.items():
            texts = about[named_block]
            for (block, of_kind, _), wrong in zip(texts, repeats([text for *_, text in texts], code), strict=True):
                if wrong:
                    found.setdefault((block, of_kind), named_block)
            advance(1)
    return found
