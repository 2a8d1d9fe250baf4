"""`lemur open`: the page of any finished folder, its own or a generated one."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from lemur.demo import BLOCKS, RUN, SNAPSHOT, demo_page
from lemur.folders import DEMO, KINDS
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from manifests.folders.frame import Page, has_page, manifest_views, write_page
from manifests.folders.manifest import INDEX, read_manifest
from manifests.folders.tables import CHECK_ERRORS, describe


def find_page(folder: Path) -> Path:
    """Return the index of a folder's page: its own if it is as we write it, else one in the cache, which leads back.

    So, whoever made the folder, nothing of it is run: only our script, and data that it shows as text.

    Raises: UserError if the folder is not finished, or its tables cannot be read.
    """
    # By the path: two folders of one name have two pages.
    target = cache_folder("pages", hashlib.sha256(bytes(folder.resolve())).hexdigest()[:16])
    try:
        # All or none: the page of a run links to those of its folders.
        if all(has_page(part, page) for part, page in _pages(folder)):
            return folder / INDEX
        for part, page in _pages(folder):
            write_page(part, page, target / part.relative_to(folder))
        return target / INDEX
    except CHECK_ERRORS as error:
        raise UserError(
            f"{folder}: its page cannot be generated: {describe(error)}; `lemur verify` shows what is wrong"
        ) from error


def _pages(folder: Path) -> Iterator[tuple[Path, Page]]:
    """Yield the finished folders in a folder, or itself, with their pages; those of a `lemur demo` before its own."""
    is_demo = (folder / DEMO).is_file()
    for part in [folder / name for name in (BLOCKS, SNAPSHOT, RUN)] if is_demo else [folder]:
        manifest = read_manifest(part)
        kind = KINDS.get(manifest.kind)
        if kind is None or kind.page is None:
            views, lead = manifest_views(manifest), "Counts and files, as its manifest states."
            yield part, Page(part.resolve().name, manifest.kind, lead, views)
        else:
            yield part, kind.page(part, manifest)
    if is_demo:
        yield folder, demo_page(folder)
