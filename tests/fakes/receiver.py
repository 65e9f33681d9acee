"""A real server on the loopback that takes what is sent to it, or does not, as a test says; its clock never sleeps."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from benchgate.integrations.webhook import Clock, Destination, destination
from tests.fakes import certificates

HANG_UP = 0


@dataclass
class Receiver:
    """A server that answers with these codes in turn (the last one for good), and what it was sent."""

    codes: Sequence[int]
    retry_after: str | None = None
    seen: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    port: int = 0
    slept: list[float] = field(default_factory=list)
    now: float = 1000.0

    @property
    def clock(self) -> Clock:
        def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            self.now += seconds

        return Clock(lambda: self.now, lambda: 1_700_000_000 + self.now, sleep)

    def to(self, path: str = "/hook?key=hidden", scheme: str = "http") -> Destination:
        return destination(f"{scheme}://localhost:{self.port}{path}", "the webhook")


@contextmanager
def receiving(codes: Sequence[int], *, retry_after: str | None = None, tls: str | None = None) -> Iterator[Receiver]:
    receiver = Receiver(codes, retry_after)

    class Served(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            code = codes[min(len(receiver.seen), len(codes) - 1)]
            received = {name.lower(): value for name, value in self.headers.items()}
            receiver.seen.append((self.command, self.path, received, body))
            if code == HANG_UP:
                self.close_connection = True
                return
            self.send_response(code)
            if retry_after is not None:
                self.send_header("Retry-After", retry_after)
            if 300 <= code < 400:
                self.send_header("Location", f"http://localhost:{receiver.port}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_PUT = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Served)
    if tls is not None:
        server.socket = certificates.serving(tls).wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a refused handshake is no news here
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
