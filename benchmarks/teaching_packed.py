"""Train and judge the arms of `benchmarks.teaching` on a machine with torch alone: its texts come as tokens.

    python -m benchmarks.teaching --out FOLDER --tokens 5000000 --pack FILE --length 1250000     # here
    python -m benchmarks.teaching_packed FILE OUT.json [--workers 8] [--seconds 150]              # there
    python -m benchmarks.teaching --out FOLDER --tokens 5000000 --unpack OUT.json               # here again

The runs stand in the file in the order in which they are wanted. Several processes share them; when the seconds are
over, what is done stands in OUT.json, and the next call goes on.
"""

import argparse
import contextlib
import io
import json
import lzma
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.teaching_model import Shape, bits, load_decoder, make_stream, train

_PRESET = 9 | lzma.PRESET_EXTREME
_MATCHED = 1 << 27  # bytes: near-copies are far apart


class Machine:
    """This machine's accelerator, or else its processor; bfloat16 if it multiplies in it."""

    def __init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        native = self.device.type == "cuda" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        self.precision = "bfloat16" if native else "float32"

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """The context in which a model is called."""
        enabled = self.precision == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)

    def describe(self) -> str:
        """The device."""
        return f"cuda, {torch.cuda.get_device_name()}" if self.device.type == "cuda" else "cpu, 1 thread"


@dataclass(frozen=True, slots=True)
class Pack:
    """Texts as tokens, and the runs. `arms`, `held`: places of texts; `ids`: of those held out."""

    tokens: npt.NDArray[np.uint16]
    ends: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]  # bytes
    arms: dict[str, list[int]]
    held: list[int]
    ids: list[str]
    shape: Shape
    runs: list[tuple[int, str, int]]  # tokens, arm, seed

    def text(self, place: int) -> list[int]:
        """The tokens of a text."""
        found: list[int] = self.tokens[self.ends[place - 1] if place else 0 : self.ends[place]].tolist()
        return found

    def write(self, file: Path) -> None:
        """Write all of it, compressed."""
        facts = {name: getattr(self, name) for name in ("arms", "held", "ids", "runs")} | {"shape": asdict(self.shape)}
        whole = io.BytesIO()
        np.savez(whole, tokens=self.tokens, ends=self.ends, sizes=self.sizes, facts=np.array(json.dumps(facts)))
        filters = [{"id": lzma.FILTER_LZMA2, "preset": _PRESET, "dict_size": _MATCHED}]
        file.write_bytes(lzma.compress(whole.getvalue(), filters=filters))


def read_pack(file: Path) -> Pack:
    """What `Pack.write` wrote."""
    with np.load(io.BytesIO(lzma.decompress(file.read_bytes()))) as whole:
        facts = json.loads(str(whole["facts"]))
        shape = Shape(**facts.pop("shape"))
        return Pack(whole["tokens"], whole["ends"], whole["sizes"], shape=shape, **facts)


def run(pack: Pack, work: Path, wanted: tuple[int, str, int], until: float) -> None:
    """One run, unless it is done or another process has it."""
    tokens, arm, seed = wanted
    name = f"{arm}-{seed}-{tokens}"
    file = work / f"{name}.json"
    try:
        claim = os.open(work / f"{name}.claimed", os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return
    try:
        if file.exists():
            return
        place = Machine()
        shape, texts = replace(pack.shape, tokens=tokens), pack.arms[arm]
        sizes = [int(pack.sizes[text]) for text in texts]
        stream = make_stream(sizes, lambda at: pack.text(texts[at]), shape, seed)
        folder = work / name
        facts = train(folder, shape, stream, seed, place, until, name)
        if facts is None:
            return
        needed = bits(load_decoder(folder, shape, place), [pack.text(at) for at in pack.held], shape, place)
        result: dict[str, Any] = {"training": facts, "bits": dict(zip(pack.ids, needed, strict=True))}
        part = file.with_suffix(".part")
        part.write_text(json.dumps(result), encoding="utf-8")
        part.rename(file)
        mean = sum(needed) / sum(int(pack.sizes[at]) for at in pack.held)
        print(f"{name}: {mean:.3f} bits a byte of all held out, {facts['seconds']} s of training", flush=True)
    finally:
        os.close(claim)
        (work / f"{name}.claimed").unlink()


def main() -> None:
    """Start the processes, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--work", type=Path, help="checkpoints; default: OUT.work")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    work = given.work or given.out.with_suffix(".work")
    work.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    if given.worker:
        torch.set_num_threads(1)
        pack = read_pack(given.pack)
        for wanted in pack.runs:
            if time.monotonic() < begun + given.seconds:
                run(pack, work, wanted, begun + given.seconds)
        return
    for claim in work.glob("*.claimed"):
        claim.unlink()
    command = [sys.executable, "-m", "benchmarks.teaching_packed", *sys.argv[1:], "--worker"]
    workers = [subprocess.Popen(command) for _ in range(given.workers)]
    while any(worker.poll() is None for worker in workers):
        time.sleep(2)
        _gather(work, given.out)
    print(f"{_gather(work, given.out)} runs done, {time.monotonic() - begun:.0f} s", flush=True)
    sys.exit(max(worker.wait() for worker in workers))


def _gather(work: Path, out: Path) -> int:
    """Write what is done to one file; return how many runs that are."""
    done = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(work.glob("*.json"))}
    part = out.with_suffix(".part")
    part.write_text(json.dumps(done), encoding="utf-8")
    part.rename(out)
    return len(done)


if __name__ == "__main__":
    main()
