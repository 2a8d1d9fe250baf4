"""Publish a finished folder after checks, screening and comparison, in one commit; fetch one as a whole."""

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.hf_api import RepoFile

from lemur_core.files import Json
from lemur_core.files.atomic import PAGE, atomic_folder, check_free, sha256_file
from lemur_core.files.errors import RetryableError, UserError
from lemur_core.files.foreign import FLOOR_BYTES
from lemur_core.files.markdown import make_visible, plural
from manifests.folders.kinds import Check, check_files, is_foreign
from manifests.folders.manifest import FILE_NAME, INDEX, SHARDS, Manifest, read_manifest
from manifests.provenance.swhid import blob_sha1
from manifests.publishing.hub import Hub, read_name
from manifests.publishing.secrets import check_digests, check_findings, screen
from manifests.publishing.staged import Staged, stage_files

#: The Hub's own file, which a repository has from its first commit on; and the file that makes it leave out others.
_ATTRIBUTES, _IGNORES = ".gitattributes", ".gitignore"
_BRIEF = 10.0  # seconds that a dry run waits for an answer of the Hub
#: Smaller files are sent from memory, as they were when they were checked.
_IN_MEMORY = 16 << 20
_LISTED = 20  # files of each kind; --json lists all of them


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
        return ", ".join(f"{len(names):,} {label}" for label, names in asdict(self).items())


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

    both = local.keys() & remote.keys()
    same = set(filter(is_same, both))
    names = (local.keys() - both, both - same, remote.keys() - both, same)
    return Changes(*(tuple(sorted(part)) for part in names))


@dataclass(frozen=True, slots=True)
class _Remote:
    """A repository, and the files at the head of one branch."""

    exists: bool = False
    head: str | None = None
    title: str = ""  # of the last commit
    private: bool | None = None
    files: Mapping[str, RepoFile] = field(default_factory=dict)


def _look(hub: Hub, repo_id: str, branch: str) -> _Remote:
    """Return the state of a repository. Raises: UserError if it has no such branch; the errors of the client."""
    api, about = hub.api(), dict[str, Any](repo_type="dataset")
    try:
        refs = api.list_repo_refs(repo_id, **about)
    except RepositoryNotFoundError:
        if branch != "main":
            raise UserError(f"{repo_id}: does not exist, and would have main alone; omit --revision") from None
        return _Remote()
    branches = {item.name: item.target_commit for item in refs.branches}
    if branch not in branches:
        known = ", ".join(sorted(branches)) or "none"
        raise UserError(f"{repo_id}: has no branch {branch}, only {known}; create it on the Hub first")
    head = branches[branch]
    title = api.list_repo_commits(repo_id, revision=head, **about)[0].title
    private = api.repo_info(repo_id, timeout=hub.answer_seconds, **about).private
    return _Remote(True, head, title, private, _list_files(api, repo_id, head))


def _list_files(api: HfApi, repo_id: str, commit: str) -> dict[str, RepoFile]:
    """Return the files of one commit, except the Hub's own."""
    listed = api.list_repo_tree(repo_id, recursive=True, revision=commit, repo_type="dataset")
    return {item.path: item for item in listed if isinstance(item, RepoFile) and item.path != _ATTRIBUTES}


def _check_conflicts(repo_id: str, remote: _Remote, kind: str, *, force: bool) -> None:
    """Check that the Hub would leave out no file, and that the last commit is of a folder of the same kind.

    Raises: UserError otherwise; of the second nothing with `force`.
    """
    if ignores := [name for name in remote.files if name.split("/")[-1] == _IGNORES]:
        raise UserError(f"{repo_id}: contains {ignores[0]}, with which the Hub ignores files; remove it there first")
    if not (force or not remote.files or remote.title.startswith(_title(kind))):
        commit = f"commit {(remote.head or '')[:12]} there, {remote.title!r}, publishes no {kind} of lemur"
        advice = "nothing was published; choose another --repo-id or --revision, or add --force to overwrite"
        raise UserError(f"{repo_id}: somebody else changed it: {commit}; {advice}")


def _title(kind: str) -> str:
    """Return the beginning of the first line of our commits; `Changes` follow."""
    return f"Publish {kind}: "


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
    withheld: tuple[Json, ...]  # code that is not published: source, license, and the number of blocks or codes
    notes: tuple[str, ...]
    unread: str | None = None  # why a dry run could not read the repository; all files are in `changes.added`

    @property
    def makes(self) -> bool:
        """True if publishing changes, or would change, anything there."""
        return bool(self.changes) or self.created

    def lines(self) -> Iterator[str]:
        """Yield what changes, a line each."""
        added = "add" if self.unread is None else "file"
        files = ((added, self.changes.added), ("change", self.changes.changed), ("remove", self.changes.removed))
        for label, names in files:
            yield from (f"{label:<8}{format_size(self.sizes[name]):>10}  {name}" for name in names[:_LISTED])
            if rest := names[_LISTED:]:
                size = format_size(sum(self.sizes[name] for name in rest))
                yield f"{label:<8}{size:>10}  {plural(len(rest), 'more file')}"
        for item in self.withheld:
            blocks = (
                f"the code of {plural(item['blocks'], 'block')}" if "blocks" in item else plural(item["codes"], "code")
            )
            yield f"withheld  {blocks} of {item['source']} ({item['license']})"
        if any("NOASSERTION" in item["license"] for item in self.withheld):
            yield "note      NOASSERTION: no license is known of the whole source; if it is yours, add a LICENSE"
        yield from (f"note      {text}" for text in self.notes)

    def summary(self, *, dry_run: bool) -> str:
        """Return the outcome in a line."""
        where, outcome = f"{self.repo_id} at {self.revision}", "nothing was published" + " (dry run)" * dry_run
        if self.unread is not None:
            size = f"{plural(len(self.changes.added), 'file')}, {format_size(sum(self.sizes.values()))}"
            return f"{where}: {size}; not compared with what is there: {self.unread}; {outcome}"
        if not self.makes:
            return f"{where}: nothing to publish, all {plural(len(self.changes.same), 'file')} there are the same"
        if self.commit is not None:
            outcome = f"commit {self.commit}"
        elif self.created:
            outcome = f"the repository would be created; {outcome}"
        return f"{where}: {self.changes}; {outcome}"

    def to_json(self) -> Json:
        """Return what `--json` prints."""
        facts = asdict(self)
        changes: Json = facts.pop("changes")
        return facts | changes | {"same": len(self.changes.same)}


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
    verify: Callable[[Path], Sequence[Check]],
    revision: str = "main",
    private: bool = False,
    force: bool = False,
    dry_run: bool = False,
    not_secret: Collection[str] = (),
    page: bool = False,
    confirm: Callable[[PublishReport], bool] | None = None,
    hub: Hub | None = None,
) -> PublishReport:
    """Publish a finished folder as a dataset repository of the Hub, in one commit or not at all.

    Args:
        repo_id: `OWNER/NAME`; created if it does not exist.
        verify: runs all checks of the folder; one that fails forbids publishing.
        revision: the branch; a new repository has `main`.
        private: make a new repository private; otherwise the owner's settings decide.
        force: overwrite changes by somebody else.
        dry_run: change nothing, and require no permission to; without the Hub, state what is known here.
        not_secret: digests of findings that are false positives.
        page: also publish its HTML page.
        confirm: called with the planned changes; nothing is published if it returns False.
    Returns: what was changed, or would be; `commit` is None after a dry run, or if it was not confirmed.
    Raises: UserError if the folder fails a check, contains what must not be published or changes meanwhile, somebody
        else changed the repository, or the Hub refuses; RetryableError if the Hub cannot be reached.
    """
    hub = hub or Hub()
    repo_id = read_name(repo_id)
    check_digests(not_secret)
    manifest = read_manifest(folder)
    failed = next((check for check in verify(folder) if not check.ok), None)
    if failed is not None:
        raise UserError(f"{folder}: {failed.name}: {failed.detail}; see `lemur verify`; create the folder again")
    with stage_files(folder, page=page) as ready:
        local = _read_unchanged(folder, manifest, ready)  # everything below refers to these bytes
        notes = check_findings(folder, screen(ready.files, folder), not_secret)
        unread = None
        look = partial(_look, replace(hub, answer_seconds=_BRIEF) if dry_run else hub, repo_id, revision)
        ask = partial(hub.call, repo_id, again="large files that have arrived are not sent again")
        try:
            remote = ask(look)
        except RetryableError as error:
            if not dry_run:
                raise
            remote, unread = _Remote(exists=True), str(error).partition("; ")[0]
        changes = compare(local, remote.files)
        sizes = {name: local[name].upload_info.size for name in (*changes.added, *changes.changed)}
        sizes |= {name: remote.files[name].size for name in changes.removed}
        new = not remote.exists
        plan = PublishReport(repo_id, revision, None, new, changes, sizes, ready.withheld, notes, unread)
        if private and remote.private is False:
            raise UserError(f"{repo_id}: is public already; make it private on the Hub first, or omit --private")
        if changes:
            _check_conflicts(repo_id, remote, manifest.kind, force=force)
        if dry_run or (plan.makes and confirm is not None and not confirm(plan)):
            return plan
        api, about = hub.api(), dict[str, Any](repo_type="dataset")
        if not remote.exists:
            ask(partial(api.create_repo, repo_id, private=private or None, exist_ok=True, **about))
            remote = ask(look)
            if remote.files or (private and not remote.private):
                raise UserError(f"{repo_id}: somebody else created it meanwhile; run again to compare")
        if not changes:
            return replace(plan, commit=remote.head)
        local = _read_unchanged(folder, manifest, ready)  # the user may have taken hours to confirm
        operations = [local[name] for name in (*changes.added, *changes.changed)]
        gone = [CommitOperationDelete(name, is_folder=False) for name in changes.removed]
        about |= {"revision": revision, "commit_message": f"{_title(manifest.kind)}{changes}"}
        # The Hub refuses it if the branch has moved; if only its answer is lost, a rerun finds that all is there.
        sent = partial(api.create_commit, repo_id, [*gone, *operations], parent_commit=remote.head, **about)
        return replace(plan, commit=ask(sent).oid)


def _read_unchanged(folder: Path, manifest: Manifest, ready: Staged) -> dict[str, CommitOperationAdd]:
    """Return the files as the Hub's client sends them, each with its SHA-256; a small one with its bytes.

    Raises: UserError if one was changed since the checks ran.
    """
    local = {}
    for name, path in ready.files.items():
        # Tables are always large files there.
        in_memory = path.stat().st_size <= _IN_MEMORY and path.suffix != ".parquet"
        local[name] = CommitOperationAdd(name, path.read_bytes() if in_memory else path)
    stated = read_manifest(ready.files[FILE_NAME].parent).outputs
    changed = [FILE_NAME] if read_manifest(folder) != manifest else []
    changed += [item.path for item in stated if local[item.path].upload_info.sha256.hex() != item.sha256]
    if changed:
        raise UserError(f"{folder}: {changed[0]} was changed meanwhile; nothing was published, run again")
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
    repo_id = read_name(repo_id)
    check_free(out, force=force)
    api, about = hub.api(), dict[str, Any](repo_type="dataset")
    ask = partial(hub.call, repo_id, again="finished downloads are kept")
    commit = ask(partial(api.repo_info, repo_id, revision=revision, timeout=hub.answer_seconds, **about)).sha
    assert commit is not None, "a revision is a commit"
    files = ask(partial(_list_files, api, repo_id, commit))
    listed = {name: files[name] for name in sorted(files) if not PAGE.fullmatch(name)}  # `open` builds our own
    if FILE_NAME not in listed:
        raise UserError(f"{repo_id}: has no {FILE_NAME} at {revision}; only folders published by lemur can be pulled")
    path = Path(ask(partial(api.hf_hub_download, repo_id, FILE_NAME, revision=commit, **about)))
    try:
        if path.stat().st_size > FLOOR_BYTES:
            raise UserError(f"{path}: too large")
        manifest = read_manifest(path.parent)
    except UserError as error:
        path.resolve().unlink()  # it may be damaged in the cache alone
        what = f"its {FILE_NAME} at {revision} is not one that lemur wrote"
        raise UserError(f"{repo_id}: {what}, or was damaged on the way: run again to see") from error
    different = f"{repo_id}: is not what its manifest states"
    there = {name: file.size for name, file in listed.items() if name != FILE_NAME}
    stated = {item.path: item.bytes for item in manifest.outputs}
    wrong = {f"{name}: {there.get(name, 'no')} bytes, not {size}" for name, size in stated.items() - there.items()}
    wrong |= {f"{name} is not in the manifest" for name in there.keys() - stated.keys()}
    foreign = (
        f"{name} is no file of this kind of folder" for name in sorted(stated) if is_foreign(manifest.kind, name)
    )
    if fault := min(wrong, default=None) or next(foreign, None):
        advice = "nothing else was loaded: take another --revision, or ask its owner to publish it again"
        raise UserError(f"{different}: {make_visible(fault, 160)}; {advice}")
    left = [_ATTRIBUTES, INDEX, f"{SHARDS}*"]
    cached = Path(ask(partial(api.snapshot_download, repo_id, revision=commit, ignore_patterns=left, **about)))
    with atomic_folder(out, force=force) as part:
        try:
            for name in listed:  # copied, not linked: editing a file must not damage the cache
                (part / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(cached / name, part / name)
        except OSError as error:
            raise UserError(f"{out}: {error.strerror or error}; free space, or choose another --out") from error
        check = check_files(part, manifest)
        if not check.ok:
            differing = (item.path for item in manifest.outputs if sha256_file(part / item.path) != item.sha256)
            for name in (FILE_NAME, *differing):  # else the client would take them from its cache again
                (cached / name).resolve().unlink(missing_ok=True)
            raise UserError(f"{different}: {check.detail}; run again to fetch it again, or take another --revision")
    return Pulled(commit, len(listed), sum(file.size for file in listed.values()))
