"""`change`: replace one ingredient everywhere; the new file was run, and its measurements differ as expected."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import libcst as cst
from libcst.helpers import get_full_name_for_node

from curate.chat.codemod import Edit, EditedFile, Rewriting, confirm_drafts, interleave
from curate.chat.design import SYSTEMS, call_line, join_names
from curate.chat.network import ChatNetwork, Lab, NetworkFacts
from curate.compute.runs import NetFailure
from manifests.conversations.conversation import Draft, Sampler, Skipped, fence

#: Maximum number of changes tried on one record.
ATTEMPTS = 3

_REQUESTS = {
    "activation": (
        "Replace every {old} in this network with {new}.",
        "I want to try {new} instead of {old} everywhere in this file.",
        "Swap the activation {old} for {new}; leave everything else as it is.",
    ),
    "optimizer": (
        "Train this network with {new} instead of {old}.",
        "Change the optimizer from {old} to {new}, and nothing else.",
        "Use {new} where this file uses the optimizer {old}; arguments that {new} does not take go.",
    ),
    "dropout": (
        "Set every dropout rate of this network to {new}.",
        "Change the dropout from {old} to {new} everywhere.",
        "I want a dropout of {new} in place of {old}. Give me the changed file.",
    ),
    "layer": (
        "Replace every {old} of this network with {new}{one_group}.",
        "What does the file look like with {new}{one_group} instead of {old}?",
        "Swap all {old} layers for {new}{one_group}, with the arguments that they have.",
    ),
}
_ANSWERS = ("Done.", "Here is the changed file.", "This is the file with {new}.")

_FUNCTIONS = {"ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "Hardswish": "hardswish", "Mish": "mish"}
_INPLACE = frozenset({"ReLU", "SiLU", "Hardswish", "Mish"})  # these, and their functions, take inplace
_NN = ("nn", "torch.nn")
_FUNCTIONAL = ("F", "torch", "nn.functional", "torch.nn.functional")

_OPTIM = ("optim", "torch.optim")
#: Arguments that the new optimizer does not have.
_OPTIMIZERS = {
    ("SGD", "AdamW"): frozenset({"momentum", "nesterov", "dampening"}),
    ("SGD", "Adam"): frozenset({"momentum", "nesterov", "dampening"}),
    ("SGD", "RAdam"): frozenset({"momentum", "nesterov", "dampening"}),
    ("Adam", "SGD"): frozenset({"betas", "eps", "amsgrad"}),
    ("Adam", "AdamW"): frozenset[str](),
    ("AdamW", "SGD"): frozenset({"betas", "eps", "amsgrad"}),
    ("AdamW", "NAdam"): frozenset({"amsgrad"}),
}
#: Optimizers that decay weights by default.
_DECAYS = {"AdamW": 0.01}

_DROPOUTS = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout")
_RATES = (0.1, 0.2, 0.3, 0.4, 0.5)

#: Positional and keyword arguments that both layers have.
_LAYERS = {
    ("MaxPool2d", "AvgPool2d"): (3, frozenset({"kernel_size", "stride", "padding", "ceil_mode"})),
    ("AvgPool2d", "MaxPool2d"): (3, frozenset({"kernel_size", "stride", "padding", "ceil_mode"})),
    ("BatchNorm2d", "GroupNorm"): (1, frozenset({"eps", "affine"})),
}


@dataclass(frozen=True, slots=True)
class Change(Rewriting):
    """One change of one ingredient of a file."""

    old: str = ""
    new: str = ""
    lines: tuple[int, ...] = ()  # the lines that are rewritten
    notes: tuple[str, ...] = ()  # side effects of the change, as sentences


def change_all(networks: Sequence[ChatNetwork], samplers: Sequence[Sampler], lab: Lab) -> list[Draft | Skipped]:
    """Draft a conversation for each record that runs, by the first random change that measures as expected."""
    nothing = Skipped(
        "no_ingredient", "no activation, optimizer, dropout, pooling or norm that can be changed everywhere"
    )
    return confirm_drafts(networks, samplers, lab, "chat changes", _plan, _judge, nothing)


def _plan(network: ChatNetwork, sampler: Sampler, file: EditedFile) -> list[Change]:
    candidates = changes(file)
    if network.case is None or network.case.output is None:
        candidates.pop("optimizer")  # a training step needs labels, which only a classification has
    return interleave(candidates, sampler, "way", ATTEMPTS)


def _judge(
    network: ChatNetwork, sampler: Sampler, change: Change, code: str, answer: NetworkFacts | NetFailure, attempt: int
) -> Draft | Skipped:
    what = f"last of {attempt} tried: {change.old} to {change.new}"
    if isinstance(answer, NetFailure):
        return Skipped("change_fails", f"{what}: {answer.fault}")
    before, after = network.measurements, answer
    same = (before.parameters, before.output) == (after.parameters, after.output)
    seen = _describe_effect(change, before, after)
    if not same or seen is None:
        return Skipped("change_not_seen", f"{what}: the measurements are not those of the change")
    names = {"old": change.old, "new": change.new, "one_group": " of one group" if change.new == "GroupNorm" else ""}
    request = sampler.choice(_REQUESTS[change.kind], "request").format(**names)
    user = [request, "", fence(network.code), "", call_line(network)]
    *first, last = map(str, change.lines)
    places = f"{'Lines' if first else 'Line'} {', '.join(first)}{' and ' if first else ''}{last} of your file changed."
    size = f"The number of parameters stays {after.parameters:,}."
    sentences = " ".join([sampler.choice(_ANSWERS, "answer").format(**names), places, seen, *change.notes, size])
    variant = f"{change.kind} {change.old} to {change.new}"
    return Draft(sampler.choice(SYSTEMS, "system"), "\n".join(user), f"{sentences}\n\n{fence(code)}", variant)


def _describe_effect(change: Change, before: NetworkFacts, after: NetworkFacts) -> str | None:
    """Return the measured effect of a change as a sentence; None if the networks do not match the request."""
    if change.kind == "optimizer":
        sentence = f"The optimizer was {join_names(before.optimizers)} and is {join_names(after.optimizers)}."
        return sentence if (before.optimizers, after.optimizers) == ((change.old,), (change.new,)) else None
    if change.kind == "dropout":
        sentence = f"Dropout rates were {change.old} and are {change.new}."
        return sentence if before.dropout and after.dropout == (float(change.new),) else None
    if change.kind == "layer":
        number = before.layers.get(change.old, 0)
        expected = Counter(before.layers) + Counter({change.new: number})
        del expected[change.old]
        sentence = f"The network has {number:,} {change.new} where it had {number:,} {change.old}."
        return sentence if number and after.layers == expected else None
    old, new = _FUNCTIONS[change.old], _FUNCTIONS[change.new]
    number = before.functions.get(old, 0)
    expected = Counter(before.functions) + Counter({new: number})
    times = "once" if number == 1 else f"{number:,} times"
    sentence = f"One forward pass calls {change.new} {times} where it called {change.old}."
    gone = old not in after.functions and after.functions.get(new, 0) == expected[new]
    return sentence if number and gone else None


def changes(file: EditedFile) -> dict[str, list[Change]]:
    """Plan all changes of each kind that a file allows: of everything of the kind, or none."""
    uses = GatherUses()
    file.module.visit(uses)
    return {
        "activation": list(_activations(file, uses)),
        "optimizer": list(_optimizers(file, uses)),
        "dropout": list(_dropouts(file, uses)),
        "layer": list(_layers(file, uses)),
    }


class GatherUses(cst.CSTVisitor):
    """Gathers the calls `a.b.NAME(…)`, and counts all uses of names, except definitions and argument names."""

    def __init__(self) -> None:
        super().__init__()
        self.uses: Counter[str] = Counter()
        self.of_self: Counter[str] = Counter()  # attributes `self.NAME`: they hold modules, and keep their names
        self._calls: list[tuple[cst.Call, cst.Attribute]] = []

    def gather_calls(self, *names: str) -> list[tuple[cst.Call, cst.Attribute, str]]:
        """Return calls of these names, with the callee, and the dotted name of what it belongs to."""
        return [
            (call, called, get_full_name_for_node(called.value) or "")
            for call, called in self._calls
            if called.attr.value in names
        ]

    def gather_all_calls(self, name: str, owners: Sequence[str]) -> list[tuple[cst.Call, cst.Attribute]]:
        """Return the calls of a name that belongs to one of these; none if it has other uses, which would stay."""
        calls = [(call, called) for call, called, owner in self.gather_calls(name) if owner in owners]
        return calls if len(calls) == self.uses[name] else []

    def visit_FormattedString(self, node: cst.FormattedString) -> bool:
        """Skip texts."""
        return False

    def visit_Name(self, node: cst.Name) -> None:
        """Count a use, unless a later visit takes it back."""
        self.uses[node.value] += 1

    def _define(self, node: cst.FunctionDef | cst.ClassDef | cst.Param) -> None:
        self.uses[node.name.value] -= 1

    visit_FunctionDef = visit_ClassDef = visit_Param = _define

    def visit_Arg(self, node: cst.Arg) -> None:
        """Do not count the keyword as a use."""
        if node.keyword is not None:
            self.uses[node.keyword.value] -= 1

    def visit_Attribute(self, node: cst.Attribute) -> None:
        """Count an attribute of the object itself."""
        if isinstance(node.value, cst.Name) and node.value.value == "self":
            self.of_self[node.attr.value] += 1

    def visit_Call(self, node: cst.Call) -> None:
        """Gather a call of an attribute of something else."""
        if isinstance(node.func, cst.Attribute):
            self._calls.append((node, node.func))


def _activations(file: EditedFile, uses: GatherUses) -> Iterator[Change]:
    """Replace every activation of a kind, modules and functions alike."""
    for old in ("ReLU", "GELU", "SiLU"):
        function = _FUNCTIONS[old]
        calls = [
            (call, called, owner)
            for call, called, owner in uses.gather_calls(old, function)
            if owner in (_FUNCTIONAL if called.attr.value == function else _NN)
        ]
        rest = uses.uses[old] + uses.uses[function] - uses.of_self[function]
        for new in _FUNCTIONS if calls and rest == len(calls) else ():
            keeps = old in _INPLACE and new in _INPLACE  # keep their arguments; others have none in common
            plain = all(
                len(call.args) == 1 and call.args[0].keyword is None
                for call, called, _ in calls
                if called.attr.value == function
            )
            if new != old and (keeps or plain):
                edits: dict[cst.CSTNode, Edit] = {}
                lines: set[int] = set()
                for call, called, owner in calls:
                    of_module = called.attr.value == old
                    edits[called] = partial(_rename_callee, new=new if of_module else _FUNCTIONS[new], owner=owner)
                    lines.update(file.lines(called.attr))
                    if of_module and not keeps and call.args:
                        edits[call] = _drop_arguments
                        lines.update(file.lines(called.attr, call))
                yield Change("activation", edits, old=old, new=new, lines=tuple(sorted(lines)))


def _optimizers(file: EditedFile, uses: GatherUses) -> Iterator[Change]:
    for (old, new), dropped in _OPTIMIZERS.items():
        calls = uses.gather_all_calls(old, _OPTIM)
        if not calls or not all(_takes_fewer(call, dropped) for call, _ in calls):
            continue
        edits: dict[cst.CSTNode, Edit] = {}
        lines: set[int] = set()
        for call, called in calls:
            edits[called] = partial(_rename_callee, new=new)
            edits[call] = partial(_without_keywords, names=dropped)
            lines.update(file.lines(called.attr))
            for before, arg in zip(call.args, call.args[1:], strict=False):
                if _keyword(arg) in dropped:
                    lines.update(range(file.lines(before)[-1], file.lines(arg)[-1] + 1))
        notes = _optimizer_notes([call for call, _ in calls], old, new, dropped)
        yield Change("optimizer", edits, "train_step", old, new, tuple(sorted(lines)), notes)


def _takes_fewer(call: cst.Call, dropped: frozenset[str]) -> bool:
    """Return True if a call can lose these arguments: few others by position, none by `**`, and another one first."""
    positional = sum(arg.keyword is None for arg in call.args)
    return positional <= 2 and all(arg.star != "**" for arg in call.args) and _keyword(*call.args[:1]) not in dropped


def _optimizer_notes(calls: Sequence[cst.Call], old: str, new: str, dropped: frozenset[str]) -> tuple[str, ...]:
    """Describe the removed arguments, and what the defaults of the new optimizer change."""
    present = [{_keyword(arg) for arg in call.args} for call in calls]
    gone = tuple(sorted(dropped & {name for names in present for name in names}))
    notes = []
    if gone:
        notes.append(f"{new} takes no {join_names(gone)}: what was passed there has no effect any more.")
    decays = _DECAYS.get(old, 0), _DECAYS.get(new, 0)
    if decays[0] != decays[1] and any("weight_decay" not in names for names in present):
        notes.append(
            f"No `weight_decay` is given, and its default changes: {decays[0]} in {old}, {decays[1]} in {new}."
        )
    return tuple(notes)


def _dropouts(file: EditedFile, uses: GatherUses) -> Iterator[Change]:
    literals: list[cst.Float] = []
    for call, _, _ in uses.gather_calls(*_DROPOUTS):
        named = [arg.value for arg in call.args if _keyword(arg) == "p"]
        values = named or [arg.value for arg in call.args if arg.keyword is None]
        if not values or not isinstance(values[0], cst.Float):
            return
        literals.append(values[0])
    rates = sorted({literal.evaluated_value for literal in literals})
    lines = tuple(sorted({line for literal in literals for line in file.lines(literal)}))
    for rate in _RATES if literals else ():
        if rate not in rates:
            edits: dict[cst.CSTNode, Edit] = {literal: partial(_literal, value=repr(rate)) for literal in literals}
            yield Change("dropout", edits, old=", ".join(map(repr, rates)), new=repr(rate), lines=lines)


def _layers(file: EditedFile, uses: GatherUses) -> Iterator[Change]:
    for (old, new), (most, allowed) in _LAYERS.items():
        calls = uses.gather_all_calls(old, _NN)
        positional = [sum(arg.keyword is None and arg.star != "**" for arg in call.args) for call, _ in calls]
        named = {_keyword(arg) for call, _ in calls for arg in call.args if arg.keyword is not None or arg.star == "**"}
        least = 1 if new == "GroupNorm" else 0  # the channels come before the groups
        if calls and named <= allowed and all(least <= count <= most for count in positional):
            edits: dict[cst.CSTNode, Edit] = {called: partial(_rename_callee, new=new) for _, called in calls}
            lines = {line for _, called in calls for line in file.lines(called.attr)}
            if new == "GroupNorm":
                edits |= {call: _with_one_group for call, _ in calls}
                lines |= {file.lines(call.args[0])[0] for call, _ in calls}
            yield Change("layer", edits, old=old, new=new, lines=tuple(sorted(lines)))


def _keyword(*args: cst.Arg) -> str:
    """Return the name of a keyword argument; empty for others and for none."""
    return args[0].keyword.value if args and args[0].keyword is not None else ""


def _rename_callee(called: cst.Attribute, new: str, owner: str = "") -> cst.Attribute:
    """Rename `a.b.OLD` to `a.b.NEW`; a function that torch lacks is taken from torch.nn.functional."""
    value = cst.parse_expression("torch.nn.functional") if owner == "torch" else called.value
    return called.with_changes(value=value, attr=cst.Name(new))


def _drop_arguments(call: cst.Call) -> cst.Call:
    """Rewrite `NAME(…)` as `NAME()`."""
    return call.with_changes(args=[], whitespace_before_args=cst.SimpleWhitespace(""))


def _without_keywords(call: cst.Call, names: frozenset[str]) -> cst.Call:
    """Remove keyword arguments of these names, each with the comma before it; the first argument is not among them."""
    kept: list[cst.Arg] = []
    for arg in call.args:
        if _keyword(arg) in names:
            kept[-1] = kept[-1].with_changes(comma=arg.comma, whitespace_after_arg=arg.whitespace_after_arg)
        else:
            kept.append(arg)
    return call.with_changes(args=kept)


def _literal(literal: cst.Float, value: str) -> cst.Float:
    return literal.with_changes(value=value)


def _with_one_group(call: cst.Call) -> cst.Call:
    """Rewrite `NAME(8)` as `NAME(1, 8)`."""
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return call.with_changes(args=[cst.Arg(cst.Integer("1"), comma=comma), *call.args])
