"""The repository as it is, what publishing would change there, and the one commit that does."""

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from lemur_core.files.errors import UserError
from manifests.manifest import FILE_NAME, Manifest, Output
from manifests.publish.hub import Hub, may_pass, status_of
from manifests.publish.staged import ATTRIBUTES

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd


_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class LocalFile:
    """One file here, with both of the digests by which the Hub may know it."""

    size: int
    sha256: str
    blob: str  # the SHA-1 that git gives it


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of the repository: a large one by its SHA-256, another by the SHA-1 that git gives it."""

    size: int
    blob: str
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """Paths, sorted; `same` are left as they are."""

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
    """Size and digests of a file, read once."""
    size = path.stat().st_size
    sha256, blob = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            sha256.update(chunk)
            blob.update(chunk)
    return LocalFile(size, sha256.hexdigest(), blob.hexdigest())


def compare(local: Mapping[str, LocalFile], remote: Mapping[str, RemoteFile]) -> Changes:
    """What makes the repository's files those that are here.

    Source: https://git-scm.com/book/en/v2/Git-Internals-Git-Objects and
    https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md (which digest names which file)
    """
    both = sorted(local.keys() & remote.keys())
    same = {name for name in both if is_same(local[name], remote[name])}
    return Changes(
        added=tuple(sorted(local.keys() - remote.keys())),
        changed=tuple(name for name in both if name not in same),
        removed=tuple(sorted(remote.keys() - local.keys())),
        same=tuple(name for name in both if name in same),
    )


def is_same(local: LocalFile, remote: RemoteFile) -> bool:
    """Whether both are the same bytes."""
    digest = local.blob == remote.blob if remote.sha256 is None else local.sha256 == remote.sha256
    return digest and local.size == remote.size


KIND = "dataset"
_THREADS = 8
_AGAIN = "nothing has been changed yet"


@dataclass(frozen=True, slots=True)
class Remote:
    """A repository, and the files at the head of one branch; of a branch that is missing, where it would begin."""

    exists: bool
    has_branch: bool = False
    head: str | None = None
    private: bool | None = None
    files: dict[str, RemoteFile] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


def look(hub: Hub, repo_id: str, branch: str) -> Remote:
    """The repository as it is now.

    Raises: UserError if it cannot be looked at, or the branch is a tag; RetryableError if that may pass.
    """
    return hub.call(repo_id, lambda: _look(hub, repo_id, branch), again=_AGAIN)


def _look(hub: Hub, repo_id: str, branch: str) -> Remote:
    from huggingface_hub.errors import RepositoryNotFoundError

    api = hub.api()
    try:
        refs = api.list_repo_refs(repo_id, repo_type=KIND)
    except RepositoryNotFoundError:
        return Remote(exists=False)
    branches = {item.name: item.target_commit for item in refs.branches}
    tags = {item.name: item.target_commit for item in refs.tags}
    if branch in tags and branch not in branches:
        raise UserError(f"{repo_id}: {branch} is a tag, which stays where it is; name a branch")
    head = branches.get(branch) or branches.get("main")
    files = list_files(hub, repo_id, head) if head else {}
    private = api.repo_info(repo_id, repo_type=KIND, timeout=hub.answer_seconds).private
    return Remote(True, branch in branches, head, private, files, tags)


def list_files(hub: Hub, repo_id: str, commit: str) -> dict[str, RemoteFile]:
    """The files of one commit, but for the Hub's own; errors are the client's."""
    from huggingface_hub.hf_api import RepoFile

    tree = hub.api().list_repo_tree(repo_id, recursive=True, expand=False, revision=commit, repo_type=KIND)
    return {
        item.path: RemoteFile(item.size, item.blob_id, item.lfs.sha256 if item.lfs else None)
        for item in tree
        if isinstance(item, RepoFile) and item.path != ATTRIBUTES
    }


def foreign_changes(
    hub: Hub, repo_id: str, kind: str, remote: Remote, local: Mapping[str, LocalFile], scratch: Path
) -> list[str]:
    """What somebody else did to the repository: where its files are not those that its own manifest states.

    Args: kind: of the folder to publish; one of another kind is not replaced. scratch: for files that must be read.
    """
    if not remote.files or remote.head is None:
        return []
    if FILE_NAME not in remote.files:
        return [f"it holds no {FILE_NAME}, but {name}" for name in sorted(remote.files)]
    head = remote.head

    def fetch(name: str) -> bytes:
        path = hub.api().hf_hub_download(repo_id, name, repo_type=KIND, revision=head, local_dir=scratch)
        return Path(path).read_bytes()

    def fetched(name: str) -> bytes:
        return hub.call(f"{repo_id}: {name}", lambda: fetch(name), again=_AGAIN)

    try:
        manifest = Manifest.model_validate_json(fetched(FILE_NAME))
    except ValidationError:
        return [f"its {FILE_NAME} is not one of ours"]
    if manifest.kind != kind:
        return [f"its {FILE_NAME} is of kind {manifest.kind}, this one of kind {kind}"]
    stated = {item.path: item for item in manifest.outputs}
    listed = {name: item for name, item in remote.files.items() if name != FILE_NAME}
    wrong = [f"{name} is missing" for name in sorted(stated.keys() - listed.keys())]
    wrong += [f"{name} was added" for name in sorted(listed.keys() - stated.keys())]
    known = {item.blob: item.sha256 for item in local.values()}
    unknown = []
    for name in sorted(stated.keys() & listed.keys()):
        digest = listed[name].sha256 or known.get(listed[name].blob)
        if listed[name].size != stated[name].bytes or (digest is not None and digest != stated[name].sha256):
            wrong.append(f"{name} was changed")
        elif digest is None:
            unknown.append(stated[name])
    with ThreadPoolExecutor(_THREADS) as pool:
        digests = pool.map(lambda item: hashlib.sha256(fetched(item.path)).hexdigest(), unknown)
        wrong += list(_differing(unknown, digests))
    return wrong


def _differing(items: list[Output], digests: Iterator[str]) -> Iterator[str]:
    for item, digest in zip(items, digests, strict=True):
        if digest != item.sha256:
            yield f"{item.path} was changed"


#: Smaller files are sent from memory: the client reads what does not go to the large-file store a second time.
_IN_MEMORY = 16 << 20
_MOVED = (409, 412)  # statuses: another commit has come first
AGAIN = "large files that have arrived are not sent again"


def commit(
    hub: Hub,
    repo_id: str,
    branch: str,
    remote: Remote,
    changes: Changes,
    files: Mapping[str, Path],
    local: Mapping[str, LocalFile],
    message: str,
) -> str:
    """The commit at the head of the branch that has our files.

    When an answer is lost, the branch tells whether the commit has arrived, before it is sent again.

    Args: remote: what `changes` was worked out from; the commit is refused if the branch has moved since.
    Raises: UserError if a file is no longer what `local` says, another commit came first, or the Hub refuses;
        RetryableError if it cannot be reached.
    """

    def attempt() -> str:
        try:
            done = _send(hub, repo_id, branch, remote.head, changes, files, local, message)
        except UserError:
            raise
        except Exception as error:
            moved = may_pass(error) or status_of(error) in _MOVED
            first = _first_since(hub, repo_id, branch, remote.head) if moved else None
            if first is None:
                raise
            if _left(hub, repo_id, first, local):
                raise UserError(
                    f"{repo_id}: another commit, {first[:12]}, came first; nothing was published; run again to compare"
                ) from error
            return first
        if left := _left(hub, repo_id, done, local):
            names = ", ".join((*left.added, *left.changed, *left.removed)[:3])
            raise UserError(
                f"{repo_id}: commit {done[:12]} is not what was sent ({left}: {names}); is there a .gitignore?"
            )
        return done

    return hub.call(repo_id, attempt, again=AGAIN)


def _first_since(hub: Hub, repo_id: str, branch: str, head: str | None) -> str | None:
    """The commit that came right after an older head of the branch, if any did: our own, or the one in our way."""
    commits = hub.call(
        repo_id,
        lambda: [item.commit_id for item in hub.api().list_repo_commits(repo_id, repo_type=KIND, revision=branch)],
        again=AGAIN,
    )
    later = commits[: commits.index(head)] if head in commits else commits
    return later[-1] if later else None


def _send(
    hub: Hub,
    repo_id: str,
    branch: str,
    parent: str | None,
    changes: Changes,
    files: Mapping[str, Path],
    local: Mapping[str, LocalFile],
    message: str,
) -> str:
    from huggingface_hub import CommitOperationDelete

    # Made anew for each try: the client notes in them how far it has come.
    gone = [CommitOperationDelete(name, is_folder=False) for name in changes.removed]
    new = [_addition(name, files[name], local[name]) for name in (*changes.added, *changes.changed)]
    done = hub.api().create_commit(
        repo_id, [*gone, *new], commit_message=message, repo_type=KIND, revision=branch, parent_commit=parent
    )
    return done.oid


def _addition(name: str, path: Path, stated: LocalFile) -> "CommitOperationAdd":
    """A file to send, of the very bytes that were checked.

    Raises: UserError if it has others now.
    """
    from huggingface_hub import CommitOperationAdd

    small = stated.size <= _IN_MEMORY and path.suffix != ".parquet"  # tables are large files whatever their size
    made = CommitOperationAdd(name, path.read_bytes() if small else str(path))
    if made.upload_info.sha256.hex() != stated.sha256:
        raise UserError(f"{path}: was written anew while it was to be published; nothing was published, run again")
    return made


def _left(hub: Hub, repo_id: str, commit: str, local: Mapping[str, LocalFile]) -> Changes:
    """How a commit differs from what is here; the Hub leaves out what a `.gitignore` there names, and says nothing."""
    return compare(local, hub.call(repo_id, lambda: list_files(hub, repo_id, commit), again=AGAIN))
