"""The names that the parts' globals have in the module."""

from train.inline.mentions import Role
from train.inline.reading import File


def choose_names(files: list[File], colour: dict[tuple[int, str], int]) -> list[dict[str, str]]:
    """For each part, its globals' names in the module: their own unless an earlier part has given it away.

    Nor may a global have a name that another part reads and does not bind (a built-in one).
    """
    reserved = {mention.name for file in files for unit in file.units for mention in unit.mentions} & _unbound(files)
    words = set().union(*(file.words for file in files))
    chosen: dict[int, str] = {}
    taken: set[str] = set()
    names: list[dict[str, str]] = []
    for number, file in enumerate(files):
        own: dict[str, str] = {}
        for name in _in_order(file):
            shade = colour[number, name]
            if shade not in chosen:
                free = name not in taken and name not in reserved
                chosen[shade] = name if free else _fresh(name, taken, words)
                taken.add(chosen[shade])
            own[name] = chosen[shade]
        names.append(own)
    return names


def _unbound(files: list[File]) -> set[str]:
    """Names that some part reads as globals and does not bind."""
    found = set()
    for file in files:
        bound = file.bound
        found |= {m.name for unit in file.units for m in unit.mentions if m.role is not Role.BIND} - bound
    return found


def _in_order(file: File) -> list[str]:
    """A part's globals, its class first, then as they are bound."""
    names = [m.name for unit in file.units for m in unit.mentions if m.role is Role.BIND]
    return list(dict.fromkeys([file.part.name, *names]))


def _fresh(name: str, taken: set[str], words: set[str]) -> str:
    number = 2
    while f"{name}_{number}" in taken or f"{name}_{number}" in words:
        number += 1
    return f"{name}_{number}"
