"""Which statements of specs are false: each block is run again by code that shares nothing with the product's own.

    python -m benchmarks.statements DIR...

DIR: extraction folders. Below the file of each block runs a text in plain torch, in the sandbox: it gives parameters
and buffers random values, calls the block as `lemur show` prints it, and notes outputs in both modes, and calls of
torch functions by name and shapes. Compared with these are facts of the spec (identity, modes, shapes, parameters)
and its operations (weights of convolutions and linear layers, normalizations).
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from extract.model.blocks import read_blocks
from extract.proofs.runtime import runtime_for
from extract.specs.make import read_specs
from extract.specs.printed import print_call
from lemur_core.graphs.graph import DRAWS
from lemur_core.sandbox import Job, Limits, Sandbox
from manifests.records import Spec

_COLUMNS = ("block", "name", "code", "lean_code", "requires", "arguments", "observed")
_FUTURE = re.compile(r"^from __future__ import .*$", re.MULTILINE)
_WATCH = """

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

calls = []


class Watch(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        tensors = [tuple(a.shape) for a in args if isinstance(a, torch.Tensor)]
        shape = tuple(output.shape) if isinstance(output, torch.Tensor) else None
        if len(calls) < 5000:
            rest = [a for a in [*args, *(kwargs or {}).values()] if isinstance(a, (int, float)) and a - a == 0]
            calls.append([name, tensors, shape, rest])
        return output


def shuffle(module):
    random = torch.Generator().manual_seed(5)
    for tensor in module.parameters():
        if tensor.is_floating_point():
            noise = torch.rand(tensor.shape, generator=random) + 0.5
            tensor.data.copy_(torch.where(tensor == 0, noise - 1, tensor * noise))
    for name, tensor in module.named_buffers():
        if tensor.is_floating_point() and name.endswith(("running_mean", "running_var")):
            tensor.copy_(torch.rand(tensor.shape, generator=random) + 0.5)


def run(mode):
    torch.manual_seed(3)
    block.train(mode)
    seen = []
    hook = block.register_forward_pre_hook(lambda m, a, k: seen.extend([*a, *k.values()]), with_kwargs=True)
    with torch.no_grad():
        output = call()
    hook.remove()
    found = []
    def take(value):
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, dict):
            for item in value.values():
                take(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                take(item)
    take(output)
    return next((value for value in seen if isinstance(value, torch.Tensor)), None), found


shuffle(block)
torch.manual_seed(3)
first, outputs = run(False)
again = run(False)[1]
with Watch():
    run(False)
evaluated = list(calls)
stable = all(torch.equal(a, b) or (a != a).any() for a, b in zip(outputs, again))
try:
    torch.manual_seed(3)
    calls.clear()
    with Watch():
        trained = run(True)[1]
    differs = not all(torch.equal(a, b) for a, b in zip(outputs, trained)) if stable else None
except Exception as error:
    differs = None
answer = {
    "identity": bool(first is not None and outputs[0].shape == first.shape and torch.equal(outputs[0], first)),
    "differs": differs,
    "shapes": ["x".join(map(str, o.shape)) or "scalar" for o in outputs],
    "parameters": sum(p.numel() for p in block.parameters()),
    "eval": evaluated,
    "train": list(calls),
}
"""


def main() -> None:
    """Print each statement that does not hold, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="+")
    counts = {"blocks": 0, "not run again": 0, "statements": 0, "false": 0}
    for folder in parser.parse_args().folder:
        for spec, answer in _run(folder):
            counts["blocks"] += 1
            if not isinstance(answer, dict):
                counts["not run again"] += 1
                print(f"{spec.block}: not run again: {answer}")
                continue
            for text, holds in check(spec, answer):
                counts["statements"] += 1
                counts["false"] += not holds
                if not holds:
                    print(f"{spec.block}: {text}")
    print(", ".join(f"{number:,} {name}" for name, number in counts.items()))


def _run(folder: Path) -> Iterator[tuple[Spec, Any]]:
    rows = {row.block: row for row in read_blocks(folder, _COLUMNS) if row.code}
    runtime = runtime_for(sorted({need for row in rows.values() for need in row.requires}))
    specs = [spec for spec in read_specs(folder) if spec.cases and spec.block in rows]
    jobs = {}
    for spec in specs:
        *start, last = print_call(rows[spec.block], rows[spec.block].code) or ("", "")
        if last.startswith("block("):
            paths = [f"sys.path += {[str(folder) for folder in runtime.folders]!r}"]
            code = rows[spec.block].code or ""
            # Such an import is allowed before all others alone.
            first = _FUTURE.findall(code)
            head = [*first, "import sys", *paths, _FUTURE.sub("", code), "import torch", "from torch import nn"]
            text = "\n".join([*head, *start])
            text += f"\n\n\ndef call():\n    return {last}\n"
            jobs[spec.block] = Job(spec.block, "lemur_core.sandbox.loader:run_text", {"code": text + _WATCH})
    limits = Limits(wall_seconds=600, cpu_seconds=60, memory_bytes=4 * 2**30)
    with Sandbox(limits=limits, workers=2, readable=list(runtime.folders)) as box:
        answers = {outcome.key: outcome.value or outcome for outcome in box.run(list(jobs.values()))}
    yield from ((spec, answers.get(spec.block, "no closed call")) for spec in specs)


def check(spec: Spec, answer: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield each statement that can be decided, and whether it holds."""
    drawn = spec.algorithm is not None and DRAWS in spec.algorithm.hidden
    if spec.identity_in_eval is not None and not drawn:
        yield f"returns its input in eval mode: {spec.identity_in_eval}", spec.identity_in_eval == answer["identity"]
    if spec.train_differs is not None and answer["differs"] is not None:
        yield f"train mode differs: {spec.train_differs}", spec.train_differs == answer["differs"]
    yield f"{spec.parameters} parameters", spec.parameters == answer["parameters"]
    shapes = [output.partition(" ")[2].replace("×", "x") for output in spec.cases[0].outputs]
    yield f"gives {shapes}", shapes == answer["shapes"][: len(shapes)]
    if spec.algorithm is None:
        return
    known = set(_list_calls(answer["eval"])) | set(_list_calls(answer["train"]))
    for line in spec.algorithm.operations:
        for kind, pattern in _OPERATIONS.items():
            if found := re.search(pattern, line):
                yield f"{kind} {found[1]}", (kind, found[1].replace("×", "x")) in known


_OPERATIONS = {
    "convolution": r"\) convolution of .*weight \w+ ([\d×]+)",
    "linear": r"\) linear of .* \w+ (\d+×\d+)",
    "norm": r"\) (batch|layer|instance|group)_norm of",
}


def _list_calls(calls: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield what each call of torch is: the shape of its weight, or the kind of its normalization."""
    for name, tensors, _shape, _rest in calls:
        kind = "convolution" if name.startswith("conv") else name
        if kind in ("convolution", "linear") and len(tensors) > 1:
            yield kind, "x".join(map(str, tensors[1]))
        if name.endswith("_norm"):
            yield "norm", name.removesuffix("_norm")


if __name__ == "__main__":
    main()
