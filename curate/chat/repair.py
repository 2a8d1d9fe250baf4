"""`repair`: insert a typical fault into the file and confirm in the sandbox that it fails; the answer is the file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst
import libcst.matchers as m
from libcst.metadata import ExpressionContext

from curate.chat.codemod import EditedFile, Rewriting, confirm_drafts, interleave
from curate.chat.design import SYSTEMS, call_line
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
    "Line {line}: {right}. The corrected file:",
    "The fault: line {line}: {right}. Corrected:",
    "Line {line}: {right}. With that put right, the network runs:",
)

_EXECUTED = ("__init__", "forward")  # by a trial
_KEPT = frozenset({"self", "super", "torch", "True", "False", "None"})  # LibCST has the constants as names
_WITH_SIZES = frozenset({"Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d", "Linear", "BatchNorm2d", "BatchNorm1d"})
_WITH_DIMENSION = frozenset({"flatten", "cat", "mean", "softmax", "sum", "unsqueeze", "squeeze", "chunk", "stack"})
_SUPER_INIT = m.Call(m.Attribute(m.Call(m.Name("super")), m.Name("__init__")))

_Block = cst.Module | cst.IndentedBlock


@dataclass(frozen=True, slots=True)
class Fault(Rewriting):
    """One fault: its location, and a sentence on what was right there."""

    line: int = 0
    right: str = ""


def repairs(networks: Sequence[ChatNetwork], samplers: Sequence[Sampler], lab: Lab) -> list[Draft | Skipped]:
    """Draft a conversation for each record that runs, by the first fault, in random order, that fails."""
    nothing = Skipped("no_fault", "no place for a fault was found")
    return confirm_drafts(networks, samplers, lab, "chat faults", _plan, _judge, nothing)


def _plan(_: ChatNetwork, sampler: Sampler, file: EditedFile) -> list[Fault]:
    return interleave(faults(file), sampler, "place", ATTEMPTS)


def _judge(
    network: ChatNetwork, sampler: Sampler, fault: Fault, code: str, answer: NetworkFacts | NetFailure, attempt: int
) -> Draft | Skipped:
    outcome = answer.fault if isinstance(answer, NetFailure) else "it runs all the same"
    if not isinstance(answer, NetFailure) or answer.category not in _SHOWN:
        return Skipped("no_clear_failure", f"last of {attempt} tried: {fault.kind}: {outcome}")
    user = [sampler.choice(_REQUESTS, "request"), "", fence(code), "", call_line(network), ""]
    user += [sampler.choice(_ERRORS, "error"), "", fence(outcome, "text")]
    sentence = sampler.choice(_ANSWERS, "answer").format(line=fault.line, right=fault.right)
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
    """Finds locations for faults: wrong names and arguments where a trial executes them, wrong sizes everywhere."""

    def __init__(self, file: EditedFile) -> None:
        super().__init__()
        self._file = file
        self._words = frozenset(re.findall(r"\w+", file.module.code))
        self._executed = 0  # number of enclosing methods that a trial executes
        self._keywords: set[cst.Name] = set()
        self.faults: dict[str, list[Fault]] = {
            "undefined_name": [],
            "unknown_attribute": [],
            "missing_argument": [],
            "missing_parameter": [],
            "wrong_size": [],
            "wrong_dimension": [],
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
        """Remove the call of the constructor of `nn.Module`."""
        for line in node.body:
            if m.matches(line, m.SimpleStatementLine([m.Expr(_SUPER_INIT)])) and self._is_alone(line):
                call = self._text(cst.ensure_type(line, cst.SimpleStatementLine).body[0])
                right = f"the constructor must call `{call}` before it sets any module"
                self._add("missing_super", line, right, node, _without(node, line))

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        """Remove the only input of `forward`."""
        params = node.params
        if node.name.value != "forward" or node.asynchronous is not None or params.posonly_params:
            return
        if len(params.params) == 2 and not any(param.default for param in params.params):
            first, second = params.params
            if len(self._file.lines(first, second)) == 1:
                right = f"`forward` takes no input besides `self`; its parameter `{second.name.value}` is missing"
                fewer = params.with_changes(params=[first.with_changes(comma=second.comma)])
                self._add("missing_parameter", second, right, params, fewer)

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

    def visit_Arg(self, node: cst.Arg) -> None:
        """Skip the name of a keyword argument, which is not an expression."""
        if node.keyword is not None:
            self._keywords.add(node.keyword)

    def visit_Name(self, node: cst.Name) -> None:
        """Replace a name with one that nothing defines."""
        if not self._executed or node in self._keywords or node.value in _KEPT:
            return
        if self._file.context(node) is ExpressionContext.LOAD:
            wrong = self._misspelt(node.value, node)
            right = f"`{wrong}` is defined nowhere; the name is `{node.value}`"
            self._add("undefined_name", node, right, node, node.with_changes(value=wrong))

    def visit_Attribute(self, node: cst.Attribute) -> None:
        """Replace an attribute of the module with one that it does not have."""
        if self._executed and self._file.context(node) is ExpressionContext.LOAD and _of_self(node):
            name = node.attr.value
            wrong = self._misspelt(name, node)
            right = f"the object has no `{wrong}`; the attribute is `self.{name}`"
            self._add("unknown_attribute", node, right, node, node.with_changes(attr=cst.Name(wrong)))

    def visit_Call(self, node: cst.Call) -> None:
        """Remove the argument of a submodule call, double a size, or make a dimension one too high."""
        if self._executed and _of_self(node.func) and m.matches(node, m.Call(args=[m.Arg(keyword=None, star="")])):
            call, callee = self._text(node.with_changes(lpar=[], rpar=[])), self._text(node.func)
            if "\n" not in call:
                emptied = node.with_changes(args=[], whitespace_before_args=cst.SimpleWhitespace(""))
                right = f"`{callee}` needs its argument: `{call}`"
                self._add("missing_argument", node, right, node, emptied)
        if isinstance(node.func, cst.Attribute) and node.func.attr.value in _WITH_SIZES:
            self._wrong_sizes(node, 1 if "Norm" in node.func.attr.value else 2)
        if self._executed and isinstance(node.func, cst.Attribute) and node.func.attr.value in _WITH_DIMENSION:
            self._wrong_dimensions(node)

    def _wrong_sizes(self, call: cst.Call, count: int) -> None:
        for order, value in zip(("first", "second")[:count], _positional(call), strict=False):
            if isinstance(value, cst.Integer) and value.evaluated_value > 1:
                number, wrong = value.evaluated_value, value.evaluated_value * 2
                right = f"the {order} argument of this `{self._text(call.func)}` must be {number}, not {wrong}"
                self._add("wrong_size", value, right, value, cst.Integer(str(wrong)))

    def _wrong_dimensions(self, call: cst.Call) -> None:
        named = [arg.value for arg in call.args if arg.keyword and arg.keyword.value in ("dim", "start_dim")]
        for value in named or _positional(call)[-1:]:
            if isinstance(value, cst.Integer):
                number, wrong = value.evaluated_value, value.evaluated_value + 1
                right = f"`{self._text(call.func)}` must work on dimension {number}, not {wrong}"
                self._add("wrong_dimension", value, right, value, cst.Integer(str(wrong)))

    def _add(self, kind: str, at: cst.CSTNode, right: str, old: cst.CSTNode, new: cst.CSTNode) -> None:
        line = self._file.lines(at)[0]
        self.faults[kind].append(Fault(kind, {old: lambda _: new}, line=line, right=right))

    def _text(self, node: cst.CSTNode) -> str:
        return self._file.text(node)

    def _is_alone(self, line: cst.CSTNode) -> bool:
        """Return True if a statement is alone on its line."""
        statement = cst.ensure_type(line, cst.SimpleStatementLine)
        semicolon = statement.body[0].semicolon
        comment = statement.trailing_whitespace.comment
        return len(self._file.lines(line)) == 1 and comment is None and semicolon is cst.MaybeSentinel.DEFAULT

    def _misspelt(self, name: str, at: cst.CSTNode) -> str:
        """Return a similar name that the file does not contain: a typing error, a different one on each line."""
        middle = len(name) // 2
        slips = [
            name[:-1],
            f"{name}s",
            f"{name[:middle]}{name[middle:][1:2]}{name[middle : middle + 1]}{name[middle + 2 :]}",  # letters swapped
            f"{name}_out",
            f"{name[:middle]}_{name[middle:]}",
            f"{name}1",
        ]
        # The line decides, so that a file has slips of several kinds, and the same ones in every run.
        turn = self._file.lines(at)[0] % len(slips)
        fit = (text for text in (*slips[turn:], *slips[:turn]) if text.isidentifier() and len(text) > 1)
        return next((text for text in fit if text not in self._words), f"{name}_missing")


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
