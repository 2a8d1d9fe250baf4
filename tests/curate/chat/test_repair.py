"""Faults as text: before and after."""

import ast
from collections import defaultdict

import pytest

from curate.folder.chat import Fault, find_faults, plan_faults
from tests.builders.suites import read_files, table

BEFORE = read_files(__file__, "repair.md")["BEFORE"]


def by_kind(code: str) -> dict[str, list[Fault]]:
    found = defaultdict(list)
    for fault in find_faults(code):
        found[fault.kind].append(fault)
    return found


@table(__file__, "repair.md", "Faults", globals())
def test_faults(kind: str, old: str, new: str) -> None:
    found = {fault.apply(BEFORE): fault for fault in by_kind(BEFORE)[kind]}
    for code, fault in found.items():
        ast.parse(code)
        pairs = zip(BEFORE.split("\n"), code.split("\n"), strict=False)
        assert next(at for at, (one, other) in enumerate(pairs, 1) if one != other) == fault.line
        if kind == "wrong_attribute":
            wrong, right = fault.right.split("`")[1:4:2]
            assert wrong not in BEFORE, "a wrong name is nowhere in the file"
            assert wrong in code
            assert right in BEFORE.split("\n")[fault.line - 1]
    assert BEFORE.count(old) == 1
    assert BEFORE.replace(old, new) in found


@table(__file__, "repair.md", "Where names and arguments go wrong", globals())
def test_where_names_and_arguments_go_wrong(line: str, kind: str) -> None:
    code = f"class Net:\n    def forward(self, x, y):\n        {line}\n\n    def other(self):\n        {line}\n"
    found = {kind: [fault.right.split("`")[3] for fault in of_kind] for kind, of_kind in by_kind(code).items()}
    assert "; ".join(f"{kind}: {', '.join(names)}" for kind, names in found.items()) == kind


def test_one_fault_of_each_kind_is_tried_in_an_order_of_the_seed_and_the_record() -> None:
    plans = [plan_faults(BEFORE, seed, record) for seed in range(5) for record in ("a", "b")]
    kinds = [[fault.kind for fault in plan] for plan in plans]
    assert all(sorted(one) == sorted(by_kind(BEFORE)) for one in kinds)
    assert plan_faults(BEFORE, 0, "a") == plans[0]
    assert len({tuple(one) for one in kinds}) > 5
    assert len({fault for plan in plans for fault in plan if fault.kind == "wrong_attribute"}) > 2


def test_a_file_that_does_not_parse_is_refused() -> None:
    with pytest.raises(SyntaxError):
        plan_faults("def f(:\n", 0, "a")
