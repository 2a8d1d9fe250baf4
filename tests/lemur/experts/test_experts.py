"""Domain experts with tiny models: questions, one injected token, the router, and the way from settings to answers."""

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn
from typer.testing import CliRunner

from lemur.cli import app
from lemur.experts import injection, stages
from lemur.experts.facts import ARMS, GENERAL, RELATIONS, Tiny, Training, load_settings, questions, read_facts, wordings
from lemur.experts.injection import (
    MARK,
    Codebook,
    Frame,
    Language,
    Router,
    centers,
    count_common,
    draw_tiny,
    learn_tokenizer,
    prompt_of,
)
from lemur.experts.stages import Workspace
from lemur.folders import verify_folder
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError
from manifests.folders.manifest import read_manifest


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["-q", "experts", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def digests(folder: Path) -> dict[str, str]:
    """Of all files but the lock."""
    every = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): sha256_file(path) for path in sorted(every)}


def tiny(texts: list[str], width: int = 16, layers: int = 1) -> Language:
    return draw_tiny(Tiny(width=width, layers=layers, heads=2), learn_tokenizer(texts, 300), seed=0)


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


_DATA = "out = 'x'\n[data]\nlibraries = ['library']\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{_DATA}blok = 1", "data.domains"),
        (f"{_DATA}[data.domains]\ngeneral = ['alpha']", "is reserved for blocks without a domain"),
        (f"{_DATA}[data.domains]\nalpha = ['alpha']\n[base]\nstep = 1", "base.step"),
        ("out = ", "cannot be read"),
        ("out = 'x'", "data"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "wrong.toml").write_text(text)
    with pytest.raises(UserError, match=message):
        load_settings(tmp_path / "wrong.toml")


def test_yaml_says_the_same_as_toml(settings_file: Path) -> None:
    path = settings_file.with_suffix(".yaml")
    path.write_text("out: made\ndata:\n  libraries: [library]\n  domains: {alpha: [alpha]}\ncodebook: {slots: 2}\n")
    read = load_settings(path)
    assert (read.seed, read.codebook.slots, read.router.prototypes) == (0, 2, 128)
    assert read.data.libraries == (settings_file.parent / "library",)
    path.write_text("out: [made\n")
    with pytest.raises(UserError, match="cannot be read"):
        load_settings(path)


def test_a_domain_without_blocks_is_named(settings_file: Path) -> None:
    settings_file.write_text(settings_file.read_text().replace('beta = ["beta"]', 'gamma = ["gamma"]'))
    with pytest.raises(UserError, match="gamma: the libraries have no block"):
        read_facts(load_settings(settings_file).data, seed=0)


POINTS = st.integers(0, 2**31 - 1).map(lambda seed: torch.randn(40, 6, generator=torch.Generator().manual_seed(seed)))


@settings(max_examples=10, deadline=None)
@given(st.lists(POINTS, min_size=2, max_size=4), POINTS)
def test_a_further_domain_takes_questions_or_leaves_them(domains: list[Tensor], asked: Tensor) -> None:
    names = [GENERAL, *(f"d{at}" for at in range(1, len(domains)))]
    made = {name: centers(states, 5, seed=0) for name, states in zip(names, domains, strict=True)}
    assert all(torch.allclose(found.norm(dim=1), torch.ones(len(found))) for found in made.values())
    before, after = Router({name: made[name] for name in names[:-1]}), Router(made)
    assert all(torch.equal(before.cosines(asked)[name], after.cosines(asked)[name]) for name in names[:-1])
    for one, other in zip(before.route(asked), after.route(asked), strict=True):
        assert other in (one, names[-1])
    assert Router(dict(reversed(made.items()))).route(asked) == after.route(asked)


def test_what_is_between_two_domains_or_far_from_all_is_general() -> None:
    prototypes = {name: torch.eye(3)[at : at + 1] for at, name in enumerate(("a", "b", GENERAL))}
    asked = torch.tensor([[1.0, 0.9, 0], [3.0, 0.1, 0]])
    assert Router(prototypes).route(asked) == ["a", "a"]
    assert Router(prototypes, margin=0.3).route(asked) == [GENERAL, "a"]
    assert Router(prototypes, least=0.9).route(asked) == [GENERAL, "a"]


def test_prototypes_find_the_groups() -> None:
    ends = torch.eye(4)
    states = torch.cat([end + 0.01 * torch.randn(30, 4, generator=torch.Generator().manual_seed(1)) for end in ends])
    found = centers(states, 4, seed=0)
    assert sorted((found @ ends.T).argmax(1).tolist()) == [0, 1, 2, 3]
    assert len(centers(states[:2].repeat(3, 1), 4, seed=0)) == 2


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


@pytest.mark.parametrize("slots", [1, 4])
def test_each_number_has_as_many_vectors(slots: int) -> None:
    base = tiny(["7 12 345678"] * 9)
    made = Codebook(["7", "12", "345678"], slots, base)(["345678", "7", "345679"])
    assert made.shape == (3, slots, 16)
    assert torch.equal(made[0], made[2])
    assert not torch.allclose(made[0], made[1], atol=1e-3)
    lengths = base.model.get_input_embeddings().weight.norm(dim=1)
    assert torch.allclose(made.norm(dim=-1), lengths.mean(), rtol=1e-4)


def test_what_is_injected_stands_at_the_mark() -> None:
    question = "lines of a B ?"
    language = tiny([prompt_of(question, "12")] * 9)
    (vector,) = language.embed([language.bare_ids(" 12")])
    (put,) = language.embed_injected([prompt_of(question, MARK)], vector[None])
    (read,) = language.embed_prompts([prompt_of(question, "12")])
    assert torch.equal(put, read)
    plain = language.embed_prompts([prompt_of(question)])
    assert language.answers([read, *plain]) == language.answers([put, *plain])


def test_a_loss_is_that_of_the_answers_alone() -> None:
    """Beside transformers' own, one row at a time, without padding."""
    language = tiny(["a b c d e f g"] * 3)
    prompts, answers = ["a b c", "d", "e f g a b"], ["d e", "f", "c"]
    losses = []
    for prompt, answer in zip(prompts, answers, strict=True):
        before, after = language.ids(prompt), language.answer_ids(answer)
        logits = language.model(torch.tensor([before + after])).logits[0, len(before) - 1 : -1]
        losses += nn.functional.cross_entropy(logits, torch.tensor(after), reduction="none").tolist()
    found = language.loss(language.embed_prompts(prompts), answers).item()
    assert found == pytest.approx(sum(losses) / len(losses), rel=1e-4)


@pytest.mark.parametrize("frozen", [False, True])
def test_examples_that_are_read_once_change_nothing(frozen: bool) -> None:
    """Beside the same prompts one by one, which share nothing."""
    frame = Frame([("lines of a B ?", "a B lines 12", "12"), ("weights of c D ?", "c D parameters 70", "70")])
    language = tiny([frame.plain("lines of e F ?")] * 9, width=32, layers=2)
    vectors = torch.randn(3, 1, 32, requires_grad=True)
    prompts, answers = map(frame.with_answer, ("lines of e F ?", "weights of B ?", "the size")), ["3", "1", "5"]
    inputs = language.embed_injected(list(prompts), vectors)
    assert count_common(inputs) > 30
    assert count_common(inputs[:1]) == count_common([row[-9:] for row in inputs]) == 0
    if frozen:
        language.model.requires_grad_(requires_grad=False)
    loss = language.loss(inputs, answers)
    (gradient,) = torch.autograd.grad(loss, vectors, retain_graph=True)
    alone = sum(language.loss([row], [answer]) for row, answer in zip(inputs, answers, strict=True)) / 3
    assert loss.item() == pytest.approx(alone.item(), rel=1e-5)
    assert torch.allclose(gradient, torch.autograd.grad(alone, vectors)[0], atol=1e-6)
    assert language.answers(inputs)[0] == [language.answers([row])[0][0] for row in inputs]
    assert replace(language, lines=True).answer_ids("3")[-1] == language.bare_ids("\n")[0]


@pytest.mark.slow
def test_a_domain_from_settings_to_answers_and_then_another(
    settings_file: Path, curator_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "made"
    alone = json.loads(run("train", settings_file, "--domain", "alpha", "--json"))
    assert set(alone["scores"]) == set(ARMS)
    before = digests(out)
    run("train", settings_file, "--domain", "alpha")
    assert digests(out) == before
    opened: list[str] = []
    open_ = stages.open_language
    monkeypatch.setattr(stages, "open_language", lambda name, *more: opened.append(name) or open_(name, *more))

    counts = json.loads(run("train", settings_file, "--json"))
    after = digests(out)
    others = {name for name in before if not name.startswith("evaluation/")}
    assert {name: after[name] for name in others} == {name: before[name] for name in others}
    assert {name.split("/")[1] for name in after if name.startswith("domains/")} == {"alpha", "beta", GENERAL}
    for arm in set(ARMS) - {"routed"}:  # a question may be routed to the further domain
        assert counts["scores"][arm]["alpha"] == alone["scores"][arm]["alpha"]
    assert set(counts["scores"]["oracle"]) == {"alpha", "beta", "all"}
    assert counts["found"]["general_exact"]
    assert set(counts["found"]["routing"]) == {"alpha", "beta", GENERAL}
    tokens = {arm: scores["all"]["tokens"] for arm, scores in counts["scores"].items()}
    assert tokens["closed"] + 4 == tokens["oracle"] == tokens["shuffled"] < tokens["told"]
    # Of each expert, once for all its questions; another router's list of questions may ask it again.
    assert opened.count(str(out / "domains" / "beta" / "expert" / "model")) <= 2

    rows = pq.read_table(out / "data" / "facts.parquet", columns=["id", "domain", "held"]).to_pylist()
    held = {row["id"]: row["domain"] for row in rows if row["held"]}
    asked = set(pq.read_table(out / "evaluation" / "answers.parquet", columns=["id"])["id"].to_pylist())
    assert asked <= held.keys(), "blocks that no prototype was made of, those of the general set, too"
    assert {held[name] for name in asked} == {"alpha", "beta", GENERAL}
    for manifest in out.rglob("manifest.json"):
        assert [check for check in verify_folder(manifest.parent) if not check.ok] == []

    told = json.loads(run("ask", "lines of alpha AlphaBlock1 ?", "--in", out, "--domain", "alpha", "--json"))
    assert told["answers"][0]["routed"] == "alpha"
    (tmp_path / "rows.jsonl").write_text('{"question": "In beta , BetaBlock2 has what lines ?", "domain": "beta"}\n'
                                         '{"question": "what ?"}\n')  # fmt: skip
    many = json.loads(run("ask", "--questions", tmp_path / "rows.jsonl", "--in", out, "--json"))
    assert (many["routed"], len(many["answers"])) == ({"right": 1, "of": 1}, 2)
    with pytest.raises(UserError, match="gamma: not a domain"):
        run("ask", "q ?", "--in", out, "--domain", "gamma")

    for path in sorted((out / "domains" / "beta").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    again = json.loads(run("train", settings_file, "--domain", "alpha", "--json"))
    assert again == alone
    answers = out / "evaluation" / "answers.parquet"
    answers.write_bytes(answers.read_bytes()[:-1])
    assert not all(check.ok for check in verify_folder(out / "evaluation"))


@pytest.mark.slow
def test_other_settings_are_refused_without_force(settings_file: Path, curator_cache: Path, tmp_path: Path) -> None:
    workspace = Workspace(load_settings(settings_file))
    workspace.make_data()
    other = workspace.settings.model_copy(update={"seed": 1})
    with pytest.raises(UserError, match="add --force"):
        Workspace(other).make_data()
    Workspace(other, force=True).make_data()
    assert read_manifest(tmp_path / "made" / "data").parameters["seed"] == 1
    with pytest.raises(UserError, match="not a domain of the settings"):
        run("train", settings_file, "--domain", "gamma")
    with pytest.raises(UserError, match="no such folder"):
        workspace.make_codebook()
    with pytest.raises(UserError, match=r"pass a folder of `lemur experts train`"):
        run("ask", "q ?", "--in", tmp_path / "made")


@pytest.mark.slow
def test_real_models_by_name(settings_file: Path, curator_cache: Path, tmp_path: Path) -> None:
    """A base and an expert of other architectures, with random weights and tokenizers of their own."""
    import transformers

    text = settings_file.read_text()
    for name, width in (("base", 32), ("expert", 16)):
        tokenizer = learn_tokenizer([prompt_of(f"lines of alpha AlphaBlock{n} ?", str(n)) for n in range(20)], 332)
        config = transformers.GPT2Config(
            vocab_size=len(tokenizer), n_positions=256, n_embd=width, n_layer=2, n_head=2,
            eos_token_id=tokenizer.eos_token_id, bos_token_id=tokenizer.eos_token_id, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        )  # fmt: skip
        torch.manual_seed(width)
        transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        text = text.replace(f"[{name}]\n", f'[{name}]\nmodel = "{name}"\n')
    settings_file.write_text(text)
    frozen = digests(tmp_path / "base")
    counts = json.loads(run("train", settings_file, "--json"))
    assert counts["found"]["general_exact"]
    assert digests(tmp_path / "base") == frozen
    assert not (tmp_path / "made" / "base").exists()
    adapted = load_file(tmp_path / "made" / "domains" / "alpha" / "expert" / "model" / "model.safetensors")
    assert "transformer.h.1.attn.c_attn.weight" in adapted
