"""What a proxy keeps of a batch, what an epoch of it costs, and that a run with every option of training resumes."""

from pathlib import Path

import pytest
import torch
from torch import nn

from train.data.sources import load_cifar10
from train.model.recipe import Recipe, Training
from train.runs.job import TrainingJob
from train.runs.loop import HardestImages, Loop
from train.runs.process import Arithmetic, CountFlop, choose_context

TRAINING = Training(optimizer="muon", muon_unit=True, kept_part=0.25, kept_until=0.5, warmup_fraction=0.0)
CPU = choose_context("cpu")


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(32, 3, 32, 32, generator=generator), torch.arange(32) % 10


def selection(seed: int = 0) -> HardestImages:
    torch.manual_seed(seed)
    return HardestImages(TRAINING, CPU, 16, 10)


def test_the_images_with_the_largest_losses_are_kept_and_all_of_them_in_the_end() -> None:
    images, targets = batch()
    chosen = selection()
    scores = chosen._proxy(images).float()
    losses = nn.functional.cross_entropy(scores, targets, reduction="none", label_smoothing=0.1)
    kept, labels = chosen.choose(images, targets, 1)
    hardest = {tuple(image.flatten()[:4].tolist()) for image in images[losses.argsort()[-8:]]}
    assert {tuple(image.flatten()[:4].tolist()) for image in kept} == hardest
    assert len(labels) == 8
    assert chosen.choose(images, targets, 8)[0] is images
    assert [chosen.kind(step) for step in (0, 1, 4, 7, 8)] == ["learns", "looks", "learns", "looks", "rests"]


def test_the_proxy_learns_every_fourth_step_and_goes_on_from_its_state() -> None:
    images, targets = batch()
    first, second = selection(), selection(1)
    for step in range(6):
        before = first._proxy.head.weight.clone()
        first.choose(images, targets, step)
        assert torch.equal(before, first._proxy.head.weight) == (step % 4 != 0)
    second.load_state_dict(first.state_dict())
    for step in range(6, 9):
        one, other = (each.choose(images, targets, step)[0] for each in (first, second))
        assert torch.equal(one, other)
    assert torch.equal(first._proxy.head.weight, second._proxy.head.weight)


def test_operations_are_counted_once_for_each_kind() -> None:
    layer, images = nn.Conv2d(3, 8, 3, bias=False), torch.randn(2, 3, 10, 10)
    arithmetic = Arithmetic()
    for size in (10, 10, 6):
        with arithmetic.counted(size):
            layer(images[..., :size, :size]).sum().backward()
    forward = {size: 2 * 2 * 8 * (size - 2) ** 2 * 27 for size in (10, 6)}
    assert arithmetic.flop == 2 * (2 * forward[10] + forward[6])  # the images need no gradient
    with CountFlop() as counter, torch.no_grad():
        layer(images)
    assert counter.flop == forward[10]


NET = """
from torch import nn
class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 24, 3, 2), nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 24, 3, 2), nn.AdaptiveMaxPool2d(1),
            nn.Flatten(), nn.Linear(24, 10),
        )
    def forward(self, x):
        return self.layers(x)
"""


@pytest.mark.slow
def test_a_run_with_a_proxy_and_lookahead_goes_on_after_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = load_cifar10("synthetic:320", cache=tmp_path / "cache")
    recipe = Recipe().changed(
        training__epochs=2, training__last_part=0.5, training__batch_size=64, training__optimizer="muon",
        training__muon_unit=True, training__kept_part=0.5, training__lookahead=True, training__freeze_norm_weights=True,
        augmentation__independent=True, augmentation__flip="alternate",
    )  # fmt: skip
    job = TrainingJob(NET, {}, recipe.to_json(), 0, str(data.folder), 0, 256, True, "cpu", 1, None, 600.0, "key")

    def finish(folder: Path, epochs: int) -> tuple[object, object]:
        folder.mkdir(exist_ok=True)
        loop = Loop(job, folder)
        loop.build()
        if epochs == 1:
            for _ in range(4):
                loop.step()
            loop._end_epoch()
            return None, None
        loop.train()
        return loop.finish()["weights_sha256"], loop.figures()

    digest, figures = finish(tmp_path / "whole", 2)
    finish(tmp_path / "parts", 1)
    again, others = finish(tmp_path / "parts", 2)
    assert digest == again
    assert isinstance(figures, dict)
    assert isinstance(others, dict)
    assert (figures["steps"], figures["images_seen"]) == (6, 6 * 32)
    assert (others["flop"], others["images_seen"]) == (figures["flop"], figures["images_seen"])
