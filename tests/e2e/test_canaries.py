"""What users wrote and what models answered stays in the user's own file, unless the suite asks for more."""

from __future__ import annotations

import base64
import json
import os
import signal
import sqlite3
import subprocess
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.command import here, latest_evidence
from tests.fakes.scripted_server import CLOSE, Received, Respond, ScriptedServer, Step, json_response

pytestmark = pytest.mark.beside


PROMPT, ANSWER = "canaryPROMPT7f3a", "canaryANSWER9c1d"
SECRETS = {
    "e-mail": "canary.mail@users.example",
    "phone": "+49 30 9018 2077",
    "card": "4012 8888 8888 1881",
    "key": "sk-proj-canary0123456789abcdef",
    "token": "ghp_canaryABCDEFGHIJKLMNOPQRSTUVWXYZ01",
    "login": "canaryLOGIN42",
    "own": "C-20251234",
}
SUITE = """
suite: shadowed
deployments:
  baseline: {{url: "{baseline}", model: m, engine: openai}}
  candidate: {{url: "{candidate}", model: m, engine: openai}}
limits: {{total: 5s, connect: 2s}}
shadow: {{prompts: prompts.jsonl, concurrency: 2, store_text: {store_text}{helpers}}}
gate:
  allow_underpowered: true
  checks: [{{metric: shadow_excess, margin: 5 points}}{checks}]
"""


def asked(received: Received) -> str:
    """All that a request says."""
    return json.dumps(received.body)


def echoing(received: Received) -> Iterable[Step]:
    """A server that repeats what it is asked wherever a server can: in errors of all kinds, and beside its answers."""
    said = asked(received)
    if PROMPT not in said:  # the question whether it is there
        return [json_response({"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]})]
    number = int(said.partition("number ")[2].partition(" ")[0])
    message = {"content": f"{ANSWER} {number}", "role": "assistant"}
    whole = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}
    ways: list[list[Step]] = [
        [json_response(whole)],
        [json_response({"error": {"message": f"cannot do {said}"}}, status=400)],
        [json_response({"error": said})],
        [json_response({**whole, "choices": [{"message": message, "finish_reason": f"{PROMPT} end"}]})],
        [json_response({"detail": [{"msg": f"{PROMPT} is bad", "loc": ["body", PROMPT], "input": said}]}, status=422)],
        [f"HTTP/1.1 500 {PROMPT}\r\nContent-Length: {len(said)}\r\n\r\n{said}".encode()],
        [f"HTTP/1.1 200 OK\r\nX-{PROMPT}: {said[:50]}\r\nContent-Length: 9999\r\n\r\n{said}".encode(), CLOSE],
        [f"{PROMPT} is no HTTP at all {said}\r\n\r\n".encode(), CLOSE],
        [json_response({"choices": [{"message": {"content": None, "refusal": PROMPT}, "finish_reason": "stop"}]})],
    ]
    return ways[number % len(ways)]


def differing(received: Received) -> Iterable[Step]:
    """A server whose answers all differ from those of the other."""
    return [json_response({"choices": [{"message": {"content": f"other {ANSWER}"}, "finish_reason": "stop"}]})]


def babbling(received: Received) -> Iterable[Step]:
    """A judge, and an endpoint of embeddings, that repeat what they read in errors and in place of verdicts."""
    said = asked(received)
    if "number 4 " in said:
        return [json_response({"error": {"message": said}}, status=400)]
    if "input" in (received.body or {}):
        return [json_response({"data": [{"embedding": [said]}], "object": PROMPT})]
    return [json_response({"choices": [{"message": {"content": said}, "finish_reason": ANSWER}]})]


def write_prompts(folder: Path) -> None:
    rows: list[dict[str, object]] = []
    for number in range(20):
        said = f"number {number} {PROMPT}"
        kinds: list[dict[str, object]] = [
            {"prompt": said},
            {"messages": [{"role": "system", "content": PROMPT}, {"role": "user", "content": said}]},
            {"prompt": said, "tools": [{"type": "function", "function": {"name": "f", "description": PROMPT}}]},
            {"prompt": said, "endpoint": "completions"},
        ]
        rows.append({"id": f"row-{number}", "stratum": "chat/0-127", **kinds[number % len(kinds)]})
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(
    folder: Path, respond: Respond = echoing, *, store_text: bool = False, helped: bool = False
) -> subprocess.CompletedProcess[str]:
    write_prompts(folder)
    with (
        ScriptedServer(echoing) as baseline,
        ScriptedServer(respond) as candidate,
        ScriptedServer(babbling) as helper,
    ):
        at = f'{{url: "{helper.url}", model: h, send_text: true}}'
        text = SUITE.format(
            baseline=baseline.url,
            candidate=candidate.url,
            store_text=str(store_text).lower(),
            checks=", {metric: judge_loss, margin: 5 points}" if helped else "",
            helpers=f", judge: {at}, similarity: {at}" if helped else "",
        )
        (folder / "suite.yaml").write_text(text)
        result = here(folder, "run", "suite.yaml", "--report", "report.html", "--work-dir", "work")
        assert any(PROMPT in asked(received) for received in candidate.requests)
        assert any(ANSWER in asked(received) for received in helper.requests) == helped
        return result


def everything(folder: Path, result: subprocess.CompletedProcess[str]) -> Iterator[tuple[str, bytes]]:
    """Every byte that was written but the prompts themselves, with what is packed unpacked."""
    yield "stdout", result.stdout.encode()
    yield "stderr", result.stderr.encode()
    for path in folder.rglob("*"):
        yield f"name of {path.name}", str(path.relative_to(folder)).encode()
        if path.is_file() and path.name != "prompts.jsonl":
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


def spellings(canary: str) -> list[bytes]:
    """As it is, and as base64 at any place spells what is in its middle."""
    return [canary.encode(), *(base64.b64encode(b"x" * at + canary.encode())[4:-4] for at in range(3))]


def found(folder: Path, result: subprocess.CompletedProcess[str], *canaries: str) -> list[str]:
    wanted = [spelling for canary in canaries for spelling in spellings(canary)]
    return sorted({place for place, bytes_ in everything(folder, result) if any(word in bytes_ for word in wanted)})


def test_neither_prompts_nor_answers_leave_the_users_file_whatever_the_servers_do(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result.returncode in (10, 11, 12), result.stderr
    assert (tmp_path / "report.html").stat().st_size > 1000
    assert found(tmp_path, result, PROMPT, ANSWER) == []
    assert "row-3" in "".join(bytes_.decode("utf-8", "replace") for _, bytes_ in everything(tmp_path, result))


def test_nor_where_a_judge_and_embeddings_repeat_what_they_read(tmp_path: Path) -> None:
    result = run(tmp_path, differing, helped=True)
    assert result.returncode in (10, 11, 12), result.stderr
    assert found(tmp_path, result, PROMPT, ANSWER) == []


def test_nor_when_the_run_is_interrupted(tmp_path: Path) -> None:
    def interrupting(received: Received) -> Iterable[Step]:
        if f"number 7 {PROMPT}" in asked(received):
            os.kill(os.getpid(), signal.SIGINT)
        return echoing(received)

    result = run(tmp_path, interrupting)
    assert result.returncode == 130, result.stderr
    assert found(tmp_path, result, PROMPT, ANSWER) == []
    run_id = latest_evidence(tmp_path).run.id
    again = here(tmp_path, "gate", run_id, "--report", "late.html", "--format", "json")
    assert json.loads(again.stdout)["outcome"] == "INVALID"
    assert found(tmp_path, again, PROMPT, ANSWER) == []


def test_they_are_found_where_the_suite_asks_for_them(tmp_path: Path) -> None:
    result = run(tmp_path, differing, store_text=True)
    assert "report.html" in found(tmp_path, result, ANSWER)
    assert [place for place in found(tmp_path, result, PROMPT) if "benchgate.db" in place]


@pytest.mark.parametrize(
    "bad", ['{"id": "x", "prompt": "PROMPT', '["PROMPT"]', '{"id": "x", "prompt": 7, "PROMPT": 1}']
)
def test_a_row_that_is_wrong_is_named_and_not_repeated(tmp_path: Path, bad: str) -> None:
    write_prompts(tmp_path)
    with (tmp_path / "prompts.jsonl").open("a") as file:
        file.write(bad.replace('"PROMPT"]', f'"{PROMPT}"]').replace('"PROMPT', f'"{PROMPT}') + "\n")
    (tmp_path / "suite.yaml").write_text(
        SUITE.format(baseline="http://h:1", candidate="http://h:2", store_text="false", helpers="", checks="")
    )
    result = here(tmp_path, "plan", "suite.yaml")
    assert result.returncode == 2
    assert "prompts.jsonl:21" in result.stderr
    if "7" not in bad:  # the name of a key is told
        assert found(tmp_path, result, PROMPT) == []


def test_secrets_in_logs_come_into_no_sample_and_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = list(SECRETS.values())
    said = f"{PROMPT} I am {secrets[0]} ({secrets[1]}), card {secrets[2]}, {secrets[3]} {secrets[4]}, {secrets[6]}"
    rows: list[object] = [{"messages": [{"role": "user", "content": f"{said} {number}"}]} for number in range(30)]
    rows += [
        {"messages": [{"role": "user", "content": [{"type": "text", "text": said}]}], "tools": [{"x": {said: said}}]},
        {"prompt": f"postgres://app:{SECRETS['login']}@db/x"},
        {"messages": [{"role": "tool", "content": said}]},
        [said],
    ]
    lines = [json.dumps(row) for row in rows] + [f'{{"messages": "{said}', said]
    (tmp_path / "log").mkdir()
    log = tmp_path / "log" / "prompts.jsonl"  # the name that is not looked into
    log.write_text("\n".join(lines))
    own = ("--redact", "CUSTOMER=C-[0-9]{8}")
    for form in ("text", "json"):
        result = here(tmp_path, "shadow", "sample", "log/prompts.jsonl", "-o", f"{form}.jsonl", "--format", form, *own)
        assert result.returncode == 0, result.stderr
        assert found(tmp_path, result, *secrets) == []
    sample = (tmp_path / "text.jsonl").read_text()
    assert "<EMAIL_1>" in sample
    assert "<CUSTOMER_1>" in sample
    assert sample == (tmp_path / "json.jsonl").read_text()
    told = here(tmp_path, "shadow", "drift", "text.jsonl", "log/prompts.jsonl", *own)
    assert found(tmp_path, told, *secrets) == []
    assert [place for place in found(tmp_path, told, PROMPT) if place not in ("text.jsonl", "json.jsonl")] == []
    monkeypatch.setattr("benchgate.shadow.redaction._MAX_CPU_S", 0.1)
    slow = here(
        tmp_path, "shadow", "sample", "log/prompts.jsonl", "-o", "x.jsonl", "--redact", "SLOW=([a-zA-Z0-9]+)+!!"
    )
    assert slow.returncode == 2
    assert "the redaction rule SLOW takes too long" in slow.stderr
    assert found(tmp_path, slow, *secrets) == []
    assert not (tmp_path / "x.jsonl").exists()
