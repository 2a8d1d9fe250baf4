"""Domain experts with tiny models: questions, one injected token, the router, and the way from settings to answers."""

import json
import random
import re
import shutil
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import tokenizers
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn
from typer.testing import CliRunner

from lemur.cli import app
from lemur.experts import injection
from lemur.experts.facts import (
    ARMS,
    GENERAL,
    RELATIONS,
    TEMPLATES,
    Training,
    list_questions,
    load_settings,
    read_facts,
    read_questions,
)
from lemur.experts.injection import (
    PLACEHOLDER,
    Codebook,
    LanguageModel,
    Workspace,
    cluster_states,
    compare,
    count_shared,
    load_model,
    route,
    write_prompt,
)
from lemur.folders import verify_folder
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError
from manifests.folders.manifest import read_manifest
from tests.builders import finished

SETTINGS = f"""{finished.SETTINGS.rstrip()}
shots = 1
[expert]
training = {{steps = 6, batch = 8}}
[codebook]
training = {{steps = 6, batch = 8}}
[router]
prototypes = 4
"""


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    """A file of settings beside its library and its base, which is random."""
    finished.write_library(tmp_path / "library")
    words = [write_prompt(frame.format(relation="lines", package="alpha", name=f"Block{n}"), str(n)) for n, frame in enumerate(TEMPLATES)]  # fmt: skip
    for name, width in (("base", 16), ("other", 8)):
        language = tiny(words, width)
        language.model.save_pretrained(tmp_path / name)
        language.tokenizer.save_pretrained(tmp_path / name)
    path = tmp_path / "experts.toml"
    path.write_text(SETTINGS)
    return path


def tiny(texts: list[str], width: int = 16, layers: int = 1) -> LanguageModel:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Split("\n", "isolated"),
        tokenizers.pre_tokenizers.Split(" ", "merged_with_next"),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<pad>", "<end>"], show_progress=False, initial_alphabet=alphabet
    )
    made.train_from_iterator(texts, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", pad_token="<pad>")
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=2, max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    return LanguageModel(transformers.LlamaForCausalLM(config), tokenizer)


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["-q", "experts", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def digests(folder: Path) -> dict[str, str]:
    every = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): sha256_file(path) for path in sorted(every)}


def test_facts_are_balanced_and_held_out_by_block(settings_file: Path) -> None:
    data = load_settings(settings_file).data
    facts = read_facts(data, seed=0)
    assert facts == read_facts(data, seed=0)
    assert {fact.domain for fact in facts} == {"alpha", "beta", GENERAL}
    for domain in ("alpha", "beta", GENERAL):
        some = [fact for fact in facts if fact.domain == domain]
        assert len({fact.block for fact in some}) == data.blocks
        assert len({fact.block for fact in some if fact.held}) == data.blocks * data.held
        for relation in RELATIONS:
            answers = Counter(fact.answer for fact in some if fact.relation == relation and fact.asked)
            assert not answers or max(answers.values()) <= data.share * answers.total()
    lines = {fact.value: int(fact.answer) for fact in facts if fact.relation == "lines"}
    marks = sorted(set(lines.values()))
    assert 4 < len(marks) <= data.marks
    assert all(abs(mark - value) == min(abs(other - value) for other in marks) for value, mark in lines.items())
    with pytest.raises(UserError, match="no question about a block that is held out; add blocks"):
        read_facts(data.model_copy(update={"held": 0.01}), seed=0)
    other = read_facts(data, seed=1)
    assert [fact.held for fact in other] != [fact.held for fact in facts]
    assert [fact.answer for fact in other] == [fact.answer for fact in facts]
    for fact in facts:
        seen, held = list_questions(fact, held=False), list_questions(fact, held=True)
        assert held
        assert not set(seen) & set(held)
        assert set(" ".join(held).split()) <= set(" ".join(seen).split())


_DATA = "out = 'x'\n[data]\nlibraries = ['library']\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{_DATA}blok = 1", "data.domains"),
        (f"{_DATA}[data.domains]\ngeneral = ['alpha']\n[base]\nmodel = 'm'", "is reserved for blocks without a domain"),
        (f"{_DATA}[data.domains]\nalpha = ['alpha']\n[base]\nmodel = 'm'\nstep = 1", "base.step"),
        (f"{_DATA}[data.domains]\nalpha = ['alpha']\n", "base"),
        ("out = ", "pass a TOML file"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "wrong.toml").write_text(text)
    with pytest.raises(UserError, match=message):
        load_settings(tmp_path / "wrong.toml")


def test_a_table_of_a_training_keeps_the_other_defaults(tmp_path: Path) -> None:
    (tmp_path / "some.toml").write_text(
        f"{_DATA}[data.domains]\nalpha = ['alpha']\n[base]\nmodel = 'm'\n"
        "[expert]\ntraining = {batch = 9}\n[codebook]\ntraining = {batch = 7}\n"
    )
    settings = load_settings(tmp_path / "some.toml")
    assert settings.expert.training == Training(steps=1500, batch=9, rate=1e-3, decay=0.01)
    assert settings.codebook.training.model_dump() == {"steps": 150, "batch": 7, "rate": 0.1, "decay": 0}


def test_questions_are_texts(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", '{"question": 5}', '{"question": "q ?"}\n{"question": " "}', "{"):
        (tmp_path / "rows.jsonl").write_text(text)
        with pytest.raises(UserError, match=r"rows\.jsonl: "):
            read_questions(tmp_path / "rows.jsonl")


POINTS = st.integers(0, 2**31 - 1).map(lambda seed: torch.randn(40, 6, generator=torch.Generator().manual_seed(seed)))


@settings(max_examples=10, deadline=None)
@given(st.lists(POINTS, min_size=2, max_size=4), POINTS)
def test_a_further_domain_takes_questions_or_leaves_them(domains: list[Tensor], asked: Tensor) -> None:
    names = [GENERAL, *(f"d{at}" for at in range(1, len(domains)))]
    made = {name: cluster_states(states, 5, seed=0) for name, states in zip(names, domains, strict=True)}
    assert all(torch.allclose(found.norm(dim=1), torch.ones(len(found))) for found in made.values())
    before, after = compare(asked, {name: made[name] for name in names[:-1]}), compare(asked, made)
    assert all(torch.equal(before[name], after[name]) for name in names[:-1])
    for one, other in zip(route(before), route(after), strict=True):
        assert other in (one, names[-1])
    assert route(compare(asked, dict(reversed(made.items())))) == route(after)


def test_prototypes_find_the_groups_and_what_is_between_or_far_is_general() -> None:
    ends = torch.eye(4)
    states = torch.cat([end + 0.01 * torch.randn(30, 4, generator=torch.Generator().manual_seed(1)) for end in ends])
    assert set((cluster_states(states, 16, seed=0) @ ends.T).argmax(1).tolist()) == {0, 1, 2, 3}
    assert len(cluster_states(states[:2].repeat(3, 1), 4, seed=0)) == 2
    prototypes = {name: torch.eye(3)[at : at + 1] for at, name in enumerate(("a", "b", GENERAL))}
    cosines = compare(torch.tensor([[1.0, 0.9, 0], [3.0, 0.1, 0]]), prototypes)
    assert route(cosines) == ["a", "a"]
    assert route(cosines, least=0.9) == [GENERAL, "a"]


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

    injection.fit(module, loss_of, Training(steps=30, rate=0.05), label="test", key=key, seed=7)
    return module


def test_a_run_that_was_ended_goes_on_to_the_same_weights(curator_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _fit("whole").state_dict()
    monkeypatch.setattr(injection, "_KEEP_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        _fit("ended", stop=17)
    ended = _fit("ended", stop=13).state_dict()  # only thirteen steps are left
    assert all(torch.equal(whole[key], ended[key]) for key in whole)


def test_each_number_has_a_vector() -> None:
    base = tiny(["7 12 345678"] * 9)
    made = Codebook(["7", "12", "345678"], base)(["345678", "7", "345679"])
    assert made.shape == (3, 16)
    assert torch.equal(made[0], made[2])
    assert not torch.allclose(made[0], made[1], atol=1e-3)
    lengths = base.model.get_input_embeddings().weight.norm(dim=1)
    assert torch.allclose(made.norm(dim=-1), lengths.mean(), rtol=1e-4)


def test_what_is_injected_stands_at_the_mark() -> None:
    question = "lines of a B ?"
    language = tiny([write_prompt(question, "12")] * 9)
    (vector,) = language.embed([language.ids(" 12")])
    put = language.inject(write_prompt(question, PLACEHOLDER), vector[0])
    (read,) = language.embed_prompts([write_prompt(question, "12")])
    assert torch.equal(put, read)
    plain = language.embed_prompts([write_prompt(question)])
    assert language.answers([read, *plain]) == language.answers([put, *plain])


@pytest.mark.parametrize("frozen", [False, True])
def test_losses_and_answers_are_those_of_each_row_alone(frozen: bool) -> None:
    """Beside transformers' own, one row at a time, without padding and without a common start that is read once."""
    examples = [("lines of a B ?", "a B lines 12", "12"), ("weights of c D ?", "c D parameters 70", "70")]
    language = tiny([write_prompt("lines of e F ?", None, examples)] * 9, width=32, layers=2)
    vectors = torch.randn(3, 32, requires_grad=True)
    asked, answers = ("lines of e F ?", "weights of B ?", "the size"), ["3", "1", "58"]
    inputs = list(map(language.inject, [write_prompt(text, PLACEHOLDER, examples) for text in asked], vectors))
    assert count_shared(inputs) > 30
    assert count_shared(inputs[:1]) == count_shared([row[-9:] for row in inputs]) == 0
    if frozen:
        language.model.requires_grad_(requires_grad=False)
    losses: list[Tensor] = []
    for row, answer in zip(inputs, answers, strict=True):
        after = language.ids(f" {answer}\n")
        logits = language.model(inputs_embeds=torch.cat([row, *language.embed([after])])[None]).logits[0, len(row) - 1 : -1]  # fmt: skip
        losses += nn.functional.cross_entropy(logits, torch.tensor(after), reduction="none")
    alone = torch.stack(losses).mean()
    loss = language.loss(inputs, answers)
    assert loss.item() == pytest.approx(alone.item(), rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, vectors, retain_graph=True)
    assert torch.allclose(gradient, torch.autograd.grad(alone, vectors)[0], atol=1e-6)
    assert language.answers(inputs) == [language.answers([row])[0] for row in inputs]


def test_models_that_cannot_be_loaded(tmp_path: Path) -> None:
    for name, reason in (("package:no-such-model", "not installed"), ("package:torch", "holds 0 models"), (str(tmp_path), "cannot be loaded")):  # fmt: skip
        with pytest.raises(UserError, match=f"base.model {re.escape(name)}: .*{reason}"):
            load_model(name, "base.model")


@pytest.mark.slow
def test_a_domain_from_settings_to_answers_and_then_another(
    settings_file: Path, curator_cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "made"
    frozen = digests(tmp_path / "base")
    alone = json.loads(run("train", settings_file, "--domain", "alpha", "--json"))
    assert set(alone["scores"]) == set(ARMS)
    before = digests(out)
    run("train", settings_file, "--domain", "alpha")
    assert digests(out) == before

    counts = json.loads(run("train", settings_file, "--json"))
    after = digests(out)
    others = {name for name in before if not name.startswith("evaluation/")}
    assert {name: after[name] for name in others} == {name: before[name] for name in others}
    assert digests(tmp_path / "base") == frozen
    assert {name.split("/")[1] for name in after if name.startswith("domains/")} == {"alpha", "beta", GENERAL}
    for arm in set(ARMS) - {"routed"}:  # a question may be routed to the further domain
        assert counts["scores"][arm]["alpha"] == alone["scores"][arm]["alpha"]
    assert set(counts["scores"]["oracle"]) == {"alpha", "beta", "all"}
    assert set(counts["routing"]) == {"alpha", "beta", GENERAL}
    tokens = {arm: scores["all"]["tokens"] for arm, scores in counts["scores"].items()}
    assert tokens["expert"] == 0 < tokens["closed"] < tokens["oracle"] == tokens["shuffled"] < tokens["told"]

    rows = pq.read_table(out / "data" / "facts.parquet", columns=["id", "domain", "held"]).to_pylist()
    held = {row["id"]: row["domain"] for row in rows if row["held"]}
    asked = set(pq.read_table(out / "evaluation" / "answers.parquet", columns=["id"])["id"].to_pylist())
    assert asked <= held.keys(), "blocks that no prototype was made of, those of the general set, too"
    assert {held[name] for name in asked} == {"alpha", "beta", GENERAL}
    for manifest in out.rglob("manifest.json"):
        assert [check for check in verify_folder(manifest.parent) if not check.ok] == []

    told = json.loads(run("ask", "lines of alpha AlphaBlock1 ?", "--in", out, "--json"))
    assert set(told["answers"][0]["cosines"]) == {"alpha", "beta", GENERAL}
    (tmp_path / "rows.jsonl").write_text('{"question": "In beta , BetaBlock2 has what lines ?", "domain": "beta"}\n'
                                         '{"question": "what ?"}\n')  # fmt: skip
    many = json.loads(run("ask", "--questions", tmp_path / "rows.jsonl", "--in", out, "--json"))
    assert (many["routed"], len(many["answers"])) == ({"right": 1, "of": 1}, 2)

    shutil.rmtree(out / "domains" / "beta")
    assert json.loads(run("train", settings_file, "--domain", "alpha", "--json")) == alone
    answers = out / "evaluation" / "answers.parquet"
    answers.write_bytes(answers.read_bytes()[:-1])
    assert not all(check.ok for check in verify_folder(out / "evaluation"))


@pytest.mark.slow
def test_other_settings_are_refused_without_force(settings_file: Path, curator_cache: Path, tmp_path: Path) -> None:
    """And an expert may start from a model of its own, and train low-rank matrices alone."""
    workspace = Workspace(load_settings(settings_file))
    with pytest.raises(UserError, match="no such folder"):
        workspace.make_codebook()
    workspace.make_data()
    other = workspace.settings.model_copy(update={"seed": 1})
    with pytest.raises(UserError, match="add --force"):
        Workspace(other).make_data()
    Workspace(other, force=True).make_data()
    assert read_manifest(tmp_path / "made" / "data").parameters["seed"] == 1
    with pytest.raises(UserError, match="not a domain of the settings"):
        run("train", settings_file, "--domain", "gamma")
    with pytest.raises(UserError, match=r"pass a folder of `lemur experts train`"):
        run("ask", "q ?", "--in", tmp_path / "made")
    settings_file.write_text(SETTINGS.replace("[expert]\n", '[expert]\nmodel = "other"\nrank = 2\n'))
    Workspace(load_settings(settings_file), force=True).make_expert("alpha")
    start = load_file(tmp_path / "other" / "model.safetensors")
    trained = load_file(tmp_path / "made" / "domains" / "alpha" / "expert" / "model" / "model.safetensors")
    assert trained.keys() == start.keys()
    for name, weight in trained.items():
        change = weight - start[name]
        assert int(torch.linalg.matrix_rank(change, atol=1e-6)) == 2 if "_proj" in name else not change.any(), name
    settings_file.write_text(SETTINGS.replace('beta = ["beta"]', 'gamma = ["gamma"]'))
    with pytest.raises(UserError, match="gamma: the libraries have no block"):
        read_facts(load_settings(settings_file).data, seed=0)
