"""Corpora: pinned sources that are extracted together, with priorities, quotas and download locations."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from lemur_core.files.errors import UsageError, UserError, near_names
from lemur_core.files.foreign import check_plain
from manifests.records import Line, Record, Sha256, first_fault

FOLDER = Path(__file__).parents[1] / "corpora"

Patterns = tuple[Annotated[str, Field(min_length=1)], ...]
Digest = Sha256 | Annotated[tuple[Sha256, ...], Field(min_length=1)]

_PATHS = "files, folders or globs, relative to the root of the source; all when empty"
_SYMBOLS = "patterns over bare or qualified class names ('*Attention', 'timm.layers.*'); all classes when empty"
_DIGEST = "SHA-256 of the source's Python files; several where the builds for different platforms differ"


class Alternative(Record):
    """Another location of the same code."""

    source: Line = Field(min_length=1, description="NAME@VERSION, git+URL@REVISION or a folder")
    digest: Digest | None = Field(default=None, description=_DIGEST)
    paths: Patterns | None = Field(default=None, description="paths there, when they differ")


class CorpusSource(Record):
    """One source of a corpus."""

    name: Line = Field(min_length=1, description="what stands before @ in the ids of its blocks")
    repository: str = Field(default="", description="OWNER/NAME of the repository that the code is developed in")
    source: Line = Field(min_length=1, description="NAME@VERSION, git+URL@REVISION or a folder")
    digest: Digest | None = Field(default=None, description=_DIGEST)
    priority: int = Field(default=1, ge=1, description="the smaller, the earlier a bare name is looked up here")
    paths: Patterns = Field(default=(), description=_PATHS)
    exclude: Patterns = Field(default=(), description="what of `paths` is left out, in the same form")
    symbols: Patterns = Field(default=(), description=_SYMBOLS)
    license: Line = Field(default="NOASSERTION", description="SPDX expression")
    alternative: Alternative | None = None


class Corpus(Record):
    """Sources in the order in which a bare name is looked up, if their priorities are equal."""

    name: Line = Field(min_length=1)
    description: str = ""
    sources: tuple[CorpusSource, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [source.name for source in self.sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two sources are named {twice[0]!r}")
        return self


def corpus_names() -> list[str]:
    """Return the names of the bundled corpora, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load_corpus(name: str) -> Corpus:
    """Load a bundled corpus, or one described by a JSON file.

    Args: name: a bundled name, which wins over a file of that name, or the path of a file.
    Returns: the corpus, validated; none of its sources is opened.
    Raises: UsageError if there is no such corpus; UserError if there is no such file, or it is not a corpus.
    """
    shipped = FOLDER / f"{name}.json"
    path = shipped if name in corpus_names() else Path(name)
    check_plain(path)
    try:
        return Corpus.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        kind = UserError if path.suffix else UsageError
        raise kind(f"{name}: no such corpus; there are {', '.join(corpus_names())}, or name a JSON file") from None
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror}; name a corpus or a JSON file") from error
    except ValidationError as error:
        wrong = str((error.errors()[0]["loc"] or ("",))[-1])
        known = {*Corpus.model_fields, *CorpusSource.model_fields}
        hint = f"; near keys: {', '.join(near)}" if wrong not in known and (near := near_names(wrong, known)) else ""
        raise UserError(f"{path}: not a corpus: {first_fault(error)}{hint}") from None
