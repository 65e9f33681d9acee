"""The process of one simulated server, started by `process` alone; its argument is the settings as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchgate import child_process
from benchgate.errors import UsageError
from benchgate.sim.server import run_sim
from benchgate.sim.settings import SimSettings


def main(settings_json: str, report: Callable[[str], None]) -> None:
    """Serve until the parent goes or a signal comes."""
    try:
        run_sim(SimSettings.from_json(settings_json), report)
    except UsageError as error:  # the parent shows its words; a traceback would only bury them
        sys.exit(str(error))


if __name__ == "__main__":
    child_process.run(main)
