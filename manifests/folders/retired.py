"""Parts of folders of older releases that are no longer read: such a folder opens, and its digests are verified."""

from collections.abc import Callable
from typing import NamedTuple

from manifests.folders.checks import Check
from manifests.folders.manifest import Manifest
from manifests.records import CHAT_KINDS


class Retired(NamedTuple):
    """Something that is no longer read.

    Attributes:
        kind: the kind of the folder.
        what: its name, for a message.
        is_in: whether a folder has it, by its manifest.
        tables: those that are not checked, since their rows have another form.
        ruled: it decided what the rest of the folder promises, so that only digests can be verified.
    """

    kind: str
    what: str
    is_in: Callable[[Manifest], bool]
    tables: tuple[str, ...] = ()
    ruled: bool = True


def _has(manifest: Manifest, start: str) -> bool:
    """Return whether a folder lists a file whose path starts so."""
    return any(output.path.startswith(start) for output in manifest.outputs)


def _states(manifest: Manifest, parameter: str) -> bool:
    return manifest.parameters.get(parameter) is not None


def _has_other_chat(manifest: Manifest) -> bool:
    return bool({*manifest.counts.get("chat", {}).get("kinds", {})} - {*CHAT_KINDS})


RETIRED = (
    Retired("sensitivity", "counts over a grid of thresholds", lambda _: True),
    Retired("snapshot", "near pairs", lambda manifest: _has(manifest, "pairs.parquet"), ruled=False),
    Retired("snapshot", "results to predict from", lambda manifest: _has(manifest, "data/prediction/"), ruled=False),
    Retired("snapshot", "conversations of other kinds", _has_other_chat, ("chat", "chat_drops"), ruled=False),
    Retired("snapshot", "a delta", lambda manifest: bool(manifest.parameters.get("against"))),
    Retired("snapshot", "--per-group", lambda manifest: (manifest.parameters.get("per_group") or 1) > 1),
    Retired("snapshot", "--max-parameters", lambda manifest: _states(manifest, "max_parameters"), ruled=False),
    Retired("snapshot", "--min-score", lambda manifest: _states(manifest, "min_score"), ruled=False),
    Retired("snapshot", "profile nn-dup", lambda manifest: manifest.parameters.get("profile") == "nn-dup"),
)


def find_retired(manifest: Manifest) -> list[Retired]:
    """Return what a folder has that is no longer read."""
    return [item for item in RETIRED if item.kind == manifest.kind and item.is_in(manifest)]


def check_retired(manifest: Manifest) -> list[Check]:
    """Return the check that names what a folder has that is no longer read; none if everything is read."""
    names = [item.what for item in find_retired(manifest)]
    return [Check("older release", ok=True, detail=f"no longer read: {', '.join(names)}")] if names else []
