"""Telemetry of several replicas: a page of each, or a Prometheus that scrapes them; real practice servers."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchgate.load.results import StageResult
from benchgate.model.deployment import Arm
from benchgate.model.telemetry import Counter, Gauge, Role, TelemetryWindow
from benchgate.sim.process import Sim, serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.suite.deployment import DeploymentSpec
from benchgate.targets.dialect import Target, dialect_of
from benchgate.telemetry.engine_metrics import BadPageError, read_page
from benchgate.telemetry.prometheus import PrometheusSource
from benchgate.telemetry.sampler import Sampler
from benchgate.telemetry.sources import process_marker, sources_of
from tests.fakes.scripted_server import Received, ScriptedServer, Step, json_response
from tests.shells.load_helpers import closed, run

SIM = sim_settings(model="scripted", prefill_s=0.0001, decode_s=0.03)


def window(stage: Callable[[], object], *, url: str = "http://127.0.0.1:9", **keys: object) -> TelemetryWindow:
    spec = DeploymentSpec.model_validate({"url": url, "model": "scripted", "engine": "vllm", **keys})
    target = Target(Arm.CANDIDATE, url, "scripted", dialect_of(spec))
    with Sampler(sources_of(spec, target, {}), target) as sampler:
        with sampler.stage() as snapshots:
            stage()
        found = sampler.window(snapshots, "c4", Arm.CANDIDATE, 0, 0)
    assert found is not None
    return found


def load(*sims: Sim) -> Callable[[], list[StageResult]]:
    return lambda: [run(sim.url, closed(12, 4)) for sim in sims]


def test_pages_of_replicas_are_added_up_and_kept_apart() -> None:
    with ExitStack() as stack:
        first, second, idle = (stack.enter_context(serve_sim(SIM)) for _ in range(3))
        pages = [f"{sim.url}/metrics" for sim in (first, second, idle)]
        seen = window(load(first, second, second), metrics=pages)
    assert seen.change(Counter.REQUESTS) == 36
    by_name = {replica.name: seen.of(replica) for replica in seen.replicas}
    assert [one.change(Counter.REQUESTS) for one in by_name.values()] == [12, 24, 0]
    assert list(by_name) == [urlsplit(page).netloc for page in pages]
    peaks = [one.peak(Gauge.KV_USAGE) or 0.0 for one in by_name.values()]
    assert seen.peak(Gauge.KV_USAGE) == max(peaks) > 0
    assert (seen.peak(Gauge.KV_USAGE_MEAN) or 1.0) < max(peaks)
    assert seen.drained and not seen.restarted


def test_a_request_that_passes_through_both_roles_is_counted_once() -> None:
    with serve_sim(SIM) as prefill, serve_sim(SIM) as decode:
        pages = [
            {"url": f"{prefill.url}/metrics", "role": "prefill"},
            {"url": f"{decode.url}/metrics", "role": "decode"},
        ]
        seen = window(load(prefill, decode), metrics=pages)
    assert [replica.role for replica in seen.replicas] == [Role.PREFILL, Role.DECODE]
    assert seen.change(Counter.REQUESTS) == 12
    alone = [seen.of(replica) for replica in seen.replicas]
    assert seen.change(Counter.PROMPT_TOKENS) == alone[0].change(Counter.PROMPT_TOKENS)
    queued = [one.change(Counter.QUEUE_S) for one in alone]
    assert seen.change(Counter.QUEUE_S) == pytest.approx(sum(value for value in queued if value is not None))


def test_a_replica_that_does_not_answer_leaves_no_sum() -> None:
    with serve_sim(SIM) as first:
        seen = window(load(first), metrics=[f"{first.url}/metrics", "http://127.0.0.1:9/metrics"])
    assert seen.change(Counter.REQUESTS) is None and seen.during(Gauge.RUNNING) == ()
    assert seen.of(seen.replicas[0]).change(Counter.REQUESTS) == 12
    assert any("could not be read" in problem for problem in seen.problems)


def test_a_restarted_replica_is_named() -> None:
    with serve_sim(sim_settings(model="scripted", ttft_s=0.0, itl_s=0.0, replicas=2)) as router:
        run(router.url, closed(12, 4))

        def stage() -> None:
            router.kill(1)
            router.start(1)

        seen = window(stage, url=router.url)
    assert seen.restarted_replicas == ("1",)
    assert seen.restarted and seen.change(Counter.REQUESTS) is None


Labels = dict[str, str]


def vector(series: Iterable[tuple[Labels, float]], now_s: float | None = None) -> dict[str, object]:
    """The series at an instant."""
    result = [{"metric": labels, "value": [now_s or time.time(), str(value)]} for labels, value in series]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def matrix(series: Iterable[tuple[Labels, float, float]]) -> dict[str, object]:
    """The series with their scrapes, of which the last is at the given time."""
    result = [
        {"metric": labels, "values": [[scraped_s - 15, "0"], [scraped_s, str(value)]]}
        for labels, value, scraped_s in series
    ]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def scraping(every_s: float, **instances: Sim) -> ScriptedServer:
    """A Prometheus that scrapes practice servers, and answers queries of series and of their latest scrape."""
    series: list[tuple[dict[str, str], float, float]] = []
    over = threading.Event()

    def scrape() -> None:
        found = []
        for name, sim in instances.items():
            now_s = time.time()
            for family in text_string_to_metric_families(httpx2.get(f"{sim.url}/metrics").text):
                for sample in family.samples:
                    labels = {"__name__": sample.name, "job": "vllm", "instance": name, **sample.labels}
                    found.append((labels, sample.value, now_s))
        series[:] = found

    def keep_scraping() -> None:
        while not over.wait(every_s):
            scrape()

    def answer(received: Received) -> Iterable[Step]:
        query = parse_qs(urlsplit(received.path).query)["query"][0]
        names = re.fullmatch(r'{job="vllm",__name__=~"([^"]+)"}(\[90s\])?', query)
        if names is None:  # a function would drop the names, after which several series have the same labels
            error = "vector cannot contain metrics with the same labelset"
            yield json_response({"status": "error", "errorType": "execution", "error": error}, 422)
            return
        own = [one for one in list(series) if re.fullmatch(names[1], one[0]["__name__"])]
        yield json_response(matrix(own) if names[2] else vector((labels, value) for labels, value, _ in own))

    class Prometheus(ScriptedServer):
        def stop(self) -> None:
            over.set()
            thread.join()
            super().stop()

    scrape()
    thread = threading.Thread(target=keep_scraping)
    thread.start()
    return Prometheus(answer)


def test_prometheus_tells_replicas_apart_and_its_last_scrape_is_after_the_stage() -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(serve_sim(SIM)) for _ in range(2))
        server = stack.enter_context(scraping(0.7, a=first, b=second))
        metrics = {"prometheus": server.url, "selector": '{job="vllm"}'}
        seen = window(load(first, second), metrics=metrics)
        less = window(lambda: None, metrics=metrics, ready={"replicas": 3})
    assert [replica.name for replica in seen.replicas] == ["a", "b"], seen.problems
    assert seen.change(Counter.REQUESTS) == 24 and seen.drained
    assert [seen.of(replica).change(Counter.REQUESTS) for replica in seen.replicas] == [12, 12]
    assert less.change(Counter.REQUESTS) is None
    assert less.problems == ("Prometheus has series of 2 replicas, and `ready` declares 3",)


A, B = ({"__name__": "vllm:num_preemptions_total", "instance": name} for name in "ab")


def read_series(*answers: dict[str, object]) -> tuple[float, float, float]:
    """The first value, the age of the oldest scrape, and its time, by a Prometheus that gives these answers."""
    documents = iter(answers)
    with ScriptedServer(lambda _: [json_response(next(documents))]) as server:
        spec = DeploymentSpec.model_validate(
            {"url": server.url, "model": "m", "metrics": {"prometheus": server.url, "selector": "{}"}}
        )
        query = sources_of(spec, Target(Arm.CANDIDATE, server.url, "m", dialect_of(spec)), {}).prometheus
        assert query is not None
        with PrometheusSource(query) as source:
            samples, age_s, scraped_s = source.fetch().read()
    return samples[0].value, age_s, scraped_s


def test_values_are_never_older_than_the_scrape_that_they_are_dated_by() -> None:
    between = read_series(matrix([(A, 1000, 100)]), vector([(A, 1150)], 120))  # a scrape between the two queries
    assert between == (1150.0, 20.0, 100.0)
    gone = read_series(matrix([(B, 7, 60), (A, 1000, 100)]), vector([(A, 1000)], 120))
    assert gone == (1000.0, 20.0, 100.0)


def test_a_series_without_a_recent_scrape_is_a_problem_and_not_taken_for_fresh() -> None:
    with pytest.raises(BadPageError, match="no scrape of the last 90 s"):
        read_series(matrix([(A, 1000, 100)]), vector([(A, 1000), (B, 7)], 120))


def test_targets_of_the_selector_that_are_no_engine_are_no_replicas() -> None:
    """An exporter beside the server has a start time as well."""
    other = {"__name__": "process_start_time_seconds", "instance": "a-exporter"}
    series = [(A, 1000.0), (other, 7.0)]

    def answer(received: Received) -> Iterable[Step]:
        scraped = matrix((labels, value, time.time()) for labels, value in series)
        yield json_response(scraped if "5B90s" in received.path else vector(series))

    with ScriptedServer(answer) as server:
        seen = window(lambda: None, metrics={"prometheus": server.url, "selector": "{}"})
    assert seen.problems == () and [replica.name for replica in seen.replicas] == ["a"]
    assert seen.readings[0].values[Counter.PREEMPTIONS] == 1000


def test_energy_ends_with_the_stage_and_not_with_the_scrape_after_it() -> None:
    """The accelerator draws 100 W all the time, also while Prometheus is waited for."""
    joules = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"

    def export(_: Received) -> Iterable[Step]:
        body = f'# TYPE {joules} counter\n{joules}{{gpu="0"}} {time.monotonic() * 100 * 1000}\n'.encode()
        yield b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body

    with serve_sim(SIM) as sim, scraping(2.5, a=sim) as server, ScriptedServer(export) as exporter:
        metrics = {"prometheus": server.url, "selector": '{job="vllm"}'}
        seen = window(lambda: time.sleep(1.2), metrics=metrics, gpu=f"{exporter.url}/metrics")
    assert seen.energy_j == pytest.approx(100 * seen.ended_s, rel=0.2), seen.problems


def test_power_is_sampled_every_second_however_seldom_prometheus_scrapes() -> None:
    """It doubles after a second and a half, which the one scrape of the stage does not see."""
    watts, began_s = "DCGM_FI_DEV_POWER_USAGE", list[float]()

    def export(_: Received) -> Iterable[Step]:
        drawn = 600 if began_s and time.monotonic() - began_s[0] > 1.5 else 300
        body = f'# TYPE {watts} gauge\n{watts}{{gpu="0"}} {drawn + time.monotonic() % 1}\n'.encode()
        yield b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body

    def load() -> None:
        began_s.append(time.monotonic())
        time.sleep(3.2)

    with serve_sim(SIM) as sim, scraping(2.5, a=sim) as server, ScriptedServer(export) as exporter:
        seen = window(
            load, metrics={"prometheus": server.url, "selector": '{job="vllm"}'}, gpu=f"{exporter.url}/metrics"
        )
    powers = seen.during(Gauge.GPU_POWER)
    assert len(powers) >= 3 and min(powers) < 302 and max(powers) > 598
    assert [one.at_s for one in seen.readings] == sorted(one.at_s for one in seen.readings)


@pytest.mark.parametrize("replicas", [0, 2])
def test_energy_begins_and_ends_with_the_load_on_every_page(replicas: int) -> None:
    """Each draws 100 W all the time, also while the load generator prepares requests and decodes answers."""

    def triton(_: Received) -> Iterable[Step]:
        text = f'nv_inference_pending_request_count 0\nnv_energy_consumption{{gpu_uuid="a"}} {time.monotonic() * 100}\n'
        yield b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text.encode())

    with ExitStack() as stack:
        servers = [stack.enter_context(ScriptedServer(triton)) for _ in range(max(1, replicas))]
        pages = [f"{server.url}/metrics" for server in servers]
        spec = DeploymentSpec.model_validate(
            {"url": servers[0].url, "model": "m", "engine": "triton", "metrics": pages if replicas else pages[0]}
        )
        target = Target(Arm.CANDIDATE, servers[0].url, "m", dialect_of(spec))
        sampler = stack.enter_context(Sampler(sources_of(spec, target, {}), target))
        with sampler.stage() as snapshots:
            time.sleep(1.6)
            snapshots.begin(time.time_ns())
            time.sleep(1.2)
            snapshots.end(1.2)
            time.sleep(0.3)
        seen = sampler.window(snapshots, "c4", Arm.CANDIDATE, 0, 0)
    assert seen is not None and len(seen.replicas) == replicas
    # The reading before the load may be up to a second old. From before the stage to after it are 3.1 s.
    energies_j = [seen.of(replica).energy_j for replica in seen.replicas] or [seen.energy_j]
    assert seen.energy_j == pytest.approx(sum(one or 0.0 for one in energies_j))
    assert all(one is not None and one < 100 * (1.2 + 1) for one in energies_j), energies_j


def test_a_selector_without_series_is_a_problem() -> None:
    with pytest.raises(BadPageError, match="no series of this `selector`"):
        read_series(matrix([]), vector([]))


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}, "something else"),
        ({"status": "success", "warnings": ["partial"], "data": {"resultType": "vector", "result": []}}, "something"),
        ({"detail": "no"}, "something else"),
    ],
)
def test_what_is_no_result_of_a_query_is_a_problem_and_no_zero(document: dict[str, object], says: str) -> None:
    with ScriptedServer(lambda _: [json_response(document)]) as server:
        seen = window(lambda: None, metrics={"prometheus": server.url, "selector": "{}"})
    assert seen.readings == () and says in seen.problems[0], json.dumps(seen.problems)


@pytest.mark.parametrize(("labels", "replicas"), [(("a", "a"), 0), (("a", "b"), 2), (map(str, range(1001)), None)])
def test_replicas_on_one_page_are_told_apart_by_a_label(labels: Iterable[str], replicas: int | None) -> None:
    lines = [f'vllm:num_requests_running{{pod="{pod}",engine="{n}"}} 0' for n, pod in enumerate(labels)]
    body = "\n".join([*lines, ""]).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
    with ScriptedServer(lambda _: [head + body]) as server:
        seen = window(lambda: None, url=server.url)
    if replicas is None:
        assert seen.readings == () and "1,001 values" in seen.problems[0]
    else:
        assert len(seen.replicas) == replicas and seen.readings[0].values[Gauge.RUNNING] == 0


def test_labels_of_samples_that_are_not_read_tell_no_replicas_apart() -> None:
    """Ray's page has its own counters by `replica`, and vLLM's by `ReplicaId`."""
    page = read_page(
        'ray_serve_deployment_request_counter_total{replica="a"} 3\n'
        'ray_serve_deployment_request_counter_total{replica="b"} 4\n'
        'ray_vllm_num_requests_running{ReplicaId="a",model_name="m"} 1\n',
        "m",
    )
    assert page.values == {Gauge.RUNNING: 1} and page.replicas == {}


def test_the_marker_of_a_deployment_is_that_of_all_its_replicas() -> None:
    with serve_sim(SIM) as first, serve_sim(SIM) as second:
        pages = [f"{sim.url}/metrics" for sim in (first, second)]
        spec = DeploymentSpec.model_validate({"url": first.url, "model": "sim", "metrics": pages})
        target = Target(Arm.CANDIDATE, first.url, "sim", dialect_of(spec))
        sources = sources_of(spec, target, {})
        marker = process_marker(sources, target)
        assert marker is not None and marker.count(",") == 1
    assert process_marker(sources, target) is None
