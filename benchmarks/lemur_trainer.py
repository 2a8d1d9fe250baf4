"""`check_nn` against LEMUR's own trainer on the same network and images: `python -m benchmarks.lemur_trainer [NET.py]`.

The package is installed, without what it needs for other tasks, into an environment in the cache that also sees this
one's PyTorch; its `ab.nn.api.check_nn` then trains on the first images of our data, put where its loader looks for
them. It runs in its own process without walls: only give it networks that you trust.

Claims: the same name and quality of the code (by the same Pylint), and the same accuracy within the noise of the seeds.
Times do not compare: the package decodes and transforms images one by one in a second process.
"""

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.environment import make_environment
from curate.sources.lemur import LemurRelease
from lemur_core.files.cache import cache_folder
from lemur_core.source.quality import code_quality
from train import register
from train.check import check_nn, open_box
from train.data import Cifar10
from train.data.sources import load_cifar10
from train.runs.resources import Resources

_TOOLS = ("radon~=6.0.1", "pylint~=3.3.3")  # what its check of code imports and starts
_PRM = {"lr": 0.05, "momentum": 0.9, "dropout": 0.1, "batch": 64, "transform": "norm_32_flip"}
_NET = Path(__file__).parents[1] / "tests" / "fixtures" / "train" / "tiny_net.py"

#: torchvision checks the digests of CIFAR-10's files, which a part of it does not have.
_TRAIN = """
import json, sys
from pathlib import Path
import torch, torchvision.datasets.cifar as cifar
sys.path.insert(0, "")  # the package imports the network from a folder that it makes in the working folder
cifar.check_integrity = lambda *_: True
seed, threads, prefix, prm = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
torch.manual_seed(seed)
torch.set_num_threads(threads)
from ab.nn.api import check_nn
task = ("img-classification", "cifar-10", "acc")
found = check_nn(Path("net.txt").read_text(), *task, prm, save_to_db=False, prefix=prefix)
Path("found.json").write_text(json.dumps([*found, prm["duration"]]))
"""


def main() -> None:
    """Run both on each seed, one after the other; print their figures side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net", type=Path, nargs="?", default=_NET, metavar="NET.py", help="default: a small one")
    parser.add_argument("--data", default="synthetic:5000", help="CIFAR-10, as for lemur train")
    parser.add_argument("--images", type=int, default=2000, help="to train on; a fifth as many to test on")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prm", type=json.loads, default={}, help=f"JSON; values to change in {json.dumps(_PRM)}")
    options = parser.parse_args()
    code, prm = options.net.read_text(encoding="utf-8"), _PRM | options.prm
    data, resources = load_cifar10(options.data), Resources(threads=options.threads)
    python = _environment()
    with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch, open_box(data, resources) as box:
        work = Path(scratch)
        _prepare(work, data, options.images, code)
        theirs: list[list[Any]] = []
        ours: list[list[Any]] = []
        for seed in range(options.seeds):
            theirs.append(_train(python, work, prm | {"epoch": options.epochs}, seed, options.threads))
            how = {"epochs": options.epochs, "images": options.images, "seed": seed, "resources": resources}
            found = check_nn(code, prm, dataset=data, prefix="bench", box=box, **how)
            assert found.accuracy is not None, found.error
            ours.append([found.name, found.accuracy, found.accuracy_to_time, None, found.duration])
    quality = code_quality(code, ours[0][0], python=str(python))
    print(f"{options.net.name}: {options.epochs} epochs of {options.images:,} images of {data.label}, {prm}")
    _print("nn-dataset 2.1.0", theirs)
    _print("lemur check_nn", [[*run[:3], quality.score, run[4]] for run in ours])
    plain = code_quality(code, ours[0][0], python=None)
    print(f"quality by {quality.by}: {quality.score}; by {plain.by}, when Pylint is not installed: {plain.score}")
    same = [one[0] for one in theirs] == [one[0] for one in ours] and theirs[0][3] == quality.score
    print("name and quality:", "the same" if same else "DIFFERENT")


def _print(who: str, runs: Sequence[Sequence[Any]]) -> None:
    accuracy = [float(run[1]) for run in runs]
    spread = f" ± {statistics.stdev(accuracy):.4f} (std, n={len(runs)})" if len(runs) > 1 else ""
    name, _, _, quality, _ = runs[0]
    seconds = statistics.mean(run[4] / 1e9 for run in runs)
    rate = statistics.mean(run[2] for run in runs)
    print(f"{who:16}  accuracy {statistics.mean(accuracy):.4f}{spread}  accuracy to time {rate:.2f}  ({seconds:.1f} s)")
    print(f"{'':16}  name {name}  quality {quality}")


def _environment() -> Path:
    """The interpreter of an environment with the package."""
    release = LemurRelease()
    (wheel,) = release.inputs()
    package = str(cache_folder("lemur", release.version) / wheel.name)
    return make_environment("lemur-trainer", [("--no-deps", package), _TOOLS], f"nn-dataset {release.version}")


def _prepare(work: Path, data: Cifar10, count: int, code: str) -> None:
    """The network, the images in the form that torchvision reads, and an empty database: else the package fills one."""
    (work / "net.txt").write_text(code, encoding="utf-8")
    (work / "db").mkdir()
    register([], db=work / "db" / "ab.nn.db")
    folder = work / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    step = -(-count // 5)
    for number, start in enumerate(range(0, count, step), 1):
        stop = min(start + step, count)
        _write(folder / f"data_batch_{number}", data.train_images[start:stop], data.train_labels[start:stop])
    tested = max(1, count // 5)
    _write(folder / "test_batch", data.test_images[:tested], data.test_labels[:tested])
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(number) for number in range(10)]}))


def _write(file: Path, images: Tensor, labels: Tensor) -> None:
    file.write_bytes(pickle.dumps({"data": images.reshape(len(images), -1).numpy(), "labels": labels.tolist()}))


def _train(python: Path, work: Path, prm: dict[str, Any], seed: int, threads: int) -> list[Any]:
    """Name, accuracy, accuracy to time, quality and nanoseconds, as the package has them."""
    command = [str(python), "-P", "-c", _TRAIN, str(seed), str(threads), "bench", json.dumps(prm)]
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ.get('PATH', '')}"}  # it starts `pylint`
    subprocess.run(command, cwd=work, env=environment, stdout=sys.stderr, check=True)
    found: list[Any] = json.loads((work / "found.json").read_text())
    return found


if __name__ == "__main__":
    main()
