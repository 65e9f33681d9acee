"""The process that serves one model: llama.cpp's HTTP server, and nothing of benchgate.

Run as a script by `server`, never imported by it for its code. It reports its address once, through a file descriptor
that carries nothing else: the engine's own log lines come from its own threads and can land inside any other line.

It leaves when its parent does, however that ends. The parent holds the other end of stdin, so a dead parent is an end
of file there; and a process that the parent forked may hold that end too, so the parent's pid is watched as well.
(Linux's PR_SET_PDEATHSIG would strike already when the *thread* that started us ends.)
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import threading
from typing import Any

WATCH_INTERVAL_S = 1.0


def main() -> None:
    """Serve until the parent goes or a signal comes."""
    options = _options()
    threading.Thread(target=_leave_with, args=(options.parent_pid,), daemon=True).start()
    server = _serve(options)
    with os.fdopen(options.report_fd, "w") as report:
        json.dump({"url": server.listening_address}, report)
    threading.Event().wait()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Serve one GGUF model on a free loopback port.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--context-tokens", type=int, required=True, help="per slot")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--report-fd", type=int, required=True, help="where the address goes, as one JSON object")
    return parser.parse_args()


def _leave_with(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        readable, _, _ = select.select([0], [], [], WATCH_INTERVAL_S)
        if readable and not os.read(0, 1):
            break
    os._exit(0)


def _serve(options: argparse.Namespace) -> Any:  # xllamacpp has no types
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.model_alias = {options.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = options.slots
    # The total; each slot gets its share, rounded up by the engine to a multiple of 256.
    params.n_ctx = options.slots * options.context_tokens
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.n_gpu_layers = 0
    params.fit_params = False  # the settings are given; nothing is to be fitted to this machine
    params.endpoint_metrics = True
    params.endpoint_props = True
    params.ui = False
    params.offline = True
    params.cache_prompt = False  # an answer must not depend on what the slot served before
    params.cache_ram_mib = 0  # it grows with every request, whether prompts are cached or not
    params.verbosity = 1  # errors only
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:  # the engine has logged the reason; a traceback would only bury it
        sys.exit(str(error))


if __name__ == "__main__":
    main()
