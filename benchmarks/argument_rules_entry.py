"""What `benchmarks.argument_rules` runs inside the sandbox: the search for arguments, without some of its rules."""

import re
from typing import Any

from extract.arguments import repairs, resizing
from extract.arguments import search_guest as entry
from extract.arguments.values import inputs
from extract.arguments.values import names as values


class _Patterns:
    """Takes the place of `re` in a module: some patterns match nothing, and those that match are kept."""

    def __init__(self, off: set[str], used: set[str]) -> None:
        self._off = off
        self._used = used

    def __getattr__(self, name: str) -> Any:
        return getattr(re, name)

    def _match(self, function: Any, pattern: str, text: str) -> re.Match[str] | None:
        found: re.Match[str] | None = function(pattern, text) if pattern not in self._off else None
        if found:
            self._used.add(pattern)
        return found

    def fullmatch(self, pattern: str, text: str) -> re.Match[str] | None:
        """As `re.fullmatch`."""
        return self._match(re.fullmatch, pattern, text)

    def search(self, pattern: str, text: str) -> re.Match[str] | None:
        """As `re.search`."""
        return self._match(re.search, pattern, text)


def climb_without(payload: dict[str, Any]) -> dict[str, Any]:
    """As `extract.arguments.search_guest:search_arguments`, without the rules in `off`.

    Returns: `level`, and `used`, the patterns that matched and the repairs that suggested something.
    """
    off, used = set(payload.pop("off")), set[str]()
    patterns = _Patterns(off, used)
    for module in (inputs, repairs, resizing, values):
        module.re = patterns  # type: ignore[attr-defined]

    def counted(rule: Any) -> Any:
        def suggested(at: resizing.FailedCall) -> Any:
            for item in rule(at):
                used.add(rule.__name__)
                yield item

        return suggested

    repairs.RULES = tuple(counted(rule) for rule in repairs.RULES if rule.__name__ not in off)
    return {"level": entry.search_arguments(payload)["level"], "used": sorted(used)}
