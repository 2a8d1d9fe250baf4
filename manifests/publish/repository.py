"""The remote repository: its current state, the changes that publishing makes, and the one commit that makes them."""

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.hf_api import RepoFile
from pydantic import ValidationError

from lemur_core.files.atomic import write_text
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
from manifests.folders.manifest import FILE_NAME, Manifest, is_of_page, read_manifest
from manifests.publish.hub import Hub, find_status, is_temporary
from manifests.publish.staged import ATTRIBUTES

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class LocalFile:
    """One local file, with both digests by which the Hub may know it."""

    size: int
    sha256: str
    blob: str  # its SHA-1 as a git blob


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of the repository: a large one by its SHA-256, any other by its SHA-1 as a git blob."""

    size: int
    blob: str
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """Paths, sorted; those in `same` do not change."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    same: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)

    def __str__(self) -> str:
        counts = {"added": self.added, "changed": self.changed, "removed": self.removed, "same": self.same}
        return ", ".join(f"{len(names):,} {label}" for label, names in counts.items())


def local_file(path: Path) -> LocalFile:
    """Return size and digests of a file, which is read once."""
    size = path.stat().st_size
    sha256, blob = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            sha256.update(chunk)
            blob.update(chunk)
    return LocalFile(size, sha256.hexdigest(), blob.hexdigest())


def compare(local: Mapping[str, LocalFile], remote: Mapping[str, RemoteFile]) -> Changes:
    """Return the changes that make the repository's files equal to the local ones.

    Source: https://git-scm.com/book/en/v2/Git-Internals-Git-Objects and
    https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md (which digest names which file)
    """
    both = sorted(local.keys() & remote.keys())
    same = {
        name
        for name in both
        if (here := local[name]).size == (there := remote[name]).size
        and (here.blob == there.blob if there.sha256 is None else here.sha256 == there.sha256)
    }
    return Changes(
        added=tuple(sorted(local.keys() - remote.keys())),
        changed=tuple(name for name in both if name not in same),
        removed=tuple(sorted(remote.keys() - local.keys())),
        same=tuple(name for name in both if name in same),
    )


KIND = "dataset"
_THREADS = 8
_NOTHING_YET = "nothing has been changed yet"
_KEPT = "large files that have arrived are not sent again"
#: Smaller files are sent from memory: the client would read those outside the large-file store twice.
_IN_MEMORY = 16 << 20
_MOVED = (409, 412)  # statuses: another commit came first


@dataclass(frozen=True, slots=True)
class Remote:
    """A repository, and the files at the head of one branch; if the branch does not exist, where it would start."""

    exists: bool
    has_branch: bool = False
    head: str | None = None
    private: bool | None = None
    files: dict[str, RemoteFile] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Repository:
    """A dataset repository of the Hub, and the branch to publish on or to fetch."""

    hub: Hub
    repo_id: str
    branch: str

    def look(self) -> Remote:
        """Return the current state of the repository.

        Raises: UserError if it cannot be read, or the branch is a tag; RetryableError if that may be temporary.
        """
        return self.hub.call(self.repo_id, self._look, again=_NOTHING_YET)

    def _look(self) -> Remote:
        api = self.hub.api()
        try:
            refs = api.list_repo_refs(self.repo_id, repo_type=KIND)
        except RepositoryNotFoundError:
            return Remote(exists=False)
        branches = {item.name: item.target_commit for item in refs.branches}
        tags = {item.name: item.target_commit for item in refs.tags}
        if self.branch in tags and self.branch not in branches:
            raise UserError(f"{self.repo_id}: {self.branch} is a tag, which cannot move; name a branch")
        head = branches.get(self.branch) or branches.get("main")
        files = self.list_files(head) if head else {}
        private = api.repo_info(self.repo_id, repo_type=KIND, timeout=self.hub.answer_seconds).private
        return Remote(True, self.branch in branches, head, private, files, tags)

    def head(self) -> str:
        """Return the commit of the branch, tag or commit to fetch; errors are the client's."""
        about = self.hub.api().repo_info(
            self.repo_id, repo_type=KIND, revision=self.branch, timeout=self.hub.answer_seconds
        )
        if about.sha is None:
            raise UserError(f"{self.repo_id}: has no commit at {self.branch}")
        return about.sha

    def list_files(self, commit: str) -> dict[str, RemoteFile]:
        """Return the files of one commit, except the Hub's own; errors are the client's."""
        listed = self.hub.api().list_repo_tree(
            self.repo_id, recursive=True, expand=False, revision=commit, repo_type=KIND
        )
        return {
            item.path: RemoteFile(item.size, item.blob_id, item.lfs.sha256 if item.lfs else None)
            for item in listed
            if isinstance(item, RepoFile) and item.path != ATTRIBUTES
        }

    def foreign_changes(self, folder: Path, remote: Remote, local: Mapping[str, LocalFile], scratch: Path) -> list[str]:
        """Return changes by somebody else: files of the repository that differ from its own manifest.

        Args: folder: to publish; one of another kind is not replaced. scratch: a folder for files that must be read.
        """
        if not remote.files or remote.head is None:
            return []
        # Without a manifest, it is not known which files are ours, so all of them count as somebody else's.
        if FILE_NAME not in remote.files:
            return [f"it holds no {FILE_NAME}, but {name}" for name in sorted(remote.files)]
        head, api = remote.head, self.hub.api()

        def fetch(name: str) -> bytes:
            path = self.hub.call(
                f"{self.repo_id}: {name}",
                lambda: api.hf_hub_download(self.repo_id, name, repo_type=KIND, revision=head, local_dir=scratch),
                again=_NOTHING_YET,
            )
            return Path(path).read_bytes()

        try:
            manifest = Manifest.model_validate_json(fetch(FILE_NAME))
        except ValidationError:
            return [f"its {FILE_NAME} is not one of ours"]
        own = read_manifest(folder)
        if manifest.kind != own.kind:
            return [f"its {FILE_NAME} is of kind {manifest.kind}, this one of kind {own.kind}"]
        stated = {item.path: item for item in manifest.outputs}
        listed = {name: item for name, item in remote.files.items() if name != FILE_NAME and not is_of_page(name)}
        known = {item.blob: item.sha256 for item in local.values()}

        def is_changed(name: str) -> bool:
            if listed[name].size != stated[name].bytes:
                return True
            # The Hub states a SHA-256 of large files only; an equal git blob here saves the download of a small one.
            digest = listed[name].sha256 or known.get(listed[name].blob)
            return (digest or hashlib.sha256(fetch(name)).hexdigest()) != stated[name].sha256

        both = sorted(stated.keys() & listed.keys())
        with ThreadPoolExecutor(_THREADS) as pool:
            changed = [name for name, differs in zip(both, pool.map(is_changed, both), strict=True) if differs]
        return [
            *(f"{name} is missing" for name in sorted(stated.keys() - listed.keys())),
            *(f"{name} was added" for name in sorted(listed.keys() - stated.keys())),
            *(f"{name} was changed" for name in changed),
        ]

    def commit(
        self, remote: Remote, changes: Changes, files: Mapping[str, Path], local: Mapping[str, LocalFile], message: str
    ) -> str:
        """Commit our files, and return the commit at the head of the branch that has them.

        If a response is lost, the state of the branch shows whether the commit has arrived, before it is sent again.

        Args: remote: the state that `changes` is based on; the commit is refused if the branch has moved since.
        Raises: UserError if a file no longer matches `local`, another commit came first, or the Hub refuses;
            RetryableError if it cannot be reached.
        """

        def attempt() -> str:
            # Recreated for each attempt: the client stores its progress in them.
            gone = [CommitOperationDelete(name, is_folder=False) for name in changes.removed]
            new = [_addition(name, files[name], local[name]) for name in (*changes.added, *changes.changed)]
            try:
                done = (
                    self.hub.api()
                    .create_commit(
                        self.repo_id,
                        [*gone, *new],
                        commit_message=message,
                        repo_type=KIND,
                        revision=self.branch,
                        parent_commit=remote.head,
                    )
                    .oid
                )
            except Exception as error:
                moved = is_temporary(error) or find_status(error) in _MOVED
                first = self._first_since(remote.head) if moved else None
                if first is None:
                    raise
                if self._left(first, local):
                    raise UserError(
                        f"{self.repo_id}: another commit, {first[:12]}, came first; nothing was published;"
                        " run again to compare"
                    ) from error
                return first
            if left := self._left(done, local):
                names = ", ".join((*left.added, *left.changed, *left.removed)[:3])
                raise UserError(
                    f"{self.repo_id}: commit {done[:12]} is not what was sent ({left}: {names}); is there a .gitignore?"
                )
            return done

        return self.hub.call(self.repo_id, attempt, again=_KEPT)

    def _first_since(self, head: str | None) -> str | None:
        """Return the commit right after an older head of the branch, if any: our own, or a conflicting one."""
        history = self.hub.call(
            self.repo_id,
            lambda: self.hub.api().list_repo_commits(self.repo_id, repo_type=KIND, revision=self.branch),
            again=_KEPT,
        )
        commits = [item.commit_id for item in history]
        later = commits[: commits.index(head)] if head in commits else commits
        return later[-1] if later else None

    def _left(self, commit: str, local: Mapping[str, LocalFile]) -> Changes:
        """Return how a commit differs from the local files; the Hub silently drops files named in a `.gitignore`."""
        return compare(local, self.hub.call(self.repo_id, lambda: self.list_files(commit), again=_KEPT))

    def tag(self, name: str, commit: str) -> None:
        """Tag a commit.

        Raises: UserError if the tag exists on another commit.
        """
        what, api = f"{self.repo_id}: tag {name}", self.hub.api()
        self.hub.call(
            what,
            lambda: api.create_tag(self.repo_id, tag=name, revision=commit, repo_type=KIND, exist_ok=True),
            again="the commit exists and will be tagged",
        )
        refs = self.hub.call(
            self.repo_id, lambda: api.list_repo_refs(self.repo_id, repo_type=KIND), again="the tag is checked again"
        )
        tagged = {item.name: item.target_commit for item in refs.tags}.get(name)
        if tagged != commit:
            raise UserError(f"{what} is on another commit, {str(tagged)[:12]}; choose another --tag")

    def last_seen(self) -> str | None:
        """Return the commit that was last published or fetched, or None if unknown: the cache is new."""
        try:
            return self._note().read_text(encoding="ascii").strip() or None
        except (OSError, ValueError, UserError):
            return None

    def see(self, commit: str) -> None:
        """Remember a commit for the next run; if the cache is not writable, only that comparison is lost."""
        try:
            write_text(self._note(), f"{commit}\n")
        except (OSError, UserError) as error:
            note(f"{self.repo_id}: commit {commit[:12]} cannot be remembered for the next run: {error}")

    def _note(self) -> Path:
        key = "\n".join((self.hub.api().endpoint, self.repo_id, self.branch))
        return cache_folder("published") / hashlib.sha256(key.encode()).hexdigest()


def _addition(name: str, path: Path, stated: LocalFile) -> CommitOperationAdd:
    """Return a file to send, after checking its bytes again.

    Raises: UserError if they have changed.
    """
    small = stated.size <= _IN_MEMORY and path.suffix != ".parquet"  # tables are always stored as large files
    addition = CommitOperationAdd(name, path.read_bytes() if small else str(path))
    if addition.upload_info.sha256.hex() != stated.sha256:
        raise UserError(f"{path}: was changed during publishing; nothing was published, run again")
    return addition
