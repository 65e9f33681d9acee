"""Addresses of servers as people paste them from other clients."""

from __future__ import annotations

import pytest

from benchgate.suite.address import base_address, check_address, split_address


@pytest.mark.parametrize(
    ("text", "base", "path"),
    [
        ("host:8000", "http://host:8000", ""),
        ("10.0.0.7:8000/", "http://10.0.0.7:8000", ""),
        ("[::1]:8000/v1", "http://[::1]:8000", "/v1"),
        ("http://host", "http://host", ""),
        ("http://host/v1", "http://host", "/v1"),
        ("http://host/v1/", "http://host", "/v1"),
        ("http://host/v1/chat/completions", "http://host", "/v1/chat/completions"),
        ("http://host/v1/completions", "http://host", "/v1/completions"),
        ("http://host/chat/completions", "http://host", "/chat/completions"),
        ("https://host/openai/v1", "https://host/openai", "/v1"),
        ("https://gateway/v1/tenant/openai", "https://gateway/v1/tenant/openai", ""),
        ("https://gateway/v1/tenant/v1/embeddings", "https://gateway/v1/tenant/v1", "/embeddings"),
        ("https://gateway/v2/tenant/v1", "https://gateway/v2/tenant/v1", ""),
        ("https://host/v1beta/openai", "https://host/v1beta/openai", ""),
        ("https://host/v1beta/openai/chat/completions", "https://host/v1beta/openai", "/chat/completions"),
        ("https://host/api/openai", "https://host/api/openai", ""),
        ("https://v1/base", "https://v1/base", ""),
        ("http://host/v1/messages", "http://host", "/v1/messages"),
        ("https://host/v1beta/anthropic/messages", "https://host/v1beta/anthropic", "/messages"),
        ("http://host/base/generate_stream", "http://host/base", "/generate_stream"),
        ("http://host/v2/models/m/generate", "http://host", "/v2/models/m/generate"),
        ("http://host/v2/models/m/versions/1/infer", "http://host", "/v2/models/m/versions/1/infer"),
        ("http://host/predictions/m/1.0/v1", "http://host/predictions/m/1.0", "/v1"),
        ("unix:/run/server.sock", "unix:/run/server.sock", ""),
        ("unix:/run/v1", "unix:/run/v1", ""),
        ("unix:/run/server.sock:/v1", "unix:/run/server.sock", "/v1"),
        ("unix:/run/server.sock:/base/v1/responses", "unix:/run/server.sock:/base", "/v1/responses"),
    ],
)
def test_an_address_is_split_into_its_base_and_the_path_of_the_api(text: str, base: str, path: str) -> None:
    assert split_address(text) == (base, path)
    if path in ("", "/v1"):
        assert base_address(text) == check_address(text) == base
    else:
        with pytest.raises(ValueError, match=f"ends in {path}, which benchgate adds itself; remove it"):
            check_address(text)


@pytest.mark.parametrize(
    ("text", "near"),
    [("gpu", "http://gpu,"), ("gpu.example/v1", "http://gpu.example/v1,"), ("ftp://x", "http://host:8000,")],
)
def test_what_is_no_address_is_answered_with_the_nearest_one(text: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"is not an address; write it like {near}"):
        check_address(text)
