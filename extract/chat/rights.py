"""Whose code may be passed on, decided as publishing decides it, and the notice that goes with it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from extract.requirements import REQUIREMENTS
from manifests.errors import UserError
from manifests.licenses import NOASSERTION
from manifests.records import Spec


@dataclass(frozen=True, slots=True)
class Rights:
    """What is known of the code of a folder's blocks."""

    barred: Mapping[str, str] = field(default_factory=dict)  # block -> the licences that do not allow it
    made_from: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # block -> sources, its own first
    licenses: Mapping[str, str] = field(default_factory=dict)  # of sources

    def notice(self, spec: Spec) -> str:
        """Where a block's code comes from and under which licences, in one line."""
        lines = f"lines {spec.start_line}-{spec.end_line}"
        told = f"{spec.name}: {spec.source} {spec.path}, {lines}, {spec.swhid}, {spec.license}"
        further = [
            f"{name} ({self.licenses.get(name, NOASSERTION)})"
            for name in self.made_from.get(spec.block, ())
            if name != spec.source
        ]
        also = f"; with definitions from {', '.join(further)}" if further else ""
        return f"{told}{also}; changed: imports resolved and definitions brought together"


def read_rights(folder: Path) -> Rights:
    """The rights to the code in a folder whose table and requirements are written.

    Raises: UserError if they cannot be read.
    """
    from manifests.publish.staged import barred_blocks  # the Hub's client comes with it

    barred = {block: license_ for block, (_, license_) in barred_blocks(folder).items()}
    try:
        needs: dict[str, Any] = json.loads((folder / REQUIREMENTS).read_text(encoding="utf-8"))
        made_from = {entry["block"]: tuple(entry["made_from"]) for entry in needs["blocks"]}
        licenses = {name: str(source.get("license") or NOASSERTION) for name, source in needs["sources"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / REQUIREMENTS}: not readable: {error}; make the folder anew") from error
    return Rights(barred, made_from, licenses)
