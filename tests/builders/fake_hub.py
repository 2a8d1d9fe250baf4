"""A Hub in memory, as its client shows it, with faults to order; calls must fit the signatures of the real client."""

import hashlib
import inspect
import pickle
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
from manifests.publishing.hub import Hub

#: What happens at a call: a status; `drop` (no answer); `lose` (all is done, but the answer is lost); an act before it.
Fault = int | str | Callable[[], object]
LFS = (".parquet", ".png", ".bin")


@dataclass(frozen=True)
class File:
    data: bytes
    lfs: bool = False

    def entry(self, path: str) -> RepoFile:
        """As the Hub lists it: of a large file, the repository's own blob is a pointer."""
        facts = {"oid": hashlib.sha256(self.data).hexdigest(), "size": len(self.data), "pointerSize": 100}
        blob = blob_sha1(b"pointer to " * self.lfs + self.data)
        return RepoFile(path=path, size=len(self.data), oid=blob, **({"lfs": facts} if self.lfs else {}))


@dataclass
class Repo:
    private: bool = False
    trees: dict[str, dict[str, File]] = field(default_factory=dict)  # by commit
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    log: list[tuple[str, str, str]] = field(default_factory=list)  # branch, commit, title
    card: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, tree: dict[str, File], title: str = "Update") -> str:
        oid = hashlib.sha1(f"{len(self.log)} {branch} {sorted(tree.items(), key=str)}".encode()).hexdigest()
        self.trees[oid], self.branches[branch] = tree, oid
        self.log.append((branch, oid, title))
        return oid

    def files(self, revision: str = "main") -> dict[str, bytes]:
        tree = self.trees[self.branches.get(revision, revision)]
        return {name: file.data for name, file in tree.items() if name != ".gitattributes"}

    def edit(self, branch: str = "main", **files: bytes | None) -> str:
        new = {name: File(data, name.endswith(LFS)) for name, data in files.items() if data is not None}
        old = self.trees[self.branches[branch]].items()
        return self.commit(branch, {name: file for name, file in old if name not in files} | new)


def refuse(status: int, message: str, kind: type[HfHubHTTPError] = HfHubHTTPError) -> HfHubHTTPError:
    response = httpx.Response(status, request=httpx.Request("GET", "http://hub/api"))
    return kind(f"{status} Client Error\n\n{message}", response=response, server_message=message)


class FakeHub:
    """Repositories; `requests` counts the calls. With a `store`, what is written is there for other processes."""

    def __init__(self, folder: Path, store: Path | None = None) -> None:
        self.folder, self.store = folder, store
        self.repos: dict[str, Repo] = pickle.loads(store.read_bytes()) if store is not None and store.exists() else {}
        self.faults: dict[str, Fault] = {}  # by call
        self.requests: Counter[str] = Counter()
        self.rights, self.message = "write", "ordered by the test"

    def make(self, repo_id: str, *, private: bool = False) -> Repo:
        repo = self.repos[repo_id] = Repo(private)
        repo.commit("main", {".gitattributes": File(b"*.parquet filter=lfs\n")})
        return repo

    def install(self, patch: pytest.MonkeyPatch | None = None) -> None:
        (patch or pytest.MonkeyPatch()).setattr(Hub, "api", lambda _hub: self)

    def __getattr__(self, name: str) -> Any:
        """A call of the client: checked against its signature, counted, broken where that is ordered, answered below."""
        kind = "get_info" if name.endswith("_info") else "download" if name.endswith("_download") else name
        answer = getattr(type(self), f"_{kind}", None)
        if answer is None:
            raise AttributeError(name)
        absent = dict.fromkeys(("revision", "local_dir", "parent_commit", "private", "filename"))

        def call(*arguments: Any, **named: Any) -> Any:
            given = inspect.signature(getattr(HfApi, name)).bind(None, *arguments, **named).arguments
            self.requests[name] += 1
            fault = self.faults.get(name)
            if callable(fault):
                fault()
            elif isinstance(fault, int):
                raise refuse(fault, self.message)
            elif fault == "drop":
                raise httpx.ConnectError("the connection was dropped")
            if name.startswith("create") and self.rights != "write":
                raise refuse(*((403, "You don't have the rights to do this") if self.rights else (401, "who?")))
            done = answer(self, Namespace(**{**absent, **given}))
            if name.startswith("create") and self.store is not None:
                new = self.store.with_suffix(".new")  # no name that a killed command would leave
                new.write_bytes(pickle.dumps(self.repos))
                new.replace(self.store)
            if fault == "lose":
                raise httpx.ReadError("the answer was lost")
            return done

        return call

    def find(self, at: Any) -> tuple[Repo, str]:
        repo, revision = self.repos.get(at.repo_id), at.revision or "main"
        if repo is None or (repo.private and not self.rights):
            raise refuse(404, "Repository not found", RepositoryNotFoundError)
        oid = repo.branches.get(revision) or repo.tags.get(revision) or revision
        if oid not in repo.trees:
            raise refuse(404, "Invalid rev id", RevisionNotFoundError)
        return repo, oid

    def _list_repo_refs(self, at: Any) -> Any:
        refs = {"branches": self.find(at)[0].branches, "tags": self.find(at)[0].tags}
        return Namespace(**{k: [Namespace(name=n, target_commit=c) for n, c in ref.items()] for k, ref in refs.items()})

    def _list_repo_tree(self, at: Any) -> Any:
        repo, oid = self.find(at)
        return iter([file.entry(name) for name, file in sorted(repo.trees[oid].items())])

    def _list_repo_commits(self, at: Any) -> list[Any]:
        repo, head = self.find(at)
        return [Namespace(title=title) for _, oid, title in repo.log if oid == head]

    def _get_info(self, at: Any) -> Any:
        repo, oid = self.find(at)
        return Namespace(sha=oid, private=repo.private, card_data=Namespace(**repo.card))

    def _create_repo(self, at: Any) -> Any:
        return at.repo_id in self.repos or self.make(at.repo_id, private=bool(at.private))

    def _create_commit(self, at: Any) -> Any:
        repo, oid = self.find(at)
        if at.parent_commit not in (None, oid):
            raise refuse(412, "A commit has happened since. Please refresh and try again.")
        tree = dict(repo.trees[oid])
        for operation in at.operations:
            name = operation.path_in_repo
            if isinstance(operation, CommitOperationAdd):
                with operation.as_file() as file:
                    tree[name] = File(file.read(), name.endswith(LFS))
            else:
                del tree[name]
        return Namespace(oid=repo.commit(at.revision, tree, at.commit_message))

    def _download(self, at: Any) -> str:
        """One file, or all of them."""
        repo, oid = self.find(at)
        folder = Path(at.local_dir or self.folder / oid)
        for name in [at.filename] if at.filename else repo.trees[oid]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if at.local_dir or not (folder / name).exists():  # a cached file is not fetched again
                (folder / name).write_bytes(repo.trees[oid][name].data)
        return str(folder / (at.filename or ""))
