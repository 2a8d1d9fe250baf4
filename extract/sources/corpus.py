"""All sources of a corpus, opened."""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from extract.sources.model import Source
from extract.sources.opening import open_source
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note

if TYPE_CHECKING:  # Pydantic and Arrow take longer to load than most sources
    from manifests.corpus import Corpus, CorpusSource

#: Sources fetched at once: most of the time is spent waiting for servers.
_AT_ONCE = 4


def open_corpus(corpus: "Corpus", names: Collection[str] = ()) -> tuple[Source, ...]:
    """The sources of a corpus, in its order; of those that cannot be had, the alternatives.

    Args: names: those to open, by name or repository; all when empty.
    Raises: UserError if a name is unknown, or neither a source nor its alternative can be opened.
    """
    chosen = _choose(corpus, names)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return tuple(pool.map(_open, chosen))


def open_available(
    corpus: "Corpus", names: Collection[str] = ()
) -> tuple[tuple[Source, ...], tuple[tuple[str, str], ...]]:
    """The sources of a corpus that can be had, and the (name, reason) of those that cannot.

    Raises: UserError if a name is unknown.
    """
    chosen = _choose(corpus, names)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = list(pool.map(_try_open, chosen))
    opened = tuple(result for result in results if isinstance(result, Source))
    return opened, tuple((e.name, str(r)) for e, r in zip(chosen, results, strict=True) if isinstance(r, UserError))


def _try_open(entry: "CorpusSource") -> Source | UserError:
    try:
        return _open(entry)
    except UserError as error:
        return error


def _choose(corpus: "Corpus", names: Collection[str]) -> "list[CorpusSource]":
    known = {alias for entry in corpus.sources for alias in (entry.name, entry.repository)} - {""}
    unknown = sorted(set(names) - known)
    if unknown:
        raise UserError(
            f"corpus {corpus.name}: no source {unknown[0]!r}; there are "
            f"{', '.join(entry.name for entry in corpus.sources)}"
        )
    return [entry for entry in corpus.sources if not names or entry.name in names or entry.repository in names]


def _open(entry: "CorpusSource") -> Source:
    try:
        return _open_at(entry, entry.source, entry.digest, entry.paths)
    except UserError as error:
        other = entry.alternative
        if other is None:
            raise
        note(f"{error}; taking {other.source} instead")
        try:
            return _open_at(entry, other.source, other.digest, entry.paths if other.paths is None else other.paths)
        except UserError as second:
            raise UserError(f"{entry.name}: neither of its sources can be opened: {error}; {second}") from second


def _open_at(
    entry: "CorpusSource", source: str, digest: str | Collection[str] | None, paths: tuple[str, ...]
) -> Source:
    return open_source(
        source, name=entry.name, digest=digest, priority=entry.priority, paths=paths, exclude=entry.exclude
    )
