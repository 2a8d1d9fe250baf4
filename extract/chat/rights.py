"""Whose code may be passed on, decided as publishing decides it, and the notice that goes with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from manifests.licenses import NOASSERTION
from manifests.provenance import Parts, barred_blocks, read_parts
from manifests.records import Spec


@dataclass(frozen=True, slots=True)
class Rights:
    """What is known of the code of a folder's blocks."""

    barred: Mapping[str, str] = field(default_factory=dict)  # block -> the licences that do not allow it
    parts: Parts = field(default_factory=lambda: Parts({}, {}))

    def notice(self, spec: Spec) -> str:
        """Where a block's code comes from and under which licences, in one line."""
        lines = f"lines {spec.start_line}-{spec.end_line}"
        told = f"{spec.name}: {spec.source} {spec.path}, {lines}, {spec.swhid}, {spec.license}"
        further = [
            f"{name} ({self.parts.source_licenses.get(name, NOASSERTION)})"
            for name in self.parts.made_from.get(spec.block, ())
            if name != spec.source
        ]
        also = f"; with definitions from {', '.join(further)}" if further else ""
        return f"{told}{also}; changed: imports resolved and definitions brought together"


def read_rights(folder: Path) -> Rights:
    """The rights to the code in a folder whose table and requirements are written.

    Raises: UserError if they cannot be read.
    """
    parts = read_parts(folder)
    return Rights({block: licenses for block, (_, licenses) in barred_blocks(folder, parts).items()}, parts)
