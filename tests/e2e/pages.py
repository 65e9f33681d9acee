"""Pages in a real Chromium: from files or as Jenkins serves them, asking for nothing else, complaining of nothing."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

BROWSER = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
IN_A_BROWSER = [
    pytest.mark.beside,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine; scripts/test installs it where it may"),
]
"""Marks of a module whose tests are in a browser."""
DESK: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 360, "height": 800}
PAPER: ViewportSize = {"width": 703, "height": 1030}
"""A4 within margins of 12 mm."""
OPEN_ALL = "for (const one of document.querySelectorAll('details')) one.open = true"
NO_SHADOWS = "for (const one of document.querySelectorAll('.scroll')) one.style.backgroundImage = 'none'"
"""Or axe could not tell the contrast of what stands in a table that scrolls."""
_JENKINS = "sandbox allow-same-origin; default-src 'none'; img-src 'self'; style-src 'self';"


@contextmanager
def launched() -> Iterator[Browser]:
    """One browser, for as many pages as are wanted."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER)
        yield browser
        browser.close()


def watched(opened: Page, address: str, *, silent: bool = True) -> Iterator[Page]:
    """A page that asks for itself alone and has nothing to complain of (`silent`), when it is opened and afterwards."""
    asked: set[str] = set()
    complaints: list[str] = []
    opened.on("request", lambda sent: asked.add(sent.url))
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(address)
    yield opened
    assert asked == {address}
    assert not (silent and complaints), complaints
    opened.close()


@contextmanager
def served_by_jenkins(page: Path) -> Iterator[str]:
    """The address of a page as Jenkins serves what jobs leave: no script, no style in it, no origin of its own."""

    class Served(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Security-Policy", _JENKINS)
            self.end_headers()
            self.wfile.write(page.read_bytes())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Served)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/{page.name}"
    server.shutdown()
    server.server_close()
