"""Writes manifests/schemas: the JSON Schemas of all record types, of the manifest and of a corpus file.

make schemas
"""

import json
from pathlib import Path

from manifests.folders.manifest import Manifest
from manifests.records import RECORD_TYPES, Record
from manifests.records.corpus import Corpus

FOLDER = Path(__file__).parents[1] / "manifests" / "schemas"


def schema_texts() -> dict[str, str]:
    """Return file name to text, for every record type, the manifest and a corpus."""
    models: tuple[type[Record], ...] = (*RECORD_TYPES, Manifest, Corpus)
    return {
        f"{model.__name__}.json": json.dumps(model.model_json_schema(), indent=2, sort_keys=True) + "\n"
        for model in models
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in schema_texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
