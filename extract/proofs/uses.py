"""How a block that runs is to be visited. Standard library only: the guests import it."""

import re
from collections.abc import Mapping
from typing import Any

from extract.arguments.messages import NAME, BlockRun, BlockUses

_SHAPE = re.compile(r"\w+ (\d+(?:x\d+)*)")
_RUN_BACKWARD = re.compile(r"\bbackward\b|hook\b")  # Python that runs backward, not forward


def make_uses(run: BlockRun, observed: Mapping[str, Any], hints: Mapping[str, Any]) -> BlockUses:
    """Return the request to run a block in every known way.

    Args:
        observed: an `Observed` record of the call in `run`.
        hints: calls found in the corpus, in the format of `extract.arguments.hints.Hints.to_json`.
    """
    others = {name: hints.get(name, []) for name in ("init", "forward", "inputs")}
    own = {companion["name"] for companion in run.companions}
    words = set(NAME.findall(str(others)))
    more = [item for item in hints.get("companions", ()) if item["name"] in words - own]
    return BlockUses(
        run.code,
        run.name,
        run.origin,
        run.folders,
        run.arguments,
        [*run.companions, *more],
        list_sizes(observed),
        others,
        _RUN_BACKWARD.search(run.code) is not None,
    )


def list_sizes(observed: Mapping[str, Any]) -> list[list[list[int]]]:
    """Return the input shapes of each further call that was observed to work."""
    cases = []
    for case in observed.get("cases", ())[1:]:
        shapes = [_SHAPE.fullmatch(text) for text in case["inputs"].values()]
        cases.append([[int(size) for size in shape[1].split("x")] for shape in shapes if shape is not None])
    return [shapes for shapes in cases if shapes]
