"""dask.distributed's client. This module alone loads that library with itself, and is imported inside functions."""

from __future__ import annotations

import logging
from typing import Any

from distributed import Client

for _name in ("distributed.client", "distributed.core", "distributed.comm"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)  # what goes wrong is said once, and without a traceback


class SchedulerClient(Client):
    """A client that is closed when it finds no scheduler; dask's own would keep the interpreter from its end."""

    def start(self, **kwargs: Any) -> None:
        """Connect; on failure close."""
        try:
            super().start(**kwargs)  # type: ignore[no-untyped-call]  # distributed is typed in parts
        except BaseException:
            self.close()  # type: ignore[no-untyped-call]  # the same
            raise
