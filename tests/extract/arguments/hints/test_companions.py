"""Classes that parameters want."""

from typing import Any

import pytest

CONFIGS = """
from dataclasses import dataclass
from enum import Enum
@dataclass
class TinyConfig:
    width: int = 4
class TinyTextConfig:
    width = 8
class Mode(Enum):
    A = 1
"""

BLOCK = """
from typing import Optional, Type, Union
from torch import nn
from p.configs import TinyConfig, TinyTextConfig, Mode
class Norm(nn.Module):
    def forward(self, x):
        return x
class {name}(nn.Module):
    def __init__(self, {parameter}):
        super().__init__()
    def forward(self, x):
        return x
"""

CASES = {
    "an annotation": ("config: TinyConfig", ("TinyConfig", False)),
    "optional": ("c: Optional[TinyTextConfig] = None", ("TinyTextConfig", False)),
    "or none": ("mode: Mode | None", ("Mode", False)),
    "text": ("mode: 'Mode'", ("Mode", False)),
    "the class itself": ("norm: Type[Norm] = Norm", ("Norm", True)),
    "a list of them is not one": ("configs: list[TinyConfig]", None),
    "no class of the corpus": ("x: int", None),
}


@pytest.mark.parametrize(("parameter", "expected"), CASES.values(), ids=CASES)
def test_companions(hints_for, parameter: str, expected: tuple[str, bool] | None) -> None:
    code = BLOCK.format(name="TinyBlock", parameter=parameter)
    found = hints_for("TinyBlock", a=code, configs=CONFIGS).companions
    assert [(c.name, c.wants_class) for c in found] == ([expected] if expected else [])
    for companion in found:
        names: dict[str, object] = {"__name__": "companion"}
        exec(compile(companion.code, "companion.py", "exec", dont_inherit=True), names)
        assert isinstance(names[companion.name], type)
        assert companion.parameter == parameter.split(":")[0].split("=")[0].strip()


def test_companions_of_what_forward_takes(hints_for) -> None:
    code = BLOCK.format(name="TinyBlock", parameter="x: int").replace("(self, x)", "(self, x, mode: Mode, other)")
    found = hints_for("TinyBlock", a=code, configs=CONFIGS).companions
    assert [(item.parameter, item.name) for item in found] == [("mode", "Mode")]


def test_an_inherited_constructor_is_read_where_it_is_written(hints_for) -> None:
    base = BLOCK.format(name="Base", parameter="config: TinyConfig")
    code = "from p.a import Base\nclass Child(Base):\n    pass\n"
    (found,) = hints_for("Child", a=base, b=code, configs=CONFIGS).companions
    assert (found.name, found.qualname) == ("TinyConfig", "p.configs.TinyConfig")


def test_classes_that_expressions_name_come_along(hints_for) -> None:
    block = BLOCK.format(name="Block", parameter="part")
    found = hints_for("Block", a=block, b="from p.a import Block, Norm\nb = Block(Norm())\n", configs=CONFIGS)
    assert found.init[0].args == ("Norm()",)
    assert [(c.parameter, c.name) for c in found.companions] == [("", "Norm")]


def test_functions_and_classes_that_recorded_calls_name(finder_for) -> None:
    functions = "RATE = 2\ndef gate(x):\n    return x * RATE\n"
    finder, found = finder_for("Block", a=BLOCK.format(name="Block", parameter="act"), functions=functions)
    module = next(item for item in finder.companions._usage.library.by_path.values() if item.name == "p.functions")
    places = [(module, "gate"), (module, "RATE"), (found.module, "Norm"), (found.module, "Block")]
    gate, norm = finder.companions.list_defined(places, found)
    assert (norm.name, norm.wants_class) == ("Norm", True)
    names: dict[str, Any] = {"__name__": "companion"}
    exec(compile(gate.code, "companion.py", "exec", dont_inherit=True), names)
    assert names[gate.name](3) == 6
