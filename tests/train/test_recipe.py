"""Recipes: what TOML gives, what is refused and in which words, and the digest."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.files.errors import UserError
from tests.builders.suites import table
from train.model.recipe import Recipe, Slot, load_recipe


def written(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def test_a_recipe_without_a_name_has_that_of_its_file(tmp_path: Path) -> None:
    for stem, name in (("wide-2", "wide-2"), ("2 wide", "assembled")):
        (tmp_path / f"{stem}.toml").write_text("[training]\nepochs = 3\n")
        assert load_recipe(tmp_path / f"{stem}.toml").model.name == name
    assert load_recipe(written(tmp_path, '[model]\nname = "mine"\n')).model.name == "mine"
    assert load_recipe(written(tmp_path, "")) == Recipe().changed(model__name="recipe")
    text = '[slots]\nattention = "timm::SEModule"\nresidual = { use = "B", arguments = { norm_layer = "$norm" } }\n'
    slots = load_recipe(written(tmp_path, text)).slots
    assert slots.attention == Slot(use="timm::SEModule")
    assert slots.residual == Slot(use="B", arguments={"norm_layer": "$norm"})
    with pytest.raises(UserError, match=re.escape("no key training.epoch; did you mean 'epochs'?")):
        Recipe().changed(training__epoch=3)
    (tmp_path / "recipe.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not UTF-8 text"):
        load_recipe(tmp_path / "recipe.toml")


@table(__file__, "recipe.md", "What is wrong is said in one line", globals())
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError, match=re.escape(said)) as caught:
        load_recipe(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@given(st.integers(1, 500), st.floats(1e-6, 10))
def test_the_digest_tells_recipes_apart(epochs: int, rate: float) -> None:
    one = Recipe().changed(training__epochs=epochs, training__learning_rate=rate)
    again = Recipe.model_validate_json(one.to_json())
    assert again == one
    assert again.sha256 == one.sha256
    assert (one.sha256 == Recipe().sha256) == (one == Recipe())


@given(st.text(min_size=1), st.dictionaries(st.text(), st.one_of(st.integers(-9, 9), st.booleans(), st.text())))
def test_toml_reads_back_to_the_same(use: str, arguments: dict[str, object]) -> None:
    recipe = Recipe().changed(slots__attention={"use": use, "arguments": arguments})
    assert Recipe.model_validate(tomllib.loads(recipe.to_toml())) == recipe
