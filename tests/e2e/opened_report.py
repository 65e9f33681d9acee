"""The report of a blocked candidate, opened in a browser: a plugin (`pytest_plugins`) of the modules that look."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchgate.model.verdict import GuardResult, Outcome, Verdict
from tests.e2e.pages import DESK, PHONE, launched, watched
from tests.fakes import evidence as fake
from tests.fakes import hostile
from tests.fakes.rendered import render_html

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_OTHERS = tuple(fake.check(f"{one}-c4", one) for one in (Outcome.INVALID, Outcome.INCONCLUSIVE, Outcome.WARN))
_WAIVED = replace(fake.check("waived-c4", Outcome.BLOCK), waiver=hostile.waiver("SRV-1"))
_TRIPPED = GuardResult("client-saturated", True, "the client was late", "send from more workers", ("load",))
_BLOCKED = fake.verdict(Outcome.BLOCK)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for the tests of a module."""
    with launched() as one:
        yield one


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    """What the report is of: checks of every outcome, one of them waived, and a guard that tripped."""
    return replace(_BLOCKED, checks=(*_BLOCKED.checks, *_OTHERS, _WAIVED), guards=(*_BLOCKED.guards, _TRIPPED))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, verdict: Verdict) -> Path:
    """The report of a blocked candidate, with every part that a report can have and checks of every outcome."""
    plain = fake.evidence()
    telemetry = tuple(hostile.window(observation, "vllm") for observation in plain.load)
    evidence = replace(plain, telemetry=telemetry, divergence=hostile.divergence("t1"), noise=hostile.noise("c4"))
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_html(evidence, verdict), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page(browser: Browser, report: Path) -> Iterator[Page]:
    """The report opened from its file at the width of a telephone, without JavaScript."""
    opened = browser.new_page(viewport=PHONE, java_script_enabled=False)
    yield from watched(opened, report.as_uri())


@pytest.fixture(scope="module")
def live(browser: Browser, report: Path) -> Iterator[Page]:
    """The report opened from its file on a desk, with JavaScript; what it does is undone by `fresh`."""
    opened = browser.new_page(viewport=DESK)
    opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.set_default_timeout(10_000)
    yield from watched(opened, report.as_uri())


@pytest.fixture
def fresh(live: Page, report: Path) -> Page:
    """The same page as if nobody had touched it."""
    live.emulate_media(media="screen", color_scheme="light")
    live.goto(report.as_uri())
    return live
