"""`lemur migrate` into a network: output and files."""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from extract.migrate.insertion_points import InsertionPoint
from extract.migrate.network import (
    MigratedNetwork,
    TargetNetwork,
    candidates,
    describe_proof,
    migrate_named,
    observe,
    open_box,
    read_target_network,
)
from extract.migrate.source_block import load_source_block
from extract.model.options import MigrateOptions
from lemur_core.files.atomic import check_new_file, write_text
from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.markdown import plural
from manifests.provenance.licenses import is_permissive


def migrate_into_network(folder: Path, block: str, path: Path, options: MigrateOptions) -> str:
    """Insert a block of an extraction folder into a network's file.

    Returns: the text to print: the actions and the verified properties, or the diff for a dry run.
    Raises: UserError if the migration fails; then nothing is written.
    """
    out = options.out or default_out(path, block)
    if not options.dry_run:
        check_new_file(out, force=options.force)
    target_network = _read_target(path, options)
    with open_box(unsafe=options.unsafe_no_sandbox) as box:
        moved = migrate_named(folder, block, target_network, box, site=options.site)
    if not options.dry_run:
        try:
            write_text(out, moved.text)
        except OSError as error:
            raise UserError(f"{out}: cannot be written: {error.strerror}; choose another --out") from error
    if options.as_json:
        return json.dumps(_facts(moved, target_network, None if options.dry_run else out), sort_keys=True)
    if options.dry_run:
        return difference(target_network.text, moved.text, path, out)
    return "\n".join(_lines(moved, out))


def list_insertion_points(folder: Path, block: str, path: Path, options: MigrateOptions) -> str:
    """List all insertion points of a network with how a block fits there, or why it does not.

    Raises: UserError if the network does not run.
    """
    target_network, source_block = _read_target(path, options), load_source_block(folder, block)
    with open_box(unsafe=options.unsafe_no_sandbox) as box:
        points = candidates(source_block, observe(target_network, box), box)
    if options.as_json:
        return json.dumps([_point_facts(point) for point in points])
    fitting = sum(point.filling is not None for point in points)
    summary = f"{source_block.name} fits {plural(fitting, 'site')} of {len(points)} in {target_network.name}"
    return "\n".join([*map(_point_line, points), summary])


def default_out(path: Path, block: str) -> Path:
    """Return the default path, `HOST-BLOCK.py` next to the network's file."""
    return path.with_name(f"{path.stem}-{block.rpartition('::')[2].rpartition('.')[2]}.py")


def _read_target(path: Path, options: MigrateOptions) -> TargetNetwork:
    return read_target_network(path, _prm(options.prm), _shape(options.in_shape), options.classes)


def _prm(text: str | None) -> Mapping[str, Any]:
    try:
        prm = json.loads(text or "{}")
    except ValueError as error:
        raise UsageError(f"--prm: not valid JSON: {error}") from error
    if not isinstance(prm, dict):
        raise UsageError(f'--prm: {text}: not a JSON object; for example {{"lr": 0.01}}')
    return prm


def _shape(text: str | None) -> tuple[int, ...] | None:
    if text is not None and not re.fullmatch("[1-9][0-9]*(?:x[1-9][0-9]*){3}", text):
        raise UsageError(f"--in-shape {text}: give batch, channels, height and width, for example 2x3x32x32")
    return tuple(map(int, text.split("x"))) if text is not None else None


def difference(before: str, after: str, path: Path, out: Path) -> str:
    """Return the unified diff of two texts."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), str(path), str(out), lineterm="")
    return "\n".join(lines)


def _point_line(point: InsertionPoint) -> str:
    if point.filling is None:
        return f"no    {point.name} ({point.place.kind}, {point.shapes}): {point.reason}"
    changed = [
        f"{point.filling.adapter(pair)} {where} it"
        for where, pair in (("before", point.filling.before), ("after", point.filling.after))
        if pair is not None
    ]
    changed += {"tokens": ["as tokens"], "last": ["with the channels last"]}.get(point.filling.view, [])
    times = f", called {point.place.calls} times" if point.place.calls > 1 else ""
    adapters = "".join(f", {change}" for change in changed)
    return f"fits  {point.name} ({point.place.kind}, {point.shapes}{times}): ({point.filling.call.text()}){adapters}"


def _point_facts(point: InsertionPoint) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "site": point.name,
        "path": point.place.path,
        "how": point.how,
        "kind": point.place.kind,
        "fits": point.filling is not None,
        "reason": point.reason or None,
        "calls": point.place.calls,
        "inputs": [list(shape) for shape in point.before],
        "outputs": [list(shape) for shape in point.after],
    }
    if point.filling is not None:
        filling = point.filling
        facts |= {"arguments": filling.call.text(), "before": filling.before, "after": filling.after}
        facts["view"] = filling.view or None
    return facts


def _lines(moved: MigratedNetwork, out: Path) -> list[str]:
    source_block, point = moved.source_block, moved.site
    form = "lean form" if source_block.lean else "full form"
    size = plural(len(source_block.code.splitlines()), "line")
    # A warning and no error, because writing a local file redistributes nothing.
    doubt = "" if is_permissive(source_block.license) else " (not known to be permissive: for local use)"
    return [
        *(f"tried   {point.name}: {why}" for point, why in moved.failed),
        _point_line(point).replace("fits  ", "site    ", 1),
        f"block   {source_block.row.block}, {form}, {size}, {source_block.license}{doubt}",
        f"proved  {describe_proof(moved)}",
        f"wrote   {out}",
    ]


def _facts(moved: MigratedNetwork, target_network: TargetNetwork, out: Path | None) -> dict[str, Any]:
    source_block = moved.source_block
    return {
        "block": source_block.row.block,
        "class": moved.name,
        "code_sha256": source_block.sha256,
        "lean": source_block.lean,
        "license": source_block.license,
        "host": {"file": target_network.name, "sha256": target_network.sha256},
        "site": _point_facts(moved.site),
        "failed": [{"site": point.name, "why": why} for point, why in moved.failed],
        "cases": [list(case["in_shape"]) for case in moved.observed.cases],
        "proof": asdict(moved.proof),
        "file": str(out) if out is not None else None,
    }
