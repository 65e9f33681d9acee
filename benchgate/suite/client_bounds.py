"""How good the load generator must have been for its times to count as the servers'."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from benchgate.suite.fields import Duration, Expected, PositivePercent, StrictSection
from benchgate.units import as_written, show_duration, show_percent

_Bound = Annotated[  # above a second hardly any latency would still be the server's
    Duration, Field(gt=0, le=1), Expected('a duration of at most 1s, like "50ms"')
]


class ClientBounds(StrictSection):
    """Beyond one of these, a stage execution measured its client. Why they are where they are: docs/decisions.md."""

    send_lag_p99_s: _Bound = Field(default=0.005, alias="send_lag_p99")  # what any scheduler may cost
    send_lag_max_s: _Bound = Field(default=0.050, alias="send_lag_max")  # of one single send
    read_delay_p99_s: _Bound = Field(default=0.005, alias="read_delay_p99")  # of stages under 2 s the median
    read_delay_max_s: _Bound = Field(default=0.050, alias="read_delay_max")
    cpu_share: PositivePercent = Field(default=0.70, alias="cpu")  # of one core, by the busiest worker over 5 s
    achieved_ratio: PositivePercent = Field(default=0.99, alias="achieved")  # of the offered rate

    def unusual(self) -> str:
        """Those that are not the usual ones, as a suite spells them: `send_lag_p99 30 ms`; empty when none."""
        shown = []
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value != field.default:
                shown.append(f"{field.alias} {_shown(name, value)}")
        return ", ".join(shown)

    def widened(self) -> str:
        """Those that allow more than the usual ones: `send lag p99 100 ms (usual 5 ms)`; empty when none."""
        told = []
        for name, field in type(self).model_fields.items():
            value, usual = getattr(self, name), field.default
            if value < usual if name in _AT_LEAST else value > usual:
                words = str(field.alias).replace("_", " ")
                told.append(f"{words} {as_written(_shown(name, value))} (usual {as_written(_shown(name, usual))})")
        return ", ".join(told)


_AT_LEAST = ("achieved_ratio",)


def _shown(name: str, value: float) -> str:
    return show_duration(value) if name.endswith("_s") else show_percent(value)
