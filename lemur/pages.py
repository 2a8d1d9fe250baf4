"""`lemur open`: the page of any finished folder, its own or a generated one."""

import hashlib
from pathlib import Path

from lemur.finished.folders import KINDS, STATE
from lemur.pipeline.stages import BLOCKS, RUN, SNAPSHOT, pipeline_page
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from manifests.folders.frame import Page, manifest_views, write_page
from manifests.folders.manifest import INDEX, Manifest, read_manifest


def find_page(folder: Path) -> Path:
    """Return the index of a folder's page. If it has none, generate it in the cache, with links back to its files.

    Raises: UserError if the folder is not finished, or its tables cannot be read.
    """
    folders = [folder / name for name in (BLOCKS, SNAPSHOT, RUN)] if (folder / STATE).is_file() else []
    for one in folders or [folder]:
        read_manifest(one)
    if all((one / INDEX).is_file() for one in (folder, *folders)):
        return folder / INDEX
    target = cache_folder("pages", hashlib.sha256(bytes(folder.resolve())).hexdigest()[:16])
    try:
        if not folders:
            return _write(folder, target)
        for one in folders:
            _write(one, target / one.name)
        return write_page(folder, pipeline_page(folder), target)
    except (OSError, ValueError, LookupError) as error:
        raise UserError(
            f"{folder}: its page cannot be generated: {error}; `lemur verify` shows what is wrong"
        ) from error


def _write(folder: Path, target: Path) -> Path:
    manifest = read_manifest(folder)
    kind = KINDS.get(manifest.kind)
    page = _plain if kind is None or kind.page is None else kind.page
    return write_page(folder, page(folder, manifest), target)


def _plain(folder: Path, manifest: Manifest) -> Page:
    """Return a page with the manifest of any folder."""
    return Page(
        folder.resolve().name, manifest.kind, "Counts and files, as its manifest states.", manifest_views(manifest)
    )
