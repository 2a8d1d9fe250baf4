"""What a model writes from specs, beside two that need none: `python -m benchmarks.synthesis --in LIBRARY [--served]`.

The baselines are asked the same, at equal attempts, and go through the same steps as a model does:

- template: a class with the shapes of the facts made of the commonest layers, whatever the block computes;
- nearest: the code of that other block of the library which a search for the spec's summary finds first, under the
  asked name, with the arguments that it ran with. Copied code: what retrieval gives where the block is not at hand.

Both read the prompt alone. Claim: none; the table says what each step lets through, with 95 % Wilson intervals.
"""

import argparse
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.served import MODEL, serve
from extract.arguments.messages import join_arguments
from extract.model.results import wilson
from extract.search import open_index
from lemur.synthesis import AttemptOptions, Sampling, Service
from lemur.synthesis.endpoint import Answer, Endpoint, Request
from lemur.synthesis.folder import STEPS
from lemur.synthesis.loop import Ask, draw, synthesize
from lemur.synthesis.steps import Proposal, Prover
from manifests.provenance import TABLE

_FACTS = re.compile(r"^\[\n.*^\]", re.DOTALL | re.MULTILINE)
_SHAPE = re.compile(r"(\w+) ([\d×]+)")

_NETWORK = """

def supported_hyperparameters():
    return {{"lr", "momentum"}}


class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__()
        self.device = device
        self.stem = nn.Sequential(nn.Conv2d(in_shape[1], {channels}, 3, 2, 1), nn.BatchNorm2d({channels}), nn.ReLU())
        self.block = {call}
        self.head = nn.Linear({features}, out_shape[0])

    def forward(self, x):
        x = self.stem(x)
        x = {enter}
        return self.head(self.block(x).flatten(1))

    def train_setup(self, prm):
        self.to(self.device)
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.parameters(), lr=prm["lr"], momentum=prm["momentum"])

    def learn(self, train_data):
        self.train()
        for inputs, labels in train_data:
            self.optimizer.zero_grad()
            loss = self.criterion(self(inputs.to(self.device)), labels.to(self.device))
            loss.backward()
            self.optimizer.step()
"""


class _Written(ABC):
    """A baseline: writes from the facts of the first block that a prompt states."""

    def ask(self, requests: Sequence[Request]) -> list[Answer]:
        """Return the files that are written for requests."""
        found = [_FACTS.search(request.messages[1]["content"]) for request in requests]
        assert None not in found, "each prompt states facts"
        texts = [self.write(json.loads(match[0])[0]) for match in found if match]
        return [Answer(f"```python\n{text}```", 0, 0, "stop") for text in texts]

    @abstractmethod
    def write(self, facts: dict[str, Any]) -> str:
        """The file for a block with these facts."""


class Template(_Written):
    """The commonest layers in the shapes of the facts."""

    def write(self, facts: dict[str, Any]) -> str:
        """A file whose class keeps or changes shapes as the facts do."""
        given, made = _shapes(facts)
        return f"import torch\nimport torch.nn as nn\n\n\n{_class(facts['class'], given, made)}{_net(facts)}"


class Nearest(_Written):
    """The code of another block, the first that a search for the summary finds."""

    def __init__(self, library: Path) -> None:
        self._library, self._index = library, open_index(library)
        table = pq.read_table(library / TABLE, columns=["block", "name", "code", "lean_code", "arguments"])
        self._rows = {row["block"]: row for row in table.to_pylist()}

    def write(self, facts: dict[str, Any]) -> str:
        """That code, its class under the asked name, and a network that uses it."""
        query = facts["summary"].partition(":")[2] or facts["summary"]
        hits = (hit for hit in self._index.search(query, 100)[0] if hit["level"] in ("forward", "backward"))
        row = next((self._rows[hit["block"]] for hit in hits if hit["name"] != facts["class"]), None)
        if row is None:
            return _net(facts)
        renamed = (
            f"\n\nclass {facts['class']}({row['name']}):\n    def __init__(self, *args, **kwargs):\n"
            f"        super().__init__({join_arguments(**json.loads(row['arguments'])['init'])})\n"
        )
        return f"{row['lean_code'] or row['code']}\nimport torch\nimport torch.nn as nn\n{renamed}{_net(facts)}"


def _shapes(facts: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Of what goes in and comes out, without the batch."""
    given, _, made = facts["shapes"][0].partition(" -> ")
    return _numbers(given.partition(", ")[0]), _numbers(made.partition(", ")[0])


def _numbers(told: str) -> list[int]:
    found = _SHAPE.search(told)
    return [int(size) for size in found[2].split("×")][1:] if found else []


def _class(name: str, given: list[int], made: list[int]) -> str:
    head = f"class {name}(nn.Module):\n    def __init__(self, *args, **kwargs):\n        super().__init__()\n"
    if len(given) == 3 and len(made) == 3:
        stride = max(1, given[1] // max(1, made[1]))
        body = f"nn.Conv2d({given[0]}, {made[0]}, 3, {stride}, 1), nn.BatchNorm2d({made[0]}), nn.ReLU()"
    elif len(given) == 3 and len(made) == 1:
        body = f"nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear({given[0]}, {made[0]})"
    else:
        size = given[-1] if given else 1
        body = f"nn.LayerNorm({size}), nn.Linear({size}, {made[-1] if made else 1})"
    whole = "self.body(x)" if given != made else "x + self.body(x)"
    return f"{head}        self.body = nn.Sequential({body})\n\n    def forward(self, x):\n        return {whole}\n"


def _net(facts: dict[str, Any]) -> str:
    """The network around a block: what comes in is brought to the shape of the facts, what goes out to scores."""
    given, made = _shapes(facts)
    channels, enter = (given[-1] if given else 1), "x.mean((2, 3))"
    if len(given) == 3 and facts["layout"] == "N×H×W×C":
        enter = f"nn.functional.adaptive_avg_pool2d(x, ({given[0]}, {given[1]})).permute(0, 2, 3, 1)"
    elif len(given) == 3:
        channels, enter = given[0], f"nn.functional.adaptive_avg_pool2d(x, ({given[1]}, {given[2]}))"
    elif len(given) == 2:
        enter = f"nn.functional.adaptive_avg_pool1d(x.flatten(2), {given[0]}).transpose(1, 2)"
    return _NETWORK.format(channels=channels, call=facts["called_as"], enter=enter, features=prod(made))


def main(argv: Sequence[str] | None = None) -> None:
    """Ask all of them, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in", dest="library", type=Path, required=True, help="an extraction folder")
    parser.add_argument("--against", type=Path, action="append", default=[], help="new beside this folder, too")
    parser.add_argument(
        "--served", action="append", nargs="?", const=MODEL, default=[], metavar="FILE.gguf",
        help="behind llama.cpp's server; SmolLM2-135M without a file (repeatable)",
    )  # fmt: skip
    parser.add_argument("--n", type=int, default=50, help="attempts")
    parser.add_argument("--repairs", type=int, default=0, help="answers to errors")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=1024)
    asked = parser.parse_args(argv)
    attempts, pool = draw(asked.library, AttemptOptions(asked.n, seed=asked.seed))
    print(f"{len(attempts)} attempts, blocks drawn from {pool} of {asked.library.name}")
    models: dict[str, Ask] = {"template": Template().ask, "nearest": Nearest(asked.library).ask}
    with ExitStack() as servers:
        for number, name in enumerate(asked.served, 1):
            service = Service(servers.enter_context(serve(name)), at_once=1)
            label = f"{number}: {Path(name.removeprefix('package:')).stem}"
            models[label] = Endpoint(label, service, Sampling(max_tokens=asked.max_tokens)).ask
        found: dict[str, list[Proposal]] = {}
        for label, ask in models.items():
            with Prover([asked.library, *asked.against]) as prover:
                found[label] = synthesize(attempts, ask, prover, repairs=asked.repairs)
    print(f"{'step':<12}" + "".join(f"{name:>34}" for name in found))
    for number, step in enumerate(STEPS):
        cells = []
        for proposals in found.values():
            last = {proposal.attempt.number: proposal.fault for proposal in proposals}.values()  # of each attempt
            through = sum(fault is None or STEPS.index(fault.step) > number for fault in last)
            low, high = wilson(through, len(last))
            cells.append(f"{through:>4} of {len(last)} ({100 * low:.1f} to {100 * high:.1f} %)")
        print(f"{step:<12}" + "".join(f"{cell:>34}" for cell in cells))


if __name__ == "__main__":
    main()
