"""The parts of the loop: optimiser, schedules, evaluation, the ledger, what a network must be."""

import math

import pytest
import torch
from torch import nn

from train.augment import Pixels
from train.device import choose_place, seed_everything, stable_seed
from train.metrics import DivergedError, RunMetrics, evaluate
from train.network import NetworkError, check_output, construct, load_network, place_of
from train.optimizer import make_average, make_optimizer, make_schedule
from train.recipe import Training

STEPS = 40


def rates(**settings: object) -> list[float]:
    training = Training(learning_rate=0.5, **settings)  # type: ignore[arg-type]
    optimizer = make_optimizer([nn.Parameter(torch.zeros(2, 2))], training)
    schedule = make_schedule(optimizer, training, STEPS)
    found = []
    for _ in range(STEPS):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize("schedule", ["cosine", "onecycle", "linear", "constant"])
@pytest.mark.parametrize("warm", [0.0, 0.25, 1.0])
def test_schedules(schedule: str, warm: float) -> None:
    found = rates(schedule=schedule, warmup_fraction=warm)
    peak = round(warm * STEPS)
    assert all(0 <= rate <= 0.5 + 1e-9 for rate in found)
    rising, falling = found[:peak], found[peak:]
    assert rising == sorted(rising)
    assert max(found) == pytest.approx(0.5, rel=0.1)
    if warm:
        assert found[0] < 0.06
    if schedule == "constant":
        assert falling == pytest.approx([0.5] * len(falling))
    elif warm < 1:
        assert falling[1:] == sorted(falling[1:], reverse=True)
        assert falling[-1] < 0.03
    if schedule == "linear" and warm == 0:
        assert found == pytest.approx([0.5 * (1 - step / STEPS) for step in range(STEPS)])
    if schedule == "cosine" and warm == 0:
        assert found == pytest.approx([0.25 * (1 + math.cos(math.pi * step / STEPS)) for step in range(STEPS)])


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("schedule", ["cosine", "onecycle", "linear", "constant"])
def test_short_runs_have_a_rate(schedule: str, steps: int) -> None:
    training = Training(schedule=schedule)  # type: ignore[arg-type]
    optimizer = make_optimizer([nn.Parameter(torch.zeros(2, 2))], training)
    rising = make_schedule(optimizer, training, steps)
    for _ in range(steps):
        assert math.isfinite(optimizer.param_groups[0]["lr"])
        optimizer.step()
        rising.step()


def test_one_cycle_may_warm_up_for_one_step() -> None:
    training = Training(schedule="onecycle", warmup_fraction=0.1)
    optimizer = make_optimizer([nn.Parameter(torch.zeros(2, 2))], training)
    rising = make_schedule(optimizer, training, 9)
    rates = []
    for _ in range(9):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        rising.step()
    assert all(map(math.isfinite, rates))
    assert max(rates[:2]) == pytest.approx(training.learning_rate)
    assert rates[1:] == sorted(rates[1:], reverse=True)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_only_matrices_decay(name: str) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    net[0].bias.requires_grad_(False)
    groups = make_optimizer(net.parameters(), Training(optimizer=name, weight_decay=0.1)).param_groups  # type: ignore[arg-type]
    assert [(group["weight_decay"], [tuple(each.shape) for each in group["params"]]) for group in groups] == [
        (0.1, [(4, 3, 3, 3)]),
        (0.0, [(4,), (4,)]),
    ]


def test_averages_forget_the_first_weights_soon() -> None:
    net = nn.Linear(1, 1, bias=False)
    average = make_average(net, 0.9)
    expected = 1.0
    for step in range(1, 101):
        net.weight.data.fill_(float(step))
        average.update_parameters(net)
        count = step - 1
        decay = min(0.9, (1 + count) / (10 + count))
        expected = decay * expected + (1 - decay) * step if count else 1.0
        assert average.module.weight.item() == pytest.approx(expected)
    assert expected == pytest.approx(100 - 9, abs=0.2)  # a line's average lags by decay / (1 - decay) steps


def test_averages_leave_indices_and_masks_as_they_are() -> None:
    class Indexed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))
            self.register_buffer("index", torch.arange(225), persistent=False)
            self.register_buffer("mask", torch.full((3, 3), -math.inf).triu(1))

    net = Indexed()
    average = make_average(net, 0.9)
    for _ in range(50):
        net.weight.data += 1
        average.update_parameters(net)
    assert 40 < average.module.weight.item() < 50
    assert torch.equal(average.module.index, net.index)
    assert torch.equal(average.module.mask, net.mask)


class Brightness(nn.Module):
    """Tells class 1 from class 0 by the mean of the image, and only in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not self.training
        scores = torch.zeros(len(x), 10)
        scores[:, 1] = x.mean((1, 2, 3)) * 100
        return scores


def test_evaluation_counts_all_images_in_eval_mode() -> None:
    images = torch.zeros(1203, 3, 8, 8, dtype=torch.uint8)
    images[600:] = 255
    labels = torch.zeros(1203, dtype=torch.int64)
    labels[600:1100] = 1
    net, ticks = Brightness(), []
    pixels = Pixels((0.5,) * 3, (0.5,) * 3)
    found = evaluate(net, images, labels, pixels=pixels, place=choose_place("cpu"), tick=lambda: ticks.append(1))
    assert found.accuracy == 1100 / 1203
    assert found.loss == pytest.approx((600 * math.log(9) + 103 * 100) / 1203, rel=0.01)
    assert (net.training, len(ticks)) == (True, 3)


def test_the_ledger_says_where_it_diverged() -> None:
    ledger = RunMetrics(3, 4, torch.device("cpu"))
    outputs, targets = torch.eye(10)[:4], torch.arange(4)
    for _ in range(4):
        ledger.note(torch.tensor(1.5), outputs, targets)
        ledger.end_step(2.0, 0.5)
        if ledger.steps == 3:
            ledger.end_epoch(0.1, None)
    assert ledger.history == [
        {
            "epoch": 1,
            "steps": 3,
            "train_loss": 1.5,
            "train_accuracy": 1.0,
            "learning_rate": 0.1,
            "val_loss": None,
            "val_accuracy": None,
            "seconds": 6.0,
            "data_seconds": 1.5,
        }
    ]
    with pytest.raises(DivergedError, match=r"^the loss is nan at epoch 2, step 2$"):
        ledger.note(torch.tensor(float("nan")), outputs, targets)


def test_the_ledger_of_an_accelerator_looks_later_and_sees_the_same() -> None:
    ledger = RunMetrics(100, 4, torch.device("meta"))
    nothing = torch.zeros(4, 10)
    for loss in (1.0, 2.0, float("inf"), *[4.0] * 12):
        ledger.note(torch.tensor(loss), nothing, nothing)
        ledger.end_step(0.0, 0.0)
    assert ledger.last_loss is None
    with pytest.raises(DivergedError, match=r"^the loss is inf at epoch 1, step 3$"):
        ledger.note(torch.tensor(4.0), nothing, nothing)


def test_draws_depend_on_their_names_alone() -> None:
    assert stable_seed(0, "step", 1, 2) == stable_seed(0, "step", 1, 2)
    assert (
        len({stable_seed(seed, "step", epoch, step) for seed in range(3) for epoch in range(12) for step in range(12)})
        == 432
    )
    seed_everything(3, "x")
    first = torch.rand(3)
    torch.rand(100)
    seed_everything(3, "x")
    assert torch.equal(first, torch.rand(3))


NET = """
from torch import nn
class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__()
        self.shape = (in_shape, out_shape, prm)
        {body}
"""


def test_construction_follows_the_contract() -> None:
    network = load_network(NET.format(body="self.layer = nn.Conv2d(3, out_shape[0], 3)"), {})
    net = construct(network, 8, 32, {"lr": 0.1}, torch.device("cpu"))
    assert net.shape == ((8, 3, 32, 32), (10,), {"lr": 0.1})
    assert net.layer.weight.is_contiguous(memory_format=torch.channels_last)  # type: ignore[union-attr,operator,call-arg]
    with pytest.raises(NetworkError, match="no parameters to train"):
        construct(load_network(NET.format(body="pass"), {}), 8, 32, {}, torch.device("cpu"))
    with pytest.raises(NetworkError, match=r"defines no class Net"):
        load_network("Net = 3", {})
    text = f'{NET.format(body="pass")}def supported_hyperparameters(): return {{"lr", "dropout", "batch"}}'
    with pytest.raises(NetworkError, match=r"^prm lacks dropout, which supported_hyperparameters\(\) names"):
        load_network(text, {"lr": 0.1})
    load_network(text, {"lr": 0.1, "dropout": 0.0})


def test_errors_are_traced_to_the_network() -> None:
    network = load_network(NET.format(body="self.layer = nn.Conv2d(3, 'x', 3)"), {})
    with pytest.raises(TypeError) as caught:
        construct(network, 8, 32, {}, torch.device("cpu"))
    assert place_of(caught.value) == "net.py:7 in __init__"
    with pytest.raises(SyntaxError) as wrong:
        load_network("\n\nclass Net(:\n", {})
    assert place_of(wrong.value) == "net.py:3"


@pytest.mark.parametrize(
    ("outputs", "reason"),
    [((1, 2), "returned tuple, not a tensor"), (torch.zeros(4, 11), r"shape \(4, 11\), not \(4, 10\)")],
)
def test_outputs_must_score_the_classes(outputs: object, reason: str) -> None:
    with pytest.raises(NetworkError, match=reason):
        check_output(outputs, 4)
