"""What `benchgate load` says on stderr, and what it refuses before it sends anything."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from benchgate.cli.load import exit_code, search_remarks
from benchgate.cli.options import refuse_unwritable
from benchgate.errors import ExitCode, UsageError
from benchgate.load.standalone.options import LoadOptions
from tests.fakes import quick_command
from tests.fakes.scripted_server import ScriptedServer, json_response

BARE = ["--model", "m", "--engine", "openai", "--workers", "1"]
PROBE = {"level": 4.0, "standing": "pass", "window_short": False, "sent": 100, "requests_needed": None}


def load(*said: str) -> quick_command.Told:
    return quick_command.told("load", "http://127.0.0.1:9", *BARE, *said)


def search_ended(**found: Any) -> dict[str, Any]:
    return {
        "partial": False,
        "fault": None,
        "stop": "converged",
        "search": {"over": "rate"},
        "capacity": {"lower": 4.0, "upper": 4.4, "estimate": 4.1},
        "requests_needed": None,
        "probes": [PROBE],
        **found,
    }


@pytest.mark.parametrize(
    ("found", "code", "lines"),
    [
        ({}, ExitCode.OK, ["the capacity is between 4/s and 4.4/s"]),
        (
            {"stop": "never_breached", "capacity": {"lower": 8.0, "upper": None}},
            ExitCode.OK,
            ["the capacity is 8/s or more: the highest level met the target; search further (--to)"],
        ),
        (
            {
                "stop": "unresolved",
                "capacity": {"lower": None, "upper": None},
                "requests_needed": 2400,
                "probes": [{**PROBE, "standing": "unresolved", "window_short": True, "requests_needed": 2400}],
            },
            ExitCode.OK,
            [
                "no level was shown to meet or to miss the target; the remaining levels stayed unresolved",
                "about 2,400 requests at one level would show more (--probe)",
                "measured for less than 10 s, or 10 % of its looks: 4/s; give it more requests (--probe)",
            ],
        ),
        (
            {"verdict": {"outcome": "BLOCK", "exit_code": 10, "reason": "4.4 was shown to miss the target"}},
            ExitCode.BLOCK,
            ["the capacity is between 4/s and 4.4/s", "BLOCK: 4.4 was shown to miss the target"],
        ),
        ({"fault": "the server did not accept connections at 1"}, ExitCode.INVALID, ["the server did not accept"]),
    ],
    ids=["bracket", "open above", "nothing known", "verdict", "fault"],
)
def test_a_search_says_what_it_found_and_what_would_show_more(
    found: dict[str, Any], code: ExitCode, lines: list[str]
) -> None:
    assert exit_code(search_ended(**found)) is code
    told = list(search_remarks(search_ended(**found)))
    assert len(told) == len(lines)
    for line, expected in zip(told, lines, strict=True):
        assert line.startswith(expected)


def test_a_load_that_does_not_pass_says_why_and_with_which_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchgate.load.standalone.run.saturation_reasons", lambda use, columns, rate: ())
    refusal = json_response({"error": {"message": "the model `m` does not exist"}}, status=404)
    with ScriptedServer(lambda received: [refusal]) as server:
        said = ["load", server.url, *BARE, "--concurrency", "1", "--requests", "4", "--slo", "ttft=1s"]
        text = quick_command.told(*said)
        result = quick_command.told(*said, "--format", "json")
    assert text.exit_code == result.exit_code == 10
    assert "http_4xx" in text.stdout and "HTTP 404: the model `m` does not exist" in text.stdout
    assert "■ BLOCK\n  0 of 4 requests were good" in text.stdout
    assert "BLOCK" not in text.stderr
    assert json.loads(result.stdout)["verdict"]["outcome"] == "BLOCK"
    assert "benchgate: BLOCK: 0 of 4 requests were good" in result.stderr
    assert "the commonest failure: HTTP 404: the model `m` does not exist" in result.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rate", "50/s", "--warmup", "0"], True),
        (["--rate", "50/s", "--warmup", "0", "--service-time", "1ms"], False),
        (["--concurrency", "1", "--warmup", "0"], False),
    ],
)
def test_a_rate_without_a_ramp_is_told(words: list[str], says: bool) -> None:
    with ScriptedServer(lambda received: [json_response({"error": "no"}, 500)]) as server:
        told = quick_command.told("load", server.url, *BARE, "--requests", "1", *words)
    assert ("the rate begins without a ramp; add --service-time" in told.stderr) is says


def test_a_key_that_is_not_there_is_told_by_its_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_KEY", raising=False)
    with pytest.raises(UsageError, match="the environment variable NO_KEY is not set, and --api-key-env refers to it"):
        load("--concurrency", "1", "--requests", "1", "--api-key-env", "NO_KEY")


def test_a_rate_is_quoted_as_it_was_typed() -> None:
    typed: dict[str, Any] = {"url": "http://h:1", "model": "m", "requests": 1}
    with pytest.raises(UsageError, match=r'--rate: "8rps" is not a rate'):
        LoadOptions.parse(**typed, rate="8rps")
    assert LoadOptions.parse(**typed, rate="8").rate_rps == LoadOptions.parse(**typed, rate="8/s").rate_rps == 8


def test_a_result_that_could_not_be_written_is_refused_before_a_request_is_sent(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with ScriptedServer(lambda received: [json_response({})]) as server:
        said = ["load", server.url, *BARE, "--concurrency", "1", "--requests", "1"]
        with pytest.raises(UsageError):
            quick_command.told(*said, "--json", str(tmp_path / "file" / "out.json"))
        assert server.requests == []
    refuse_unwritable(tmp_path / "deep" / "down" / "out.json")
    assert (tmp_path / "deep" / "down").is_dir()
    refuse_unwritable(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "kept"
    with pytest.raises(UsageError, match="is a folder"):
        refuse_unwritable(tmp_path / "deep")
    if os.geteuid() != 0:  # nothing is closed to root
        (tmp_path / "deep").chmod(0o500)
        with pytest.raises(UsageError, match="permission denied"):
            refuse_unwritable(tmp_path / "deep" / "out.json")


@pytest.mark.parametrize(
    ("url", "endpoint", "request_url"),
    [
        ("h:1", None, "http://h:1/v1/chat/completions"),
        ("https://h/openai/v1", None, "https://h/openai/v1/chat/completions"),
        ("http://h:1/v1/completions", None, "http://h:1/v1/completions"),
        ("http://h:1/v1/embeddings/", "embeddings", "http://h:1/v1/embeddings"),
        ("http://h:1", "responses", "http://h:1/v1/responses"),
        ("unix:/run/h.sock", None, "unix:/run/h.sock:/v1/chat/completions"),
        ("unix:/run/h.sock:/base/v1", None, "unix:/run/h.sock:/base/v1/chat/completions"),
    ],
)
def test_the_endpoint_may_stand_in_the_address(url: str, endpoint: str | None, request_url: str) -> None:
    options = LoadOptions.parse(url=url, model="m", concurrency=1, requests=1, endpoint=endpoint)
    assert options.request_url == request_url


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("gpu", '"gpu" is not the address of a server; write it like "http://gpu"'),
        ("http://h/v1/models", 'ends in /v1/models, which cannot be load-tested; write "http://h"'),
        ("http://h/chat/completions", 'ends in /chat/completions, which cannot be load-tested; write "http://h"'),
        ("http://h/v1/completions", "ends in /v1/completions, and --endpoint is chat; leave one of them out"),
        ("ftp://h", "this is not the address of a server"),
    ],
)
def test_an_address_that_cannot_be_meant_is_answered_with_the_nearest(url: str, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        LoadOptions.parse(url=url, model="m", concurrency=1, requests=1, endpoint="chat")
