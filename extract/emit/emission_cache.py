"""Cache of emitted files: they depend only on the sources, our own code and the runtime."""

import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from extract.emit.emit import Emitted, Emitter, Unresolved
from extract.resolve.discover import Found
from extract.resolve.index import RUNTIME_NAMES, Index
from extract.resolve.modules import Library
from extract.resolve.standins import replacement_source
from extract.resolve.symbols import Reason
from extract.sources import Source
from lemur_core.sandbox.cached import code_digest


class CachedEmitter(Emitter):
    """Emitter that stores its results in the index, so that later runs over the same sources reuse them."""

    def __init__(self, library: Library, index: Index, sources: Sequence[Source]) -> None:
        super().__init__(library, index)
        self._index = index
        self._key = _key(sources)

    def emit(self, found: Found) -> Emitted | Unresolved:
        """Return the closed file of a class, or why there is none; from the index if stored there."""
        key = f"emitted:{self._key}:{found.block}"
        kept = self._index.remembered(key)
        outcome = None if kept is None else _loads(kept, found)
        if outcome is None:
            outcome = super().emit(found)
            self._index.remember(key, _dumps(outcome))
        return outcome


def _key(sources: Sequence[Source]) -> str:
    """Return the key of everything that emitting depends on, including the order of sources but not their folders."""
    names = [field.name for field in fields(Source) if field.name not in ("root", "files")]
    about = [
        [[getattr(source, name) for name in names] for source in sources],
        [(file.path, file.blob) for file in replacement_source().files],
        RUNTIME_NAMES.key(),
        code_digest("extract.emit.emit:Emitter"),
    ]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()


def _dumps(outcome: Emitted | Unresolved) -> bytes:
    content = {field.name: getattr(outcome, field.name) for field in fields(outcome) if field.name != "found"}
    return zlib.compress(json.dumps(content).encode(), 1)


def _loads(kept: bytes, root: Found) -> Emitted | Unresolved | None:
    """Return the stored outcome; None if it is damaged."""
    try:
        content: dict[str, Any] = json.loads(zlib.decompress(kept))
        if "reason" in content:
            return Unresolved(root, Reason(content["reason"]), content["detail"])
        content |= {name: tuple(content[name]) for name in ("requires", "resolutions", "undefined", "dynamic")}
        content["files"] = tuple((source, path) for source, path in content["files"])
        content["places"] = {name: (source, path) for name, (source, path) in content["places"].items()}
        return Emitted(root, **content)
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError):
        return None
