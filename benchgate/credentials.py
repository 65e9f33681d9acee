"""The credentials that this process knows, and their redaction from every text that leaves it.

Whatever reads a credential registers it here: a reference of a suite, a header, the address of a store, a token of the
environment. Messages of servers, standard output and error, and files consult it, so that a credential that gets into a
text by any way is not in it when it is read. It is the last line of defence: no code puts a credential into a text.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from urllib.parse import quote, quote_plus, unquote, urlsplit

SHORTEST = 8
"""Characters of a credential below which it, or another spelling of it, is a part of ordinary text."""

REDACTED = "[redacted]"
_PART = 12  # characters of a credential's beginning or end that are not shown
_SECRET_NAME = re.compile(
    r"(?:.*_)?(?:key|apikey|pass|passwd|pat|credentials?|cookie)|.*(?:token|secret|password)", re.IGNORECASE
)
_SECRET_SETTING = re.compile(  # as a word of the name: `access_token` and no `max_tokens`, `auth` and no `author`
    r"(?:^|[_-])(?:(?:api)?keys?|auth|authorization|bearer|cookies?|credentials?|headers?|secrets?|passw\w*|token)(?:$|[_-])",
    re.IGNORECASE,
)
_PASSWORD_NAME = re.compile(r".*(?:pass|secret)", re.IGNORECASE)
_ORDINARY = re.compile(r"[A-Z]?[a-z]{,15}|[A-Z]{,15}|[0-9]{,15}")  # a word, a number
_PATH = re.compile(  # base64 may begin with a slash too
    r"/(?:app|builds?|config|data|dev|etc|github|home|keys?|mnt|opt|private|proc|root|run|secrets?|srv|tmp|usr|Users|var|"
    r"vault|work|workspace)(?:/[\w.@+-]*)+"
)
_LISTS = re.compile(r"OTEL_EXPORTER_OTLP_(?:\w+_)?HEADERS")  # name=value pairs, percent-encoded
_URL_USER = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#]+@", re.IGNORECASE)

_known: dict[str, None] = {}


def register(*values: str | None) -> None:
    """Remember credentials. Ones with fewer than 8 characters, which may be ordinary text, are left to their reader.

    Of an address only user, password and query are credentials: its host must be named in messages.
    """
    for value in values:
        if value is None:
            continue
        for part in _parts(value):
            if len(part) >= SHORTEST:
                _known[part] = None


def register_environment(environment: Mapping[str, str]) -> None:
    """Remember the variables whose names mean a credential, and the passwords in addresses.

    Hooks and libraries that read them (of GitHub, Hugging Face, object stores) may write them into their messages. A
    short word or number is left out, except of a password: a name like `BUILD_KEY` alone does not make `candidate` or
    `20261128` a credential, and a report must not lose them.
    """
    for name, value in environment.items():
        if _LISTS.fullmatch(name.upper()):
            for pair in value.split(","):
                register(pair.partition("=")[2].strip())
                register(unquote(pair.partition("=")[2].strip()))
        elif (_SECRET_NAME.fullmatch(name) and not _is_ordinary(name, value)) or _URL_USER.match(value):
            register(value)


def _is_ordinary(name: str, value: str) -> bool:
    """Return True for a path, and for a short word or number unless the variable's name means a password."""
    if value.startswith("/"):
        return _PATH.fullmatch(value) is not None
    return not _PASSWORD_NAME.match(name) and _ORDINARY.fullmatch(value) is not None


def may_be_secret(name: str) -> bool:
    """Return True for a setting of another tool whose name says that its value may hold a credential."""
    return _SECRET_SETTING.search(name) is not None


def without_secrets(settings: object) -> object:
    """Return settings of another tool, as JSON, without the values that may hold a credential, at any depth."""
    if isinstance(settings, Mapping):
        return {name: without_secrets(value) for name, value in settings.items() if not may_be_secret(str(name))}
    return [without_secrets(one) for one in settings] if isinstance(settings, list) else settings


def forget_all() -> None:
    """Forget every credential, for tests."""
    _known.clear()


def known() -> tuple[str, ...]:
    """Return every credential that was registered."""
    return tuple(_known)


def _parts(value: str) -> Iterator[str]:
    """Yield the credentials in a value: all of it, also behind `Bearer`; of an address those that it carries."""
    if re.match(r"[a-z][a-z0-9+.-]*://", value, re.IGNORECASE) is None:
        yield value
        yield value.partition(" ")[2].strip()
        return
    try:
        parts = urlsplit(value)
    except ValueError:
        yield value
        return
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    secret = password or (user if parts.scheme in ("http", "https") else "")
    yield from (secret, unquote(secret), parts.query)


def spellings(secret: str) -> Iterator[str]:
    """Yield a secret as it is and, from 8 characters on, as JSON, URLs, HTML, hexadecimal and base64 spell it."""
    yield secret
    if len(secret) < SHORTEST:
        return
    once = json.dumps(secret)[1:-1]
    yield from (once, json.dumps(once)[1:-1], secret.replace("\\", "\\\\"), once.replace("/", "\\/"))
    yield from (quote(secret, safe=""), quote(secret), quote_plus(secret), html.escape(secret))
    raw = secret.encode("utf-8", "surrogatepass")
    yield from (raw.hex(), raw.hex().upper())
    for offset, first in ((0, 0), (1, 2), (2, 3)):  # wherever it begins within three bytes
        encoded = base64.b64encode(b"\0" * offset + raw)[first : (offset + len(raw)) * 8 // 6].decode()
        yield encoded
        yield encoded.replace("+", "-").replace("/", "_")


def redact(text: str, *others: str) -> str:
    """Replace every known credential, and others, however they are spelled. Call it before anything is cut off."""
    if not _known and not others:
        return text
    return patterns((*others, *_known))[0].sub(REDACTED, text)


def redact_parts(text: str, *others: str) -> str:
    """Replace the beginnings and ends of credentials too: a message may quote a part of what came."""
    return patterns((*others, *_known))[1].sub(REDACTED, text)


def redact_bytes(data: bytes) -> bytes:
    """Replace every known credential in the bytes of a file. Of a file without one, return the same object."""
    return _byte_pattern(tuple(_known)).sub(REDACTED.encode(), data) if _known else data


@lru_cache(maxsize=32)
def patterns(secrets: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the patterns of whole credentials and of their parts; the longest first: one may be part of another."""
    forms = _forms(secrets)
    long = [form for form in forms if len(form) > _PART]
    parts = [rf"{re.escape(form[:_PART])}[^\s'\"]*|[^\s'\"]*{re.escape(form[-_PART:])}" for form in long]
    return re.compile("|".join(map(re.escape, forms)) or "(?!)"), re.compile("|".join(parts) or "(?!)")


@lru_cache(maxsize=4)
def _byte_pattern(secrets: tuple[str, ...]) -> re.Pattern[bytes]:
    return re.compile(b"|".join(re.escape(form.encode("utf-8", "surrogatepass")) for form in _forms(secrets)))


def _forms(secrets: tuple[str, ...]) -> list[str]:
    return sorted({form for secret in secrets for form in spellings(secret) if form}, key=len, reverse=True)
