"""How a deployment is reached beyond its address, as a suite says it: certificates, headers, a proxy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import AfterValidator, model_validator

from benchgate.suite.addresses import check_proxy
from benchgate.suite.fields import Expected, StrictSection, Text
from benchgate.suite.headers import check_headers
from benchgate.suite.references import REFERENCE_PATTERN, check_address, check_reference, reference_name
from benchgate.suite.written import Written, text

Address = Annotated[
    str, AfterValidator(check_address), Expected('an address like "http://host:8000" or a reference like "${env:NAME}"')
]
Reference = Annotated[
    str,
    AfterValidator(check_reference),
    Expected('a reference like "${env:NAME}"'),
    Written.of(text(REFERENCE_PATTERN)),
]
Headers = Annotated[
    dict[str, str], AfterValidator(check_headers), Expected('a mapping of header names to texts, like {x-team: "ml"}')
]


def refuse_two_authorizations(api_key: str | None, headers: Mapping[str, str]) -> None:
    """Raises ValueError where a key and a header would both say who asks."""
    if api_key is not None and "authorization" in headers:
        raise ValueError("`api_key` is sent as the header authorization, which `headers` sets too; keep one of them")


def _check_proxy(address: str) -> str:
    return address if reference_name(address) is not None else check_proxy(address)


ProxyAddress = Annotated[
    str, AfterValidator(_check_proxy), Expected('an address like "http://proxy:3128" or a reference like "${env:NAME}"')
]


class Tls(StrictSection):
    """Whose certificates are trusted and which one is shown. PEM files; paths are relative to the suite."""

    ca: Text | None = None  # trusted instead of what the system trusts
    cert: Text | None = None  # our own, with the chain to whoever vouches for it
    key: Text | None = None  # of `cert`, without a passphrase; not needed when it stands in the same file

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.key is not None and self.cert is None:
            raise ValueError("`key` belongs to a `cert`, which is missing")
        if self.ca is None and self.cert is None:
            raise ValueError("needs at least one of `ca` and `cert`; without `tls` the system's trust decides")
        return self
