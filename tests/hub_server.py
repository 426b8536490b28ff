"""Local Hugging Face hub with one model."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Served files and received requests."""

    files: dict[str, bytes]
    refuse: tuple[int, str] | None = None
    """Status and X-Error-Code of every response about the model."""
    gated: bool = False
    """True if the files are refused and the description is not."""
    url: str = ""
    requests: list[str] = field(default_factory=list)
    """Requested paths."""


def hub_of(folder: Path) -> Hub:
    return Hub({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = unquote(urlparse(self.path).path)
            hub.requests.append(path)
            if hub.refuse:
                self.answer(hub.refuse[0], b"{}", {"X-Error-Code": hub.refuse[1]})
            elif "/revision/" in path or path == "/api/models/some/model":
                self.describe(path.rpartition("/revision/")[2])
            elif "/tree/" in path:
                self.answer(200, json.dumps([_entry(name, text) for name, text in hub.files.items()]).encode())
            else:
                self.file(path.rpartition("/")[2])

        def describe(self, revision: str) -> None:
            if revision not in ("main", COMMIT, "/api/models/some/model"):
                self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
                return
            siblings = [{"rfilename": name} for name in hub.files]
            self.answer(200, json.dumps({"id": "some/model", "sha": COMMIT, "siblings": siblings}).encode())

        def file(self, name: str) -> None:
            if hub.gated:
                self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
                return
            if name not in hub.files:
                self.answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
                return
            text = hub.files[name]
            etag = hashlib.sha256(text).hexdigest()
            self.answer(200, text, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

        def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for key, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

    return Handler


def _entry(name: str, text: bytes) -> dict[str, object]:
    return {"type": "file", "path": name, "size": len(text), "oid": hashlib.sha1(text).hexdigest()}
