"""A server on the loopback address that answers as the Hub does, for ``HF_ENDPOINT``: listings, files and failures."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["Hub", "Repository", "serving"]

_LARGE = 4096
"""Bytes from which a file is stored elsewhere, to which the Hub redirects."""
_API = re.compile(r"/api/models/(?P<name>.+?)(/revision/(?P<revision>[^/]+)|/tree/(?P<tree>[^/]+)/?)?")
_FILE = re.compile(r"/(?P<name>.+?)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


@dataclass
class Repository:
    """A repository.

    Attributes:
        branches: Name to the directory with its files.
        token: The token that is required to see it; empty for a public one.
        accepted: The tokens of users that may read the files; None for all.
    """

    branches: Mapping[str, Path]
    token: str = ""
    accepted: tuple[str, ...] | None = None

    def commit(self, revision: str) -> str | None:
        """The commit of a branch or commit."""
        commits = {branch: hashlib.sha1(str(path).encode()).hexdigest() for branch, path in self.branches.items()}
        return commits.get(revision) or (revision if revision in commits.values() else None)

    def files(self, revision: str) -> dict[str, bytes]:
        """The contents of the files by name."""
        commit = self.commit(revision)
        (directory,) = {path for branch, path in self.branches.items() if self.commit(branch) == commit}
        paths = sorted(path for path in directory.rglob("*") if path.is_file())
        return {path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}


@dataclass
class Hub:
    """The repositories, what goes wrong, and the requests.

    Attributes:
        repositories: Id to repository.
        endpoint: The address.
        cut: Names of large files whose first answer ends in the middle.
        failing: Names of files that are answered by an error of the server.
        requests: Method, path, and the range that is asked for.
        fetched: Names of the files whose contents were sent.
    """

    repositories: dict[str, Repository]
    endpoint: str = ""
    cut: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    @property
    def storage(self) -> str:
        """The address of large files, which is another host."""
        return self.endpoint.replace("127.0.0.1", "localhost")


class _Handler(BaseHTTPRequestHandler):
    """Answers of one hub, which is an attribute of the server."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments: Any) -> None:
        """Print nothing."""

    def handle(self) -> None:
        """Answer the requests of a connection, which the other side may reset."""
        with suppress(ConnectionError):
            super().handle()

    @property
    def hub(self) -> Hub:
        found = self.server.__dict__["hub"]
        assert isinstance(found, Hub)
        return found

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if self._token == "hf_unknown":
            return self._fail(401, "", {"X-Error-Message": "Invalid credentials in Authorization header"})
        self.hub.requests.append((self.command, path, self.headers.get("Range", "")))
        if path.startswith("/lfs/"):
            if self._token:
                raise ValueError("a token was sent to another host")
            _, _, commit, name = path.split("/", 3)
            for repository in self.hub.repositories.values():
                if repository.commit(commit):
                    return self._send_range(name, repository.files(commit)[name])
            return self._fail(404, "")
        found = _API.fullmatch(path) or _FILE.fullmatch(path)
        repository = self._repository(found["name"]) if found else None
        if found is None or repository is None:
            return self._fail(404 if self._token else 401, "RepoNotFound" if self._token else "")
        named = found.groupdict()
        revision = named.get("revision") or named.get("tree") or "main"
        commit = repository.commit(revision)
        if commit is None:
            return self._fail(404, "RevisionNotFound")
        files = repository.files(commit)
        if "path" in named:
            return self._file(repository, commit, named["path"], files)
        if named["tree"]:
            return self._send(json.dumps([_listed(*each) for each in files.items()]).encode())
        siblings = [{"rfilename": name} for name in files]
        gated = "manual" if repository.accepted is not None else False
        info = {"id": named["name"], "modelId": named["name"], "sha": commit, "siblings": siblings, "gated": gated}
        return self._send(json.dumps({**info, "tags": [], "private": bool(repository.token)}).encode())

    @property
    def _token(self) -> str:
        return str(self.headers.get("Authorization", "")).removeprefix("Bearer ")

    def _repository(self, name: str) -> Repository | None:
        found = self.hub.repositories.get(name)
        return found if found is not None and found.token in ("", self._token) else None

    def _file(self, repository: Repository, commit: str, name: str, files: Mapping[str, bytes]) -> None:
        if repository.accepted is not None and self._token not in repository.accepted:
            return self._fail(403 if self._token else 401, "GatedRepo")
        if name in self.hub.failing:
            return self._fail(503, "")
        if name not in files:
            return self._fail(404, "EntryNotFound", {"X-Repo-Commit": commit})
        content = files[name]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_digest(content)}"'}
        if len(content) < _LARGE:
            return self._send_range(name, content, headers)
        linked = {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(len(content))}
        return self._send(b"", 302, {**headers, **linked, "Location": f"{self.hub.storage}/lfs/{commit}/{name}"})

    def _send_range(self, name: str, content: bytes, headers: Mapping[str, str] | None = None) -> None:
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        part, given = content[start:], {"Accept-Ranges": "bytes", **(headers or {})}
        if start:
            given["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if self.command == "GET":
            self.hub.fetched.append(name)
        end = None
        if name in self.hub.cut and self.command == "GET":
            self.hub.cut.remove(name)
            end = len(part) // 2
        self._send(part, 206 if start else 200, given, end)

    def _send(
        self, content: bytes, code: int = 200, headers: Mapping[str, str] | None = None, end: int | None = None
    ) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[:end])
        if end is not None:
            self.close_connection = True

    def _fail(self, code: int, error: str, headers: Mapping[str, str] | None = None) -> None:
        self._send(b"", code, {**({"X-Error-Code": error} if error else {}), **(headers or {})})


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _listed(name: str, content: bytes) -> dict[str, Any]:
    """The entry of a file in the listing of a repository."""
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": _digest(content)[:40]}
    if len(content) >= _LARGE:
        entry["lfs"] = {"oid": _digest(content), "size": len(content), "pointerSize": 134}
    return entry


@contextmanager
def serving(repositories: Mapping[str, Repository]) -> Iterator[Hub]:
    """Serve repositories.

    Args:
        repositories: Id to repository.
    """
    hub = Hub(dict(repositories))
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.__dict__["hub"] = hub
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
