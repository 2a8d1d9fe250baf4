"""Recipes: what TOML gives, what is refused and in which words, and the digest."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from lemur_core.files.errors import UserError
from tests.builders.suites import table
from tests.builders.training import TINY
from train.ablation import FULL, Difference, list_variants, mean_difference
from train.model.contract import check_contract, lemur_digest, lemur_name
from train.model.recipe import Recipe, Slot, load_recipe, read_changes


def written(folder: Path, text: str, stem: str = "recipe") -> Path:
    path = folder / f"{stem}.toml"
    path.write_text(text)
    return path


def test_a_recipe_without_a_name_has_that_of_its_file(tmp_path: Path) -> None:
    for stem, text, name in (("wide-2", "", "wide-2"), ("2 wide", "", "assembled"), ("a", "name = 'mine'", "mine")):
        assert load_recipe(written(tmp_path, f"[model]\n{text}\n", stem)).model.name == name
    assert load_recipe(written(tmp_path, "")) == Recipe().changed(model__name="recipe")
    text = '[slots]\nattention = "timm::SEModule"\nresidual = { use = "B", arguments = { norm_layer = "$norm" } }\n'
    slots = load_recipe(written(tmp_path, text)).slots
    assert slots.attention == Slot(use="timm::SEModule")
    assert slots.residual == Slot(use="B", arguments={"norm_layer": "$norm"})
    with pytest.raises(UserError, match=re.escape("no key training.epoch; did you mean 'epochs'?")):
        Recipe().changed(training__epoch=3)
    path = written(tmp_path, "")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not UTF-8 text"):
        load_recipe(path)


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


# LEMUR's contract, read from the code: what meets it, and the reason in one line for each way not to.


INIT = "    def __init__(self, in_shape, out_shape, prm, device):\n        super().__init__()\n"
REST = "    def train_setup(self, prm): ...\n    def learn(self, train_data): ...\n    def forward(self, x): return x\n"
NAMES = "def supported_hyperparameters():\n    return {'lr'}\n"
GOOD = f"from torch import nn\n{NAMES}class Net(nn.Module):\n{INIT}{REST}"


def changed(before: str, after: str) -> str:
    assert before in GOOD
    return GOOD.replace(before, after)


@table(__file__, "contract.md", "What it says", globals() | {"TINY": TINY})
def test_what_the_contract_says(code: str, fault: str | None) -> None:
    assert check_contract(code) == fault
    assert str(check_contract("x = " + "(" * 5000 + ")" * 5000)).startswith("line 1: n")


def test_digests_and_names_are_those_of_the_package() -> None:
    # The uid of a trial of rl-init-fc39cd17045c03d9657ff97dcd16ed79 in release 2.1.0.
    prm = {"lr": 0.01, "batch": 64, "dropout": 0.2, "momentum": 0.9, "transform": "echo"}
    assert lemur_digest(prm) == "fa5c873e06b6e25aa86d1b6f48125994"
    assert lemur_digest("a b\n\tc\u2003d") == lemur_digest("abcd") == "e2fc714c4727ee9395f324cd2e7f331f"
    prefixes = {"": "", "rag": "rag-", f"rag-{'0' * 32}": "rag-", "0" * 32: "", "my_net v2/x-": "my-net-v2-x-"}
    for prefix, kept in prefixes.items():
        assert lemur_name("abcd", prefix) == f"{kept}e2fc714c4727ee9395f324cd2e7f331f"


# What an ablation compares (standard variants, written ones, what is refused), and the paired differences of it.


WHOLE = Recipe().changed(
    slots__attention="timm::SEModule", slots__downsample="timm::BlurPool2d", slots__stochastic_depth="timm::DropPath",
    augmentation__randaugment_ops=1, augmentation__cutmix_alpha=1.0,
)  # fmt: skip
STANDARD = ["no attention", "no anti-aliasing", "no stochastic depth", "plain augmentation"]


def test_each_standard_variant_leaves_one_ingredient_out_that_the_recipe_has() -> None:
    found = list_variants(WHOLE)
    assert list(found) == [FULL, *STANDARD]
    assert found["no attention"].slots.attention.use == "none"
    assert found["no attention"].slots.downsample == WHOLE.slots.downsample
    assert found["no anti-aliasing"].slots.downsample.use == "subsample"
    max_pool = list_variants(WHOLE.changed(slots__downsample="max_pool"))  # which aliases, too
    assert list(max_pool) == [FULL, *STANDARD[:1], *STANDARD[2:]]
    plain = found["plain augmentation"].augmentation
    assert (plain.randaugment_ops, plain.cutmix_alpha) == (0, 0)
    assert plain.crop_padding == WHOLE.augmentation.crop_padding
    assert list(list_variants(WHOLE.changed(slots__attention="none"))) == [FULL, *STANDARD[1:]]
    with pytest.raises(UserError, match="no attention, anti-aliasing"):
        list_variants(Recipe())
    written = list_variants(WHOLE, ["wide: model.widths=[64, 64, 64], model.name='w'", "long: training.epochs=99,"])
    assert list(written) == [FULL, "wide", "long"]
    assert (written["wide"].model.widths, written["long"].training.epochs) == ((64, 64, 64), 99)
    assert read_changes("c.d=\"x, y\", e.f={ g = 1, h = 'i' },") == {"c__d": "x, y", "e__f": {"g": 1, "h": "i"}}


@table(__file__, "ablation.md", "What is refused", globals())
def test_what_is_refused(written: list[str], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        list_variants(WHOLE, written)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=8))
def test_the_interval_is_that_of_the_paired_t_test(pairs: list[tuple[float, float]]) -> None:
    base, other = ({seed: pair[place] for seed, pair in enumerate(pairs)} for place in (0, 1))
    if len({other[seed] - base[seed] for seed in base}) < 2:
        return  # scipy warns where nothing varies
    found = mean_difference(base, other)
    interval = ttest_rel(list(other.values()), list(base.values())).confidence_interval(0.95)
    assert found.n == len(pairs)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=1e-9)


def test_differences_of_few_seeds() -> None:
    found = mean_difference({0: 0.5, 1: 0.6, 7: 0.9}, {1: 0.7, 0: 0.7, 3: 0.1})  # paired by number
    assert (found.n, found.mean) == (2, pytest.approx(0.15))
    assert float(str(found.low)) < 0 < float(str(found.high))
    assert mean_difference({0: 0.25, 1: 0.5}, {0: 0.5, 1: 0.75}).low == 0.25, "it never varies"
    for seeds, mean in ((0, None), (1, 0.25)):
        few = mean_difference(dict.fromkeys(range(seeds), 0.5), dict.fromkeys(range(seeds), 0.75))
        assert few == Difference(seeds, mean, None, None)
