"""Publish a finished folder after checks, screening and comparison, in one commit; fetch one as a whole."""

import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub.hf_api import RepoFile

from lemur_core.files import Json
from lemur_core.files.atomic import atomic_folder, check_free
from lemur_core.files.errors import RetryableError, UserError
from lemur_core.files.foreign import FLOOR_BYTES
from lemur_core.files.markdown import make_visible
from manifests.folders.checks import check_files
from manifests.folders.kinds import Verifier
from manifests.folders.manifest import FILE_NAME, INDEX, SHARDS, Manifest, foreign_files, is_of_page, read_manifest
from manifests.publish.hub import COMMIT, Hub, check_names
from manifests.publish.repository import KIND, Changes, LocalFile, Remote, Repository, compare
from manifests.publish.secrets import check_digests, check_findings, list_refused, screen
from manifests.publish.staged import ATTRIBUTES, IGNORES, Staged, Withheld, stage_files

_BRIEF = 10.0  # seconds that a dry run waits for an answer of the Hub, once


@dataclass(frozen=True, slots=True)
class PublishReport:
    """The outcome of publishing a folder, or of a dry run.

    `commit` is None if nothing was committed: a dry run, or publishing was cancelled. A dry run lists the same files
    whether it can read the repository or not, but knows which of them change there only if it can.
    """

    repo_id: str
    revision: str
    commit: str | None
    created: bool  # the repository did not exist before, or does not exist yet
    changes: Changes
    sizes: Mapping[str, int]  # bytes of the files that are added or changed, or removed
    withheld: tuple[Withheld, ...]
    notes: tuple[str, ...] = ()
    creates_branch: bool = False  # in an existing repository
    tag: str | None = None  # that is new, or would be
    refused: tuple[str, ...] = ()  # secrets and paths for which nothing may be published
    unread: str | None = None  # why a dry run could not read the repository; all files are in `changes.added`

    @property
    def makes(self) -> bool:
        """True if publishing changes, or would change, anything there."""
        return bool(self.changes) or self.created or self.creates_branch or self.tag is not None


def publish(
    folder: Path,
    repo_id: str,
    *,
    verify: Verifier,
    revision: str = "main",
    tag: str | None = None,
    private: bool = False,
    force: bool = False,
    dry_run: bool = False,
    not_secret: Collection[str] = (),
    page: bool = False,
    confirm: Callable[[PublishReport], bool] | None = None,
    show: Callable[[PublishReport], None] | None = None,
    hub: Hub | None = None,
) -> PublishReport:
    """Publish a finished folder as a dataset repository of the Hub, in one commit or not at all.

    Args:
        repo_id: `OWNER/NAME`; created if it does not exist.
        verify: runs all checks of the folder; one that fails forbids publishing.
        revision: the branch; created from `main` if it does not exist.
        tag: a name for the commit.
        private: make a new repository private; otherwise the owner's settings decide.
        force: overwrite changes by somebody else.
        dry_run: change nothing, and require no permission to; without the Hub, state what is known here.
        not_secret: digests of findings that are false positives.
        page: also publish its HTML page.
        confirm: called with the planned changes; nothing is published if it returns False.
        show: called by a dry run with what would be sent if there are findings for which it fails.
    Returns: what was changed, or would be; `commit` is None after a dry run, or if it was not confirmed.
    Raises: UserError if the folder fails a check, contains what must not be published or changes meanwhile, somebody
        else changed the repository, or the Hub refuses; RetryableError if the Hub cannot be reached.
    """
    hub = hub or Hub()
    check_names(repo_id, revision, tag)
    check_digests(not_secret)
    manifest = read_manifest(folder)
    failed = next((check for check in verify(folder) if not check.ok), None)
    if failed is not None:
        raise UserError(f"{folder}: {failed.name}: {failed.detail}; see `lemur verify`; create the folder again")
    with stage_files(folder, page=page) as ready, hub.session():
        local = _read_unchanged(folder, manifest, ready)  # everything below refers to these bytes
        patience = replace(hub, delays=(), answer_seconds=min(hub.answer_seconds, _BRIEF)) if dry_run else hub
        repository = Repository(patience, repo_id, revision)

        def plan(remote: Remote, **more: object) -> PublishReport:
            changes = compare(local, remote.files)
            sizes = {name: local[name].size for name in (*changes.added, *changes.changed)}
            sizes |= {name: remote.files[name].size for name in changes.removed}
            facts: Json = {
                "created": not remote.exists,
                "creates_branch": remote.exists and not remote.has_branch,
                "tag": None if tag in remote.tags else tag,
                **more,
            }
            return PublishReport(
                repo_id, revision, commit=None, changes=changes, sizes=sizes, withheld=ready.withheld, **facts
            )

        findings = screen(ready.files, folder)
        if dry_run and show is not None and (refused := list_refused(findings, not_secret)):
            show(plan(Remote(exists=False), refused=tuple(map(str, refused)), unread="it was not asked"))
        notes = tuple(check_findings(folder, findings, not_secret))
        try:
            remote = repository.look()
        except RetryableError as error:
            if not dry_run:
                raise
            return plan(Remote(exists=False), notes=notes, created=False, unread=str(error).partition("; ")[0])
        planned = plan(remote, notes=notes)
        repository.check_private(remote, private=private)
        if tag in remote.tags and (planned.changes or remote.tags[tag] != remote.head):
            raise UserError(f"{repo_id}: tag {tag} is on another commit, {remote.tags[tag][:12]}; choose another --tag")
        if planned.changes:
            _check_conflicts(repository, remote, manifest.kind, force=force)
        if dry_run or (planned.makes and confirm is not None and not confirm(planned)):
            return planned
        remote = repository.prepare(remote, private=private)
        done = remote.head
        if planned.changes:
            done = repository.commit(remote, planned.changes, local, manifest.kind)
        assert done is not None, "a branch with nothing to change has a commit"
        if tag is not None:
            repository.tag(tag, done)
        return replace(planned, commit=done)


def _read_unchanged(folder: Path, manifest: Manifest, ready: Staged) -> dict[str, LocalFile]:
    """Return the digests of the files to publish. Raises: UserError if one was changed since the checks ran."""
    local = {name: LocalFile.read(path) for name, path in ready.files.items()}
    stated = read_manifest(ready.files[FILE_NAME].parent).outputs
    changed = [FILE_NAME] if read_manifest(folder) != manifest else []
    changed += [item.path for item in stated if local[item.path].sha256 != item.sha256]
    if changed:
        raise UserError(f"{folder}: {changed[0]} was changed meanwhile; run again")
    return local


def _check_conflicts(repository: Repository, remote: Remote, kind: str, *, force: bool) -> None:
    """Raise UserError if the Hub would leave files out, or publishing would overwrite what somebody else did."""
    if ignores := [name for name in remote.files if name.split("/")[-1] == IGNORES]:
        raise UserError(
            f"{repository.repo_id}: contains {ignores[0]}, with which the Hub ignores files; remove it there first"
        )
    if not force and (conflict := repository.find_conflict(remote, kind)) is not None:
        raise UserError(
            f"{repository.repo_id}: somebody else changed it: {conflict}; nothing was published; choose another"
            " --repo-id or --revision, or add --force to overwrite"
        )


_AGAIN = "finished downloads are kept"


@dataclass(frozen=True, slots=True)
class Pulled:
    """A folder that was fetched."""

    commit: str
    files: int
    bytes: int


def pull(repo_id: str, out: Path, *, revision: str = "main", force: bool = False, hub: Hub | None = None) -> Pulled:
    """Fetch a folder that `publish` put on the Hub, and check every file against its manifest.

    Fetched files remain in the Hub client's cache, so a rerun resumes where this one stopped.

    Args: revision: a branch, a tag or a commit. force: replace an older `out`.
    Raises: UserError if there is no such repository or revision, a file is missing or differs from the manifest, or
        `out` cannot be written; RetryableError if the Hub cannot be reached.
    """
    hub = hub or Hub()
    check_names(repo_id, None if COMMIT.fullmatch(revision) else revision, None)
    check_free(out, force=force)
    repository, api = Repository(hub, repo_id, revision), hub.api()

    def list_head() -> tuple[str, dict[str, RepoFile]]:
        commit = api.repo_info(repo_id, repo_type=KIND, revision=revision, timeout=hub.answer_seconds).sha
        if commit is None:
            raise UserError(f"{repo_id}: has no commit at {revision}")
        # A foreign page is not fetched: `open` builds our own.
        files = repository.list_files(commit)
        return commit, {name: files[name] for name in sorted(files) if not is_of_page(name)}

    with hub.session():
        commit, listed = hub.call(repo_id, list_head, again=_AGAIN)
        if FILE_NAME not in listed:
            raise UserError(
                f"{repo_id}: has no {FILE_NAME} at {revision}; only folders published by lemur can be pulled"
            )
        about: Json = {"repo_type": KIND, "revision": commit}
        wrong = UserError(f"{repo_id}: its {FILE_NAME} at {revision} is not one that lemur wrote")
        if listed[FILE_NAME].size > FLOOR_BYTES:
            raise wrong
        path = hub.call(repo_id, lambda: api.hf_hub_download(repo_id, FILE_NAME, **about), again=_AGAIN)
        try:
            manifest = read_manifest(Path(path).parent)
        except UserError as error:
            raise wrong from error
        if (fault := _find_difference(listed, manifest)) is not None:
            raise UserError(
                f"{repo_id}: is not what its manifest states: {fault}; nothing else was loaded: take another"
                " --revision, or ask its owner to publish it again"
            )
        about["ignore_patterns"] = [ATTRIBUTES, INDEX, f"{SHARDS}*"]
        cached = Path(hub.call(repo_id, lambda: api.snapshot_download(repo_id, **about), again=_AGAIN))
    with atomic_folder(out, force=force) as part:
        try:
            for name in listed:  # copied, not linked: editing a file must not damage the cache
                (part / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(cached / name, part / name)
        except OSError as error:
            raise UserError(f"{out}: {error.strerror or error}; free space, or choose another --out") from error
        check = check_files(part, manifest)
        if not check.ok:
            raise UserError(
                f"{repo_id}: is not what its manifest states: {check.detail}; take another --revision, or if its owner"
                f" finds it whole, remove {cached.parent.parent} and run again"
            )
    return Pulled(commit, len(listed), sum(file.size for file in listed.values()))


def _find_difference(listed: Mapping[str, RepoFile], manifest: Manifest) -> str | None:
    """Return the first file that the Hub lists otherwise than the manifest, before any of them is loaded."""
    stated = {item.path: item for item in manifest.outputs}
    for name in sorted((listed.keys() | stated.keys()) - {FILE_NAME}):
        if name not in listed or name not in stated:
            return f"{make_visible(name, 80)} is {'missing' if name in stated else 'not in the manifest'}"
        there, item = listed[name], stated[name]
        if there.size != item.bytes:
            return f"{name} has {there.size:,} bytes, not {item.bytes:,}"
        if there.lfs and there.lfs.sha256 != item.sha256:  # the Hub lists that of large files alone
            return f"{name} differs from its digest"
    fault = next(foreign_files(manifest.kind, sorted(stated)), None)
    return None if fault is None else make_visible(fault, 160)
