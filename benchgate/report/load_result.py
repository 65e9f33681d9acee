"""The result of `benchgate load` as text for a terminal: a load test, or a search for a server's capacity."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from benchgate.escape import one_line
from benchgate.model.records import ErrorClass
from benchgate.model.verdict import Outcome
from benchgate.report.display import MARKS, NOT_APPLICABLE
from benchgate.report.display import level as confidence_level
from benchgate.report.screen import STYLES, Cell, Screen, Style, table_lines
from benchgate.units import as_written, beside, show_duration, show_number, show_percent

_LABEL_WIDTH = 12
_INDENT = "  "
_LOWER_ALPHA = 0.05  # of the lower bound of goodput
_LATENCIES = {"ttft_s": "TTFT", "ttfot_s": "TTFT of the answer", "tpot_s": "TPOT", "itl_s": "ITL", "e2e_s": "E2E"}
_QUANTILES = ("p50", "p90", "p95", "p99", "max")
_BESIDE = {"warmup": "of warm-up", "ramp": "of the ramp"}
_PACE = {"requests_per_s": "requests/s", "output_tokens_per_s": "output tokens/s"}
_SLO = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}
_STANDINGS = {
    "pass": ("met", Style.GREEN),
    "fail": ("missed", Style.RED),
    "open": ("open", None),
    "unresolved": ("unresolved", Style.MAGENTA),
}

Document = Mapping[str, Any]


def render_load(document: Document, screen: Screen) -> str:
    """Render the result of a load test, its latencies in milliseconds."""
    return "\n".join([*_load_lines(document, screen), ""])


def _load_lines(document: Document, screen: Screen) -> Iterator[str]:
    requests = document["requests"]
    yield from _server(document, screen)
    yield from _labelled(screen, "load", _load(document["load"]))
    if document["partial"]:
        yield from _labelled(screen, "interrupted", "the figures are of what was measured by then", Style.YELLOW)
    ok, sent = requests["ok"], requests["scheduled"]
    beside = [f"{requests[name]:,} {title}" for name, title in _BESIDE.items() if requests[name]]
    also = f", besides {' and '.join(beside)}" if beside else ""
    yield from _labelled(screen, "requests", f"{ok:,} of {sent:,} succeeded{also}", Style.RED if ok < sent else None)
    failed = requests["failed_by_class"]
    for name, count in sorted(failed.items(), key=lambda one: -one[1]):
        detail = next((one["detail"] for one in document["failures"] if one["class"] == name), "")
        yield from screen.wrapped(f"{name} {count:,}: {_cause(detail)}", " " * (_LABEL_WIDTH + 2))
    pace = [(document["throughput"][key], unit) for key, unit in _PACE.items()]
    rates = ", ".join(f"{show_number(rate)} {unit}" for rate, unit in pace if rate is not None)
    yield from _labelled(screen, "throughput", f"{rates or 'none'}, over {show_duration(document['window_s'])}")
    if uncounted := document["tokens_from"].get("chunks", 0):
        pieces = f"{uncounted:,} answers came without token counts: each piece of text counts as one token"
        yield from _labelled(screen, "tokens", pieces, Style.YELLOW)
    yield ""
    if ok:
        yield from _latencies(document, screen)
        yield ""
    if document.get("regions"):
        yield from _regions(document["regions"], screen)
        yield ""
    slo, verdict = document["slo"], document.get("verdict")
    if slo is not None and sent:
        yield from _labelled(screen, "goodput", f"{_goodput(document)} within {_slo(slo)}")
    if sent:  # else it was interrupted before
        yield from _labelled(
            screen, "client", _client(document), Style.YELLOW if document["client"]["saturated"] else None
        )
        for reason in document["client"]["reasons"]:
            yield from screen.wrapped(reason, " " * _LABEL_WIDTH)
    if verdict is None and not document["partial"]:
        reason = "" if ok else nothing_succeeded(document)
        if document["client"]["saturated"]:
            reason = f"the client was the bottleneck; {document['client']['remedy']}"
        verdict = {"outcome": Outcome.INVALID, "reason": reason} if reason else None
    if verdict is not None:
        yield from _verdict(verdict, screen)


def _goodput(document: Document) -> str:
    """Show goodput on its side of the verdict's target."""
    ratio, verdict = document["goodput_ratio"], document.get("verdict") or {}
    target = verdict.get("target_ratio")
    return show_percent(ratio) if target is None else beside(show_percent, ratio, target)


def nothing_succeeded(document: Document) -> str:
    """Return the address, the commonest error of its requests, and a remedy."""
    url = document["request_url"]
    if not document["failures"]:
        return f"no request was sent to {url}; ask for more requests or a longer --duration"
    most = max(document["failures"], key=lambda one: int(one["count"]))
    remedy = _REMEDIES.get(most["class"], "see the server's log")
    return f"no request to {url} succeeded: {_cause(most['detail'])} ({most['count']:,} times); {remedy}"


def _cause(detail: str) -> str:
    """Return the detail of a failure without the number of a system error."""
    return one_line(re.sub(r"^\[Errno -?\d+\] ", "", detail)).rstrip(".")


_REMEDIES = {
    ErrorClass.CONNECT: "start the server, or correct the address",
    ErrorClass.TLS: "write the address with http:// if it is served without TLS, or name its certificate with --ca",
    ErrorClass.TIMEOUT: "see the server's log, or send less",
    ErrorClass.HTTP_4XX: "correct the address, --model or the API key (--api-key-env)",
    ErrorClass.HTTP_429: "send less, or raise the server's limit",
    ErrorClass.STREAM_BROKEN: "see the server's log, or name its --engine",
    ErrorClass.PROTOCOL: "see that an OpenAI-compatible server is at the address",
    ErrorClass.EMPTY: "see the server's log, or name its --endpoint",
    ErrorClass.CLIENT: "check this machine with `benchgate doctor`",
}


def _server(document: Document, screen: Screen) -> Iterator[str]:
    yield screen.paint(document["request_url"], Style.BOLD)
    yield from _labelled(screen, "model", f"{document['model']} ({document['engine']} dialect)")


def _labelled(screen: Screen, label: str, text: str, *styles: Style | None) -> Iterator[str]:
    yield from screen.labelled(label.ljust(_LABEL_WIDTH), text, " " * _LABEL_WIDTH, *styles)


def _load(load: Document) -> str:
    if load["concurrency"] is not None:
        think = f", {as_written(show_duration, load['think_s'])} of think time" if load["think_s"] else ""
        level = f"{load['concurrency']:,} in flight (closed loop{think})"
    elif load["rate_rps"] is not None:
        cv = "" if load["arrival_cv"] is None else f":{load['arrival_cv']:g}"
        ramp_to = load["ramp_to_rps"]
        to = "" if ramp_to is None else f" to {as_written(show_number, ramp_to)}"
        level = f"{as_written(show_number, load['rate_rps'])}{to} requests/s ({load['arrival']}{cv} arrivals)"
    else:
        level = f"trace {load['trace']} at speed {load['speed']:g}"
    span = [] if load["requests"] is None else [f"{load['requests']:,} requests"]
    span += [] if load["duration_s"] is None else [as_written(show_duration, load["duration_s"])]
    return f"{level}, {', '.join(span)}; {_content(load)}"


def _content(load: Document) -> str:
    tokens_in, tokens_out = load["input_tokens"], load["output_tokens"]
    if load["prompts"] is not None:
        return f"prompts of {load['prompts']}" + ("" if tokens_out is None else f", up to {tokens_out:,} tokens out")
    if load.get("audio_s") is not None:
        return f"{as_written(show_duration, load['audio_s'])} of audio in"
    if load.get("trace") is not None:
        others = ", ".join(f"{count:,} {way}" for count, way in ((tokens_in, "in"), (tokens_out, "out")) if count)
        return "tokens as in its rows" + (f", else {others}" if others else "")
    return f"{tokens_in:,} tokens in" + ("" if tokens_out is None else f", {tokens_out:,} out")


def _latencies(document: Document, screen: Screen) -> Iterator[str]:
    rows: list[list[str | Cell]] = []
    failed = False
    for key, title in _LATENCIES.items():
        summary = document[key]
        if summary["n"] == 0 or (key == "ttfot_s" and summary == document["ttft_s"]):
            continue  # without reasoning before it, the answer is the first output
        cells = [summary[quantile] for quantile in _QUANTILES]
        decimals = _decimals(next((value for value in cells if value is not None), 0.0))
        failed |= None in cells
        rows.append([title, *("∞" if value is None else f"{value * 1000:,.{decimals}f}" for value in cells)])
    if not rows:
        yield "no latency was measured"
        return
    yield from table_lines(screen, ("latency, ms", *_QUANTILES), rows, right=range(1, len(_QUANTILES) + 1))
    if failed:
        yield from screen.wrapped("∞: this quantile falls on failed requests, which count as infinitely slow", "",
                                  Style.DIM)  # fmt: skip


def _regions(regions: Mapping[str, Document], screen: Screen) -> Iterator[str]:
    """Yield TTFT and goodput of each region, and how far its median TTFT lies above that of the quickest."""
    medians = [one["ttft_s"]["p50"] for one in regions.values() if one["ttft_s"]["p50"] is not None]
    rows: list[list[str | Cell]] = []
    for name, one in regions.items():
        requests, ttft = one["requests"], [one["ttft_s"][quantile] for quantile in ("p50", "p95", "p99")]
        decimals = _decimals(ttft[0] or 0.0)
        above = NOT_APPLICABLE if ttft[0] is None else f"{(ttft[0] - min(medians)) * 1000:+,.{decimals}f}"
        times = ("∞" if value is None else f"{value * 1000:,.{decimals}f}" for value in ttft)
        good = NOT_APPLICABLE if one["goodput_ratio"] is None else _goodput(one)
        verdict = one.get("verdict")
        outcome = "" if verdict is None else str(verdict["outcome"])
        rows.append([name, f"{requests['ok']:,} of {requests['scheduled']:,}", *times, above, good, outcome])
    titles = ("region", "succeeded", "TTFT p50, ms", "p95", "p99", "over the quickest", "goodput", "")
    yield from table_lines(screen, titles, rows, right=range(1, len(titles) - 1))


def _decimals(seconds: float) -> int:
    return 2 if seconds < 0.00995 else 1 if seconds < 0.9995 else 0


def _slo(slo: Document) -> str:
    return ", ".join(
        f"{title} {as_written(show_duration, slo[key])}" for key, title in _SLO.items() if slo[key] is not None
    )


def _client(document: Document) -> str:
    client = document["client"]
    figures = [{True: "saturated", False: "kept up", None: "not known to keep up"}[client["saturated"]]]
    if client["cpu_us_per_token"] is not None:
        figures.append(f"{show_number(client['cpu_us_per_token'])} µs CPU/token")
    delays = {"send lag": document["send_lag_s"]["p99"], "read delay": client["read_delay_s"]["p99"]}
    shown = ", ".join(f"{title} {show_duration(value)}" for title, value in delays.items() if value is not None)
    figures += [f"p99 {shown}"] if shown else []
    if client["start_uncertainty_s"] is not None:
        figures.append(f"started within {show_duration(client['start_uncertainty_s'])}")
    return ", ".join(figures)


def _verdict(verdict: Document, screen: Screen) -> Iterator[str]:
    outcome = Outcome(verdict["outcome"])
    yield ""
    yield screen.paint(f"{MARKS[outcome]} {outcome}", Style.BOLD, STYLES[outcome])
    yield from screen.wrapped(one_line(verdict["reason"], 1000), "  ")
    if verdict.get("goodput_lower") is not None:
        ends = (verdict["goodput_lower"], verdict["goodput_upper"])
        bounds = " to ".join(beside(show_percent, end, verdict["target_ratio"]) for end in ends)
        where = f" in {verdict['region']}" if "region" in verdict else ""
        yield from screen.wrapped(f"goodput{where} is {bounds} ({_levels(verdict['upper_alpha'])})", "  ", Style.DIM)


def _levels(upper_alpha: float) -> str:
    """Return the levels of both bounds of goodput; a region's upper one has a level of its own."""
    if upper_alpha == _LOWER_ALPHA:
        return "one-sided 95% bounds"
    lower, upper = confidence_level(_LOWER_ALPHA), confidence_level(upper_alpha)
    return f"one-sided bounds, the lower at {lower} and the upper at {upper}"


def render_search(document: Document, screen: Screen) -> str:
    """Render the result of a capacity search: the answer, then a table of the levels."""
    return "\n".join([*_search_lines(document, screen), ""])


def _search_lines(document: Document, screen: Screen) -> Iterator[str]:
    search = document["search"]
    for at, line in enumerate(search_findings(document)):
        yield from screen.wrapped(line[0].upper() + line[1:], "", Style.BOLD if at == 0 else None)
    yield ""
    yield from _server(document, screen)
    arrival = "" if search["arrival"] is None else f", {search['arrival']} arrivals"
    span = f"{search['from']:g} to {show_level(search['to'], search['over'])}"
    yield from _labelled(screen, "searched", f"{span}{arrival}; {_content(search)}")
    target = as_written(show_percent, search["target_ratio"])
    yield from _labelled(screen, "target", f"{target} of requests within {_slo(search['slo'])}")
    warmup = "" if not document["requests_warmup"] else f" and {document['requests_warmup']:,} of warm-up"
    yield from _labelled(screen, "requests", f"{document['requests_sent']:,}{warmup}")
    if document["probes"]:
        yield ""
        rows: list[list[str | Cell]] = []
        for probe in sorted(document["probes"], key=lambda one: float(one["level"])):
            share, lower, upper = (
                NOT_APPLICABLE if probe[key] is None else beside(show_percent, probe[key], search["target_ratio"])
                for key in ("goodput_ratio", "goodput_lower", "goodput_upper")
            )
            rows.append(
                [
                    show_level(probe["level"], search["over"]),
                    _STANDINGS[probe["standing"]],
                    share,
                    lower if lower == NOT_APPLICABLE else f"{lower} to {upper}",
                    f"{probe['good']:,} of {probe['scheduled']:,}",
                    "queue grows" if probe["backlog_grows"] else "unsteady" if probe["unsteady"] else "",
                ]
            )
        headings = ("level", "target", "goodput", "interval", "good requests", "")
        yield from table_lines(screen, headings, rows, right=(0, 2, 3, 4))
    for reason in document["looks_left_out"]:
        yield from screen.labelled("left out: ", one_line(reason), _INDENT, Style.YELLOW)
    if "verdict" in document:
        yield from _verdict(document["verdict"], screen)


def search_findings(document: Document) -> Iterator[str]:
    """Yield the bracket of the capacity, or why there is none, with a remedy."""
    if document["partial"]:
        yield "the search was interrupted; the result holds what was measured by then"
        return
    if document["fault"] is not None:
        yield str(document["fault"])
        return
    capacity, over, why = document["capacity"], document["search"]["over"], _ENDED.get(document["stop"], "")
    lower, upper = (None if capacity[end] is None else show_level(capacity[end], over) for end in ("lower", "upper"))
    if lower is not None and upper is not None:
        yield f"the capacity is between {lower} and {upper}{why}"
    elif lower is not None:
        yield f"the capacity is {lower} or more{why}"
    elif upper is not None:
        yield f"the capacity is below {upper}{why}"
    else:
        yield f"no level was shown to meet or to miss the target{why}"
    if document["requests_needed"] is not None:
        yield f"about {document['requests_needed']:,} requests at one level would show more (--probe)"
    unclear = [probe for probe in document["probes"] if probe["standing"] in ("open", "unresolved")]
    short = ", ".join(show_level(probe["level"], over) for probe in unclear if probe["window_short"])
    if short:
        yield f"measured for less than 10 s, or 10 % of its looks: {short}; give it more requests (--probe)"


_ENDED = {
    "never_breached": ": the highest level met the target; search further (--to)",
    "unmet_at_minimum": ": the lowest level missed the target; start lower (--from)",
    "unresolved": "; the remaining levels stayed unresolved",
    "probes_exhausted": "; the search tried its maximum number of levels",
    "budget_exhausted": "; the --budget is spent",
}


def show_level(level: float, over: str) -> str:
    """Show a level of a search: `8/s`, or `8 in flight`."""
    return f"{level:g}/s" if over == "rate" else f"{level:g} in flight"
