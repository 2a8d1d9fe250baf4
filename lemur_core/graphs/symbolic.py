"""Sizes that were never traced: one graph of several runs, whose numbers say how they follow the inputs' sizes.

The runs differ in the sizes of their inputs alone. Numbers that are equal in all of them stay; one that differs becomes
a `Size`, for which `formula` finds an expression over named sizes that holds in every run, the last of which no formula
was made from.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from lemur_core.graphs.graph import Argument, Graph, Node, TensorType


@dataclass(frozen=True, slots=True)
class Size:
    """A number that follows the sizes of the inputs: its value in each run."""

    values: tuple[float, ...]


Dimension = int | Size


def together(graphs: Sequence[Graph]) -> Graph | None:
    """One graph of several runs, with a `Size` for each number that differs.

    Returns: None where the runs do not perform the same operations on the same values.
    """
    first = graphs[0]
    if any(_links(graph) != _links(first) for graph in graphs[1:]):
        return None
    nodes = []
    for place, node in enumerate(first.nodes):
        alike = [graph.nodes[place] for graph in graphs]
        arguments = []
        for number, (name, _) in enumerate(node.arguments):
            try:
                arguments.append((name, _joined([one.arguments[number][1] for one in alike])))
            except ValueError:
                return None
        outputs = tuple(
            TensorType(kinds[0].dtype, _joined([kind.shape for kind in kinds]))
            for kinds in zip(*(one.outputs for one in alike), strict=True)
        )
        nodes.append(replace(node, arguments=tuple(arguments), outputs=outputs))
    return Graph(tuple(nodes), first.outputs, first.writes)


def _links(graph: Graph) -> tuple[object, ...]:
    nodes = tuple(
        (
            node.op,
            node.scope,
            tuple(name for name, _ in node.arguments),
            node.inputs,
            tuple((kind.dtype, len(kind.shape)) for kind in node.outputs),
        )
        for node in graph.nodes
    )
    return nodes, graph.outputs, graph.writes


def _joined(values: Sequence[Argument]) -> Argument:
    """One argument of several. Raises: ValueError where they differ in more than numbers."""
    first = values[0]
    if all(type(value) is type(first) and value == first for value in values):
        return first
    if all(type(value) is tuple and len(value) == len(first) for value in values):
        return tuple(_joined(items) for items in zip(*values, strict=True))
    if all(type(value) in (int, float) for value in values):
        return Size(tuple(values))
    raise ValueError(f"{first!r} is something else at another size")


def at(value: Argument, run: int) -> Argument:
    """An argument as one run has it."""
    if isinstance(value, Size):
        return value.values[run]
    if type(value) is tuple:
        return tuple(at(item, run) for item in value)
    return value


def fixed(node: Node, run: int) -> Node:
    """A node as one run has it."""
    outputs = tuple(TensorType(kind.dtype, at(kind.shape, run)) for kind in node.outputs)
    return replace(node, arguments=tuple((name, at(value, run)) for name, value in node.arguments), outputs=outputs)


Atoms = Mapping[str, Size]
_FACTORS = 3  # sizes that are multiplied in one formula
_STEPS = 64  # the largest divisor


def formula(size: Size, atoms: Atoms) -> str | None:
    """A Python expression over named sizes that has this value in every run; the shortest kind that fits.

    Affine (`2 * H + 1`), a floor division (`(H + 1) // 2`), a remainder (`-H % 7`), a product of
    these (`H // 2 * W`), or one over such.

    Args:
        atoms: the sizes that can be named, those to prefer first.
    """
    if any(value != int(value) for value in size.values):
        return _fraction(size, atoms)
    values = tuple(int(value) for value in size.values)
    for name, atom in atoms.items():
        if atom.values == values:
            return name
    return _of_one(values, atoms) or _product(values, atoms)


def _fraction(size: Size, atoms: Atoms) -> str | None:
    if not all(size.values):
        return None
    for power, text in ((1, "1 / ({})"), (2, "({}) ** -0.5")):
        under = [value**-power for value in size.values]
        whole = tuple(round(value) for value in under)
        if all(abs(value - near) < 1e-6 * near for value, near in zip(under, whole, strict=True)):
            found = formula(Size(whole), atoms) if len(set(whole)) > 1 else None
            if found:
                return text.format(found).replace("(" + found + ")", found if found.isidentifier() else f"({found})")
    return None


def _of_one(values: tuple[int, ...], atoms: Atoms) -> str | None:
    for name, atom in atoms.items():
        sizes = [int(value) for value in atom.values]
        kinds = (_affine, _remainders, _floors)
        for text in itertools.chain.from_iterable(kind(values, sizes, name) for kind in kinds):
            return text
    return None


def _affine(values: Sequence[int], sizes: Sequence[int], name: str) -> Iterator[str]:
    """`a * n + b`."""
    pairs = sorted({(size, value) for size, value in zip(sizes, values, strict=True)})
    if len({size for size, _ in pairs}) < max(2, len(pairs)):
        return
    (n0, v0), (n1, v1) = pairs[0], pairs[1]
    if (v1 - v0) % (n1 - n0):
        return
    a = (v1 - v0) // (n1 - n0)
    b = v0 - a * n0
    if a and all(a * n + b == v for n, v in pairs):
        yield f"{b} - {name}" if a == -1 else _sum(name if a == 1 else f"{a} * {name}", b)


def _remainders(values: Sequence[int], sizes: Sequence[int], name: str) -> Iterator[str]:
    """`-n % k`: what is lacking to a multiple."""
    for k in range(max(values) + 1, _STEPS + 1):
        for sign in (-1, 1):
            if len(set(values)) > 1 and all(sign * n % k == v for n, v in zip(sizes, values, strict=True)):
                yield f"-{name} % {k}" if sign < 0 else f"{name} % {k}"


def _floors(values: Sequence[int], sizes: Sequence[int], name: str) -> Iterator[str]:
    """`(n + b) // k * a + c`."""
    pairs = sorted(set(zip(sizes, values, strict=True)))
    if len({size for size, _ in pairs}) < max(2, len(pairs)):
        return
    steps = [v - pairs[0][1] for _, v in pairs[1:]]
    a = gcd(*steps)
    factors = [a, *(factor for factor in range(1, a) if a % factor == 0)] if a else []
    found: list[tuple[tuple[int, ...], str]] = []
    for k, factor in itertools.product(range(2, _STEPS + 1), factors):
        for b in range(-k + 1, k):
            c = pairs[0][1] - (pairs[0][0] + b) // k * factor
            if all((n + b) // k * factor + c == v for n, v in pairs):
                base = f"{name} // {k}" if not b else f"({_sum(name, b)}) // {k}"
                text = _sum(base if factor == 1 else f"{base} * {factor}", c)
                found.append(((bool(c), b not in (0, k - 1), abs(b), k), text))
    if found:
        yield min(found)[1]  # rounded down or up first: of what fits at few sizes, that holds most often at others


def _product(values: tuple[int, ...], atoms: Atoms) -> str | None:
    """A product of sizes and a number, or of a size and what one other size gives."""
    names = list(atoms)
    for count in range(2, _FACTORS + 1):
        for chosen in itertools.combinations(names, count):
            products = [1] * len(values)
            for name in chosen:
                products = [one * int(n) for one, n in zip(products, atoms[name].values, strict=True)]
            found = _ratio(values, products)
            if found:
                up, down = found
                text = " * ".join(chosen)
                return text + (f" * {up}" if up != 1 else "") + (f" // {down}" if down != 1 else "")
    for name in names:
        sizes = [int(value) for value in atoms[name].values]
        if all(n and v % n == 0 for n, v in zip(sizes, values, strict=True)):
            rest = tuple(v // n for n, v in zip(sizes, values, strict=True))
            others = {other: atom for other, atom in atoms.items() if other != name}
            other_text = _of_one(rest, others) if len(set(rest)) > 1 else None
            if other_text:
                return f"{name} * ({other_text})"
    return None


def _ratio(values: Sequence[int], products: Sequence[int]) -> tuple[int, int] | None:
    if not products[0] or not values[0]:
        return None
    common = gcd(values[0], products[0])
    up, down = values[0] // common, products[0] // common
    if all(product * up == value * down for value, product in zip(values, products, strict=True)):
        return up, down
    return None


def _sum(text: str, number: int) -> str:
    return text if not number else f"{text} {'+' if number > 0 else '-'} {abs(number)}"
