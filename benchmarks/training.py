"""What our training loop costs beside the network: `python -m benchmarks.training [--recipe FILE | --net NET.py]`.

Steps of `train_once` (data, augmentation, optimizer, schedule, averaged weights) and a bare forward and backward of the
same network, same batch, same precision, alternate in one process, in the sandbox.
Claims: images a second at least 0.90 of the bare loop's; data at most 0.10 of a step.
"""

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lemur_core.sandbox import Job, Sandbox
from train.compose.assemble import assemble
from train.data.sources import load_cifar10
from train.model.recipe import Recipe, load_recipe
from train.runs.job import TrainingJob
from train.runs.loop import Loop
from train.runs.run import PRELOAD, Resources

ENTRY = "benchmarks.training:compare"
_WARM = 3


def compare(payload: dict[str, object]) -> dict[str, object]:
    """The entry of the job: seconds of our steps, of their data, and of bare steps, in turns."""
    rounds, steps = int(str(payload["rounds"])), int(str(payload["steps"]))
    loop = Loop(TrainingJob(**payload["job"]), Path.cwd())  # type: ignore[arg-type]
    loop.build()
    for _ in range(_WARM):
        loop.step()
        loop.bare_step(*loop.noise())
    ours: list[float] = []
    bare: list[float] = []
    data_before, steps_before = loop.figures()["data_seconds"], loop.figures()["train_seconds"]
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(steps):
            loop.step()
        ours.append((time.perf_counter() - started) / steps)
        noise = loop.noise()
        started = time.perf_counter()
        for _ in range(steps):
            loop.bare_step(*noise)
        bare.append((time.perf_counter() - started) / steps)
    seconds = float(str(loop.figures()["train_seconds"])) - float(str(steps_before))
    data = (float(str(loop.figures()["data_seconds"])) - float(str(data_before))) / seconds
    return {"ours": ours, "bare": bare, "data": data, "batch": loop.batch, "on": loop.figures()["device"]}


def main() -> None:
    """Print both rates, their ratio, and the part of a step that it waits for data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", type=Path, help="a recipe of built-in parts; default: the default one")
    parser.add_argument("--net", type=Path, help="a network by LEMUR's contract, trained by the recipe")
    parser.add_argument("--prm", default="{}", help="its hyperparameters, JSON")
    parser.add_argument("--in", dest="folder", type=Path, help="extraction folder of the recipe's blocks")
    parser.add_argument("--data", default="synthetic:5000")
    parser.add_argument("--threads", type=int, help="default: one a core")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4, help="of each kind in a round")
    given = parser.parse_args()
    recipe = load_recipe(given.recipe) if given.recipe else Recipe()
    resources = Resources(threads=given.threads).resolve()
    data = load_cifar10(given.data)
    code, prm = _network(given, recipe)
    job = TrainingJob(
        code=code,
        prm=prm,
        recipe=recipe.to_json(),
        seed=0,
        data=str(data.folder),
        held_out=0,
        images=len(data.train_labels),
        device=resources.device,
        threads=resources.threads or 1,
        time_limit=None,
        step_limit=600.0,
        key="",
    )
    entries = [ENTRY, "train.runs.loop:train"]
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        box = stack.enter_context(Sandbox(preload=PRELOAD, entries=entries, readable=[data.folder], workers=1))
        payload = {"job": asdict(job), "rounds": given.rounds, "steps": given.steps}
        (outcome,) = box.run([Job("compare", ENTRY, payload, resources.limits(), scratch=str(Path(scratch).resolve()))])
    if not isinstance(outcome.value, dict):
        raise SystemExit(f"the run failed: {outcome.status}: {outcome.error}")
    _print(outcome.value)


def _network(given: argparse.Namespace, recipe: Recipe) -> tuple[str, dict[str, Any]]:
    if given.net is not None:
        return given.net.read_text(encoding="utf-8"), json.loads(given.prm)
    made = assemble(recipe, given.folder)
    return made.code, dict(made.prm)


def _print(found: dict[str, Any]) -> None:
    ours, bare = (found["batch"] / statistics.median(found[name]) for name in ("ours", "bare"))
    ratio = statistics.median(mine / other for mine, other in zip(found["bare"], found["ours"], strict=True))
    print(f"batch {found['batch']} on {found['on']}; medians of {len(found['ours'])} rounds in turns")
    print(f"our loop                   {ours:8.0f} images/s")
    print(f"bare forward and backward  {bare:8.0f} images/s")
    print(f"ratio                      {ratio:8.3f} (claim: at least 0.90)")
    print(f"data, part of a step       {found['data']:8.3f} (claim: at most 0.10)")


if __name__ == "__main__":
    main()
