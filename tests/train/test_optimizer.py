"""Optimizers, their schedules and averages: what decays, what Muon trains beside SGD, states that go on."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from train.data.sources import load_cifar10
from train.model.recipe import Recipe, Training
from train.runs.job import TrainingJob
from train.runs.loop import (
    Arithmetic,
    CountFlop,
    Descent,
    HardestImages,
    Lookahead,
    Loop,
    Muon,
    choose_context,
    freeze_norm_weights,
    start_as_identity,
)


def groups_of(descent: Descent) -> list[dict[str, Any]]:
    return [group for optimizer in descent.optimizers for group in optimizer.param_groups]


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
@pytest.mark.parametrize("warm", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 3, 9, 40])
def test_schedules(schedule: Any, warm: float, steps: int) -> None:
    """Up in a line, then down in a line or half a cosine."""
    training = Training(learning_rate=0.5, schedule=schedule, warmup_fraction=warm)
    descent = Descent([nn.Parameter(torch.zeros(2, 2))], training, steps)
    found = []
    for _ in range(steps):
        found.append(descent.rate)
        descent.step()
    assert all(0 <= rate <= 0.5 + 1e-9 for rate in found)
    if steps == 40:
        peak = round(warm * steps)
        assert found[:peak] == sorted(found[:peak])
        assert found[0] < 0.06 or not warm
        assert max(found) == pytest.approx(0.5, rel=0.1)
        down = [step / (steps - peak) for step in range(steps - peak)]
        falls = [1 - part if schedule == "linear" else (1 + math.cos(math.pi * part)) / 2 for part in down]
        assert found[peak:] == pytest.approx([0.5 * part for part in falls])


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_only_matrices_decay(name: Any) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    net[0].bias.requires_grad_(False)
    groups = groups_of(Descent(net.parameters(), Training(optimizer=name, weight_decay=0.1), 9))
    shapes = {group["weight_decay"]: [tuple(each.shape) for each in group["params"]] for group in groups}
    assert shapes == {0.1: [(4, 3, 3, 3)], 0.0: [(4,), (4,)]}


TRAINING = Training(optimizer="muon", muon_learning_rate=0.5, schedule="linear", warmup_fraction=0.0)


def test_only_convolutions_between_many_channels_go_to_muon() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 3), nn.Conv2d(32, 48, 3), nn.BatchNorm2d(48), nn.Flatten(), nn.Linear(48 * 16, 10)]
    net = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    descent = Descent(net.parameters(), TRAINING, 10)
    assert [group["lr"] for group in groups_of(descent)] == [0.5, 0.1, 0.1]
    net(torch.randn(4, 3, 8, 8)).square().mean().backward()
    descent.step()
    change = net[1].weight.detach() - before[2]
    rows = (change / 0.5).permute(0, 2, 3, 1).reshape(48, -1)
    singular = torch.linalg.svdvals(rows)
    assert singular.min() > 0.5  # orthogonal rows, as far as five Newton-Schulz steps go
    assert singular.max() < 1.5
    assert not torch.equal(net[0].weight, before[0])
    assert not torch.equal(net[4].bias, before[-1])


@pytest.mark.parametrize("shape", [(24, 100), (100, 24), (1, 7)])
def test_a_step_is_that_of_torch_as_far_as_bfloat16_goes(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    start = torch.randn(shape)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    pair = (Muon([ours], 0.1, 0.9, 0.05), torch.optim.Muon([theirs], lr=0.1, momentum=0.9, weight_decay=0.05))
    for _ in range(5):
        gradient = torch.randn(shape)
        for weight, optimizer in zip((ours, theirs), pair, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    moved = (theirs - start).norm()
    assert (ours - theirs).norm() < 0.02 * moved


def test_what_muon_trains_keeps_the_norm_of_an_orthogonal_matrix_and_biases_have_a_rate_of_their_own() -> None:
    net = nn.Sequential(nn.Conv2d(24, 32, 3), nn.BatchNorm2d(32)).to(memory_format=torch.channels_last)
    freeze_norm_weights(net)
    rates = {"muon_learning_rate": 0.01, "learning_rate": 0.1, "bias_rate": 64}
    descent = Descent(net.parameters(), TRAINING.model_copy(update={"muon_unit": True, **rates}), 10**6)
    for _ in range(3):
        descent.zero_grad()
        net(torch.randn(4, 24, 8, 8)).square().sum().backward()
        descent.step()
    assert float(net[0].weight.detach().norm()) == pytest.approx(32**0.5, rel=0.02)
    assert sorted(group["lr"] for group in groups_of(descent)) == pytest.approx([0.01, 6.4], rel=1e-4)
    assert torch.equal(net[1].weight, torch.ones(32))
    assert not torch.equal(net[1].bias, torch.zeros(32))


def test_a_convolution_begins_as_the_identity_of_its_channels() -> None:
    net = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1, bias=False), nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 1))
    before = [layer.weight.clone() for layer in net]
    start_as_identity(net)
    images = torch.randn(2, 3, 6, 6)
    torch.testing.assert_close(net[0](images)[:, :3], images)
    assert torch.equal(net[0].weight[3:], before[0][3:])
    assert all(torch.equal(layer.weight, weight) for layer, weight in zip(net[1:], before[1:], strict=True))


def test_lookahead_goes_back_to_a_mean_that_slows_and_ends_in_it() -> None:
    net = nn.Linear(1, 1, bias=False)
    mean = Lookahead(net, 20)
    seen = []
    for step in range(1, 21):
        with torch.no_grad():
            net.weight.fill_(step)
        mean.step(step)
        seen.append(net.weight.item())
    changed = [step for step, value in enumerate(seen, 1) if value != step]
    assert changed == [5, 10, 15, 20]
    assert seen[4] == pytest.approx(5 - 0.95**5 / 64 * (5 - float(mean._slow["weight"])), abs=0.2)
    assert seen[19] == seen[14]
    other = Lookahead(nn.Linear(1, 1, bias=False), 20)
    other.load_state_dict(mean.state_dict())
    assert torch.equal(other._slow["weight"], mean._slow["weight"])


# What a proxy keeps of a batch, what an epoch of it costs, and that a run with every option of training resumes.


PROXY = Training(optimizer="muon", muon_unit=True, kept_part=0.25, kept_until=0.5, warmup_fraction=0.0)
CPU = choose_context("cpu")


IMAGES = torch.randn(32, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TARGETS = torch.arange(32) % 10


def selection(seed: int = 0) -> HardestImages:
    torch.manual_seed(seed)
    return HardestImages(PROXY, CPU, 16, 10)


def test_the_images_with_the_largest_losses_are_kept_and_all_of_them_in_the_end() -> None:
    images, targets, chosen = IMAGES, TARGETS, selection()
    scores = chosen._proxy(images).float()
    losses = nn.functional.cross_entropy(scores, targets, reduction="none", label_smoothing=0.1)
    kept, labels = chosen.choose(images, targets, 1)
    hardest = {tuple(image.flatten()[:4].tolist()) for image in images[losses.argsort()[-8:]]}
    assert {tuple(image.flatten()[:4].tolist()) for image in kept} == hardest
    assert len(labels) == 8
    assert chosen.choose(images, targets, 8)[0] is images
    assert [chosen.kind(step) for step in (0, 1, 4, 7, 8)] == ["learns", "looks", "learns", "looks", "rests"]


def test_the_proxy_learns_every_fourth_step_and_goes_on_from_its_state() -> None:
    first, second = selection(), selection(1)
    for step in range(6):
        before = first._proxy.head.weight.clone()
        first.choose(IMAGES, TARGETS, step)
        assert torch.equal(before, first._proxy.head.weight) == (step % 4 != 0)
    second.load_state_dict(first.state_dict())
    for step in range(6, 9):
        one, other = (each.choose(IMAGES, TARGETS, step)[0] for each in (first, second))
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
class Net(nn.Sequential):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__(
            nn.Conv2d(3, 24, 3, 2), nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 24, 3, 2), nn.AdaptiveMaxPool2d(1),
            nn.Flatten(), nn.Linear(24, 10),
        )
"""


def test_a_run_that_flips_by_turns_shows_the_mirrored_images_in_its_second_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = load_cifar10("synthetic:320", cache=tmp_path / "cache")
    recipe = Recipe().changed(training__batch_size=32, augmentation__flip="alternate", augmentation__crop_padding=0)
    loop = Loop(
        TrainingJob(NET, {}, recipe.to_json(), 0, str(data.folder), 0, 32, "cpu", 1, None, 600.0, "key"), tmp_path
    )
    loop.build()
    epochs = []
    for loop.steps in range(2):  # each is one batch
        epochs.append(loop._load()[0])
    first, second = ({image.numpy().tobytes() for image in images} for images in (epochs[0], epochs[1].flip(3)))
    assert first == second


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
    job = TrainingJob(NET, {}, recipe.to_json(), 0, str(data.folder), 0, 256, "cpu", 1, None, 600.0, "key")

    def finish(folder: Path, epochs: int) -> tuple[bytes, dict[str, Any]]:
        folder.mkdir(exist_ok=True)
        loop = Loop(job, folder)
        loop.build()
        if epochs == 1:
            for _ in range(4):
                loop.step()
            loop._end_epoch()
            return b"", {}
        loop.train()
        loop.finish()
        return (folder / "weights.pt").read_bytes(), loop.figures()

    weights, figures = finish(tmp_path / "whole", 2)
    finish(tmp_path / "parts", 1)
    again, others = finish(tmp_path / "parts", 2)
    assert weights == again
    assert (figures["steps"], figures["images_seen"]) == (6, 6 * 32)
    assert (others["flop"], others["images_seen"]) == (figures["flop"], figures["images_seen"])
