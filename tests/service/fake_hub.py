"""A small server that speaks the part of the Hugging Face hub's protocol that downloads use."""

import hashlib
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class FakeHub:
    """Serves `files` of one repository at one commit, under the branch `main`; `hang` makes it silent."""

    repo: str
    files: dict[str, bytes]
    commit: str = "a" * 40
    older: dict[str, dict[str, bytes]] = field(default_factory=dict)  # commit → files
    hang: bool = False
    status: int | None = None
    silent_on: str | None = None  # a file whose requests are never answered
    requests: list[str] = field(default_factory=list)
    _released: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "FakeHub":
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def _handler(hub) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.answer(body=False)

            def do_GET(self) -> None:
                self.answer(body=True)

            def answer(self, body: bool) -> None:
                hub.requests.append(f"{self.command} {self.path}")
                if hub.hang or (hub.silent_on and self.path.endswith(hub.silent_on)):
                    hub._released.wait(60)
                    return
                if hub.status is not None:
                    return self.error(hub.status, None)
                repo, _, rest = self.path.lstrip("/").partition("/resolve/")
                revision, _, name = rest.partition("/")
                if repo != hub.repo:
                    return self.error(404, "RepoNotFound")
                commits = {**hub.older, hub.commit: hub.files, "main": hub.files}
                if revision not in commits:
                    return self.error(404, "RevisionNotFound")
                content = commits[revision].get(name)
                commit = hub.commit if revision == "main" else revision
                if content is None:
                    return self.error(404, "EntryNotFound", commit)
                self.send_response(200)
                self.send_header("X-Repo-Commit", commit)
                self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if body:
                    self.wfile.write(content)

            def error(self, status: int, code: str | None, commit: str | None = None) -> None:
                self.send_response(status)
                if code is not None:
                    self.send_header("X-Error-Code", code)
                if commit is not None:
                    self.send_header("X-Repo-Commit", commit)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        return Handler
