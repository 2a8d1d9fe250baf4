"""The steps of `benchmarks.experts_bounds`, with drawn models."""

from pathlib import Path

import torch

from benchmarks.experts_bounds import Bounds, apply_map, fit_map
from lemur.experts.settings import load_settings
from lemur.experts.stages import Workspace


def test_every_held_out_question_is_counted(settings_file: Path, curator_cache: Path) -> None:
    workspace = Workspace(load_settings(settings_file))
    workspace.make_data()
    workspace.make_base()
    workspace.make_codebook()
    workspace.make_expert("alpha")
    bounds = Bounds(workspace, ("alpha",))
    held = len(bounds.held("alpha"))
    assert {one["of"] for one in bounds.reading().values()} == {min(held, 96)}
    assert {one["of"] for one in bounds.codebook().values() if isinstance(one, dict)} == {held}
    everywhere = sum(len(bounds.held(domain)) for domain in ("alpha", "beta", "general"))
    assert all(one["all"][1] == everywhere for one in bounds.routing().values())
    (layers,) = bounds.layers().values()
    assert {one["of"] for one in layers.values()} == {held}
    assert {"question, layer 0", "question, layer 1", "answer, layer 1"} <= layers.keys()


def test_a_map_reads_what_it_did_not_see() -> None:
    generator = torch.Generator().manual_seed(0)
    ends = 3 * torch.randn(5, 12, generator=generator)
    places = torch.arange(200) % 5
    states = 40 + ends[places] + torch.randn(200, 12, generator=generator)
    fitted = fit_map(states[:150], places[:150], 6)
    assert fitted.shape == (13, 6)
    assert torch.equal(apply_map(fitted, states[150:]), places[150:])
