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
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from extract.folder.verify import RUN_CALL
from extract.model.results import at_least
from extract.proofs.runtime import runtime_for
from extract.specs.make import (
    WorkingCall,
    positional_names,
    print_call,
    read_arguments,
    read_observed,
    read_specs,
)
from extract.specs.outline import read_outline
from lemur.export.attack_guest import RANDOM, TOLERANCE, Attacked, Problem
from lemur_core.files.workers import available_cores
from lemur_core.sandbox.stage import Retries, SandboxOptions, SandboxStage, open_sandbox
from manifests.folders.tables import read_rows
from manifests.records import Block, Case, KernelProblem

_TENSOR = re.compile(r"(\w+) (\d+(?:x\d+)*|scalar)")
_CREATORS = frozenset({"randn", "rand", "ones", "zeros", "randint"})
#: Names that the file must not define itself.
_OWN = ("Model", "get_inputs", "get_init_inputs", "_CALLS", "_FACTORS", "_vary")
_LEAST_CALLS = 2  # shapes

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


class RefusedError(Exception):
    """A block that has no such form; the message is the reason, a few words."""


@dataclass(frozen=True, slots=True)
class _Parameters:
    """A call as parameters of `Model` and the arguments that they are passed on as."""

    names: tuple[str, ...]
    positional: int
    values: tuple[str, ...]

    def passed(self, converted: Mapping[str, str]) -> str:
        """Return the arguments of the inner call. Args: converted: expressions for parameters with another type."""
        texts = [converted.get(name, name) for name in self.names]
        keywords = zip(self.names[self.positional :], texts[self.positional :], strict=True)
        return ", ".join([*texts[: self.positional], *(f"{name}={text}" for name, text in keywords)])

    @property
    def declared(self) -> str:
        """Return the parameters as written after `self`."""
        return "".join(f", {name}" for name in self.names)


ATTACK = SandboxStage[Attacked | str](
    "lemur.export.attack_guest:attack",
    Attacked | str,
    RUN_CALL.limits,
    Retries.NONE,
    label="trivial answers",
)


@dataclass(frozen=True, slots=True)
class ProblemText:
    """The text of a problem: the block's file, what follows it, and the calls that can be built, as texts."""

    code: str
    tail: Mapping[str, str]
    calls: Sequence[str]

    def render(self, calls: Sequence[int] | None = None, factors: Sequence[float] = (1.0,), layouts: int = 1) -> str:
        """Return the file with some of the calls."""
        shown = self.calls if calls is None else [self.calls[number] for number in calls]
        cases = len(shown) * len(factors) * layouts
        lines = "\n".join(f"    lambda: [{values}]," for values in shown)
        return (
            self.code.rstrip("\n") + "\n" + _TAIL.format(**self.tail, cases=cases, calls=lines, factors=tuple(factors))
        )


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
        try:
            texts[row.block] = row, build_problem(row, *names.get(row.block, ()))
        except RefusedError as refusal:
            skipped[str(refusal)] += 1
    requires = sorted({name for row, _ in texts.values() for name in row.requires})
    runtime = runtime_for(requires, known=sorted({row.source.partition("@")[0] for row, _ in texts.values()}))
    folders = [str(path) for path in runtime.folders]
    payloads = {key: Problem(text.render(), len(text.calls), folders) for key, (_, text) in texts.items()}
    options: SandboxOptions = {"jobs": jobs or available_cores(), "runtime": runtime.folders, "unsafe": unsafe}
    with open_sandbox(None, [ATTACK], options) as box:
        replies = {reply.key: reply for reply in ATTACK.run(box, payloads)}
    number = 0
    for key, (row, text) in texts.items():
        found = replies[key].answer
        if found is None or isinstance(found, str):
            skipped["does not run in this form"] += 1
            continue
        hackable = None
        if not found.factors:
            hackable = RANDOM if RANDOM in found.passed else f"within {TOLERANCE:g}: {', '.join(found.passed)}"
        elif len(found.calls) < _LEAST_CALLS:
            hackable = "one shape alone"
        number += 1
        layouts = 1 + found.channels_last
        factors = found.factors or (1.0,)
        yield KernelProblem(
            problem_id=number,
            name=f"{number}_{row.name}.py",
            level=1,
            code=text.render(found.calls or None, factors, layouts),
            cases=len(found.calls or text.calls) * len(factors) * layouts,
            hackable=hackable,
            **{name: getattr(row, name) for name in ("requires", "block", "swhid", "license", "code_sha256")},
        )


def build_problem(row: Block, constructor: Sequence[str] = (), forward: Sequence[str] = ()) -> ProblemText:
    """Return a block as the text of a problem.

    Args:
        row: the block, with its code.
        constructor, forward: names of positional parameters, as its spec states them.
    Raises: RefusedError if it does not run forward, or not in this form.
    """
    if not at_least(row.level, "forward"):
        raise RefusedError("does not run forward")
    assert row.code is not None
    calls, observed = read_arguments(row.arguments), read_observed(row)
    printed = print_call(row, row.code)
    if calls is None or calls.forward is None or observed is None or not observed.cases or not printed:
        raise RefusedError("no call is stated")
    if len(observed.cases[0].outputs) != 1:
        raise RefusedError("does not return one tensor")
    defined = read_outline(row.code).names
    if taken := [name for name in _OWN if name in defined]:
        raise RefusedError(f"its file defines {taken[0]}")
    init = _parameters(calls.init, constructor, "argument")
    call = _parameters(calls.forward, forward, "input")
    imports = {line for line in printed if line.startswith(("import ", "from "))}
    imports |= {line for line in ("import torch", "from torch import nn") if line.split()[-1] not in defined}
    tail = {
        "imports": "".join(f"{line}\n" for line in sorted(imports)),
        "name": row.name,
        "init_parameters": init.declared,
        "init_call": init.passed({}),
        "forward_parameters": call.declared,
        "forward_call": call.passed(_conversions(call, observed.cases[0])),
        "init_values": ", ".join(init.values),
    }
    return ProblemText(row.code, tail, [", ".join(values) for values in _list_calls(call, observed.cases)])


def _parameters(stated: WorkingCall, names: Sequence[str], other: str) -> _Parameters:
    """Return the parameters for a call. Args: names: of positional parameters; others are numbered after `other`."""
    own = [names[n] if n < len(names) else f"{other}_{n}" for n in range(len(stated.args))]
    if any(text.startswith("*") for text in stated.args):
        raise RefusedError("is called with unpacked arguments")
    return _Parameters((*own, *stated.kwargs), len(own), (*stated.args, *stated.kwargs.values()))


def _list_calls(forward: _Parameters, cases: Sequence[Case]) -> Iterator[list[str]]:
    """Yield the arguments of the stated call, then of each observed one that can be written the same way."""
    yield list(forward.values)
    for case in cases[1:]:
        values = [_reshape(forward, n, cases[0], case) for n in range(len(forward.names))]
        if None not in values:
            yield [value for value in values if value is not None]


def _find_inputs(forward: _Parameters, n: int, case: Case) -> dict[str, str]:
    """Return what a case states of one argument: its type and shape, or those of the tensors inside it."""
    key = f"*{n}" if n < forward.positional else forward.names[n]
    return {name: text for name, text in case.inputs.items() if name == key or name.startswith(f"{key}.")}


def _reshape(forward: _Parameters, n: int, first: Case, other: Case) -> str | None:
    """Return an argument with its shape in another call; None if it cannot be written."""
    before, after = _find_inputs(forward, n, first), _find_inputs(forward, n, other)
    if before == after:
        return forward.values[n]
    texts = [*before.values(), *after.values()]
    shapes = [match[2] for text in texts if (match := _TENSOR.fullmatch(text)) is not None]
    tree = ast.parse(forward.values[n], mode="eval").body
    if len(texts) != 2 or len(shapes) != 2 or "scalar" in shapes or not isinstance(tree, ast.Call):
        return None
    if not isinstance(tree.func, ast.Attribute) or tree.func.attr not in _CREATORS or not tree.args:
        return None
    try:
        same = "x".join(map(str, ast.literal_eval(tree.args[-1]))) == shapes[0]
    except (ValueError, TypeError):
        return None
    if not same:
        return None
    tree.args[-1] = ast.Tuple([ast.Constant(int(size)) for size in shapes[1].split("x")], ast.Load())
    return ast.unparse(tree)


def _conversions(forward: _Parameters, case: Case) -> dict[str, str]:
    """Return, for each tensor that is not of floating point, the expression that gives it its type back."""
    kinds = {}
    for n, name in enumerate(forward.names):
        for text in _find_inputs(forward, n, case).values():
            match = _TENSOR.fullmatch(text)
            if match is not None and not match[1].startswith(("float", "bfloat", "complex")):
                kinds[name] = f"{name}.to(torch.{match[1]})"
    return kinds
