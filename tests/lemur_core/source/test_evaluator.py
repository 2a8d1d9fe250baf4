"""The evaluator of expressions: what the text decides is known, all else is UNKNOWN."""

import ast
from collections.abc import Callable, Sequence

from lemur_core.source.values import UNKNOWN, Comprehension, Evaluator
from tests.builders.suites import table

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


@table(__file__, "evaluator.md", "Values", globals())
def test_values(text: str, expected: object) -> None:
    names: Names = {"w": 32, "kind": "conv", "sizes": [2, 4]}
    assert Plain().value(ast.parse(text, mode="eval").body, names) == expected
