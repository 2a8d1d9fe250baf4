"""Symbolic sizes: combine several runs into one graph whose numbers are formulas over the input sizes.

The runs differ only in the sizes of their inputs. Numbers that are the same in all of them are kept; one that differs
becomes a `Size`: a formula over named sizes that holds in every run. A number for which there is no formula becomes a
named size itself, `U1`, of which only the values in the runs are known.
"""

import ast
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import gcd, isclose, isfinite, prod
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


def merge_runs(graphs: Sequence[Graph]) -> Graph | None:
    """Combine several runs into one graph that holds all values of each number that differs.

    Returns: None if the runs do not execute the same operations on the same values.
    """
    first = graphs[0]
    if any((graph.outputs, graph.writes) != (first.outputs, first.writes) for graph in graphs[1:]):
        return None
    try:
        nodes = tuple(_merge_nodes(runs) for runs in zip(*(graph.nodes for graph in graphs), strict=True))
    except ValueError:
        return None
    return Graph(nodes, first.outputs, first.writes)


def _merge_nodes(runs: Sequence[Node]) -> Node:
    """Combine one node of several runs. Raises: ValueError if they differ in more than numbers."""
    first, *others = runs
    if not all(_is_like(first, run) for run in others):
        raise ValueError(f"{first.op!r} is another operation in some runs")
    arguments = tuple(
        (items[0][0], _join([value for _, value in items]))
        for items in zip(*(run.arguments for run in runs), strict=True)
    )
    outputs = tuple(
        TensorType(kinds[0].dtype, _join([kind.shape for kind in kinds]))
        for kinds in zip(*(run.outputs for run in runs), strict=True)
    )
    return Node(first.op, arguments, outputs, first.scope, first.within)


def _is_like(one: Node, other: Node) -> bool:
    """Return whether two nodes are the same operation on the same values, whatever the numbers."""
    return (
        (one.op, one.scope, one.inputs) == (other.op, other.scope, other.inputs)
        and [name for name, _ in one.arguments] == [name for name, _ in other.arguments]
        and [(kind.dtype, len(kind.shape)) for kind in one.outputs]
        == [(kind.dtype, len(kind.shape)) for kind in other.outputs]
    )


def _join(values: Sequence[Argument]) -> Argument:
    """Combine one argument of several runs. Raises: ValueError if the runs differ in more than numbers."""
    first = values[0]
    if all(type(value) is type(first) and value == first for value in values):
        return first
    if all(type(value) is tuple and len(value) == len(first) for value in values):
        return tuple(_join(items) for items in zip(*values, strict=True))
    if all(type(value) in (int, float) for value in values):
        return _ObservedSize(tuple(values))
    raise ValueError(f"{first!r} differs between the runs in more than numbers")


@dataclass(slots=True)
class Symbols:
    """The sizes that formulas may name: first those of the inputs, then numbers without a formula.

    Args: values: by name, the values in all runs, starting with the original sizes.
    """

    values: dict[str, tuple[float, ...]]
    _known: dict[tuple[float, ...], str] = field(default_factory=dict)

    def replace_numbers(self, graph: Graph, runs: Sequence[int] | None = None) -> Graph:
        """Replace each number that differs, in a graph from `merge_runs`, with a `Size`.

        Args: runs: the runs in the graph; None for all.
        """
        return _map_numbers(graph, lambda observed: self._size(observed.values, runs), _ObservedSize)

    def _size(self, values: tuple[float, ...], runs: Sequence[int] | None) -> Size:
        if runs is None:
            if values not in self._known:
                text = find_formula(values, self.values) or self._product(values) or self._unknown(values)
                self._known[values] = normalize_formula(text)
            return Size(self._known[values], values[0])
        for known, text in self._known.items():
            if tuple(known[run] for run in runs) == values:
                return Size(text, values[0])
        atoms = {name: tuple(sizes[run] for run in runs) for name, sizes in self.values.items()}
        expression = find_formula(values, atoms)
        if expression is None:
            raise ValueError(f"no formula for {values}")
        return Size(normalize_formula(expression), values[0])

    def _product(self, values: tuple[float, ...]) -> str | None:
        """Find a product of two known numbers: `H // 2 * (W // 2)`, where a feature map is flattened."""
        if not all(values) or not all(type(value) is int for value in values):
            return None
        for known, text in list(self._known.items()):
            if any(not factor or value % factor for value, factor in zip(values, known, strict=True)):
                continue
            rest = tuple(value // factor for value, factor in zip(values, known, strict=True))
            other = self._known.get(rest) or find_formula(rest, self.values)
            if len(set(rest)) > 1 and other:
                return f"({text}) * ({other})"
        return None

    def _unknown(self, values: tuple[float, ...]) -> str:
        name = f"U{sum(map(is_unknown, self.values)) + 1}"
        self.values[name] = values
        return name


def is_unknown(name: str) -> bool:
    """Return whether a named size is a number without a formula."""
    return name.startswith("U")


def evaluate_graph(graph: Graph, sizes: Mapping[str, float] | None = None) -> Graph:
    """Evaluate a graph at some sizes.

    Args: sizes: by name; None for the sizes of the first run.
    Returns: a graph in which every `Size` is a number.
    """
    return _map_numbers(graph, lambda size: size.value if sizes is None else evaluate_formula(size.text, sizes), Size)


def contradicts(graph: Graph, other: Graph, sizes: Mapping[str, float]) -> bool:
    """Return whether a symbolic graph disagrees with a real run at some sizes, ignoring numbers without a formula."""
    if (graph.outputs, graph.writes, len(graph.nodes)) != (other.outputs, other.writes, len(other.nodes)):
        return True
    if not all(map(_is_like, graph.nodes, other.nodes)):
        return True

    def agree(predicted: Argument, actual: Argument) -> bool:
        if isinstance(predicted, Size):
            if any(map(is_unknown, list_sizes(predicted.text))):
                return True
            value = evaluate_formula(predicted.text, sizes)
            return bool(value == actual or (type(actual) is float and isclose(value, actual, rel_tol=_NEAR)))
        if type(predicted) is tuple:
            return type(actual) is tuple and len(predicted) == len(actual) and all(map(agree, predicted, actual))
        # Only NaN differs from itself.
        return type(predicted) is type(actual) and bool(predicted == actual or predicted != predicted)

    return not all(
        agree(tuple(value for _, value in node.arguments), tuple(value for _, value in real.arguments))
        and agree(tuple(kind.shape for kind in node.outputs), tuple(kind.shape for kind in real.outputs))
        for node, real in zip(graph.nodes, other.nodes, strict=True)
    )


def _map_numbers(graph: Graph, change: Callable[[Any], Argument], kind: type) -> Graph:
    def convert(value: Argument) -> Argument:
        if isinstance(value, kind):
            return change(value)
        if type(value) is tuple:
            return tuple(map(convert, value))
        return value

    def convert_node(old: Node) -> Node:
        outputs = tuple(TensorType(output.dtype, convert(output.shape)) for output in old.outputs)
        arguments = tuple((name, convert(value)) for name, value in old.arguments)
        return Node(old.op, arguments, outputs, old.scope, old.within)

    return replace(graph, nodes=tuple(map(convert_node, graph.nodes)))


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


_LONGEST_FORMULA = 2_000  # characters
_LARGEST_BASE, _LARGEST_EXPONENT = 2**53, 64  # `9 ** 9 ** 9` would take forever


@cache
def normalize_formula(text: str) -> str:
    """Normalize the spaces and parentheses of a formula. Raises: ValueError if it is not a formula."""
    return ast.unparse(_parse(text)).replace("(-0.5)", "-0.5")


def list_sizes(text: str) -> set[str]:
    """Return the sizes that a formula names. Raises: ValueError if it is not a formula."""
    return {node.id for node in ast.walk(_parse(text)) if isinstance(node, ast.Name)}


def evaluate_formula(text: str, sizes: Mapping[str, float]) -> float:
    """Evaluate a formula. Raises: ValueError if it is not a formula, or names a size that is not in `sizes`."""

    # Not `eval`: formulas are also read from files that others wrote.
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
_LARGEST_DIVISOR = 64


def find_formula(values: Sequence[float], atoms: Atoms) -> str | None:
    """Find the simplest Python expression over named sizes that has this value in every run.

    Tries affine expressions (`2 * H + 1`), floor divisions (`(H + 1) // 2`), remainders (`-H % 7`) and products of
    these (`H // 2 * W`); for values that are not integers, inverses and roots of these, within 1e-6.

    Args:
        values: its value in each run.
        atoms: the values of the sizes that may be named, in order of preference.
    """
    if not all(isfinite(value) and value == int(value) for value in values):
        return _find_real(tuple(values), atoms)
    integers = tuple(int(value) for value in values)
    for name, atom in atoms.items():
        if atom == integers:
            return name
    return _find_in_one_size(integers, atoms) or _find_product(integers, atoms)


#: Forms that turn a formula with integer values into one with real values, each with the inverse function.
_REALS: tuple[tuple[str, Callable[[float], float]], ...] = (
    ("1 / {}", lambda value: 1 / value),
    ("{} ** -0.5", lambda value: value**-2),
    ("1 / {} ** 0.5", lambda value: value**-2),
    ("{} ** 0.5", lambda value: value**2),
)


def _find_real(values: tuple[float, ...], atoms: Atoms) -> str | None:
    if not all(isfinite(value) and value for value in values):
        return None
    near: list[str] = []
    for form, inverse in _REALS:
        inverted = [inverse(value) for value in values]
        integers = tuple(round(value) for value in inverted)
        if any(abs(value - n) > _NEAR * abs(n) for value, n in zip(inverted, integers, strict=True)):
            continue
        expression = find_formula(integers, atoms) if len(set(integers)) > 1 else None
        if expression:
            text = form.format(expression if expression.isidentifier() else f"({expression})")
            runs = ({name: atom[run] for name, atom in atoms.items()} for run in range(len(values)))
            if all(evaluate_formula(text, sizes) == value for sizes, value in zip(runs, values, strict=True)):
                return text
            # Correct up to rounding, but another form may be exact.
            near.append(text)
    return near[0] if near else None


_NEAR = 1e-6


def _find_in_one_size(values: tuple[int, ...], atoms: Atoms) -> str | None:
    for name, atom in atoms.items():
        pairs = sorted({(int(size), value) for size, value in zip(atom, values, strict=True)})
        # Otherwise one size has two values: this is not a function of the size.
        if len({size for size, _ in pairs}) >= max(2, len(pairs)):
            # A quotient of multiples is a remainder, too: 7, 14 and 21 give 1, 2 and 3 by `n // 7` and by `n % 6`.
            text = _affine(pairs, name) or _floors(pairs, name) or _remainders(pairs, name)
            if text is not None:
                return text
    return None


_Pairs = Sequence[tuple[int, int]]  # sizes, each with its value


def _affine(pairs: _Pairs, name: str) -> str | None:
    """`a * n + b`."""
    (n0, v0), (n1, v1) = pairs[0], pairs[1]
    a, rest = divmod(v1 - v0, n1 - n0)
    b = v0 - a * n0
    if rest or not a or any(a * n + b != v for n, v in pairs):
        return None
    return f"{b} - {name}" if a == -1 else _sum(name if a == 1 else f"{a} * {name}", b)


def _remainders(pairs: _Pairs, name: str) -> str | None:
    """`-n % k`: the remainder to the next multiple."""
    values = {v for _, v in pairs}
    # A divisor is larger than its remainders.
    for k in range(max(values) + 1, _LARGEST_DIVISOR + 1) if len(values) > 1 else ():
        for sign, text in ((-1, f"-{name} % {k}"), (1, f"{name} % {k}")):
            if all(sign * n % k == v for n, v in pairs):
                return text
    return None


def _floors(pairs: _Pairs, name: str) -> str | None:
    """`(n + b) // k * a + c`."""
    steps = [v - pairs[0][1] for _, v in pairs[1:]]
    a = gcd(*steps)
    factors = [a, *(factor for factor in range(1, a) if a % factor == 0)] if a else []
    candidates: list[tuple[tuple[int, ...], str]] = []
    (n0, v0), (n1, v1), *others = pairs
    for k, factor in itertools.product(range(2, _LARGEST_DIVISOR + 1), factors):
        for b in range(-k + 1, k):
            c = v0 - (n0 + b) // k * factor
            # Two pairs rule out most candidates; a generator for each would cost more than the rest.
            if (n1 + b) // k * factor + c == v1 and all((n + b) // k * factor + c == v for n, v in others):
                base = f"{name} // {k}" if not b else f"({_sum(name, b)}) // {k}"
                text = _sum(base if factor == 1 else f"{base} * {factor}", c)
                rounds = any((n + b) % k for n, _ in pairs)
                candidates.append(((bool(c), b not in (0, k - 1), abs(b), rounds, k), text))
    # Prefer plain rounding down or up, and none: of the formulas that fit, these generalize best.
    return min(candidates)[1] if candidates else None


def _find_product(values: tuple[int, ...], atoms: Atoms) -> str | None:
    """Find a product of sizes and a number, or of a size and an expression of one other size."""
    names = list(atoms)
    for count in range(2, _FACTORS + 1):
        for factors in itertools.combinations(names, count):
            products = [int(prod(sizes)) for sizes in zip(*(atoms[name] for name in factors), strict=True)]
            ratio = _find_ratio(values, products)
            if ratio:
                up, down = ratio
                text = " * ".join(factors)
                return text + (f" * {up}" if up != 1 else "") + (f" // {down}" if down != 1 else "")
    for name in names:
        pairs = [(int(n), v) for n, v in zip(atoms[name], values, strict=True)]
        if all(n and v % n == 0 for n, v in pairs):
            rest = tuple(v // n for n, v in pairs)
            others = {other: atom for other, atom in atoms.items() if other != name}
            other_text = _find_in_one_size(rest, others) if len(set(rest)) > 1 else None
            if other_text:
                return f"{name} * ({other_text})"
    return None


def _find_ratio(values: Sequence[int], products: Sequence[int]) -> tuple[int, int] | None:
    if not products[0] or not values[0]:
        return None
    common = gcd(values[0], products[0])
    up, down = values[0] // common, products[0] // common
    if all(product * up == value * down for value, product in zip(values, products, strict=True)):
        return up, down
    return None


def _sum(text: str, number: int) -> str:
    return text if not number else f"{text} {'+' if number > 0 else '-'} {abs(number)}"
