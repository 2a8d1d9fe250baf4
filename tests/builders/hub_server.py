"""A Hub of repositories on this machine, as far as the client's protocol goes, with faults to order.

Source: https://huggingface.co/docs/hub/api and https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md
"""

import base64
import contextlib
import hashlib
import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from manifests.provenance.swhid import blob_sha1

WRITER, READER = "hf_" + "W" * 34, "hf_" + "R" * 34
PAGE = 4  # files a page of a tree
LFS = (".parquet", ".png", ".bin")


@dataclass(frozen=True)
class File:
    data: bytes
    lfs: bool = False

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def pointer(self) -> bytes:
        return f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.data)}\n".encode()

    @property
    def oid(self) -> str:
        return blob_sha1(self.pointer if self.lfs else self.data)

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.oid


Tree = dict[str, File]


@dataclass
class Repo:
    private: bool
    trees: dict[str, Tree] = field(default_factory=dict)  # by commit
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    log: list[tuple[str, str]] = field(default_factory=list)  # branch and commit
    parents: dict[str, str] = field(default_factory=dict)
    card: dict[str, str] = field(default_factory=dict)

    titles: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, tree: Tree, title: str = "Update") -> str:
        oid = hashlib.sha1(
            f"{len(self.log)} {branch} {sorted((n, f.oid) for n, f in tree.items())}".encode()
        ).hexdigest()
        self.trees[oid], self.titles[oid] = tree, title
        if branch in self.branches:
            self.parents[oid] = self.branches[branch]
        self.branches[branch] = oid
        self.log.append((branch, oid))
        return oid

    def resolve(self, revision: str) -> str | None:
        return self.branches.get(revision) or self.tags.get(revision) or (revision if revision in self.trees else None)

    def files(self, revision: str = "main") -> dict[str, bytes]:
        tree = self.trees[self.resolve(revision) or ""]
        return {name: file.data for name, file in tree.items() if name != ".gitattributes"}

    def edit(self, branch: str = "main", **files: bytes | None) -> str:
        """Somebody's commit; None removes."""
        tree = dict(self.trees[self.branches[branch]])
        for name, data in files.items():
            if data is None:
                del tree[name]
            else:
                tree[name] = File(data, lfs=name.endswith(LFS))
        return self.commit(branch, tree)


@dataclass
class Fault:
    """What happens at the `nth` request of a kind, counted from 1, and at the `times - 1` that follow.

    `what` is a status; or drop (the connection ends half-way), lose (all is done, but the answer is not sent), hang; or
    something to do before the request is served. With `file`, only requests for that file count.
    """

    kind: str
    what: int | str | Callable[["HubServer"], object]
    nth: int = 1
    times: int = 1
    file: str = ""


class HubServer:
    """Repositories and large files; `requests` counts what was asked, by kind."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.objects: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.message = "ordered by the test"
        self.requests: Counter[str] = Counter()
        self.by_file: Counter[tuple[str, str]] = Counter()
        self.uploaded: Counter[str] = Counter()
        self.ranges: list[str] = []
        self.seen_tokens: set[tuple[str, str]] = set()  # kind of request, token
        self.lock = threading.RLock()
        self.closing = threading.Event()  # ends what hangs
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.http.daemon_threads = True
        self.http.hub = self  # type: ignore[attr-defined]
        self.endpoint = f"http://127.0.0.1:{self.http.server_port}"

    def make(self, repo_id: str, *, private: bool = False) -> Repo:
        repo = self.repos[repo_id] = Repo(private)
        repo.commit("main", {".gitattributes": File(b"*.parquet filter=lfs\n")})
        return repo

    def fault_of(self, kind: str, file: str) -> int | str | Callable[["HubServer"], object] | None:
        with self.lock:
            self.requests[kind] += 1
            self.by_file[kind, file] += 1
            for fault in self.faults:
                count = self.by_file[kind, fault.file] if fault.file else self.requests[kind]
                if fault.kind == kind and fault.file in ("", file) and fault.nth <= count < fault.nth + fault.times:
                    return fault.what
            return None

    @contextlib.contextmanager
    def serve(self) -> Iterator["HubServer"]:
        thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.closing.set()
            self.http.shutdown()
            self.http.server_close()


class RefusalError(Exception):
    def __init__(self, status: int, message: str, code: str = "") -> None:
        self.status, self.message, self.code = status, message, code


NAME = r"(?P<repo>[\w.-]+/[\w.-]+)"
API = r"/api/(?:datasets|models)"  # models are only read
ROUTES = [
    ("create", "POST", r"/api/repos/create"),
    ("yaml", "POST", r"/api/validate-yaml"),
    ("info", "GET", rf"{API}/{NAME}(/revision/(?P<rev>[^/]+))?"),
    ("refs", "GET", rf"/api/datasets/{NAME}/refs"),
    ("commits", "GET", rf"/api/datasets/{NAME}/commits/(?P<rev>[^/]+)"),
    ("tree", "GET", rf"{API}/{NAME}/tree/(?P<rev>[^/]+)(/(?P<path>.*))?"),
    ("branch", "POST", rf"/api/datasets/{NAME}/branch/(?P<rev>[^/]+)"),
    ("tag", "POST", rf"/api/datasets/{NAME}/tag/(?P<rev>[^/]+)"),
    ("preupload", "POST", rf"/api/datasets/{NAME}/preupload/(?P<rev>[^/]+)"),
    ("batch", "POST", rf"/datasets/{NAME}\.git/info/lfs/objects/batch"),
    ("upload", "PUT", r"/lfs/(?P<oid>[0-9a-f]{64})"),
    ("verify", "POST", r"/lfs/verify"),
    ("commit", "POST", rf"/api/datasets/{NAME}/commit/(?P<rev>[^/]+)"),
    ("resolve", "HEAD", rf"(?:/datasets)?/{NAME}/resolve/(?P<rev>[^/]+)/(?P<path>.+)"),
    ("download", "GET", rf"(?:/datasets)?/{NAME}/resolve/(?P<rev>[^/]+)/(?P<path>.+)"),
]
WRITES = {"create", "branch", "tag", "preupload", "batch", "commit"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16  # one packet an answer: else each one waits for an acknowledgment of its head

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def _serve(self) -> None:
        self.hub: HubServer = self.server.hub  # type: ignore[attr-defined]
        self.lose = False
        url = urlsplit(self.path)
        self.query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        route = next(
            (
                (kind, m)
                for kind, method, pattern in ROUTES
                if method == self.command and (m := re.fullmatch(pattern, url.path))
            ),
            None,
        )
        if route is None:
            self._body()
            self._answer(404, {"error": f"no route {self.command} {url.path}"})
            return
        self.kind, match = route
        self.given = {key: unquote(value) for key, value in match.groupdict().items() if value is not None}
        fault = self.hub.fault_of(self.kind, self.given.get("path", ""))
        try:
            if callable(fault):
                with self.hub.lock:
                    fault(self.hub)
            elif fault == "hang":
                self._body()
                self.hub.closing.wait(30)
                self._hang_up()
                return
            elif fault == "drop" and self.kind == "upload":
                self.rfile.read(int(self.headers["Content-Length"]) // 2)
                self._hang_up()
                return
            elif fault == "drop" and self.kind != "download":
                self._body()
                self._hang_up()
                return
            elif isinstance(fault, int):
                self._body()
                raise RefusalError(fault, self.hub.message)
            self.lose, self.half = fault == "lose", fault == "drop"
            body = self._body()
            with self.hub.lock:
                self._check_rights()
                getattr(self, f"_{self.kind}")(body)
        except RefusalError as refusal:
            headers = {"X-Error-Message": refusal.message} | ({"X-Error-Code": refusal.code} if refusal.code else {})
            self._answer(refusal.status, {"error": refusal.message}, headers)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_HEAD = _serve  # noqa: N815

    # --- what all have ------------------------------------------------------------------------------------------------

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        if self.lose:
            self._hang_up()
            return
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for key, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(key, value)
        if "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    @property
    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def _check_rights(self) -> None:
        self.hub.seen_tokens.add((self.kind, self._token))
        if self._token not in ("", WRITER, READER):
            raise RefusalError(401, "Invalid credentials in Authorization header")
        if self.kind in WRITES and not self._token:
            raise RefusalError(401, "Invalid username or password.")
        if self.kind in WRITES and self._token == READER:
            raise RefusalError(403, "You don't have the rights to do this")

    @property
    def _repo(self) -> Repo:
        repo = self.hub.repos.get(self.given["repo"])
        if repo is None or (repo.private and not self._token):
            raise RefusalError(404 if self._token else 401, "Repository not found", "RepoNotFound")
        return repo

    @property
    def _commit_oid(self) -> str:
        oid = self._repo.resolve(self.given.get("rev", "main"))
        if oid is None:
            raise RefusalError(404, "Invalid rev id", "RevisionNotFound")
        return oid

    # --- reading ------------------------------------------------------------------------------------------------------

    def _yaml(self, body: bytes) -> None:
        self._answer(200, {"errors": [], "warnings": []})

    def _info(self, body: bytes) -> None:
        repo, oid = self._repo, self._commit_oid
        siblings = [{"rfilename": name} for name in sorted(repo.trees[oid])]
        facts = {"id": self.given["repo"], "sha": oid, "private": repo.private, "siblings": siblings, "tags": []}
        facts |= {"cardData": repo.card} if repo.card else {}
        self._answer(200, {**facts, "gated": False, "disabled": False, "downloads": 0, "likes": 0})

    def _refs(self, body: bytes) -> None:
        def told(kind: str, refs: dict[str, str]) -> list[dict[str, str]]:
            return [{"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": oid} for name, oid in refs.items()]

        repo = self._repo
        self._answer(200, {"branches": told("heads", repo.branches), "tags": told("tags", repo.tags), "converts": []})

    def _commits(self, body: bytes) -> None:
        """Newest first."""
        repo, oid = self._repo, self._commit_oid
        facts = {"message": "", "authors": [], "date": "2024-01-01T00:00:00.000Z"}
        found = []
        while oid:
            found.append({"id": oid, "title": repo.titles[oid], **facts})
            oid = repo.parents.get(oid, "")
        self._answer(200, found)

    def _entries(self, tree: Tree) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        folders = {"/".join(name.split("/")[:depth]) for name in tree for depth in range(1, name.count("/") + 1)}
        found += [{"type": "directory", "oid": "0" * 40, "size": 0, "path": name} for name in folders]
        for name, file in tree.items():
            entry = {"type": "file", "oid": file.oid, "size": len(file.data), "path": name}
            if file.lfs:
                entry["lfs"] = {"oid": file.sha256, "size": len(file.data), "pointerSize": len(file.pointer)}
            found.append(entry)
        return sorted(found, key=lambda entry: entry["path"])

    def _tree(self, body: bytes) -> None:
        entries, below = self._entries(self._repo.trees[self._commit_oid]), self.given.get("path", "")
        if below:
            entries = [entry for entry in entries if entry["path"].startswith(f"{below}/")]
            if not entries:
                raise RefusalError(404, "no such entry", "EntryNotFound")
        if self.query.get("recursive", "false").lower() != "true":
            depth = below.count("/") + 1 if below else 0
            entries = [entry for entry in entries if entry["path"].count("/") == depth]
        start = int(self.query.get("cursor", 0))
        headers = {}
        if start + PAGE < len(entries):
            path = urlsplit(self.path).path
            asked = "&".join(f"{k}={quote(v)}" for k, v in self.query.items() if k != "cursor")
            headers["Link"] = f'<{self.hub.endpoint}{path}?{asked}&cursor={start + PAGE}>; rel="next"'
        self._answer(200, entries[start : start + PAGE], headers)

    def _resolve(self, body: bytes) -> None:
        oid = self._commit_oid
        file = self._repo.trees[oid].get(self.given["path"])
        if file is None:
            raise RefusalError(404, "Entry not found", "EntryNotFound")
        headers = {"X-Repo-Commit": oid, "ETag": f'"{file.oid}"', "Accept-Ranges": "bytes"}
        if file.lfs:
            headers |= {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(len(file.data))}
        self.facts = headers
        if self.kind == "resolve":
            self._answer(200, b"", {**headers, "Content-Length": str(len(file.data))})

    def _download(self, body: bytes) -> None:
        self._resolve(body)
        data = self._repo.trees[self._commit_oid][self.given["path"]].data
        headers, status = {**self.facts, "Content-Type": "application/octet-stream"}, 200
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end = int(match[1]), int(match[2] or len(data) - 1)
            self.hub.ranges.append(match[0])
            headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
            data, status = data[start : end + 1], 206
        if self.half:
            headers["Content-Length"] = str(len(data))
            self._answer(status, data[: len(data) // 2], headers)
            self.wfile.flush()
            self._hang_up()
        else:
            self._answer(status, data, headers)

    # --- writing ------------------------------------------------------------------------------------------------------

    def _create(self, body: bytes) -> None:
        asked = json.loads(body)
        repo_id = f"{asked['organization'] or 'owner'}/{asked['name']}"
        url = {"url": f"{self.hub.endpoint}/datasets/{repo_id}"}
        if repo_id in self.hub.repos:
            self._answer(409, {"error": "You already created this dataset repo", **url})
        else:
            self.hub.make(repo_id, private=asked.get("visibility") == "private")
            self._answer(200, url)

    def _branch(self, body: bytes) -> None:
        repo, name = self._repo, self.given["rev"]
        if name in repo.branches:
            raise RefusalError(409, "Reference already exists")
        start = repo.resolve(json.loads(body).get("startingPoint", "main"))
        assert start is not None
        repo.branches[name] = start
        self._answer(200, {})

    def _tag(self, body: bytes) -> None:
        repo, name, oid = self._repo, json.loads(body)["tag"], self._commit_oid
        if name in repo.tags:
            raise RefusalError(409, "Tag reference exists already")
        repo.tags[name] = oid
        self._answer(200, {})

    def _preupload(self, body: bytes) -> None:
        tree = self._repo.trees[self._commit_oid]
        files = []
        for item in json.loads(body)["files"]:
            there = tree.get(item["path"])
            mode = "lfs" if item["path"].endswith(LFS) else "regular"
            entry = {"path": item["path"], "uploadMode": mode, "shouldIgnore": item["path"].endswith(".ignored.txt")}
            files.append(entry | ({"oid": there.etag} if there else {}))
        self._answer(200, {"files": files})

    def _batch(self, body: bytes) -> None:
        objects = []
        for item in json.loads(body)["objects"]:
            entry = {"oid": item["oid"], "size": item["size"]}
            if item["oid"] not in self.hub.objects:
                upload = {"href": f"{self.hub.endpoint}/lfs/{item['oid']}", "header": {}}
                entry["actions"] = {
                    "upload": upload,
                    "verify": {"href": f"{self.hub.endpoint}/lfs/verify", "header": {}},
                }
            objects.append(entry)
        self._answer(200, {"transfer": "basic", "objects": objects})

    def _upload(self, body: bytes) -> None:
        if hashlib.sha256(body).hexdigest() != self.given["oid"]:
            raise RefusalError(400, "these are not the bytes of that name")
        self.hub.objects[self.given["oid"]] = body
        self.hub.uploaded[self.given["oid"]] += 1
        self._answer(200, {})

    def _verify(self, body: bytes) -> None:
        asked = json.loads(body)
        if len(self.hub.objects.get(asked["oid"], b"")) != asked["size"]:
            raise RefusalError(404, "no such object")
        self._answer(200, {})

    def _commit(self, body: bytes) -> None:
        repo, branch = self._repo, self.given["rev"]
        if branch not in repo.branches:
            raise RefusalError(404, "Invalid rev id", "RevisionNotFound")
        head, *operations = [json.loads(line) for line in body.decode().splitlines()]
        if head["value"].get("parentCommit", repo.branches[branch]) != repo.branches[branch]:
            raise RefusalError(412, "A commit has happened since. Please refresh and try again.")
        tree = dict(repo.trees[repo.branches[branch]])
        for operation in operations:
            key, value = operation["key"], operation["value"]
            if key == "file":
                tree[value["path"]] = File(base64.b64decode(value["content"]))
            elif key == "lfsFile":
                if value["oid"] not in self.hub.objects:
                    raise RefusalError(400, f"no object {value['oid']}")
                tree[value["path"]] = File(self.hub.objects[value["oid"]], lfs=True)
            elif key == "deletedFile":
                if value["path"] not in tree:
                    raise RefusalError(404, "A file with this name doesn't exist", "EntryNotFound")
                del tree[value["path"]]
            else:
                raise RefusalError(400, f"unknown operation {key}")
        oid = repo.commit(branch, tree, head["value"]["summary"])
        self._answer(
            200,
            {
                "success": True,
                "commitOid": oid,
                "commitUrl": f"{self.hub.endpoint}/datasets/{self.given['repo']}/commit/{oid}",
            },
        )
