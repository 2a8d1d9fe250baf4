"""Fetching a published folder: every file of one commit, as its manifest states it, or nothing."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from lemur_core.files.atomic import atomic_folder, check_free
from lemur_core.files.errors import UserError
from manifests.checks import check_files
from manifests.manifest import FILE_NAME, read_manifest
from manifests.publish.hub import Hub
from manifests.publish.names import check_repository
from manifests.publish.remote import KIND, list_files
from manifests.publish.seen import see
from manifests.publish.staged import ATTRIBUTES

_AGAIN = "what was fetched is kept"


@dataclass(frozen=True, slots=True)
class Pulled:
    """A folder that was fetched."""

    repo_id: str
    commit: str
    folder: Path
    files: int
    bytes: int


def pull(repo_id: str, out: Path, *, revision: str = "main", force: bool = False, hub: Hub | None = None) -> Pulled:
    """Fetch a folder that `publish` put on the Hub, and check every file against its manifest.

    What was fetched stays in the Hub client's cache, so that a rerun goes on where this one stopped.

    Args:
        revision: a branch, a tag or a commit.
        force: replace an older `out`.

    Raises: UserError if there is no such repository or revision, a file is missing or is not what the manifest states,
        or `out` cannot be written; RetryableError if the Hub cannot be reached.
    """
    hub = hub or Hub()
    check_repository(repo_id)
    check_free(out, force=force)
    with hub.session():
        commit = hub.call(repo_id, lambda: _commit_of(hub, repo_id, revision), again=_AGAIN)
        names = hub.call(repo_id, lambda: sorted(list_files(hub, repo_id, commit)), again=_AGAIN)
        if FILE_NAME not in names:
            raise UserError(f"{repo_id}: holds no {FILE_NAME} at {revision}; only what lemur published can be pulled")
        cached = hub.call(repo_id, lambda: _fetch(hub, repo_id, commit), again=_AGAIN)
    try:
        manifest = read_manifest(cached)
    except UserError as error:
        raise UserError(f"{repo_id}: its {FILE_NAME} at {revision} is not one that lemur wrote") from error
    with atomic_folder(out, force=force) as part:
        try:
            size = sum(_copy(cached / name, part / name) for name in names)
        except OSError as error:
            raise UserError(f"{out}: {error.strerror or error}; free space, or choose another --out") from error
        check = check_files(part, manifest)
        if not check.ok:
            raise UserError(
                f"{repo_id}: is not what its manifest states: {check.detail}; take another --revision, or if its owner"
                f" finds it whole, remove {cached.parent.parent} and run again"
            )
    see(hub, repo_id, revision, commit)
    return Pulled(repo_id, commit, out, len(names), size)


def _commit_of(hub: Hub, repo_id: str, revision: str) -> str:
    found = hub.api().repo_info(repo_id, repo_type=KIND, revision=revision, timeout=hub.answer_seconds).sha
    if found is None:
        raise UserError(f"{repo_id}: has no commit at {revision}")
    return found


def _fetch(hub: Hub, repo_id: str, commit: str) -> Path:
    return Path(hub.api().snapshot_download(repo_id, repo_type=KIND, revision=commit, ignore_patterns=[ATTRIBUTES]))


def _copy(source: Path, target: Path) -> int:
    """Copy a file out of the cache, not link it: whoever edits it must not damage the cache."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    return target.stat().st_size
