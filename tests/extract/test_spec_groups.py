"""Groups of specs: what is nearly the same stays together wherever it comes from, and nothing held out is in training."""

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.specs.make import make_spec
from extract.specs.splits import Place, place_specs
from lemur_core.similarity.text import near_pairs, shingles
from manifests.records import Block

made = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "extract" / "blocks.py")))


def text_of(name: str, *, doc: str = "", extra: str = "", ends: str = "") -> str:
    """A class of its own words, so that no two names give near texts."""
    lines = "\n".join(f"        self.{name}_{n} = torch.{name}_{n * n}(channels, {name}.a{n})" for n in range(8))
    return (
        f"import torch\n\n\n{extra}class {name}(torch.nn.Module):\n{doc}    def __init__(self, channels, {name}=None):\n"
        f"        super().__init__()\n{lines}\n{ends}\n    def forward(self, x):\n        return self.{name}_1(x)\n"
    )


def places(*given: tuple[str, str], source: str = "alpha@1.0", seed: int = 42) -> list[Place]:
    """Where blocks of these names and codes go; no two of them were observed to do the same."""
    rows = [
        made.block(code, name, source=f"{source}{n}", module=f"m{n}", **made.observed(parameters=n))
        for n, (name, code) in enumerate(given)
    ]
    return place_specs([make_spec(row) for row in rows], [row.code for row in rows], seed)


def same(one: tuple[str, str], other: tuple[str, str]) -> bool:
    filler = [(f"Filler{n}", text_of(f"Filler{n}")) for n in range(18)]
    first, second = places(one, other, *filler)[:2]
    assert first.cluster != second.cluster or first.split == second.split
    return first.cluster == second.cluster


def test_copies_are_one_group() -> None:
    """Other sources, docstrings, comments, layout and the class's name do not tell two blocks apart."""
    plain = text_of("Gate")
    words = " ".join(f"word{n} of a sentence on what it is for" for n in range(20))
    documented = text_of("Gate", doc=f'    """Says much: {words}."""\n\n')
    assert same(("Gate", plain), ("Gate", plain))
    assert same(
        ("Gate", plain),
        ("Gate", documented.replace("(channels, ", "(\n            channels,  # of the input\n            ")),
    )
    assert same(("Gate", plain), ("GateToo", plain.replace("class Gate(", "class GateToo(")))
    assert same(("Gate", plain), ("Gate", text_of("Gate", ends="        self.more = torch.zeros(3)\n")))
    assert not same(("Gate", plain), ("Blend", text_of("Blend")))


def test_equal_designs_are_one_group() -> None:
    """Different code whose observed facts are the same: their conversations would be too."""
    seen = made.observed()
    rows = [made.block(text_of(name).replace(f", {name}=None", ""), name, **seen) for name in ("Gate", "Blend")]
    rows += [made.block(text_of("Third").replace(", Third=None", ""), "Third", **made.observed(parameters=281))]
    found = place_specs([make_spec(row) for row in rows], [row.code or "" for row in rows], 42)
    assert found[0].cluster == found[1].cluster != found[2].cluster


def test_what_stands_in_other_files_is_not_held_out() -> None:
    """`Inner` is a block, and so are ten that hold it: were it in the test split, training would show it."""
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
    rows: list[Block] = [made.block(text_of(f"Name{n % 12}"), f"Name{n % 12}", module=f"m{n}") for n in range(14)]
    specs = [make_spec(row) for row in rows]
    plain = place_specs(specs, [row.code or "" for row in rows], seed)
    mixed = place_specs([specs[n] for n in order], [rows[n].code or "" for n in order], seed)
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
