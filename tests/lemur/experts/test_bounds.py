"""The steps of `benchmarks.experts_bounds`, with a drawn model."""

from pathlib import Path

import pytest

from benchmarks import experts_bounds
from benchmarks.experts_bounds import Bounds, Framed
from lemur.experts.facts import read_facts
from lemur.experts.language import Frame, Language, draw_tiny, learn_tokenizer, plain_prompt
from lemur.experts.settings import Tiny, load_settings

# Its other name is of newer releases alone.
pytestmark = pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")


def _draw(texts: list[str]) -> Language:
    return draw_tiny("tiny", Tiny(width=32, layers=2, heads=2), learn_tokenizer(texts, 300), seed=0)


def test_examples_whose_states_are_kept_change_nothing() -> None:
    """Beside the same examples written out before each prompt."""
    shots = [("lines of a B ?", "a B lines 12", "12"), ("weights of c D ?", "c D parameters 70", "70")]
    frame = Frame(shots)
    language = _draw([frame.plain("lines of e F ?")] * 9)
    asked, answers = ["lines of e F ?", "weights of B ?", "the size of c ?"], ["3", "1440", "56"]
    framed, alone = Framed(language, frame, background=False), Framed(language, Frame(), background=False)
    own, whole = [plain_prompt(text) for text in asked], [frame.plain(text) for text in asked]
    kept = framed.loss(language.embed_prompts(own), answers)
    assert kept.item() == pytest.approx(alone.loss(language.embed_prompts(whole), answers).item(), rel=1e-5)
    assert kept.item() != pytest.approx(alone.loss(language.embed_prompts(own), answers).item(), rel=1e-4)
    assert framed.answers(language.embed_prompts(own)) == alone.answers(language.embed_prompts(whole))


def test_every_held_out_question_is_counted(
    settings_file: Path, curator_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "base"
    loaded = load_settings(settings_file)
    facts = read_facts(loaded.data, 0)
    _draw([f"Background: {fact.name}\n{fact.relation} {fact.answer}\nAnswer: 0123456789" for fact in facts]).save(base)
    monkeypatch.setattr(experts_bounds, "_ENCODERS", (0, -1))
    shots = loaded.base.model_copy(update={"model": str(base), "shots": 1})
    bounds = Bounds(loaded.model_copy(update={"base": shots}), tmp_path, (), 3, (2,))
    held = sum(len(bounds.held(domain)) for domain in bounds.domains)
    for name in ("experts_bounds", "experts_framed"):
        monkeypatch.setattr(f"benchmarks.{name}.LAYERS", (0, 1, -1))
    monkeypatch.setattr(experts_bounds, "_IMITATED", 2)
    for domain in bounds.domains:
        bounds.base.save(tmp_path / f"expert-{domain}")
    read, found, routed = bounds.reading(), bounds.codebook()["2 slots"], bounds.routing()
    assert {one["of"] for one in read.values()} == {min(held, 96)}
    assert len(found["losses"]) == 2
    assert found["own, 3 steps"]["of"] == found["shuffled, 0 steps"]["of"] == held
    assert all(one["all"][1] == held + len(bounds.held("general")) for one in routed.values())
    for domain, aligned in bounds.projector().items():
        counted = {name: one["of"] for name, one in aligned.items() if isinstance(one, dict)}
        assert set(counted.values()) == {len(bounds.held(domain))}
        assert {"2 slots, own", "2 slots, shuffled", "2 slots, projector", "linear, answer, layer -1"} <= counted.keys()
