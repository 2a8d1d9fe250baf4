"""What conversations may hold of code: no passage of it, unless it is the whole answer and its licences allow that."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from extract.specs.make import repeated, source_of
from lemur_core.similarity.text import tokens_of
from manifests.licenses import NOASSERTION
from manifests.provenance import Parts, barred_blocks, read_parts
from manifests.records import Spec


def repeats(texts: Iterable[str], code: str) -> list[bool]:
    """Of each text, whether it has eight consecutive tokens in common with the code; its header is no source."""
    source = tokens_of(source_of(code))
    return [repeated(text, source) is not None for text in texts]


def guarded_text(kind: str, user: str, assistant: str) -> str:
    """The part of a conversation that must not repeat code: all of it, unless the answer is the code itself."""
    return user if kind == "write" else f"{user}\n{assistant}"


@dataclass(frozen=True, slots=True)
class Rights:
    """Whose code may be passed on, decided as publishing decides it, and the notice that goes with it."""

    barred: Mapping[str, str] = field(default_factory=dict)  # block -> the licences that do not allow it
    parts: Parts = field(default_factory=lambda: Parts({}, {}))

    def notice(self, spec: Spec) -> str:
        """Where a block's code comes from and under which licences, in one line."""
        lines = f"lines {spec.start_line}-{spec.end_line}"
        origin = f"{spec.name}: {spec.source} {spec.path}, {lines}, {spec.swhid}, {spec.license}"
        further = [
            f"{name} ({self.parts.source_licenses.get(name, NOASSERTION)})"
            for name in self.parts.made_from.get(spec.block, ())
            if name != spec.source
        ]
        also = f"; with definitions from {', '.join(further)}" if further else ""
        return f"{origin}{also}; changed: imports resolved and definitions brought together"


def read_rights(folder: Path) -> Rights:
    """The rights to the code in a folder whose table and requirements are written.

    Raises: UserError if they cannot be read.
    """
    parts = read_parts(folder)
    return Rights({block: licenses for block, (_, licenses) in barred_blocks(folder, parts).items()}, parts)
