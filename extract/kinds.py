"""The kind of folder that `lemur extract` writes: how it is made again, its laws, and what is shown of its blocks."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from extract.folder.derive import derive
from extract.folder.page import extraction_page
from extract.folder.verify import check_extraction
from extract.model.blocks import find, find_code
from manifests.folders.kinds import EXTRACTION, ListedItem, verify_folder
from manifests.records import Block


def list_blocks(folder: Path) -> Iterator[ListedItem]:
    """Yield the blocks, in the order of their table."""
    for row in EXTRACTION.rows(folder, Block, ["block", "name", "qualname", "category", "level", "n_lines", "license"]):
        facts = {"level": row.level, "category": row.category, "lines": row.n_lines, "license": row.license}
        yield ListedItem((row.block, row.qualname, row.name), facts)


KIND = replace(
    EXTRACTION,
    derive=derive,
    laws=(check_extraction,),
    items=list_blocks,
    find=find,
    find_code=find_code,
    page=extraction_page,
)
KINDS = (KIND,)
verify = partial(verify_folder, KIND)
