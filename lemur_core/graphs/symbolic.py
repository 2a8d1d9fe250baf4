"""Symbolic sizes: combine several runs into one graph whose numbers are formulas over the input sizes.

The runs differ only in the sizes of their inputs. Numbers that are equal in all of them stay numbers; one that differs
becomes a `Size`: a formula over named sizes that holds in every run. A number without a formula becomes a
named size itself, `U1`, known only by its values in the runs.
"""

import ast
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import gcd, isclose, isfinite
from typing import Any

from lemur_core.graphs.graph import Argument, Graph, Node, TensorType


@dataclass(frozen=True, slots=True)
class Size:
    """A number that depends on the input sizes: a formula in Python syntax, and its value in the first run."""

    text: str
    value: float


@dataclass(frozen=True, slots=True)
class _ObservedSize:
    """The values of one number in several runs."""

    values: tuple[float, ...]


Dimension = int | Size


def together(graphs: Sequence[Graph]) -> Graph | None:
    """Combine several runs into one graph that holds all values of each number that differs; for `Symbols.named`.

    Returns: None if the runs do not execute the same operations on the same values.
    """
    first = graphs[0]
    if any(_links(graph) != _links(first) for graph in graphs[1:]):
        return None
    nodes = []
    for index, node in enumerate(first.nodes):
        alike = [graph.nodes[index] for graph in graphs]
        arguments = []
        for number, (name, _) in enumerate(node.arguments):
            try:
                arguments.append((name, _join([node_run.arguments[number][1] for node_run in alike])))
            except ValueError:
                return None
        outputs = tuple(
            TensorType(kinds[0].dtype, _join([kind.shape for kind in kinds]))
            for kinds in zip(*(node_run.outputs for node_run in alike), strict=True)
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


def _join(values: Sequence[Argument]) -> Argument:
    """Combine one argument of several runs. Raises: ValueError if the runs differ in more than numbers."""
    first = values[0]
    if all(type(value) is type(first) and value == first for value in values):
        return first
    if all(type(value) is tuple and len(value) == len(first) for value in values):
        return tuple(_join(items) for items in zip(*values, strict=True))
    if all(type(value) in (int, float) for value in values):
        return _ObservedSize(tuple(values))
    raise ValueError(f"{first!r} is something else at another size")


@dataclass(slots=True)
class Symbols:
    """The sizes that formulas may name: first those of the inputs, then numbers without a formula.

    Args: values: by name, the values in all runs, starting with the original sizes.
    """

    values: dict[str, tuple[float, ...]]
    _known: dict[tuple[float, ...], str] = field(default_factory=dict)

    def replace_numbers(self, graph: Graph, runs: Sequence[int] | None = None) -> Graph:
        """Replace each number that differs in a graph from `together` by a `Size`.

        Args: runs: the runs in the graph; None for all.
        """
        return _map_numbers(graph, lambda seen: self._size(seen.values, runs), _ObservedSize)

    def _size(self, values: tuple[float, ...], runs: Sequence[int] | None) -> Size:
        if runs is None:
            if values not in self._known:
                expression = formula(values, self.values) or self._product(values)
                self._known[values] = normal(expression) if expression else self._unknown(values)
            return Size(self._known[values], values[0])
        for known, text in self._known.items():
            if tuple(known[run] for run in runs) == values:
                return Size(text, values[0])
        some = {name: tuple(of[run] for run in runs) for name, of in self.values.items()}
        expression = formula(values, some)
        if expression is None:
            raise ValueError(f"no formula for {values}")
        return Size(normal(expression), values[0])

    def _product(self, values: tuple[float, ...]) -> str | None:
        """Find a product of two known numbers: `H // 2 * (W // 2)`, where a feature map is flattened."""
        if not all(values) or not all(type(value) is int for value in values):
            return None
        for known, text in list(self._known.items()):
            if any(not one or value % one for value, one in zip(values, known, strict=True)):
                continue
            rest = tuple(value // one for value, one in zip(values, known, strict=True))
            other = self._known.get(rest) or formula(rest, self.values)
            if len(set(rest)) > 1 and other:
                return f"({text}) * ({other})"
        return None

    def _unknown(self, values: tuple[float, ...]) -> str:
        name = f"U{sum(name.startswith('U') for name in self.values) + 1}"
        self.values[name] = values
        return name


def is_unknown(name: str) -> bool:
    """Return whether a named size is a number without a formula."""
    return name.startswith("U")


def at(graph: Graph, sizes: Mapping[str, float] | None = None) -> Graph:
    """Evaluate a graph at some sizes.

    Args: sizes: by name; None for the sizes of the first run.
    Returns: a graph in which every `Size` is a number.
    """
    return _map_numbers(graph, lambda size: size.value if sizes is None else value_at(size.text, sizes), Size)


def misses(graph: Graph, other: Graph, sizes: Mapping[str, float]) -> bool:
    """Return whether a symbolic graph disagrees with a real run at some sizes, ignoring numbers without a formula."""
    if _links(graph) != _links(other):
        return True

    def same(one: Argument, there: Argument) -> bool:
        if isinstance(one, Size):
            if any(map(is_unknown, names_in(one.text))):
                return True
            value = value_at(one.text, sizes)
            return bool(value == there or (type(there) is float and isclose(value, there, rel_tol=_NEAR)))
        if type(one) is tuple:
            return type(there) is tuple and len(one) == len(there) and all(map(same, one, there))
        # Only NaN differs from itself.
        return type(one) is type(there) and bool(one == there or one != one)

    return not all(
        same(tuple(value for _, value in one.arguments), tuple(value for _, value in there.arguments))
        and same(tuple(kind.shape for kind in one.outputs), tuple(kind.shape for kind in there.outputs))
        for one, there in zip(graph.nodes, other.nodes, strict=True)
    )


def _map_numbers(graph: Graph, change: Callable[[Any], Argument], kind: type) -> Graph:
    def convert(value: Argument) -> Argument:
        if isinstance(value, kind):
            return change(value)
        if type(value) is tuple:
            return tuple(map(convert, value))
        return value

    def node(old: Node) -> Node:
        outputs = tuple(TensorType(output.dtype, convert(output.shape)) for output in old.outputs)
        return replace(old, arguments=tuple((name, convert(value)) for name, value in old.arguments), outputs=outputs)

    return replace(graph, nodes=tuple(map(node, graph.nodes)))


_SIGNS: dict[type, Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}


@cache
def _parse(text: str) -> ast.expr:
    if len(text) > _LONGEST_FORMULA:
        raise ValueError(f"a formula of {len(text):,} characters")
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, RecursionError) as error:
        raise ValueError(f"{text!r} is not a formula") from error


def difference(one: Argument, other: Argument) -> int | None:
    """Return by how much one number exceeds another if that is the same at all sizes, else None."""
    names = sorted({name for item in (one, other) if isinstance(item, Size) for name in names_in(item.text)})
    differences = set()
    for turn in range(_POINTS):
        # Large sizes in changing proportions: a difference that depends on one of them shows.
        sizes = {name: 97 + 60 * index + 31 * turn * (index + 1) % 59 for index, name in enumerate(names)}
        above, below = (value_at(i.text, sizes) if isinstance(i, Size) else i for i in (one, other))
        differences.add(above - below)
    first = differences.pop()
    return int(first) if not differences and first == int(first) else None


_POINTS = 5


_LONGEST_FORMULA = 2_000  # characters
_LARGEST_BASE, _LARGEST_EXPONENT = 2**53, 64  # `9 ** 9 ** 9` would take forever


@cache
def normal(text: str) -> str:
    """Normalize the spaces and parentheses of a formula. Raises: ValueError if it is not a formula."""
    return ast.unparse(_parse(text)).replace("(-0.5)", "-0.5")


def names_in(text: str) -> set[str]:
    """Return the sizes that a formula names. Raises: ValueError if it is not a formula."""
    return {node.id for node in ast.walk(_parse(text)) if isinstance(node, ast.Name)}


def value_at(text: str, sizes: Mapping[str, float]) -> float:
    """Evaluate a formula. Raises: ValueError if it is not a formula, or names a size that is not in `sizes`."""

    # Not `eval`: formulas are also read from files of other people.
    def value(node: ast.expr) -> float:
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return node.value  # type: ignore[return-value]
        if isinstance(node, ast.Name) and node.id in sizes:
            return sizes[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
            left, right = value(node.left), value(node.right)
            if isinstance(node.op, ast.Pow) and (abs(left) > _LARGEST_BASE or abs(right) > _LARGEST_EXPONENT):
                raise ValueError(f"{text!r} has no value that a size can have")
            return _SIGNS[type(node.op)](left, right)
        if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
            return _SIGNS[type(node.op)](value(node.operand))
        raise ValueError(f"{text!r} is not a formula over {', '.join(sizes)}")

    try:
        return value(_parse(text))
    except ArithmeticError as error:
        raise ValueError(f"{text!r} has no value: {error}") from error


Atoms = Mapping[str, tuple[float, ...]]
_FACTORS = 3  # the maximum number of sizes in a product
_STEPS = 64  # the largest divisor


def formula(seen: Sequence[float], atoms: Atoms) -> str | None:
    """Find the simplest Python expression over named sizes that has this value in every run.

    Tries affine expressions (`2 * H + 1`), floor divisions (`(H + 1) // 2`), remainders (`-H % 7`) and products of
    these (`H // 2 * W`); for values that are not integers, inverses and roots of these, within 1e-6.

    Args:
        seen: its value in each run.
        atoms: the values of the sizes that may be named, in order of preference.
    """
    if not all(isfinite(value) and value == int(value) for value in seen):
        return _real(tuple(seen), atoms)
    values = tuple(int(value) for value in seen)
    for name, atom in atoms.items():
        if atom == values:
            return name
    return _of_one(values, atoms) or _product(values, atoms)


#: Functions that turn a formula with integer values into one with real values, each with its inverse.
_REALS: tuple[tuple[str, Callable[[float], float]], ...] = (
    ("1 / {}", lambda value: 1 / value),
    ("{} ** -0.5", lambda value: value**-2),
    ("1 / {} ** 0.5", lambda value: value**-2),
    ("{} ** 0.5", lambda value: value**2),
)


def _real(values: tuple[float, ...], atoms: Atoms) -> str | None:
    if not all(isfinite(value) and value for value in values):
        return None
    near: list[str] = []
    for form, inverse in _REALS:
        under = [inverse(value) for value in values]
        whole = tuple(round(value) for value in under)
        if any(
            abs(value - expression) > _NEAR * abs(expression) for value, expression in zip(under, whole, strict=True)
        ):
            continue
        expression = formula(whole, atoms) if len(set(whole)) > 1 else None
        if expression:
            text = form.format(expression if expression.isidentifier() else f"({expression})")
            if _exact(text, values, atoms):
                return text
            # Right within rounding, but another form may be exact.
            near.append(text)
    return near[0] if near else None


_NEAR = 1e-6


def _exact(text: str, values: Sequence[float], atoms: Atoms) -> bool:
    runs = ({name: of[run] for name, of in atoms.items()} for run in range(len(values)))
    return all(value_at(text, sizes) == value for sizes, value in zip(runs, values, strict=True))


def _of_one(values: tuple[int, ...], atoms: Atoms) -> str | None:
    for name, atom in atoms.items():
        sizes = [int(value) for value in atom]
        kinds = (_affine, _remainders, _floors)
        for text in itertools.chain.from_iterable(kind(values, sizes, name) for kind in kinds):
            return text
    return None


def _affine(values: Sequence[int], sizes: Sequence[int], name: str) -> Iterator[str]:
    """`a * n + b`."""
    pairs = sorted({(size, value) for size, value in zip(sizes, values, strict=True)})
    # One size with two values: this is not a function of the size.
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
    """`-n % k`: the remainder to the next multiple."""
    # A divisor is larger than its remainders.
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
    candidates: list[tuple[tuple[int, ...], str]] = []
    for k, factor in itertools.product(range(2, _STEPS + 1), factors):
        for b in range(-k + 1, k):
            c = pairs[0][1] - (pairs[0][0] + b) // k * factor
            if all((n + b) // k * factor + c == v for n, v in pairs):
                base = f"{name} // {k}" if not b else f"({_sum(name, b)}) // {k}"
                text = _sum(base if factor == 1 else f"{base} * {factor}", c)
                candidates.append(((bool(c), b not in (0, k - 1), abs(b), k), text))
    if candidates:
        yield min(candidates)[1]  # prefer plain rounding down or up: of the formulas that fit, these generalize best


def _product(values: tuple[int, ...], atoms: Atoms) -> str | None:
    """Find a product of sizes and a number, or of a size and an expression of one other size."""
    names = list(atoms)
    for count in range(2, _FACTORS + 1):
        for chosen in itertools.combinations(names, count):
            products = [1] * len(values)
            for name in chosen:
                products = [one * int(n) for one, n in zip(products, atoms[name], strict=True)]
            expression = _ratio(values, products)
            if expression:
                up, down = expression
                text = " * ".join(chosen)
                return text + (f" * {up}" if up != 1 else "") + (f" // {down}" if down != 1 else "")
    for name in names:
        sizes = [int(value) for value in atoms[name]]
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
