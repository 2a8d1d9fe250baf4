"""What is said of a block is what was observed of it, and never a passage of its code, whatever the code holds."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.chat.build import build_chat
from extract.chat.demand import demands_of
from extract.chat.result import Chat, ChatOptions, Subject
from extract.chat.rights import Rights
from extract.chat.wording import layer_words, output_words, parameter_words, shape_words
from manifests.records import Block, Case, Spec


def chat_of(subjects: Sequence[Subject], rights: Rights | None = None, **options: Any) -> Chat:
    return build_chat(subjects, ChatOptions(**options), rights or Rights())


def grams(text: str) -> set[tuple[str, ...]]:
    """Every eight tokens in a row, counted by a rule that shares nothing with ours."""
    tokens = re.findall(r"[A-Za-z_0-9]+|[^\sA-Za-z_0-9]", text)
    return {tuple(tokens[place : place + 8]) for place in range(len(tokens) - 7)}


def body(code: str) -> str:
    return "\n".join(line for line in code.split("\n") if not line.startswith("#"))


@pytest.fixture(scope="module")
def subjects(rows: list[Block], subject: Callable[..., Subject]) -> list[Subject]:
    return [subject(row) for row in rows]


def test_no_text_repeats_code(subjects: list[Subject]) -> None:
    chat = chat_of(subjects)
    assert {pair.kind for pair in chat.pairs} == {"describe", "specify", "choose", "shapes"}
    for pair in chat.pairs:
        for named in (pair.subject, *pair.talk.others):
            assert not grams(f"{pair.talk.user}\n{pair.talk.assistant}") & grams(body(named.code)), pair.kind


@settings(max_examples=12)
@given(st.data())
def test_what_repeats_code_is_dropped(rows: list[Block], subject: Callable[..., Subject], data: Any) -> None:
    """Any passage of any conversation, put into the code of a block that it speaks of, makes it a drop."""
    plain = [subject(row) for row in rows[:6]]
    pair = data.draw(st.sampled_from(chat_of(plain).pairs))
    named = data.draw(st.sampled_from([pair.subject, *pair.talk.others]))
    tokens = re.findall(r"\w+|[^\w\s]", data.draw(st.sampled_from([pair.talk.assistant, pair.talk.user])))
    start = data.draw(st.integers(0, len(tokens) - 8))
    passage = " ".join(tokens[start : start + 8])
    spiked = [
        Subject(
            item.spec, item.place, f"{item.code}\n# {passage}\n" if item.spec.block == named.spec.block else item.code
        )
        for item in plain
    ]
    chat = chat_of(spiked)
    assert pair.id not in {item.id for item in chat.pairs}
    drop = next(d for d in chat.drops if (d.spec.block, d.kind) == (pair.subject.spec.block, pair.kind))
    assert (drop.reason, passage in drop.detail) == ("repeats_source", False)
    assert len(chat.pairs) + len(chat.drops) == 4 * len(plain)
    for item in chat.pairs:
        for other in (item.subject, *item.talk.others):
            assert not grams(f"{item.talk.user}\n{item.talk.assistant}") & grams(body(other.code))


@settings(max_examples=6)
@given(seed=st.integers(0, 10_000), withheld=st.sets(st.sampled_from(["layers", "parameters", "train_differs"])))
def test_nothing_is_said_of_what_is_null(subjects: list[Subject], seed: int, withheld: set[str]) -> None:
    """Whatever the draws, a fact that was not observed is not stated, and every number said was observed."""
    changed = [
        Subject(Spec.model_validate(item.spec.model_dump() | dict.fromkeys(withheld)), item.place, item.code)
        for item in subjects
    ]
    chat = chat_of(changed, seed=seed)
    assert len(chat.pairs) + len(chat.drops) == 4 * len(subjects)
    for pair in chat.pairs:
        text = f"{pair.talk.user}\n{pair.talk.assistant}"
        assert not ("layers" in withheld and re.search("submodule|contains", text))
        assert not ("train_differs" in withheld and re.search("[Tt]rain and eval", text))
        assert not ("parameters" in withheld and re.search(r"\d parameters?\b|no parameters", text))
        assert "None" not in text
        assert " ." not in text, "a sentence lacks what it should say"
        specs = json.dumps([item.spec.model_dump() for item in (pair.subject, *pair.talk.others)])
        known = set(re.findall(r"\d+", f"{specs} {pair.talk.user}".replace(",", "").replace("×", " ")))
        said = re.findall(r"\d+", pair.talk.assistant.replace(",", "").replace("×", " "))
        known |= {str(len(item.spec.layers or ()) - 10) for item in (pair.subject, *pair.talk.others)}  # further kinds
        assert set(said) <= known | {"0"} | set(re.findall(r"\d+", pair.talk.user))


def test_exactly_one_of_the_four_fits(subjects: list[Subject]) -> None:
    """The others each break a demand by what was measured, and the answer says which."""
    pairs = [pair for pair in chat_of(subjects).pairs if pair.kind == "choose"]
    assert len(pairs) > 8
    letters = set()
    for pair in pairs:
        lines = pair.talk.user.split("\n")
        stated = [d for d in demands_of(pair.subject.spec) if d.text in lines[0]]
        assert stated
        assert all(demand.met(pair.subject.spec) for demand in stated)
        letter, name = re.match(r"(\w), `(\w+)`: ", pair.talk.assistant).groups()  # type: ignore[union-attr]
        assert name == pair.subject.spec.name
        assert next(line for line in lines if line.startswith(f"{letter}. ")).startswith(f"{letter}. `{name}`")
        assert len(pair.talk.others) == len({other.spec.name for other in pair.talk.others} - {name}) == 3
        for other in pair.talk.others:
            assert any(demand.met(other.spec) is False for demand in stated)
        letters.add(letter)
    assert len(letters) > 2, "the one that fits is not always in the same place"


def test_the_order_of_blocks_plays_no_part(subjects: list[Subject]) -> None:
    distinct = [item for item in subjects if item.spec.name != "Squeeze"]  # of copies, the first stays
    one, other = ({pair.id: pair.talk for pair in chat_of(items).pairs} for items in (distinct, distinct[::-1]))
    assert one == other


def test_a_held_out_row_near_one_of_training_goes(
    rows: list[Block], subject: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two blocks of different groups, but of nearly the same facts, each asked about in words of its own."""
    monkeypatch.setattr("manifests.conversations.alike.THRESHOLD", 0.3)
    spec = json.loads(rows[1].observed or "")
    twin = rows[1].model_copy(update={"block": f"{rows[1].block}2", "observed": json.dumps({**spec, "gradients": 3})})
    chat = chat_of([subject(rows[1]), subject(twin, "test")])
    kept = {(pair.subject.place.split, pair.kind) for pair in chat.pairs}
    assert ("train", "shapes") in kept
    drop = next(drop for drop in chat.drops if drop.spec.block == twin.block and drop.kind == "shapes")
    assert (drop.reason, drop.detail) == ("near_split", f"as that of {rows[1].block} in train")


def test_code_is_an_answer_only_where_it_may_be(rows: list[Block], subject: Callable[..., Subject]) -> None:
    subjects = [subject(row) for row in rows]
    barred = {rows[0].block: "GPL-3.0-only"}
    chat = chat_of(subjects, Rights(barred=barred), include_code=True)
    said = {pair.subject.spec.block: pair for pair in chat.pairs if pair.kind == "write"}
    assert rows[0].block not in said
    drop = next(drop for drop in chat.drops if drop.spec.block == rows[0].block and drop.kind == "write")
    assert (drop.reason, drop.detail) == ("license", "GPL-3.0-only")
    pair = said[rows[1].block]
    assert pair.talk.assistant == f"```python\n{rows[1].code}```"
    assert pair.talk.notice is not None


def test_what_is_too_long_is_dropped(subjects: list[Subject]) -> None:
    full = chat_of(subjects)
    limit = sorted(pair.tokens for pair in full.pairs)[len(full.pairs) // 2]
    chat = chat_of(subjects, max_tokens=limit)
    assert {pair.id for pair in chat.pairs} == {pair.id for pair in full.pairs if pair.tokens <= limit}
    assert {drop.reason for drop in chat.drops} >= {"too_long"}


def test_a_block_that_returns_several_tensors(rows: list[Block], subject: Callable[..., Subject]) -> None:
    seen = json.loads(rows[1].observed or "")
    seen["cases"] = [{"inputs": {"*0": "float32 2x24x16x16"}, "outputs": ["float32 2x24x8x8", "int64 2"]}]
    spec = subject(rows[1].model_copy(update={"observed": json.dumps(seen)})).spec
    assert shape_words(spec) == [
        "takes an N×C×H×W input",
        "halves height and width in its first output",
        "keeps the number of channels in its first output",
        "gives 2 tensors",
    ]


@pytest.mark.parametrize(
    ("outputs", "told"),
    [
        ((), "no tensor"),
        (("float32 2×3",), "one float32 tensor of shape 2×3"),
        (("float32 scalar",), "one float32 scalar"),
        (("float32 2", "int64 2×1"), "2 tensors: float32 2 and int64 2×1"),
    ],
)
def test_outputs_in_words(outputs: tuple[str, ...], told: str) -> None:
    assert output_words(Case(inputs={}, outputs=outputs)) == told


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"keeps_shape": True}, ["keeps the shape of its N×C×H×W input"]),
        ({"keeps_shape": True, "layout": None}, ["keeps the shape of its first input"]),
        ({"keeps_shape": None, "layout": None}, []),
        ({"layout": None}, ["gives another shape"]),
        ({"downsampling": 2.0}, ["takes an N×C×H×W input", "halves height and width"]),
        (
            {"downsampling": 0.5, "changes_channels": True},
            ["takes an N×C×H×W input", "doubles height and width", "changes the number of channels"],
        ),
        ({"downsampling": 4.0, "layout": "N×L×C"}, ["takes an N×L×C input", "divides the length by 4"]),
        ({"downsampling": 0.25}, ["takes an N×C×H×W input", "multiplies height and width by 4"]),
        ({"downsampling": 1.0}, ["takes an N×C×H×W input", "keeps height and width", "gives another shape"]),
    ],
)
def test_shapes_in_words(subjects: list[Subject], facts: dict[str, Any], told: list[str]) -> None:
    plain = {"keeps_shape": False, "downsampling": None, "changes_channels": None, "layout": "N×C×H×W"}
    assert shape_words(subjects[0].spec.model_copy(update=plain | facts)) == told


def test_parameters_in_words(subjects: list[Subject]) -> None:
    spec = subjects[0].spec
    assert parameter_words(spec) == "has 280 parameters when built with `channels` 16"
    assert parameter_words(spec.model_copy(update={"parameters": 0, "arguments": None})) == "has no parameters"
    assert parameter_words(spec.model_copy(update={"parameters": None})) == ""


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        (None, ""),
        ({}, "It has no submodules."),
        ({"ZeroPad2d": 1}, "Its only submodule is one `ZeroPad2d`."),
        ({"Conv2d": 2}, "Its submodules are 2 `Conv2d`."),
        ({"ReLU": 1, "Conv2d": 2}, "Its submodules are 2 `Conv2d` and 1 `ReLU`."),
    ],
)
def test_layers_in_words(subjects: list[Subject], layers: dict[str, int] | None, told: str) -> None:
    assert layer_words(subjects[0].spec.model_copy(update={"layers": layers})) == told
