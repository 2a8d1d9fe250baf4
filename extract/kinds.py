"""The kind of folder that `lemur extract` writes: how it is made again, its laws, and what is shown of its blocks."""

from dataclasses import replace
from functools import partial

from extract.folder.derive import derive
from extract.folder.page import FACED
from extract.folder.verify import check_extraction
from extract.model.blocks import find, find_code
from manifests.folders.kinds import verify_folder

KIND = replace(FACED, derive=derive, laws=(check_extraction,), find=find, find_code=find_code)
KINDS = (KIND,)
verify = partial(verify_folder, KIND)
