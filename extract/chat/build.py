"""Conversations for all specs of a folder: drafted, guarded, and counted where there are none."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from extract.chat.draft import (
    ChatBlock,
    Rights,
    describe,
    drafted,
    guarded_text,
    not_run,
    repeats,
    shapes,
    specify,
    write,
)
from extract.chat.verbalization import (
    LAYERS,
    and_list,
    bag,
    layer_words,
    mode_words,
    name_words,
    parameter_words,
    scaling_of,
    shape_words,
)
from extract.specs.make import LIMIT
from extract.specs.splits import design_key
from lemur_core.files.progress import progress
from manifests.conversations.card import chat_card
from manifests.conversations.conversation import MAX_TOKENS, Chat, Comparison, Draft, Skipped, finish
from manifests.conversations.sampling import Sampler
from manifests.records import SPEC_CHAT_KINDS, Spec, SpecChatKind

#: Question and answer are compared.
COMPARISON = Comparison(lambda draft: f"{draft.user}\n{draft.assistant}", "rows", "as that of {label} in {split}")

_MEANINGS = {
    "describe": "the facts of a module to its name and sentences",
    "specify": "a requirement to a structured spec, as JSON",
    "choose": "a requirement and four modules to the one that fits",
    "shapes": "arguments and an input shape to the output shape and the parameters",
    "write": "a requirement to the module's code",
}

_LETTERS = "ABCD"
_MOST = 3  # demands
_TRIED = 400  # blocks that are looked at for the other three

_ASKED = (
    "Which of these modules {demands}?",
    "I need a module that {demands}. Which of the four fits, and why?",
    "Choose the one module that {demands}, and say what rules out the others.",
    "One of the following {demands}. Which one? Give reasons.",
)


_SCALES = (1, 2, 5, 10)
_CONTAINERS = frozenset({"Sequential", "ModuleList", "ModuleDict", "Identity", "ParameterList", "ParameterDict"})

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
    block: ChatBlock, kind: SpecChatKind, seed: int, distractors: "Distractors", rights: Rights
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


# --- `choose`: from a requirement and four short descriptions to the one that fits, and why the others do not ---------


class Distractors:
    """The blocks that may stand beside another: those of its split that ran."""

    def __init__(self, blocks: Sequence[ChatBlock]) -> None:
        """Of these blocks, mixed, so that neighbours do not come from one file."""
        self._by_category: dict[tuple[str, str], list[ChatBlock]] = {}
        self._by_split: dict[str, list[ChatBlock]] = {}
        for block in sorted(blocks, key=lambda item: hashlib.sha256(item.spec.block.encode()).digest()):
            if block.spec.cases:
                split = block.place.split
                self._by_category.setdefault((split, block.spec.category), []).append(block)
                self._by_split.setdefault(split, []).append(block)

    def beside(self, block: ChatBlock, sampler: Sampler) -> list[ChatBlock]:
        """Blocks of other groups in a random order, those of the same category first."""
        split = block.place.split
        near = _from(self._by_category.get((split, block.spec.category), []), sampler.number("near"))
        far = _from(self._by_split.get(split, []), sampler.number("far"))
        found = {item.spec.block: item for item in (*near, *far)}
        return [item for item in found.values() if item.place.cluster != block.place.cluster]


def _from(items: list[ChatBlock], number: int) -> list[ChatBlock]:
    """At most `_TRIED` of the items, in their order, from a random one on."""
    start = number % len(items) if items else 0
    return [*items[start:], *items[:start]][:_TRIED]


@dataclass(frozen=True, slots=True)
class Demand:
    """One demand. `met` is None where the facts do not tell; `because` says why a block meets or breaks it."""

    text: str
    met: Callable[[Spec], bool | None]
    because: Callable[[Spec], str]


def demands_of(spec: Spec) -> Iterator[Demand]:
    """The demands that a block meets, the most telling first."""
    for made in (_shape(spec), _size(spec), _layer(spec), _mode(spec), _layout(spec)):
        if made is not None and made.met(spec):
            yield made


def _shape(spec: Spec) -> Demand | None:
    if spec.keeps_shape:
        return Demand("keeps the shape of its input", lambda other: other.keeps_shape, _keeps_because)
    factor, layout, phrase = spec.downsampling, spec.layout, scaling_of(spec)
    if phrase is None or factor == 1 or len(spec.cases[0].outputs) != 1:
        return None

    def met(other: Spec) -> bool | None:
        if other.keeps_shape:
            return False
        return other.downsampling == factor if other.layout == layout and other.downsampling is not None else None

    return Demand(phrase, met, lambda other: _first_phrase(other, "takes") or "")


def _keeps_because(spec: Spec) -> str:
    """That it keeps the shape, or what about it shows that it does not."""
    shown = _first_phrase(spec) if spec.keeps_shape else _first_phrase(spec, "takes", "keeps")
    return shown or "it gives another shape"


def _first_phrase(spec: Spec, *left_out: str) -> str | None:
    """What becomes of its shape, but for phrases that begin so."""
    return next((f"it {words}" for words in shape_words(spec) if not words.startswith(left_out)), None)


def _size(spec: Spec) -> Demand | None:
    if spec.parameters is None:
        return None
    limit = _round_up(spec.parameters)
    text = f"has at most {limit:,} parameters" if limit else "has no parameters"
    return Demand(
        text,
        lambda other: None if other.parameters is None else other.parameters <= limit,
        lambda other: f"it {parameter_words(other, arguments=False)}",
    )


def _round_up(number: int) -> int:
    """The next of 0, 1, 2, 5, 10, 20, 50, …"""
    power = int(10 ** (len(str(number)) - 1)) if number else 0
    return next(scale * power for scale in _SCALES if scale * power >= number)


def _layer(spec: Spec) -> Demand | None:
    """A kind of layer that it contains; only where all kinds are stated can a block be known to lack it."""
    name = next((name for name, _ in bag(spec.layers or {}) if name not in _CONTAINERS), None)
    if name is None:
        return None

    def met(other: Spec) -> bool | None:
        if other.layers is None:
            return None
        if name in dict(bag(other.layers)):
            return True
        return False if len(other.layers) <= LAYERS else None

    def because(other: Spec) -> str:
        number = (other.layers or {}).get(name, 0)
        return f"it contains {number:,} `{name}`" if number else f"it contains no `{name}`"

    return Demand(f"contains `{name}`", met, because)


def _mode(spec: Spec) -> Demand | None:
    if spec.train_differs is None:
        return None
    outputs = {True: "different outputs", False: "the same output", None: ""}
    return Demand(
        f"gives {outputs[spec.train_differs]} in train and eval mode",
        lambda other: None if other.train_differs is None else other.train_differs == spec.train_differs,
        lambda other: f"train and eval mode give {outputs[other.train_differs]}",
    )


def _layout(spec: Spec) -> Demand | None:
    if spec.layout is None:
        return None
    return Demand(
        f"takes {spec.layout} inputs",
        lambda other: None if other.layout is None else other.layout == spec.layout,
        lambda other: f"it takes {other.layout} inputs",
    )


def choose(block: ChatBlock, sampler: Sampler, distractors: Distractors) -> Draft | Skipped:
    """Four descriptions and demands that only one of them meets, answered with the measured facts that decide."""
    spec = block.spec
    if not spec.cases:
        return not_run(spec)
    demands = sampler.sample(list(demands_of(spec)), _MOST, "demands")
    others = _others(block, demands, distractors.beside(block, sampler)) if demands else []
    if len(others) < len(_LETTERS) - 1:
        return Skipped("no_others", "no three blocks of its split break a demand that it meets")
    four = sampler.shuffled([block, *others], "order")
    phrase = and_list([demand.text for demand in demands])
    user = [sampler.choice(_ASKED, "question").format(demands=phrase), ""]
    user += [f"{letter}. {_description(item.spec)}" for letter, item in zip(_LETTERS, four, strict=True)]
    letter = _LETTERS[four.index(block)]
    reasons = and_list(list(dict.fromkeys(demand.because(spec) for demand in demands)))
    answer = [f"{letter}, `{spec.name}`: {reasons}.", ""]
    for letter, item in zip(_LETTERS, four, strict=True):
        if item is not block:
            answer.append(f"{letter} does not fit: {_against(item.spec, demands)}.")
    return drafted(sampler, "\n".join(user), "\n".join(answer), others)


def _description(spec: Spec) -> str:
    """A block in a few short sentences."""
    sentences = [f"{name_words(spec)}."]
    if phrases := shape_words(spec):
        sentences.append(f"It {and_list(phrases)}.")
    if words := parameter_words(spec):
        sentences.append(f"It {words}.")
    if words := layer_words(spec):
        sentences.append(words)
    return " ".join([*sentences, *mode_words(spec)])


def _others(block: ChatBlock, demands: Sequence[Demand], beside: Sequence[ChatBlock]) -> list[ChatBlock]:
    """Three blocks of different names and groups, each of which breaks a demand; first those that also meet one."""
    taken = {block.spec.name}
    groups: set[str] = set()
    found: list[ChatBlock] = []
    for close in (True, False):
        for item in beside:
            met = [demand.met(item.spec) for demand in demands]
            if (True in met or not close) and item.spec.name not in taken:
                if item.place.cluster in groups or not _against(item.spec, demands):
                    continue
                taken.add(item.spec.name)
                groups.add(item.place.cluster)
                found.append(item)
                if len(found) == len(_LETTERS) - 1:
                    return found
    return found


def _against(spec: Spec, demands: Sequence[Demand]) -> str:
    """What is wrong with a block."""
    reasons = [words for demand in demands if demand.met(spec) is False and (words := demand.because(spec))]
    return and_list(list(dict.fromkeys(reasons)))
