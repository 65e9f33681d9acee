"""Where eval processes run in tests: a plugin (`pytest_plugins`) of the `test_quality_*` modules that start them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def surroundings() -> Iterator[None]:
    """The environment names a proxy that is not there."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            patch.setenv(name, "http://127.0.0.1:9")  # no eval may go there
        yield
