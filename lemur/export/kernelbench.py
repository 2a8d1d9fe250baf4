"""Blocks in the form of KernelBench: a file with `Model`, `get_inputs()` and `get_init_inputs()` for each.

    class Scale(nn.Module): ...                  # the closed file, unchanged

    class Model(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.block = Scale(channels).eval()
        def forward(self, x):
            return self.block(x)

    _CALLS = (lambda: [torch.randn((2, 8, 16, 16))], lambda: [torch.randn((3, 8, 20, 24))])
    def get_inputs(case=0): ...                  # a call, with values in two ranges, in both memory layouts
    def get_init_inputs(): return [8]

KernelBench calls `get_inputs()` without a case, compares one tensor, and converts all inputs to one type: `Model`
converts indices and masks back. Its module stays in eval mode, in which blocks are known to run and to repeat. Each
problem was attacked in the sandbox: where a trivial answer passes, it has no file.

Source: https://github.com/ScalingIntelligence/KernelBench
"""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from extract.folder.verify import RUN_CALL
from extract.model.results import at_least
from extract.proofs.runtime import runtime_for
from extract.specs.behavior import read_shape
from extract.specs.make import (
    WorkingCall,
    positional_names,
    print_call,
    read_arguments,
    read_observed,
    read_specs,
)
from extract.specs.outline import read_outline
from lemur.export.attack_guest import Attacked, Problem
from lemur_core.files.workers import available_cores
from lemur_core.sandbox.stage import SandboxOptions, SandboxStage, open_sandbox
from manifests.folders.tables import read_rows
from manifests.records import Block, Case, KernelProblem

_CREATORS = frozenset({"randn", "rand", "ones", "zeros", "randint"})
#: Names that the file must not define itself.
_OWN = ("Model", "get_inputs", "get_init_inputs", "_CALLS", "_FACTORS", "_vary")

_TAIL = '''

# In KernelBench's form. get_inputs(case) also builds other shapes, ranges and layouts, for case in range({cases}).
{imports}

class Model(nn.Module):
    """Runs {name} in eval mode."""

    def __init__(self{init_parameters}):
        super().__init__()
        self.block = {name}({init_call}).eval()

    def forward(self{forward_parameters}):
        return self.block({forward_call})


_CALLS = (
{calls}
)
_FACTORS = {factors}  # of floating-point inputs


def get_inputs(case=0):
    case, call = divmod(case, len(_CALLS))
    layout, case = divmod(case, len(_FACTORS))
    return [_vary(value, _FACTORS[case], layout) for value in _CALLS[call]()]


def _vary(value, factor, channels_last):
    if not (isinstance(value, torch.Tensor) and value.is_floating_point()):
        return value
    image = channels_last and value.dim() == 4
    return (value * factor).contiguous(memory_format=torch.channels_last if image else torch.contiguous_format)


def get_init_inputs():
    return [{init_values}]
'''


ATTACK = SandboxStage[Attacked | str](
    "lemur.export.attack_guest:attack",
    Attacked | str,
    RUN_CALL.limits,
    retries=False,
    label="trivial answers",
)


@dataclass(frozen=True, slots=True)
class ProblemText:
    """The text of a problem: the block's file, what follows it, and the calls that can be built, as texts."""

    code: str
    tail: Mapping[str, str]
    calls: Sequence[str]

    def render(self, calls: Sequence[int] = (), factors: Sequence[float] = (1.0,), layouts: int = 1) -> tuple[str, int]:
        """Return the file with some of the calls, by default all, and how many inputs it builds."""
        shown = [self.calls[number] for number in calls] or self.calls
        cases = len(shown) * len(factors) * layouts
        lines = "\n".join(f"    lambda: [{values}]," for values in shown)
        tail = _TAIL.format(**self.tail, cases=cases, calls=lines, factors=tuple(factors))
        return self.code.rstrip("\n") + "\n" + tail, cases


def build_problems(
    folder: Path, table: Path, skipped: Counter[str], *, jobs: int | None, unsafe: bool
) -> Iterator[KernelProblem]:
    """Yield a problem for each block that runs forward and gives one tensor, with what withstands trivial answers.

    Args:
        folder: an extraction folder.
        table: its table of blocks, without the code that may not be redistributed.
        skipped: counts the blocks that are left out, by reason.
        jobs, unsafe: worker processes that run the problems, and whether without the sandbox.
    Raises: UserError if no sandbox is available.
    """
    names = {
        spec.block: (positional_names(spec.constructor), positional_names(spec.forward)) for spec in read_specs(folder)
    }
    texts: dict[str, tuple[Block, ProblemText]] = {}
    for row in read_rows([table], Block):
        if row.code is None and row.code_sha256 is not None:
            continue  # counted as withheld
        text = build_problem(row, *names.get(row.block, ()))
        if isinstance(text, str):
            skipped[text] += 1
        else:
            texts[row.block] = row, text
    requires = sorted({name for row, _ in texts.values() for name in row.requires})
    runtime = runtime_for(requires, known=sorted({row.source.partition("@")[0] for row, _ in texts.values()}))
    folders = [str(path) for path in runtime.folders]
    payloads = {key: Problem(text.render()[0], len(text.calls), folders) for key, (_, text) in texts.items()}
    options: SandboxOptions = {"jobs": jobs or available_cores(), "runtime": runtime.folders, "unsafe": unsafe}
    with open_sandbox(None, [ATTACK], options) as box:
        found = {reply.key: reply.answer for reply in ATTACK.run(box, payloads)}
    number = 0
    for key, (row, text) in texts.items():
        left = found[key]
        if not isinstance(left, Attacked):
            skipped["does not run in this form"] += 1
            continue
        number += 1
        code, cases = text.render(left.calls, left.factors or (1.0,), left.layouts)
        yield KernelProblem(
            problem_id=number,
            name=f"{number}_{row.name}.py",
            level=1,
            code=code,
            cases=cases,
            hackable=left.hackable,
            **{name: getattr(row, name) for name in ("requires", "block", "swhid", "license", "code_sha256")},
        )


class _Argument(NamedTuple):
    """An argument of a call: the parameter of `Model` for it, its name in observed cases, and its expression."""

    name: str
    key: str  # `*0` and so on for positional ones
    value: str

    def pass_on(self, text: str) -> str:
        """Return an expression as the block's call takes it."""
        return text if self.key.startswith("*") else f"{self.key}={text}"

    def find_inputs(self, case: Case) -> dict[str, str]:
        """Return what a case states of it: its type and shape, or those of the tensors inside it."""
        of_it = (self.key, f"{self.key}.")
        return {name: text for name, text in case.inputs.items() if name == of_it[0] or name.startswith(of_it[1])}


def build_problem(row: Block, constructor: Sequence[str] = (), forward: Sequence[str] = ()) -> ProblemText | str:
    """Return a block as the text of a problem; or in a few words why it does not run forward, or not in this form.

    Args:
        row: the block, with its code.
        constructor, forward: names of positional parameters, as its spec states them.
    """
    if not at_least(row.level, "forward"):
        return "does not run forward"
    assert row.code is not None
    calls, observed = read_arguments(row.arguments), read_observed(row)
    printed = print_call(row, row.code)
    if calls is None or calls.forward is None or observed is None or not observed.cases or not printed:
        return "no call is stated"
    if len(observed.cases[0].outputs) != 1:
        return "does not return one tensor"
    defined = read_outline(row.code).names
    if taken := [name for name in _OWN if name in defined]:
        return f"its file defines {taken[0]}"
    if any(text.startswith("*") for text in (*calls.init.args, *calls.forward.args)):
        return "is called with unpacked arguments"
    init = _list_arguments(calls.init, constructor, "argument")
    call = _list_arguments(calls.forward, forward, "input")
    first, *others = observed.cases
    imports = {line for line in printed if line.startswith(("import ", "from "))}
    imports |= {line for line in ("import torch", "from torch import nn") if line.split()[-1] not in defined}
    tail = {
        "imports": "".join(f"{line}\n" for line in sorted(imports)),
        "name": row.name,
        "init_parameters": "".join(f", {argument.name}" for argument in init),
        "init_call": ", ".join(argument.pass_on(argument.name) for argument in init),
        "forward_parameters": "".join(f", {argument.name}" for argument in call),
        "forward_call": ", ".join(argument.pass_on(_convert(argument, first)) for argument in call),
        "init_values": ", ".join(argument.value for argument in init),
    }
    values: list[list[str | None]] = [[argument.value for argument in call]]
    values += [[_reshape(argument, first, case) for argument in call] for case in others]
    distinct = dict.fromkeys(", ".join(filter(None, texts)) for texts in values if None not in texts)
    return ProblemText(row.code, tail, list(distinct))


def _list_arguments(call: WorkingCall, names: Sequence[str], other: str) -> list[_Argument]:
    """Return the arguments of a call. Args: names: of positional parameters; others are numbered after `other`."""
    numbered = enumerate(call.args)
    positional = [_Argument(names[n] if n < len(names) else f"{other}_{n}", f"*{n}", value) for n, value in numbered]
    return [*positional, *(_Argument(name, name, value) for name, value in call.kwargs.items())]


def _convert(argument: _Argument, case: Case) -> str:
    """Return the parameter of an argument, with its type if it is a tensor that is not of floating point."""
    for text in argument.find_inputs(case).values():
        kind = text.partition(" ")[0]
        if read_shape(text) is not None and not kind.startswith(("float", "bfloat", "complex")):
            return f"{argument.name}.to(torch.{kind})"
    return argument.name


def _reshape(argument: _Argument, first: Case, other: Case) -> str | None:
    """Return an argument with its shape in another call; None if it cannot be written."""
    before, after = argument.find_inputs(first), argument.find_inputs(other)
    if before == after:
        return argument.value
    if len(before) != 1 or len(after) != 1:
        return None
    shape, wanted = (read_shape(text) for inputs in (before, after) for text in inputs.values())
    tree = ast.parse(argument.value, mode="eval").body
    if not (shape and wanted and isinstance(tree, ast.Call) and isinstance(tree.func, ast.Attribute) and tree.args):
        return None
    try:
        is_stated = tree.func.attr in _CREATORS and tuple(ast.literal_eval(tree.args[-1])) == shape
    except (ValueError, TypeError):
        return None
    tree.args[-1] = ast.Tuple([ast.Constant(size) for size in wanted], ast.Load())
    return ast.unparse(tree) if is_stated else None
