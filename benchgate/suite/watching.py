"""Where telemetry of a deployment comes from, as a suite says it: its page of metrics, what reads its accelerators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

from benchgate.errors import UsageError
from benchgate.suite.addresses import is_http_base
from benchgate.suite.fields import Expected
from benchgate.suite.references import reference_name, resolve_secret

AUTO = "auto"
OFF = "off"
NVIDIA_SMI = "nvidia-smi"


def check_page(text: str) -> str:
    """Let the address of a page of metrics pass, or a reference to one; ValueError, without credentials, otherwise."""
    if reference_name(text) is not None:
        return text
    if "@" in text:
        raise ValueError("holds credentials; put the whole address in a variable and write ${env:NAME}")
    return _page(text)


def _page(text: str) -> str:
    if not is_http_base(text) or urlsplit(text).fragment:
        raise ValueError(f'"{text[:60]}" is not the address of a page; write it like http://host:9400/metrics')
    return text


def resolve_page(key: str, text: str, environment: Mapping[str, str]) -> str:
    """What a suite says of `key`, its reference followed. UsageError for one that is not set or holds no address."""
    if text in (AUTO, OFF, NVIDIA_SMI):
        return text
    try:
        return _page(resolve_secret(text, environment)) if reference_name(text) is not None else check_page(text)
    except ValueError:
        # Its message may repeat a part of what the variable holds.
        raise UsageError(f"`{key}` refers to what is not the address of a page of metrics; correct it") from None


def _metrics(text: str) -> str:
    return text if text in (AUTO, OFF) else check_page(text)


def _gpu(text: str) -> str:
    return text if text == NVIDIA_SMI else check_page(text)


Metrics = Annotated[
    str, AfterValidator(_metrics), Expected('"auto", "off" or the address of a page like "http://host:9090/metrics"')
]
Gpu = Annotated[
    str, AfterValidator(_gpu), Expected('"nvidia-smi" or the page of a DCGM exporter like "http://host:9400/metrics"')
]
