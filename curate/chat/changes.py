"""All changes of one ingredient that a file allows, as edits by offset."""

import ast

from curate.chat.activations import activations
from curate.chat.calls import calls_of, mentions, renamed, without_keywords
from curate.chat.facts import Facts
from curate.chat.text import Edit, Source
from curate.chat.way import Change, Test
from curate.chat.wording import joined

_RATES = (0.1, 0.2, 0.3, 0.4, 0.5)
_DROPOUTS = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout")
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


#: Of those that decay weights without being asked to.
_DECAYS = {"AdamW": 0.01}


def changes(source: Source) -> dict[str, list[Change]]:
    """All changes of each kind that a file allows; kinds without one are left out."""
    finders = {"activation": activations, "optimizer": _optimizers, "dropout": _dropouts, "layer": _layers}
    found = {kind: find(source) for kind, find in finders.items()}
    return {kind: ways for kind, ways in found.items() if ways}


def _optimizers(source: Source) -> list[Change]:
    found = []
    for (old, new), dropped in _OPTIMIZERS.items():
        edits: list[Edit] = []
        calls = [item for item in calls_of(source, [old]) if ast.unparse(item[1].value) in ("torch.optim", "optim")]
        for call, called in calls:
            fewer = without_keywords(source, call, dropped)
            if fewer is None or len(call.args) > 2 or any(item.arg is None for item in call.keywords):
                break
            edits += [renamed(source, called, new), *fewer]
        else:
            if calls and mentions(source, old) == len(calls):
                notes = _optimizer_notes([call for call, _ in calls], old, new, dropped)
                test = _optimizes_with(old, new)
                found.append(Change("optimizer", old, new, tuple(edits), test, "train_step", notes))
    return found


def _optimizer_notes(calls: list[ast.Call], old: str, new: str, dropped: frozenset[str]) -> tuple[str, ...]:
    """Which arguments went, and what the defaults of the new optimizer change."""
    given = [{item.arg for item in call.keywords} for call in calls]
    gone = tuple(sorted(dropped & {name for names in given for name in names if name is not None}))
    notes = []
    if gone:
        notes.append(f"{new} takes no {joined(gone)}: what was passed there has no effect any more.")
    decays = _DECAYS.get(old, 0), _DECAYS.get(new, 0)
    if decays[0] != decays[1] and any("weight_decay" not in names for names in given):
        notes.append(
            f"No `weight_decay` is given, and its default changes: {decays[0]} in {old}, {decays[1]} in {new}."
        )
    return tuple(notes)


def _optimizes_with(old: str, new: str) -> Test:
    return lambda before, after: before.optimizers == (old,) and after.optimizers == (new,)


def _dropouts(source: Source) -> list[Change]:
    literals: list[ast.Constant] = []
    rates_there: set[float] = set()
    for call, _ in calls_of(source, _DROPOUTS):
        rates = [item.value for item in call.keywords if item.arg == "p"] or call.args[:1]
        if not rates or not isinstance(rates[0], ast.Constant) or not isinstance(rates[0].value, float):
            return []
        literals.append(rates[0])
        rates_there.add(rates[0].value)
    if not literals:
        return []
    told = ", ".join(repr(value) for value in sorted(rates_there))
    return [
        Change(
            "dropout",
            told,
            repr(rate),
            tuple(Edit(source.start(literal), source.end(literal), repr(rate)) for literal in literals),
            _drops_at(rate),
        )
        for rate in _RATES
        if rate not in rates_there
    ]


def _drops_at(rate: float) -> Test:
    return lambda before, after: bool(before.dropout) and after.dropout == (rate,)


def _layers(source: Source) -> list[Change]:
    found = []
    for old, new, allowed in (
        ("MaxPool2d", "AvgPool2d", {"kernel_size", "stride", "padding", "ceil_mode"}),
        ("AvgPool2d", "MaxPool2d", {"kernel_size", "stride", "padding", "ceil_mode"}),
        ("BatchNorm2d", "GroupNorm", {"eps", "affine"}),
    ):
        calls = list(calls_of(source, [old]))
        edits = []
        for call, called in calls:
            positional = 1 if new == "GroupNorm" else 3
            given = {item.arg for item in call.keywords}
            fits = len(call.args) <= positional and given <= allowed and (call.args or new != "GroupNorm")
            if not fits or ast.unparse(called.value) not in ("nn", "torch.nn"):
                break
            edits.append(renamed(source, called, new))
            if new == "GroupNorm":
                start = source.start(call.args[0])
                edits.append(Edit(start, start, "1, "))
        else:
            if calls and mentions(source, old) == len(calls):
                found.append(Change("layer", old, new, tuple(edits), _other_layers(old, new)))
    return found


def _other_layers(old: str, new: str) -> Test:
    def test(before: Facts, after: Facts) -> bool:
        seen = before.layers.get(old, 0)
        expected = {name: number for name, number in before.layers.items() if name != old}
        expected[new] = expected.get(new, 0) + seen
        return bool(seen) and after.layers == expected

    return test
