"""From the clock of day, in which the kernel and other machines speak, to the monotonic one, in which we measure."""

from __future__ import annotations

from time import monotonic_ns, time_ns

_TRIES = 5
_AT_ONCE_NS = 20_000


def monotonic_of(day_ns: int) -> int:
    """Which monotonic instant an instant in ns since 1970 is, as the clock of day goes now.

    The two clocks cannot be read at once. A process that is set aside between them would be told an instant that is
    off by all of that, so they are read again then; what is left makes the instant later, never earlier.
    """
    tries = 0
    while True:
        before_ns = monotonic_ns()
        now_ns = time_ns()
        after_ns = monotonic_ns()
        tries += 1
        if after_ns - before_ns < _AT_ONCE_NS or tries == _TRIES:
            return after_ns + day_ns - now_ns
