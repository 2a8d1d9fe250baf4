"""The dialog and output of the commands `publish` and `pull`."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lemur_core.files.errors import UserError
from lemur_core.files.markdown import make_visible, plural
from lemur_core.files.progress import note
from manifests.folders.manifest import read_manifest
from manifests.publish.hub import check_names
from manifests.publish.publishing import PublishReport, publish, pull

_LISTED = 20  # files of each kind before a question; a dry run and --json list all of them


def run_publish(
    folder: Path, repo_id: str, *, dry_run: bool = False, yes: bool = False, as_json: bool = False, **options: Any
) -> None:
    """Publish a folder and print a summary.

    Args: options: additional arguments of `publish`.
    Raises: UserError if confirmation is needed but there is no terminal, and as `publish` does.
    """
    check_names(repo_id, options.get("revision"), options.get("tag"))
    read_manifest(folder)  # reject an invalid folder before the check for a terminal
    if not (dry_run or yes or sys.stdin.isatty()):
        raise UserError("publish: no terminal to confirm on; add --yes, or --dry-run to see what would change")

    def confirm(plan: PublishReport) -> bool:
        for line in _describe_plan(plan):
            note(line)
        print(f"Publish this on {plan.repo_id}? [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def show(plan: PublishReport) -> None:
        lines = [json.dumps(_summary(plan), indent=2)] if as_json else _describe_plan(plan, every=dry_run)
        for line in lines:
            print(line if as_json else make_visible(line))

    done = publish(folder, repo_id, dry_run=dry_run, confirm=None if yes or dry_run else confirm, show=show, **options)
    if as_json or dry_run or yes:
        show(done)
    if not as_json:
        print(make_visible(_describe_outcome(done, dry_run=dry_run)))


def run_pull(repo_id: str, out: Path, *, revision: str, force: bool, as_json: bool) -> None:
    """Fetch a folder and print a summary.

    Raises: UserError as `pull` does.
    """
    done = pull(repo_id, out, revision=revision, force=force)
    if as_json:
        print(json.dumps({"repo_id": repo_id, "commit": done.commit, "files": done.files, "bytes": done.bytes}))
    else:
        size = f"{plural(done.files, 'file')}, {_format_size(done.bytes)}"
        print(make_visible(f"{out}: {size}, as the manifest states; commit {done.commit}"))


def _describe_plan(plan: PublishReport, *, every: bool = False) -> Iterator[str]:
    changes = plan.changes
    add = "add" if plan.unread is None else "file"
    for label, names in ((add, changes.added), ("change", changes.changed), ("remove", changes.removed)):
        listed = len(names) if every else _LISTED
        for name in names[:listed]:
            yield f"{label:<8}{_format_size(plan.sizes[name]):>10}  {name}"
        if rest := names[listed:]:
            size = _format_size(sum(plan.sizes[name] for name in rest))
            yield f"{label:<8}{size:>10}  {plural(len(rest), 'more file')}"
    yield from (f"create    {what}" for what in _list_created(plan))
    for item in plan.withheld:
        what = f"the code of {plural(item.blocks, 'block')}" if item.noun == "block" else plural(item.blocks, "code")
        yield f"withheld  {what} of {item.source} ({item.license})"
    yield from (f"note      {text}" for text in plan.notes)
    yield from (f"refused   {text}" for text in plan.refused)


def _list_created(plan: PublishReport) -> list[str]:
    return [f"branch {plan.revision}"] * plan.creates_branch + [f"tag {plan.tag}"] * (plan.tag is not None)


def _describe_outcome(done: PublishReport, *, dry_run: bool) -> str:
    changes, outcome = str(done.changes), "nothing was published" + " (dry run)" * dry_run
    if done.unread is not None:
        size = f"{plural(len(done.changes.added), 'file')}, {_format_size(sum(done.sizes.values()))}"
        changes = f"{size}; not compared with what is there: {done.unread}"
    elif not done.makes:
        changes = f"nothing to publish, all {plural(len(done.changes.same), 'file')} there are the same"
        return f"{done.repo_id} at {done.revision}: {changes}"
    elif done.commit is not None:
        created = " and ".join(_list_created(done))
        outcome = f"commit {done.commit}" + (f"; created {created}" if created else "")
    elif not dry_run:
        return f"{done.repo_id} at {done.revision}: {outcome}"
    elif done.created:
        changes += "; the repository would be created"
    return f"{done.repo_id} at {done.revision}: {changes}; {outcome}"


def _summary(done: PublishReport) -> dict[str, object]:
    facts = asdict(done)
    return {
        **{name: facts[name] for name in ("repo_id", "revision", "commit", "created")},
        "branch_made": done.creates_branch,
        "tag_made": done.tag,
        **facts["changes"],
        "same": len(done.changes.same),
        "withheld": [item.entry for item in done.withheld],
        **{name: facts[name] for name in ("notes", "refused", "unread", "sizes")},
    }


def _format_size(number: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} GiB"
