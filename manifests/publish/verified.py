"""The checks of a finished folder, by who knows its kind."""

import importlib
from pathlib import Path

from manifests.manifest import read_manifest
from manifests.verify import Check, check_files

#: Who checks a folder, by the kind that its manifest states; named, since this package imports none of them.
_VERIFIERS = {
    "snapshot": "curate.verify",
    "extraction": "extract.verify",
    "run": "train.verify",
    "ablation": "train.verify",
    "search": "train.verify",
}


def verify_folder(folder: Path, *, jobs: int | None = None) -> list[Check]:
    """All checks of a finished folder, in a fixed order; digests alone for a kind without guarantees of its own.

    Args: jobs: worker processes; all cores by default.
    Raises: UserError if it holds no valid manifest.
    """
    manifest = read_manifest(folder)
    if manifest.kind in _VERIFIERS:
        checks: list[Check] = importlib.import_module(_VERIFIERS[manifest.kind]).verify(folder, jobs=jobs)
        return checks
    return [check_files(folder, manifest)]
