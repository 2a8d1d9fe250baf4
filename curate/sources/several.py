"""Several sources as one: their rows after each other, in the order in which they were named."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from curate.rows import InputFile, Source
from lemur_core.files.errors import UserError


class SeveralSources:
    """The rows of all parts. A code that two parts have is one record, like one that stands twice in a part."""

    def __init__(self, parts: Sequence[Source]) -> None:
        self.name = " + ".join(part.name for part in parts)
        self.parts = tuple(parts)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The batches of each part, as it gives them.

        Raises: UserError as the parts do.
        """
        for part in self.parts:
            yield from part.batches()

    def inputs(self) -> list[InputFile]:
        """What each part has read."""
        return [item for part in self.parts for item in part.inputs()]


def join_sources(parts: Sequence[Source]) -> Source:
    """One source of all the rows: the only part itself, where there is one.

    Raises: UserError if there is none, or two have one name: nothing would tell their rows apart.
    """
    if not parts:
        raise UserError("no SOURCE is given; name at least one")
    names = [part.name for part in parts]
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise UserError(f"{twice}: two sources have this name; leave one out, or give its file or folder another name")
    return parts[0] if len(parts) == 1 else SeveralSources(parts)
