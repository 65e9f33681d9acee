"""Telemetry of real servers on the loopback: what is asked, by whom, and that it agrees with what the client got."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from benchgate.embedded.server import serve
from benchgate.errors import UsageError
from benchgate.gate.evidence.telemetry import compare_counts
from benchgate.load.results import StageResult
from benchgate.load.shards import stage_shard
from benchgate.load.workers import Fleet
from benchgate.model.deployment import Arm
from benchgate.model.run import LoadObservation
from benchgate.model.telemetry import Counter, Gauge, TelemetryWindow
from benchgate.pipeline.preflight import run_problems
from benchgate.sim.process import serve_sim
from benchgate.sim.settings import ListenAddress, sim_settings
from benchgate.suite.deployment import DeploymentSpec, Embedded, Metrics
from benchgate.targets.dialect import DIALECTS, Target, dialect_of
from benchgate.telemetry.engine_metrics import PAGES, UnreadError
from benchgate.telemetry.sampler import Sampler
from benchgate.telemetry.sources import PageSource, ReplicaSource, Sources, sources_of
from benchgate.units import show_duration
from tests.fakes.measured import SuiteText
from tests.fakes.scripted_server import Received, ScriptedServer, Step
from tests.shells.load_helpers import closed, limits, run

IDLE = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"


def page(text: str, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", "content-type: text/plain", f"content-length: {len(text.encode())}", *headers]
    return "\r\n".join([*lines, "", text]).encode()


def always(text: str, *headers: str, status: str = "200 OK") -> Callable[[Received], Iterable[Step]]:
    return lambda _: [page(text, *headers, status=status)]


def target(url: str, engine: str = "vllm") -> Target:
    return Target(Arm.CANDIDATE, url, "m", DIALECTS[engine], "secret-key", secret_headers={"x-tenant": "secret-tenant"})


def spec(url: str = "http://host:8000", **keys: object) -> DeploymentSpec:
    return DeploymentSpec.model_validate({"url": url, "model": "m", **keys})


def looked_at(sources: Sources, at: Target, stage: Callable[[], object] = lambda: None) -> TelemetryWindow:
    with Sampler(sources, at) as watch:
        with watch.stage() as looks:
            stage()
        window = watch.window(looks, "c4", Arm.CANDIDATE, 0, 0)
    assert window is not None
    return window


@pytest.mark.parametrize("bad", [page(""), page("no route", status="404 Not Found")])
def test_a_page_that_was_read_before_is_read_again_after_a_restart(bad: bytes) -> None:
    """A server that has just started has no counters yet, and a gateway knows no route while it is away."""
    shown = [page(IDLE)]
    windows = []
    with ScriptedServer(lambda _: shown) as server:
        at = target(server.url)
        with Sampler(Sources(f"{server.url}/metrics"), at) as watch:
            for answer in (page(IDLE), bad, page(IDLE)):
                shown[:] = [answer]
                with watch.stage() as looks:
                    pass
                windows.append(watch.window(looks, "c4", Arm.CANDIDATE, 0, 0))
    first, away, again = (window for window in windows if window is not None)
    assert first.reports(Gauge.RUNNING) and not away.readings and away.problems
    assert again.reports(Gauge.RUNNING) and not again.problems


@pytest.mark.parametrize(
    ("engine", "url", "expected"),
    [
        ("vllm", "http://h:8000/base", "http://h:8000/base/metrics"),
        ("openai", "https://h", "https://h/metrics"),
        ("trtllm", "http://h:8000", "http://h:8000/prometheus/metrics"),
        ("triton", "http://h:8000", "http://h:8002/metrics"),
        ("triton", "unix:/run/s.sock", "http://localhost/metrics"),
        ("triton", "http://h:9000", "http://h:9000/metrics"),
        ("kserve", "http://h/openai", "http://h/metrics"),
        ("torchserve", "http://h:8080/predictions/llm/1.0", "http://h:8082/metrics"),
        ("rayserve", "http://h:8000", None),
        ("vllm", "http://h/v1beta/openai", "http://h/v1beta/openai/metrics"),
        ("vllm", "http://h/v2/tenant/v1", "http://h/v2/tenant/metrics"),
        ("llamacpp", "unix:/run/s.sock", "http://localhost/metrics"),
        ("ollama", "http://h:11434", None),
    ],
)
def test_auto_is_where_the_engine_shows_its_metrics(engine: str, url: str, expected: str | None) -> None:
    assert sources_of(spec(url, engine=engine), target(url, engine), {}).page == expected


def test_addresses_may_be_references_and_must_be_set() -> None:
    said = spec(metrics="${env:PAGE}", gpu="${env:GPU}", gpu_devices=[1])
    at = target("http://host:8000")
    whole = {"PAGE": "http://m:1/metrics", "GPU": "http://g:9400/metrics"}
    assert sources_of(said, at, whole) == Sources("http://m:1/metrics", "http://g:9400/metrics", (1,))
    private = "https://reader:s3cret@m:1/metrics?token=x"
    assert sources_of(said, at, {**whole, "PAGE": private}).page == private
    with pytest.raises(UsageError, match="PAGE is not set"):
        sources_of(said, at, {})
    with pytest.raises(UsageError, match="not the address") as refused:
        sources_of(said, at, {**whole, "PAGE": "s3cret"})
    assert "s3cret" not in str(refused.value)
    assert sources_of(spec(metrics="off"), at, {}) == Sources()


def test_credentials_of_an_address_are_sent_to_its_server_and_shown_to_nobody() -> None:
    with ScriptedServer(always("", status="401 Unauthorized")) as server:
        address = server.url.replace("http://", "http://reader:s3cret@") + "/metrics"
        window = looked_at(Sources(address), target("http://127.0.0.1:1"))
        assert server.requests[0].headers["authorization"].startswith("Basic ")
    assert window.problems == (f"{server.url} answers HTTP 401 to the request for its metrics",)


@pytest.mark.parametrize("drops", [b"vllm:num_requests_running 0", b"HTTP/1.1 200 OK\r\nx-long: aaaaaaaa"])
def test_a_page_that_comes_in_drops_is_not_waited_for_and_asked_for_again(drops: bytes) -> None:
    def drip(received: Received) -> Iterable[Step]:
        if len(server.requests) > 1:
            yield page(IDLE)
            return
        if not drops.startswith(b"HTTP"):
            yield b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 1000000\r\n\r\n"
        yield drops
        while True:
            yield 0.02
            yield b"0"

    server = ScriptedServer(drip)
    with server, PageSource(f"{server.url}/metrics", target(server.url), longest_s=0.2) as source:
        with pytest.raises(UnreadError, match="could not be read: no answer within 200 ms") as told:
            source.fetch()
        assert not told.value.hopeless
        assert source.fetch().text == IDLE


def test_a_page_on_the_server_gets_its_headers_and_a_page_elsewhere_none_of_them() -> None:
    with ScriptedServer(always(IDLE)) as own, ScriptedServer(always(IDLE)) as other:
        for address in (f"{own.url}/metrics", f"{other.url}/metrics"):
            looked_at(Sources(address), target(own.url))
    assert {request.headers.get("x-tenant") for request in own.requests} == {"secret-tenant"}
    assert {request.headers.get("authorization") for request in own.requests} == {"Bearer secret-key"}
    assert not [name for request in other.requests for name in request.headers if name in ("x-tenant", "authorization")]


@pytest.mark.parametrize(
    ("respond", "says"),
    [
        (always("nope", status="404 Not Found"), "answers HTTP 404"),
        (always("<html>"), "cannot be used"),
        (always("process_cpu_seconds_total 1\n"), "no name that a known engine uses"),
    ],
)
def test_a_server_without_metrics_is_asked_once_and_tells_nothing(
    respond: Callable[[Received], Iterable[Step]], says: str
) -> None:
    with ScriptedServer(respond) as server, Sampler(Sources(f"{server.url}/metrics"), target(server.url)) as watch:
        for _ in range(2):
            with watch.stage() as looks:
                pass
            window = watch.window(looks, "c4", Arm.CANDIDATE, 0, 0)
            assert window is not None
            assert window.readings == ()
            assert any(says in problem for problem in window.problems), window.problems
    assert len(server.requests) == 1


def test_a_server_that_is_gone_is_no_error_and_tells_nothing() -> None:
    with ScriptedServer(always(IDLE)) as server:
        address = server.url
    window = looked_at(Sources(f"{address}/metrics"), target(address))
    assert window.readings == ()
    assert "could not be read: could not connect" in window.problems[0]


def test_nothing_is_read_where_there_is_nothing_to_read() -> None:
    with Sampler(Sources(), target("http://127.0.0.1:1")) as watch, watch.stage() as looks:
        assert watch.window(looks, "c4", Arm.CANDIDATE, 0, 0) is None


def test_the_stage_is_looked_at_while_it_runs_and_after_it_until_the_server_is_idle() -> None:
    looks: list[int] = []

    def respond(_: Received) -> Iterable[Step]:
        looks.append(1)
        running = 3 if 2 <= len(looks) <= 4 else 0  # the second look is during the stage, two more find it still busy
        seen_during.set() if len(looks) == 2 else None
        yield page(f"vllm:num_requests_running {running}\nvllm:kv_cache_usage_perc {running / 10}\n")

    seen_during = threading.Event()
    with ScriptedServer(respond) as server:
        window = looked_at(Sources(f"{server.url}/metrics"), target(server.url), lambda: seen_during.wait(10))
    assert len(looks) == 5
    assert window.drained
    assert window.mean(Gauge.RUNNING) == 3
    assert (window.peak(Gauge.KV_USAGE), window.after(Gauge.KV_USAGE)) == (0.3, 0.0)


def test_what_was_cut_before_a_stage_is_none_of_its_work() -> None:
    said = iter([(2, 100), (1, 150), (0, 170)])

    def respond(_: Received) -> Iterable[Step]:
        running, tokens = next(said, (0, 180))
        yield page(f"vllm:num_requests_running {running}\nvllm:generation_tokens_total {tokens}\n")

    with ScriptedServer(respond) as server:
        window = looked_at(Sources(f"{server.url}/metrics"), target(server.url))
    assert window.readings[0].values[Gauge.RUNNING] == 0
    assert window.change(Counter.GENERATION_TOKENS) == 10


def test_a_restart_in_the_stage_is_seen_by_the_header_of_llama_cpp() -> None:
    born = iter("abb")

    def respond(_: Received) -> Iterable[Step]:
        yield page("llamacpp:tokens_predicted_total 5\n", f"process-start-time-unix: {next(born, 'b')}")

    with ScriptedServer(respond) as server:
        window = looked_at(Sources(f"{server.url}/metrics"), target(server.url, "llamacpp"))
    assert window.markers == ("a", "b")
    assert window.restarted


def test_accelerators_are_read_beside_the_server() -> None:
    gpu = 'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 30\nDCGM_FI_DEV_GPU_UTIL{gpu="1"} 90\n'
    with ScriptedServer(always(IDLE)) as server, ScriptedServer(always(gpu)) as exporter:
        sources = Sources(f"{server.url}/metrics", f"{exporter.url}/metrics", (0,))
        window = looked_at(sources, target(server.url))
    assert {reading.values[Gauge.GPU_BUSY] for reading in window.readings} == {0.3}


@pytest.mark.parametrize(
    ("collects_every", "energy_rises", "power_w"),
    [(1, True, 300.0), (2, True, 300.0), (30, True, None), (1, False, None)],
)
def test_power_of_an_exporter_that_collects_seldom_is_not_that_of_the_stage(
    collects_every: int, energy_rises: bool, power_w: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power is constant in all of them. Where the counter of energy rises, each collection changes the page."""
    monkeypatch.setattr("benchgate.telemetry.sampler.FIRST_SAMPLE_S", 0.02)
    monkeypatch.setattr("benchgate.telemetry.sampler._EVERY_S", 0.02)
    read = itertools.count()

    def export(_: Received) -> Iterable[Step]:
        collected = next(read) // collects_every if energy_rises else 0
        joules = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
        power = '# TYPE DCGM_FI_DEV_POWER_USAGE gauge\nDCGM_FI_DEV_POWER_USAGE{gpu="0"} 300\n'
        yield page(f'{power}# TYPE {joules} counter\n{joules}{{gpu="0"}} {1000 * collected}\n')

    with ScriptedServer(always(IDLE)) as server, ScriptedServer(export) as exporter:
        sources = Sources(f"{server.url}/metrics", f"{exporter.url}/metrics")
        window = looked_at(sources, target(server.url), lambda: time.sleep(0.5))
    assert window.mean(Gauge.GPU_POWER) == power_w
    assert (window.energy_j is None) == (power_w is None)
    assert ("changed too seldom" in " ".join(window.problems)) == (power_w is None)


def test_a_stage_too_short_for_an_exporter_is_not_blamed_on_the_exporter() -> None:
    """A page that is collected every second changes once at most."""
    with ScriptedServer(always('DCGM_FI_DEV_POWER_USAGE{gpu="0"} 300\n')) as exporter:
        window = looked_at(Sources(gpu=f"{exporter.url}/metrics"), target(exporter.url), lambda: time.sleep(0.6))
    assert window.energy_j is None
    (problem,) = window.problems
    assert f"over after {show_duration(window.ended_s, digits=2)}, too short" in problem
    assert "seldom" not in problem


@pytest.mark.parametrize(("refreshes_every", "is_known"), [(1, True), (2, True), (30, False)])
@pytest.mark.parametrize("replicas", [0, 2])
def test_power_and_energy_on_a_page_of_triton_count_only_if_they_were_refreshed_during_the_stage(
    replicas: int, refreshes_every: int, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own counters change at every reading."""
    monkeypatch.setattr("benchgate.telemetry.sampler.FIRST_SAMPLE_S", 0.02)
    monkeypatch.setattr("benchgate.telemetry.sampler._EVERY_S", 0.02)

    def triton() -> Callable[[Received], Iterable[Step]]:
        read = itertools.count()

        def respond(_: Received) -> Iterable[Step]:
            number = next(read)
            refreshed = number // refreshes_every
            yield page(
                f"nv_inference_request_success {number}\nnv_inference_pending_request_count 0\n"
                f'nv_gpu_power_usage{{gpu_uuid="a"}} 300\nnv_energy_consumption{{gpu_uuid="a"}} {refreshed}\n'
            )

        return respond

    with ExitStack() as stack:
        servers = [stack.enter_context(ScriptedServer(triton())) for _ in range(max(1, replicas))]
        pages = [f"{server.url}/metrics" for server in servers]
        several = tuple(ReplicaSource(str(number), None, page) for number, page in enumerate(pages))
        sources = Sources(replicas=several) if replicas else Sources(pages[0])
        window = looked_at(sources, target(servers[0].url, "triton"), lambda: time.sleep(0.5))
    assert len(window.replicas) == replicas
    assert window.change(Counter.REQUESTS)
    assert window.reports(Gauge.GPU_POWER) is window.reports(Counter.GPU_ENERGY_J) is is_known
    assert (window.energy_j is not None) is is_known
    assert ("too seldom" in " ".join(window.problems)) is not is_known


def test_a_stage_lasts_from_the_start_of_its_load_to_its_last_answer() -> None:
    """A process of the load generator is started before, and what it got is decoded and kept afterwards."""
    settings = sim_settings(model="scripted", prefill_s=0.0001, decode_s=0.06)
    read = itertools.count()

    def export(_: Received) -> Iterable[Step]:
        yield page(f'DCGM_FI_DEV_POWER_USAGE{{gpu="0"}} 300\nDCGM_FI_DEV_GPU_UTIL{{gpu="0"}} {next(read)}\n')

    with serve_sim(settings) as sim, ScriptedServer(export) as exporter, Fleet() as fleet:
        at = Target(Arm.CANDIDATE, sim.url, settings.model, DIALECTS["vllm"])
        with Sampler(Sources(f"{sim.url}/metrics", f"{exporter.url}/metrics"), at) as watch:
            with watch.stage() as looks:
                result = fleet.run(stage_shard(at, closed(16, 4), limits=limits()), looks.begin)
                time.sleep(0.3)  # as answers are decoded
                looks.end(result.last_answer_s)
                time.sleep(0.3)  # as they are kept
            window = watch.window(looks, "c4", Arm.CANDIDATE, 0, 0)
    assert window is not None
    assert window.ended_s == pytest.approx(result.window_s, abs=0.05)
    assert window.change(Counter.REQUESTS) == 16
    assert window.energy_j == pytest.approx(300 * result.window_s, rel=0.1)
    assert [one.at_s for one in window.busy] == pytest.approx([0.5 + n for n in range(len(window.busy))], abs=0.3)
    assert all(one.values[Gauge.RUNNING] > 0 for one in window.busy) and window.busy


@pytest.mark.parametrize("running", [4, 0])
@pytest.mark.parametrize(("awaits_idle", "held"), [(True, 0.02), (False, None)])
def test_gauges_that_show_the_end_of_work_late_are_waited_for_only_where_a_check_needs_it(
    awaits_idle: bool, held: float | None, running: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang's stand still for up to 30 s after the last request, and may then be of any moment of it."""
    delay_s, ended = 1.0, list[float]()
    sglang = replace(PAGES["sglang"], idle_delay_s=delay_s)
    monkeypatch.setattr("benchgate.telemetry.sampler.PAGES", {**PAGES, "sglang": sglang})

    def respond(_: Received) -> Iterable[Step]:
        is_late = bool(ended) and time.monotonic() >= ended[0] + delay_s - 0.1
        now, used = (0, 0.02) if is_late else (running, 0.4)
        yield page(f"sglang:num_running_reqs {now}\nsglang:num_queue_reqs 0\nsglang:token_usage {used}\n")

    with ScriptedServer(respond) as server:
        at = target(server.url, "sglang")
        with Sampler(Sources(f"{server.url}/metrics"), at) as watch:
            began_s = time.monotonic()
            with watch.stage(awaits_idle=awaits_idle) as looks:
                ended.append(time.monotonic())
            took_s = time.monotonic() - began_s
            window = watch.window(looks, "c4", Arm.CANDIDATE, 0, 0)
    assert window is not None
    assert (window.after(Gauge.KV_USAGE), window.drained) == (held, awaits_idle)
    assert (took_s >= delay_s) is awaits_idle


@pytest.mark.parametrize("running", [1, 0])
def test_an_engine_that_never_shows_rest_is_not_waited_for_and_not_taken_to_be_idle(running: int) -> None:
    """TensorRT-LLM's gauges stand as the last request left them."""
    gauges = f"trtllm_num_requests_running {running}\ntrtllm_kv_cache_utilization 0.4\n"
    asked = list[Received]()

    def respond(received: Received) -> Iterable[Step]:
        asked.append(received)
        yield page(gauges)

    with ScriptedServer(respond) as server:
        sources = Sources(f"{server.url}/prometheus/metrics")
        with Sampler(sources, target(server.url, "trtllm")) as watch, watch.stage(awaits_idle=True) as looks:
            pass
        window = watch.window(looks, "c4", Arm.CANDIDATE, 0, 0)
    assert window is not None
    assert (window.after(Gauge.KV_USAGE), window.drained) == (None, False)
    assert len(asked) <= 4  # two seconds of waiting would ask many times


def as_observation(result: StageResult) -> LoadObservation:
    return LoadObservation("c4", Arm.CANDIDATE, 0, 0, result.requests, result.window_s, result.client)


def assert_agrees(window: TelemetryWindow, seen: LoadObservation, words: int) -> None:
    """Server and client count the same, to the token."""
    found = compare_counts(window, [seen], 0, longest=64)
    assert len(found) == words
    for count in found:
        assert count.least == count.most == count.server > 0, count


def test_what_the_practice_server_tells_agrees_with_what_the_client_got() -> None:
    settings = sim_settings(model="scripted", batch=32)
    with serve_sim(settings) as sim:
        at = Target(Arm.CANDIDATE, sim.url, settings.model, DIALECTS["vllm"])
        results: list[StageResult] = []
        window = looked_at(Sources(f"{sim.url}/metrics"), at, lambda: results.append(run(sim.url, closed(24, 4))))
    seen = as_observation(results[0])
    assert_agrees(window, seen, words=3)
    assert window.drained
    assert not window.restarted


def test_requests_of_somebody_else_are_beyond_what_was_asked() -> None:
    settings = sim_settings(model="scripted", batch=32)
    with serve_sim(settings) as sim:
        at = Target(Arm.CANDIDATE, sim.url, settings.model, DIALECTS["vllm"])
        results: list[StageResult] = []

        def stage() -> None:
            results.append(run(sim.url, closed(20, 4)))
            run(sim.url, closed(2))  # a stranger's

        window = looked_at(Sources(f"{sim.url}/metrics"), at, stage)
    found = {count.what: count for count in compare_counts(window, [as_observation(results[0])], 0, longest=64)}
    assert found["requests"].excess_ratio == found["generated tokens"].excess_ratio == 0.1


def test_a_server_that_was_really_restarted_on_its_port_in_a_stage_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings, address = sim_settings(model="scripted"), ListenAddress(port=port)
    with ExitStack() as stack:
        first = stack.enter_context(serve_sim(settings, address))

        def stage() -> None:
            run(first.url, closed(2))
            stack.close()
            stack.enter_context(serve_sim(settings, address))
            run(first.url, closed(2))

        at = Target(Arm.CANDIDATE, first.url, settings.model, DIALECTS["vllm"])
        window = looked_at(Sources(f"{first.url}/metrics"), at, stage)
    assert window.restarted
    assert len(window.markers) == 2
    assert window.change(Counter.GENERATION_TOKENS) is None


def test_what_the_embedded_engine_tells_agrees_with_what_the_client_got(tmp_path: Path) -> None:
    served = DeploymentSpec(embedded=Embedded(slots=2))
    assert served.embedded is not None
    with serve(served.embedded, name="tiny", cache_dir=tmp_path) as server:
        at = Target(Arm.CANDIDATE, server.url, server.model, dialect_of(served))
        answers: list[dict[str, int]] = []

        def stage() -> None:
            with httpx2.Client(base_url=server.url, timeout=60) as client:
                for number in range(6):
                    body = {"model": server.model, "messages": [{"role": "user", "content": f"add {number}"}],
                            "max_tokens": 16, "temperature": 0}  # fmt: skip
                    answers.append(client.post("/v1/chat/completions", json=body).json()["usage"])

        window = looked_at(sources_of(served, at, {}), at, stage)
    assert window.change(Counter.GENERATION_TOKENS) == sum(usage["completion_tokens"] for usage in answers) > 0
    assert window.change(Counter.PROMPT_TOKENS) == sum(usage["prompt_tokens"] for usage in answers) > 0
    assert window.change(Counter.PREFIX_HITS) == 0
    assert len(window.markers) == 1


def test_pages_that_cannot_be_are_problems_before_a_run_begins(tmp_path: Path) -> None:
    suite = SuiteText([{"metric": "error_rate", "max": "1%"}]).suite()
    broken = suite.deployments["candidate"].model_copy(
        update={"metrics": Metrics(page="${env:PAGE}"), "gpu": "${env:GPU}"}
    )
    suite = suite.model_copy(update={"deployments": {**suite.deployments, "candidate": broken}})
    assert [str(problem) for problem in run_problems(suite, tmp_path, {"PAGE": "nowhere"})] == [
        "deployments.candidate.metrics: `metrics` refers to what is not the address of a page of metrics; correct it",
        "deployments.candidate.gpu: the environment variable GPU is not set, and the suite refers to it; "
        "set it and run again",
    ]
