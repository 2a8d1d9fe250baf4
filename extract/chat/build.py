"""Conversations for all specs of a folder: drafted, guarded, and counted where there are none."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from extract.chat.choose import Distractors, choose
from extract.chat.draft import ChatBlock, Rights, describe, guarded_text, repeats, shapes, specify, write
from extract.specs.make import LIMIT
from extract.specs.splits import design_key
from lemur_core.files.progress import progress
from manifests.conversations.card import chat_card
from manifests.conversations.conversation import MAX_TOKENS, Chat, Comparison, Draft, Skipped, finish
from manifests.conversations.sampling import Sampler
from manifests.records import SPEC_CHAT_KINDS, SpecChatKind

#: Question and answer are compared.
COMPARISON = Comparison(lambda draft: f"{draft.user}\n{draft.assistant}", "rows", "as that of {label} in {split}")

_MEANINGS = {
    "describe": "the facts of a module to its name and sentences",
    "specify": "a requirement to a structured spec, as JSON",
    "choose": "a requirement and four modules to the one that fits",
    "shapes": "arguments and an input shape to the output shape and the parameters",
    "write": "a requirement to the module's code",
}

_Drafts = list[tuple[ChatBlock, SpecChatKind, Draft | Skipped]]


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How conversations are made. `seed` draws their wording; `include_code` adds the kind `write`."""

    seed: int = 42
    max_tokens: int = MAX_TOKENS
    include_code: bool = False

    @property
    def kinds(self) -> tuple[SpecChatKind, ...]:
        """The kinds that are made of each spec."""
        return tuple(kind for kind in SPEC_CHAT_KINDS if kind != "write" or self.include_code)


def build_chat(blocks: Sequence[ChatBlock], options: ChatOptions, rights: Rights) -> Chat:
    """One conversation or one reason for each block and kind, in their order.

    Args:
        blocks: one for each spec, in the order of the folder.
        rights: to their code; only needed with code.
    """
    first: dict[str, ChatBlock] = {}
    for block in blocks:
        first.setdefault(design_key(block.spec), block)
    distractors = Distractors(list(first.values()))
    drafts: _Drafts = []
    for block in blocks:
        stands = first[design_key(block.spec)]
        for kind in options.kinds:
            if stands is not block and kind != "write":
                drafts.append((block, kind, Skipped("same_spec", f"as {stands.spec.block}")))
            else:
                drafts.append((block, kind, _draft(block, kind, options.seed, distractors, rights)))
    guarded = _guarded(drafts, {block.spec.block: block.code for block in blocks})
    return finish(
        [(block.subject, kind, draft) for block, kind, draft in guarded], options.kinds, COMPARISON, options.max_tokens
    )


def extraction_chat_card(chat: Chat) -> list[str]:
    """The part of the card of an extraction that describes its conversations."""
    promise = (
        "Every number in an answer is one of the specs it speaks of: observed as the module was constructed and run, or"
        " the default of an argument. No answer has eight consecutive tokens in common with the code of a module that"
        " it speaks of"
    )
    if "write" in chat.kinds:
        promise += (
            ", but for `write`, whose answers are code of modules of which every part is under a permissive licence;"
            " `source`, `path`, lines, `swhid`, `license` and `notice` say whose"
        )
    return chat_card(chat, ("block", "blocks"), _MEANINGS, f"{promise}.", "rows whose question and answer")


def _draft(
    block: ChatBlock, kind: SpecChatKind, seed: int, distractors: Distractors, rights: Rights
) -> Draft | Skipped:
    sampler = Sampler(seed, block.spec.block, kind)
    if kind == "choose":
        return choose(block, sampler, distractors)
    if kind == "write":
        return write(block, sampler, rights)
    return {"describe": describe, "specify": specify, "shapes": shapes}[kind](block, sampler)


def _guarded(drafts: _Drafts, codes: dict[str, str]) -> _Drafts:
    """The drafts without those that repeat the code of a block that they speak of. Each file is tokenised once.

    Args: codes: by block.
    """
    about: dict[str, list[tuple[int, str]]] = defaultdict(list)  # block -> place and text of each draft
    for place, (block, kind, draft) in enumerate(drafts):
        if isinstance(draft, Draft):
            text = guarded_text(kind, draft.user, draft.assistant)
            for named in (block.spec.block, *draft.columns["others"]):
                about[named].append((place, text))
    found = list(drafts)
    with progress("chat", len(about), "blocks") as advance:
        for named, texts in about.items():
            wrong = repeats([text for _, text in texts], codes[named])
            for place in [place for (place, _), repeated in zip(texts, wrong, strict=True) if repeated]:
                block, kind, draft = found[place]
                if isinstance(draft, Draft):
                    skipped = Skipped("repeats_source", f"{LIMIT} tokens in a row of the file of {named}")
                    found[place] = (block, kind, skipped)
            advance(1)
    return found
