"""The whole of inlining: read the parts, find what they share, choose names, write the module."""

from collections.abc import Sequence
from dataclasses import dataclass

from lemur_core.files.errors import UserError
from train.inline.naming import choose_names
from train.inline.reading import File, Part, read_part
from train.inline.sharing import find_shared
from train.inline.writing import Writer


@dataclass(frozen=True, slots=True)
class Inlined:
    """Several files as one.

    Attributes:
        text: a module: future import, imports, then the parts' definitions in their order.
        names: the name there of each part's class, by the part's key.
    """

    text: str
    names: dict[str, str]


def inline(parts: Sequence[Part]) -> Inlined:
    """One module in which each part's class behaves as in its own file.

    Definitions that are the same in two parts stand once; other globals of the same name get a number in the later
    part (`_2`, `_3`). A class that is renamed keeps its old `__name__` where its part reads such names. Imports at the
    top of the files are brought together and sorted. `from __future__ import annotations` is there if a part has it:
    annotations are then strings everywhere, which changes nothing for code that does not read them as objects.

    Args:
        parts: their keys differ; the order decides who keeps a name, and nothing else.

    Raises: UserError if a part cannot be inlined, naming it and the line: star and relative imports, `globals()` and
        the like, code that reads annotations as objects, names inside strings that would have to change.
    """
    keys = [part.key for part in parts]
    for key in keys:
        if keys.count(key) > 1:
            raise UserError(f"{key}: given twice; name each part once")
    files = [read_part(part) for part in parts]
    future = any(file.annotations for file in files)
    _check_annotations(files, future)
    sharing = find_shared(files)
    names = choose_names(files, sharing.colour)
    text = Writer(files, sharing, names).module(future)
    return Inlined(text, {file.part.key: names[number][file.part.name] for number, file in enumerate(files)})


def _check_annotations(files: list[File], future: bool) -> None:
    for file in files:
        if future and not file.annotations and file.reads_annotations:
            where = f"{file.part.key}: line {file.reads_annotations}"
            raise UserError(
                f"{where}: reads annotations, and another part has `from __future__ import annotations`, which makes "
                "them strings; use another block"
            )
