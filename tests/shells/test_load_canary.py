import asyncio
import time
from dataclasses import replace

import numpy as np
import pytest

from benchgate.load.client_delay import EventLoopProbe, peak_cpu_share, with_read_delays, with_stamps
from benchgate.model.histogram import RELATIVE_ERROR
from benchgate.model.run import ClientUse
from benchgate.timers import Ticker
from tests.fakes.scripted_server import ScriptedServer
from tests.shells.load_helpers import WHOLE, closed, run

MS = 1_000_000
IDLE = ClientUse(cpu_s=0.0, wall_s=1.0, workers=1)


def test_a_loop_that_was_held_up_shows_how_long() -> None:
    async def held_up() -> ClientUse:
        with EventLoopProbe() as canary:
            canary.start()
            await asyncio.sleep(0.05)
            time.sleep(0.2)  # what must not happen in a loop is what is measured
            await asyncio.sleep(0.05)
            canary.stop()
        return canary.seen(IDLE)

    use = asyncio.run(held_up())
    assert use.read_delay_by == "canary"
    assert use.read_delay_max_s is not None
    assert use.read_delay_max_s > 0.15
    assert use.read_delay_p50_s is not None
    assert use.read_delay_p50_s > 0.01  # ten ticks of some fifteen were due while it was held up


def test_every_missed_tick_is_told_of_with_its_own_lateness() -> None:
    ticks: list[tuple[int, int]] = []

    async def held_up() -> tuple[int, int]:
        ticker = Ticker(10 * MS, lambda due_ns, now_ns: ticks.append((due_ns, now_ns)))
        ticker.start()
        time.sleep(0.1)
        await asyncio.sleep(0.02)
        stopped_ns = ticker.stop()
        ticker.close()
        return ticker.started_ns, stopped_ns

    started_ns, stopped_ns = asyncio.run(held_up())
    dues = [due for due, _ in ticks]
    assert dues == [started_ns + 10 * MS * number for number in range(1, len(ticks) + 1)]
    assert len(ticks) == (stopped_ns - started_ns) // (10 * MS)
    late = [now - due for due, now in ticks[:9]]
    assert late == sorted(late, reverse=True)
    assert late[0] >= 85 * MS
    assert min(now - due for due, now in ticks) >= 0


def test_stage_too_short_for_a_tick_knows_no_delay() -> None:
    with ScriptedServer(lambda received: [WHOLE]) as server:
        use = run(server.url, closed(0)).client
    assert (use.read_delay_p99_s, use.read_delay_by, use.busiest_share) == (None, None, None)


def test_stage_reports_its_read_delay() -> None:
    with ScriptedServer(lambda received: [0.3, WHOLE]) as server:
        use = run(server.url, closed(1)).client
    assert use.read_delay_by == "canary"
    assert use.read_delay_p50_s is not None
    assert use.read_delay_p99_s is not None
    assert use.read_delay_max_s is not None
    assert 0 <= use.read_delay_p50_s <= use.read_delay_p99_s <= use.read_delay_max_s


def test_kernel_stamps_win() -> None:
    use = with_read_delays(IDLE, np.array([0.5, 0.1, 0.2, 0.3]), by_kernel=True)
    assert use.read_delay_by == "kernel"
    assert (use.read_delay_p50_s, use.read_delay_p99_s, use.read_delay_max_s) == (0.2, 0.5, 0.5)


def test_busiest_share_is_of_the_worst_five_seconds() -> None:
    at_s = np.arange(0, 13)
    used_s = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.3, 2.1, 2.9, 3.7, 4.5, 4.5, 4.5])
    found = peak_cpu_share(at_s * 10**9, (used_s * 1e9).astype(np.int64))
    assert found == pytest.approx(0.8)


def test_shorter_than_five_seconds_has_no_busiest_share() -> None:
    assert peak_cpu_share(np.array([0, 4_999_999_999]), np.array([0, 4_000_000_000])) is None


def test_what_the_canary_saw_has_the_busiest_share(monkeypatch: pytest.MonkeyPatch) -> None:
    used_ms = iter([0, 100, 200, 1000, 1800, 2600, 3400, 4200, 4300])
    monkeypatch.setattr("benchgate.load.client_delay.process_time_ns", lambda: next(used_ms) * MS)

    async def seen() -> ClientUse:
        canary = EventLoopProbe()
        for at_s in range(9):
            canary._tick(at_s * 1000 * MS, at_s * 1000 * MS)
        return canary.seen(IDLE)

    assert asyncio.run(seen()).busiest_share == pytest.approx(0.8)


def test_a_stage_of_hours_has_the_same_figures_and_keeps_few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks of 19 ms; the CPU is busiest over five seconds in which samples are dropped."""
    rng = np.random.default_rng(3)
    late_ns = (rng.exponential(2 * MS, 50_000)).astype(np.int64)
    at_ns = np.arange(1, len(late_ns) + 1) * 19 * MS + late_ns
    used = np.where(np.abs(np.arange(len(late_ns)) - 2**12) < 200, 0.9, 0.2)
    cpu_ns = np.cumsum(used * 19 * MS).astype(np.int64)
    clock = iter(cpu_ns.tolist())
    monkeypatch.setattr("benchgate.load.client_delay.process_time_ns", lambda: next(clock))

    async def probed() -> tuple[ClientUse, int]:
        probe = EventLoopProbe()
        most = 0
        for late, now in zip(late_ns.tolist(), at_ns.tolist(), strict=True):
            probe._tick(now - late, now)
            most = max(most, len(probe._late_ns), len(probe._at_ns))
        return probe.seen(IDLE), most

    use, most = asyncio.run(probed())
    exact = with_read_delays(IDLE, late_ns / 1e9, by_kernel=False)
    assert most < 6_000
    assert use.busiest_share == peak_cpu_share(at_ns, cpu_ns)
    assert use.read_delay_max_s == exact.read_delay_max_s
    for found, true in ((use.read_delay_p50_s, exact.read_delay_p50_s), (use.read_delay_p99_s, exact.read_delay_p99_s)):
        assert found is not None and true is not None
        assert true <= found <= true * (1 + 2 * RELATIVE_ERROR)  # never less than the truth


def test_stage_longer_than_what_the_busiest_share_is_taken_over_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchgate.load.client_delay._BUSY_OVER_NS", 100 * MS)
    with ScriptedServer(lambda received: [0.3, WHOLE]) as server:
        use = run(server.url, closed(1)).client
    assert use.busiest_share is not None
    assert use.busiest_share > 0


def test_the_kernels_stamps_never_hide_what_the_canary_saw() -> None:
    seen = replace(IDLE, read_delay_p50_s=0.08, read_delay_p99_s=0.14, read_delay_max_s=0.15, read_delay_by="canary")
    both = with_stamps(seen, np.array([0.001, 0.002, 0.3]))
    assert (both.read_delay_p50_s, both.read_delay_p99_s, both.read_delay_max_s) == (0.08, 0.3, 0.3)
    assert both.read_delay_by == "kernel"
    assert with_stamps(seen, np.array([])) == seen
