"""The evaluator of expressions: what the text decides is known, all else is UNKNOWN."""

import ast
from collections.abc import Callable, Sequence

import pytest

from lemur_core.source.values import UNKNOWN, Comprehension, Evaluator

Names = dict[str, object]


class Plain(Evaluator[Names]):
    """Knows names alone, and takes the last of several options."""

    def name(self, name: str, scope: Names) -> object:
        return scope.get(name, UNKNOWN)

    def attribute(self, node: ast.Attribute, scope: Names) -> object:
        return UNKNOWN

    def call(self, node: ast.Call, scope: Names) -> object:
        return UNKNOWN

    def comprehension(self, node: Comprehension, scope: Names) -> object:
        return UNKNOWN

    def choose(self, options: Sequence[Callable[[], object]]) -> object:
        return options[-1]()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[w] * 2 + [w // 4]", [32, 32, 8]),
        ("f'{kind}_{w}'", "conv_32"),
        ("f'{kind!r}'", UNKNOWN),
        ("f'{other}_{w}'", UNKNOWN),
        ("{kind: w, **{'a': (1, *[2, 3])}}", {"conv": 32, "a": (1, 2, 3)}),
        ("{'a': 1, **other}", UNKNOWN),
        ("sizes[1:][0]", 4),
        ("sizes[other]", UNKNOWN),
        ("sizes[9]", UNKNOWN),
        ("w if kind == 'conv' else other", 32),
        ("1 if other else 2", 2),
        ("None or kind", "conv"),
        ("other or kind", "conv"),
        ("w and None", None),
        ("not w", False),
        ("(n := w) - 1", 31),
        ("2 ** 1000", UNKNOWN),
        ("other.attribute", UNKNOWN),
        ("lambda: 1", UNKNOWN),
    ],
)
def test_values(text: str, expected: object) -> None:
    names: Names = {"w": 32, "kind": "conv", "sizes": [2, 4]}
    assert Plain().value(ast.parse(text, mode="eval").body, names) == expected
