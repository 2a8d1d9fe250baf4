"""`repair`: insert a typical fault into the file and confirm in the sandbox that it fails; the answer is the file."""

import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import libcst as cst
import libcst.matchers as m
from libcst.metadata import ExpressionContext

from curate.chat.codemod import Edit, EditedFile
from curate.chat.design import SYSTEMS, call_line, skip_file
from curate.chat.network import ChatNetwork, Lab, NetworkFacts
from curate.compute.runs import NetFailure
from manifests.conversations.conversation import Draft, Sampler, Skipped, fence

#: Maximum number of faults tried on one record.
ATTEMPTS = 4

_SHOWN = frozenset({"import_failed", "construct_failed", "forward_failed", "wrong_output"})
_REQUESTS = (
    "This network fails. Find the fault and give me the corrected file.",
    "Running the file below ends with an error. Please fix it.",
    "Something is wrong in this PyTorch network; the error is shown below the code. Correct it.",
    "Debug this network and answer with the whole file, repaired.",
)
_ERRORS = ("The error:", "What I get:", "It fails with:")
_ANSWERS = (
    "{Where}: {right}. The corrected file:",
    "The fault is {where}: {right}. Corrected:",
    "{Where}: {right}. With that put right, the network runs:",
)

#: The frame by which torch calls a module while hooks observe it; without them there is none.
_INNER = re.compile(r'  File "torch/nn/modules/module\.py", line \d+, in inner\n    .*\n')
_MISSING_LINES = frozenset({"missing_import", "missing_super", "missing_flatten"})
_EXECUTED = ("__init__", "forward")  # by a trial
_WITH_SIZES = frozenset({"Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d", "Linear", "BatchNorm2d", "BatchNorm1d"})
_WITH_DIMENSION = frozenset({"flatten", "cat", "mean", "softmax", "sum", "unsqueeze", "squeeze", "chunk", "stack"})
_FLATTENING = frozenset({"flatten", "view", "reshape"})
_SUPER_INIT = m.Call(m.Attribute(m.Call(m.Name("super")), m.Name("__init__")))

_PARAMETER = m.Assign(
    [m.AssignTarget(m.Attribute(value=m.Name("self")))], m.Call(m.Attribute(attr=m.Name("Parameter")))
)

#: Names that people confuse; other attributes are misspelled.
_ALIASES = {"classifier": "fc", "fc": "classifier", "features": "backbone", "relu": "act", "act": "relu", "bn": "norm"}
_ALIASES |= {"norm": "bn", "pool": "avgpool", "avgpool": "pool", "dropout": "drop", "drop": "dropout", "head": "fc"}

_Block = cst.Module | cst.IndentedBlock


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its edits and location, whether a line is missing there, and a sentence on what was right."""

    kind: str
    edits: Mapping[cst.CSTNode, Edit] = field(repr=False)
    line: int = 0
    missing: bool = False
    right: str = ""


def repairs(networks: Sequence[ChatNetwork], samplers: Sequence[Sampler], lab: Lab) -> list[Draft | Skipped]:
    """Draft a conversation for each record that runs, by the first fault, in random order, that fails.

    Trees are large, so none is kept while the sandbox works: if the first fault of a file does not fail, the file is
    parsed and faults are planned again.
    """
    nothing = Skipped("no_fault", "no place for a fault was found")
    drafts: list[Draft | Skipped] = [skip_file(network) or nothing for network in networks]
    left = [index for index, network in enumerate(networks) if skip_file(network) is None]
    attempt = 0
    while left:
        tried: dict[int, tuple[Fault, str]] = {}
        for index in left:
            file = EditedFile(networks[index].code)
            planned = _interleave(faults(file), samplers[index])
            if len(planned) > attempt:
                tried[index] = replace(planned[attempt], edits={}), file.apply_edits(planned[attempt].edits)
        attempt += 1
        experiments = [networks[index].experiment(code) for index, (_, code) in tried.items()]
        for index, answer in zip(tried, lab.make(experiments, "chat faults"), strict=True):
            drafts[index] = _judge(networks[index], samplers[index], tried[index][0], tried[index][1], answer, attempt)
        left = [index for index in tried if isinstance(drafts[index], Skipped)]
    return drafts


def _interleave(by_kind: Mapping[str, Sequence[Fault]], sampler: Sampler) -> list[Fault]:
    """Choose at most ATTEMPTS faults in random order, each of another kind while there are unused kinds."""
    kinds = sampler.shuffle([kind for kind, items in by_kind.items() if items], "kinds")
    orders = {kind: sampler.shuffle(by_kind[kind], f"place {kind}") for kind in kinds}
    rounds = max((len(order) for order in orders.values()), default=0)
    return [orders[kind][turn] for turn in range(rounds) for kind in kinds if turn < len(orders[kind])][:ATTEMPTS]


def _judge(
    network: ChatNetwork, sampler: Sampler, fault: Fault, code: str, answer: NetworkFacts | NetFailure, attempt: int
) -> Draft | Skipped:
    if not isinstance(answer, NetFailure) or answer.category not in _SHOWN or not answer.traceback:
        reason = answer.fault if isinstance(answer, NetFailure) else "it runs all the same"
        return Skipped("no_clear_failure", f"last of {attempt} tried: {fault.kind}: {reason}")
    user = [sampler.choice(_REQUESTS, "request"), "", fence(code), "", call_line(network), ""]
    user += [sampler.choice(_ERRORS, "error"), "", fence(_INNER.sub("", answer.traceback), "text")]
    where = f"{'before' if fault.missing else 'in'} line {fault.line}"
    sentence = sampler.choice(_ANSWERS, "answer").format(where=where, Where=where.capitalize(), right=fault.right)
    return Draft(
        sampler.choice(SYSTEMS, "system"),
        "\n".join(user),
        f"{sentence}\n\n{fence(network.code)}",
        f"{fault.kind} line {fault.line}",
    )


def faults(file: EditedFile) -> dict[str, list[Fault]]:
    """Return all locations for a fault of each kind, in the order of the file."""
    visitor = GatherFaults(file)
    file.module.visit(visitor)
    return visitor.faults


class GatherFaults(cst.CSTVisitor):
    """Finds locations for faults: wrong sizes everywhere, the others where a trial executes them."""

    def __init__(self, file: EditedFile) -> None:
        super().__init__()
        self._file = file
        self._executed = 0  # number of enclosing methods that a trial executes
        self.faults: dict[str, list[Fault]] = {
            "off_by_one": [],
            "swapped_sizes": [],
            "wrong_dimension": [],
            "missing_flatten": [],
            "missing_self": [],
            "wrong_attribute": [],
            "in_place_on_leaf": [],
            "missing_import": [],
            "missing_super": [],
        }

    def visit_Module(self, node: cst.Module) -> None:
        """Remove an import."""
        for line in node.body:
            if m.matches(line, m.SimpleStatementLine([m.Import() | m.ImportFrom()])) and self._is_alone(line):
                statement = cst.ensure_type(line, cst.SimpleStatementLine).body[0]
                names = getattr(statement, "names", ())
                if isinstance(names, Sequence) and len(names) == 1:
                    right = f"the import is missing: `{self._text(statement)}`"
                    self._add("missing_import", line, right, node, _without(node, line))

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
        """Remove the call of the constructor of `nn.Module`, or the flattening before a classifier."""
        for line in node.body:
            if not m.matches(line, m.SimpleStatementLine([m.Expr() | m.Assign()])) or not self._is_alone(line):
                continue
            statement = cst.ensure_type(line, cst.SimpleStatementLine).body[0]
            if m.matches(statement, m.Expr(_SUPER_INIT)):
                right = f"the constructor must call `{self._text(statement)}` before it sets any module"
                self._add("missing_super", line, right, node, _without(node, line))
            elif self._executed and _flattens(statement):
                right = f"the tensor must be flattened first: `{self._text(statement)}`"
                self._add("missing_flatten", line, right, node, _without(node, line))
            elif m.matches(statement, _PARAMETER):
                self._write_in_place(node, line, cst.ensure_type(statement, cst.Assign))

    def _write_in_place(self, block: cst.IndentedBlock, line: Any, statement: cst.Assign) -> None:
        """Initialize a parameter in place, outside `torch.no_grad`."""
        target = self._text(statement.targets[0].target)
        wrong = cst.parse_statement(f"{target}.normal_(std=0.02)")
        right = f"remove `{target}.normal_(std=0.02)`: a parameter may be changed in place only under `torch.no_grad()`"
        index = list(block.body).index(line)
        body = [*block.body[: index + 1], wrong, *block.body[index + 1 :]]
        self._add("in_place_on_leaf", line, right, block, block.with_changes(body=body), after=True)

    def visit_FunctionDef_body(self, node: cst.FunctionDef) -> None:
        """Note whether a trial executes what follows."""
        self._executed += node.name.value in _EXECUTED and node.asynchronous is None

    def leave_FunctionDef_body(self, node: cst.FunctionDef) -> None:
        """See `visit_FunctionDef_body`."""
        self._executed -= node.name.value in _EXECUTED and node.asynchronous is None

    def _skip(self, node: cst.CSTNode) -> bool:
        """Skip texts, rarely formatted in a trial, and names in imports and globals, which are not expressions."""
        return False

    visit_FormattedString = visit_Import = visit_ImportFrom = visit_NameItem = _skip

    def visit_Attribute(self, node: cst.Attribute) -> None:
        """Call a layer by a name that the constructor does not give it."""
        if self._executed and self._file.context(node) is ExpressionContext.LOAD and _of_self(node):
            name = node.attr.value
            wrong = _mistake(name)
            usable = wrong.isidentifier() and not keyword.iskeyword(wrong)  # of `h2o` a swap would make `2ho`
            if usable and f"self.{wrong}" not in self._file.module.code:
                right = f"there is no `self.{wrong}`; the attribute is `self.{name}`"
                self._add("wrong_attribute", node, right, node, node.with_changes(attr=cst.Name(wrong)))

    def visit_Call(self, node: cst.Call) -> None:
        """Forget `self`, take a size that is one too large, swap two sizes, or make a dimension one too high."""
        if self._executed and _of_self(node.func) and m.matches(node, m.Call(args=[m.Arg(keyword=None, star="")])):
            attribute = cst.ensure_type(node.func, cst.Attribute)
            right = f"`{attribute.attr.value}` is an attribute of the module: `{self._text(attribute)}`"
            self._add("missing_self", node, right, attribute, attribute.attr)
        if isinstance(node.func, cst.Attribute) and node.func.attr.value in _WITH_SIZES:
            self._wrong_sizes(node, 1 if "Norm" in node.func.attr.value else 2)
        if self._executed and isinstance(node.func, cst.Attribute) and node.func.attr.value in _WITH_DIMENSION:
            self._wrong_dimensions(node)

    def _wrong_sizes(self, call: cst.Call, count: int) -> None:
        sizes = _positional(call)[:count]
        for order, value in zip(("first", "second"), sizes, strict=False):
            if isinstance(value, cst.Integer) and value.evaluated_value > 1:
                number, wrong = value.evaluated_value, value.evaluated_value + 1
                right = f"the {order} argument of this `{self._text(call.func)}` must be {number}, not {wrong}"
                self._add("off_by_one", value, right, value, cst.Integer(str(wrong)))
        if len(sizes) == 2 and (texts := [self._text(size) for size in sizes])[0] != texts[1]:
            swapped = [call.args[0].with_changes(value=sizes[1]), call.args[1].with_changes(value=sizes[0])]
            right = (
                f"the sizes of this `{self._text(call.func)}` are swapped: `{texts[0]}` comes in, `{texts[1]}` goes out"
            )
            if m.matches(call, m.Call(args=[m.Arg(keyword=None), m.Arg(keyword=None), m.ZeroOrMore()])):
                args = [*swapped, *call.args[2:]]
                self._add("swapped_sizes", call, right, call, call.with_changes(args=args))

    def _wrong_dimensions(self, call: cst.Call) -> None:
        named = [arg.value for arg in call.args if arg.keyword and arg.keyword.value in ("dim", "start_dim")]
        for value in named or _positional(call)[-1:]:
            if isinstance(value, cst.Integer):
                number, wrong = value.evaluated_value, value.evaluated_value + 1
                right = f"`{self._text(call.func)}` must work on dimension {number}, not {wrong}"
                self._add("wrong_dimension", value, right, value, cst.Integer(str(wrong)))

    def _add(
        self, kind: str, at: cst.CSTNode, right: str, old: cst.CSTNode, new: cst.CSTNode, *, after: bool = False
    ) -> None:
        line = self._file.lines(at)[-1] + 1 if after else self._file.lines(at)[0]
        missing = kind in _MISSING_LINES
        self.faults[kind].append(Fault(kind, {old: lambda _: new}, line=line, missing=missing, right=right))

    def _text(self, node: cst.CSTNode) -> str:
        return self._file.text(node)

    def _is_alone(self, line: cst.CSTNode) -> bool:
        """Return True if a statement is alone on its line."""
        statement = cst.ensure_type(line, cst.SimpleStatementLine)
        semicolon = statement.body[0].semicolon
        comment = statement.trailing_whitespace.comment
        return len(self._file.lines(line)) == 1 and comment is None and semicolon is cst.MaybeSentinel.DEFAULT


def _flattens(statement: cst.CSTNode) -> bool:
    """Return True for `x = x.view(…)`, `x = torch.flatten(x, 1)` and the like."""
    if not m.matches(statement, m.Assign([m.AssignTarget(m.Name())], m.Call(m.Attribute()))):
        return False
    assign = cst.ensure_type(statement, cst.Assign)
    name, call = assign.targets[0].target, cst.ensure_type(assign.value, cst.Call)
    callee = cst.ensure_type(call.func, cst.Attribute)
    read = [callee.value, *_positional(call)[:1]]
    return callee.attr.value in _FLATTENING and any(value.deep_equals(name) for value in read)


def _mistake(name: str) -> str:
    """Return how people get an attribute wrong: another usual name, no number, or two letters in the wrong order."""
    if name[-1].isdigit():
        return name.rstrip("0123456789")
    middle = len(name) // 2
    swapped = f"{name[: middle - 1]}{name[middle]}{name[middle - 1]}{name[middle + 1 :]}" if middle else ""
    return _ALIASES.get(name, swapped if swapped != name else f"{name}s")


def _of_self(node: cst.CSTNode) -> bool:
    return m.matches(node, m.Attribute(value=m.Name("self")))


def _positional(call: cst.Call) -> list[cst.BaseExpression]:
    return [arg.value for arg in call.args if arg.keyword is None and arg.star != "**"]


def _without(block: _Block, gone: Any) -> _Block:
    """Return a block without one of its statements; the comments and empty lines above it stay."""
    above = cst.ensure_type(gone, cst.SimpleStatementLine).leading_lines
    lines: list[Any] = [line for line in block.body if line is not gone]
    index = list(block.body).index(gone)
    if index == len(lines):
        return block.with_changes(body=lines, footer=[*above, *block.footer])
    lines[index] = lines[index].with_changes(leading_lines=[*above, *lines[index].leading_lines])
    return block.with_changes(body=lines)
