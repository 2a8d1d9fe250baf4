"""The repository as it is: branches, tags, files, and whether they are what its own manifest states."""

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from lemur_core.files.errors import UserError
from manifests.manifest import FILE_NAME, Manifest, Output
from manifests.publish.changes import LocalFile, RemoteFile
from manifests.publish.hub import Hub
from manifests.publish.staged import ATTRIBUTES

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
