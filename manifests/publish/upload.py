"""One commit that makes the repository's files ours, or none: never half of it, never twice."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lemur_core.files.errors import UserError
from manifests.publish.changes import Changes, LocalFile, compare
from manifests.publish.failures import may_pass, status_of, translated
from manifests.publish.hub import DELAYS, Hub
from manifests.publish.remote import KIND, Remote, list_files

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd

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
    for delay in (*DELAYS, None):
        try:
            hub.limit_waiting()
            done = _send(hub, repo_id, branch, remote.head, changes, files, local, message)
        except UserError:
            raise
        except Exception as error:
            if not may_pass(error) and status_of(error) not in _MOVED:
                raise translated(repo_id, error, AGAIN) from error
            first = _first_since(hub, repo_id, branch, remote.head)
            if first is not None:
                if _left(hub, repo_id, first, local):
                    raise UserError(
                        f"{repo_id}: another commit, {first[:12]}, came first; nothing was published;"
                        " run again to compare"
                    ) from error
                return first
            if delay is None or not may_pass(error):
                raise translated(repo_id, error, AGAIN) from error
            hub.wait(repo_id, error, delay)
        else:
            if left := _left(hub, repo_id, done, local):
                names = ", ".join((*left.added, *left.changed, *left.removed)[:3])
                raise UserError(
                    f"{repo_id}: commit {done[:12]} is not what was sent ({left}: {names}); is there a .gitignore?"
                )
            return done
    raise AssertionError("the last try returns or raises")


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
