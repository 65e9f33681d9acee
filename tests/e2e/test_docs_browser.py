"""The built documentation in a real browser: accessible, and never wider than a telephone."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from tests.e2e.pages import IN_A_BROWSER, launched

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [*IN_A_BROWSER, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
PAGES = (
    "index",
    "tutorial",
    "concepts",
    "how-to/gate-p95-ttft",
    "guides/load",
    "reference/suite",
    "background/measuring",
    "adr/02-blocks-as-units",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Build the site in a folder of its own, serve it and return its address."""
    folder = tmp_path_factory.mktemp("docs")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    zensical = Path(sys.executable).with_name("zensical")
    subprocess.run([zensical, "build", "--strict"], cwd=folder, check=True, capture_output=True)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder / "site")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as one:
        yield one


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("light", 400), ("dark", 1280)])
@pytest.mark.parametrize("name", PAGES)
def test_page_is_accessible_and_fits(
    browser: Browser, site: str, name: str, scheme: Literal["light", "dark"], width: int
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme="dark" if scheme == "dark" else "light"
    )
    page.goto(f"{site}/{name}.html", wait_until="networkidle")
    colours = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}  # all that changes
    options: dict[str, object] = {"resultTypes": ["violations"]}
    found = Axe().run(page, options=options | (colours if scheme == "dark" else {})).response["violations"]
    assert [(one["id"], [node["html"][:160] for node in one["nodes"]]) for one in found] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
