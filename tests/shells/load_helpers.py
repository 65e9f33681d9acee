"""What the load tests share: a target at an address, and stages of plain requests."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from benchgate.load.decode.answer import AnswerContent
from benchgate.load.decode.body import Read
from benchgate.load.decode.endpoints import read_body
from benchgate.load.decode.record import decode as decode_with_id
from benchgate.load.http.exchange import Response
from benchgate.load.results import StageResult
from benchgate.load.shards import stage_shard
from benchgate.load.workers import run_shard
from benchgate.model.deployment import Arm
from benchgate.model.records import RequestRecord
from benchgate.model.request import Endpoint, ModelRequest, text_request
from benchgate.plan.model import PlannedRequest, PlannedStage
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import DIALECTS, Target
from tests.fakes.scripted_server import DONE, LAST_CHUNK, finish, role_event, stream_head, token, usage

HALO = stream_head() + role_event() + token("Hal") + token("lo") + token("!")
WHOLE = HALO + finish("stop") + usage(4, 3) + DONE + LAST_CHUNK


def decode(index: int, intended_ns: int, epoch_ns: int, response: Response, **options: Any) -> RequestRecord:
    record, _ = decode_with_id(index, intended_ns, epoch_ns, response, **options)
    return record


def content_of(body: Iterable[Read], ask: ModelRequest) -> AnswerContent:
    return read_body(body, ask).words


def target_at(url: str, api_key: str | None = None) -> Target:
    return Target(Arm.CANDIDATE, url, "scripted", DIALECTS["vllm"], api_key)


def limits(*, connect_s: float = 5, first_token_s: float = 30, stall_s: float = 30, total_s: float = 60) -> Limits:
    return Limits.model_validate(
        {"connect_s": connect_s, "first_token_s": first_token_s, "stall_s": stall_s, "total_s": total_s},
        by_name=True,
        by_alias=False,
        context={"stored": True},
    )


def asking(index: int, offset_ns: int | None, endpoint: Endpoint = "chat") -> PlannedRequest:
    return PlannedRequest(index, offset_ns, text_request(endpoint, f"prompt {index}", 8), index)


def closed(count: int, concurrency: int = 1, endpoint: Endpoint = "chat") -> PlannedStage:
    return PlannedStage.of("closed", concurrency, None, tuple(asking(i, None, endpoint) for i in range(count)))


def opened(offsets_ns: Sequence[int]) -> PlannedStage:
    return PlannedStage.of("open", None, 100.0, tuple(asking(i, offset) for i, offset in enumerate(offsets_ns)))


def run(
    url: str,
    stage: PlannedStage,
    within: Limits | None = None,
    *,
    until_s: float | None = None,
) -> StageResult:
    shard = stage_shard(target_at(url), stage, limits=within or limits())
    timed = (replace(part, level=replace(part.level, send_until_s=until_s)) for part in shard.parts)
    return run_shard(replace(shard, parts=tuple(timed)))
