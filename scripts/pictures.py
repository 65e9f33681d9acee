"""Pictures of the documentation as SVG. They are drawn in `currentColor`, so light and dark pages both show them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from benchgate.model.verdict import Outcome
from benchgate.stats.knee import Knee, find_knee
from scripts.worked_example import EXAMPLES, MARGIN, check_of, verdict_of

_STYLE = (
    "svg{color:#1f2328}"
    "text{font:14px system-ui,sans-serif;fill:currentColor}.small{font-size:12px}.strong{font-weight:600}"
    ".line{stroke:currentColor;stroke-width:1.5;fill:none}.box{stroke:currentColor;stroke-width:1.5;fill:none}"
    ".shade{fill:currentColor;fill-opacity:.14}.dash{stroke-dasharray:5 4}.dot{fill:currentColor}.paper{fill:#fff}"
    "@media(prefers-color-scheme:dark){svg{color:#e6edf3}.paper{fill:#0d1117}}"
)


def _svg(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">'
    return "\n".join([head, f"<title>{title}</title>", f"<style>{_STYLE}</style>", *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{style}>{text}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str = "line") -> str:
    return f'<line class="{kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'


def _box(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"/>'


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    angle = math.atan2(y2 - y1, x2 - x1)
    ends = [(x2 - 9 * math.cos(angle + turn), y2 - 9 * math.sin(angle + turn)) for turn in (0.45, -0.45)]
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in ((x2, y2), *ends))
    return f'{_line(x1, y1, x2, y2)}<polygon class="dot" points="{corners}"/>'


def flow() -> str:
    """Draw one run from the suite to the exit code."""
    steps = ((10, "suite", "YAML"), (410, "store", "every request"), (550, "gate", "guards, checks"))
    parts = [
        item
        for x, name, detail in steps
        for item in (_box(x, 62, 110, 56), _text(x + 55, 86, name, "strong"), _text(x + 55, 105, detail, "small"))
    ]
    for y, name in ((20, "baseline"), (108, "candidate")):
        parts += [_box(250, y, 120, 52), _text(310, y + 24, name, "strong"), _text(310, y + 42, "deployment", "small")]
    parts += [_box(150, 62, 70, 56), _text(185, 86, "load", "strong"), _text(185, 105, "client", "small")]
    parts += [_arrow(120, 90, 149, 90), _arrow(220, 80, 249, 50), _arrow(220, 100, 249, 130)]
    parts += [_arrow(370, 50, 409, 80), _arrow(370, 130, 409, 100), _arrow(520, 90, 549, 90), _arrow(660, 90, 689, 90)]
    parts += [_text(695, 80, "verdict,", "strong", "start"), _text(695, 98, "exit code", "", "start")]
    return _svg(780, 180, "A run: suite, load client, two deployments, store, gate, verdict", parts)


def blocks() -> str:
    """Draw the order of the arms in four blocks."""
    parts = []
    for block in range(4):
        x = 20 + 185 * block
        order = ("A", "B") if block % 2 == 0 else ("B", "A")
        parts += [_text(x + 80, 24, f"block {block + 1}", "small")]
        for at, arm in enumerate(order):
            left = x + 82 * at
            kinds = ("box", "box shade") if arm == "B" else ("box",)
            parts += [_box(left, 34, 78, 46, kind) for kind in kinds]
            parts.append(_text(left + 39, 62, arm, "strong"))
        parts.append(_text(x + 80, 100, "one log ratio B / A", "small"))
    parts += [_arrow(20, 122, 740, 122), _text(740, 140, "time", "small", "end")]
    parts.append(_text(20, 140, "A = baseline, B = candidate: same prompts, same schedule", "small", "start"))
    return _svg(760, 150, "Blocks A B, B A, A B, B A: both arms are measured close in time", parts)


def outcomes() -> str:
    """Draw the intervals of the worked example's candidates against the margin."""

    def at(change: float) -> float:
        return 300 + (change + 0.05) / 0.20 * 400

    parts = [_box(at(-0.05), 36, at(MARGIN) - at(-0.05), 212, "shade")]
    for row, example in enumerate(EXAMPLES):
        y = 62 + 42 * row
        check, outcome = check_of(example), verdict_of(example).outcome
        assert check.harm is not None and check.lower is not None and check.upper is not None
        low, middle, high = (at(math.expm1(value)) for value in (check.lower, check.harm, check.upper))
        kind = "line dash" if outcome is Outcome.INVALID else "line"
        parts += [_text(10, y + 5, outcome.value, "strong", "start"), _text(125, y + 5, example.name, "small", "start")]
        parts += [_line(low, y, high, y, kind), _line(low, y - 6, low, y + 6), _line(high, y - 6, high, y + 6)]
        parts.append(f'<circle class="dot" cx="{middle:.1f}" cy="{y}" r="4"/>')
    parts += [_line(at(0), 36, at(0), 248), _line(at(MARGIN), 36, at(MARGIN), 248, "line dash")]
    parts += [_text(at(0), 26, "no change"), _text(at(MARGIN), 26, "margin")]
    for tick in (-0.05, 0.0, 0.05, 0.10, 0.15):
        label = f"{100 * tick:+.0f}%".replace("-", "\N{MINUS SIGN}") if tick else "0%"
        parts.append(_text(at(tick), 268, label, "small"))
    parts.append(_text(at(0.05), 288, "change of the median TTFT, with one-sided 95% bounds", "small"))
    return _svg(720, 300, "Five outcomes: confidence intervals against zero and the margin", parts)


def knee() -> str:
    """Draw throughput and latency of the drill `tradeoff` against its concurrency, computed from its costs."""
    levels = (1, 2, 4, 8, 16, 32)
    batches = [min(level, 8) for level in levels]
    tokens_per_s = [batch / (0.010 + 0.0003 * batch) for batch in batches]
    latencies_s = [8 * level / rate for level, rate in zip(levels, tokens_per_s, strict=True)]
    found = find_knee(levels, tokens_per_s, latencies_s)
    assert isinstance(found, Knee)
    panels = (
        ("output tokens/s", tokens_per_s, 800.0),
        ("end-to-end latency, ms", [1000 * latency for latency in latencies_s], 500.0),
    )
    parts = []
    for left, (title, values, top) in zip((50, 420), panels, strict=True):

        def at(level: float, value: float, left: int = left, top: float = top) -> tuple[float, float]:
            return left + 20 + math.log2(level) * 54, 220 - value / top * 170

        points = [at(level, value) for level, value in zip(levels, values, strict=True)]
        parts += [_text(left, 28, title, "strong", "start"), _line(left, 220, left + 310, 220)]
        parts.append(f'<polyline class="line" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>')
        for level, value, (x, y) in zip(levels, values, points, strict=True):
            parts += [f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4"/>', _text(x, 240, f"{level}", "small")]
            parts.append(_text(round(x) - 5, round(y) - 8, f"{value:.0f}", "small", "end"))
        x, _ = at(found.level, 0)
        parts += [_line(x, 50, x, 220, "line dash"), _text(x + 6, 212, "knee", "small", "start")]
    parts.append(_text(390, 262, "requests in flight", "small"))
    title = f"Knee at {found.level:g}: beyond it throughput stays the same and latency grows"
    return _svg(760, 272, title, parts)


def trend() -> str:
    """Draw a trend of the history site with every mark that it can have."""
    goodput = (97.1, 97.4, 96.9, 97.6, 92.2, 97.3, 97.0, 98.6, 98.4, 93.9, 98.7, 98.5)
    half_widths = (0.7, 0.6, 0.8, 0.6, 1.1, 0.7, 0.7, 0.5, 0.5, 1.9, 0.4, 0.5)
    promoted, blocked, invalid, new_engine = {1, 3, 8, 10}, 4, 9, 7

    def at(run: int, value: float) -> tuple[float, float]:
        return 70 + 54 * run, 200 - (value - 90) / 10 * 160

    points = [at(run, value) for run, value in enumerate(goodput)]
    upper = [at(run, value + half) for run, (value, half) in enumerate(zip(goodput, half_widths, strict=True))]
    lower = [at(run, value - half) for run, (value, half) in enumerate(zip(goodput, half_widths, strict=True))]
    band = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*upper, *reversed(lower)])
    parts = [f'<polygon class="shade" points="{band}"/>']
    parts.append(f'<polyline class="line" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>')
    for run, (x, y) in enumerate(points):
        if run == invalid:
            parts += [_line(x - 5, y - 5, x + 5, y + 5), _line(x - 5, y + 5, x + 5, y - 5)]
        else:
            fill = "paper" if run == blocked else "dot"
            parts.append(f'<circle class="line {fill}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>')
        if run in promoted:
            parts.append(f'<circle class="line" cx="{x:.1f}" cy="{y:.1f}" r="9"/>')
    for percent in (90, 95, 100):
        parts.append(_text(52, at(0, percent)[1] + 4, f"{percent}%", "small", "end"))
    target = at(0, 95)[1]
    parts += [_line(60, target, 680, target, "line dash"), _text(684, target + 4, "target", "small", "start")]
    x = at(new_engine, 0)[0]
    parts += [_line(x, 34, x, 200, "line dash"), _text(x, 26, "E", "strong")]
    notes = ((points[1], -20, "promoted"), (points[blocked], 24, "BLOCK"), (points[invalid], 24, "INVALID"))
    parts += [_text(round(x), round(y) + dy, word, "small") for (x, y), dy, word in notes]
    parts += [_text(60, 222, "\N{LEFTWARDS ARROW} oldest", "small", "start")]
    parts += [_text(680, 222, "newest \N{RIGHTWARDS ARROW}", "small", "end")]
    return _svg(740, 232, "Trend of goodput over twelve runs, with 95% intervals, promotions and a new engine", parts)


PICTURES = {
    "run.svg": flow,
    "blocks.svg": blocks,
    "outcomes.svg": outcomes,
    "knee.svg": knee,
    "trend.svg": trend,
}
