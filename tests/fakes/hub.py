"""A Hugging Face Hub on loopback with one data set at one commit: what its client asks for, and no more."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def serve_hub(name: str, commit: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """Serve the files of the data set `name` at `commit`. Yield the address of the Hub."""

    class Hub(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def _answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for key, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(key.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            file = path.removeprefix(f"/datasets/{name}/resolve/{commit}/")
            if file in files:
                etag = f'"{hashlib.sha1(files[file]).hexdigest()}"'
                self._answer(200, files[file], etag=etag, x_repo_commit=commit)
            elif path == f"/api/datasets/{name}/revision/{commit}":
                listed = [{"rfilename": file} for file in files]
                self._answer(200, json.dumps({"id": name, "sha": commit, "siblings": listed}).encode())
            elif path.startswith(f"/api/datasets/{name}/tree/{commit}"):
                tree = [
                    {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for file, content in files.items()
                ]
                self._answer(200, json.dumps(tree).encode())
            else:
                self._answer(404, b"{}", x_error_code="RevisionNotFound")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
