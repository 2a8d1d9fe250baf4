"""Publish a finished folder after checks, screening and comparison, in one commit; fetch one as a whole."""

import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.hf_api import RepoFile

from lemur_core.files import Json
from lemur_core.files.atomic import atomic_folder, check_free
from lemur_core.files.errors import RetryableError, UserError
from lemur_core.files.foreign import FLOOR_BYTES
from lemur_core.files.markdown import make_visible, plural
from manifests.folders.kinds import Verifier, check_files
from manifests.folders.manifest import FILE_NAME, INDEX, SHARDS, Manifest, foreign_files, is_of_page, read_manifest
from manifests.provenance.swhid import blob_sha1
from manifests.publish.hub import COMMIT, Hub, check_names
from manifests.publish.secrets import check_digests, check_findings, list_refused, screen
from manifests.publish.staged import Staged, Withheld, stage_files

_KIND = "dataset"
#: The Hub's own file, which a repository has from its first commit on; and the file that makes it leave out others.
_ATTRIBUTES, _IGNORES = ".gitattributes", ".gitignore"
_BRIEF = 10.0  # seconds that a dry run waits for an answer of the Hub, once
#: Smaller files are sent from memory, as they were when they were checked.
_IN_MEMORY = 16 << 20
#: The first line of our commits; `Changes` follows.
_TITLE = re.compile(r"Publish (?P<kind>[\w-]+): \d")
_UNCHANGED = "nothing has been changed yet"
_LISTED = 20  # files of each kind before a question; a dry run and --json list all of them


# --- two lists of files, and what differs -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Changes:
    """Paths, sorted; those in `same` do not change."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    same: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)

    def __str__(self) -> str:
        counts = {"added": self.added, "changed": self.changed, "removed": self.removed, "same": self.same}
        return ", ".join(f"{len(names):,} {label}" for label, names in counts.items())


def compare(local: Mapping[str, CommitOperationAdd], remote: Mapping[str, RepoFile]) -> Changes:
    """Return the changes that make the files of the Hub equal to the local ones.

    Source: https://git-scm.com/book/en/v2/Git-Internals-Git-Objects and
    https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md (which digest names which file)
    """

    def is_same(name: str) -> bool:
        here, there = local[name], remote[name]
        if there.lfs:
            return here.upload_info.sha256.hex() == there.lfs.sha256
        with here.as_file() as file:
            return here.upload_info.size == there.size and blob_sha1(file.read()) == there.blob_id

    same = {name for name in local.keys() & remote.keys() if is_same(name)}
    return Changes(
        added=tuple(sorted(local.keys() - remote.keys())),
        changed=tuple(sorted((local.keys() & remote.keys()) - same)),
        removed=tuple(sorted(remote.keys() - local.keys())),
        same=tuple(sorted(same)),
    )


def read_file(name: str, path: Path) -> CommitOperationAdd:
    """Return a file as the Hub's client sends it, with its SHA-256; a small one with its bytes."""
    in_memory = path.stat().st_size <= _IN_MEMORY and path.suffix != ".parquet"  # tables are always large files there
    return CommitOperationAdd(name, path.read_bytes() if in_memory else path)


# --- a repository of the Hub --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Remote:
    """A repository, and the files at the head of one branch; if the branch does not exist, where it would start."""

    exists: bool = False
    has_branch: bool = False
    head: str | None = None
    private: bool | None = None
    files: Mapping[str, RepoFile] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Repository:
    """A dataset repository of the Hub, and the branch to publish on or to fetch."""

    hub: Hub
    repo_id: str
    branch: str

    def ask(self, work: Callable[..., Any], again: str = _UNCHANGED, **about: Any) -> Any:
        """Return the answer of a method of the client about this repository. Args: again: as for `Hub.call`."""
        return self.hub.call(self.repo_id, partial(work, self.repo_id, repo_type=_KIND, **about), again=again)

    def look(self) -> _Remote:
        """Return its current state. Raises: UserError if it cannot be read, or the branch is a tag."""
        return self.hub.call(self.repo_id, self._look, again=_UNCHANGED)

    def _look(self) -> _Remote:
        api = self.hub.api()
        try:
            refs = api.list_repo_refs(self.repo_id, repo_type=_KIND)
        except RepositoryNotFoundError:
            return _Remote()
        branches = {item.name: item.target_commit for item in refs.branches}
        if self.branch in {item.name for item in refs.tags} - branches.keys():
            raise UserError(f"{self.repo_id}: {self.branch} is a tag, which cannot move; name a branch")
        head = branches.get(self.branch) or branches.get("main")
        private = api.repo_info(self.repo_id, repo_type=_KIND, timeout=self.hub.answer_seconds).private
        return _Remote(True, self.branch in branches, head, private, self.list_files(head) if head else {})

    def list_files(self, commit: str) -> dict[str, RepoFile]:
        """Return the files of one commit, except the Hub's own; errors are the client's."""
        listed = self.hub.api().list_repo_tree(self.repo_id, recursive=True, revision=commit, repo_type=_KIND)
        return {item.path: item for item in listed if isinstance(item, RepoFile) and item.path != _ATTRIBUTES}

    def check_conflicts(self, remote: _Remote, kind: str, *, force: bool) -> None:
        """Check that the Hub would leave out no file, and that the last commit is of a folder of the same kind.

        Raises: UserError otherwise; of the second nothing with `force`.
        """
        if ignores := [name for name in remote.files if name.split("/")[-1] == _IGNORES]:
            raise UserError(
                f"{self.repo_id}: contains {ignores[0]}, with which the Hub ignores files; remove it there first"
            )
        if force or not remote.files or remote.head is None:
            return
        title = self.ask(self.hub.api().list_repo_commits, revision=remote.head)[0].title
        conflict = f"commit {remote.head[:12]} there, {title!r}, is not one of lemur"
        if (ours := _TITLE.match(title)) is not None:
            if ours["kind"] == kind:
                return
            conflict = f"it holds a folder of kind {ours['kind']}, this one is of kind {kind}"
        raise UserError(
            f"{self.repo_id}: somebody else changed it: {conflict}; nothing was published; choose another --repo-id or"
            " --revision, or add --force to overwrite"
        )

    def prepare(self, remote: _Remote, *, private: bool) -> _Remote:
        """Create the repository and the branch where they do not exist, and return the state with the branch."""
        api, again = self.hub.api(), "what exists already is kept"
        if not remote.exists:
            self.ask(api.create_repo, again, private=private or None, exist_ok=True)
            remote = self.look()
            if remote.files or (private and not remote.private):
                raise UserError(f"{self.repo_id}: somebody else created it meanwhile; run again to compare")
        if not remote.has_branch and remote.head is not None:
            self.ask(api.create_branch, again, branch=self.branch, revision=remote.head, exist_ok=True)
        return remote

    def commit(self, remote: _Remote, changes: Changes, local: Mapping[str, CommitOperationAdd], kind: str) -> str:
        """Make the changes in one commit, and return it.

        The Hub refuses the commit if the branch has moved from `remote.head`, so that a further attempt is safe. If it
        fails in any way, the head of the branch tells whether it has arrived.

        Raises: UserError if a file no longer matches `local`, another commit came first, or the Hub refuses one;
            RetryableError if it cannot be reached.
        """

        def attempt() -> str:
            additions = [local[name] for name in (*changes.added, *changes.changed)]
            # Made anew for each attempt: the client stores its progress in them.
            operations = [CommitOperationAdd(item.path_in_repo, item.path_or_fileobj) for item in additions]
            for before, now in zip(additions, operations, strict=True):
                if now.upload_info.sha256 != before.upload_info.sha256:
                    name = now.path_in_repo
                    raise UserError(f"{name}: was changed during publishing; nothing was published, run again")
            sent: list[CommitOperationAdd | CommitOperationDelete] = [
                *(CommitOperationDelete(name, is_folder=False) for name in changes.removed),
                *operations,
            ]
            message = f"Publish {kind}: {changes}"
            about: Json = {"repo_type": _KIND, "revision": self.branch, "parent_commit": remote.head}
            try:
                return self.hub.api().create_commit(self.repo_id, sent, commit_message=message, **about).oid
            except Exception as error:
                head = self.look().head
                if head is None or head == remote.head:
                    raise
                if compare(local, self.list_files(head)):
                    raise UserError(
                        f"{self.repo_id}: another commit, {head[:12]}, came in between; run again to compare"
                    ) from error
                return head

        return self.hub.call(self.repo_id, attempt, again="large files that have arrived are not sent again")


# --- publish ------------------------------------------------------------------------------------------------------


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
    refused: tuple[str, ...] = ()  # secrets and paths for which nothing may be published
    unread: str | None = None  # why a dry run could not read the repository; all files are in `changes.added`

    @property
    def makes(self) -> bool:
        """True if publishing changes, or would change, anything there."""
        return bool(self.changes) or self.created or self.creates_branch

    def lines(self, *, every: bool = False) -> Iterator[str]:
        """Yield what changes, a line each. Args: every: all files, however many."""
        added = "add" if self.unread is None else "file"
        files = ((added, self.changes.added), ("change", self.changes.changed), ("remove", self.changes.removed))
        for label, names in files:
            shown = len(names) if every else _LISTED
            yield from (f"{label:<8}{format_size(self.sizes[name]):>10}  {name}" for name in names[:shown])
            if rest := names[shown:]:
                size = format_size(sum(self.sizes[name] for name in rest))
                yield f"{label:<8}{size:>10}  {plural(len(rest), 'more file')}"
        if self.creates_branch:
            yield f"create    branch {self.revision}"
        for item in self.withheld:
            what = (
                f"the code of {plural(item.blocks, 'block')}" if item.noun == "block" else plural(item.blocks, "code")
            )
            yield f"withheld  {what} of {item.source} ({item.license})"
        yield from (f"note      {text}" for text in self.notes)
        yield from (f"refused   {text}" for text in self.refused)

    def summary(self, *, dry_run: bool) -> str:
        """Return the outcome in a line."""
        changes, outcome = str(self.changes), "nothing was published" + " (dry run)" * dry_run
        if self.unread is not None:
            size = f"{plural(len(self.changes.added), 'file')}, {format_size(sum(self.sizes.values()))}"
            changes = f"{size}; not compared with what is there: {self.unread}"
        elif not self.makes:
            same = plural(len(self.changes.same), "file")
            return f"{self.repo_id} at {self.revision}: nothing to publish, all {same} there are the same"
        elif self.commit is not None:
            outcome = f"commit {self.commit}" + f"; created branch {self.revision}" * self.creates_branch
        elif not dry_run:
            return f"{self.repo_id} at {self.revision}: {outcome}"
        elif self.created:
            changes += "; the repository would be created"
        return f"{self.repo_id} at {self.revision}: {changes}; {outcome}"

    def to_json(self) -> Json:
        """Return what `--json` prints."""
        facts = asdict(self)
        return {
            **{name: facts[name] for name in ("repo_id", "revision", "commit", "created")},
            "branch_made": self.creates_branch,
            **facts["changes"],
            "same": len(self.changes.same),
            "withheld": [item.entry for item in self.withheld],
            **{name: facts[name] for name in ("notes", "refused", "unread", "sizes")},
        }


def format_size(number: float) -> str:
    """Return bytes in the largest unit of which there is one."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} GiB"


def publish(
    folder: Path,
    repo_id: str,
    *,
    verify: Verifier,
    revision: str = "main",
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
    check_names(repo_id, revision)
    check_digests(not_secret)
    manifest = read_manifest(folder)
    failed = next((check for check in verify(folder) if not check.ok), None)
    if failed is not None:
        raise UserError(f"{folder}: {failed.name}: {failed.detail}; see `lemur verify`; create the folder again")
    with stage_files(folder, page=page, address=repo_id) as ready, hub.session():
        local = _read_unchanged(folder, manifest, ready)  # everything below refers to these bytes
        if dry_run:
            hub = replace(hub, delays=(), answer_seconds=min(hub.answer_seconds, _BRIEF))
        repository = _Repository(hub, repo_id, revision)

        def plan(remote: _Remote, **more: Any) -> PublishReport:
            changes = compare(local, remote.files)
            sizes = {name: local[name].upload_info.size for name in (*changes.added, *changes.changed)}
            sizes |= {name: remote.files[name].size for name in changes.removed}
            new = {"created": not remote.exists, "creates_branch": remote.exists and not remote.has_branch}
            facts: Json = {"changes": changes, "sizes": sizes, "withheld": ready.withheld, **new}
            return PublishReport(repo_id, revision, commit=None, **(facts | more))

        findings = screen(ready.files, folder)
        if dry_run and show is not None and (refused := list_refused(findings, not_secret)):
            show(plan(_Remote(), refused=tuple(map(str, refused)), unread="it was not asked"))
        notes = tuple(check_findings(folder, findings, not_secret))
        try:
            remote = repository.look()
        except RetryableError as error:
            if not dry_run:
                raise
            return plan(_Remote(), notes=notes, created=False, unread=str(error).partition("; ")[0])
        planned = plan(remote, notes=notes)
        if private and remote.private is False:
            raise UserError(f"{repo_id}: is public already; make it private on the Hub first, or omit --private")
        if planned.changes:
            repository.check_conflicts(remote, manifest.kind, force=force)
        if dry_run or (planned.makes and confirm is not None and not confirm(planned)):
            return planned
        remote = repository.prepare(remote, private=private)
        done = repository.commit(remote, planned.changes, local, manifest.kind) if planned.changes else remote.head
        assert done is not None, "a branch with nothing to change has a commit"
        return replace(planned, commit=done)


def _read_unchanged(folder: Path, manifest: Manifest, ready: Staged) -> dict[str, CommitOperationAdd]:
    """Return the files to publish. Raises: UserError if one was changed since the checks ran."""
    local = {name: read_file(name, path) for name, path in ready.files.items()}
    stated = read_manifest(ready.files[FILE_NAME].parent).outputs
    changed = [FILE_NAME] if read_manifest(folder) != manifest else []
    changed += [item.path for item in stated if local[item.path].upload_info.sha256.hex() != item.sha256]
    if changed:
        raise UserError(f"{folder}: {changed[0]} was changed meanwhile; run again")
    return local


# --- pull ---------------------------------------------------------------------------------------------------------


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
    check_names(repo_id, None if COMMIT.fullmatch(revision) else revision)
    check_free(out, force=force)
    repository, api, again = _Repository(hub, repo_id, revision), hub.api(), "finished downloads are kept"
    with hub.session():
        commit = repository.ask(api.repo_info, again, revision=revision, timeout=hub.answer_seconds).sha
        files = hub.call(repo_id, partial(repository.list_files, commit), again=again)
        listed = {name: files[name] for name in sorted(files) if not is_of_page(name)}  # `open` builds our own
        if FILE_NAME not in listed:
            raise UserError(
                f"{repo_id}: has no {FILE_NAME} at {revision}; only folders published by lemur can be pulled"
            )
        wrong = UserError(f"{repo_id}: its {FILE_NAME} at {revision} is not one that lemur wrote")
        if listed[FILE_NAME].size > FLOOR_BYTES:
            raise wrong
        path = repository.ask(api.hf_hub_download, again, filename=FILE_NAME, revision=commit)
        try:
            manifest = read_manifest(Path(path).parent)
        except UserError as error:
            raise wrong from error
        if (fault := _find_difference(listed, manifest)) is not None:
            raise UserError(
                f"{repo_id}: is not what its manifest states: {fault}; nothing else was loaded: take another"
                " --revision, or ask its owner to publish it again"
            )
        left = [_ATTRIBUTES, INDEX, f"{SHARDS}*"]
        cached = Path(repository.ask(api.snapshot_download, again, revision=commit, ignore_patterns=left))
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
