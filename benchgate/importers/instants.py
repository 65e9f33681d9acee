"""When a tool measured, by its own file: an instant in UTC, and which field tells it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NoReturn

from benchgate.importers.fields import Field

_EARLIEST = datetime(2015, 1, 1, tzinfo=UTC)  # a clock that was never set says 1970
_LAST_S = 4e9  # in 2096
_ROUND = timedelta(hours=14)  # how far a time zone can be ahead of UTC


@dataclass(frozen=True, slots=True)
class Measured:
    """An instant, RFC 3339 in UTC with milliseconds; `by` is the field that tells it, in words.

    `zone_known` is False of a date without a time zone, which is taken as UTC: it may be up to 14 hours off.
    """

    at: str
    by: str
    zone_known: bool

    @property
    def may_be_ahead(self) -> timedelta:
        """By how much it may be later than it was, for want of a time zone."""
        return timedelta(0) if self.zone_known else _ROUND


def spelled(instant: datetime) -> str:
    """An instant of a known zone as RFC 3339 in UTC with milliseconds, as every instant of a store is."""
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def by_unix_time(field: Field, *, ns: bool = False) -> Measured:
    """Of seconds, or nanoseconds, since 1970 in UTC."""
    per_s = 1e9 if ns else 1.0
    instant = datetime.fromtimestamp(field.number(most=_LAST_S * per_s) / per_s, UTC)
    return _measured(field, instant, zone_known=True)


def by_local_time(field: Field, form: str) -> Measured:
    """Of a date in the form of `strptime`, without a time zone: taken as UTC."""
    try:
        instant = datetime.strptime(field.text(), form).replace(tzinfo=UTC)
    except ValueError:
        _refuse(field)
    return _measured(field, instant, zone_known=False)


def by_iso_time(field: Field) -> Measured:
    """Of a date in ISO 8601; one without a time zone is taken as UTC."""
    try:
        instant = datetime.fromisoformat(field.text())
    except ValueError:
        _refuse(field)
    zone_known = instant.tzinfo is not None
    return _measured(field, instant if zone_known else instant.replace(tzinfo=UTC), zone_known=zone_known)


def _measured(field: Field, instant: datetime, *, zone_known: bool) -> Measured:
    if not instant >= _EARLIEST - _ROUND:
        _refuse(field)
    unknown = "" if zone_known else ", which has no time zone and is taken as UTC"
    return Measured(spelled(instant), f"its {field.path.removeprefix('$').removeprefix('.')}{unknown}", zone_known)


def _refuse(field: Field) -> NoReturn:
    field.refuse(f"an instant since {_EARLIEST.year}; --measured-at says when it was measured")
