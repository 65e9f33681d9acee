"""The process of one practice server: `python -m benchgate.sim.child SETTINGS REPORT_FD PARENT_PID`.

Started by `process` and by nobody else. It leaves when its parent does, however that ends: the parent holds the other
end of stdin, so a dead parent is an end of file there; and a process that the parent forked may hold that end too, so
the parent's pid is watched as well.
"""

from __future__ import annotations

import os
import select
import sys
import threading

from benchgate.errors import UsageError
from benchgate.sim.running import run_sim
from benchgate.sim.settings import SimSettings

_WATCH_INTERVAL_S = 1.0


def main(settings_json: str, report_fd: int, parent_pid: int) -> None:
    """Serve until the parent goes or a signal comes."""
    threading.Thread(target=_leave_with, args=(parent_pid,), daemon=True).start()

    def ready(url: str) -> None:
        with os.fdopen(report_fd, "w") as report:
            report.write(url + "\n")

    try:
        run_sim(SimSettings.from_json(settings_json), ready)
    except UsageError as error:  # its words are what the parent shows; a traceback would only bury them
        sys.exit(str(error))


def _leave_with(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        readable, _, _ = select.select([0], [], [], _WATCH_INTERVAL_S)
        if readable and not os.read(0, 1):
            break
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
