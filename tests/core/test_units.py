"""Human units: read strictly, shown in three digits."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate import units

READ: list[tuple[Callable[[object], float], object, float]] = [
    (units.parse_duration_s, "500ms", 0.5),
    (units.parse_duration_s, "1.5 s", 1.5),
    (units.parse_duration_s, "2m", 120.0),
    (units.parse_duration_s, "2min", 120.0),
    (units.parse_duration_s, "1h", 3600.0),
    (units.parse_duration_s, "30d", 2_592_000.0),
    (units.parse_duration_s, "250us", 0.00025),
    (units.parse_duration_s, "250µs", 0.00025),
    (units.parse_duration_s, " 30s ", 30.0),
    (units.parse_rate_rps, "8/s", 8.0),
    (units.parse_rate_rps, "8 req/s", 8.0),
    (units.parse_rate_rps, "30/min", 0.5),
    (units.parse_rate_rps, "36/h", 0.01),
    (units.parse_percent_ratio, "5%", 0.05),
    (units.parse_percent_ratio, "0%", 0.0),
    (units.parse_percent_ratio, "12.5 %", 0.125),
    (units.parse_points_ratio, "2 points", 0.02),
    (units.parse_points_ratio, "1 point", 0.01),
    (units.parse_points_ratio, "0.5pp", 0.005),
    (units.parse_price_usd_per_hour, "$32/h", 32.0),
    (units.parse_price_usd_per_hour, "$0.35 / hour", 0.35),
    (units.parse_tokens, "128 tokens", 128),
    (units.parse_tokens, "1 token", 1),
    (units.parse_tokens, 128, 128),
    (units.parse_tokens, "1e3 tok", 1000),
    (units.parse_size_bytes, "8GiB", 8_589_934_592),
    (units.parse_size_bytes, "1.5 MiB", 1_572_864),
    (units.parse_memory_bytes, "80GB", 80_000_000_000),
    (units.parse_memory_bytes, "74.5 GiB", 79_993_765_888),
]

REFUSED: list[tuple[Callable[[object], float], object, str]] = [
    (units.parse_duration_s, "500", '"500" is not a duration; write it like "500ms", "30s" or "2m"'),
    (units.parse_duration_s, 500, '500 is not a duration; write it with its unit, like "500ms"'),
    (units.parse_duration_s, "-1s", '"-1s" is below 0'),
    (units.parse_duration_s, "0ms", '"0ms" is not a usable duration'),
    (units.parse_duration_s, "1e400s", '"1e400s" is not a usable duration'),
    (units.parse_duration_s, "1e308h", '"1e308h" is not a usable duration'),  # finite, but not in seconds
    (units.parse_duration_s, "1e-320ns", '"1e-320ns" is not a usable duration'),  # above 0, but not in seconds
    (units.parse_duration_s, "inf s", '"inf s" is not a duration'),
    (units.parse_duration_s, "nan", '"nan" is not a duration'),
    (units.parse_duration_s, "5 S", '"5 S" is not a duration'),
    (units.parse_duration_s, "", '"" is not a duration'),
    (units.parse_duration_s, None, "nothing is not a duration"),
    (units.parse_duration_s, True, "true is not a duration"),
    (units.parse_duration_s, {"a": 1}, "a mapping is not a duration"),
    (units.parse_duration_s, [], "an empty list is not a duration"),
    (units.parse_duration_s, "x" * 99, f'"{"x" * 40}…" is not a duration'),
    (units.parse_rate_rps, "5 rps", '"5 rps" is not a rate; write it like "8/s" or "30/m"'),
    (units.parse_rate_rps, "0/s", '"0/s" is not a usable rate'),
    (units.parse_percent_ratio, "5", '"5" is not a percentage; write it like "5%"'),
    (units.parse_percent_ratio, 0.05, "0.05 is not a percentage"),
    (units.parse_points_ratio, "5%", '"5%" is not a difference in points; write it like "2 points"'),
    (units.parse_price_usd_per_hour, "32/h", '"32/h" is not a price; write it like "$32/h"'),
    (units.parse_price_usd_per_hour, "$0/h", '"$0/h" is not a usable price'),
    (units.parse_tokens, True, "true is not a token count"),
    (units.parse_tokens, "1.5 tokens", '"1.5 tokens" is not a whole number of tokens'),
    (units.parse_tokens, -3, '"-3" is below 0'),
    (units.parse_tokens, "1e400", '"1e400" is not a usable token count'),
    (units.parse_size_bytes, "8GB", '"8GB" is not a size; write it like "8GiB" or "512MiB"'),
    (units.parse_memory_bytes, "80", '"80" is not a size of a memory; write it like "80GB" or "74.5GiB"'),
    (units.parse_size_bytes, 8, "8 is not a size; write it with its unit"),
]


@pytest.mark.parametrize(("parse", "text", "value"), READ)
def test_quantity_is_read_in_base_units(parse: Callable[[object], float], text: object, value: float) -> None:
    assert parse(text) == pytest.approx(value, rel=1e-12, abs=0)


@pytest.mark.parametrize(("parse", "text", "said"), REFUSED)
def test_what_is_no_quantity_is_refused_with_an_example(
    parse: Callable[[object], float], text: object, said: str
) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(("parse", "text"), [(parse, text) for parse, text, _ in READ if isinstance(text, str)])
def test_digits_of_other_scripts_are_no_quantity(parse: Callable[[object], float], text: str) -> None:
    """They look like others on a reviewer's screen: the first digit of this one is Arabic-Indic."""
    at = next(place for place, character in enumerate(text) if character.isdigit())
    with pytest.raises(ValueError):
        parse(text[:at] + chr(0x0660 + int(text[at])) + text[at + 1 :])


def test_what_is_below_0_is_told_so() -> None:
    with pytest.raises(ValueError, match=r'"-5%" is below 0, which no percentage is; write it like "5%"'):
        units.parse_percent_ratio("-5%")


@given(st.text(alphabet="0123456789.e+-/% msh$pointk", max_size=14), st.sampled_from([parse for parse, _, _ in READ]))
def test_every_text_is_a_finite_value_or_a_value_error(text: str, parse: Callable[[object], float]) -> None:
    try:
        value = parse(text)
    except ValueError:
        return
    assert math.isfinite(value)
    assert value >= 0


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (units.show_duration(0.0534), "53.4 ms"),
        (units.show_duration(1.234), "1.23 s"),
        (units.show_duration(0.00005), "50.0 µs"),
        (units.show_duration(3e-8), "30.0 ns"),
        (units.show_duration(0.0), "0 s"),
        (units.show_duration(math.inf), "∞"),
        (units.show_percent(0.0512), "5.12 %"),
        (units.show_percent(0.0512, signed=True), "+5.12 %"),
        (units.show_percent(-0.0512, signed=True), "-5.12 %"),
        (units.show_percent(math.inf), "∞"),
        (units.show_points(0.0212), "2.12 points"),
        (units.show_points(0.0), "0 points"),
        (units.show_size(8_589_934_592), "8.00 GiB"),
        (units.show_size(134_217_728), "128 MiB"),
        (units.show_memory(2_684_354_560), "2.68 GB"),
        (units.show_memory(327_680), "328 kB"),
        (units.show_memory(12), "0.0120 kB"),
        (units.show_number(5981.4), "5,981"),
        (units.show_number(3.14159), "3.14"),
        (units.show_number(0.0), "0"),
    ],
)
def test_value_is_shown_in_three_digits(shown: str, text: str) -> None:
    assert shown == text


@pytest.mark.parametrize(
    ("show", "value", "text"),
    [
        (units.show_percent, units.parse_percent_ratio("99.95%"), "99.95 %"),
        (units.show_percent, units.parse_percent_ratio("99.999%"), "99.999 %"),
        (units.show_percent, math.expm1(math.log1p(0.0525)), "5.25 %"),
        (units.show_percent, 0.95, "95 %"),
        (units.show_duration, units.parse_duration_s("1234ms"), "1.234 s"),
        (units.show_points, 0.01, "1 point"),
        (units.show_number, 12345.5, "12,345.5"),
        (units.show_rate, units.parse_rate_rps("8/s"), "8/s"),
        (units.show_percent, math.log(2), "69.3 %"),  # computed
    ],
)
def test_a_bound_is_shown_with_the_digits_of_its_author(show: units.Show, value: float, text: str) -> None:
    assert units.as_written(show, value) == text


@given(st.floats(min_value=1e-12, max_value=1 - 1e-9))
def test_a_share_is_shown_as_none_or_all_only_where_it_is(ratio: float) -> None:
    for show in (units.show_percent, units.show_points):
        assert 0 < float(show(ratio).split()[0]) < 100
        assert -100 < float(show(-ratio).split()[0]) < 0
    assert (units.show_percent(0.0), units.show_percent(1.0)) == ("0 %", "100 %")


@given(st.floats(min_value=1e-6, max_value=1e6), st.floats(min_value=-0.1, max_value=0.1))
def test_a_value_is_shown_on_its_own_side_of_a_bound(bound: float, apart: float) -> None:
    bound = float(f"{bound:.4g}")
    value = bound * (1 + apart)
    shown = float(units.beside(units.show_number, value, bound).replace(",", ""))
    if abs(apart) > 1e-8:
        assert (shown > bound, shown < bound) == (value > bound, value < bound)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5003, "500.3 ms"), (0.50045, "500.4 ms"), (0.501, "501 ms"), (0.5, "500 ms"), (0.4995, "499 ms")],
)
def test_a_value_close_to_a_bound_has_more_digits(value: float, text: str) -> None:
    assert units.beside(units.show_duration, value, 0.5) == text


@pytest.mark.parametrize("bound", [0.9, 0.95, 0.9555])
def test_a_share_is_shown_on_its_own_side_of_a_bound_also_where_rounding_is_a_tie(bound: float) -> None:
    for count in range(1600, 2001):
        shown = float(units.beside(units.show_percent, count / 2000, bound).removesuffix(" %")) / 100
        value = count / 2000
        if abs(value - bound) > 1e-9:
            assert (shown > bound + 1e-9, shown < bound - 1e-9) == (value > bound, value < bound), count
        else:
            assert shown == pytest.approx(bound, abs=1e-12)
