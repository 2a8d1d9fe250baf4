"""What shows real calls of classes: the tests of a release, examples in its documents, or its factories.

    python -m benchmarks.recording FILE.json [PACKAGE ...]

Of each package six random classes are extracted to level `forward`. CPU seconds are those of the whole extraction.
"""

import json
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from extract import stages
from extract.extractor import BlockExtractor
from extract.recording.source import RecordedClass, is_recorded, record_sources
from lemur_core.files.atomic import write_text
from lemur_core.sandbox.runtime import find_further, find_runtime

PACKAGES = (
    *("einops", "entmax", "kornia", "local-attention", "performer-pytorch", "pytorch-metric-learning"),
    *("rotary-embedding-torch", "segmentation-models-pytorch", "torchdiffeq", "vector-quantize-pytorch"),
    *("vit-pytorch", "x-transformers"),
)
_CLASSES = 6
#: The first of these words in the name of a driver tells its kind.
_KINDS = {" tests": "tests", "example ": "documents", " with ": "configurations", ":": "definitions"}


def measure(package: str) -> dict[str, Any]:
    """Extract classes of a package; return what showed each, and the level that it reached."""
    found: dict[str, dict[str, Any]] = {}

    def note(*args: Any, **options: Any) -> Iterator[RecordedClass]:
        for item in record_sources(*args, **options):
            first = item.calls[0]
            found[item.target.block] = {"driver": first.driver, "way": first.way, "called": first.forward is not None}
            yield item

    started = _count_seconds()
    with BlockExtractor(sources=[package], level="forward", jobs=1) as extractor:
        classes = sorted(item.block for item in extractor.warm_index_once() if is_recorded(item))
        chosen = random.Random(66).sample(classes, min(_CLASSES, len(classes)))
        with patch.object(stages, "record_sources", note):
            rows = {result.row.block: result.row for result in extractor.extract_multiple_blocks(chosen)}
    for block, row in rows.items():
        found[block] = {**found.get(block, {}), "level": row.level, "arguments_from": row.arguments_from}
    called = [item["driver"] for item in found.values() if item.get("called")]
    kinds = Counter(next(kind for word, kind in _KINDS.items() if word in driver) for driver in called)
    source = next(iter(rows.values())).source
    notes = extractor.facts.notes
    seconds = round(_count_seconds() - started, 1)
    return {
        "source": source,
        "classes": len(rows),
        "shown_by": kinds,
        "cpu_seconds": seconds,
        "blocks": found,
        "notes": notes,
    }


def _count_seconds() -> float:
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(item.ru_utime + item.ru_stime for item in used)


def main() -> None:
    """Write the record, anew after each package."""
    path, names = Path(sys.argv[1]), sys.argv[2:] or PACKAGES
    record: dict[str, Any] = {"command": "python -m benchmarks.recording FILE.json", "day": time.strftime("%Y-%m-%d")}
    record["versions"] = {**find_runtime().versions, **find_further("pytest").versions}
    record["packages"] = []
    for name in names:
        record["packages"].append(measure(name))
        write_text(path, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
