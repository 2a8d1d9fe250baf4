"""The commit at which this user last published or fetched a branch: what came after it is somebody else's."""

import hashlib
from pathlib import Path

from lemur_core.files.atomic import atomic_file
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
from manifests.publish.hub import Hub


def last_seen(hub: Hub, repo_id: str, branch: str) -> str | None:
    """The commit, or None where nothing is known: the cache is new, or was cleared."""
    try:
        return _file(hub, repo_id, branch).read_text(encoding="ascii").strip() or None
    except (OSError, ValueError, UserError):
        return None


def see(hub: Hub, repo_id: str, branch: str, commit: str) -> None:
    """Keep it for the next time; a cache that cannot be written only costs that comparison."""
    try:
        with atomic_file(_file(hub, repo_id, branch)) as part:
            part.write_text(f"{commit}\n", encoding="ascii")
    except (OSError, UserError) as error:
        note(f"{repo_id}: commit {commit[:12]} cannot be noted for the next time: {error}")


def _file(hub: Hub, repo_id: str, branch: str) -> Path:
    key = "\n".join((hub.api().endpoint, repo_id, branch))
    return cache_folder("published") / hashlib.sha256(key.encode()).hexdigest()
