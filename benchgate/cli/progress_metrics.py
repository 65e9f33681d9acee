"""Progress of a run as Prometheus metrics, for `run --serve-metrics`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from benchgate.cli.progress import RunProgress
from benchgate.errors import UsageError

_LOOPBACK = "127.0.0.1"


class ProgressCollector(Collector):
    """Reads the state of a run whenever Prometheus does."""

    def __init__(self, state: RunProgress) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of the run."""
        state = self._state
        place = {"title": state.title, "phase": state.phase.name, "place": state.place, "arm": state.arm or ""}
        yield InfoMetricFamily("benchgate_run", "What is measured now.", value=place)
        done, total = state.count
        yield GaugeMetricFamily("benchgate_run_phase_steps", "Steps or items of the phase.", value=total)
        yield GaugeMetricFamily("benchgate_run_phase_steps_done", "Steps or items that are done.", value=done)
        yield GaugeMetricFamily("benchgate_run_elapsed_seconds", "Time since the start.", value=state.elapsed_s)
        if (left_s := state.left_s) is not None:
            yield GaugeMetricFamily("benchgate_run_phase_left_seconds", "Time left of the phase.", value=left_s)
        yield CounterMetricFamily("benchgate_run_usd", "Price of the deployments' time and tokens.", value=state.usd)
        gauges = {
            name: GaugeMetricFamily(f"benchgate_run_{name}", help_text, labels=["arm"])
            for name, help_text in (
                ("ttft_p50_seconds", "Median time to the first token, of the latest answers."),
                ("tpot_p50_seconds", "Median time per output token, of the latest answers."),
                ("requests_per_second", "Rate of answers."),
                ("requests_in_flight", "Requests under way."),
            )
        }
        failed = CounterMetricFamily("benchgate_run_failed_requests", "Failed requests.", labels=["arm"])
        for arm, one in state.arms.items():
            values = (one.ttft_p50_s, one.tpot_p50_s, one.requests_per_s, float(one.in_flight))
            for gauge, value in zip(gauges.values(), values, strict=True):
                if value is not None:
                    gauge.add_metric([arm], value)
            failed.add_metric([arm], state.errors(arm))
        yield from gauges.values()
        yield failed


@contextmanager
def serve_metrics(state: RunProgress, address: str) -> Iterator[str]:
    """Serve a run's metrics during the block, at PORT of this machine alone or at HOST:PORT; yield their URL.

    Raises UsageError for an address that is none, or that is taken.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or _LOOPBACK
    if not port.isdecimal() or int(port) > 65_535:
        raise UsageError(f"--serve-metrics {address}: expected a port, like 9464, or HOST:PORT")
    registry = CollectorRegistry()
    registry.register(ProgressCollector(state))
    try:
        server, thread = start_http_server(int(port), host, registry)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"--serve-metrics {address}: cannot listen there: {reason}; choose another port") from error
    try:
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
