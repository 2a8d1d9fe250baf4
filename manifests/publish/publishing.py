"""Publish a finished folder after checks, screening and comparison, in one commit; fetch one as a whole."""

import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from lemur_core.files import Json
from lemur_core.files.atomic import atomic_folder, check_free, scratch_folder
from lemur_core.files.errors import RetryableError, UserError
from lemur_core.files.foreign import FLOOR_BYTES
from lemur_core.files.markdown import make_visible
from manifests.folders.checks import Check, check_files
from manifests.folders.formats import Verifier
from manifests.folders.manifest import FILE_NAME, INDEX, SHARDS, Manifest, is_of_page, read_manifest
from manifests.publish.hub import COMMIT, Hub, check_names
from manifests.publish.repository import KIND, Changes, LocalFile, Remote, RemoteFile, Repository, compare, local_file
from manifests.publish.screen import check_digests, check_findings, list_refused, screen
from manifests.publish.staged import ATTRIBUTES, IGNORES, Staged, Withheld, stage_files

_FEW = 3
_UNVERIFIED = "of its checks only the digests were made; add --verify to run all of them, as publishing does"
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
    notes: tuple[str, ...] = field(default=())
    creates_branch: bool = False  # in an existing repository
    tag: str | None = None  # that is new, or would be
    refused: tuple[str, ...] = field(default=())  # secrets and paths for which nothing may be published
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
    verified: bool = True,
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
        verified: a dry run runs all checks, too; otherwise it checks the digests of files, and says so.
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
    partly = dry_run and not verified
    manifest = _read_verified(folder, _check_digests if partly else verify)
    with stage_files(folder, page=page) as ready, hub.session():
        local = _read_unchanged(folder, manifest, ready)  # everything below refers to these bytes
        patience = replace(hub, delays=(), answer_seconds=min(hub.answer_seconds, _BRIEF)) if dry_run else hub
        sending = _Sending(folder, ready, local, Repository(patience, repo_id, revision), tag, private, force)
        plan = sending.plan(Remote(exists=False), compare(local, {}))  # what is known before the Hub answers
        findings = screen(ready.files, folder)
        if dry_run and show is not None and (refused := list_refused(findings, not_secret)):
            show(replace(plan, refused=tuple(map(str, refused)), unread="it was not asked"))
        notes = (*check_findings(folder, findings, not_secret), *[_UNVERIFIED] * partly)
        try:
            remote, changes = sending.look()
        except RetryableError as error:
            if not dry_run:
                raise
            return replace(plan, notes=notes, created=False, unread=str(error).partition("; ")[0])
        plan = replace(sending.plan(remote, changes), notes=notes)
        if dry_run or (plan.makes and confirm is not None and not confirm(plan)):
            return plan
        return replace(plan, commit=sending.commit(remote, changes))


def _read_unchanged(folder: Path, manifest: Manifest, ready: Staged) -> dict[str, LocalFile]:
    """Return the digests of the files to publish. Raises: UserError if one was changed since the checks ran."""
    local = {name: local_file(path) for name, path in ready.files.items()}
    stated = read_manifest(ready.files[FILE_NAME].parent).outputs
    changed = [FILE_NAME] if read_manifest(folder) != manifest else []
    changed += [item.path for item in stated if local[item.path].sha256 != item.sha256]
    if changed:
        raise UserError(f"{folder}: {changed[0]} was changed meanwhile; run again")
    return local


def _check_digests(folder: Path) -> list[Check]:
    return [check_files(folder, read_manifest(folder))]


def _read_verified(folder: Path, verify: Verifier) -> Manifest:
    manifest = read_manifest(folder)
    failed = next((check for check in verify(folder) if not check.ok), None)
    if failed is not None:
        raise UserError(f"{folder}: {failed.name}: {failed.detail}; see `lemur verify`; create the folder again")
    return manifest


@dataclass(frozen=True, slots=True)
class _Sending:
    """A folder that is being published: what is sent, by `local` with digests, where to, and what is allowed there."""

    folder: Path
    ready: Staged
    local: Mapping[str, LocalFile]
    repository: Repository
    tag: str | None
    private: bool
    force: bool

    def look(self) -> tuple[Remote, Changes]:
        """Return the state of the repository, and the changes that publishing makes.

        Raises: UserError if they are not to be made.
        """
        repo_id, tag, remote = self.repository.repo_id, self.tag, self.repository.look()
        changes = compare(self.local, remote.files)
        self._refuse_public(remote)
        if tag in remote.tags and (changes or remote.tags[tag] != remote.head):
            raise UserError(f"{repo_id}: tag {tag} is on another commit, {remote.tags[tag][:12]}; choose another --tag")
        if changes:
            self._refuse_conflicts(remote)
        return remote, changes

    def plan(self, remote: Remote, changes: Changes) -> PublishReport:
        """Return what publishing makes."""
        sizes = {name: self.local[name].size for name in (*changes.added, *changes.changed)}
        return PublishReport(
            self.repository.repo_id,
            self.repository.branch,
            commit=None,
            created=not remote.exists,
            changes=changes,
            sizes=sizes | {name: remote.files[name].size for name in changes.removed},
            withheld=self.ready.withheld,
            creates_branch=remote.exists and not remote.has_branch,
            tag=None if self.tag in remote.tags else self.tag,
        )

    def commit(self, remote: Remote, changes: Changes) -> str:
        """Make repository and branch, the one commit, if anything changes, and the tag; return the commit."""
        remote = self._make_branch(remote)
        done = remote.head
        if changes:
            message = f"Publish {self.ready.kind}: {changes}"
            done = self.repository.commit(remote, changes, self.ready.files, self.local, message)
        assert done is not None, "a branch with nothing to change has a commit"
        # Remembered before it is tagged: if the tag is refused, a rerun must not take our own commit for another's.
        self.repository.see(done)
        if self.tag is not None:
            self.repository.tag(self.tag, done)
        return done

    def _make_branch(self, remote: Remote) -> Remote:
        """Create the repository and the branch where they do not exist, and return the repository with the branch."""
        repo_id, branch, hub = self.repository.repo_id, self.repository.branch, self.repository.hub
        api, again = hub.api(), "what exists already is kept"
        if not remote.exists:
            hub.call(
                repo_id,
                lambda: api.create_repo(repo_id, repo_type=KIND, private=self.private or None, exist_ok=True),
                again=again,
            )
            remote = self.repository.look()
            self._refuse_public(remote)  # somebody else may have created it meanwhile
            if remote.files:
                raise UserError(f"{repo_id}: somebody else created it meanwhile; run again to compare")
        if not remote.has_branch and (head := remote.head) is not None:
            hub.call(
                repo_id,
                lambda: api.create_branch(repo_id, branch=branch, revision=head, repo_type=KIND, exist_ok=True),
                again=again,
            )
        return remote

    def _refuse_public(self, remote: Remote) -> None:
        if self.private and remote.private is False:
            repo_id = self.repository.repo_id
            raise UserError(f"{repo_id}: is public already; make it private on the Hub first, or omit --private")

    def _refuse_conflicts(self, remote: Remote) -> None:
        """Raise UserError if publishing would overwrite changes by somebody else, unless `force` is set."""
        repo_id = self.repository.repo_id
        if ignores := [name for name in remote.files if name.split("/")[-1] == IGNORES]:
            raise UserError(
                f"{repo_id}: contains {ignores[0]}, with which the Hub ignores files; remove it there first"
            )
        if self.force:
            return
        with scratch_folder("publish") as scratch:
            foreign = self.repository.foreign_changes(self.folder, remote, self.local, scratch)
        seen = self.repository.last_seen() if remote.has_branch else None
        if not foreign and seen not in (None, remote.head):
            foreign = [f"commit {str(remote.head)[:12]} came after yours, {str(seen)[:12]}"]
        if foreign:
            more = f" (and {len(foreign) - _FEW:,} more)" if len(foreign) > _FEW else ""
            raise UserError(
                f"{repo_id}: somebody else changed it: {'; '.join(foreign[:_FEW])}{more};"
                " nothing was published; choose another --repo-id or --revision, or add --force to overwrite"
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
    repository, fetch = Repository(hub, repo_id, revision), hub.api().snapshot_download
    about: Json = {"repo_type": KIND, "ignore_patterns": [ATTRIBUTES, INDEX, f"{SHARDS}*"]}
    with hub.session():
        commit = hub.call(repo_id, repository.head, again=_AGAIN)
        # A foreign page is not fetched: `open` builds our own.
        listed = hub.call(repo_id, lambda: repository.list_files(commit), again=_AGAIN)
        listed = {name: file for name, file in sorted(listed.items()) if not is_of_page(name)}
        if FILE_NAME not in listed:
            raise UserError(
                f"{repo_id}: has no {FILE_NAME} at {revision}; only folders published by lemur can be pulled"
            )
        manifest = _fetch_manifest(repository, revision, commit, listed.pop(FILE_NAME).size)
        if (fault := _find_difference(listed, manifest)) is not None:
            raise UserError(
                f"{repo_id}: is not what its manifest states: {fault}; nothing else was loaded: take another"
                " --revision, or ask its owner to publish it again"
            )
        cached = Path(hub.call(repo_id, lambda: fetch(repo_id, revision=commit, **about), again=_AGAIN))
    names = [FILE_NAME, *listed]
    with atomic_folder(out, force=force) as part:
        try:
            size = sum(_copy(cached / name, part / name) for name in names)
        except OSError as error:
            raise UserError(f"{out}: {error.strerror or error}; free space, or choose another --out") from error
        check = check_files(part, manifest)
        if not check.ok:
            raise UserError(
                f"{repo_id}: is not what its manifest states: {check.detail}; take another --revision, or if its owner"
                f" finds it whole, remove {cached.parent.parent} and run again"
            )
    repository.see(commit)
    return Pulled(commit, len(names), size)


def _fetch_manifest(repository: Repository, revision: str, commit: str, size: int) -> Manifest:
    hub, repo_id = repository.hub, repository.repo_id
    wrong = UserError(f"{repo_id}: its {FILE_NAME} at {revision} is not one that lemur wrote")
    if size > FLOOR_BYTES:
        raise wrong
    download = hub.api().hf_hub_download
    path = hub.call(repo_id, lambda: download(repo_id, FILE_NAME, repo_type=KIND, revision=commit), again=_AGAIN)
    try:
        return read_manifest(Path(path).parent)
    except UserError as error:
        raise wrong from error


def _find_difference(listed: Mapping[str, RemoteFile], manifest: Manifest) -> str | None:
    """Return the first file that the Hub lists otherwise than the manifest, before any of them is loaded."""
    stated = {item.path: item for item in manifest.outputs}
    for name in sorted(listed.keys() | stated.keys()):
        if name not in listed or name not in stated:
            return f"{make_visible(name, 80)} is {'missing' if name in stated else 'not in the manifest'}"
        if listed[name].size != stated[name].bytes:
            return f"{name} has {listed[name].size:,} bytes, not {stated[name].bytes:,}"
        if listed[name].sha256 not in (None, stated[name].sha256):  # which the Hub lists of large files
            return f"{name} differs from its digest"
    return None


def _copy(source: Path, target: Path) -> int:
    """Copy a file out of the cache instead of linking it: editing it must not damage the cache."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    return target.stat().st_size
