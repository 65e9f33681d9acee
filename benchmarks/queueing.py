"""What queueing theory says of the cases that have a formula."""

from __future__ import annotations

import math


def erlang_c_wait_s(per_s: float, each_per_s: float, places: int) -> float:
    """Mean wait of the M/M/c queue (Erlang 1917; Cooper, Introduction to Queueing Theory, 1981, section 3.4).

    `per_s` arrivals, of which each of `places` ends `each_per_s`.
    """
    offered = per_s / each_per_s
    full = offered**places / math.factorial(places) / (1 - offered / places)
    waits = full / (sum(offered**k / math.factorial(k) for k in range(places)) + full)
    return waits / (places * each_per_s - per_s)
