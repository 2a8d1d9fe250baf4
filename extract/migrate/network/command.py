"""`lemur migrate` into a network: what is printed and written."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extract.migrate.insertion_points import Site
from extract.migrate.network.network import (
    Host,
    Migrated,
    candidates,
    migrate_named,
    observe,
    open_box,
    proved_text,
    read_host,
)
from extract.migrate.source_block import donor_of
from lemur_core.files.atomic import check_writable, write_text
from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.markdown import plural
from manifests.provenance.licenses import is_permissive


@dataclass(frozen=True, slots=True)
class Options:
    """How a block is moved: see `lemur migrate --help`."""

    out: Path | None = None
    site: str | None = None
    dry_run: bool = False
    force: bool = False
    prm: str | None = None
    in_shape: str | None = None
    classes: int = 10
    unsafe: bool = False
    as_json: bool = False


def migrate_into_network(folder: Path, block: str, path: Path, options: Options) -> str:
    """Put a block of an extraction folder into a network's file.

    Returns: what to print: what was done and proved; the difference, where it is a dry run.
    Raises: UserError if anything stands against it: then nothing is written.
    """
    out = options.out or default_out(path, block)
    if not options.dry_run:
        _check_out(out, force=options.force)
    host = _host(path, options)
    with open_box(unsafe=options.unsafe) as box:
        moved = migrate_named(folder, block, host, box, site=options.site)
    if not options.dry_run:
        try:
            write_text(out, moved.text)
        except OSError as error:
            raise UserError(f"{out}: cannot be written: {error.strerror}; choose another --out") from error
    if options.as_json:
        return json.dumps(_facts(moved, host, None if options.dry_run else out), sort_keys=True)
    if options.dry_run:
        return difference(host.text, moved.text, path, out)
    return "\n".join(_lines(moved, out))


def list_sites(folder: Path, block: str, path: Path, options: Options) -> str:
    """Every site of a network with how a block fits there, or why it does not.

    Raises: UserError if the host does not run.
    """
    host, donor = _host(path, options), donor_of(folder, block)
    with open_box(unsafe=options.unsafe) as box:
        sites = candidates(donor, observe(host, box), box)
    if options.as_json:
        return json.dumps([_site_facts(site) for site in sites])
    fitting = sum(site.filling is not None for site in sites)
    said = f"{donor.name} fits {plural(fitting, 'site')} of {len(sites)} in {host.name}"
    return "\n".join([*map(_site_line, sites), said])


def default_out(path: Path, block: str) -> Path:
    """Next to the host: `HOST-BLOCK.py`."""
    return path.with_name(f"{path.stem}-{block.rpartition('::')[2].rpartition('.')[2]}.py")


def _check_out(out: Path, *, force: bool) -> None:
    if out.exists() and (out.is_dir() or not force):
        raise UserError(f"{out}: exists already; choose another --out" + ("" if out.is_dir() else ", or add --force"))
    check_writable(out)


def _host(path: Path, options: Options) -> Host:
    return read_host(path, _prm(options.prm), _shape(options.in_shape), options.classes)


def _prm(text: str | None) -> Mapping[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise UsageError(f"--prm: is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f'--prm: {text}: not a JSON object; for example {{"lr": 0.01}}')
    return found


def _shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        found = tuple(int(size) for size in text.split("x"))
    except ValueError:
        found = ()
    if len(found) != 4 or min(found) < 1:
        raise UsageError(f"--in-shape {text}: give batch, channels, height and width, for example 2x3x32x32")
    return found


def difference(before: str, after: str, path: Path, out: Path) -> str:
    """The unified difference of two texts."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), str(path), str(out), lineterm="")
    return "\n".join(lines)


def _site_line(site: Site) -> str:
    if site.filling is None:
        return f"no    {site.name} ({site.place.kind}, {site.shapes}): {site.reason}"
    changed = [
        f"{site.filling.adapter(pair)} {where} it"
        for where, pair in (("before", site.filling.before), ("after", site.filling.after))
        if pair is not None
    ]
    changed += {"tokens": ["as tokens"], "last": ["with the channels last"]}.get(site.filling.view, [])
    times = f", called {site.place.calls} times" if site.place.calls > 1 else ""
    told = "".join(f", {one}" for one in changed)
    return f"fits  {site.name} ({site.place.kind}, {site.shapes}{times}): ({site.filling.call.text()}){told}"


def _site_facts(site: Site) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "site": site.name,
        "path": site.place.path,
        "how": site.how,
        "kind": site.place.kind,
        "fits": site.filling is not None,
        "reason": site.reason or None,
        "calls": site.place.calls,
        "inputs": [list(shape) for shape in site.before],
        "outputs": [list(shape) for shape in site.after],
    }
    if site.filling is not None:
        filling = site.filling
        facts |= {"arguments": filling.call.text(), "before": filling.before, "after": filling.after}
        facts["view"] = filling.view or None
    return facts


def _lines(moved: Migrated, out: Path) -> list[str]:
    donor, site = moved.donor, moved.site
    form = "lean form" if donor.lean else "full form"
    said = "" if is_permissive(donor.license) else " (not known to be permissive: for local use)"
    return [
        *(f"tried   {one.name}: {why}" for one, why in moved.failed),
        _site_line(site).replace("fits  ", "site    ", 1),
        f"block   {donor.row.block}, {form}, {plural(len(donor.code.splitlines()), 'line')}, {donor.license}{said}",
        f"proved  {proved_text(moved)}",
        f"wrote   {out}",
    ]


def _facts(moved: Migrated, host: Host, out: Path | None) -> dict[str, Any]:
    donor = moved.donor
    return {
        "block": donor.row.block,
        "class": moved.name,
        "code_sha256": donor.sha256,
        "lean": donor.lean,
        "license": donor.license,
        "host": {"file": host.name, "sha256": host.sha256},
        "site": _site_facts(moved.site),
        "failed": [{"site": one.name, "why": why} for one, why in moved.failed],
        "cases": [list(case["in_shape"]) for case in moved.observed.cases],
        "proof": dict(moved.proof),
        "file": str(out) if out is not None else None,
    }
