"""Commits of git repositories: texts only, at depth one, without a checkout, so that filters and links have no effect.

The Python files of a commit are a source. Its tests, documents and configurations are kept, too: what runs its own
models reads them.

git is prevented from prompting and from running anything that a repository contains.
"""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from packaging.version import InvalidVersion, Version

from extract.sources.contents import (
    PackageSource,
    check_bounds,
    is_about_code,
    is_safe,
    keep_files,
    keep_paths,
    keep_source,
    package_folders,
    read_record,
    read_source,
    record,
    store_folder,
    workspace,
)
from extract.sources.metadata import is_text, read_facts
from lemur_core.files.errors import RetryableError, UsageError, UserError
from lemur_core.files.progress import note

Run = Callable[..., bytes]  # `run_git` for one repository

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHORT = 12
_FETCH = ("fetch", "--quiet", "--no-tags", "--recurse-submodules=no", "--filter=blob:none")
_NO_COMMIT = re.compile("not our ref|unadvertised object")
#: Files that are no code: how many, and how large one may be.
_MAX_OTHERS, _MAX_OTHER_BYTES = 4_000, 1 << 20
#: A transfer below this many bytes per second for this many seconds has failed.
_SLOW_BYTES, _SLOW_SECONDS = 1000, 60

_PROTOCOLS = "https:http:ssh:git:file"
#: Variables that would point git at another repository than the one named, e.g. inside a hook.
_LOCAL = re.compile(
    r"GIT_(?:DIR|WORK_TREE|COMMON_DIR|INDEX_FILE|NAMESPACE|PREFIX|(?:ALTERNATE_)?OBJECT_DIRECTOR(?:Y|IES)|SHALLOW_FILE)"
)
_UNREACHABLE = re.compile(
    r"resolve host|Connection|timed out|unable to access|early EOF|hung up|reset by peer|RPC failed|Could not connect"
)
_ANSWERED = re.compile(r"error: (?:401|403|404|410)|[Rr]epository not found|could not read Username|not appear to be")


@dataclass(frozen=True, slots=True)
class GitSpec:
    """`git+URL@REVISION`; an empty revision is the newest commit of the default branch."""

    url: str
    revision: str

    @property
    def name(self) -> str:
        """Name of the repository."""
        return self.url.rstrip("/").rpartition("/")[2].removesuffix(".git")

    @property
    def origin(self) -> str:
        """The URL without password or token, safe to show and record."""
        return re.sub(r"^(https?://)[^/@]*@", r"\1", self.url)


def parse_git(spec: str) -> GitSpec:
    """Split `git+URL[@REVISION]` into its parts.

    Raises: UsageError if it does not have that form.
    """
    url = spec.removeprefix("git+")
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    path, at, revision = path.partition("@")
    plain = url.isprintable() and " " not in url and "#" not in url
    if scheme not in ("https", "http", "ssh", "git", "file") or not path.strip("/") or not plain or host[:1] == "-":
        raise UsageError(f"{spec}: not a repository; write git+https://HOST/OWNER/NAME or …/NAME@REVISION")
    if revision.startswith("-") or bool(at) != bool(revision):
        raise UsageError(f"{spec}: {revision!r} is not a revision; write a branch, a tag or a commit of 40 digits")
    return GitSpec(f"{scheme}://{host}{slash}{path}", revision)


def find_commit(spec: str, digests: Collection[str]) -> PackageSource:
    """Return a commit as a source; fetched if it is not in the cache. A branch is looked up each time.

    Args: digests: pinned digests of the Python files, if any.
    Raises: UserError if the repository or revision does not exist, or its files differ from the pinned digest;
        RetryableError if the repository cannot be reached.
    """
    git = parse_git(spec)
    folder = _find_folder(git.origin)
    commit = git.revision if _COMMIT.fullmatch(git.revision) else _look_up(git, folder)
    source = read_source(folder / f"{commit}.json")
    if source is None or not others_of(source).is_dir():
        source = _fetch(git, commit, folder)
    if digests and source.digest not in digests:
        raise UserError(
            f"{git.origin}: the Python files of {commit[:_SHORT]} have the digest {source.digest}, not the pinned "
            f"{' or '.join(sorted(digests))}; pin the new one if the revision was meant to move"
        )
    return source


def others_of(source: PackageSource) -> Path:
    """Return the folder with the tests, documents and configurations of a commit, laid out as there."""
    return _find_folder(source.origin) / source.swhid.rpartition(":")[2]


def _find_folder(origin: str) -> Path:
    return store_folder("commits", hashlib.sha256(origin.encode()).hexdigest()[:32])


def _look_up(git: GitSpec, folder: Path) -> str:
    """Return the commit of a branch or tag; offline, the commit of the last lookup."""
    wanted = git.revision or "HEAD"
    seen = folder / f"rev-{hashlib.sha256(wanted.encode()).hexdigest()[:32]}.json"
    names = ["HEAD"]
    if git.revision:
        # The peeled tag first, because an annotated tag is an object itself, not a commit.
        names = [f"refs/tags/{wanted}^{{}}", f"refs/tags/{wanted}", f"refs/heads/{wanted}", wanted]
    try:
        commits = _list_remote(git, *names)
    except RetryableError:
        commit = read_record(seen)
        if not isinstance(commit, str):
            raise
        note(f"{git.origin}: cannot be reached; using {wanted} as of its last fetch, {commit[:_SHORT]}")
        return commit
    commit = next((commits[name] for name in names if name in commits), None)
    if commit is None:
        known = [name.removeprefix("refs/heads/") for name in _list_remote(git, "refs/heads/*")]
        hint = " (a commit must be given with all 40 digits)" if re.fullmatch(r"[0-9a-f]{4,39}", wanted) else ""
        raise UserError(f"{git.origin}: no branch or tag {wanted!r}{hint}; branches: {', '.join(known[:8]) or 'none'}")
    record(seen, commit)
    return commit


def _list_remote(git: GitSpec, *patterns: str) -> dict[str, str]:
    """Return commits by the full names of branches and tags."""
    listed = run_git(git.origin, None, "ls-remote", "--", git.url, *patterns).decode("utf-8", "replace")
    return {name: commit for commit, _, name in (line.partition("\t") for line in listed.splitlines())}


def _fetch(git: GitSpec, commit: str, folder: Path) -> PackageSource:
    """Return one commit without its history; only the blobs that are read are fetched, if the server can do that."""
    note(f"fetching {git.name} at {commit[:_SHORT]} with git")
    with _fetched(git, commit) as run:
        blobs = _list_blobs(run, commit)
        python = keep_paths(blobs)
        texts = [path for path in blobs if is_text(path)]
        packages = package_folders(python)
        others = sorted(path for path in blobs.keys() - set(python) if is_about_code(path, packages))[:_MAX_OTHERS]
        data = _read(git, commit, run, blobs, {*python, *texts, *others})
    small = {path: data[path] for path in others if len(data[path]) <= _MAX_OTHER_BYTES}
    keep_files(small, folder / commit, git.origin)
    return keep_source(
        {path: data[path] for path in python},
        read_facts({path: data[path] for path in texts}),
        folder,
        git.origin,
        name=f"{git.name}@{commit[:_SHORT]}",
        kind="git",
        version=commit[:_SHORT],
        origin=git.origin,
        revision=commit,
    )


def fetch_files(url: str, version: Version, choose: Callable[[list[str]], Iterable[str]]) -> dict[str, bytes]:
    """Return files of a repository as they were at a release, or at the last one before it of the same series.

    If no tag is of that series, then as they are now.

    Args: choose: which of its paths are wanted.
    Returns: contents by path.
    Raises: as `run_git` does; UserError if the files are too large.
    """
    git = parse_git(f"git+{url}")
    tags: dict[Version, str] = {}
    listed = _list_remote(git, "HEAD", "refs/tags/*")
    for name, tagged in listed.items():
        # `v1.2`, `release-1.2`; the commit of an annotated tag is listed last.
        with contextlib.suppress(InvalidVersion):
            tags[Version(re.sub(r"\A\D*", "", name.removeprefix("refs/tags/").removesuffix("^{}")))] = tagged
    last = max((tag for tag in tags if tag <= version and tag.release[:2] == version.release[:2]), default=None)
    commit = tags[last] if last is not None else listed.get("HEAD")
    if commit is None:
        return {}
    note(f"fetching the tests of {git.name} at {last or commit[:_SHORT]} with git")
    with _fetched(git, commit) as run:
        blobs = _list_blobs(run, commit)
        return _read(git, commit, run, blobs, choose(sorted(blobs)))


@contextlib.contextmanager
def _fetched(git: GitSpec, commit: str) -> Iterator[Run]:
    """Yield `run_git` for a repository with one commit."""
    with workspace() as work:
        run_git(git.origin, None, "init", "--quiet", "--bare", "--template=", str(work / "repository"))
        run = partial(run_git, git.origin, work / "repository")
        run("config", "remote.origin.url", git.url)
        run("config", "remote.origin.promisor", "true")
        try:
            run(*_FETCH, "--depth=1", "origin", commit)
        except GitError as error:
            if _NO_COMMIT.search(str(error)):
                raise GitError(f"{git.origin}: no commit {commit} can be fetched; check the revision") from error
            raise
        yield run


def _list_blobs(run: Run, commit: str) -> dict[str, str]:
    """Return the ids of plain files by path: neither links nor submodules."""
    blobs: dict[str, str] = {}
    for line in run("ls-tree", "-r", "-z", commit).split(b"\0"):
        head, _, raw = line.partition(b"\t")
        path = raw.decode("utf-8", "surrogateescape")
        if head.startswith(b"100") and is_safe(path):
            blobs[path] = head.split()[2].decode()
    return blobs


def _read(git: GitSpec, commit: str, run: Run, blobs: Mapping[str, str], paths: Iterable[str]) -> dict[str, bytes]:
    """Return the contents of some files of a commit by path. Raises: UserError if they are too large."""
    chosen = {path: blobs[path] for path in paths}
    wanted = sorted(set(chosen.values()))
    absent = run("rev-list", "--objects", "--missing=print", "--no-walk", commit).splitlines()
    if missing := sorted({f"?{blob}".encode() for blob in wanted}.intersection(absent)):
        # Those that the first fetch left out, in one request: git would fetch each by itself when it is read.
        batch = ("-c", "fetch.negotiationAlgorithm=noop", *_FETCH, "--no-write-fetch-head", "--stdin", "origin")
        run(*batch, stdin=b"".join(line[1:] + b"\n" for line in missing))
    lines = "".join(f"{blob}\n" for blob in wanted).encode()
    # Sizes first: contents that are too large must not be read into memory.
    check_bounds(git.origin, map(int, run("cat-file", "--batch-check=%(objectsize)", stdin=lines).split()))
    contents = read_blobs(run, wanted)
    return {path: contents[blob] for path, blob in chosen.items()}


def read_blobs(run: Run, wanted: Sequence[str]) -> dict[str, bytes]:
    """Return the contents of the blobs of a repository, all read by one process.

    Args: run: `run_git` for the repository. wanted: ids of blobs that are there.
    Returns: the contents by id.
    Raises: as `run_git` does.
    """
    output = run("cat-file", "--batch", stdin="".join(f"{blob}\n" for blob in wanted).encode())
    contents: dict[str, bytes] = {}
    offset = 0
    for blob in wanted:
        end = output.index(b"\n", offset)
        size = int(output[offset:end].split()[2])
        contents[blob] = output[end + 1 : end + 1 + size]
        # Skip the line end of the header, and the one behind the content.
        offset = end + size + 2
    return contents


class GitError(UserError):
    """A command that failed in git or on the server."""


def run_git(shown: str, repository: Path | None, *arguments: str, stdin: bytes = b"") -> bytes:
    """Return the output of a git command.

    Args: shown: subject of the command, for messages.
    Returns: what git wrote to its standard output.
    Raises: RetryableError if the server cannot be reached; GitError if git fails otherwise; UserError if there is
        no git.
    """
    program = shutil.which("git")
    if program is None:
        raise UserError(f"{shown}: git is not installed; install it, or name a released package instead")
    environment = {key: value for key, value in os.environ.items() if not _LOCAL.fullmatch(key)}
    environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1", "LC_ALL": "C"}
    environment |= {"GIT_ALLOW_PROTOCOL": _PROTOCOLS}
    # A user's own command stays; without one, ssh must not ask for a password.
    environment.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes")
    command = [program, "-c", f"core.hooksPath={os.devnull}", "-c", "gc.auto=0", "-c", "maintenance.auto=false"]
    command += ["-c", f"http.lowSpeedLimit={_SLOW_BYTES}", "-c", f"http.lowSpeedTime={_SLOW_SECONDS}"]
    if repository is not None:
        command += ["--git-dir", str(repository)]
    done = subprocess.run([*command, *arguments], input=stdin, capture_output=True, check=False, env=environment)
    if done.returncode != 0:
        raise _explain(shown, done.stderr.decode("utf-8", "replace"))
    return done.stdout


def _explain(shown: str, stderr: str) -> UserError:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    message = next((line for line in lines if line.startswith(("fatal:", "error:"))), (lines or ["no reason"])[-1])
    # A URL may hold a password or token.
    detail = re.sub(r"//[^/@\s]*@", "//", message.removeprefix("fatal:").removeprefix("error:").strip())
    if _UNREACHABLE.search(stderr) and not _ANSWERED.search(stderr):
        return RetryableError(f"{shown}: cannot be reached: {detail}; check the network, run again")
    return GitError(f"{shown}: {detail}; check the address, the revision and your access")
