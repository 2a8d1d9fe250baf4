"""Which of the discovered classes become blocks: by name, source, path, pattern and position."""

import difflib
import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from extract.discover import Found
from extract.sources.model import matches
from lemur_core.files.errors import UserError


@dataclass(frozen=True, slots=True)
class Selection:
    """What was asked for. Everything is selected where nothing is asked."""

    names: tuple[str, ...] = ()  # bare names, qualified names or block ids
    repositories: tuple[str, ...] = ()  # names of sources, with or without a version
    paths: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()  # patterns over bare or qualified names
    limit: int | None = None
    start_from: str | None = None


@dataclass(frozen=True, slots=True)
class Selected:
    """The classes chosen, names that nothing has, and for bare names the others that have them too."""

    found: tuple[Found, ...]
    missing: tuple[str, ...]
    others: dict[str, tuple[str, ...]]


def select(found: Sequence[Found], wanted: Selection) -> Selected:
    """Choose among the classes, given by priority of their source, then path and line.

    Raises: UserError if `start_from` is unknown, a pattern or source matches nothing, or no name is found.
    """
    chosen = [item for item in found if _in_scope(item, wanted)]
    if found and not chosen:
        raise UserError("no class matches the given --repo, --path and --symbol; leave one of them out")
    missing: list[str] = []
    others: dict[str, tuple[str, ...]] = {}
    if wanted.names:
        chosen, missing, others = _by_name(chosen, wanted.names)
        if not chosen:
            near = _near(wanted.names[0], found)
            raise UserError(f"{wanted.names[0]}: no class of that name in the sources{near}")
    if wanted.start_from is not None:
        position = next((n for n, item in enumerate(chosen) if _answers(item, wanted.start_from)), None)
        if position is None:
            raise UserError(
                f"--start-from {wanted.start_from}: not among the classes{_near(wanted.start_from, chosen)}"
            )
        chosen = chosen[position:]
    return Selected(tuple(chosen[: wanted.limit]), tuple(missing), others)


def _in_scope(item: Found, wanted: Selection) -> bool:
    source = item.module.source.name
    if wanted.repositories and not {source, source.partition("@")[0]} & set(wanted.repositories):
        return False
    if wanted.paths and not matches(wanted.paths, item.module.file.path):
        return False
    names = (item.name, item.qualname)
    return not wanted.symbols or any(fnmatch.fnmatchcase(n, pattern) for pattern in wanted.symbols for n in names)


def _by_name(found: Iterable[Found], names: Sequence[str]) -> tuple[list[Found], list[str], dict[str, tuple[str, ...]]]:
    by_key: dict[str, list[Found]] = {}
    for item in found:
        for key in dict.fromkeys((item.name, item.qualname, item.block)):
            by_key.setdefault(key, []).append(item)
    chosen: dict[str, Found] = {}
    missing = []
    others = {}
    for name in dict.fromkeys(names):
        have = by_key.get(name, [])
        if not have:
            missing.append(name)
            continue
        chosen.setdefault(have[0].block, have[0])
        if len(have) > 1:
            others[name] = tuple(item.block for item in have[1:])
    return list(chosen.values()), missing, others


def _answers(item: Found, name: str) -> bool:
    return name in (item.name, item.qualname, item.block)


def _near(name: str, found: Iterable[Found]) -> str:
    near = difflib.get_close_matches(name.rpartition(".")[2], sorted({item.name for item in found}), n=3)
    return f"; near: {', '.join(near)}" if near else ""
