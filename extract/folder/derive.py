"""Write an extraction again from what only its sources or the sandbox could say, with the same writer.

Taken from its tables as they are: classes and their code, how far each came, what was observed, the recorded graphs,
and where the parts of a file are from. All else follows: `lemur verify` compares it cell by cell.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from extract.folder.write import code_paths, qualities, write_blocks, write_contents
from extract.model.results import Options, RunFacts, code_columns
from extract.sources import PackageSource
from extract.specs.behavior import list_not_shown
from extract.specs.make import SHARED, make_spec, neutralize, read_specs, to_line
from extract.specs.splits import SplitAssignment, write_spec_tables
from lemur_core.files import Json
from lemur_core.files.errors import UserError
from lemur_core.graphs.identity import compute_identities
from lemur_core.graphs.serialization import load_graphs
from manifests.folders.kinds import EXTRACTION, Folder
from manifests.folders.manifest import Manifest
from manifests.folders.tables import iterate_rows
from manifests.provenance import REQUIREMENTS, SPECS
from manifests.records import Block, Spec

#: Details of the manifest that the stages and sources state.
_GIVEN = frozenset({"sources", "unopened", "notes", "distinct", "withheld"})


def derive(folder: Folder, made: Path) -> Json:
    """Write the extraction again; see `Derive`. Where code was not published, what needs all of it is left out."""
    path, manifest = folder.path, folder.manifest
    stored = list(EXTRACTION.rows(path, Block))
    specs = {spec.block: spec for spec in read_specs(path)}
    rows = _derive_rows(stored, specs, folder.jobs)
    write_blocks(made, rows, manifest.parameters["level"])
    whole = not manifest.details.get("withheld")
    emitted = [row for row in rows if row.code_sha256 is not None]
    if list(specs) != [row.block for row in emitted]:
        raise UserError(f"{SPECS}: its lines are not those of the blocks that have code, in their order")
    again = [_derive_spec(row, specs[row.block]) for row in emitted]
    (made / SPECS).write_text("".join(f"{to_line(spec)}\n" for spec in again), encoding="utf-8", newline="\n")
    facts = _read_facts(manifest)
    if not whole:
        stated = {
            row["block"]: SplitAssignment(row["cluster"], row["split"])
            for file in EXTRACTION.files(path, "specs")
            for row in iterate_rows(file, ("block", "cluster", "split"))
        }
        write_spec_tables(made, again, [stated[spec.block] for spec in again])
        return {}
    shutil.copyfile(path / REQUIREMENTS, made / REQUIREMENTS)
    _, counts, details = write_contents(made, rows, again, facts)
    return {"counts": counts, "details": {"distinct": details["distinct"]}}


def _derive_rows(stored: Sequence[Block], specs: dict[str, Spec], jobs: int | None) -> list[Block]:
    """Return the rows with the columns that follow from the others, from code and from graphs worked out again."""
    paths = code_paths([row.block for row in stored if row.code_sha256 is not None])
    scores = qualities([row.lean_code or row.code for row in stored], jobs)
    rows = []
    for row, score in zip(stored, scores, strict=True):
        changed: dict[str, Any] = {
            "block": f"{row.source}::{row.qualname}",
            "name": row.qualname.rpartition(".")[2],
            "file": paths.get(row.block),
            "not_shown": "\n".join(list_not_shown(row.observed)) or None,
        }
        if row.code is not None or row.code_sha256 is None:
            changed |= code_columns(row.code)
        if row.lean_code is not None or row.lean_sha256 is None:
            lean = code_columns(row.lean_code)
            changed |= {"lean_sha256": lean["code_sha256"], "lean_lines": lean["n_lines"]}
        if row.lean_sha256 is None:
            changed |= {"lean_requires": (), "lean_license": None}
        if row.code is not None:
            changed["quality"] = score
        spec = specs.get(row.block)
        if spec is not None and spec.algorithm is not None:
            identities = compute_identities(load_graphs(dict(spec.algorithm)))
            changed |= {name: identities[name] for name in ("graph", "graph_widths")}
        rows.append(row.model_copy(update=changed))
    return rows


def _derive_spec(row: Block, stored: Spec) -> Spec:
    """Return the spec of a block, made again; if it needs code or a graph that was not published, what both state."""
    stated = stored.model_copy(update={name: getattr(row, name) for name in SHARED})
    if row.code is None:
        return stated
    if stored.withheld or (stored.graph is not None and stored.algorithm is None):
        return neutralize(stated, row.code)
    answer: dict[str, Any] | None = None
    if (algorithm := stored.algorithm) is not None:
        answer = {**algorithm.model_dump(mode="json"), "dead_classes": ()}
        # Which classes of the file took part was seen when it ran.
        answer["dead_classes"] = make_spec(row, answer).dependencies.keys() - stored.dependencies.keys()
    return make_spec(row, answer)


def _read_facts(manifest: Manifest) -> RunFacts:
    """Return the request and the sources as the manifest states them."""
    parameters = dict(manifest.parameters)
    chat = parameters.pop("chat")
    about = {"chat": chat is not None} | ({} if chat is None else {"chat_max_tokens": chat["max_tokens"]})
    details = manifest.details
    sources = [
        PackageSource(**{**_freeze(source), "files": ()}, root=Path(), requires=()) for source in details["sources"]
    ]
    return RunFacts(
        Options(**_freeze(parameters), **about),
        tuple(sources),
        tuple(details["unopened"].items()),
        notes=details["notes"],
        details={name: value for name, value in details.items() if name not in _GIVEN},
    )


def _freeze(stated: Json) -> dict[str, Any]:
    """Return values of JSON with tuples for lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in stated.items()}
