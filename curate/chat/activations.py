"""Changes of activations, as edits by offset."""

import ast

from curate.chat.calls import calls_of, emptied, mentions, renamed
from curate.chat.facts import Facts
from curate.chat.text import Edit, Source
from curate.chat.way import Change, Test

_FUNCTIONS = {"ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "Hardswish": "hardswish", "Mish": "mish"}
_INPLACE = frozenset({"ReLU", "SiLU", "Hardswish", "Mish"})  # these take inplace; their functions too


def activations(source: Source) -> list[Change]:
    """Every activation of a kind becomes another, modules and functions alike."""
    found = []
    for old in ("ReLU", "GELU", "SiLU"):
        for new in _FUNCTIONS:
            edits = _activation_edits(source, old, new) if new != old else []
            if edits:
                found.append(Change("activation", old, new, tuple(edits), _swapped(_FUNCTIONS[old], _FUNCTIONS[new])))
    return found


def _activation_edits(source: Source, old: str, new: str) -> list[Edit]:
    """Edits of every `nn.OLD` and `F.old`; none where something else of that name is used, which would stay."""
    edits: list[Edit] = []
    drops = old not in _INPLACE or new not in _INPLACE  # the arguments: they have none in common
    seen = 0
    for call, called in calls_of(source, [old, _FUNCTIONS[old]]):
        function = called.attr != old
        owner = ast.unparse(called.value)
        if owner not in (("F", "torch", "nn.functional", "torch.nn.functional") if function else ("nn", "torch.nn")):
            continue
        seen += 1
        if drops and not function and (call.args or call.keywords):
            edits += [renamed(source, called, new), emptied(source, call)]
            continue
        if function and drops and (call.keywords or len(call.args) > 1):
            return []
        if owner == "torch":
            edits.append(Edit(source.start(called), source.end(called), f"torch.nn.functional.{_FUNCTIONS[new]}"))
        else:
            edits.append(renamed(source, called, _FUNCTIONS[new] if function else new))
    rest = mentions(source, old) + mentions(source, _FUNCTIONS[old]) - _attributes_of_self(source, _FUNCTIONS[old])
    return edits if rest == seen else []


def _attributes_of_self(source: Source, name: str) -> int:
    """How often an attribute `self.NAME` is set or read: it holds a module and keeps its name."""
    return sum(
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        for node in source.nodes
    )


def _swapped(old: str, new: str) -> Test:
    def test(before: Facts, after: Facts) -> bool:
        seen = before.functions.get(old, 0)
        sums = seen + before.functions.get(new, 0)
        return bool(seen) and old not in after.functions and after.functions.get(new, 0) == sums

    return test
