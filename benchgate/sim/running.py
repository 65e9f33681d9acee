"""The life of a practice server in this process: from the first signal handler to the last connection."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from collections.abc import Callable
from typing import Any

from benchgate.sim.listening import listen, raise_file_limit
from benchgate.sim.router import Router
from benchgate.sim.server import SimServer
from benchgate.sim.settings import SimSettings


def run_sim(settings: SimSettings, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. `ready` is called with the base URL as soon as the address is taken.

    Raises UsageError when it cannot be, or a certificate cannot be read.
    """
    import uvloop

    raise_file_limit()
    gc.freeze()  # what is loaded by now stays
    gc.set_threshold(50_000, 20, 1000)  # answers leave no cycles; a collection in mid-stream is lateness
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, ready))


async def _serve(settings: SimSettings, ready: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    stop, defects = asyncio.Event(), list[BaseException]()

    def surface(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A defect ends the server, which else might go on without its timer. What a client does wrong is none."""
        error = context.get("exception")
        if error is not None and not isinstance(error, OSError):  # as a broken TLS handshake is
            defects.append(error)
            stop.set()

    loop.set_exception_handler(surface)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    server = SimServer(settings) if settings.replicas == 1 else await Router.open(settings)
    listener, url = await listen(settings, server.connection)
    ready(url)
    try:
        if settings.ready_after_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), settings.ready_after_s)
        if not stop.is_set():
            await listener.start_serving()
            await stop.wait()
    finally:
        listener.close()
        for connection in list(server.connections):
            connection.reset()
        server.close()
        await asyncio.sleep(0)  # transports close in the turn after
    if defects:
        raise defects[0]
