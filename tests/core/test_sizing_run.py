"""What a run says of a replica beside its rate: its starts, its overhead, and how full its cache was."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from benchgate.model.deployment import Arm
from benchgate.model.records import RequestColumns, RequestRecord
from benchgate.model.run import Evidence, LoadObservation, ServerStart
from benchgate.model.telemetry import Gauge, TelemetrySample, TelemetryWindow
from benchgate.report.sizing import RunSeen, sizing_document, sizing_text
from benchgate.sizing.fleet import OUTPUT_TOKENS, Demand, KvCache, Replica, SizingInput, size_demand
from benchgate.sizing.kv_cache import cache_layout
from benchgate.sizing.operating_point import LoadLevel, OperatingPoint
from benchgate.sizing.signals import CacheCheck, CacheUse, ColdStarts, cache_check, cache_use, cold_starts
from tests.fakes import evidence as fake

ARM = Arm.CANDIDATE
GPT2 = {"n_layer": 12, "n_head": 12, "n_embd": 768, "dtype": "f16"}  # 2 x 12 x 768 numbers of two bytes a token
ROW = LoadLevel("c8", 700.0, 630.0, 14.0, 12.0, 0.955, 0.95, 2.0)
CHOICE = OperatingPoint(ROW)


def answered(index: int, stay_s: int, read: int | None, wrote: int) -> RequestRecord:
    end_ns = stay_s * 1_000_000_000
    record = fake.request(index, 0, 0, 1, 0)
    return replace(
        record, intended_ns=0, sent_ns=0, chunk_ns=(end_ns,), end_ns=end_ns, input_tokens=read, output_tokens=wrote
    )


def block(number: int, *records: RequestRecord, left: tuple[RequestRecord, ...] = ()) -> LoadObservation:
    client = fake.load()[0].client
    return LoadObservation(
        "c8", ARM, number, number, RequestColumns.pack(records), 2.0, client, RequestColumns.pack(left)
    )


def told(number: int, usage: float) -> TelemetryWindow:
    looks = tuple(TelemetrySample(float(at), {Gauge.RUNNING: 2.0, Gauge.KV_USAGE: usage}) for at in range(4))
    return TelemetryWindow("c8", ARM, number, 0, "vllm", 3.0, True, looks)


SHORT, LONG = answered(0, 1, 100, 20), answered(1, 3, 300, 40)
BLOCKS = block(0, SHORT, LONG), block(1, SHORT, LONG)
TOLD = told(0, 0.125), told(1, 0.25)


def evidence(load: tuple[LoadObservation, ...] = BLOCKS, telemetry: tuple[TelemetryWindow, ...] = TOLD) -> Evidence:
    return replace(fake.evidence(), load=load, telemetry=telemetry)


def started(*times_s: float) -> Evidence:
    ours = [ServerStart(ARM, number, time_s) for number, time_s in enumerate(times_s)]
    return replace(fake.evidence(), starts=(ServerStart(Arm.BASELINE, 0, 99.0), *ours))


def a_cache(memory_bytes: float = 1e8) -> KvCache:
    return KvCache(cache_layout(GPT2), memory_bytes, 1024)


def test_starts_of_an_arm_are_its_own_with_the_usual_and_the_worst() -> None:
    assert cold_starts(started(12.0, 10.0, 40.0, 11.0), ARM) == ColdStarts(4, 11.5, 40.0)
    assert cold_starts(started(), ARM) is None
    assert cold_starts(started(10.0, 0.0), ARM) is None
    assert cold_starts(started(10.0, math.nan), ARM) is None


def test_requests_inside_and_their_tokens_are_means_over_time() -> None:
    """Two seconds with 1 s of 100 + 20/2 tokens and 3 s of 300 + 40/2: two at once, of (110 + 3 x 320) / 4 tokens."""
    assert cache_use(evidence(), "c8", ARM) == CacheUse("c8", 2.0, 267.5, 0.1875)
    classes = tuple(replace(one, stage="c8/chat") for one in BLOCKS)
    assert cache_use(evidence(classes), "c8", ARM) == CacheUse("c8", 2.0, 267.5, 0.1875)


@pytest.mark.parametrize(
    ("load", "telemetry", "said"),
    [
        ((), TOLD, "KV cache usage in every block of c8"),
        (BLOCKS, (), "KV cache usage in every block of c8"),
        (BLOCKS, TOLD[:1], "KV cache usage in every block of c8"),
        (BLOCKS, (TOLD[0], replace(TOLD[1], readings=())), "KV cache usage in every block of c8"),
        (BLOCKS, (told(0, 37.0), told(1, 37.0)), "KV cache usage 37.0 at c8"),
        (BLOCKS, (told(0, math.nan), told(1, 0.1)), "expected a share from 0 to 1"),
        ((BLOCKS[0], block(1, SHORT, answered(1, 3, None, 40))), TOLD, "finished with a token count"),
        ((BLOCKS[0], block(1, SHORT, left=(LONG,))), TOLD, "finished with"),
        ((BLOCKS[0], block(1, fake.failed_request(0))), TOLD, "finished with"),
        ((BLOCKS[0], replace(BLOCKS[1], window_s=0.0)), TOLD, "finished with"),
    ],
)
def test_cache_of_which_a_part_is_not_known_is_not_known(
    load: tuple[LoadObservation, ...], telemetry: tuple[TelemetryWindow, ...], said: str
) -> None:
    found = cache_use(evidence(load, telemetry), "c8", ARM)
    assert isinstance(found, str)
    assert said in found


@pytest.mark.parametrize(
    ("measured", "differs"), [(0.0, True), (0.133, True), (0.135, False), (0.2, False), (0.3, False), (0.302, True)]
)
def test_cache_is_held_against_what_the_server_told(measured: float, differs: bool) -> None:
    """268 tokens are 17 pages of 16; two such requests are 2 x 272 x 36,864 bytes of 100 MB."""
    found = cache_check(CacheUse("c8", 2.0, 267.5, measured), a_cache())
    assert isinstance(found, CacheCheck)
    assert found.predicted_ratio == pytest.approx(0.20054016)
    assert found.differs is differs
    assert cache_check(CacheUse("c8", 2.0, 267.5, measured), a_cache(0.0)) == "its memory is not stated"


def a_question(
    *, overhead: float | None = None, cold_start_s: float | None = None, cache: KvCache | None = None
) -> SizingInput:
    demand = Demand(5000, None, 9000, 1.0)
    return SizingInput(
        OUTPUT_TOKENS, demand, Replica(700, None, 1.25), overhead, cold_start_s=cold_start_s, cache=cache
    )  # fmt: skip


def text(seen: RunSeen | None, question: SizingInput) -> str:
    return sizing_text(size_demand(question), seen)


def test_text_says_what_was_taken_from_the_run_and_what_of_its_starts_was_not() -> None:
    starts = ColdStarts(5, 12.0, 700.0)
    taken = RunSeen(CHOICE, starts=starts, taken=("cold_start_s", "overhead_ratio"))
    said = text(taken, a_question(overhead=0.25, cold_start_s=700.0))
    assert "at $1.00/h and 25.0 % overhead." in said
    assert "The overhead of 25.0 % is that of the run's `price_terms`." in said
    assert "Starts of its server in the run: 5, which took 12.0 s (median) and 700 s (worst)" in said
    assert "The worst is planned with; a machine, an image and weights that must be fetched first come on top." in said
    assert "stay 1 ahead" in said
    own = text(RunSeen(CHOICE, starts=starts), a_question(overhead=0.25, cold_start_s=60.0))
    assert "less than the worst of them" in own
    assert "planned with;" not in own
    assert "`price_terms`" not in own


def test_what_the_run_does_not_tell_is_said_to_be_unknown() -> None:
    said = text(RunSeen(CHOICE), a_question(cache=a_cache()))
    assert "No overhead is counted" in said
    assert "How many replicas to start ahead of rising demand is unknown" in said
    assert "This was not compared with the run: nothing was recorded." in said
    document = json.loads(json.dumps(sizing_document(size_demand(a_question(cache=a_cache())), RunSeen(CHOICE))))
    assert (document["starts"], document["cache_check"], document["question"]["overhead_ratio"]) == (None, None, None)
    assert document["cache_not_checked"] == "nothing was recorded"
    alone = text(None, a_question(cache=a_cache()))
    assert "held against" not in alone
    assert "No overhead" not in alone


@pytest.mark.parametrize(
    ("measured", "said", "unsaid"),
    [
        (0.19, "20.1 % of the cache by this, 19.0 % by its server.", "times apart"),
        (0.1, "more than 1.5 times apart. It may be shared prefixes", "larger pages"),
        (0.5, "more than 1.5 times apart. It may be larger pages", "shared prefixes"),
    ],
)
def test_text_says_how_full_the_cache_should_have_been(measured: float, said: str, unsaid: str) -> None:
    seen = RunSeen(CHOICE, cache_use=CacheUse("c8", 2.0, 267.5, measured))
    found = text(seen, a_question(cache=a_cache()))
    assert "At c8 2.00 requests of 268 tokens were in the system on average" in found
    assert said in found
    assert unsaid not in found
    assert "were inside" not in text(seen, a_question())
