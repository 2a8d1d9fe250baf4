"""Train a network by a recipe, in the sandbox: steps, epochs, and the end of a run.

Every random draw depends only on (seed, epoch, step), and a checkpoint has all state that passes from one epoch to the
next: a killed run resumes after its last complete epoch and ends in the same bits.
"""

import faulthandler
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel

from lemur_core.sandbox.server.foreign import is_kind, name_type, read_message
from train.data import open_cache, split
from train.model.recipe import Recipe
from train.runs.augment import CLASSES, AlternatingFlip, Augment, measure_pixels
from train.runs.job import (
    CHECKPOINT,
    WEIGHTS,
    ProgressWriter,
    TrainingJob,
    load_checkpoint,
    loose_buffers,
    put_back,
    save_whole,
    tensors_only,
    weights_digest,
)
from train.runs.optimizer import (
    Lookahead,
    freeze_norm_weights,
    make_average,
    make_optimizer,
    make_schedule,
    start_as_identity,
)
from train.runs.process import (
    Arithmetic,
    DivergedError,
    MeanScore,
    RunMetrics,
    SixViews,
    check_output,
    choose_context,
    compute_the_same_twice,
    construct,
    evaluate,
    keep_freed_memory,
    load_network,
    locate_error,
    seed_everything,
    stable_seed,
)
from train.runs.selection import HardestImages

#: The held-out training images do not depend on the seed of a run, so that runs can be compared.
SPLIT_SEED = 0
_STDERR = 2
_MEASURED = 2000  # images that a whitening stem is measured on
_NO_MEMORY = ("can't allocate memory", "out of memory", "bad_alloc")


class TimeIsUpError(Exception):
    """The time limit is reached; the last complete epoch is kept."""


def train(job: TrainingJob) -> dict[str, object]:
    """Train, evaluate, and return the fields of a `TrainingReport`; results are written to the working folder."""
    faulthandler.dump_traceback_later(job.step_limit, exit=True, file=_STDERR)
    loop: Loop | None = None
    status, error, results = "ok", None, {}
    try:
        loop = Loop(job, Path.cwd())
        loop.build()
        loop.train()
        results = loop.finish()
    except DivergedError as end:
        status, error = "diverged", str(end)
    except TimeIsUpError as end:
        status, error = "timeout", str(end)
    except BaseException as end:  # noqa: BLE001 (any exception of foreign code is an outcome of the run)
        text = _first_line(end)
        # PyTorch reports a lack of memory as a RuntimeError, too.
        short = is_kind(end, MemoryError) or any(words in text for words in _NO_MEMORY)
        location = locate_error(end)
        status, error = "out_of_memory" if short else "error", f"{text} ({location})" if location else text
    finally:
        faulthandler.cancel_dump_traceback_later()
    return {"status": status, "error": error, **(loop.figures() if loop else {}), **results}


def _first_line(error: BaseException) -> str:
    """Return the type and the first line of the message, if there is one."""
    kind = "the code tried to exit the interpreter: " if is_kind(error, SystemExit) else ""
    lines = read_message(error).strip().splitlines()
    return f"{kind}{name_type(error)}" + (f": {lines[0]}" if lines else "")


class Loop:
    """The state of a run. A run is `build`, `train`, `finish`; benchmarks time `step` alone."""

    def __init__(self, job: TrainingJob, folder: Path) -> None:
        self._started = time.monotonic()
        self._job, self._folder, recipe = job, folder, Recipe.model_validate_json(job.recipe)
        self._training = recipe.training
        self._context = choose_context(job.device)
        keep_freed_memory()
        torch.set_num_threads(job.threads)
        compute_the_same_twice()
        self._data = open_cache(Path(job.data))
        rows, self._held = split(len(self._data.train_labels), job.held_out, SPLIT_SEED)
        # Drawn by a fixed seed, and cut: a smaller subset is part of every larger one.
        fewer = torch.randperm(len(rows), generator=torch.Generator().manual_seed(SPLIT_SEED))[: job.images]
        self._rows = rows[fewer.sort().values]
        self.batch = min(self._training.batch_size, len(self._rows))
        self._steps_an_epoch = len(self._rows) // self.batch
        last = max(1, round(self._training.last_part * self._steps_an_epoch))
        self.steps = self._steps_an_epoch * (self._training.epochs - 1) + last
        self._size = int(self._data.train_images.shape[-1])
        self._pixels = measure_pixels(self._data.train_images, self._rows)
        self._augment = Augment(recipe.augmentation, self._pixels, self._size, self.steps)
        # All images fit on a GPU, where they are augmented much faster. Where they are is all that changes.
        self._place = self._context.device if job.device == "cuda" else torch.device("cpu")
        self._images, self._labels = (
            data.to(self._place) for data in (self._data.train_images, self._data.train_labels)
        )
        self._flip: AlternatingFlip | None = None
        if recipe.augmentation.flip == "alternate":
            self._flip = AlternatingFlip(len(self._labels), stable_seed(job.seed, "flip"), self._place)
        self._metrics = RunMetrics(self._steps_an_epoch, self._context.device)
        self._arithmetic, self._optimizing = Arithmetic(), Arithmetic()
        self._report = ProgressWriter(folder)
        self._notes: list[str] = []
        self._parameters: int | None = None
        self._kept_before = 0  # epochs finished before this run was resumed

    def build(self) -> None:
        """Build the network, its optimizer and its schedule, and resume from a checkpoint if there is one.

        To warm up the process, a first network takes one step on noise and is discarded.

        Raises: NetworkError, and anything that the network raises.
        """
        network = load_network(self._job.code, self._job.prm)
        # The first step compiles kernels and allocates memory: one is taken before time is measured.
        for warm in (True, False):
            self._tick()
            seed_everything(self._job.seed, "network")
            self._net = construct(network, self.batch, self._size, self._job.prm, self._context.device)
            self._prepare()
            self._optimizer = make_optimizer(self._net.parameters(), self._training)
            if warm:
                self._parameters = sum(parameter.numel() for parameter in self._net.parameters())
                self._warm_up()
        self._schedule = make_schedule(self._optimizer, self._training, self.steps)
        self._ema: AveragedModel | None = None
        if self._training.ema_decay:
            self._ema = make_average(self._net, self._training.ema_decay)
        self._lookahead = Lookahead(self._net, self.steps) if self._training.lookahead else None
        self._selection: HardestImages | None = None
        if self._training.kept_part < 1:
            seed_everything(self._job.seed, "proxy")
            self._selection = HardestImages(self._training, self._context, self.steps, CLASSES)
        self._resume()

    def train(self) -> None:
        """Train the remaining epochs. Raises: DivergedError, TimeIsUpError, and anything that the network raises."""
        self._report.epochs(self._metrics.history)
        while self._metrics.steps < self.steps:
            for _ in range(min(self._steps_an_epoch, self.steps - self._metrics.steps)):
                self._check_time()
                self.step()
            self._end_epoch()

    def step(self) -> None:
        """Take one training step. Raises: DivergedError, and anything that the network raises."""
        self._tick()
        started = time.perf_counter()
        images, targets = self._load()
        loaded = time.perf_counter()
        before = self._arithmetic.flop
        if self._selection is not None:
            step = self._metrics.steps
            with self._arithmetic.counted((self._selection.kind(step), images.shape)):
                images, targets = self._selection.choose(images, targets, step)
        self._optimizer.zero_grad(set_to_none=True)
        with self._arithmetic.counted(("learn", images.shape)):
            with self._context.autocast():
                outputs = self._net(images)
            loss = self._loss(outputs, targets)
            self._metrics.note(loss, outputs, targets)
            loss.backward()  # type: ignore[no-untyped-call]
        if self._training.clip_norm:
            clip_grad_norm_(self._net.parameters(), self._training.clip_norm)
        with self._optimizing.counted("step"):
            self._optimizer.step()
        self._schedule.step()
        if self._ema is not None:
            self._ema.update_parameters(self._net)
        if self._lookahead is not None:
            self._lookahead.step(self._metrics.steps + 1)
        flop = self._arithmetic.flop - before
        self._metrics.end_step(time.perf_counter() - started, loaded - started, flop)
        self._report.step(self.figures, self.batch)

    def bare_step(self, images: Tensor, labels: Tensor) -> None:
        """Run only forward and backward of the same network: the baseline for the time of a step."""
        self._optimizer.zero_grad(set_to_none=True)
        with self._context.autocast():
            outputs = self._net(images)
        self._loss(outputs, labels).backward()  # type: ignore[no-untyped-call]

    def finish(self) -> dict[str, object]:
        """Evaluate on the test images, once, if the job says so, and write the weights.

        Returns: the final figures that `figures` does not have.
        Raises: DivergedError if a weight is not finite.
        """
        final = self._final()
        kept = tensors_only(final.state_dict())
        learned = {name for name, _ in final.named_parameters()}
        for name, value in kept.items():
            # A mask may contain infinities. Integers are finite.
            wrong = ~value.isfinite() if name in learned else value.isnan()
            if bool(wrong.any()):
                raise DivergedError(f"{name} is not finite after the last epoch")
        accuracy = None
        if self._job.tested:
            accuracy = self._measure(self._data.test_images, self._data.test_labels).accuracy
        save_whole(kept, self._folder / WEIGHTS)
        return {"test_accuracy": accuracy, "weights_sha256": weights_digest(kept)}

    def measure_views(self) -> MeanScore:
        """Evaluate with test-time augmentation, which a run never does: on held-out images, else on the test images."""
        images, labels = self._images[self._held], self._labels[self._held]
        seen = (images, labels) if len(labels) else (self._data.test_images, self._data.test_labels)
        net = SixViews(self._final())
        return evaluate(net, *seen, pixels=self._pixels, context=self._context, tick=self._tick)

    @property
    def optimizer_flop(self) -> int:
        """Floating-point operations of the optimizer since `build`, which `figures` does not count."""
        return self._optimizing.flop

    def figures(self) -> dict[str, object]:
        """Return the progress of the run."""
        last = self._metrics.history[-1] if self._metrics.history else {}
        return {
            "epochs": len(self._metrics.history),
            "steps": self._metrics.steps,
            "parameters": self._parameters,
            "train_loss": last.get("train_loss"),
            "val_accuracy": last.get("val_accuracy"),
            "train_seconds": self._metrics.train_seconds,
            "data_seconds": self._metrics.data_seconds,
            "images_seen": self._metrics.images_seen,
            "flop": self._metrics.flop,
            "device": self._context.describe(),
            "precision": self._context.precision,
            "notes": self._notes,
        }

    def _prepare(self) -> None:
        """Set the network up for training as the recipe says."""
        self._net.train()
        if self._training.freeze_norm_weights:
            freeze_norm_weights(self._net)
        if self._training.dirac:
            start_as_identity(self._net)
        if self._training.whiten_on_plain:
            some = self._context.move(self._pixels.normalise(self._images[self._rows[:_MEASURED].to(self._place)]))
            for module in self._net.modules():
                measure = getattr(module, "measure", None)
                if callable(measure) and hasattr(module, "measured"):
                    measure(some)

    def _warm_up(self) -> None:
        images, targets = self.noise()
        with self._context.autocast():
            outputs = self._net(images)
        check_output(outputs, self.batch)
        self._loss(outputs, targets).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def noise(self) -> tuple[Tensor, Tensor]:
        """Return a batch of random noise."""
        images = torch.randn(self.batch, 3, self._size, self._size)
        return self._context.move(images), torch.randint(0, 10, (self.batch,)).to(self._context.device)

    def _resume(self) -> None:
        state, note = load_checkpoint(self._folder / CHECKPOINT, self._job.key)
        self._notes += [note] if note else []
        if state is None:
            return
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        for module, loose in zip(self._modules(), state["loose"], strict=True):
            put_back(module, loose)
        self._metrics.from_state(state["ledger"])
        self._kept_before = len(self._metrics.history)

    def _load(self) -> tuple[Tensor, Tensor]:
        """Load the batch of the next step."""
        epoch, number = divmod(self._metrics.steps, self._steps_an_epoch)
        if number == 0:
            order = torch.Generator().manual_seed(stable_seed(self._job.seed, "order", epoch))
            self._order = self._rows[torch.randperm(len(self._rows), generator=order)].to(self._place)
        seed_everything(self._job.seed, "step", epoch, number)
        rows = self._order[number * self.batch : (number + 1) * self.batch]
        images, labels = self._images[rows], self._labels[rows]
        if self._flip is not None:
            images = self._flip(images, rows, epoch)
        images, targets = self._augment(images, labels, self._metrics.steps)
        return self._context.move(images), targets.to(self._context.device)

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs.float(), targets, label_smoothing=self._training.label_smoothing)

    def _end_epoch(self) -> None:
        """Validate, and keep the epoch's results."""
        self._metrics.settle()
        images, labels = self._images[self._held], self._labels[self._held]
        measured = self._measure(images, labels) if len(labels) else None
        self._metrics.end_epoch(float(self._schedule.get_last_lr()[0]), measured)
        self._tick()
        state: dict[str, object] = {name: part.state_dict() for name, part in self._parts().items()}
        state |= {"loose": [loose_buffers(module) for module in self._modules()], "ledger": self._metrics.to_state()}
        save_whole({"key": self._job.key, **state}, self._folder / CHECKPOINT)
        self._report.epochs(self._metrics.history)

    def _parts(self) -> dict[str, Any]:
        """Return the objects whose state changes with each step, by name."""
        parts = {"net": self._net, "optimizer": self._optimizer, "schedule": self._schedule}
        more = {"ema": self._ema, "lookahead": self._lookahead, "selection": self._selection}
        return parts | {name: part for name, part in more.items() if part is not None}

    def _modules(self) -> list[nn.Module]:
        """Return the modules with weights: the network, and the averaged network if the recipe has one."""
        return [self._net] if self._ema is None else [self._net, self._ema]

    def _final(self) -> nn.Module:
        """Return the network that the run ends with."""
        return self._net if self._ema is None else self._ema.module

    def _measure(self, images: Tensor, labels: Tensor) -> MeanScore:
        return evaluate(self._final(), images, labels, pixels=self._pixels, context=self._context, tick=self._tick)

    def _check_time(self) -> None:
        limit = self._job.time_limit
        if limit is not None and time.monotonic() - self._started >= limit:
            self._metrics.settle()
            kept = len(self._metrics.history)
            words = f"{kept} whole epoch{'s' if kept != 1 else ''} of {self._training.epochs} are kept"
            more = "" if kept > self._kept_before else ", and the next needs a longer limit"
            raise TimeIsUpError(f"stopped after {limit:g} s; {words}{more}")

    def _tick(self) -> None:
        """Restart the watchdog that ends the process if nothing finishes within the limit, even in a deadlock."""
        faulthandler.dump_traceback_later(self._job.step_limit, exit=True, file=_STDERR)
