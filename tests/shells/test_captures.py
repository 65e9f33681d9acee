"""Every recorded exchange, given back over a socket, is read: whatever is added to tests/captures is held to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchgate.model.request import Endpoint
from benchgate.targets.answers import read_answer
from benchgate.targets.error_messages import error_text, json_object
from benchgate.telemetry.engine_metrics import read_page
from tests.fakes.replay import CAPTURES, read_exchange
from tests.fakes.scripted_server import CLOSE, ScriptedServer, Step
from tests.shells.load_helpers import closed, run

EXCHANGES = sorted(path.relative_to(CAPTURES).as_posix().removesuffix(".http") for path in CAPTURES.rglob("*.http"))
METRICS = sorted(path.relative_to(CAPTURES).as_posix() for path in CAPTURES.rglob("metrics_*.txt"))
REPLAYED = {
    "exchanges": {name.partition("/")[0] for name in EXCHANGES},
    "metrics": {name.partition("/")[0] for name in METRICS},
}


def check_exchange(path: Path) -> None:
    """Give an exchange back, as its name says what it is, and hold what benchgate reads of it."""
    recorded, name = read_exchange(path), path.stem
    if recorded.reads:
        assert len(recorded.wire()) == sum(size for _, size in recorded.reads)
    status = int(recorded.status_line.split()[1])
    endpoint: Endpoint = "completions" if name.startswith("completions") else "chat"
    if status >= 400:
        assert error_text(recorded.body).strip()
    elif "_stream" in name and not name.startswith("err_"):
        steps: list[Step] = list(recorded.as_recorded(0.01)) if recorded.reads else [recorded.wire(), CLOSE]
        with ScriptedServer(lambda received: steps) as server:
            columns = run(server.url, closed(1, endpoint=endpoint)).requests
        assert columns.error == (None,), columns.error_detail
        assert columns.output_tokens[0] > 0
    elif name.endswith("_nonstream"):
        assert read_answer(endpoint, status, recorded.body).text
    elif not name.startswith("err_"):
        assert json_object(recorded.body) is not None


@pytest.mark.parametrize("name", EXCHANGES)
def test_exchange_is_read(name: str) -> None:
    check_exchange(CAPTURES / f"{name}.http")


@pytest.mark.parametrize("name", METRICS)
def test_metrics_page_is_read(name: str) -> None:
    assert read_page((CAPTURES / name).read_text(), "tiny-llama").values


def test_exchange_without_its_end_is_not_read(tmp_path: Path) -> None:
    whole = (CAPTURES / "vllm-0.32.0-cpu/chat_stream_usage.http").read_bytes()
    (tmp_path / "chat_stream_usage.http").write_bytes(whole[: whole.index(b'"finish_reason":"length"')])
    with pytest.raises(AssertionError):
        check_exchange(tmp_path / "chat_stream_usage.http")
