"""No credential is ever written: every place one can enter, servers that repeat it wherever they can, every byte read.

The servers get each key in a header, and repeat all their headers in answers, errors, stream events, pages of metrics,
names of models and things that are no HTTP, in turn. What benchgate then writes is searched in every spelling.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from multiprocessing.util import get_temp_dir
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote, quote_plus

import pytest

from tests.e2e.command import here
from tests.fakes.scripted_server import (
    CLOSE,
    DONE,
    LAST_CHUNK,
    Received,
    ScriptedServer,
    Step,
    event,
    finish,
    json_response,
    role_event,
    stream_head,
    token,
    usage,
)

pytestmark = pytest.mark.beside

PLACES = (
    "BASELINE_KEY", "BASELINE_HEADER", "CANDIDATE_KEY", "CANDIDATE_HEADER", "JUDGE_KEY", "JUDGE_HEADER",
    "SIMILARITY_KEY", "PROMETHEUS_KEY", "BUDGET_KEY", "BUDGET_HEADER",
)  # fmt: skip
OTHERS = ("GITHUB_TOKEN", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "DEPLOY_HOOK_TOKEN")
"""Variables that libraries and hooks read. The servers repeat them too, as if they had been sent."""
SECRETS = {place: f'{place.lower()}-"c4n\\ary"/+={number}%&-{place}' for number, place in enumerate((*PLACES, *OTHERS))}
# Parts of other values: passwords in addresses, a token in a path, a header among others.
PROXY_PASSWORD, STORE_PASSWORD = "proxy-c4naryPASS-01", "store-c4naryPASS-02"
SLACK_TOKEN, OTLP_TOKEN = "B0slackc4nary03/and-its-end", "Basic otlp-c4nary-04=="
WEBHOOK_KEY = base64.b64encode(b"webhook-c4nary-key-05-of-32-bytes").decode()
PARTS = {
    "HTTPS_PROXY": PROXY_PASSWORD, "the store's address": STORE_PASSWORD, "BENCHGATE_SLACK_URL": SLACK_TOKEN,
    "OTEL_EXPORTER_OTLP_HEADERS": OTLP_TOKEN, "BENCHGATE_WEBHOOK_SECRET": WEBHOOK_KEY,
}  # fmt: skip
TENANT = "tenant-c4naryPATH01"  # in the address of the candidate, which is a reference
SUITE = """
suite: secret
deployments:
  baseline:
    url: "{baseline}"
    model: m
    engine: vllm
    api_key: ${{env:BASELINE_KEY}}
    headers: {{x-tenant-key: "${{env:BASELINE_HEADER}}"}}
    metrics: {{prometheus: "{prometheus}", selector: '{{job="x"}}', api_key: "${{env:PROMETHEUS_KEY}}"}}
  candidate:
    url: ${{env:CANDIDATE_URL}}
    model: m
    engine: vllm
    api_key: ${{env:CANDIDATE_KEY}}
    headers: {{x-tenant-key: "${{env:CANDIDATE_HEADER}}"}}
limits: {{connect: 2s, first_token: 2s, stall: 2s, total: 4s, ready: 5s}}
error_budget:
  objective: 99%
  window: 30d
  spent:
    prometheus:
      url: "{prometheus}"
      query: up
      api_key: ${{env:BUDGET_KEY}}
      headers: {{x-scope-token: "${{env:BUDGET_HEADER}}"}}
load:
  workload: {{input: 8 tokens, output: 8 tokens}}
  blocks: 2
  warmup: 0
  sweep: [{{stage: c2, concurrency: 2, requests: 24}}]
quality: {{tasks: [{tasks}], limit: 12, max_tokens: 8}}
shadow:
  prompts: prompts.jsonl
  concurrency: 2
  store_text: {store_text}
  judge:
    url: "{helper}"
    model: h
    send_text: true
    api_key: ${{env:JUDGE_KEY}}
    headers: {{x-judge-token: "${{env:JUDGE_HEADER}}"}}
  similarity: {{url: "{helper}", model: h, send_text: true, api_key: "${{env:SIMILARITY_KEY}}"}}
gate:
  allow_underpowered: true
  checks:
    - {{metric: error_rate, max: 99%}}
    - {{metric: accuracy, margin: 50 points}}
    - {{metric: shadow_excess, margin: 90 points}}
    - {{metric: judge_loss, margin: 90 points}}
"""
SOON = "(in some seconds)"
SOUND = 4  # the readiness probe, and what looks for the engine
TASKS = Path(__file__).parents[2] / "suites/tasks/add.yaml"


class Repeating:
    """A server that answers its first `sound` requests, and then repeats what it was shown, each time in another way.

    The query of the error budget gets its number always, for without it nothing is measured. A `ready` server answers
    the readiness probes, half of the shadow prompts and all embeddings too, of which no two are alike: without them, no
    texts of users come into the store and the report.
    """

    def __init__(self, ready: bool) -> None:
        self.turns, self.ready = 0, ready
        self.embedded: list[str] = []

    def __call__(self, received: Received) -> Iterable[Step]:
        turn, self.turns = self.turns, self.turns + 1
        shown = " ".join(value for name, value in received.headers.items() if name != "host") + f" {received.path}"
        shown += " " + " ".join(SECRETS[name] for name in OTHERS)
        if "query=up" in received.path:
            result = [{"metric": {"key": shown}, "value": [1, "0.1"]}]
            found = {"status": "success", "infos": [shown], "data": {"resultType": "vector", "result": result}}
            return [json_response(found)]
        if self.ready and received.body is not None and re.fullmatch(r"Say hello\.|say \d*[13579]", received.prompt):
            return plain(received, shown)
        if self.ready and "input" in (received.body or {}):
            texts = [str(text) for text in (received.body or {})["input"]]
            self.embedded += [text for text in texts if text not in self.embedded]
            own = (self.embedded.index(text) for text in texts)
            vectors = [[float(place == number) for place in range(64)] for number in own]
            return [json_response({"data": [{"index": n, "embedding": vector} for n, vector in enumerate(vectors)]})]
        if turn % 2 == 0 and received.body is not None:
            return plain(received, "yes" if turn < SOUND else shown)
        page = "\n".join(f'vllm:num_requests_running{{key="{value}"}} 1 {value}' for value in (shown, quote(shown)))
        ways: list[list[Step]] = [
            [json_response({"error": {"message": f"bad key {shown}", "code": shown}}, status=401)],
            [json_response({"detail": [{"msg": shown, "loc": ["header", shown], "input": shown}]}, status=422)],
            [stream_head() + role_event() + token(shown) + event({"error": {"message": shown}}) + DONE + LAST_CHUNK],
            [stream_head() + token("a") + finish(shown) + event({"usage": shown, "model": shown}) + DONE + LAST_CHUNK],
            [f"HTTP/1.1 500 {shown}\r\nx-repeat: {shown}\r\ncontent-length: {len(shown)}\r\n\r\n{shown}".encode()],
            [f"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\nx-repeat: {shown}\r\n\r\n{shown}".encode(), CLOSE],
            [f"HTTP/1.1 307 {shown}\r\nlocation: http://127.0.0.1:1/{quote(shown)}\r\n\r\n".encode(), CLOSE],
            [f"{shown} is no HTTP at all\r\n\r\n".encode(), CLOSE],
            [stream_head() + f"{shown}\r\n\r\n".encode(), CLOSE],
            [json_response({"data": [{"id": shown, "embedding": [shown]}], "object": shown, "version": shown})],
            [f"HTTP/1.1 200 OK\r\ncontent-length: {len(page)}\r\n\r\n{page}".encode()],
            [json_response({"status": "error", "errorType": shown, "error": shown, "data": {"result": [shown]}})],
        ]
        return ways[turn // 2 % len(ways)]


def plain(received: Received, text: str) -> list[Step]:
    """A whole answer, streamed or not, or an embedding."""
    if "input" in (received.body or {}):
        return [json_response({"object": "list", "data": [{"index": 0, "embedding": [0.5, 0.5]}]})]
    if (received.body or {}).get("stream"):
        return [stream_head() + role_event() + token(text) + finish("stop") + usage(8, 1) + DONE + LAST_CHUNK]
    choice = {"message": {"role": "assistant", "content": text}, "text": text, "finish_reason": "stop"}
    return [json_response({"choices": [choice], "model": "m", "usage": {"prompt_tokens": 8, "completion_tokens": 1}})]


def spellings(secret: str) -> Iterator[bytes]:
    """As it is, in JSON once and twice, in an address, in base64 at any place, in hexadecimal, and in HTML."""
    once = json.dumps(secret)[1:-1]
    yield from (text.encode() for text in (secret, once, json.dumps(once)[1:-1], quote(secret, safe="")))
    yield from (text.encode() for text in (quote(secret), quote_plus(secret)))
    yield from (secret.encode().hex().encode(), secret.encode().hex().upper().encode())
    for at in range(3):
        yield base64.b64encode(b"x" * at + secret.encode())[4:-4]
        yield base64.urlsafe_b64encode(b"x" * at + secret.encode())[4:-4]
    yield secret.replace("&", "&amp;").replace('"', "&#34;").encode()
    yield secret.replace("&", "&amp;").replace('"', "&quot;").encode()
    yield secret.partition("/")[0].encode()  # a part of it is as bad


def written(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every name and byte below a folder, and every value of its databases with what is packed unpacked."""
    for path in folder.rglob("*"):
        yield f"name of {path.name}", str(path.relative_to(folder)).encode()
        if path.is_file():
            yield str(path.relative_to(folder)), path.read_bytes()
    for store in folder.rglob("*.db"):
        with closing(sqlite3.connect(store)) as db:
            for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                for row in db.execute(f"SELECT * FROM {table}"):
                    yield from ((f"{table} in {store.name}", unpacked(value)) for value in row)


def unpacked(value: object) -> bytes:
    if not isinstance(value, bytes):
        return str(value).encode()
    try:
        return zlib.decompress(value)
    except zlib.error:
        return value


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for all temporary files, except the sockets by which workers are started: those outlive the test."""
    get_temp_dir()
    with TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr("tempfile.tempdir", None)
        yield Path(folder)
        monkeypatch.setattr("tempfile.tempdir", None)


@pytest.mark.parametrize("store_text", ["false", "true"])
def test_no_key_is_written_whatever_the_servers_repeat(tmp_path: Path, temporary: Path, store_text: str) -> None:
    folder = tmp_path
    said: list[tuple[str, bytes]] = []
    lines = (json.dumps({"id": f"p{number}", "prompt": f"say {number}"}) for number in range(14))
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    responders = [Repeating(ready=store_text == "true") for _ in range(4)]
    with ExitStack() as stack:
        servers = [stack.enter_context(ScriptedServer(respond)) for respond in responders]
        baseline, candidate, helper, prometheus = servers
        urls = {"baseline": baseline.url, "helper": helper.url, "prometheus": prometheus.url}
        (folder / "suite.yaml").write_text(SUITE.format(**urls, tasks=TASKS, store_text=store_text))
        environment = {
            **os.environ,
            **SECRETS,
            "CANDIDATE_URL": f"{candidate.url}/{TENANT}",
            "HTTPS_PROXY": f"http://user:{PROXY_PASSWORD}@127.0.0.1:1",
            "BENCHGATE_SLACK_URL": f"{helper.url}/services/{SLACK_TOKEN}",
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={quote(OTLP_TOKEN)}",
            "BENCHGATE_WEBHOOK_SECRET": f"whsec_{WEBHOOK_KEY}",
        }
        away = f"postgresql://me:{STORE_PASSWORD}@127.0.0.1:1/none"
        outputs = [
            f"--write={form}=verdict.{form}"
            for form in ("json", "markdown", "junit", "sarif", "github", "slack", "intoto")
        ]
        commands: list[tuple[str, ...]] = [
            ("plan", "suite.yaml"),
            ("doctor", "suite.yaml"),
            ("run", "suite.yaml", "--report", "report.html", "--work-dir", "work", "--verbose", *outputs),
            ("gate", "@latest", "--format", "json"),
            ("report", "@latest"),
            ("store", "export", "--all", "--to", "bundles"),
            ("store", "export", "--all", "--to", "records", "--format", "jsonl"),
            ("capture", candidate.url, "--model", "m", "--api-key-env", "CANDIDATE_KEY", "--output", "captured"),
            ("load", baseline.url, "--api-key-env", "BASELINE_KEY", "--model", "m", "--concurrency", "2", "--requests",
             "28", "--json", "load.json", "--workers", "1"),
            ("load", baseline.url, "--api-key-env", "BASELINE_KEY", "--model", "m", "--concurrency", "2", "--requests",
             "28", "--proxy", "http://user:" + PROXY_PASSWORD + "@127.0.0.1:1"),
            ("load", baseline.url, "--api-key-env", "BASELINE_KEY", "--model", "m", "--engine", "vllm", "--concurrency",
             "2", "--requests", "28", "--shard", "0/1", "--spool", "shards", "--warmup", "0", "--salt", "7",
             "--start-at", SOON),
            ("load", "merge", "shards"),
            ("publish", "@latest", "--slack", "--otlp", helper.url, "--webhook", helper.url, "--push-metrics",
             helper.url),
            ("promote", "@latest", "--override", "a test", "--ref", "main", "--protected", "--run-hook",
             "sh -c 'exit 3'"),
            ("site", "pages"),
            ("runs", "--store", away),
            ("gate", "@latest", "--store", away),
        ]  # fmt: skip
        for words in commands:
            for respond in responders:
                respond.turns = 0
            soon = f"{time.time() + 20:.3f}"
            result = here(folder, *(soon if word == SOON else word for word in words), environment=environment)
            said += [
                (f"stdout of {words[0]}", result.stdout.encode()),
                (f"stderr of {words[0]}", result.stderr.encode()),
            ]
            assert "Traceback" not in result.stderr, result.stderr
        assert all(server.requests for server in servers)
    places = [*said, *written(folder), *written(temporary)]
    leaks = [
        f"{name} in {place}: {content[max(0, at - 100) : at + 40]!r}"
        for name, secret in {**SECRETS, **PARTS, "CANDIDATE_URL": TENANT}.items()
        for spelling in sorted(set(spellings(secret)))
        for place, content in places
        if (at := content.find(spelling)) >= 0
    ]
    assert not leaks, "\n".join(leaks)
    with_texts = [place for place, content in places if b"say 3" in content and (folder / place).is_file()]
    assert ("report.html" in with_texts) == (store_text == "true")
    readable = {place for place in with_texts if (folder / place).stat().st_mode & 0o077}
    assert readable == {"prompts.jsonl"}  # the user's own
    repeated = {place for place, content in places if b"[redacted]" in content}
    assert {"stderr of run", "stdout of load", "report.html", ".benchgate/benchgate.db", "verdict.json"} <= repeated
    assert (folder / "pages/index.html").is_file() and any((folder / "shards").iterdir())
