"""Credentials that a process knows leave it in no text and no file, however they are spelled."""

from __future__ import annotations

import base64
import html
import json
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from benchgate import credentials
from benchgate.errors import StoreError
from benchgate.escape import json_text, markdown_prose, markdown_text, terminal_line, terminal_text
from benchgate.integrations.webhook import otlp_headers, slack_destination, webhook_key
from benchgate.store.repository import Store
from benchgate.suite.address import resolve_secret
from benchgate.system import write_atomic
from benchgate.targets.error_messages import one_line

SECRET = 'c4n"ary\\k3y/+=&%-tail'


def in_base64(before: int) -> str:
    """A text in base64 with the secret in it."""
    return base64.b64encode(b"x" * before + SECRET.encode() + b"y").decode()


SPELLINGS = {
    "plain": SECRET,
    "json": json.dumps(SECRET)[1:-1],
    "json twice": json.dumps(json.dumps(SECRET))[3:-3],
    "url": quote(SECRET, safe=""),
    "form": quote_plus(SECRET),
    "hex": SECRET.encode().hex(),
    "HEX": SECRET.encode().hex().upper(),
    "html": html.escape(SECRET),
    **{f"base64 at {before}": in_base64(before) for before in range(3)},
}


@pytest.mark.parametrize("spelled", SPELLINGS.values(), ids=SPELLINGS)
def test_no_spelling_of_a_known_credential_passes_a_writer(spelled: str, tmp_path: Path) -> None:
    credentials.register(SECRET)
    text = f"before {spelled} after"
    spelled = spelled[4:-4]  # of base64, without what stands for the bytes around it
    for write in (terminal_text, terminal_line, markdown_text, markdown_prose, json_text, one_line, credentials.redact):
        assert spelled not in write(text), write
    write_atomic(tmp_path / "file", text.encode())
    assert spelled.encode() not in (tmp_path / "file").read_bytes()


def test_text_without_a_credential_stays_as_it_is() -> None:
    credentials.register(SECRET, None, "short")
    data = b"nothing of it, and short"
    assert credentials.redact_bytes(data) == data
    assert credentials.known() == (SECRET,)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("GITHUB_TOKEN", "ghs_abcdefgh", {"ghs_abcdefgh"}),
        ("HF_TOKEN", "hf_abcdefgh", {"hf_abcdefgh"}),
        ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI", {"wJalrXUtnFEMI"}),
        ("PGPASSWORD", "pg-password-1", {"pg-password-1"}),
        ("HTTPS_PROXY", "http://user:proxy-pass-1@proxy:3128", {"proxy-pass-1"}),
        ("DATABASE_URL", "postgresql://me:p%40ss-word@db/x", {"p%40ss-word", "p@ss-word"}),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20YWxhZGRpbg==", {
            "Basic%20YWxhZGRpbg==", "Basic YWxhZGRpbg==", "YWxhZGRpbg==",
        }),
        ("SSH_KEY", "/etc/ssh/id_rsa", set()),  # a file's name
        ("SIGNING_KEY", "/run/secrets/signing.key", set()),
        ("AWS_SECRET_ACCESS_KEY", "/Xk9+vTq/7Lw", {"/Xk9+vTq/7Lw"}),
        ("API_TOKEN", "/XkvTq/abcdefgh", {"/XkvTq/abcdefgh"}),
        ("TOKENIZERS_PARALLELISM", "false-or-true", set()),
        ("PATH", "/usr/bin:/usr/local/bin", set()),
        ("API_KEY", "EMPTY", set()),  # what people write for none
        ("RELEASE_TOKEN", "candidate", set()),  # a word of every report
        ("BUILD_KEY", "20261128", set()),
        ("PGPASSWORD", "correcthorse", {"correcthorse"}),  # libpq reads it, and a password is often a word
        ("CLIENT_SECRET", "12345678", {"12345678"}),
        ("BUILD_KEY", "20261128-a", {"20261128-a"}),
        ("STORE", "https://example.com/a/b", set()),
    ],
)  # fmt: skip
def test_a_variable_that_means_a_credential_is_registered(name: str, value: str, expected: set[str]) -> None:
    credentials.register_environment({name: value})
    assert set(credentials.known()) == expected


def test_whatever_resolves_a_credential_registers_it() -> None:
    resolve_secret("${env:A}", {"A": "key-of-a-suite"})
    otlp_headers({"OTEL_EXPORTER_OTLP_HEADERS": "x=header-of-otlp"})
    slack_destination({"BENCHGATE_SLACK_URL": "https://hooks.example/services/T0/B0/abc"})
    webhook_key({"BENCHGATE_WEBHOOK_SECRET": "whsec_" + base64.b64encode(b"k" * 32).decode()})
    with pytest.raises(StoreError):
        Store.open("postgresql://me:store-password@127.0.0.1:1/x", create=False)
    known = set(credentials.known())
    assert {"key-of-a-suite", "header-of-otlp", "/services/T0/B0/abc", "store-password"} <= known
    assert base64.b64encode(b"k" * 32).decode() in known
