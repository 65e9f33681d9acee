"""The process that serves one model by llama.cpp's own HTTP server, on a free loopback port; started by `server`."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable

from benchgate import child_process


def main(options_json: str, report: Callable[[str], None]) -> None:
    """Serve until the parent goes or a signal comes."""
    import xllamacpp

    options = json.loads(options_json)
    params = xllamacpp.CommonParams()
    params.model.path = options["model"]
    params.model_alias = {options["alias"]}
    params.hostnames = ["127.0.0.1"]
    params.port = options["port"]
    params.n_parallel = options["slots"]
    # The total; each slot gets its share, rounded up by the engine to a multiple of 256.
    params.n_ctx = options["slots"] * options["context_tokens"]
    params.cpuparams.n_threads = options["threads"]
    params.cpuparams_batch.n_threads = options["threads"]
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
        server = xllamacpp.Server(params)
    except RuntimeError as error:  # the engine has logged the reason; a traceback would only bury it
        sys.exit(str(error))
    report(server.listening_address)
    threading.Event().wait()


if __name__ == "__main__":
    child_process.run(main)
