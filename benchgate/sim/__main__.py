"""The process of one simulated server, started by `process` alone; its argument is the settings as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchgate import child_process
from benchgate.errors import UsageError
from benchgate.sim.server import run_sim
from benchgate.sim.settings import from_json


def main(argument: str, report: Callable[[str], None]) -> None:
    """Serve until the parent goes or a signal comes."""
    try:
        settings, address, replica = from_json(argument)
        run_sim(settings, address, report, replica)
    except UsageError as error:  # the parent shows its words; a traceback would only bury them
        sys.exit(str(error))


if __name__ == "__main__":
    child_process.run(main)
