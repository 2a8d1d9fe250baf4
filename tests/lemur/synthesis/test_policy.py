"""The policy: what a text may name of torch, torchvision, numpy and Python, by whatever name it was imported."""

import ast
import importlib
import types
from fnmatch import fnmatchcase
from typing import Any

import pytest

from lemur.synthesis import steps as policy
from lemur.synthesis.steps import find_forbidden
from tests.builders.suites import table

HEAD = "import torch\nimport numpy as np\nfrom torch import nn\n"


def read(text: str) -> list[tuple[int, str]]:
    code = f"{HEAD}{text}\n"
    return list(find_forbidden(ast.parse(code), code))


@table(__file__, "policy.md", "What is refused", globals())
def test_what_is_refused(text: str, line: int, reason: str) -> None:
    found = read(text)
    assert [told for at, told in found if at == line and told.startswith(reason)], found
    assert min(at for at, _ in found) == line


@table(__file__, "policy.md", "What is accepted", globals())
def test_what_is_accepted(text: str) -> None:
    assert read(text) == []


def load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:  # a module by another name
        above, _, last = name.rpartition(".")
        return getattr(importlib.import_module(above), last)


@pytest.fixture(scope="module")
def listed() -> dict[str, Any]:
    """What the installed releases have of the table, by dotted name."""
    modules = {name: load(name) for name in policy._MODULES}
    return {
        f"{name}.{each}": getattr(module, each)
        for name, module in modules.items()
        for each in dir(module)
        if policy.is_listed(name, each) and f"{name}.{each}" not in modules
    }


def test_every_line_of_the_table_names_something(listed: dict[str, Any]) -> None:
    for line in policy._TABLE.strip().replace("\n    ", " ").splitlines():
        modules, names = (part.split() for part in line.split(":"))
        for name in names:
            places = [f"{module}.{name}" for module in modules]
            found = any(fnmatchcase(each, place) for place in places for each in listed)
            assert found or name == "-" or modules[0] == "torch.backends.cuda", (name, modules)


def test_nothing_listed_is_a_module_or_shows_one(listed: dict[str, Any]) -> None:
    """Neither do the attributes that a text may read of what is listed, nor theirs."""
    values = list(listed.items())
    seen = set()
    for depth in range(3):
        assert [name for name, value in values if isinstance(value, types.ModuleType | types.CodeType)] == []
        values = [(name, value) for name, value in values if not isinstance(value, str | int)]
        new = {id(value): (name, value) for name, value in values if id(value) not in seen}
        seen |= new.keys()
        values = (
            [(f"{name}.{each}", inner) for name, value in new.values() for each, inner in attributes(value)]
            if depth < 2
            else []
        )


def attributes(value: Any) -> list[tuple[str, Any]]:
    found = []
    for name in dir(value):
        refused = policy._NEVER_REACHED.fullmatch(name) or [*policy.check_own_name(name)]
        try:
            found += [] if refused else [(name, getattr(value, name))]
        except (AttributeError, RuntimeError, TypeError, ValueError, NotImplementedError):
            continue  # it has no value here
    return found
