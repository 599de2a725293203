"""A small server on the loopback address that speaks as much of the Hub's HTTP protocol as `snapshot_download` needs.

    with HubStandin({"org/name": folder}) as hub:      # every file of the folder is a file of the repository
        ...                                            # a process started with HF_ENDPOINT=hub.url talks to it

    commit, asked = serve_and_download(folder, "main", cache)   # once, with the real client

or `python -m labutils.hub_standin org/name=FOLDER [--port 8765]` in a terminal. What the client asks for:

    GET  /api/models/<repo>/revision/<revision>     which commit is that, and which files does it have
    GET  /api/models/<repo>/tree/<commit>           size, git hash and, for large files, sha256 of each
    HEAD /<repo>/resolve/<commit>/<file>            commit, ETag; large files live elsewhere: 302 with X-Linked-*
    GET  /lfs/<sha256>                              the bytes, from `Range: bytes=N-` on if asked
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class Repo:
    """One repository with one commit. A file whose name ends in one of `large` is served the way of LFS files."""

    name: str
    folder: Path
    commit: str = ""
    large: tuple[str, ...] = (".safetensors", ".bin")
    hashes: dict[str, tuple[str, str]] = field(default_factory=dict)

    def __post_init__(self):
        self.files = {path.relative_to(self.folder).as_posix(): path
                      for path in sorted(self.folder.rglob("*")) if path.is_file()}
        for name, path in self.files.items():
            data = path.read_bytes()
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            self.hashes[name] = (blob, hashlib.sha256(data).hexdigest())
        self.commit = self.commit or hashlib.sha1(json.dumps(self.hashes).encode()).hexdigest()

    def is_large(self, name: str) -> bool:
        return name.endswith(self.large)

    def entry(self, name: str) -> dict:
        """Return what the tree listing says of a file."""
        blob, sha256 = self.hashes[name]
        size = self.files[name].stat().st_size
        lfs = {"lfs": {"oid": sha256, "size": size, "pointerSize": 134}} if self.is_large(name) else {}
        return {"type": "file", "oid": blob, "size": size, "path": name, **lfs}


class HubStandin:
    """Serve repositories on 127.0.0.1 while the `with` block runs.

    repos: repository name -> folder. commits: repository name -> commit, where it must be a given one.
    `requests` lists what was asked: (method, path, Range header). `drops` lists after how many bytes the next
    transfers of large files break off; one entry is used up by each.
    """

    def __init__(self, repos: dict[str, Path], commits: dict[str, str] | None = None, port: int = 0):
        self.repos = {name: Repo(name, Path(folder), (commits or {}).get(name, "")) for name, folder in repos.items()}
        self.requests: list[tuple[str, str, str]] = []
        self.drops: list[int] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
        self.server.daemon_threads = True
        self.server.standin = self

    @property
    def port(self) -> int:
        return self.server.server_address[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage_url(self) -> str:
        """Where large files lie. The Hub keeps them on another host, which makes the client treat them differently."""
        return f"http://localhost:{self.port}"

    def __enter__(self) -> "HubStandin":
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error) -> None:
        self.server.shutdown()
        self.server.server_close()


DOWNLOAD = """
import sys
from huggingface_hub import snapshot_download
print(snapshot_download(sys.argv[1], revision=sys.argv[2], cache_dir=sys.argv[3]))
"""


def download(hub: HubStandin, repo: str, revision: str, cache: Path) -> str:
    """Download a revision of a repository from the stand-in into a Hub cache, with the real client. Return its commit.

    The client reads its settings once, when it is imported: hence a process of its own. Raises
    subprocess.CalledProcessError, with what the client said as `stderr`, where there is no such revision.
    """
    settings = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1,localhost",
                             "no_proxy": "127.0.0.1,localhost"}
    done = subprocess.run([sys.executable, "-c", DOWNLOAD, repo, revision, str(cache)], env=settings, check=True,
                          capture_output=True, text=True)
    return Path(done.stdout.strip()).name


def serve_and_download(folder: Path, revision: str, cache: Path, repo: str = "org/tiny") -> tuple[str, bool]:
    """Serve a folder as a repository for the time of one download. Return the commit that came, and whether the server
    was asked at all: what the cache has under its commit needs no server.
    """
    with HubStandin({repo: folder}) as hub:
        return download(hub, repo, revision, cache), bool(hub.requests)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def log_message(self, *parts):  # the requests are kept in a list instead
        pass

    def _answer(self) -> None:
        hub: HubStandin = self.server.standin
        path = unquote(urlsplit(self.path).path)
        hub.requests.append((self.command, path, self.headers.get("Range", "")))
        if match := re.fullmatch("/lfs/([0-9a-f]{64})", path):
            return self._bytes(match[1])
        match = (re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path)
                 or re.fullmatch(r"/([^/]+/[^/]+)/(resolve)/([^/]+)/(.+)", path))
        if not match:
            return self._error(404, "", "Not found")
        repo, what, revision = hub.repos.get(match[1]), match[2], match[3] or "main"
        if repo is None:  # the Hub does not tell strangers whether a repository exists
            return self._error(401, "RepoNotFound", "Repository not found")
        if revision not in ("main", repo.commit):
            return self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if what == "resolve":
            return self._resolve(repo, match[4])
        if what == "tree":
            return self._json([repo.entry(name) for name in repo.files])
        self._json({"_id": "0", "id": repo.name, "modelId": repo.name, "sha": repo.commit, "private": False, "tags": [],
                    "downloads": 0, "likes": 0, "siblings": [{"rfilename": name} for name in repo.files]})

    def _resolve(self, repo: Repo, name: str) -> None:
        common = {"X-Repo-Commit": repo.commit}
        if name not in repo.files:
            return self._error(404, "EntryNotFound", f"Entry not found: {name}", common)
        blob, sha256 = repo.hashes[name]
        if repo.is_large(name):
            size = repo.files[name].stat().st_size
            return self._send(302, b"", {**common, "Location": f"{self.server.standin.storage_url}/lfs/{sha256}",
                                         "X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(size)})
        self._send(200, repo.files[name].read_bytes(), {**common, "ETag": f'"{blob}"'})

    def _bytes(self, sha256: str) -> None:
        hub: HubStandin = self.server.standin
        found = [path for repo in hub.repos.values() for name, path in repo.files.items()
                 if repo.hashes[name][1] == sha256]
        if not found:
            return self._error(404, "EntryNotFound", "No such object")
        data = found[0].read_bytes()
        headers = {"ETag": f'"{sha256}"', "Accept-Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not asked:
            return self._send(200, data, headers, breakable=True)
        start = int(asked[1])
        end = min(int(asked[2] or len(data) - 1), len(data) - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
        self._send(206, data[start : end + 1], headers, breakable=True)

    def _json(self, content) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str, text: str, headers: dict | None = None) -> None:
        codes = {"X-Error-Code": code} if code else {}
        self._send(status, json.dumps({"error": text}).encode(), {**codes, "X-Error-Message": text, **(headers or {})})

    def _send(self, status: int, body: bytes, headers: dict, breakable: bool = False) -> None:
        hub: HubStandin = self.server.standin
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if breakable and hub.drops:
            self.wfile.write(body[: hub.drops.pop(0)])
            self.close_connection = True  # fewer bytes than Content-Length said: to the client the line is dead
            return
        self.wfile.write(body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repos", nargs="+", metavar="ORG/NAME=FOLDER")
    parser.add_argument("--port", type=int, default=8765)
    args = parser.parse_args()
    with HubStandin(dict(each.split("=", 1) for each in args.repos), port=args.port) as hub:
        for repo in hub.repos.values():
            print(f"{repo.name} at {repo.commit}")
        print(f"HF_ENDPOINT={hub.url}   (Ctrl-C ends it)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
