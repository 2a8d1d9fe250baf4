"""Inlining of real blocks: bytecode before and after differs in global names alone; each class is defined.

The blocks of an extraction folder are tried where the environment variable LEMUR_BLOCKS names one.
"""

import __future__

import ast
import dis
import os
import random
import re
import types
import warnings
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyflakes import checker

from lemur_core.files.errors import UserError
from lemur_core.sandbox import Job, Sandbox
from train.inline import Part, inline

FIRST = '''# SqueezeExcite, from made@1.0
#
# Block:   made@1.0::made.se.SqueezeExcite
# Licence: MIT
# Changed: imports resolved and definitions brought together.

import logging
from collections import OrderedDict
from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


# Named by annotations only.
Config = object


class Registry:
    """Names to classes."""

    def __init__(self, name: str) -> None:
        self.name, self.classes = name, {}

    def register_module(self, name=None, module=None):
        self.classes[name or module.__name__] = module
        return module

    def build(self, cfg):
        cfg = dict(cfg)
        return self.classes[cfg.pop("type")](**cfg)


MODELS = Registry("model")


_logger = logging.getLogger(__name__)
_EXPORTABLE = False


def set_exportable(value: bool) -> None:
    global _EXPORTABLE
    _EXPORTABLE = value


def make_divisible(v, divisor=8, min_value: Optional[int] = None) -> int:
    min_value = min_value or divisor
    return max(min_value, int(v + divisor / 2) // divisor * divisor)


@torch.no_grad()
def count(module: "nn.Module") -> int:
    return sum(p.numel() for p in module.parameters())


class Gate(nn.Module):
    def forward(self, x):
        return x.sigmoid() if not _EXPORTABLE else torch.sigmoid(x)


MODELS.register_module('Gate', module=Gate)
for module in [nn.ReLU, nn.SiLU]:
    MODELS.register_module(module=module)


class SqueezeExcite(nn.Module):
    """Scales channels. `Gate` stays in this text."""

    Gate = Gate
    scales: Tuple[int, ...] = (1,)

    def __init__(self, channels: int, ratio=0.25, act_cfg=dict(type='ReLU'), gate: str = 'Gate', cfg: "Config" = None):
        super(SqueezeExcite, self).__init__()
        hidden = make_divisible(channels * ratio)
        self.layers = nn.Sequential(OrderedDict([('reduce', nn.Conv2d(channels, hidden, 1)), ('act', MODELS.build(act_cfg)),
                                                 ('expand', nn.Conv2d(hidden, channels, 1))]))
        self.gate = MODELS.build(dict(type=gate))
        _logger.debug(f'{type(self).__name__}: {count(self)=:>{len("12345")}} {hidden!r}')

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(self.layers(F.adaptive_avg_pool2d(x, 1)))  # F, x
'''
OTHER_GATE = FIRST.replace("return x.sigmoid() if", "return F.hardsigmoid(x) if").replace("from made@1.0", "from other")
FUTURE = """from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def count(module: nn.Module | None) -> str:
    return f"{module} {count}"


class Gate(nn.Module):
    def forward(self, x: torch.Tensor | Undefined, F=F) -> list[Gate]:
        return F.relu(x)
"""
CODES = {"first": ("SqueezeExcite", FIRST), "other": ("SqueezeExcite", OTHER_GATE), "future": ("Gate", FUTURE)}


def _blocks() -> list[Part]:
    """The blocks of LEMUR_BLOCKS that run without packages of their own."""
    folder = os.environ.get("LEMUR_BLOCKS")
    if not folder:
        pytest.skip("set LEMUR_BLOCKS to an extraction folder to try its blocks")
    columns = ["block", "name", "code", "level", "requires", "license"]
    rows = pq.read_table(Path(folder) / "blocks.parquet", columns=columns).to_pylist()
    return [
        Part(row["block"], row["name"], row["code"], (row["block"], f"Licence: {row['license']}"))
        for row in rows
        if row["level"] in {"executed", "constructed", "forward", "backward"} and not row["requires"]
    ]


def _some(seed: int, number: int, size: int) -> list[list[Part]]:
    blocks = _blocks()
    dice = random.Random(seed)
    return [dice.sample(blocks, size) for _ in range(number)]


# -- bytecode --------------------------------------------------------------------------------------------------------

_OF_GLOBALS = {"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL"}
_OF_NAMES = {"LOAD_NAME", "STORE_NAME", "DELETE_NAME"}


def _instructions(code: types.CodeType) -> list[dis.Instruction]:
    return [i for i in dis.get_instructions(code) if i.opname not in {"EXTENDED_ARG", "CACHE"}]


def _differences(old: types.CodeType, new: types.CodeType, taken: set[str], kind: str) -> Iterator[str]:
    """Where two code objects differ by more than new names for the globals that are taken."""
    before, after = _instructions(old), _instructions(new)
    if [i.opname for i in before] != [i.opname for i in after]:
        yield f"{old.co_qualname}: other instructions"
        return
    if (old.co_varnames, old.co_freevars, old.co_cellvars) != (new.co_varnames, new.co_freevars, new.co_cellvars):
        yield f"{old.co_qualname}: other locals"
    own = {i.argval for i in before if i.opname in {"STORE_NAME", "DELETE_NAME"}} | {"__module__", "__qualname__"}
    for number, (one, two) in enumerate(zip(before, after, strict=True)):
        if isinstance(one.argval, types.CodeType):
            is_class = any(i.opname == "LOAD_BUILD_CLASS" for i in before[max(0, number - 2) : number])
            yield from _differences(one.argval, two.argval, taken, "class" if is_class else "function")
            continue
        fine = one.argval == two.argval or "JUMP" in one.opname or one.opname in {"FOR_ITER", "SEND"}
        if one.opname in _OF_GLOBALS or (one.opname in _OF_NAMES and kind == "module"):
            fine = two.argval == one.argval if one.argval not in taken else _is_new(one.argval, two.argval)
        elif one.opname in _OF_NAMES:  # a class body may read its own name, or the global one before it binds that
            renamed = _is_new(one.argval, two.argval)
            fine = (fine and one.argval in own) or (renamed if one.argval in taken else fine)
        elif one.opname == "LOAD_CONST" and not fine:  # names of classes and functions, annotations as strings
            fine = repr(one.argval) == re.sub(r"_[2-9]\b", "", repr(two.argval))
        if not fine:
            yield f"{old.co_qualname}: {one.opname} {one.argval!r} -> {two.argval!r}"


def _is_new(old: object, new: object) -> bool:
    return re.fullmatch(re.escape(str(old)) + r"_\d", str(new)) is not None


def _statements(text: str) -> list[ast.stmt]:
    """Statements of module level but for imports, the docstring, and names that are given back to classes."""
    body = [node for node in ast.parse(text).body if not isinstance(node, ast.Import | ast.ImportFrom)]
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    return [node for node in body if ".__name__ = " not in ast.unparse(node)[:100]]


def _check_bytecode(part: Part) -> None:
    """Give every global of a part a new name, and compare the bytecode."""
    tree = ast.parse(part.code)
    compiled = [compile(ast.Module([node], []), "block.py", "exec") for node in tree.body if not _is_future(node)]
    taken = {i.argval for code in compiled for i in _instructions(code) if i.opname in {"STORE_NAME", "STORE_GLOBAL"}}
    taken |= {i.argval for code in _nested(compiled) for i in _instructions(code) if i.opname == "STORE_GLOBAL"}
    blocker = "".join(f"{name} = 'taken'\n" for name in sorted(taken - {"__all__", "__doc__"}))
    text = inline([Part("blocker", part.name, blocker), Part(part.key, part.name, part.code, ("the part",))]).text
    flags = __future__.annotations.compiler_flag if "from __future__ import annotations" in text else 0
    old = _statements(part.code)
    new = _statements(text.split("# the part\n")[1])
    assert len(old) == len(new)
    for one, two in zip(old, new, strict=True):
        codes = [compile(ast.Module([node], []), "block.py", "exec", flags, True) for node in (one, two)]
        assert list(_differences(*codes, taken, "module")) == []


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _nested(codes: list[types.CodeType]) -> Iterator[types.CodeType]:
    for code in codes:
        inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        yield from inner
        yield from _nested(inner)


@pytest.mark.parametrize("key", ["first", "other", "future"])
def test_bytecode_differs_in_global_names_alone(key: str) -> None:
    name, code = CODES[key]
    code = code.replace("{count(self)=:>", "{count(self):>")  # prints its own text: refused, see below
    _check_bytecode(Part(key, name, code))


def test_bytecode_of_blocks() -> None:
    refused = 0
    for (part,) in _some(seed=1, number=60, size=1):
        try:
            _check_bytecode(part)
        except UserError:
            refused += 1
    assert refused <= 6


# -- running ---------------------------------------------------------------------------------------------------------


def _undefined(text: str) -> set[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        messages = checker.Checker(ast.parse(text)).messages
    return {str(m.message_args[0]) for m in messages if type(m).__name__.startswith("Undefined")}


def test_blocks_with_registries_stay_apart() -> None:
    torch = pytest.importorskip("torch")
    codes = [code.replace("{count(self)=:>", "{count(self):>") for _, code in CODES.values()]
    parts = [Part(key, name, code) for (key, (name, _)), code in zip(CODES.items(), codes, strict=True)]
    found = inline([*parts, Part("again", "SqueezeExcite", codes[0])])
    names = {"first": "SqueezeExcite", "other": "SqueezeExcite_2", "future": "Gate_3", "again": "SqueezeExcite"}
    assert found.names == names
    assert found.text.count("def make_divisible") == 1
    assert found.text.count("class Registry:") == 1
    assert found.text.count("= Registry(") == 2
    assert 'SqueezeExcite_2.__name__ = "SqueezeExcite"' in found.text
    assert _undefined(found.text) == {"Undefined"}
    scope: dict[str, object] = {"__name__": "inlined"}
    exec(found.text, scope)
    x = torch.ones(1, 8, 2, 2)
    for part in parts[:2]:
        alone: dict[str, object] = {"__name__": "alone"}
        exec(part.code, alone)
        outputs = []
        for cls in (alone[part.name], scope[names[part.key]]):
            assert isinstance(cls, type)
            torch.manual_seed(0)
            outputs.append(cls(8, act_cfg={"type": "SiLU"})(x))
        assert torch.equal(*outputs)
    with pytest.raises(UserError, match="count is printed with its name"):
        inline([Part("first", "SqueezeExcite", FIRST), Part("x", "count", "count = 1\n")][::-1])


def test_triples_of_blocks() -> None:
    jobs = []
    for number, parts in enumerate(_some(seed=2, number=15, size=3)):
        try:
            found = inline(parts)
        except UserError:
            continue
        assert found == inline(parts)
        assert _undefined(found.text) <= set().union(*(_undefined(part.code) for part in parts))
        for part in parts:
            payload = {"code": found.text, "name": found.names[part.key], "goal": "executed"}
            jobs.append(Job(f"{number} {part.key}", "extract.probing.entry:climb", payload))
    assert len(jobs) >= 36
    with Sandbox(workers=1, entries=["extract.probing.entry:climb"]) as box:
        outcomes = list(box.run(jobs))
    assert {outcome.key: outcome.value for outcome in outcomes} == {job.key: {"level": "executed"} for job in jobs}
