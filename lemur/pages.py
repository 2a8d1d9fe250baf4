"""`lemur open`: the page of any finished folder, its own or a generated one."""

import hashlib
from pathlib import Path

from lemur.demo import SNAPSHOT
from lemur.folders import DEMO, KINDS
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from manifests.folders.frame import Page, has_page, manifest_views, write_page
from manifests.folders.manifest import INDEX, read_manifest
from manifests.folders.tables import CHECK_ERRORS, describe


def find_page(folder: Path) -> Path:
    """Return the index of a folder's page: its own if it is as we write it, else one in the cache, which leads back.

    So, whoever made the folder, nothing of it is run: only our script, and data that it shows as text. Of a `lemur
    demo` the snapshot is shown.

    Raises: UserError if the folder is not finished, or its tables cannot be read.
    """
    if (folder / DEMO).is_file():
        folder = folder / SNAPSHOT
    # By the path: two folders of one name have two pages.
    target = cache_folder("pages", hashlib.sha256(bytes(folder.resolve())).hexdigest()[:16])
    try:  # twice: what a page lists is read as it is written
        ours = has_page(folder, _make_page(folder))
        return folder / INDEX if ours else write_page(folder, _make_page(folder), target)
    except CHECK_ERRORS as error:
        raise UserError(
            f"{folder}: its page cannot be generated: {describe(error)}; `lemur verify` shows what is wrong"
        ) from error


def _make_page(folder: Path) -> Page:
    manifest = read_manifest(folder)
    kind = KINDS.get(manifest.kind)
    if kind is None or kind.page is None:
        lead = "Counts and files, as its manifest states."
        return Page(folder.resolve().name, manifest.kind, lead, manifest_views(manifest))
    return kind.page(folder, manifest)
