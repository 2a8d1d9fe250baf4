"""A Hub in memory, as its client shows it, with faults to order; calls must fit the signatures of the real client."""

import contextlib
import hashlib
import inspect
import pickle
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

import httpx2 as httpx
import pytest
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile

from manifests.provenance.swhid import blob_sha1
from manifests.publish.hub import Hub

LFS = (".parquet", ".png", ".bin")


@dataclass(frozen=True)
class File:
    data: bytes
    lfs: bool = False

    def entry(self, path: str) -> RepoFile:
        """As the Hub lists it: of a large file, the repository's own blob is a pointer."""
        more = {"lfs": self.lfs_facts()} if self.lfs else {}
        return RepoFile(path=path, size=len(self.data), oid=blob_sha1(b"pointer to " * self.lfs + self.data), **more)

    def lfs_facts(self) -> dict[str, object]:
        return {"oid": hashlib.sha256(self.data).hexdigest(), "size": len(self.data), "pointerSize": 100}


@dataclass
class Repo:
    private: bool = False
    trees: dict[str, dict[str, File]] = field(default_factory=dict)  # by commit
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    log: list[tuple[str, str]] = field(default_factory=list)  # branch and commit
    titles: dict[str, str] = field(default_factory=dict)
    card: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, tree: dict[str, File], title: str = "Update") -> str:
        content = f"{len(self.log)} {branch} {sorted((name, file.data) for name, file in tree.items())}"
        oid = hashlib.sha1(content.encode()).hexdigest()
        self.trees[oid], self.titles[oid], self.branches[branch] = tree, title, oid
        self.log.append((branch, oid))
        return oid

    def files(self, revision: str = "main") -> dict[str, bytes]:
        tree = self.trees[self.branches.get(revision, revision)]
        return {name: file.data for name, file in tree.items() if name != ".gitattributes"}

    def edit(self, branch: str = "main", **files: bytes | None) -> str:
        new = {name: File(data, name.endswith(LFS)) for name, data in files.items() if data is not None}
        old = self.trees[self.branches[branch]].items()
        return self.commit(branch, {name: file for name, file in old if name not in files} | new)


@dataclass
class Fault:
    """What happens at the `nth` call of a kind, counted from 1, and at the `times - 1` that follow.

    `what` is a status; or `drop` (no answer), `lose` (all is done, but the answer is lost); or something to do first.
    """

    kind: str
    what: int | str | Callable[[], object]
    nth: int = 1
    times: int = 1


def refuse(status: int, message: str, kind: type[HfHubHTTPError] = HfHubHTTPError) -> HfHubHTTPError:
    response = httpx.Response(status, request=httpx.Request("GET", "http://hub/api"))
    return kind(f"{status} Client Error\n\n{message}", response=response, server_message=message)


_WRITES = ("create", "branch", "commit")


class FakeHub:
    """Repositories; `requests` counts the calls by kind. With a `store`, what is written is there for other processes."""

    def __init__(self, folder: Path, store: Path | None = None) -> None:
        self.folder, self.store, self.lock = folder, store, threading.RLock()
        self.repos: dict[str, Repo] = pickle.loads(store.read_bytes()) if store is not None and store.exists() else {}
        self.faults: list[Fault] = []
        self.requests: Counter[str] = Counter()
        self.rights, self.message = "write", "ordered by the test"

    def make(self, repo_id: str, *, private: bool = False) -> Repo:
        repo = self.repos[repo_id] = Repo(private)
        repo.commit("main", {".gitattributes": File(b"*.parquet filter=lfs\n")})
        return repo

    def install(self, patch: pytest.MonkeyPatch | None = None) -> None:
        (patch or pytest.MonkeyPatch()).setattr(Hub, "api", lambda _hub: self)

    def __getattr__(self, name: str) -> Any:
        """A call of the client: checked against its signature, counted, and broken where that is ordered."""
        if name not in ANSWERS:
            raise AttributeError(name)
        kind, answer = ANSWERS[name]

        def call(*arguments: Any, **named: Any) -> Any:
            given = inspect.signature(getattr(HfApi, name)).bind(None, *arguments, **named).arguments
            absent = dict.fromkeys(("revision", "local_dir", "parent_commit", "private"))
            with self.lock:
                return self._answer(kind, answer, Namespace(**{**absent, **given}))

        return call

    def _answer(self, kind: str, answer: Callable[["FakeHub", Any], Any], given: Any) -> Any:
        self.requests[kind] += 1
        due = (fault for fault in self.faults if fault.kind == kind)
        what = next((f.what for f in due if f.nth <= self.requests[kind] < f.nth + f.times), None)
        if callable(what):
            what()
        elif isinstance(what, int):
            raise refuse(what, self.message)
        elif what == "drop":
            raise httpx.ConnectError("the connection was dropped")
        if kind in _WRITES and self.rights != "write":
            raise refuse(*((403, "You don't have the rights to do this") if self.rights else (401, "who?")))
        done = answer(self, given)
        if kind in _WRITES and self.store is not None:
            new = self.store.with_suffix(".new")  # no name that a killed command would leave
            new.write_bytes(pickle.dumps(self.repos))
            new.replace(self.store)
        if what == "lose":
            raise httpx.ReadError("the answer was lost")
        return done

    def find(self, given: Any) -> tuple[Repo, str]:
        repo = self.repos.get(given.repo_id)
        if repo is None or (repo.private and not self.rights):
            raise refuse(404, "Repository not found", RepositoryNotFoundError)
        revision = given.revision or "main"
        oid = repo.branches.get(revision) or repo.tags.get(revision) or revision
        if oid not in repo.trees:
            raise refuse(404, "Invalid rev id", RevisionNotFoundError)
        return repo, oid


def list_refs(hub: FakeHub, given: Any) -> Any:
    refs = {"branches": hub.find(given)[0].branches, "tags": hub.find(given)[0].tags}
    return Namespace(**{k: [Namespace(name=n, target_commit=c) for n, c in ref.items()] for k, ref in refs.items()})


def info(hub: FakeHub, given: Any) -> Any:
    repo, oid = hub.find(given)
    return Namespace(sha=oid, private=repo.private, card_data=Namespace(**repo.card))


def commit(hub: FakeHub, given: Any) -> Any:
    repo, oid = hub.find(given)
    if given.parent_commit not in (None, oid):
        raise refuse(412, "A commit has happened since. Please refresh and try again.")
    tree = dict(repo.trees[oid])
    for operation in given.operations:
        name = operation.path_in_repo
        if not isinstance(operation, CommitOperationAdd):
            del tree[name]
            continue
        with operation.as_file() as file:
            tree[name] = File(file.read(), name.endswith(LFS))
    return Namespace(oid=repo.commit(given.revision, tree, given.commit_message))


def download(hub: FakeHub, given: Any) -> str:
    repo, oid = hub.find(given)
    path = Path(given.local_dir or hub.folder / oid, given.filename)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(repo.trees[oid][given.filename].data)
    return str(path)


def snapshot(hub: FakeHub, given: Any) -> str:
    repo, oid = hub.find(given)
    for name in repo.trees[oid]:
        with contextlib.suppress(ValueError):  # a name that no folder can hold
            download(hub, Namespace(**{**vars(given), "filename": name}))
    return str(hub.folder / oid)


def list_tree(hub: FakeHub, given: Any) -> Any:
    repo, oid = hub.find(given)
    return iter([file.entry(name) for name, file in sorted(repo.trees[oid].items())])


def list_commits(hub: FakeHub, given: Any) -> list[Any]:
    repo, oid = hub.find(given)
    return [Namespace(commit_id=oid, title=repo.titles[oid])]


#: By method of the client the kind of the call, and the answer; those of `_WRITES` need the right to write.
ANSWERS: dict[str, tuple[str, Callable[[FakeHub, Any], Any]]] = {
    "list_repo_refs": ("refs", list_refs),
    "list_repo_tree": ("tree", list_tree),
    "list_repo_commits": ("commits", list_commits),
    **dict.fromkeys(("repo_info", "dataset_info", "model_info"), ("info", info)),
    "create_repo": (
        "create",
        lambda hub, at: at.repo_id in hub.repos or hub.make(at.repo_id, private=bool(at.private)),
    ),
    "create_branch": ("branch", lambda hub, at: hub.find(at)[0].branches.setdefault(at.branch, hub.find(at)[1])),
    "create_commit": ("commit", commit),
    "hf_hub_download": ("download", download),
    "snapshot_download": ("snapshot", snapshot),
}
