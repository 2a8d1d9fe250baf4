"""The results of runs, kept in the index: the same run again only writes its folder.

Everything that results depend on is in the key: sources, options, our code, and the versions of what blocks import. A
run is kept if another one would find the same: not if a source or a requirement was out of reach.
"""

import hashlib
import json
import sys
import zlib
from collections.abc import Sequence
from dataclasses import fields

from pydantic import ValidationError

from extract.model.results import Options, Result, RunFacts
from extract.proofs.runtime import copy_importable
from extract.resolve.index import FactsIndex
from lemur_core.sandbox.cached import product_digest, run_versions
from lemur_core.sandbox.server.received import inflate
from manifests.records import Block

_MAX_BYTES = 2**30  # of one run, as JSON
#: Options that only the writing of the folder depends on, or how soon there are results.
_WITHOUT = frozenset({"seed", "chat", "chat_max_tokens", "jobs", "retry_failed", "index"})


def recall_results(key: str, facts: RunFacts, index: FactsIndex) -> list[Result] | None:
    """Return the results of an equal run before, and add its notes and details to the facts; None if none is kept.

    Args: key: of the run, from `derive_key`.
    """
    kept = index.recall(key)
    if kept is None:
        return None
    try:
        stored = json.loads(inflate(kept, _MAX_BYTES))
        results = [
            Result(Block.model_validate(row), tuple((name, path) for name, path in files), traced)
            for row, files, traced in stored["results"]
        ]
        facts.notes, facts.details = stored["notes"], stored["details"]
    except (ValueError, TypeError, KeyError, ValidationError):
        return None  # damaged: run again
    return results


def remember_results(key: str, facts: RunFacts, results: Sequence[Result], index: FactsIndex) -> None:
    """Keep the results of a run, unless it lacked a source or a requirement that another run may find.

    Args: key: of the run, from `derive_key`.
    """
    if facts.unopened or facts.unreached:
        return
    content = {
        "results": [[result.row.model_dump(mode="json"), result.closure_files, result.traced] for result in results],
        "notes": facts.notes,
        "details": facts.details,
    }
    index.remember(key, zlib.compress(json.dumps(content).encode(), 1))


def derive_key(facts: RunFacts) -> str:
    """Return the key of a run, before it begins: local sources are read for it.

    Raises: UserError if a local source cannot be read, or has changed since it was opened.
    """
    about = [
        {field.name: getattr(facts.options, field.name) for field in fields(Options) if field.name not in _WITHOUT},
        [source.describe() for source in facts.sources],
        [str(copy_importable(source)) for source in facts.sources if source.kind == "folder"],
        product_digest(),
        run_versions(),
        sys.version_info[:3],
    ]
    return "results:" + hashlib.sha256(json.dumps(about).encode()).hexdigest()
