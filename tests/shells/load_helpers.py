"""What the load tests share: a target at an address, and stages of plain requests."""

from collections.abc import Sequence

from benchgate.load.worker import StageResult, run_stage
from benchgate.model.deployment import Arm
from benchgate.plan.schedule import PlannedRequest, PlannedStage
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import DIALECTS, Endpoint, Target
from tests.fakes.scripted_server import DONE, LAST_CHUNK, finish, role_event, stream_head, token, usage

HALO = stream_head() + role_event() + token("Hal") + token("lo") + token("!")
WHOLE = HALO + finish("stop") + usage(4, 3) + DONE + LAST_CHUNK


def target_at(url: str, api_key: str | None = None) -> Target:
    return Target(Arm.CANDIDATE, url, "scripted", DIALECTS["vllm"], api_key)


def limits(*, connect_s: float = 5, first_token_s: float = 30, stall_s: float = 30, total_s: float = 60) -> Limits:
    return Limits.model_validate(
        {"connect_s": connect_s, "first_token_s": first_token_s, "stall_s": stall_s, "total_s": total_s},
        by_name=True,
        by_alias=False,
        context={"stored": True},
    )


def closed(count: int, concurrency: int = 1) -> PlannedStage:
    requests = tuple(PlannedRequest(index, None, f"prompt {index}", 8, index) for index in range(count))
    return PlannedStage("closed", concurrency, None, requests)


def opened(offsets_ns: Sequence[int]) -> PlannedStage:
    requests = tuple(PlannedRequest(i, offset, f"prompt {i}", 8, i) for i, offset in enumerate(offsets_ns))
    return PlannedStage("open", None, 100.0, requests)


def run(
    url: str,
    stage: PlannedStage,
    within: Limits | None = None,
    *,
    endpoint: Endpoint = "chat",
    until_s: float | None = None,
) -> StageResult:
    return run_stage(
        target_at(url), stage, endpoint=endpoint, ignore_eos=True, limits=within or limits(), issue_until_s=until_s
    )
