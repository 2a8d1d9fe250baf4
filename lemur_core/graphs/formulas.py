"""Formulas over the sizes of inputs: Python expressions of integers that are found from values, and evaluated."""

import ast
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import gcd, isfinite, prod


@dataclass(frozen=True, slots=True)
class Size:
    """A number that depends on the input sizes: a formula in Python syntax, and its value in the first run."""

    text: str
    value: float


def is_unknown(name: str) -> bool:
    """Return whether a named size is a number without a formula."""
    return name.startswith("U")


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
        if any(abs(value - n) > NEAR * abs(n) for value, n in zip(inverted, integers, strict=True)):
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


NEAR = 1e-6


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
