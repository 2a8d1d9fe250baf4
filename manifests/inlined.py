"""The blocks in an assembled network's file, read back from the comment that stands above each of them."""

import re
from dataclasses import dataclass

#: As `train.heading.provenance` writes it.
_COMMENT = re.compile(
    r"^# Slot (?P<slot>\w+): .*\n"
    r"#\n"
    r"# Block:   (?P<block>.+)\n"
    r"# File:    (?P<path>.+), lines (?P<first>\d+)-(?P<last>\d+)\n"
    r"# SWHID:   (?P<swhid>.+)\n"
    r"# Licence: (?P<license>.+)\n"
    r"# SHA-256: (?P<sha256>[0-9a-f]{64}) ",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Inlined:
    """One block in a network's file, and where it is from."""

    slot: str
    block: str
    path: str
    lines: tuple[int, int]
    swhid: str
    license: str
    code_sha256: str  # of the extracted file
    line: int  # of the comment, in the network's file


def inlined_blocks(code: str) -> list[Inlined]:
    """The blocks that a network's file names, in its order; none in a file that was not assembled."""
    return [
        Inlined(
            slot=found["slot"],
            block=found["block"],
            path=found["path"],
            lines=(int(found["first"]), int(found["last"])),
            swhid=found["swhid"],
            license=found["license"],
            code_sha256=found["sha256"],
            line=code.count("\n", 0, found.start()) + 1,
        )
        for found in _COMMENT.finditer(code)
    ]
