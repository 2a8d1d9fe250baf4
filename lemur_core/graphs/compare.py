"""Differences between two computations, as text."""

from collections import Counter
from collections.abc import Mapping

from lemur_core.graphs.graph import LEAVES, Graph
from lemur_core.graphs.identity import label, similarity, subtrees


def differences(one: Graph, other: Graph, limit: int = 8) -> list[str]:
    """List what only one of two graphs has, one line each: operations first, then inputs, parameters and constants.

    Args:
        limit: maximum lines per group; one more line states how many were omitted.

    Returns: nothing if the two have the same operations on the same shapes; they may still be connected differently.
    """
    lines: list[str] = []
    for wanted in (False, True):
        first, second = (
            Counter(label(graph, node) for node in graph.nodes if (node.op in LEAVES) is wanted)
            for graph in (one, other)
        )
        lines += _list_differences(first, second, limit)
    return lines


def _list_differences(first: Mapping[str, int], second: Mapping[str, int], limit: int) -> list[str]:
    differing = [key for key in sorted({*first, *second}) if first.get(key, 0) != second.get(key, 0)]
    differing.sort(key=lambda key: -abs(first.get(key, 0) - second.get(key, 0)))
    lines = [f"{_format_label(key)}: {first.get(key, 0)} against {second.get(key, 0)}" for key in differing[:limit]]
    left = len(differing) - limit
    return [*lines, f"and {left} more that differ"] if left > 0 else lines


def _format_label(key: str) -> str:
    return " ".join(part for part in key.split(" ") if not part.endswith("=%"))


def share(one: Graph, other: Graph) -> float:
    """Return the similarity of two computations, ignoring widths: the Jaccard similarity of their subtrees.

    Args: one, other: canonical graphs of the same mode.
    Returns: 0 to 1. 1 does not mean equal: subtrees have a limited depth.
    """
    return similarity(subtrees(one), subtrees(other))
