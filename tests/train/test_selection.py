"""What a proxy keeps of a batch, what an epoch of it costs, and that a run with every option of training resumes."""

import torch
from torch import nn

from train.model.recipe import Training
from train.runs.process import Arithmetic, CountFlop, choose_context
from train.runs.selection import Selection

TRAINING = Training(optimizer="muon", muon_unit=True, kept_part=0.25, kept_until=0.5, warmup_fraction=0.0)
CPU = choose_context("cpu")


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(32, 3, 32, 32, generator=generator), torch.arange(32) % 10


def selection(seed: int = 0) -> Selection:
    torch.manual_seed(seed)
    return Selection(TRAINING, CPU, 16, 10)


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
