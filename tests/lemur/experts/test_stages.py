"""The commands, with tiny models: what they make, what stays as it was, and that a run that was killed goes on."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from lemur.cli import app
from lemur.experts import stages
from lemur.experts.folder import ARMS
from lemur.experts.language import MARK, Frame, count_common, draw_tiny, learn_tokenizer, plain_prompt, prompt_with
from lemur.experts.settings import Tiny, TuningSettings, load_settings
from lemur.experts.stages import Workspace
from lemur.folders import trace, verify_folder
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError
from manifests.folders.manifest import read_manifest

STAGES = ("data", "adapt", "align", "route")


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["-q", "experts", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def digests(folder: Path) -> dict[str, str]:
    """Of all files but manifests, which tell seconds."""
    every = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("manifest.json", ".lock"))
    return {str(path.relative_to(folder)): sha256_file(path) for path in sorted(every)}


def test_what_is_injected_stands_at_the_mark() -> None:
    tokenizer = learn_tokenizer([prompt_with("lines of a B ?", "12")] * 9, 300)
    language = draw_tiny(Tiny(width=16, layers=1, heads=2), tokenizer, seed=0)
    word = tokenizer(" 12", add_special_tokens=False).input_ids
    (vector,) = language.embed([word])
    (put,) = language.embed_injected([prompt_with("lines of a B ?")], vector[None])
    (read,) = language.embed_prompts([prompt_with("lines of a B ?", "12")])
    assert MARK not in tokenizer.decode(language.ids(prompt_with("lines of a B ?", "12")))
    assert torch.equal(put, read)
    texts, scores = language.answers([put, *language.embed_prompts([plain_prompt("lines of a B ?")])])
    assert language.answers([read, *language.embed_prompts([plain_prompt("lines of a B ?")])]) == (texts, scores)


def test_a_loss_is_that_of_the_answers_alone() -> None:
    """Beside transformers' own, one row at a time, without padding."""
    tokenizer = learn_tokenizer(["a b c d e f g"] * 3, 300)
    language = draw_tiny(Tiny(width=16, layers=1, heads=2), tokenizer, seed=0)
    prompts, answers = ["a b c", "d", "e f g a b"], ["d e", "f", "c"]
    losses = []
    for prompt, answer in zip(prompts, answers, strict=True):
        before, after = language.ids(prompt), language.answer_ids(answer)
        logits = language.model(torch.tensor([before + after])).logits[0, len(before) - 1 : -1]
        losses += torch.nn.functional.cross_entropy(logits, torch.tensor(after), reduction="none").tolist()
    assert language.loss(language.embed_prompts(prompts), answers).item() == pytest.approx(
        sum(losses) / len(losses), rel=1e-4
    )


@pytest.mark.parametrize("frozen", [False, True])
def test_examples_that_are_read_once_change_nothing(frozen: bool) -> None:
    """Beside the same prompts one by one, which share nothing."""
    frame = Frame([("lines of a B ?", "a B lines 12", "12"), ("weights of c D ?", "c D parameters 70", "70")])
    tokenizer = learn_tokenizer([frame.plain("lines of e F ?")] * 9, 300)
    language = draw_tiny(Tiny(width=32, layers=2, heads=2), tokenizer, seed=0)
    vectors = torch.randn(3, 1, 32, requires_grad=True)
    prompts, answers = (
        [frame.with_answer(text) for text in ("lines of e F ?", "weights of B ?", "the size")],
        ["3", "1", "5"],
    )
    inputs = language.embed_injected(prompts, vectors)
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
    ended = replace(language, lines=True)
    assert ended.answer_ids("3")[-1] == language.bare_ids("\n")[0]


def test_an_expert_is_asked_again_only_with_other_weights(
    settings_file: Path, curator_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = Workspace(load_settings(settings_file), force=True)
    house.make_data()
    house.make_base()
    house.make_expert("alpha")
    opened: list[str] = []
    open_ = stages.open_language
    monkeypatch.setattr(
        stages, "open_language", lambda name, *more, **by: opened.append(name) or open_(name, *more, **by)
    )
    asked = ["lines of alpha AlphaBlock3 ?", "alpha AlphaBlock5 : length ?"]
    assert house.ask_expert("alpha", asked) == house.ask_expert("alpha", asked)
    assert len(opened) == 1
    training = TuningSettings(steps=9, batch=8)
    expert = house.settings.expert.model_copy(update={"training": training})
    replace(house, settings=house.settings.model_copy(update={"expert": expert})).make_expert("alpha")
    house.ask_expert("alpha", asked)
    assert len(opened) == 2


@pytest.mark.slow
def test_the_whole_way(settings_file: Path, curator_cache: Path, tmp_path: Path) -> None:
    for stage in STAGES:
        run(stage, settings_file)
    out = tmp_path / "made"
    before = digests(out)
    for stage in STAGES:
        run(stage, settings_file)
    assert digests(out) == before
    counts = json.loads(run("evaluate", settings_file, "--json"))
    assert set(counts["scores"]) == set(ARMS)
    assert counts["found"]["general_exact"]
    assert all(step["oracle_equal"] for step in counts["found"]["growth"])
    tokens = {arm: own["all"]["tokens"] for arm, own in counts["scores"].items()}
    assert tokens["oracle"] == tokens["shuffled"] == tokens["other domain"] < tokens["retrieved"]
    assert tokens["expert"] < tokens["expert as text"] < tokens["told"]
    rows = pq.read_table(out / "data" / "facts.parquet", columns=["id", "domain", "held"]).to_pylist()
    held = {row["id"] for row in rows if row["held"]}
    asked = set(pq.read_table(out / "evaluation" / "answers.parquet", columns=["id"])["id"].to_pylist())
    assert asked <= held, "blocks that no prototype was made of, those of the general set, too"
    assert any(row["id"] in asked for row in rows if row["domain"] == "general")

    for manifest in out.rglob("manifest.json"):
        assert [check for check in verify_folder(manifest.parent) if not check.ok] == []
    answers = out / "evaluation" / "answers.parquet"
    answers.write_bytes(answers.read_bytes()[:-1])
    assert not all(check.ok for check in verify_folder(out / "evaluation"))

    fact = "alpha@1.0::alpha.blocks.AlphaBlock1#lines"
    if fact not in {link.name for link in trace(fact.partition("#")[0], [out / "data"])}:
        pytest.fail("a block's facts are not found")
    with pytest.raises(UserError, match="AlphaBlock1#lines"):
        trace(fact.replace("Alpha", "Alfa"), [out / "data"])
    assert trace("alpha", [out / "domains" / "alpha" / "prototypes"])[0].what == "prototypes"

    told = json.loads(run("answer", settings_file, "lines of alpha AlphaBlock1 ?", "--domain", "alpha", "--json"))
    assert told["domain"] == "alpha"
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "lines of beta BetaBlock2 ?", "domain": "beta"}\n{"question": "what ?"}\n')
    routed = json.loads(run("route", settings_file, "--questions", rows))
    assert routed["accuracy"]["beta"]["questions"] == 1
    assert len(routed["questions"]) == 2


@pytest.mark.slow
def test_a_domain_is_added_and_removed_without_touching_others(
    settings_file: Path, curator_cache: Path, tmp_path: Path
) -> None:
    run("data", settings_file)
    run("adapt", settings_file, "--domain", "alpha")
    run("align", settings_file)
    run("route", settings_file, "--domain", "alpha")
    out = tmp_path / "made"
    before = digests(out)
    house = Workspace(load_settings(settings_file))
    base = house.base()
    asked = ["lines of alpha AlphaBlock3 ?", "alpha AlphaBlock5 : length ?"]

    def oracle() -> tuple[list[str], str]:
        slots = house.slots("alpha", asked, base)
        return base.answers(base.embed_injected([prompt_with(question) for question in asked], slots))

    alone = oracle()
    for stage in ("adapt", "route"):
        run(stage, settings_file, "--domain", "beta")
    after = digests(out)
    assert {name: after[name] for name in before} == before
    assert len(after) > len(before)
    assert oracle() == alone
    assert house.slots("alpha", asked, base).shape == house.slots("beta", asked, base).shape
    for path in sorted((out / "domains" / "beta").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    assert digests(out) == before
    assert oracle() == alone


@pytest.mark.slow
def test_other_settings_are_refused_without_force(settings_file: Path, curator_cache: Path, tmp_path: Path) -> None:
    run("data", settings_file)
    with pytest.raises(UserError, match="add --force"):
        run("data", settings_file, "--seed", 1)
    run("data", settings_file, "--seed", 1, "--force")
    assert read_manifest(tmp_path / "made" / "data").parameters["seed"] == 1
    with pytest.raises(UserError, match="not a domain of the settings"):
        run("adapt", settings_file, "--domain", "gamma")
    with pytest.raises(UserError, match="no such folder"):
        run("align", settings_file)


@pytest.mark.slow
def test_real_models_by_name(settings_file: Path, curator_cache: Path, tmp_path: Path) -> None:
    """A base and an expert of other architectures, with random weights and tokenizers of their own."""
    import transformers

    for name, width in (("base", 32), ("expert", 16)):
        tokenizer = learn_tokenizer(
            [prompt_with(f"lines of alpha AlphaBlock{n} ?", str(n)) for n in range(20)], 300 + width
        )
        config = transformers.GPT2Config(
            vocab_size=len(tokenizer), n_positions=256, n_embd=width, n_layer=2, n_head=2,
            eos_token_id=tokenizer.eos_token_id, bos_token_id=tokenizer.eos_token_id, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        )  # fmt: skip
        torch.manual_seed(width)
        transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    frozen = digests(tmp_path / "base")
    given = ("--base", tmp_path / "base", "--expert", tmp_path / "expert")
    run("data", settings_file)
    run("adapt", settings_file, *given)
    run("align", settings_file, "--base", tmp_path / "base")
    run("route", settings_file, "--base", tmp_path / "base")
    counts = json.loads(run("evaluate", settings_file, *given, "--json"))
    assert counts["found"]["general_exact"]
    assert digests(tmp_path / "base") == frozen
    assert not (tmp_path / "made" / "base").exists()
    adapted = load_file(tmp_path / "made" / "domains" / "alpha" / "expert" / "model" / "model.safetensors")
    assert "transformer.h.1.attn.c_attn.weight" in adapted
