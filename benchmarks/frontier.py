"""Accuracy at equal arithmetic: airbench94, 95 and 96 against our recipes, on the same images.

    git clone https://github.com/KellerJordan/cifar10-airbench airbench
    python -m benchmarks.frontier plan benchmarks/frontier.toml --in blocks --out jobs
    python -m benchmarks.frontier run jobs --airbench airbench --data cifar10-jpeg --out results.jsonl
    python -m benchmarks.frontier table results.jsonl

A plan lists arms: `[ARM]` with `script` (airbench94, airbench95, airbench96) or `recipe` and what is `set` in it, the
`seeds`, and a `budget` in PFLOP or `epochs`; one that is `like` another changes that one. `plan` assembles every
network, counts what an image costs, and fits the budget. `run` goes through the jobs by their `order`, several at a
time, adds each result to the file, and skips those that it has. Operations are those of forward and backward, by
torch.utils.flop_counter, of all networks that are trained; those of the optimizer are stated apart.

A GPU cannot be reached from the sandbox: `run` executes the blocks without it.
"""

import argparse
import contextlib
import json
import math
import multiprocessing
import statistics
import tempfile
import time
import tomllib
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.frontier_airbench import SCRIPTS, run_script, write_data
from lemur_core.sandbox.net import construct
from train.data import Cifar10, open_cache
from train.data.sources import load_cifar10
from train.model.check_guest import open_network
from train.model.recipe import Network, Recipe, find_recipe, read_changes
from train.runs.job import TrainingJob
from train.runs.loop import CountFlop, HardestImages, Loop, Proxy, choose_context

_PETA = 1e15
_COUNTED = 8  # images of a batch whose arithmetic is counted


class SixViews(nn.Module):
    """Test-time augmentation: an image, its mirror image (half of the weight), and both moved by a pixel (half).

    Source: the views and weights of Jordan 2024, arXiv:2404.00498, section 3.5
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self._net = net

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted mean of the network's outputs."""
        padded, (high, wide) = nn.functional.pad(x, (1, 1, 1, 1), mode="reflect"), x.shape[-2:]
        moved = self._both(padded[..., :high, :wide]) + self._both(padded[..., 2:, 2:])
        return 0.5 * self._both(x) + 0.25 * moved

    def _both(self, x: Tensor) -> Tensor:
        mean: Tensor = 0.5 * (self._net(x).float() + self._net(x.flip(-1)).float())
        return mean


def plan(arms: dict[str, Any], folder: Path | None, out: Path, images: int) -> None:
    """Assemble the network of each arm, and write its jobs."""
    from train.compose.assemble import assemble
    from train.compose.candidates import open_prober

    out.mkdir(parents=True, exist_ok=True)
    nets = _find_nets(out)  # arms that are only trained differently share theirs
    with open_prober() as box:
        for place, (name, arm) in enumerate(arms.items()):
            job: dict[str, Any] = {"arm": name, "order": arm.get("order", place), "epochs": arm.get("epochs")}
            job["seeds"] = arm.get("seeds", [0, 1, 2])
            if "script" in arm:
                job["script"] = arm["script"]
            else:
                first = arms[arm["like"]] if "like" in arm else arm
                texts = [*(first.get("set", []) if "like" in arm else ()), *arm.get("set", [])]
                changes = {key: value for text in texts for key, value in read_changes(text).items()}
                recipe = find_recipe(first["recipe"]).changed(**changes)
                net = nets.get(_parts(recipe)) or assemble(recipe, folder, box=box)
                nets[_parts(recipe)] = net
                each = image_flop(recipe, net.code, dict(net.prm))
                epochs = job["epochs"] or arm["budget"] * _PETA / each / images
                whole = max(1, math.ceil(epochs))
                recipe = recipe.changed(training__epochs=whole, training__last_part=min(1.0, epochs - whole + 1))
                job |= {"code": net.code, "prm": dict(net.prm), "recipe": recipe.to_json()}
                all_of_it = each * epochs * images / _PETA
                print(
                    f"{name}: {each / 1e9:.3f} GFLOP an image, {epochs:.2f} epochs, {all_of_it:.3f} PFLOP", flush=True
                )
            (out / f"{name}.json").write_text(json.dumps(job, indent=1) + "\n", encoding="utf-8")


def _find_nets(out: Path) -> dict[str, Network]:
    """Return the networks of the jobs in a folder, by what they consist of."""
    jobs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*.json"))]
    ours = [(Recipe.model_validate_json(job["recipe"]), job) for job in jobs if "code" in job]
    return {_parts(recipe): Network(job["arm"], job["code"], job["prm"], recipe=recipe) for recipe, job in ours}


def _parts(recipe: Recipe) -> str:
    return recipe.model.model_dump_json() + recipe.slots.model_dump_json()


def image_flop(recipe: Recipe, code: str, prm: dict[str, Any]) -> float:
    """Return what an image of an epoch costs, forward and backward, selection included."""
    training = recipe.training
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):  # where a network's file is written
        net = construct(open_network(code, prm), (_COUNTED, 3, 32, 32), (10,), prm)
    whole = _count(net.train())[1]
    if training.kept_part == 1:
        return whole
    forward, both = _count(Proxy(10))
    proxy = forward + (both - forward) / HardestImages.EVERY  # backward through the whole batch
    return training.kept_until * (training.kept_part * whole + proxy) + (1 - training.kept_until) * whole


def _count(net: torch.nn.Module) -> tuple[float, float]:
    """Return the operations of an image: forward, and with the backward pass."""
    with CountFlop() as forward:
        output = net(torch.randn(_COUNTED, 3, 32, 32))
    with CountFlop() as backward:
        output.sum().backward()
    return forward.flop / _COUNTED, (forward.flop + backward.flop) / _COUNTED


def run(given: argparse.Namespace) -> None:
    """Go through the jobs that have no result yet, until the time is up."""
    data = load_cifar10(given.data)
    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    jobs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(given.jobs.glob("*.json"))]
    lines = given.out.read_text(encoding="utf-8").splitlines() if given.out.exists() else []
    done = {(each["arm"], each["seed"]) for line in lines if "error" not in (each := json.loads(line))}
    todo = sorted(
        ((job["order"], place, seed, job) for job in jobs for place, seed in enumerate(job["seeds"])),
        key=lambda each: (each[0], each[1]),
    )
    end = time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory() as made:
        write_data(data, Path(made), given.images)
        settings = {**vars(given), "folder": data.folder, "place": Path(made), "device": device, "end": end}
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(given.jobs_at_once, mp_context=context) as pool, given.out.open("a") as file:
            waiting = [
                pool.submit(_run_one, job, seed, settings) for *_, seed, job in todo if (job["arm"], seed) not in done
            ]
            for future in as_completed(waiting):
                if result := future.result():
                    file.write(json.dumps(result) + "\n")
                    file.flush()
                    print(_line(result), flush=True)


def _run_one(job: dict[str, Any], seed: int, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Run a job in a process of its own; None if it is too late to begin."""
    if time.monotonic() >= settings["end"]:
        return None
    started, device, kind = time.monotonic(), settings["device"], "airbench" if "script" in job else "ours"
    result = {"arm": job["arm"], "kind": kind, "seed": seed, "torch": torch.__version__}
    try:
        if kind == "airbench":
            name, epochs = job["script"], settings["epochs"] or job["epochs"]
            script = settings["airbench"] / SCRIPTS[name]
            result |= run_script(name, script.resolve(), settings["place"], seed, device, epochs, settings["batch"])
        else:
            result |= train_ours(job, seed, open_cache(settings["folder"]), settings)
    except Exception as error:  # noqa: BLE001 (an arm that fails is a result; the others go on)
        result["error"] = f"{type(error).__name__}: {error}"
    if device == "cuda":
        torch.cuda.empty_cache()
    result["device"] = choose_context(device).describe()
    return result | {"seconds": round(time.monotonic() - started, 1)}


def train_ours(job: dict[str, Any], seed: int, data: Cifar10, settings: dict[str, Any]) -> dict[str, Any]:
    """Train a network of ours by our own loop.

    Returns: accuracies without and with test-time augmentation, operations, images that it learned from, epochs.
    """
    recipe, held = Recipe.model_validate_json(job["recipe"]), settings["held_out"]
    if settings["epochs"]:
        recipe = recipe.changed(training__epochs=int(settings["epochs"]))
    training = TrainingJob(
        code=job["code"],
        prm=job["prm"],
        recipe=recipe.to_json(),
        seed=seed,
        data=str(data.folder),
        held_out=held,
        images=settings["images"] or len(data.train_labels) - held,
        device=settings["device"],
        threads=1,
        time_limit=None,
        step_limit=600.0,
        key="",
    )
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        loop = Loop(training, Path(place))
        if settings["device"] == "cuda":  # the same bits twice cost time, and nothing here resumes
            torch._C._set_deterministic_algorithms(False)
        loop.build()
        loop.train()
        # A recipe is chosen on held-out images: then the test images are not read.
        accuracy = loop.history[-1]["val_accuracy"] if held else loop.finish()["test_accuracy"]
        figures, views = loop.figures(), loop.measure(SixViews)
    return {
        "plain": accuracy,
        "views": views,
        "flop": figures["flop"],
        "optimizer_flop": loop.optimizer_flop,
        "images": figures["images_seen"],
        "epochs": recipe.training.epochs,
        "train_seconds": figures["train_seconds"],
    }


def _line(result: dict[str, Any]) -> str:
    if "error" in result:
        return f"{result['arm']} {result['seed']}: {result['error']}"
    accuracies = f"{100 * result['plain']:.2f} {100 * result['views']:.2f} %"
    return f"{result['arm']} {result['seed']}: {result['flop'] / _PETA:.3f} PFLOP, {accuracies}, {result['seconds']} s"


def table(results: list[dict[str, Any]]) -> str:
    """Return a table with a row for each arm, by what it takes."""
    arms: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for each in results:
        if "error" not in each:
            arms[each["arm"]].append(each)
    lines = [
        "| | PFLOP | with the optimizer's | images learned from | accuracy, % | with test-time augmentation, % | n |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, runs in sorted(arms.items(), key=lambda arm: arm[1][0]["flop"]):
        flop, more = (statistics.mean(run[key] for run in runs) / _PETA for key in ("flop", "optimizer_flop"))
        seen = statistics.mean(run["images"] for run in runs)
        figures = [_spread([100 * run[key] for run in runs]) for key in ("plain", "views")]
        lines.append(f"| {name} | {flop:.3f} | {flop + more:.3f} | {seen:,.0f} | {' | '.join(figures)} | {len(runs)} |")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    mean = f"{statistics.mean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def main() -> None:
    """Plan, run, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    planning = commands.add_parser("plan")
    planning.add_argument("plan", type=Path, metavar="PLAN.toml")
    planning.add_argument("--in", dest="folder", type=Path, help="extraction folder of the recipes' blocks")
    planning.add_argument("--out", type=Path, required=True, help="folder for the jobs")
    planning.add_argument("--images", type=int, default=50_000, help="in an epoch, for the budget")
    running = commands.add_parser("run")
    running.add_argument("jobs", type=Path)
    running.add_argument("--airbench", type=Path, help="a checkout of KellerJordan/cifar10-airbench")
    running.add_argument("--data", required=True)
    running.add_argument("--out", type=Path, required=True, help="JSON Lines; what is there is not run again")
    running.add_argument("--images", type=int, help="train and test on that many alone")
    running.add_argument(
        "--held-out", type=int, default=0, help="of ours: choose a recipe on these, not on test images"
    )
    running.add_argument("--batch", type=int, help="instead of airbench's")
    running.add_argument("--epochs", type=float, help="instead of each arm's")
    running.add_argument("--device", choices=["cpu", "cuda"])
    running.add_argument("--jobs", dest="jobs_at_once", type=int, default=1, help="at the same time")
    running.add_argument("--seconds", type=float, default=float("inf"), help="after which no job begins")
    showing = commands.add_parser("table")
    showing.add_argument("results", type=Path, nargs="+")
    given = parser.parse_args()
    if given.command == "plan":
        plan(tomllib.loads(given.plan.read_text(encoding="utf-8")), given.folder, given.out, given.images)
    elif given.command == "run":
        run(given)
    else:
        lines = [line for path in given.results for line in path.read_text(encoding="utf-8").splitlines()]
        print(table([json.loads(line) for line in lines]))


if __name__ == "__main__":
    main()
