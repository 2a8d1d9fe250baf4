"""A repository of the Hub: its state, what differs from a folder here, and the one commit that makes both the same."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.hf_api import RepoFile

from lemur_core.files.errors import UserError
from manifests.publish.hub import Hub
from manifests.publish.staged import ATTRIBUTES, IGNORES

KIND = "dataset"
_CHUNK = 1 << 20
_NOTHING_YET = "nothing has been changed yet"
_KEPT = "large files that have arrived are not sent again"
#: Smaller files are sent from memory: the client would read those outside the large-file store twice.
_IN_MEMORY = 16 << 20
#: The first line of our commits; `Changes` follows.
_TITLE = re.compile(r"Publish (?P<kind>[\w-]+): \d")


@dataclass(frozen=True, slots=True)
class LocalFile:
    """One file of a folder, with both digests by which the Hub may know it."""

    path: Path
    size: int
    sha256: str
    blob: str  # its SHA-1 as a git blob

    @classmethod
    def read(cls, path: Path) -> "LocalFile":
        """Return size and digests of a file, which is read once."""
        size = path.stat().st_size
        sha256, blob = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                sha256.update(chunk)
                blob.update(chunk)
        return cls(path, size, sha256.hexdigest(), blob.hexdigest())


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


def compare(local: Mapping[str, LocalFile], remote: Mapping[str, RepoFile]) -> Changes:
    """Return the changes that make the files of the Hub equal to the local ones.

    Source: https://git-scm.com/book/en/v2/Git-Internals-Git-Objects and
    https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md (which digest names which file)
    """

    def is_same(name: str) -> bool:
        here, there = local[name], remote[name]
        return here.sha256 == there.lfs.sha256 if there.lfs else here.blob == there.blob_id

    both = sorted(local.keys() & remote.keys())
    return Changes(
        added=tuple(sorted(local.keys() - remote.keys())),
        changed=tuple(name for name in both if not is_same(name)),
        removed=tuple(sorted(remote.keys() - local.keys())),
        same=tuple(name for name in both if is_same(name)),
    )


@dataclass(frozen=True, slots=True)
class Remote:
    """A repository, and the files at the head of one branch; if the branch does not exist, where it would start."""

    exists: bool
    has_branch: bool = False
    head: str | None = None
    private: bool | None = None
    files: dict[str, RepoFile] = field(default_factory=dict)
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

    def list_files(self, commit: str) -> dict[str, RepoFile]:
        """Return the files of one commit, except the Hub's own; errors are the client's."""
        listed = self.hub.api().list_repo_tree(self.repo_id, recursive=True, revision=commit, repo_type=KIND)
        return {item.path: item for item in listed if isinstance(item, RepoFile) and item.path != ATTRIBUTES}

    def find_conflict(self, remote: Remote, kind: str) -> str | None:
        """Return why publishing a folder of a kind would overwrite what somebody else did; None if it would not.

        The last commit must be one of lemur, for a folder of the same kind.
        """
        head, api = remote.head, self.hub.api()
        if not remote.files or head is None:
            return None
        (title, *_) = self.hub.call(
            self.repo_id,
            lambda: [item.title for item in api.list_repo_commits(self.repo_id, repo_type=KIND, revision=head)],
            again=_NOTHING_YET,
        )
        ours = _TITLE.match(title)
        if ours is None:
            return f"commit {head[:12]} there, {title!r}, is not one of lemur"
        if ours["kind"] != kind:
            return f"it holds a folder of kind {ours['kind']}, this one is of kind {kind}"
        return None

    def prepare(self, remote: Remote, *, private: bool) -> Remote:
        """Create the repository and the branch where they do not exist, and return the state with the branch."""
        api, again = self.hub.api(), "what exists already is kept"
        if not remote.exists:
            self.hub.call(
                self.repo_id,
                lambda: api.create_repo(self.repo_id, repo_type=KIND, private=private or None, exist_ok=True),
                again=again,
            )
            remote = self.look()
            self.check_private(remote, private=private)  # somebody else may have created it meanwhile
            if remote.files:
                raise UserError(f"{self.repo_id}: somebody else created it meanwhile; run again to compare")
        if not remote.has_branch and (head := remote.head) is not None:
            self.hub.call(
                self.repo_id,
                lambda: api.create_branch(
                    self.repo_id, branch=self.branch, revision=head, repo_type=KIND, exist_ok=True
                ),
                again=again,
            )
        return remote

    def check_private(self, remote: Remote, *, private: bool) -> None:
        """Raise UserError if the repository should be private, and is not."""
        if private and remote.private is False:
            raise UserError(f"{self.repo_id}: is public already; make it private on the Hub first, or omit --private")

    def commit(self, remote: Remote, changes: Changes, local: Mapping[str, LocalFile], kind: str) -> str:
        """Make the changes in one commit, and return it.

        The Hub refuses the commit if the branch has moved from `remote.head`, so that a further attempt is safe. If it
        fails in any way, the head of the branch tells whether it has arrived.

        Raises: UserError if a file no longer matches `local`, another commit came first, or the Hub refuses;
            RetryableError if it cannot be reached.
        """

        def attempt() -> str:
            # Made anew for each attempt: the client stores its progress in them.
            operations: list[CommitOperationAdd | CommitOperationDelete] = [
                *(CommitOperationDelete(name, is_folder=False) for name in changes.removed),
                *(_add(name, local[name]) for name in (*changes.added, *changes.changed)),
            ]
            try:
                done = self.hub.api().create_commit(
                    self.repo_id,
                    operations,
                    commit_message=f"Publish {kind}: {changes}",
                    repo_type=KIND,
                    revision=self.branch,
                    parent_commit=remote.head,
                )
            except Exception as error:
                head = self.look().head
                if head in (None, remote.head):
                    raise
                if compare(local, self.list_files(str(head))):
                    raise UserError(
                        f"{self.repo_id}: another commit, {str(head)[:12]}, came in between; run again to compare"
                    ) from error
                return str(head)
            return done.oid

        commit = self.hub.call(self.repo_id, attempt, again=_KEPT)
        # The Hub leaves out files that a `.gitignore` names, and says nothing.
        left = compare(local, self.hub.call(self.repo_id, lambda: self.list_files(commit), again=_KEPT))
        if left:
            names = ", ".join((*left.added, *left.changed, *left.removed)[:3])
            raise UserError(
                f"{self.repo_id}: commit {commit[:12]} is not what was sent ({left}: {names}); is there a {IGNORES}?"
            )
        return commit

    def tag(self, name: str, commit: str) -> None:
        """Tag a commit. Raises: UserError if the tag exists on another commit."""
        what, api = f"{self.repo_id}: tag {name}", self.hub.api()
        self.hub.call(
            what,
            lambda: api.create_tag(self.repo_id, tag=name, revision=commit, repo_type=KIND, exist_ok=True),
            again="the commit exists and will be tagged",
        )
        tagged = self.look().tags.get(name)
        if tagged != commit:
            raise UserError(f"{what} is on another commit, {str(tagged)[:12]}; choose another --tag")


def _add(name: str, file: LocalFile) -> CommitOperationAdd:
    """Return a file to send, after checking its bytes again. Raises: UserError if they have changed."""
    in_memory = file.size <= _IN_MEMORY and file.path.suffix != ".parquet"  # tables are always stored as large files
    addition = CommitOperationAdd(name, file.path.read_bytes() if in_memory else str(file.path))
    if addition.upload_info.sha256.hex() != file.sha256:
        raise UserError(f"{file.path}: was changed during publishing; nothing was published, run again")
    return addition
