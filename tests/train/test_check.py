"""Checking a network by LEMUR's contract, in the real sandbox: figures, and a reason in one line for what fails."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from PIL import Image

from lemur_core.files.errors import UserError
from tests.builders.suites import table
from tests.builders.training import TINY
from train.check import CheckResult, accuracy_to_time, check_nn, open_box
from train.data import Cifar10
from train.data.sources import load_cifar10
from train.model.check_guest import TrainData, prepare, read_steps
from train.model.contract import CIFAR10_DEVIATION, CIFAR10_MEAN, lemur_name, transform_module
from train.runs.resources import Resources

PRM = {"lr": 0.1, "momentum": 0.9, "dropout": 0.0, "batch": 16, "transform": "norm_flip"}
ONE = Resources(threads=1, time_limit=60, memory_gib=1.0)

LEARN = '        """Train for one epoch."""\n'
IMPORT = "import torch\n"
Check = Callable[..., CheckResult]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Cifar10:
    return load_cifar10("synthetic:640", cache=tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def check(data: Cifar10) -> Iterator[Check]:
    with open_box(data, ONE) as box:
        yield partial(check_nn, dataset=data, box=box, resources=ONE)


@pytest.fixture(scope="module")
def learned(check: Check) -> CheckResult:
    return check(TINY, PRM, prefix="tiny")


def with_learn(statement: str) -> str:
    assert LEARN in TINY
    return TINY.replace(LEARN, f"{LEARN}        {statement}\n")


def test_what_a_check_gives_every_time(learned: CheckResult, check: Check) -> None:
    assert learned.status == "ok", learned.error
    assert learned.name == lemur_name(TINY, "tiny")
    assert learned.accuracy is not None
    assert learned.duration is not None
    assert 0.2 < learned.accuracy <= 1  # guessing gives 0.1
    assert learned.accuracy_to_time == accuracy_to_time(learned.accuracy, learned.duration)
    assert learned.code_quality == 1.0
    again = check(TINY, PRM)
    assert again.accuracy == learned.accuracy
    assert again.name == lemur_name(TINY)
    found = [accuracy_to_time(*one) for one in ((0.6, 10**11), (0.6, 2 * 10**11), (0.1, 5), (0.0, 5))]
    assert found == pytest.approx([0.5, 0.25, 0.0, 0.0])


def test_epochs_and_the_way_the_data_come(check: Check) -> None:
    """Once an epoch, in another order, the last batch smaller, `prm` with the trainer's parameters; then used up."""
    torch.manual_seed(0)
    labels = torch.arange(50)
    once = TrainData(torch.zeros(50, 3, 32, 32, dtype=torch.uint8), labels, 8, read_steps("echo"))
    assert (len(once), once.total, once.n) == (7, 7, 0)
    seen = torch.cat([batch for _, batch in once])
    assert once.n == 7
    assert seen.tolist() != sorted(seen.tolist()) == labels.tolist()
    told = (
        "assert len(train_data) == 3 and iter(train_data) is train_data; "
        "shapes = [tuple(inputs.shape) for inputs, _ in train_data]; "
        "assert shapes == [(16, 3, 32, 32), (16, 3, 32, 32), (8, 3, 32, 32)], shapes; "
        "assert list(train_data) == []; self.seen = getattr(self, 'seen', 0) + 1; "
        "assert self.training and self.seen < self.prm['epoch'], f'epoch {self.seen} of {self.prm}'"
    )
    code = with_learn(told).replace("    self.device = device\n", "    self.device, self.prm = device, prm\n")
    result = check(code, PRM, epochs=3, images=40)
    assert result.status == "learn_failed"
    for said in ("AssertionError: epoch 3 of {", "'batch': 16", "'transform': 'norm_flip'"):
        assert said in str(result.error)
    assert str(result.error).endswith("; in learn(train_data), epoch 3, batches 16x3x32x32)")


def test_low_accuracy_is_told(check: Check, data: Cifar10) -> None:
    counts = torch.bincount(data.test_labels[:100], minlength=10)
    rarest = f"torch.zeros(len(x), 10).index_fill(1, torch.tensor([{int(counts.argmin())}]), 1.0)"
    code = with_learn("return").replace("return self.classifier(self.features(x))", f"return {rarest}")
    result = check(code, PRM, images=500)
    share = int(counts.min()) / 100
    assert (result.status, result.accuracy) == ("low_accuracy", share)
    assert result.error == f"accuracy {share:.4f} is at most 0.12: LEMUR would not store it"
    assert result.accuracy_to_time == 0.0


@table(__file__, "check.md", "Faults", globals())
def test_what_fails_and_why(check: Check, code: str, status: str, error: str) -> None:
    seconds = 2 if status == "timeout" else 60
    limits = Resources(threads=1, time_limit=seconds, memory_gib=0.5)
    result = check(code, PRM, images=16, resources=limits)
    assert result.status == status, result.error
    assert error in (result.error or "")
    assert "\n" not in (result.error or "")
    assert (result.accuracy, result.accuracy_to_time, result.code_quality) == (None, None, None)


@table(__file__, "check.md", "Hyperparameters are looked at", globals())
def test_hyperparameters_are_looked_at(check: Check, prm: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as raised:
        check(TINY, prm, images=16)
    assert line in str(raised.value)


def test_other_requests_are_refused(data: Cifar10) -> None:
    requests: dict[str, dict[str, Any]] = {
        "epochs: 0; at least 1 is needed": {"epochs": 0},
        "images: 641, but 640 are left to train on": {"images": 641},
        "threads: 0; it must be greater than 0": {"resources": Resources(threads=0)},
    }
    for said, asked in requests.items():
        with pytest.raises(UserError, match=said):
            check_nn(TINY, PRM, dataset=data, **asked)
    assert check_nn("", PRM, dataset=data).status == "contract"  # found without a sandbox


PLAIN = ("norm", "norm_32", "norm_64", "echo", "echo_128", "complex", "complex_64", "center_crop", "soft_pad")


@pytest.mark.parametrize("name", PLAIN)
def test_transforms_of_batches_agree_with_the_modules_for_lemur(name: str) -> None:
    """The module works on PIL images, as LEMUR calls it; sizes are resampled by another library there."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8, generator=generator)
    ours = prepare(images, read_steps(name))
    module: dict[str, Any] = {}
    exec(transform_module(name), module)
    transform = module["transform"]((CIFAR10_MEAN, CIFAR10_DEVIATION))
    theirs = torch.stack([transform(Image.fromarray(image.permute(1, 2, 0).numpy())) for image in images])
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    one_step = 1.5 / 255 / 0.24  # rounding of a resized pixel
    assert float((ours - theirs).abs().max()) <= (one_step if "v2.Resize" in transform_module(name) else 1e-6)


FLIPS = [("norm_flip", 3, 0.5), ("random_horizontal_flip", 3, 0.24), ("random_vertical_flip", 2, 0.22)]


@pytest.mark.parametrize(("name", "axis", "share"), FLIPS)
def test_each_image_is_flipped_by_itself(name: str, axis: int, share: float) -> None:
    torch.manual_seed(3)
    ramp = torch.arange(32, dtype=torch.uint8) * 8
    shape = [1, 1, 1, 1]
    shape[axis] = 32
    images = ramp.reshape(shape).expand(400, 3, 32, 32)
    prepared = prepare(images, read_steps(name))
    falling = prepared.select(axis, 0).mean((1, 2)) > prepared.select(axis, -1).mean((1, 2))
    assert abs(float(falling.float().mean()) - share) < 0.08
