"""The Python interface to finished folders: their manifests, rows and items, and the Hub."""

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lemur_core.files import Json
from lemur_core.files.atomic import PathLike
from lemur_core.files.errors import missing_name
from lemur_core.files.progress import hide_progress
from manifests.folders.kinds import Check, FoundItem
from manifests.folders.manifest import Manifest, read_manifest
from manifests.folders.tables import iterate_rows, reading

if TYPE_CHECKING:
    from manifests.publishing.publish import PublishReport

_TABLES = (".parquet", ".jsonl")


@dataclass(frozen=True, repr=False)
class FinishedFolder:
    """Give access to a finished folder of any kind: its manifest, and its tables as rows.

    Attributes:
        folder: the folder.
        manifest: how it was created, with counts and digests.

    Example:
        ```python
        from manifests import open_folder

        finished = open_folder("snapshot")
        print(finished.kind, sorted(finished.tables))
        print(next(finished.rows("decisions"))["reason"])
        assert all(check.ok for check in finished.verify())
        ```
    """

    folder: Path
    manifest: Manifest = field(compare=False)

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"<FinishedFolder {self.folder} {self.kind}: {', '.join(self.tables) or 'no tables'}>"

    @property
    def kind(self) -> str:
        """Return the kind of the folder: `extraction`, `snapshot`, `run`, ..."""
        return self.manifest.kind

    @cached_property
    def tables(self) -> dict[str, tuple[Path, ...]]:
        """Return the files of each table, by its name.

        A Parquet table is named after its folder below `data`, or after its file without the suffix (`decisions`); a
        file of JSON lines keeps its suffix (`specs.jsonl`), because its rows may be in a Parquet table, too.
        """
        tables: dict[str, list[Path]] = {}
        for item in self.manifest.outputs:
            path = Path(item.path)
            if path.suffix in _TABLES:
                of_folder = path.parts[0] == "data" and len(path.parts) > 2
                name = path.parts[1] if of_folder else path.as_posix().removesuffix(".parquet")
                tables.setdefault(name, []).append(self.folder / path)
        return {name: tuple(paths) for name, paths in tables.items()}

    def rows(self, table: str) -> Iterator[Json]:
        """Yield the rows of a table in order.

        Args:
            table: one of the names of `tables`.

        Raises:
            UserError: if there is no such table (then it is a KeyError, too), or it cannot be read.
        """
        if table not in self.tables:
            raise missing_name(f"{self.folder}: has no table {table!r}", table, sorted(self.tables))
        return self._read_rows(table)

    def show(self, name: str, *parents: PathLike) -> FoundItem:
        """Return what an item is, why it was kept, removed or failed, and where it is from.

        Args:
            name: of the item, an id or its beginning; `net` for the network of a training run.
            parents: the folders that this one was built from, to follow the item into.

        Raises:
            UserError: if nothing has that name (then it is a KeyError, too).
        """
        found: FoundItem = load_function("show")(name, [self.folder, *map(Path, parents)])
        return found

    def verify(self, *, jobs: int | None = None) -> tuple[Check, ...]:
        """Read the folder again, and check its digests, records, derived tables and guarantees.

        Args: jobs: worker processes; all cores by default.
        """
        with hide_progress():
            return tuple(load_function("verify")(self.folder, jobs=jobs))

    def _read_rows(self, table: str) -> Iterator[Json]:
        with reading(self.folder, self.kind):
            for path in self.tables[table]:
                if path.suffix == ".jsonl":
                    with path.open(encoding="utf-8") as lines:
                        yield from map(json.loads, lines)
                else:
                    yield from iterate_rows(path)


def load_function(name: str) -> Callable[..., Any]:
    """Return a function over all kinds of folder: they are defined above, and the installed distribution names them."""
    (point,) = entry_points(group="lemur_curator.folders", name=name)
    function: Callable[..., Any] = point.load()
    return function


def open_folder(folder: PathLike) -> FinishedFolder:
    """Open a finished folder of any kind, for its manifest and its rows.

    Args:
        folder: a folder that any command wrote.

    Returns:
        The folder; no row is read yet.

    Raises:
        UserError: if the folder has no valid manifest.

    Example:
        ```python
        from manifests import open_folder

        blocks = [row["block"] for row in open_folder("blocks").rows("blocks")]
        ```
    """
    return FinishedFolder(Path(folder), read_manifest(folder))


def publish(
    folder: PathLike,
    *,
    repo_id: str,
    dry_run: bool = False,
    revision: str = "main",
    private: bool = False,
    force: bool = False,
    not_secret: Collection[str] = (),
    page: bool = False,
) -> "PublishReport":
    """Put a finished folder on the Hugging Face Hub, in one commit or not at all, without a confirmation prompt.

    Args:
        folder: a finished folder; one that fails a check is not published.
        repo_id: `OWNER/NAME` of the dataset repository.
        dry_run: change nothing; the result states what would change.
        revision: the branch.
        private: make a new repository private.
        force: overwrite what somebody else changed there.
        not_secret: digests of findings that only look like secrets.
        page: publish the page of the folder, too.

    Returns:
        What changed, or would change: files, the commit, and codes that were withheld for their license.

    Raises:
        UserError: if a check fails, the folder holds something that must not be published, or the Hub refuses.
        RetryableError: if the Hub cannot be reached.

    Example:
        ```python
        from manifests import publish

        plan = publish("snapshot", repo_id="OWNER/NAME", dry_run=True)
        print(plan.changes, plan.withheld)
        ```
    """
    # The Hub's client takes 0.4 s to import; reading folders does not need it.
    from manifests.publishing.publish import publish as publish_folder

    with hide_progress():
        return publish_folder(
            Path(folder),
            repo_id,
            verify=load_function("verify"),
            revision=revision,
            private=private,
            force=force,
            dry_run=dry_run,
            not_secret=not_secret,
            page=page,
        )


def pull(repo_id: str, *, out: PathLike, revision: str = "main", force: bool = False) -> FinishedFolder:
    """Fetch a published folder from the Hugging Face Hub, and check every file against its manifest.

    Args:
        repo_id: `OWNER/NAME` of the dataset repository.
        out: the folder to write; it is written completely or not at all.
        revision: a branch, a tag or a commit.
        force: replace a folder that exists.

    Returns:
        The folder.

    Raises:
        UserError: if there is no such repository, or a file is not the one that the manifest states.
        RetryableError: if the Hub cannot be reached.

    Example:
        ```python
        from manifests import pull

        finished = pull("OWNER/NAME", out="fetched")
        ```
    """
    from manifests.publishing.publish import pull as pull_folder  # as above

    with hide_progress():
        pull_folder(repo_id, Path(out), revision=revision, force=force)
    return open_folder(out)
