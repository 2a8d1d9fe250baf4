"""What needs no trained model: facts and questions, codebook, router, the loop, retrieval, settings."""

import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lemur.experts import parts
from lemur.experts.evaluate import Bm25
from lemur.experts.facts import RELATIONS, questions, read_facts, wordings
from lemur.experts.language import draw_tiny, learn_tokenizer
from lemur.experts.parts import Codebook, PrototypeRouter, centres
from lemur.experts.settings import GENERAL, Tiny, TuningSettings, load_settings
from lemur_core.files.errors import UserError
from tests.builders.suites import table


def test_facts_are_balanced_and_held_out_by_block(settings_file: Path) -> None:
    data = load_settings(settings_file).data
    facts = read_facts(data, seed=0)
    assert facts == read_facts(data, seed=0)
    assert {fact.domain for fact in facts} == {"alpha", "beta", GENERAL}
    for domain in ("alpha", "beta", GENERAL):
        own = [fact for fact in facts if fact.domain == domain]
        assert len({fact.block for fact in own}) == data.blocks
        assert len({fact.block for fact in own if fact.held}) == data.blocks * data.held
        for relation in RELATIONS:
            answers = Counter(fact.answer for fact in own if fact.relation == relation and fact.asked)
            assert not answers or max(answers.values()) <= data.share * answers.total()
    lines = {fact.value: int(fact.answer) for fact in facts if fact.relation == "lines"}
    marks = sorted(set(lines.values()))
    assert 4 < len(marks) <= data.marks
    assert all(abs(mark - value) == min(abs(other - value) for other in marks) for value, mark in lines.items())
    other = read_facts(data, seed=1)
    assert [fact.held for fact in other] != [fact.held for fact in facts]
    assert [fact.answer for fact in other] == [fact.answer for fact in facts]


def test_held_wordings_are_new_and_of_known_words(settings_file: Path) -> None:
    for relation in RELATIONS:
        seen, held = wordings(relation, held=False), wordings(relation, held=True)
        assert held
        assert not set(seen) & set(held)
        assert set(" ".join(held).split()) <= set(" ".join(seen).split())
    facts = read_facts(load_settings(settings_file).data, seed=0)
    trained = {row.text for row in questions(facts, held=False)}
    assert not trained & {row.text for row in questions(facts, held=True)}


@table(__file__, "parts.md", "Settings that are refused", globals())
def test_settings_that_are_refused(tmp_path: Path, changed: str, message: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(changed)
    with pytest.raises(UserError, match=message):
        load_settings(path)


def test_yaml_says_the_same_as_toml(settings_file: Path) -> None:
    path = settings_file.with_suffix(".yaml")
    path.write_text("out: made\ndata:\n  libraries: [library]\n  domains: {alpha: [alpha]}\ncodebook: {slots: 2}\n")
    read = load_settings(path, seed=3, base__model=None, router__prototypes=32)
    assert (read.seed, read.codebook.slots, read.router.prototypes) == (3, 2, 32)
    assert read.data.libraries == (settings_file.parent / "library",)
    path.write_text("out: [made\n")
    with pytest.raises(UserError, match="cannot be read"):
        load_settings(path)


def test_a_domain_without_blocks_is_named(settings_file: Path) -> None:
    settings_file.write_text(settings_file.read_text().replace('beta = ["beta"]', 'gamma = ["gamma"]'))
    with pytest.raises(UserError, match="gamma: the libraries have no block"):
        read_facts(load_settings(settings_file).data, seed=0)


POINTS = st.integers(0, 2**31 - 1).map(lambda seed: torch.randn(40, 6, generator=torch.Generator().manual_seed(seed)))


@settings(max_examples=15, deadline=None)
@given(st.lists(POINTS, min_size=2, max_size=4), POINTS)
def test_a_further_domain_leaves_the_others_as_they_were(domains: list[Tensor], asked: Tensor) -> None:
    names = [GENERAL, *(f"d{at}" for at in range(1, len(domains)))]
    made = {name: centres(states, 5, seed=0) for name, states in zip(names, domains, strict=True)}
    again = {name: centres(states, 5, seed=0) for name, states in zip(names, domains, strict=True)}
    assert all(torch.equal(made[name], again[name]) for name in names)
    assert all(torch.allclose(found.norm(dim=1), torch.ones(len(found))) for found in made.values())
    less = {name: made[name] for name in names[:-1]}
    before, after = PrototypeRouter(less), PrototypeRouter(made)
    assert all(torch.equal(before.cosines(asked)[name], after.cosines(asked)[name]) for name in less)
    for one, other in zip(before.route(asked), after.route(asked), strict=True):
        assert other in (one, names[-1])
    turned = PrototypeRouter(dict(reversed(made.items())))
    assert turned.route(asked) == after.route(asked)


def test_with_a_margin_what_is_between_two_domains_is_general() -> None:
    prototypes = {
        "a": torch.tensor([[1.0, 0, 0]]),
        "b": torch.tensor([[0, 1.0, 0]]),
        GENERAL: torch.tensor([[0, 0, 1.0]]),
    }
    between, near = torch.tensor([[1.0, 0.9, 0]]), torch.tensor([[3.0, 0.1, 0]])
    asked = torch.cat([between, near])
    assert PrototypeRouter(prototypes).route(asked) == ["a", "a"]
    assert PrototypeRouter(prototypes, margin=0.3).route(asked) == [GENERAL, "a"]


def test_prototypes_find_the_groups() -> None:
    ends = torch.eye(4)
    states = torch.cat([end + 0.01 * torch.randn(30, 4, generator=torch.Generator().manual_seed(1)) for end in ends])
    found = centres(states, 4, seed=0)
    assert sorted((found @ ends.T).argmax(1).tolist()) == [0, 1, 2, 3]
    assert len(centres(states[:2].repeat(3, 1), 4, seed=0)) == 2


def _fit(key: str, stop: int | None = None) -> nn.Module:
    torch.manual_seed(0)
    module = nn.Linear(4, 1)
    at = 0

    def loss_of(rng: random.Random) -> Tensor:
        nonlocal at
        if at == stop:
            raise KeyboardInterrupt
        at += 1
        given = torch.tensor([[rng.random() for _ in range(4)] for _ in range(8)])
        return ((module(given) - given.sum(1, keepdim=True)) ** 2).mean()

    parts.fit(module, loss_of, TuningSettings(steps=30, rate=0.05), label="test", key=key, seed=7)
    return module


def test_a_run_that_was_ended_goes_on_to_the_same_weights(curator_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _fit("whole").state_dict()
    monkeypatch.setattr(parts, "_KEEP_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        _fit("ended", stop=17)
    ended = _fit("ended", stop=13).state_dict()  # only thirteen steps are left
    assert all(torch.equal(whole[key], ended[key]) for key in whole)


@pytest.mark.parametrize("slots", [1, 4])
def test_each_number_has_as_many_vectors(slots: int) -> None:
    base = draw_tiny(Tiny(width=16, layers=1, heads=2), learn_tokenizer(["7 12 345678"] * 9, 300), seed=0)
    numbers = ["7", "12", "345678"]
    codebook = Codebook(numbers, slots, base)
    made = codebook(["345678", "7", "345678"])
    assert made.shape == (3, slots, 16)
    assert torch.equal(made[0], made[2])
    assert not torch.allclose(made[0], made[1], atol=1e-3)
    lengths = base.model.get_input_embeddings().weight.norm(dim=1)
    assert torch.allclose(made.norm(dim=-1), lengths.mean(), rtol=1e-4)


def test_retrieval_finds_what_is_named() -> None:
    found = Bm25(["timm SEModule lines 4", "timm GhostModule lines 4", "mmcv SELayer lines 9", "timm lines"])
    assert found.best("What lines has GhostModule in timm ?") == 1
    assert found.best("SELayer") == 2
    assert found.best("nothing of it") == 0
