"""Calls that were recorded, as hints for the search; and where the arguments that it found are from."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from extract.arguments.messages import NAME, RAISED_RATE, ZERO_RATES, is_rate
from extract.proofs.validate import ReportedCalls
from extract.recording.messages import GUESSED, RECORDED, Way

ArgumentsFrom = Literal["default", "recorded", "guessed above", "call site", "search"]


_INTEGER = re.compile(r"(?<![\w.])\d+(?![\w.])")


def _without_rates(call: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments of a call but for rates of dropout that may have been raised from 0."""
    args = ["0.0" if text == RAISED_RATE else text for text in call["args"]]
    kwargs = dict(call["kwargs"])
    return args, {n: text for n, text in kwargs.items() if not is_rate(n) or text not in (*ZERO_RATES, RAISED_RATE)}


def _is_same_call(call: Mapping[str, Any], item: Mapping[str, Any]) -> bool:
    """Return whether a call is that of a hint, or the same with smaller integers: large calls are made smaller."""
    texts, stated = (json.dumps(_without_rates(item), sort_keys=True) for item in (call, item))
    pairs = zip(*(map(int, _INTEGER.findall(text)) for text in (texts, stated)), strict=False)
    return _INTEGER.sub("0", texts) == _INTEGER.sub("0", stated) and all(small <= large for small, large in pairs)


def find_origin(arguments: str, hints: Mapping[str, Any]) -> ArgumentsFrom:
    """Return where the arguments of a constructor that works are from.

    Args:
        arguments: those that work, as JSON.
        hints: of the class, with the calls that were recorded.
    """
    call = json.loads(arguments)["init"]
    ways: list[ArgumentsFrom | Literal["call"]] = [item["way"] for item in hints["init"] if _is_same_call(call, item)]
    if RECORDED in ways:
        return "recorded"
    if not call["args"] and not _without_rates(call)[1]:
        return "default"
    return "call site" if "call" in ways else "guessed above" if GUESSED in ways else "search"


@dataclass(frozen=True, slots=True)
class NamedCalls(ReportedCalls):
    """The calls of a module.

    Args:
        names: the module of each name of the source in their expressions.
        way: how the arguments of the constructor were found.
        driver: the code that made the calls: tests, an example, a definition.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    way: Way = RECORDED
    driver: str = ""


@dataclass(frozen=True, slots=True)
class RecordedCalls:
    """The calls of a class in running blocks, and the names that their expressions use."""

    calls: Sequence[NamedCalls]

    @property
    def words(self) -> set[str]:
        """The words of all expressions."""
        texts = [
            text
            for calls in self.calls
            for call in (calls.init, calls.forward)
            if call is not None
            for text in (*call.args, *call.kwargs.values())
        ]
        return {word for text in texts for word in NAME.findall(text)}

    def add_to(self, hints: Mapping[str, Any], companions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return hints with these calls first, and with the classes that they name."""
        init = [_as_hint(calls.init, calls.way) for calls in self.calls]
        forward = [
            # With the constructor call that it belongs to.
            _as_hint(calls.forward, calls.way)
            | {"init": {"args": list(calls.init.args), "kwargs": dict(calls.init.kwargs)}}
            for calls in self.calls
            if calls.forward is not None
        ]
        known = {item["name"] for item in hints["companions"]}
        more = [item for item in companions if item["name"] not in known]
        return {
            **hints,
            "init": [*init, *hints["init"]],
            "forward": [*forward, *hints["forward"]],
            "companions": [*hints["companions"], *more],
        }


def _as_hint(call: Any, way: Way) -> dict[str, Any]:
    # Such calls are tried first, and unchanged.
    return {"args": list(call.args), "kwargs": list(call.kwargs.items()), "way": way}
