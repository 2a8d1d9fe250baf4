"""What `lemur synthesize` takes for a block: `python -m benchmarks.nonsense --in EXTRACTION`.

For each spec with a graph, ten classes that compute something else are put through the step `conforms`: what comes in
as it is, its negative, every second pixel, a constant, the last dimension reversed; brought to the shape of the output,
with as many parameters as the spec states, added or multiplied so that they are used. And the block's own code, in its
lean form where there is one. Specs that return their input in eval mode are left out: no model is asked for them.

Claim: of the former none is accepted, of the latter all.
"""

import argparse
import json
from pathlib import Path

from extract.specs.make import graphs_in_spec
from lemur.synthesis.steps import Attempt, NetworkProposal, Prover, parameters_used
from lemur_core.files.markdown import table
from lemur_core.graphs.sizes import Sized
from manifests.folders.kinds import EXTRACTION
from manifests.provenance import SPECS
from manifests.records import Block, Spec

_KINDS = {
    "identity": "x",
    "negation": "-x",
    "crop": "x[..., ::2]",
    "constant": "torch.ones_like(x)",
    "permuted": "x.flip(-1)",
}
_WAYS = {"added": "y + self.own.sum()", "multiplied": "y * self.own.mean()"}

_CLASS = """import torch
from torch import nn


class {name}(nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()
        {own}

    def forward(self, *args, **kwargs):
        x = next(value for value in [*args, *kwargs.values()] if isinstance(value, torch.Tensor))
        return {result}

    def fit(self, y, shape, dtype):
        size = torch.Size(shape).numel()
        if y.shape != shape:
            y = y.reshape(-1)
            y = y.repeat(-(-size // max(1, len(y))))[:size].reshape(shape)
        return {used}.to(dtype)
"""


def main() -> None:
    """Put all of them through the step, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in", dest="library", type=Path, required=True, help="an extraction folder")
    parser.add_argument("--jobs", type=int)
    asked = parser.parse_args()
    rows = {
        row.block: row for row in EXTRACTION.rows(asked.library, Block, ("block", "arguments", "code", "lean_code"))
    }
    lines = (asked.library / SPECS).read_text(encoding="utf-8").splitlines()
    specs = [spec for spec in map(Spec.model_validate_json, lines) if spec.algorithm and not spec.identity_in_eval]
    requested = {}
    for spec in specs:
        requested[spec.block] = Attempt(0, spec, json.loads(rows[spec.block].arguments or ""))
    without = sum(not spec.algorithm.motifs for spec in specs if spec.algorithm)
    fixed = [spec for spec in specs if not _parameters(spec)]
    print(f"{len(specs)} specs, {without} without patterns, {len(fixed)} without parameters", flush=True)
    groups = {
        ("its own code", "its own"): [
            (spec, code) for spec in specs if (code := rows[spec.block].lean_code or rows[spec.block].code)
        ]
    }
    groups |= {(kind, ""): [(spec, write(spec, kind, "")) for spec in fixed] for kind in _KINDS}
    groups |= {
        (kind, way): [(spec, write(spec, kind, way)) for spec in specs if spec not in fixed]
        for way in _WAYS
        for kind in _KINDS
    }
    outcomes = []
    with Prover([asked.library], jobs=asked.jobs) as prover:
        for (kind, way), codes in groups.items():
            ones = [NetworkProposal(requested[spec.block], code) for spec, code in codes]
            prover.check_conformance(ones)
            taken = [one for one in ones if one.step is None]
            outcomes.append([kind, way or "none", f"{len(ones)}", f"{len(taken)}"])
            print(*outcomes[-1], sep=" | ", flush=True)
            for one in taken if kind in _KINDS else [one for one in ones if one not in taken]:
                print(f"  {one.attempt.spec.name}: {one.fault and one.fault['error']}")
    print("\n".join(table(["code", "parameters", "specs", "accepted"], outcomes)))


def write(spec: Spec, kind: str, way: str) -> str:
    """The file with a class of the name, shapes and number of parameters of a spec. Args: way: how these are used."""
    assert spec.algorithm is not None
    form = Sized.from_json(graphs_in_spec(spec.algorithm)).evaluate()["eval"]
    outputs = [form.type_of(ref) for ref in form.outputs]
    parts = [f"self.fit({_KINDS[kind]}, {tuple(map(int, one.shape))}, torch.{one.dtype})" for one in outputs]
    result = parts[0] if spec.algorithm.returns == "tensor" else f"[{', '.join(parts)}]"
    own = f"self.own = nn.Parameter(torch.randn({_parameters(spec)}))" if way else "pass"
    return _CLASS.format(name=spec.name, own=own, result=result, used=_WAYS.get(way, "y"))


def _parameters(spec: Spec) -> int:
    assert spec.algorithm is not None
    return parameters_used(Sized.from_json(graphs_in_spec(spec.algorithm)).evaluate()["eval"])


if __name__ == "__main__":
    main()
