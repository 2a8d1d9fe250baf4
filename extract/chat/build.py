"""Build the conversations for all specs of a folder: draft, filter out copied code, and count skipped ones."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from extract.chat.draft import (
    ChatBlock,
    CodeRights,
    describe,
    make_draft,
    repeats,
    shapes,
    skip_not_run,
    specify,
    text_to_check,
    write,
)
from extract.chat.verbalization import (
    LAYERS,
    and_list,
    bag,
    layer_sentence,
    mode_sentences,
    name_words,
    parameter_words,
    scaling_phrase,
    shape_sentence,
    shape_words,
)
from extract.specs.make import LIMIT
from extract.specs.splits import design_key
from lemur_core.files.markdown import plural
from lemur_core.files.progress import progress
from manifests.conversations.conversation import Chat, Comparison, Draft, Sampler, Skipped, finish
from manifests.conversations.verify import chat_card
from manifests.options import MAX_TOKENS
from manifests.records import SPEC_CHAT_KINDS, Spec, SpecChatKind

#: Drafts are compared by question and answer.
COMPARISON = Comparison(lambda draft: f"{draft.user}\n{draft.assistant}", "rows", "as that of {label} in {split}")

_MEANINGS = {
    "describe": "the facts of a module, and the operations of its graph, to sentences",
    "specify": "a requirement to what it states, as JSON",
    "choose": "a requirement and four modules to the one that fits",
    "shapes": "arguments, operations and an input shape to the output shape",
    "write": "a requirement to the module's code",
}

_LETTERS = "ABCD"
_MOST = 3  # demands in one question
_TRIED = 400  # blocks considered for the other three options

_QUESTIONS = (
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
    """Options for conversations. `seed` selects their wording; `include_code` adds the kind `write`."""

    seed: int = 42
    max_tokens: int = MAX_TOKENS
    include_code: bool = False

    @property
    def kinds(self) -> tuple[SpecChatKind, ...]:
        """The kinds of conversations to build from each spec."""
        return tuple(kind for kind in SPEC_CHAT_KINDS if kind != "write" or self.include_code)


def build_chat(blocks: Sequence[ChatBlock], options: ChatOptions, rights: CodeRights) -> Chat:
    """Return a conversation, or the reason for skipping it, for each block and kind, in order.

    Args:
        blocks: one for each spec, in the order of the folder.
        rights: rights to their code; only needed with `include_code`.
    """
    first: dict[str, ChatBlock] = {}
    for block in blocks:
        first.setdefault(design_key(block.spec), block)
    drafters: dict[SpecChatKind, Callable[[ChatBlock, Sampler], Draft | Skipped]] = {
        "describe": describe,
        "specify": specify,
        "choose": partial(choose, distractors=Distractors(list(first.values()))),
        "shapes": shapes,
        "write": partial(write, rights=rights),
    }
    drafts: _Drafts = []
    for block in blocks:
        representative = first[design_key(block.spec)]
        for kind in options.kinds:
            # Equal designs would give equal answers; their code differs.
            if representative is not block and kind != "write":
                drafts.append((block, kind, Skipped("same_spec", f"as {representative.spec.block}")))
            else:
                drafts.append((block, kind, drafters[kind](block, Sampler(options.seed, block.spec.block, kind))))
    guarded = _drop_copies(drafts, {block.spec.block: block.code for block in blocks})
    return finish(
        [(block.subject, kind, draft) for block, kind, draft in guarded], options.kinds, COMPARISON, options.max_tokens
    )


def extraction_chat_card(chat: Chat) -> list[str]:
    """Return the section of an extraction's card that describes its conversations."""
    promise = (
        "Every number in an answer is one of the specs it speaks of: observed as the module was constructed and run, or"
        " the default of an argument. No answer has eight consecutive tokens in common with the code of a module that"
        " it speaks of"
    )
    if "write" in chat.kinds:
        promise += (
            ", but for `write`, whose answers are code of modules of which every part is under a permissive license;"
            " `source`, `path`, lines, `swhid`, `license` and `notice` say whose"
        )
    return chat_card(chat, ("block", "blocks"), _MEANINGS, f"{promise}.", "rows whose question and answer")


def _drop_copies(drafts: _Drafts, codes: dict[str, str]) -> _Drafts:
    """Skip the drafts that repeat code of a block that they are about. Each file is tokenized once.

    Args: codes: block -> code.
    """
    about: dict[str, list[tuple[int, str]]] = defaultdict(list)  # block -> index and text of each draft
    for index, (block, kind, draft) in enumerate(drafts):
        if isinstance(draft, Draft):
            text = text_to_check(kind, draft.user, draft.assistant)
            for name in (block.spec.block, *draft.columns["others"]):
                about[name].append((index, text))
    checked = list(drafts)
    with progress("chat", len(about), "blocks") as advance:
        for name, texts in about.items():
            wrong = repeats([text for _, text in texts], codes[name])
            for index in [index for (index, _), repeated in zip(texts, wrong, strict=True) if repeated]:
                block, kind, draft = checked[index]
                if isinstance(draft, Draft):
                    skipped = Skipped("repeats_source", f"{LIMIT} tokens in a row of the file of {name}")
                    checked[index] = (block, kind, skipped)
            advance(1)
    return checked


# --- `choose`: given a requirement and four short descriptions, name the one that fits, and say why the others do not -


class Distractors:
    """Pool of wrong options for a block: the blocks of its split that ran."""

    def __init__(self, blocks: Sequence[ChatBlock]) -> None:
        """Index the blocks in pseudo-random order, so that neighbors do not come from the same file."""
        self._pools: dict[tuple[str, ...], list[ChatBlock]] = defaultdict(list)
        for block in sorted(blocks, key=lambda item: hashlib.sha256(item.spec.block.encode()).digest()):
            if block.spec.cases:
                self._pools[block.place.split, block.spec.category].append(block)
                self._pools[block.place.split,].append(block)

    def candidates(self, block: ChatBlock, sampler: Sampler) -> list[ChatBlock]:
        """Return blocks of other groups in random order, those of the same category first."""
        split = block.place.split
        blocks: dict[str, ChatBlock] = {}
        for name, pool in (("near", self._pools[split, block.spec.category]), ("far", self._pools[split,])):
            # A cyclic start instead of a shuffle: pools have thousands of blocks, and each question draws from them.
            start = sampler.number(name) % max(1, len(pool))
            for item in [*pool[start:], *pool[:start]][:_TRIED]:
                blocks.setdefault(item.spec.block, item)
        return [item for item in blocks.values() if item.place.cluster != block.place.cluster]


@dataclass(frozen=True, slots=True)
class Demand:
    """A demand: `is_met` returns None if the facts do not decide; `because` explains why a block meets or breaks it."""

    text: str
    is_met: Callable[[Spec], bool | None]
    because: Callable[[Spec], str]


def list_demands(spec: Spec) -> Iterator[Demand]:
    """Yield the demands that a block meets, the most specific first."""
    if spec.keeps_shape:
        yield Demand("keeps the shape of its first input", _keeps, _keeps_because)
    elif (demand := _scaling(spec)) is not None:
        yield demand
    if spec.parameters is not None:
        yield _size(spec.parameters)
    if (name := next((name for name, _ in bag(spec.layers or {}) if name not in _CONTAINERS), None)) is not None:
        yield _layer(name)
    if spec.train_differs is not None:
        outputs = {True: "different outputs", False: "the same output", None: ""}
        yield Demand(
            f"gives {outputs[spec.train_differs]} in train and eval mode",
            lambda other: None if other.train_differs is None else other.train_differs == spec.train_differs,
            lambda other: f"train and eval mode give {outputs[other.train_differs]}",
        )
    if spec.layout is not None:
        yield Demand(
            f"takes {spec.layout} inputs",
            lambda other: None if other.layout is None else other.layout == spec.layout,
            lambda other: f"it takes {other.layout} inputs",
        )


def _keeps(spec: Spec) -> bool | None:
    """Return None for several outputs: the first may have the shape of the input."""
    return spec.keeps_shape if all(len(case.outputs) == 1 for case in spec.cases) else None


def _keeps_because(spec: Spec) -> str:
    """Return the phrase that shows whether a block keeps the shape."""
    shown = _first_phrase(spec) if spec.keeps_shape else _first_phrase(spec, "takes", "keeps")
    return shown or "it gives another shape"


def _first_phrase(spec: Spec, *left_out: str) -> str | None:
    """Return the first phrase about its shape that does not begin with one of these prefixes."""
    return next((f"it {words}" for words in shape_words(spec) if not words.startswith(left_out)), None)


def _scaling(spec: Spec) -> Demand | None:
    factor, layout, phrase = spec.downsampling, spec.layout, scaling_phrase(spec)
    if phrase is None or factor == 1 or len(spec.cases[0].outputs) != 1:
        return None

    def is_met(other: Spec) -> bool | None:
        if other.keeps_shape:
            return False
        return other.downsampling == factor if other.layout == layout and other.downsampling is not None else None

    return Demand(phrase, is_met, lambda other: _first_phrase(other, "takes") or "")


def _size(parameters: int) -> Demand:
    # Rounded up to the next of 0, 1, 2, 5, 10, 20, 50, …
    power = int(10 ** (len(str(parameters)) - 1)) if parameters else 0
    limit = next(scale * power for scale in _SCALES if scale * power >= parameters)
    millions = f"{limit // 10**6} million parameters"
    return Demand(
        f"has at most {millions if limit >= 10**6 else plural(limit, 'parameter')}" if limit else "has no parameters",
        lambda other: None if other.parameters is None else other.parameters <= limit,
        lambda other: f"it {parameter_words(other, arguments=False)}",
    )


def _layer(name: str) -> Demand:
    """Demand a kind of layer; a block provably lacks it only if all of its kinds are stated."""

    def is_met(other: Spec) -> bool | None:
        if other.layers is None:
            return None
        if name in dict(bag(other.layers)):
            return True
        return False if len(other.layers) <= LAYERS else None

    def because(other: Spec) -> str:
        number = (other.layers or {}).get(name, 0)
        return f"it contains {number:,} `{name}`" if number else f"it contains no `{name}`"

    return Demand(f"contains `{name}`", is_met, because)


def choose(block: ChatBlock, sampler: Sampler, distractors: Distractors) -> Draft | Skipped:
    """Draft four descriptions and demands that only one of them meets; the answer cites the deciding facts."""
    spec = block.spec
    if not spec.cases:
        return skip_not_run(spec)
    demands = sampler.sample(list(list_demands(spec)), _MOST, "demands")
    others = _pick_others(block, demands, distractors.candidates(block, sampler)) if demands else []
    if len(others) < len(_LETTERS) - 1:
        return Skipped("no_others", "no three blocks of its split break a demand that it meets")
    four = sampler.shuffle([block, *others], "order")
    phrase = and_list([demand.text for demand in demands])
    user = [sampler.choice(_QUESTIONS, "question").format(demands=phrase), ""]
    user += [f"{letter}. {_description(item.spec)}" for letter, item in zip(_LETTERS, four, strict=True)]
    letter = _LETTERS[four.index(block)]
    reasons = and_list(list(dict.fromkeys(demand.because(spec) for demand in demands)))
    answer = [f"{letter}, `{spec.name}`: {reasons}.", ""]
    for letter, item in zip(_LETTERS, four, strict=True):
        if item is not block:
            answer.append(f"{letter} does not fit: {_objections(item.spec, demands)}.")
    return make_draft(sampler, "\n".join(user), "\n".join(answer), others)


def _description(spec: Spec) -> str:
    """Describe a block in a few short sentences."""
    parameters = [f"It {words}."] if (words := parameter_words(spec)) else []
    further = [*shape_sentence(spec), *parameters, *layer_sentence(spec), *mode_sentences(spec)]
    return " ".join([f"{name_words(spec)}.", *further])


def _pick_others(block: ChatBlock, demands: Sequence[Demand], candidates: Sequence[ChatBlock]) -> list[ChatBlock]:
    """Return three blocks of different names and groups that each break a demand; prefer those that also meet one."""
    taken = {block.spec.name}
    groups: set[str] = set()
    others: list[ChatBlock] = []
    # An option that meets part of the demands is harder to rule out.
    for close in (True, False):
        for item in candidates:
            results = [demand.is_met(item.spec) for demand in demands]
            if (True in results or not close) and item.spec.name not in taken:
                if item.place.cluster in groups or not _objections(item.spec, demands):
                    continue
                taken.add(item.spec.name)
                groups.add(item.place.cluster)
                others.append(item)
                if len(others) == len(_LETTERS) - 1:
                    return others
    return others


def _objections(spec: Spec, demands: Sequence[Demand]) -> str:
    """Return the reasons why a block does not fit."""
    reasons = [words for demand in demands if demand.is_met(spec) is False and (words := demand.because(spec))]
    return and_list(list(dict.fromkeys(reasons)))
