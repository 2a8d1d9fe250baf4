"""Emitted files that are kept: they follow from the sources, our own code and the runtime, and from nothing else."""

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
from extract.resolve.standins import standin_source
from extract.resolve.symbols import Reason
from extract.sources import Source
from lemur_core.sandbox.cached import code_digest


class KeptEmitter(Emitter):
    """An emitter that emits nothing twice, in other runs over the same sources neither."""

    def __init__(self, library: Library, index: Index, sources: Sequence[Source]) -> None:
        super().__init__(library, index)
        self._index = index
        self._key = _key(sources)

    def emit(self, found: Found) -> Emitted | Unresolved:
        """The closed file of a class, or why there is none; kept in the index."""
        key = f"emitted:{self._key}:{found.block}"
        kept = self._index.remembered(key)
        outcome = None if kept is None else _loads(kept, found)
        if outcome is None:
            outcome = super().emit(found)
            self._index.remember(key, _dumps(outcome))
        return outcome


def _key(sources: Sequence[Source]) -> str:
    """All that emitting depends on, the order of the sources included; where they lie on disk is nothing to it."""
    told = [field.name for field in fields(Source) if field.name not in ("root", "files")]
    about = [
        [[getattr(source, name) for name in told] for source in sources],
        [(file.path, file.blob) for file in standin_source().files],
        RUNTIME_NAMES.key(),
        code_digest("extract.emit.emit:Emitter"),
    ]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()


def _dumps(outcome: Emitted | Unresolved) -> bytes:
    told = {field.name: getattr(outcome, field.name) for field in fields(outcome) if field.name != "found"}
    return zlib.compress(json.dumps(told).encode(), 1)


def _loads(kept: bytes, found: Found) -> Emitted | Unresolved | None:
    """What was kept; None where it is damaged."""
    try:
        told: dict[str, Any] = json.loads(zlib.decompress(kept))
        if "reason" in told:
            return Unresolved(found, Reason(told["reason"]), told["detail"])
        told |= {name: tuple(told[name]) for name in ("requires", "resolutions", "undefined", "dynamic")}
        told["files"] = tuple((source, path) for source, path in told["files"])
        told["places"] = {name: (source, path) for name, (source, path) in told["places"].items()}
        return Emitted(found, **told)
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError):
        return None
