"""Specs: what is read from the code and the observations, how it is worded, and which specs share a split."""

import ast
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.specs.behavior import infer_behavior
from extract.specs.make import make_spec, read_arguments, to_line
from extract.specs.outline import format_expression, format_type, format_value, read_outline
from extract.specs.splits import SplitAssignment, assign_splits
from lemur_core.similarity.tokens import near_pairs, shingles
from manifests.records import Block, Observed, Spec
from tests.builders import sample_blocks
from tests.builders.suites import table


@table(__file__, "specs.md", "Values in neutral notation", globals())
def test_values_in_neutral_notation(expression: str, told: str) -> None:
    assert format_value(ast.parse(expression, mode="eval").body) == told
    assert format_expression(expression) == told
    assert format_expression("one two three four five six") == "text of 27 characters"  # it is not Python


@table(__file__, "specs.md", "Types", globals())
def test_types_have_one_spelling(annotation: str, told: str) -> None:
    assert format_type(ast.parse(annotation, mode="eval").body) == told


def test_what_is_read_off_the_code() -> None:
    spec = make_spec(sample_blocks.block())
    assert spec.bases == ("Module",)
    assert [(item.name, item.kind, item.type, item.default) for item in spec.constructor] == [
        ("channels", "positional", "int", None),
        ("ratio", "positional", "float", "0.0625"),
        ("widths", "positional", "tuple", "3×4×6×3"),
        ("norm", "positional", None, "dict with type BN; eps 0.001"),
        ("act", "keyword", None, "ReLU"),
    ]
    assert [(item.name, item.type, item.default) for item in spec.forward] == [
        ("x", "Tensor", None),
        ("mask", None, "none"),
    ]
    assert spec.dependencies == {"Gate": "class", "make_divisible": "function"}
    assert spec.arguments is spec.layers is spec.parameters is spec.keeps_shape is None
    assert spec.summary == "Squeeze: not run"
    assert spec.withheld == ()


def test_what_was_observed() -> None:
    spec = make_spec(sample_blocks.block(**sample_blocks.observed()))
    assert spec.arguments is not None
    assert spec.arguments.init == {"channels": "16", "ratio": "0.5"}
    assert spec.arguments.forward == {"x": "randn of 2×16×8×8"}
    assert spec.cases[1].inputs == {"x": "float32 2×16×16×16"}
    assert (spec.layout, spec.keeps_shape, spec.downsampling, spec.changes_channels) == (None, True, None, None)
    assert (spec.parameters, spec.gradients, spec.tensors) == (280, 4, 4)
    assert spec.layers == {"Conv2d": 2, "Gate": 1, "ReLU": 1}
    assert spec.summary == "Squeeze: float32 2×16×8×8 -> float32 2×16×8×8; 280 parameters; Conv2d 2, Gate 1, ReLU 1"
    line = to_line(spec)
    assert not {"Recalibrates", "papers", "found"} & set(line.replace('"', " ").split()), "no word of a docstring"
    assert list(json.loads(line)) == sorted(json.loads(line))
    assert Spec.model_validate_json(line) == spec


@table(__file__, "specs.md", "Summaries", globals())
def test_summaries(changes: dict[str, Any], summary: str) -> None:
    assert make_spec(sample_blocks.block(**sample_blocks.observed(**changes))).summary == summary


@pytest.mark.parametrize("stored", ["{", "[]", "3", '{"parameters": -1}', '{"init": 3}', '{"init": {"args": 3}}'])
def test_broken_columns_are_as_if_absent(stored: str) -> None:
    spec = make_spec(sample_blocks.block(arguments=stored, observed=stored))
    assert spec.layers is None
    assert spec.summary == "Squeeze: not run"


@table(__file__, "specs.md", "Signatures", globals())
def test_signatures(code: str, constructor: list[str], forward: list[str]) -> None:
    spec = make_spec(sample_blocks.block(code, "A"))
    assert [item.name for item in spec.constructor] == constructor
    assert [item.name for item in spec.forward] == forward


def test_an_outline_in_pieces_is_that_of_the_whole() -> None:
    """On real files: PyTorch's own."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    files = sorted((Path(torch.origin).parent / "nn" / "modules").glob("*.py"))
    assert len(files) > 20
    for file in files:
        code = file.read_text(encoding="utf-8")
        tree = ast.parse(code)
        classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        outline = read_outline(code)
        assert list(outline.classes) == list(dict.fromkeys(classes)), file.name
        assert functions <= outline.functions, file.name


@table(__file__, "specs.md", "Behavior", globals())
def test_behavior(pairs: list[str], channels: int | None, expected: tuple[Any, ...]) -> None:
    cases = [dict(zip(("before", "after"), pair.split(), strict=True)) for pair in pairs]
    told = [{"inputs": {"x": f"float32 {c['before']}"}, "outputs": [f"float32 {c['after']}"]} for c in cases]
    observed = Observed.model_validate({**sample_blocks.OBSERVED, "cases": told})
    assert tuple(infer_behavior(observed, channels).values()) == expected


def test_a_property_holds_in_every_call_and_mode() -> None:
    """A crop that leaves short sequences as they are, a train mode that pads, and several outputs keep no shape."""
    several = {"inputs": {"x": "float32 2x8", "n": "3"}, "outputs": ["float32 2x8", "int64 2"]}
    observed = Observed.model_validate({**sample_blocks.OBSERVED, "cases": [several]})
    assert infer_behavior(observed, None)["keeps_shape"] is None
    case = {"inputs": {"x": "float32 2x8x8"}, "outputs": ["float32 2x8x8"]}
    call = {"init": "", "forward": "", "inputs": case["inputs"], "eval": case["outputs"], "train": case["outputs"]}
    others = (None, ["float32 2x4x8"], ["float32 2x8x8", "float32 2"])
    for train, expected in ((case["outputs"], True), *((other, None) for other in others)):
        calls = [call, call | {"train": train}]
        observed = Observed.model_validate({**sample_blocks.OBSERVED, "cases": [case], "calls": calls})
        assert infer_behavior(observed, 1)["keeps_shape"] is expected


@table(__file__, "specs.md", "Calls that worked", globals())
def test_calls_that_worked(arguments: dict[str, Any], constructor: str, forward: str) -> None:
    worked = read_arguments(json.dumps(arguments))
    assert worked is not None
    assert f"A({worked.init.text()})" == constructor
    assert (f"block({worked.forward.text()})" if worked.forward else "") == forward


def text_of(name: str, *, doc: str = "", extra: str = "", ends: str = "") -> str:
    """A class with unique words, so that no two names produce similar texts."""
    lines = "\n".join(f"        self.{name}_{n} = torch.{name}_{n * n}(channels, {name}.a{n})" for n in range(8))
    return (
        f"import torch\n\n\n{extra}class {name}(torch.nn.Module):\n{doc}    def __init__(self, channels, {name}=None):\n"
        f"        super().__init__()\n{lines}\n{ends}\n    def forward(self, x):\n        return self.{name}_1(x)\n"
    )


def places(*given: tuple[str, str], source: str = "alpha@1.0", seed: int = 42) -> list[SplitAssignment]:
    """Return the splits of blocks with these names and codes; no two of them were observed to behave the same."""
    rows = [
        sample_blocks.block(code, name, source=f"{source}{n}", module=f"m{n}", **sample_blocks.observed(parameters=n))
        for n, (name, code) in enumerate(given)
    ]
    return assign_splits([make_spec(row) for row in rows], [row.code for row in rows], seed)


def same(one: tuple[str, str], other: tuple[str, str]) -> bool:
    filler = [(f"Filler{n}", text_of(f"Filler{n}")) for n in range(18)]
    first, second = places(one, other, *filler)[:2]
    assert first.cluster != second.cluster or first.split == second.split
    return first.cluster == second.cluster


def test_copies_are_one_group() -> None:
    """Other sources, docstrings, comments, layout and class names do not separate two blocks."""
    plain = text_of("Gate")
    words = " ".join(f"word{n} of a sentence on what it is for" for n in range(20))
    documented = text_of("Gate", doc=f'    """Says much: {words}."""\n\n')
    assert same(("Gate", plain), ("Gate", plain))
    spread = documented.replace("(channels, ", "(\n            channels,  # of the input\n            ")
    assert same(("Gate", plain), ("Gate", spread))
    assert same(("Gate", plain), ("GateToo", plain.replace("class Gate(", "class GateToo(")))
    assert same(("Gate", plain), ("Gate", text_of("Gate", ends="        self.more = torch.zeros(3)\n")))
    assert not same(("Gate", plain), ("Blend", text_of("Blend")))


def test_equal_designs_are_one_group() -> None:
    """Different code with the same observed facts: their conversations would be the same, too."""
    rows = [
        sample_blocks.block(text_of(name).replace(f", {name}=None", ""), name, **sample_blocks.observed(parameters=n))
        for name, n in (("Gate", 280), ("Blend", 280), ("Third", 281))
    ]
    found = assign_splits([make_spec(row) for row in rows], [row.code or "" for row in rows], 42)
    assert found[0].cluster == found[1].cluster != found[2].cluster


def test_what_stands_in_other_files_is_not_held_out() -> None:
    """`Inner` is a block, and so are ten that contain it: if it were in the test split, training would reveal it."""
    inner = text_of("Inner").removeprefix("import torch\n\n\n")
    outer = [(f"Outer{n}", text_of(f"Outer{n}", extra=f"{inner}\n\n")) for n in range(20)]
    for seed in range(4):
        found = places(("Inner", text_of("Inner")), *outer, seed=seed)
        assert found[0].split == "train"
        assert {place.split for place in found} == {"train", "validation", "test"}


@pytest.mark.parametrize("count", [0, 1, 2, 9, 40])
def test_sizes(count: int) -> None:
    found = places(*((f"Name{n}", text_of(f"Name{n}")) for n in range(count)))
    sizes = {split: sum(place.split == split for place in found) for split in ("train", "validation", "test")}
    assert sizes["test"] == sizes["validation"] == round(count / 10)
    assert len({place.cluster for place in found}) == count


@settings(max_examples=8)
@given(st.permutations(range(14)), st.integers(0, 5))
def test_order_plays_no_part(order: list[int], seed: int) -> None:
    rows: list[Block] = [
        sample_blocks.block(text_of(f"Name{n % 12}"), f"Name{n % 12}", module=f"m{n}") for n in range(14)
    ]
    specs = [make_spec(row) for row in rows]
    plain = assign_splits(specs, [row.code or "" for row in rows], seed)
    mixed = assign_splits([specs[n] for n in order], [rows[n].code or "" for n in order], seed)
    assert mixed == [plain[n] for n in order]


texts = st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=30).map(" ".join), max_size=12)


@given(texts, st.sampled_from([0.25, 0.5, 0.75, 1.0]))
def test_near_pairs_are_those_of_the_definition(given_texts: list[str], threshold: float) -> None:
    sets: list[Any] = [shingles(text) for text in given_texts]
    found = {(int(a), int(b)) for one, other in near_pairs(sets, threshold) for a, b in zip(one, other, strict=True)}
    as_sets = [set(np.asarray(item).tolist()) for item in sets]
    expected = {
        (a, b)
        for a in range(len(sets))
        for b in range(len(sets))
        if a != b and len(as_sets[a] & as_sets[b]) >= threshold * len(as_sets[a] | as_sets[b])
    }
    assert found == expected
