"""What is said of a block is what was observed of it, and never a passage of its code, whatever the code holds."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.chat.build import ChatOptions, build_chat, list_demands
from extract.chat.draft import ChatBlock, CodeRights
from extract.chat.verbalization import argument_words, layer_sentence, output_words, parameter_words, shape_words
from lemur_core.graphs.graph import DRAWS
from manifests.conversations.conversation import Chat, Conversation
from manifests.records import Block, Case, Spec, SpecArgument
from tests.builders.suites import table


def chat_of(blocks: Sequence[ChatBlock], rights: CodeRights | None = None, **options: Any) -> Chat:
    return build_chat(blocks, ChatOptions(**options), rights or CodeRights())


def spoken_of(item: Conversation, blocks: Sequence[ChatBlock]) -> list[ChatBlock]:
    """The block that a conversation is about, and the others that it names."""
    by_name = {block.spec.block: block for block in blocks}
    return [by_name[name] for name in (item.subject.id, *item.draft.columns["others"])]


def text_of(item: Conversation) -> str:
    return f"{item.draft.user}\n{item.draft.assistant}"


def grams(text: str) -> set[tuple[str, ...]]:
    """Every eight tokens in a row, counted by a rule that shares nothing with ours."""
    tokens = re.findall(r"[A-Za-z_0-9]+|[^\sA-Za-z_0-9]", text)
    return {tuple(tokens[place : place + 8]) for place in range(len(tokens) - 7)}


def repeating(chat: Chat, blocks: Sequence[ChatBlock]) -> list[str]:
    """The kinds of conversations that repeat code of a block that they speak of; the header of a file is none."""
    bodies = {b.spec.block: grams("\n".join(li for li in b.code.split("\n") if li[:1] != "#")) for b in blocks}
    return [
        item.kind
        for item in chat.conversations
        for named in spoken_of(item, blocks)
        if grams(text_of(item)) & bodies[named.spec.block]
    ]


@pytest.fixture(scope="module")
def blocks(rows: list[Block], chat_block: Callable[..., ChatBlock]) -> list[ChatBlock]:
    return [chat_block(row) for row in rows]


def test_no_text_repeats_code(blocks: list[ChatBlock]) -> None:
    chat = chat_of(blocks)
    assert {item.kind for item in chat.conversations} == {"describe", "specify", "choose", "shapes"}
    assert repeating(chat, blocks) == []


@settings(max_examples=12)
@given(st.data())
def test_what_repeats_code_is_dropped(rows: list[Block], chat_block: Callable[..., ChatBlock], data: Any) -> None:
    """Any passage of any conversation, put into the code of a block that it speaks of, makes it a drop."""
    plain = [chat_block(row) for row in rows[:6]]
    item = data.draw(st.sampled_from(chat_of(plain).conversations))
    named = data.draw(st.sampled_from(spoken_of(item, plain)))
    tokens = re.findall(r"\w+|[^\w\s]", data.draw(st.sampled_from([item.draft.assistant, item.draft.user])))
    start = data.draw(st.integers(0, len(tokens) - 8))
    passage = " ".join(tokens[start : start + 8])
    spiked = [
        ChatBlock(block.spec, block.place, f"{block.code}\n# {passage}\n" if block is named else block.code)
        for block in plain
    ]
    chat = chat_of(spiked)
    assert item.id not in {other.id for other in chat.conversations}
    drop = next(d for d in chat.drops if (d.subject.id, d.kind) == (item.subject.id, item.kind))
    assert (drop.skipped.reason, passage in drop.skipped.detail) == ("repeats_source", False)
    assert len(chat.conversations) + len(chat.drops) == 4 * len(plain)
    assert repeating(chat, spiked) == []


@settings(max_examples=6)
@given(seed=st.integers(0, 10_000), withheld=st.sets(st.sampled_from(["layers", "parameters", "train_differs"])))
def test_nothing_is_said_of_what_is_null(blocks: list[ChatBlock], seed: int, withheld: set[str]) -> None:
    """Whatever the seed, a fact that was not observed is not stated, and every number said was observed."""
    changed = [
        ChatBlock(Spec.model_validate(block.spec.model_dump() | dict.fromkeys(withheld)), block.place, block.code)
        for block in blocks
    ]
    chat = chat_of(changed, seed=seed)
    assert len(chat.conversations) + len(chat.drops) == 4 * len(blocks)
    for item in chat.conversations:
        text = text_of(item)
        assert not ("layers" in withheld and re.search("submodule|contains", text))
        assert not ("train_differs" in withheld and re.search("[Tt]rain and eval", text))
        assert not ("parameters" in withheld and re.search(r"\d parameters?\b|no parameters", text))
        assert "None" not in text
        assert " ." not in text, "a sentence lacks what it should say"
        specs = [block.spec for block in spoken_of(item, changed)]
        stated = f"{json.dumps([spec.model_dump() for spec in specs])} {item.draft.user}"
        known = set(re.findall(r"\d+", stated.replace(",", "").replace("×", " ")))
        known |= {"0", *(str(len(spec.layers or ()) - 10) for spec in specs)}  # further kinds
        known |= set(re.findall(r"\d+", item.draft.user))
        assert set(re.findall(r"\d+", item.draft.assistant.replace(",", "").replace("×", " "))) <= known


def test_exactly_one_of_the_four_fits(blocks: list[ChatBlock]) -> None:
    """The others each break a demand by what was measured, and the answer says which."""
    chosen = [item for item in chat_of(blocks).conversations if item.kind == "choose"]
    assert len(chosen) > 8
    letters = set()
    for item in chosen:
        own, *others = (block.spec for block in spoken_of(item, blocks))
        lines = item.draft.user.split("\n")
        stated = [demand for demand in list_demands(own) if demand.text in lines[0]]
        assert stated
        assert all(demand.is_met(own) for demand in stated)
        letter, name = re.match(r"(\w), `(\w+)`: ", item.draft.assistant).groups()  # type: ignore[union-attr]
        assert name == own.name
        assert next(line for line in lines if line.startswith(f"{letter}. ")).startswith(f"{letter}. `{name}`")
        assert len(others) == len({other.name for other in others} - {name}) == 3
        for other in others:
            assert any(demand.is_met(other) is False for demand in stated)
        letters.add(letter)
    assert len(letters) > 2, "the one that fits is not always in the same place"


def test_the_order_of_blocks_plays_no_part(blocks: list[ChatBlock]) -> None:
    distinct = [block for block in blocks if block.spec.name != "Squeeze"]  # of copies, the first stays
    one, other = ({item.id: item.draft for item in chat_of(some).conversations} for some in (distinct, distinct[::-1]))
    assert one == other


def test_a_held_out_row_near_one_of_training_goes(
    rows: list[Block], chat_block: Callable[..., ChatBlock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two blocks of different groups, but of nearly the same facts, each asked about in words of its own."""
    monkeypatch.setattr("manifests.conversations.conversation.THRESHOLD", 0.3)
    spec = json.loads(rows[1].observed or "")
    twin = rows[1].model_copy(update={"block": f"{rows[1].block}2", "observed": json.dumps({**spec, "gradients": 3})})
    chat = chat_of([chat_block(rows[1]), chat_block(twin, "test")])
    assert ("train", "shapes") in {(item.subject.split, item.kind) for item in chat.conversations}
    drop = next(drop for drop in chat.drops if drop.subject.id == twin.block and drop.kind == "shapes")
    assert (drop.skipped.reason, drop.skipped.detail) == ("near_split", f"as that of {rows[1].block} in train")


def test_code_is_an_answer_only_where_it_may_be(rows: list[Block], blocks: list[ChatBlock]) -> None:
    chat = chat_of(blocks, CodeRights(blocked={rows[0].block: "GPL-3.0-only"}), include_code=True)
    written = {item.subject.id: item.draft for item in chat.conversations if item.kind == "write"}
    assert rows[0].block not in written
    drop = next(drop for drop in chat.drops if drop.subject.id == rows[0].block and drop.kind == "write")
    assert (drop.skipped.reason, drop.skipped.detail) == ("license", "GPL-3.0-only")
    draft = written[rows[1].block]
    without_header = (rows[1].code or "").partition("\n\nimport torch")[2]
    assert draft.assistant == f"```python\nimport torch{without_header}```", "nobody could know the header"
    assert draft.columns["notice"] is not None


SEVERAL = Case(inputs={"*0": "float32 2×24×16×16"}, outputs=("float32 2×24×8×8", "int64 2"))
ODD = Case(inputs={"*0": "float32 2×24×15×16"}, outputs=("float32 2×24×8×8",))
GATED = Case(inputs={"g": "float32 2×8×4×4", "x": "float32 2×24×4×4"}, outputs=("float32 2×24×4×4",))
GIVES_X = "gives the shape of `x`"
LAYOUT, LAYOUT_OF_G = "takes an N×C×H×W input", "takes an N×C×H×W input `g`"
WIDTH, RATE = SpecArgument(name="width", kind="positional"), SpecArgument(name="rate", kind="keyword", default="0.5")
REST, PARTS = SpecArgument(name="rest", kind="more keyword"), SpecArgument(name="parts", kind="more positional")


@table(__file__, "pairs.md", "Shapes in words", globals())
def test_shapes_in_words(blocks: list[ChatBlock], facts: dict[str, Any], words: list[str]) -> None:
    plain = {"keeps_shape": False, "downsampling": None, "changes_channels": None, "layout": "N×C×H×W", "cases": ()}
    assert shape_words(blocks[0].spec.model_copy(update=plain | facts)) == words


@table(__file__, "pairs.md", "Outputs in words", globals())
def test_outputs_in_words(outputs: tuple[str, ...], words: str) -> None:
    assert output_words(Case(inputs={}, outputs=outputs)) == words


@table(
    __file__,
    "pairs.md",
    "Size and layers in words",
    {"parameter_words": parameter_words, "layer_sentence": layer_sentence},
)
def test_size_and_layers_in_words(
    blocks: list[ChatBlock], make: Callable[[Spec], Any], facts: dict[str, Any], words: Any
) -> None:
    assert make(blocks[0].spec.model_copy(update=facts)) == words


@table(__file__, "pairs.md", "Arguments in words", globals())
def test_arguments_in_words(arguments: tuple[SpecArgument, ...], words: str) -> None:
    assert argument_words(arguments) == words


def test_only_what_is_told_in_full_is_to_be_written(blocks: list[ChatBlock]) -> None:
    """Without a graph of train mode, or of either mode, nobody could write the module from its requirements."""
    spec = blocks[1].spec
    assert spec.algorithm is not None
    changes: tuple[dict[str, Any], ...] = (
        {"train_error": "it draws numbers"}, {"reads_values": True}, {"hidden": (DRAWS,)}, {"sentences": ()}
    )  # fmt: skip
    for algorithm in (*(spec.algorithm.model_copy(update=change) for change in changes), None):
        block = ChatBlock(spec.model_copy(update={"algorithm": algorithm}), blocks[1].place, blocks[1].code)
        (drop,) = [drop for drop in chat_of([block], include_code=True).drops if drop.kind == "write"]
        assert drop.skipped.reason == "not_stated"
    assert spec.arguments is not None
    arguments = spec.arguments.model_copy(update={"init": {"config": "SimpleNamespace"}})
    untold = ChatBlock(spec.model_copy(update={"arguments": arguments}), blocks[1].place, blocks[1].code)
    (drop,) = [drop for drop in chat_of([untold], include_code=True).drops if drop.kind == "write"]
    assert "values are not stated" in drop.skipped.detail


def test_of_several_outputs_the_first_may_keep_the_shape(blocks: list[ChatBlock]) -> None:
    spec = next(block.spec for block in blocks if block.spec.keeps_shape)
    (demand,) = [demand for demand in list_demands(spec) if demand.text == "keeps the shape of its first input"]
    twice = [case.model_copy(update={"outputs": case.outputs * 2}) for case in spec.cases]
    assert demand.is_met(spec)
    assert demand.is_met(spec.model_copy(update={"cases": tuple(twice), "keeps_shape": False})) is None
